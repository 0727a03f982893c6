"""One run from its configuration to its run directory: check the input, get a cluster, plan, simulate, record."""

import json
import statistics
import time
from pathlib import Path

import ray

from raysim import models
from raysim.config import RunConfig
from raysim.data import Dataset, load
from raysim.data.federated_writer import federation, release_memory
from raysim.data.partitions import Partition
from raysim.data.synthetic_tables import tables_digest
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.plan import Plan, make_plan
from raysim.engine.ray_runner.runner import Pool
from raysim.engine.simulation import Result, Simulation
from raysim.errors import RaysimError
from raysim.observe import dashboard
from raysim.observe.features import draw_features
from raysim.observe.labels import save_labels
from raysim.observe.progress import Reporter
from raysim.observe.ray_metrics import Metrics
from raysim.observe.report import write_report
from raysim.observe.synthetic import draw_beside_real, export, pairs_of, save_pairs
from raysim.observe.trackers import Callbacks
from raysim.privacy.figures import Figure, describe
from raysim.storage.checkpoint_writer import Aside, Saver
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.run_directory import Record, run_directory, writing


def prepare(config: RunConfig) -> tuple[Dataset, Partition]:
    """Load and deal the data, checking on the way everything that can be wrong with it."""
    dataset = load(
        config.dataset, data=config.data, download=config.download, image_size=config.image_size,
        train_size=config.train_size, fraction=config.fraction, test_size=config.test_size, seed=config.seed,
    )  # fmt: skip
    models.check(config.model, dataset.shape, dataset.classes)
    dealt = config.partitioner().deal(dataset.train.y, dataset.classes, config.clients, config.seed)
    return dataset, dealt


def largest_client(config: RunConfig, dataset: Dataset, dealt: Partition) -> int:
    """Bytes an actor needs for its data: the pixels of the clients it trains at once (--fuse), as uint8 and float32."""
    return int(dealt.sizes.max()) * dataset.train.x[0].nbytes * 5 * config.fuse


def plan_for(config: RunConfig, dataset: Dataset, dealt: Partition) -> Plan:
    """The placement plan on the cluster we are connected to."""
    return make_plan(config, cluster.nodes(), largest_client(config, dataset, dealt))


def run(config: RunConfig, reporter: Reporter) -> tuple[Path, dict]:
    """Run it; the run directory and what summary.json says."""
    out = run_directory(config)
    if config.resume and (out / "summary.json").exists():
        reporter.say(f"{out} is finished: nothing to go on with")
        return out, json.loads((out / "summary.json").read_text())
    reporter.say("\n".join(f"  {key} = {value}" for key, value in config.settings().items() if value is not None))
    started = time.perf_counter()
    callbacks = Callbacks(config.callback)
    inputs = [prepare(config)]  # in a list, so that _simulate can let go of the pixels
    for note in (note for found in inputs[0] for note in found.notes):
        reporter.say(f"note: {note}")
    if config.in_process:
        from raysim.engine.in_process import InProcess

        return _simulate(config, inputs, out, reporter, started, InProcess(), None, callbacks)
    metadata = dashboard.about(config, out)
    with cluster.connected(metadata):
        plan = plan_for(config, *inputs[0])
        reporter.say(plan.describe())
        dashboard.show_on_jobs_page(metadata | {"plan": plan.describe()})
        pool = Pool(plan, config, out.name)
        return _simulate(config, inputs, out, reporter, started, pool, plan, callbacks)


