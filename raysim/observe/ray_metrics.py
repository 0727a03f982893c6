"""A run's figures as metrics of Ray, for Prometheus and Grafana (cluster/monitoring/).

Ray exports them at each node's metrics port under these names with `ray_` before them. Every value of a tag stays a
series for as long as Prometheus keeps it, so the tags are few: the run, the names of loss terms and phases, the actors.
"""

from ray.util.metrics import Counter, Gauge

GAUGES = {
    "raysim_round": "the last finished round",
    "raysim_accuracy": "accuracy on the test split, 0 to 1",
    "raysim_loss": "cross-entropy on the test split",
    "raysim_train_loss": "the clients' mean cross-entropy in local training",
    "raysim_term": "the clients' mean of each further loss term",
    "raysim_clients_per_second": "clients trained per second of the round",
    "raysim_round_seconds": "how long the round took",
    "raysim_phase_seconds": "how long each of its phases took",
    "raysim_psnr": "similarity of synthetic images to the real ones, in dB",
    "raysim_generator": "the generator's losses and the distances of its features",
    "raysim_shared_bytes": "bytes of the synthetic dataset in the object store, once per node",
    "raysim_actor_round": "the round each client actor is at",
    "raysim_actor_client": "the client each client actor is at, the first of those it was given together",
}
COUNTERS = {
    "raysim_failures_total": "actors lost and clients that failed",
    "raysim_retries_total": "clients that were run again, for their own failure or their actor's",
    "raysim_bytes_up_total": "bytes the clients sent",
    "raysim_bytes_down_total": "bytes the clients were sent",
}
TAGS = {  # beside `run`
    "raysim_term": ("term",), "raysim_phase_seconds": ("phase",), "raysim_generator": ("term",),
    "raysim_actor_round": ("actor",), "raysim_actor_client": ("actor",),
}  # fmt: skip


def _make(kind: type, about: dict[str, str], run: str, names) -> dict:
    return {
        name: kind(name, about[name], tag_keys=("run", *TAGS.get(name, ()))).set_default_tags({"run": run})
        for name in names
    }


class Metrics:
    """Reports the rounds of one run. Counters count what was done, so rounds that are done again count again."""

    def __init__(self, run: str):
        self.gauges = _make(Gauge, GAUGES, run, [name for name in GAUGES if "actor" not in name])
        self.counters = _make(Counter, COUNTERS, run, COUNTERS)

    def round(self, line: dict) -> None:
        """Report a line of metrics.jsonl."""
        for name in ("round", "accuracy", "loss", "train_loss", "psnr", "shared_bytes"):
            self.gauges[f"raysim_{name}"].set(line.get(name))  # nothing happens where there is none
        self.gauges["raysim_round_seconds"].set(line["seconds"])
        self.gauges["raysim_clients_per_second"].set(line["clients"] / max(line["seconds"], 1e-4))
        generator = {key.removeprefix("generator."): v for key, v in line.items() if key.startswith("generator.")}
        for name, values in [
            ("raysim_term", line["terms"]), ("raysim_phase_seconds", line["phases"]), ("raysim_generator", generator)
        ]:  # fmt: skip
            for key, value in values.items():
                self.gauges[name].set(value, {TAGS[name][0]: key})
        for name in ("failures", "retries", "bytes_up", "bytes_down"):
            if line[name]:  # Ray's counters refuse 0
                self.counters[f"raysim_{name}_total"].inc(line[name])


class ActorMetrics:
    """Reports what one client actor is at, from its own process."""

    def __init__(self, run: str, actor: str):
        names = ("raysim_actor_round", "raysim_actor_client")
        self.round, self.client = _make(Gauge, GAUGES, run, names).values()
        self.tags = {"actor": actor}

    def at(self, t: int, client: int) -> None:
        self.round.set(t, self.tags)
        self.client.set(client, self.tags)
