"""What a client actor is working on, as metrics of Ray."""

from __future__ import annotations

from ray.util.metrics import Gauge

ACTOR_GAUGES = {
    "raysim_actor_round": "the round each client actor works on",
    "raysim_actor_client": "the client each client actor works on, the first of those it was given together",
}


class ActorMetrics:
    """Reports the round and the client one actor works on, from the actor's own process."""

    def __init__(self, run: str, actor: str):
        self.round, self.client = (
            Gauge(name, about, tag_keys=("run", "actor")).set_default_tags({"run": run, "actor": actor})
            for name, about in ACTOR_GAUGES.items()
        )

    def at(self, t: int, client: int) -> None:
        """The actor begins work of round t, for this client."""
        self.round.set(t)
        self.client.set(client)
