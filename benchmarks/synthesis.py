"""What HFMDS+FedPA costs: synthesis alone, and whole rounds against a single-purpose script of the same mathematics.

    python -m benchmarks.synthesis                     small; figures per local step and per image and step
    python -m benchmarks.synthesis --size main-job     100 clients × 100 images, of which 10 are synthesised in 40 steps
    python -m benchmarks.synthesis --size paper --out docs/benchmarks.md   20 × 2,500 images, T_g 500: half an hour

First, in one process of one thread: images·steps per second of raysim's HFMDS.synthesise beside a loop over clients
(100 images a batch, Adam, weights not frozen), in turns, on the same images, noise and weights. Then raysim and the
script of benchmarks/hfmds_fedpa.py, both in 2 processes, take turns round by round; every second round synthesises.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from benchmarks.hfmds_fedpa import SETTINGS, synthesise
from benchmarks.report import machine, megabytes, publish, spread, table
from benchmarks.turns import Side, here
from benchmarks.workloads import BATCH, CLASSES, Workload, client_batch, pixels, plain_model
from raysim.papers import presets

SIZES = {
    "small": {"clients": 20, "samples": 250, "active": 10, "per_client": 100, "steps": 10},
    "main-job": {"clients": 100, "samples": 100, "active": 10, "per_client": 10, "steps": 40},
    "paper": {"clients": 20, "samples": 2_500, "active": 10, "per_client": 100, "steps": 500},
}
TITLES = {"small": ", small", "main-job": ", in the size of the main job", "paper": ""}
EVERY = 2  # rounds between syntheses; training before the first has no synthetic data, and is not timed
ALONE = 20  # steps of the synthesis alone, where its rate is as good as that of many


def raysim_settings(settings: dict) -> dict[str, object]:
    """The script's settings as raysim's, the synthesis by the paper's letter; floors off: the script has none."""
    names = {
        "hfmds": ("every", "steps", "per_client", "alpha", "mu", "momentum"),
        "fedpa": ("lambda_ge", "lambda_po", "decay", "gamma_fid", "gamma_div", "gamma_ad", "gen_steps", "gen_batch",
                  "gen_lr", "noise"),
    }  # fmt: skip
    own = {f"{part}.{name}": settings[name] for part, known in names.items() for name in known}
    letter = {key: value for key, value in presets()["hfmds-cifar10"].settings.items() if key.startswith("hfmds.")}
    return letter | {"method": "hfmds+fedpa", "hfmds.lr": settings["image_lr"], "fedpa.lambda_po_floor": 0.0} | own


# -- synthesis alone ---------------------------------------------------------------------------------------------------


def throughput(workload: Workload, settings: dict, data: str | None, groups: int, repeats: int):
    """Per repeat: images·steps/s of raysim and of the loop; with how far apart their images are."""
    import numpy as np
    import torch

    from benchmarks.ours import settings as settings_of
    from raysim.config import resolve
    from raysim.data.normalisation import Normalisation
    from raysim.models import build
    from raysim.models.flat import FlatModel

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = resolve([("benchmark", settings_of(workload) | raysim_settings(settings))])
    hfmds = next(part for part in config.parts if part.name == "hfmds")
    model = FlatModel(build(workload.model, workload.shape, CLASSES, 0).eval(), torch.device("cpu"))
    plain = plain_model(workload.model, workload.shape)
    with torch.no_grad():
        for mine, theirs in zip(plain.parameters(), model.module.parameters(), strict=True):
            mine.copy_(theirs)
    x, y = pixels(workload, data)
    size = hfmds.group_size(config)
    count, clients = settings["per_client"], groups * size
    batches = [tuple(v[:count] for v in client_batch(x, y, workload.rows(k))) for k in range(clients)]
    draw = torch.Generator().manual_seed(0)
    prototypes = torch.rand(CLASSES, model.module.feature_size, generator=draw)
    noise = [torch.randn(images.shape, generator=draw) for images, _ in batches]
    limits = Normalisation.half(workload.shape[0]).on(torch.device("cpu")).limits()
    work = settings["steps"] * sum(len(labels) for _, labels in batches)

    def ours():
        made = []
        for first in range(0, clients, size):
            of = slice(first, first + size)
            real, labels = (torch.cat(column) for column in zip(*batches[of], strict=True))
            real = real.contiguous(memory_format=torch.channels_last)  # as a client holds them
            start = torch.cat(noise[of])
            images, _ = hfmds.synthesise(
                model.module, real, labels, prototypes[labels], start, limits, np.random.default_rng(0)
            )
            made.append(images)
        return torch.cat(made)

    def loop():
        pairs = zip(batches, noise, strict=True)
        return torch.cat([synthesise(plain, settings, *batch, prototypes, start) for batch, start in pairs])

    rates, images = {ours: [], loop: []}, {}
    for i in range(repeats + 1):  # the first warms up
        for side in (ours, loop) if i % 2 else (loop, ours):
            started = time.perf_counter()
            images[side] = side()
            if i:
                rates[side].append(work / (time.perf_counter() - started))
    torch.set_num_threads(threads)
    return rates[ours], rates[loop], (images[ours] - images[loop]).abs().mean().item()


