"""Metrics of Ray that a client actor reports about itself; those of the run are in observe/ray_metrics.py."""

from ray.util.metrics import Gauge

ACTOR_GAUGES = {
    "raysim_actor_round": "the round each client actor is at",
    "raysim_actor_client": "the client each client actor is at, the first of those it was given together",
}


class ActorMetrics:
    """The gauges of one client actor, tagged with its run and its name."""

    def __init__(self, run: str, actor: str):
        self.round, self.client = (
            Gauge(name, about, tag_keys=("run", "actor")).set_default_tags({"run": run, "actor": actor})
            for name, about in ACTOR_GAUGES.items()
        )

    def at(self, t: int, client: int) -> None:
        """Report the round and the client that the actor begins with now."""
        self.round.set(t)
        self.client.set(client)
