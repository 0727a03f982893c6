"""A calculation for clusters we do not have: rounds per hour on 8, 64 and 512 GPUs, and what becomes the limit first.

    python -m benchmarks.cluster_model                        with the rates below
    python -m benchmarks.cluster_model --measure w1           with this machine's rates, for W1's clients and model
    python -m benchmarks.cluster_model --client-seconds 0.02 --model-megabytes 44.7

A round works as in raysim: the driver hands out calls of many clients each, the model is sent to every node once, the
actors train and sum, the driver asks every actor for its sum, an actor on every node adds up its node's, and the server
those of the nodes. With S active clients, A actors, N nodes and a model of M bytes:

    work        S · client_seconds / A                          the local training, spread evenly (work is pulled)
    unevenness  client_seconds                                  some actors have one client more than others
    driver      (calls + A + N) · call_seconds + S · report_seconds
    broadcast   M · N / broadcast rate                          actors of a node share one copy
    nodes       A / N · 2M / sum rate                           int64: twice the size of the weights; nodes at once
    server      N · 2M / sum rate + N · 2M / network
    states      S · state_bytes / store rate                    for methods whose clients keep something

Work and the driver's calls for it overlap (calls are handed out while others run), the rest happens one after the
other. So a round takes max(work + unevenness, driver) + broadcast + nodes + server + states. The limit is the largest
term; a column says from how many GPUs on the work takes less than all the rest together, so that more GPUs hardly help.

Every rate is an argument. A step on a CPU says nothing about a GPU: for GPUs give `--client-seconds`, or measure there.
`python -m benchmarks.driver` measures the driver's two rates, and compares them with this calculation.
"""

import argparse
import json
import math
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path

from benchmarks import driver
from benchmarks.report import publish, table
from benchmarks.turns import Side, here
from benchmarks.workloads import CLASSES, WORKLOADS, Workload
from raysim.engine.work_queue import CALL_SECONDS

GPUS = (8, 64, 512)
FEDERATIONS = ((1_000, 100), (100_000, 1_000), (1_000_000, 10_000), (1_000_000, 100_000))  # registered, active
GPUS_PER_NODE = 8
ACTORS_PER_GPU = 2  # raysim's default


@dataclass(frozen=True)
class Rates:
    """The rates of the calculation. Each default says whether Ray published it, --measure measures it, or we assume it.

    Ray's figures are of its release tests, on machines and versions of theirs, not of the version pinned here.
    """

    # One client's local training on one of two actors that share a GPU. An assumption, not a measurement: 50 steps of
    # a small network, launch-bound at about 1 ms each.
    client_seconds: float = 0.05
    model_megabytes: float = 3.5  # hfmds-cnn
    # Driver, per call, in processor time of its whole process: `python -m benchmarks.driver --ray 100`. Ray publishes
    # 8,038 calls/s from one driver to many actors (`1_n_actor_calls_async`, ray-project/ray,
    # release/perf_metrics/microbenchmark.json at 08444c4), 0.12 ms each, without waiting for answers.
    call_seconds: float = 0.5e-3
    # Driver, per client: drawing, grouping, handing out, and taking in its report. --measure.
    report_seconds: float = 7e-6
    # 1 GiB to 50 nodes in 16.9 s (release/perf_metrics/scalability/object_store.json at 08ff311), taken as a total
    # rate that stays the same with more nodes; a tree of copies would do better.
    broadcast_megabytes: float = 1_024 * 50 / 16.94
    # The server adding int64 sums, from memory, on one core. --measure; 1,000 to 2,100 on a busy machine of 2 cores.
    sum_megabytes: float = 2_000.0
    # Into the server's node: an assumption, 25 Gbit/s.
    network_megabytes: float = 3_000.0
    state_bytes: float = 0.0  # per client, for methods that keep state: 20,490 in hfmds with hfmds-cnn
    # `single_client_put_gigabytes` is 19.9 ± 9 GB/s (microbenchmark.json as above); we assume a tenth, since states are
    # small pieces.
    store_megabytes: float = 2_000.0
    pixels_per_client: float = 20 * 784  # bytes, uint8


# Ray's own envelope (ray-project/ray, release/benchmarks/README.md at 048f73e): more than 250 nodes, 10,000 actors, and
# 10,000 objects as arguments of one call, which is how the server is sent the actors' sums and the calls' uploads.
RAY_NODES, RAY_ACTORS, RAY_ARGUMENTS = 250, 10_000, 10_000
# Actors are created at 550 per second (release/perf_metrics/benchmarks/many_actors.json at 00f8d99), but import torch.
ACTORS_PER_SECOND, IMPORT_SECONDS = 550, 2.5  # the second measured on 2 cores


def calls_of(clients: int, actors: int, client_seconds: float = math.inf) -> int:
    """raysim's queue (engine/work_queue.py): each call takes half an even share of what was left when all had got one.

    But no call is so short that the driver cannot keep up (`Pace.least`).
    """
    least = min(actors * CALL_SECONDS / client_seconds, clients / actors)
    left, to_deal, calls = clients, clients, 0
    while left > 0:
        if calls % actors == 0:
            to_deal = left
        left -= max(1, int(max(to_deal / (2 * actors), least) * (1 + 1e-9)))
        calls += 1
    return calls