# -- whole rounds ------------------------------------------------------------------------------------------------------


def rounds(workload: Workload, settings: dict, asked: argparse.Namespace) -> dict[str, dict]:
    """Side -> seconds of its syntheses and the training rounds after the first, the last loss terms, peak memory."""
    data = ["--data", str(Path(asked.data).resolve())] if asked.data else []
    theirs = here("hfmds_fedpa", workload.to_json(), *data, "--settings", json.dumps(settings))
    extra = raysim_settings(settings) | dict(asked.set)
    mine = here("ours", workload.to_json(), *data, "--settings", json.dumps(extra))
    with Side("script", theirs) as script, Side("raysim", mine) as raysim:
        measured = {side: {"training": [], "synthesis": []} for side in (script, raysim)}
        for t in range(1, EVERY * asked.syntheses + 2):
            for side in (script, raysim) if t % 2 else (raysim, script):
                answer = side.warm_up() if t < EVERY else side.round()
                phases = answer["phases"]
                synthesis = sum(seconds for name, seconds in phases.items() if name.startswith("synthesis"))
                measured[side]["terms"] = answer["terms"]
                if t >= EVERY:
                    measured[side]["training"].append(answer["seconds"] - synthesis)
                if t % EVERY == 0:
                    measured[side]["synthesis"].append(synthesis)
        return {side.name: values | {"peak": side.peak} for side, values in measured.items()}


def rows_of(measured: dict[str, dict], workload: Workload, settings: dict) -> list[list[object]]:
    """A line per side, and one of ratios; a step is one local step of one client."""
    steps = workload.active * -(-workload.samples // BATCH)
    images = workload.clients * min(settings["per_client"], workload.samples) * settings["steps"]
    rows = []
    for name, values in measured.items():
        terms = ", ".join(f"{term} {value:.3f}" for term, value in values["terms"].items())
        rows.append([
            name, spread(values["training"]), f"{1000 * statistics.median(values['training']) / steps:.2f}",
            spread(values["synthesis"]), f"{images / statistics.median(values['synthesis']):,.0f}",
            megabytes(values["peak"]), terms,
        ])  # fmt: skip
    ratio = [
        spread([a / b for a, b in zip(measured["raysim"][k], measured["script"][k], strict=True)], 2)
        for k in ("training", "synthesis")
    ]
    return [*rows, ["ratio", ratio[0], "", ratio[1], "", "", ""]]


HEAD = ["", "training round, s", "ms per local step", "synthesis, s", "images·steps/s", "peak PSS, MB", "last losses"]


def main(arguments: list[str] | None = None) -> None:
    from benchmarks.compare import pair

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small", help="that of the main job, or of the paper")
    for size in SIZES["small"]:
        parser.add_argument(f"--{size.replace('_', '-')}", type=int, help="in place of what --size has")
    parser.add_argument("--syntheses", type=int, default=3, help="how many; with twice as many training rounds")
    parser.add_argument("--repeats", type=int, default=5, help="of the synthesis alone")
    parser.add_argument("--groups", type=int, default=2, help="groups of clients in the synthesis alone")
    parser.add_argument("--data", help="folder with CIFAR-10; the built-in shapes otherwise")
    parser.add_argument("--set", type=pair, action="append", default=[], help="a setting of raysim, as key=value")
    parser.add_argument("--out", type=Path, help="file to put the section into")
    asked = parser.parse_args(arguments)
    sizes = {k: getattr(asked, k) or v for k, v in SIZES[asked.size].items()}
    workload = Workload(
        "synthesis", "hfmds-cnn", (3, 32, 32), sizes["clients"], sizes["samples"], sizes["active"], 0
    )  # fmt: skip
    settings = SETTINGS | {"every": EVERY, "per_client": sizes["per_client"], "steps": sizes["steps"]}
    alone = settings | {"steps": min(ALONE, settings["steps"])}
    ours, loop, apart = throughput(workload, alone, asked.data, asked.groups, asked.repeats)
    ratios = [a / b for a, b in zip(ours, loop, strict=True)]
    rates = [["raysim", spread(ours, 0), spread(ratios, 2)], ["loop over clients", spread(loop, 0), "1"]]
    text = [
        f"## HFMDS+FedPA beside a single-purpose script{TITLES[asked.size]}",
        f"`python -m benchmarks.synthesis --size {asked.size}`: {workload.describe()}; {settings['per_client']} images "
        f"per client in {settings['steps']} steps. Medians, lowest to highest in brackets.",
        f"Synthesis alone, one thread, {alone['steps']} steps (images differ by {apart:.1e} on average, by rounding):",
        table(["", "images·steps/s", "ratio"], rates),
        "Rounds, in 2 processes; the loss terms show that both compute the same, with their own draws:",
        table(HEAD, rows_of(rounds(workload, settings, asked), workload, settings)),
        machine(),
    ]
    publish("synthesis" if asked.size == "paper" else f"synthesis, {asked.size}", "\n\n".join(text), asked.out)


if __name__ == "__main__":
    main()