def _simulate(config, inputs, out, reporter, started, runner, plan, callbacks) -> tuple[Path, dict]:
    dataset, dealt = inputs.pop()
    saver = drawing = None
    try:
        runner.reserve()  # before anything is written: it may be refused
        record = Record(out, config.resume)
        reporter.say(f"run directory: {out}")
        for note in (*dataset.notes, *dealt.notes):
            record.event("note", text=note)
        runner.on_event = record.event

        def complain(text: str) -> None:
            reporter.say(f"warning: {text}")
            record.event("warning", text=text)

        counts = dealt.counts(dataset.train.y, dataset.classes)
        data = federation(config, dataset, dealt, runner.put)
        class_names = list(dataset.class_names)
        del dataset  # the pixels are in the store
        release_memory()
        fingerprints, model_bytes = runner.start(data)
        # Drawn during the first rounds: importing matplotlib takes a second that the actors needed to start.
        drawing = Aside(writing(out / "labels.png")(save_labels), counts, class_names, out)
        distinct = [f for i, f in enumerate(fingerprints) if f not in fingerprints[:i]]
        if len(distinct) > 1:
            complain(f"mixed hardware ({distinct}): equal hashes are promised on one kind of device only")
        plan_text = plan.describe() if plan else "in one process"
        record.config(
            config, fingerprint=distinct, plan=plan_text, classes=class_names, mean=data.mean, std=data.std
        )  # fmt: skip
        callbacks.start(config.settings(), out)
        setup = time.perf_counter() - started
        reporter.start(config.rounds)
        metrics = Metrics(out.name) if plan and config.metrics else None  # Ray's, so only with it

        def on_round(line: dict) -> None:
            record.metrics(line)
            record.timeline(simulation.timeline)
            reporter.round(line)
            if metrics:
                metrics.round(line)
            callbacks.tell("on_round", line, complain)

        checkpoint = None
        if config.checkpoint_every:
            identity = {"settings": config.identity(), "data": data.digest(), "device": distinct[0]}
            saver = Saver(Checkpoints(out / "checkpoints", identity), runner, record.event, record.synced_metrics)
            checkpoint = saver.load() if config.resume else None
        history = record.keep(checkpoint.round, checkpoint.metrics) if checkpoint else record.keep(0)
        simulation = Simulation(config, data, runner, model_bytes, saver)
        if checkpoint:
            simulation.restore(checkpoint)
            reporter.say(f"going on after round {checkpoint.round}")
            record.event("resumed", round=checkpoint.round)
        try:
            result = simulation.run(on_round, history)
        except RaysimError as error:
            record.event("stopped", text=str(error))
            raise
        if config.profile:
            with writing(out / "profile"):
                write_profiles(out / "profile", simulation.profiles, with_ray=plan is not None)
            reporter.say(f"profile: {out / 'profile'}")
        drawing.wait()
        if result.shared:  # while its object store is there
            export(result.shared, data, class_names, out / "synthetic.parquet")
            found = [pair for table in result.shared.values() for pair in pairs_of(table, data)]
            if pairs := sorted(found, key=lambda pair: pair.label):
                save_pairs(pairs, out / "pairs.png")
                draw_beside_real(pairs, class_names, out / "synthetic.png")
        summary = summarise(config, result)
        if config.privacy:
            figures = privacy_figures(result)
            record.privacy(figures)
            summary["privacy"] = {figure.name: figure.value for figure in figures}
            reporter.say(f"privacy: {describe(figures)}")
        if result.features:
            summary["tsne"] = draw_features(result.features, class_names, out / "features.png")
    finally:
        reporter.stop()
        runner.stop()
        if saver:
            saver.finish()  # it must not ask Ray for anything while that goes
        if drawing:
            drawing.join(5)  # it would leave half a picture
    times = {"setup_seconds": round(setup, 3), "seconds": round(time.perf_counter() - started, 3)}
    summary |= times
    record.finish(result.models, summary)
    write_report(out)
    callbacks.tell("on_end", summary, complain)
    return out, summary


def write_profiles(folder: Path, profiles: dict[str, tuple[str, str]], with_ray: bool) -> None:
    """Tables and Chrome traces (chrome://tracing, Perfetto) of what was profiled, and Ray's own of all its calls."""
    folder.mkdir(exist_ok=True)
    for name, (table, trace) in profiles.items():
        (folder / f"{name}.txt").write_text(table)
        (folder / f"{name}.json").write_text(trace)
    if with_ray:
        ray.timeline(str(folder / "ray.json"))


def summarise(config: RunConfig, result: Result) -> dict:
    """summary.json without its times."""
    accuracies = [line["accuracy"] for line in result.history if line["accuracy"] is not None]
    similarities = [line["psnr"] for line in result.history if "psnr" in line]
    return {
        "method": config.method,
        "final_accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "late_accuracy": statistics.fmean(accuracies[-max(1, len(accuracies) // 4) :]),  # since single rounds wander
        "rounds": config.rounds,
        "model_sha256": result.model_sha256,
        "server_state_sha256": result.server_state_sha256,
        "synthetic_sha256": tables_digest(list(result.shared.values())),
        "psnr": similarities[-1] if similarities else None,
        "gflops_per_client_round": gflops_per_round(result.history),
        "bytes_up": sum(line["bytes_up"] for line in result.history),
        "bytes_down": sum(line["bytes_down"] for line in result.history),
        "failures": sum(line["failures"] for line in result.history),
    }


def privacy_figures(result: Result) -> list[Figure]:
    """What was measured after the last round, and the PSNR a method noted when it shared images last."""
    noted = [line["psnr"] for line in result.history if "psnr" in line]
    note = "dB, of shared images to those they were made from, as the papers define it: a similarity"
    return [*result.privacy, *(Figure("psnr", value, note=note) for value in noted[-1:])]


def gflops_per_round(history: list[dict]) -> dict[str, float]:
    """Of one client: a round's training as counted in the last, and each part's exchanges spread over the rounds."""
    totals: dict[str, float] = {}
    for line in history:
        for name, gflops in line["gflops"].items():
            totals[name] = totals.get(name, 0.0) + (gflops if name == "training" else gflops / len(history))
    return {name: round(gflops, 4) for name, gflops in totals.items()}