def terms(rates: Rates, gpus: int, active: int) -> dict[str, float]:
    """Seconds of each part of a round."""
    actors = min(gpus * ACTORS_PER_GPU, active)
    nodes = math.ceil(gpus / GPUS_PER_NODE)
    calls = calls_of(active, actors, rates.client_seconds)
    sums = 2 * rates.model_megabytes * min(nodes, actors)
    return {
        "work": active * rates.client_seconds / actors,
        "unevenness": rates.client_seconds if active % actors else 0.0,
        "driver": driver_seconds(rates, calls, actors, nodes, active),
        "broadcast": rates.model_megabytes * nodes / rates.broadcast_megabytes,
        "nodes": 2 * rates.model_megabytes * math.ceil(actors / nodes) / rates.sum_megabytes * (nodes > 1),
        "server": sums / rates.sum_megabytes + sums / rates.network_megabytes,
        "states": active * rates.state_bytes / 1e6 / rates.store_megabytes,
    }


def driver_seconds(rates: Rates, calls: int, actors: int, nodes: int, active: int) -> float:
    """The driver's part: calls to train, one to each actor for its sum, one per node to add those up, and clients."""
    return (calls + actors + nodes * (nodes > 1)) * rates.call_seconds + active * rates.report_seconds


def round_seconds(parts: dict[str, float]) -> float:
    after = parts["broadcast"] + parts["nodes"] + parts["server"] + parts["states"]
    return max(parts["work"] + parts["unevenness"], parts["driver"]) + after


def saturation(rates: Rates, active: int) -> int | None:
    """The fewest GPUs (in powers of two) at which work takes less than all the rest; None where it never does."""
    for power in range(20):
        parts = terms(rates, 2**power, active)
        if parts.pop("work") < sum(parts.values()):
            return 2**power
    return None


def rows_of(rates: Rates) -> list[list[str]]:
    rows = []
    for clients, active in FEDERATIONS:
        for gpus in GPUS:
            parts = terms(rates, gpus, active)
            seconds = round_seconds(parts)
            first = max(parts, key=parts.get)
            second = max((name for name in parts if name != first), key=parts.get)
            rows.append([
                f"{clients:,}", f"{active:,}", f"{gpus}", f"{seconds:.3g}", f"{3600 / seconds:,.0f}",
                f"{first} ({parts[first]:.2g} s)", f"{second} ({parts[second]:.2g} s)",
                f"{saturation(rates, active) or '–'}", f"{clients * rates.pixels_per_client / 2**30:.1f}",
            ])  # fmt: skip
    return rows


HEAD = [
    "clients", "active", "GPUs", "s per round", "rounds per hour", "limit", "next", "work is below half from GPUs",
    "pixels, GiB",
]  # fmt: skip


def envelope() -> str:
    """How the clusters of the table compare with what Ray's own tests cover."""
    actors, nodes = max(GPUS) * ACTORS_PER_GPU, math.ceil(max(GPUS) / GPUS_PER_NODE)
    start = actors / ACTORS_PER_SECOND + IMPORT_SECONDS * ACTORS_PER_GPU
    return (
        f"{max(GPUS)} GPUs are {nodes} nodes and {actors:,} actors; Ray's tests reach {RAY_NODES:,} nodes and "
        f"{RAY_ACTORS:,} actors. The server is sent at most {2 * nodes} objects in one call, a sum and a list of "
        f"uploads per node; Ray's tests reach {RAY_ARGUMENTS:,}. Starting the actors takes about {start:.0f} s where "
        "a node has a core per GPU. Clients cost the driver nothing until they are active: their number only decides "
        "how many pixels the object stores hold together."
    )


def measured(rates: Rates, workload: Workload) -> Rates:
    """The rates that one machine can measure: one actor's training, the driver's reports, the server's sums."""
    from raysim.models import build

    command = here("ours", workload.to_json(), "--settings", json.dumps({"in_process": True}))
    with Side("raysim", command) as side:  # one process is one actor, on a GPU where there is one
        side.warm_up()
        trained = side.round()["phases"]["local training"] / workload.active
    parameters = sum(p.numel() for p in build(workload.model, workload.shape, CLASSES, 0).parameters())
    return replace(
        rates, client_seconds=trained, model_megabytes=4 * parameters / 1e6, sum_megabytes=sum_rate(),
        report_seconds=report_seconds(), pixels_per_client=workload.samples * math.prod(workload.shape),
    )  # fmt: skip


def sum_rate(size: int = 1_000_000, terms: int = 4) -> float:
    """MB/s of int64 sums added up on one core."""
    import torch

    torch.set_num_threads(1)
    sums = [torch.ones(size, dtype=torch.int64) for _ in range(terms)]
    started = time.perf_counter()
    total = sums[0].clone()
    for other in sums[1:]:
        total += other
    return terms * sums[0].nbytes / 1e6 / (time.perf_counter() - started)


def report_seconds() -> float:
    """What one more active client costs the driver: between two rounds that differ in nothing else."""
    few, many = 10_000, 20_000
    found = {active: min(driver.measure(driver.parsed(["--active", str(active)]))["seconds"]) for active in (few, many)}
    return max((found[many] - found[few]) / (many - few), 0.0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for field in fields(Rates):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=float, default=field.default)
    parser.add_argument("--measure", choices=WORKLOADS, help="take what one machine can give from this one")
    parser.add_argument("--active", type=int, default=10, help="clients to measure with")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    rates = Rates(**{field.name: getattr(asked, field.name) for field in fields(Rates)})
    if asked.measure:
        rates = measured(rates, WORKLOADS[asked.measure].resized(clients=asked.active, active=asked.active))
    said = ", ".join(f"{field.name} {getattr(rates, field.name):.4g}" for field in fields(Rates))
    text = [
        "## Larger clusters, calculated",
        f"`python -m benchmarks.cluster_model` says how; not a measurement. Rates: {said}.",
        table(HEAD, rows_of(rates)),
        envelope(),
    ]
    publish("cluster model", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
