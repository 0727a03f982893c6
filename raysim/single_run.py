"""One run from its configuration to its run directory: check the input, get a cluster, plan, simulate, record."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysim import models
from raysim.config import RunConfig, from_record, resolve
from raysim.config.addresses import is_remote
from raysim.config.fusing import settled
from raysim.data import Dataset, load
from raysim.data.dataset import Columns
from raysim.data.federated import FederatedData
from raysim.data.federated_writer import Layout, release_memory, write
from raysim.data.identity import identity
from raysim.data.own_partition import OwnPartition
from raysim.data.partitions import Partition
from raysim.data.synthetic_tables import tables_digest
from raysim.definitions import is_own
from raysim.engine.callbacks import Callback, Callbacks
from raysim.engine.digest import digest
from raysim.engine.ending import ending as end_of_process
from raysim.engine.own_code import own_code
from raysim.engine.ray_runner import cluster
from raysim.engine.ray_runner.gpu_room import with_room
from raysim.engine.ray_runner.plan import Plan, make_plan
from raysim.engine.round_metrics import RoundMetrics, evaluated, late_mean
from raysim.engine.runner import Runner, Started
from raysim.engine.simulation import Result, Simulation
from raysim.engine.stopping import how_to_extend
from raysim.errors import InputError, RaysimError
from raysim.observe import dashboard
from raysim.observe.best_effort import BestEffort
from raysim.observe.features import FeatureMap
from raysim.observe.labels import LabelPicture
from raysim.observe.profiles import Profiles
from raysim.observe.progress import Reporter
from raysim.observe.ray_metrics import RayMetrics
from raysim.observe.report import ReportWriter
from raysim.observe.search_trial import search_trial
from raysim.observe.synthetic import SyntheticImages
from raysim.observe.trackers import Guarded, load_trackers
from raysim.settings import Given
from raysim.storage.checkpoint_writer import CheckpointWriter
from raysim.storage.checkpoints import Checkpoints
from raysim.storage.formats import read_config, read_history
from raysim.storage.lease import held
from raysim.storage.model_weights import starting_weights
from raysim.storage.remote import Mirror, place_of, readable
from raysim.storage.run_directory import (
    Recorder,
    RunDirectory,
    check_directory,
    check_sources,
    finished_run,
    start_of,
    with_fuse_of,
)


@dataclass
class Prepared:
    """A run's input, checked: what is known about the data once its pixels are in the object store."""

    class_names: list[str]
    counts: np.ndarray  # samples per client and class
    shape: tuple[int, int, int]  # of an image
    client_bytes: int  # that an actor needs for the largest client's data
    notes: tuple[str, ...]  # what the user should know
    warnings: tuple[str, ...]  # what will probably not be what was meant
    data: str  # a hash of its pixels and labels
    sources: dict[str, str]  # digests of what is the user's own, by setting: they decide the result like settings
    start: np.ndarray | None  # the weights to start from, where not random ones


def run(config: RunConfig, reporter: Reporter | None = None) -> tuple[Path | str, dict[str, Any]]:
    """Run a configuration; returns the run directory, or its address in a store, and what its summary.json has."""
    with place_of(config) as (out, mirror):
        summary = run_at(config, out, reporter or Reporter(), mirror)
    return mirror.uri if mirror else out, summary


def run_at(config: RunConfig, out: Path, reporter: Reporter, mirror: Mirror | None = None) -> dict[str, Any]:
    """Run a configuration in this folder, which may be the working copy of a run directory elsewhere."""
    config = with_fuse_of(out, config)
    if finished := finished_before(config, out, reporter):
        return finished
    end_of_process.run_directory = mirror.uri if mirror else str(out)
    reporter.say_settings(config.settings())
    started = time.perf_counter()
    trackers = load_trackers(config.track, config.callback)
    inputs = [prepare(config)]  # in a list, so that the pixels can be let go of once they are stored
    config, note = settled(config, inputs[0][0].shape, inputs[0][0].classes)
    prepared = described(config, *inputs[0], *([note] if note else []), begun_with=start_of(config, out))
    for note in prepared.notes:
        reporter.say(f"note: {note}")
    for text in prepared.warnings:
        reporter.say(f"warning: {text}")
    with ExitStack() as ending:
        lease = ending.enter_context(held(out))
        check_directory(config, out)  # again: until now another driver may have been at work there
        check_sources(config, out, prepared.sources, prepared.data)
        if finished := finished_before(config, out, reporter):
            return finished
        with connected_runner(config, prepared, out, reporter) as (runner, plan):
            directory = RunDirectory(out, config.resume, lease, *([mirror.sync] if mirror else []))
            directory.extend(config)
            reporter.say(f"run directory: {mirror.uri if mirror else out}")
            data = store(config, *inputs.pop(), runner.put)
            release_memory()
            callbacks = listeners(config, directory, reporter, trackers, prepared=prepared, data=data)
            ending.callback(callbacks.close)
            runner.on_event = lambda kind, /, **details: callbacks.on_event(kind, details)
            for note in prepared.notes:
                runner.on_event("note", text=note)
            for text in prepared.warnings:
                runner.on_event("warning", text=text)
            try:
                actors = runner.start(without_driver_objects(config), data)
                warn_of_mixed_hardware(actors, callbacks, reporter)
                record_start(config, directory, prepared, data, actors=actors, plan=plan)
                callbacks.on_start(config.settings(), out)
                setup = time.perf_counter() - started
                result = simulate(
                    config, data, runner, actors, directory=directory, callbacks=callbacks, reporter=reporter,
                    prepared=prepared,
                )  # fmt: skip
                directory.write_models(result.models, result.server_state)  # before anything is drawn
                summary = summarise(config, result) | callbacks.on_result(result)
            except RaysimError as error:
                runner.on_event("stopped", text=str(error))
                raise
        summary |= times(started, setup)
        callbacks.on_end(summary)
    return summary


def to_resume(path: str, given: dict[str, object], where: str) -> RunConfig:
    """The configuration that goes on with a run: its own settings, and what is given `where` to run it.

    Objects that the run was given in Python have to be given again.
    """
    source = f"{path}/config.json"
    with readable("resume", path, "config.json") as folder:
        if not (folder / "config.json").exists():
            raise InputError(f"resume: '{path}' is not a run directory; give the path a run printed")
        recorded = read_config(folder)["settings"]
    layer = from_record(recorded, source, given.get("method")) | {"overwrite": False}
    out = path if is_remote(path) else str(folder.resolve())
    return resolve([(source, layer), (where, given | {"resume": True, "out": out})])


def without_driver_objects(config: RunConfig) -> RunConfig:
    """The configuration as actors get it and as it is recorded: without objects that only the driver uses."""
    callback = None if isinstance(config.callback, Given) else config.callback
    return dataclasses.replace(config, dataset=str(config.dataset), partition=str(config.partition), callback=callback)


def finished_before(config: RunConfig, out: Path, reporter: Reporter) -> dict[str, Any]:
    """The summary of a run that is resumed although it is finished; empty if there is something to do."""
    if summary := finished_run(config, out):
        why = f" ({summary['stopped']})" if summary.get("stopped") else ""
        where = config.out if is_remote(config.out) else out
        how = how_to_extend(config, read_history(out / "metrics.jsonl"))
        reporter.say(f"{where} is finished{why}: nothing to go on with{f'; give {how} to go on' if how else ''}")
    return summary


# -- check and plan ----------------------------------------------------------------------------------------------------


def prepare(config: RunConfig) -> tuple[Dataset, Partition]:
    """Load and deal the data, checking on the way everything that can be wrong with it."""
    dataset = load_data(config)
    check_model(config, dataset)
    deal = config.partitioner().deal
    return dataset, deal(dataset.train.y, dataset.classes, config.clients, config.seed, dataset.clients)


def load_data(config: RunConfig) -> Dataset:
    """The images that a configuration is about."""
    partitioner = config.partitioner()
    all_of_it = config.train_size is None and config.fraction is None
    return load(
        config.dataset, data=config.data, download=config.download, image_size=config.image_size,
        train_size=config.train_size, fraction=config.fraction, test_size=config.test_size, seed=config.seed,
        columns=Columns(config.image_column, config.label_column, partitioner.needs_column),
        training_counts=partitioner.training_counts() if all_of_it else None,
    )  # fmt: skip


def check_model(config: RunConfig, dataset: Dataset) -> None:
    """Raise an InputError unless the model can be trained on these images; an own one is built and tried."""
    models.check(config.model, dataset.shape, dataset.classes)
    if config.fuse_size > 1 and is_own(config.model):
        from raysim.training import fused

        module = models.build(config.model, dataset.shape, dataset.classes, config.seed)
        fused.check(module, config.model, dataset.shape)


def sources(config: RunConfig, dataset: Dataset, start: np.ndarray | None) -> dict[str, str]:
    """Digests of what is the user's own in a run: its first weights, sources of model and partition, data in memory."""
    partitioner = config.partitioner()
    own_partition = partitioner.digest() if isinstance(partitioner, OwnPartition) else None
    found = {"model": models.source(config.model), "dataset": dataset.digest, "partition": own_partition}
    found["start_from"] = None if start is None else digest([{"weights": start}])
    return {key: digest for key, digest in found.items() if digest}


def described(
    config: RunConfig, dataset: Dataset, dealt: Partition, *notes: str, begun_with: str | None = None
) -> Prepared:
    """What is worth knowing of the data after its pixels are gone, and what there is to say besides.

    `begun_with` is the digest of the weights that a run began with which can go on without them.
    """
    start, own = starting_weights(config, dataset, needed=begun_with is None), {}
    if config.start_from is not None and start is None and begun_with is not None:
        own = {"start_from": begun_with}
        notes = (*notes, f"--start-from {config.start_from} is gone; the run goes on from its own checkpoints")
    return Prepared(
        class_names=list(dataset.class_names),
        counts=dealt.counts(dataset.train.y, dataset.classes),
        shape=dataset.shape,
        client_bytes=largest_client(config, dataset, dealt),
        notes=(*dataset.notes, *dealt.notes, *notes),
        warnings=tuple(idle_parts(config, dealt)),
        data=identity(dataset),
        sources=sources(config, dataset, start) | own,
        start=start,
    )


def idle_parts(config: RunConfig, dealt: Partition) -> list[str]:
    """What to say of parts that never act in this run: without them the result would be the same, or nearly."""
    with own_code(0):
        reasons = [(part.name, part.ask("idle", config, dealt.sizes)) for part in config.parts]
    return [f"{name} never acts: {reason}" for name, reason in reasons if reason]


def largest_client(config: RunConfig, dataset: Dataset, dealt: Partition) -> int:
    """Bytes an actor needs for its data: the pixels of the clients it trains at once (--fuse), as uint8 and float32."""
    at_once = settled(config, dataset.shape, dataset.classes)[0].fuse_size
    return int(dealt.sizes.max()) * dataset.train.x[0].nbytes * 5 * at_once


def plan_for(config: RunConfig, dataset: Dataset, dealt: Partition) -> Plan:
    """The placement plan on the cluster we are connected to."""
    config, _ = settled(config, dataset.shape, dataset.classes)
    nodes = with_room(without_driver_objects(config), cluster.nodes(), dataset.shape, dataset.classes)
    return make_plan(config, nodes, largest_client(config, dataset, dealt))


@contextmanager
def connected_runner(
    config: RunConfig, prepared: Prepared, out: Path, reporter: Reporter
) -> Iterator[tuple[Runner, str]]:
    """A runner whose place is reserved, and its plan in words: Ray's, on a cluster we connect to, or this process."""
    if config.in_process:
        from raysim.engine.in_process import InProcess

        with _stopped_afterwards(InProcess()) as runner:
            yield runner, "in one process"
        return
    from raysim.engine.ray_runner.runner import RayRunner

    metadata = dashboard.about(config, out)
    with cluster.connected(metadata):
        actors_config, classes = without_driver_objects(config), len(prepared.class_names)
        nodes = with_room(actors_config, cluster.nodes(), prepared.shape, classes)
        plan = make_plan(config, nodes, prepared.client_bytes)
        reporter.say(plan.describe())
        dashboard.show_on_jobs_page(metadata | {"plan": plan.describe()})
        with _stopped_afterwards(RayRunner(plan, config, out.name)) as runner:
            runner.reserve()  # before anything is written: it may be refused
            yield runner, plan.describe()


@contextmanager
def _stopped_afterwards(runner: Runner) -> Iterator[Runner]:
    try:
        yield runner
    finally:
        runner.stop()


def store(config: RunConfig, dataset: Dataset, dealt: Partition, put: Callable[[Any], Any]) -> FederatedData:
    """Write the data to the object store as this configuration wants it."""
    layout = Layout(config.normalise, config.evaluation == "clients", config.eval_batch)
    return write(dataset, dealt, layout, put)


# -- simulate and record -----------------------------------------------------------------------------------------------


def listeners(
    config: RunConfig, directory: RunDirectory, reporter: Reporter, trackers: list[Guarded], prepared: Prepared,
    data: FederatedData,
) -> Callbacks:  # fmt: skip
    """The callbacks of a run, in the order in which they are called: what is recorded comes first."""
    recorder = Recorder(directory)

    def complain(text: str) -> None:
        reporter.say(f"warning: {text}")
        recorder.on_event("warning", {"text": text})

    for tracker in trackers:
        tracker.complain = complain
    with_ray = not config.in_process
    reporting: list[Callback] = [
        recorder,
        BestEffort(LabelPicture(prepared.counts, prepared.class_names), "labels.png", complain),
        BestEffort(SyntheticImages(data, prepared.class_names), "synthetic.parquet and synthetic.png", complain),
        BestEffort(FeatureMap(prepared.class_names), "features.png", complain),
        *([Profiles(with_ray)] if config.profile else []),
        *([RayMetrics()] if with_ray and config.metrics else []),
        reporter,
        BestEffort(ReportWriter(), "report.html", complain),
        *(tracker for tracker in trackers if not tracker.own),
    ]
    return Callbacks(reporting, [*search_trial(), *(tracker for tracker in trackers if tracker.own)])


def record_start(
    config: RunConfig, directory: RunDirectory, prepared: Prepared, data: FederatedData, actors: Started, plan: str
) -> None:
    """Write config.json."""
    directory.write_config(
        without_driver_objects(config),
        fingerprint=distinct(actors.fingerprints),
        plan=plan,
        classes=prepared.class_names,
        shape=data.shape,
        data=prepared.data,
        sources=prepared.sources,
        mean=data.normalisation.mean,
        std=data.normalisation.std,
    )


def warn_of_mixed_hardware(actors: Started, callbacks: Callbacks, reporter: Reporter) -> None:
    """Say that results depend on which actor does what, if their devices differ."""
    if len(kinds := distinct(actors.fingerprints)) > 1:
        text = f"mixed hardware ({kinds}): equal hashes are promised on one kind of device only"
        reporter.say(f"warning: {text}")
        callbacks.on_event("warning", {"text": text})


def simulate(
    config: RunConfig, data: FederatedData, runner: Runner, actors: Started, directory: RunDirectory,
    callbacks: Callbacks, reporter: Reporter, prepared: Prepared,
) -> Result:  # fmt: skip
    """All rounds, from the last checkpoint on where the run is resumed."""
    if not config.checkpoint_every:
        history = directory.keep(0)
        simulation = Simulation(config, data, runner, actors.model_bytes, start=prepared.start)
        return simulation.run(callbacks.ask, history, report=callbacks.tell)
    identity = {"settings": config.identity(), "data": data.digest(), "device": actors.fingerprints[0]}
    identity |= {"sources": prepared.sources} if prepared.sources else {}
    checkpoints = Checkpoints(directory.path / "checkpoints", identity | {"run": directory.token})
    writer = CheckpointWriter(checkpoints, runner, runner.on_event, directory.synced_metrics, directory.mirrored)
    checkpoint = writer.load() if config.resume else None
    history = directory.keep(checkpoint.round, checkpoint.metrics) if checkpoint else directory.keep(0)
    if checkpoint:
        reporter.say(f"going on after round {checkpoint.round}")
        runner.on_event("resumed", round=checkpoint.round)
    simulation = Simulation(config, data, runner, actors.model_bytes, writer, prepared.start)
    try:
        return simulation.run(callbacks.ask, history, checkpoint, callbacks.tell)
    finally:
        writer.finish()  # it must not ask the runner for anything once that has stopped


def distinct(fingerprints: list[dict[str, object]]) -> list[dict[str, object]]:
    """The different ones, in order."""
    return [one for i, one in enumerate(fingerprints) if one not in fingerprints[:i]]


def summarise(config: RunConfig, result: Result) -> dict[str, Any]:
    """The content of summary.json, but for its times and what callbacks add."""
    history = result.history
    accuracies = [metrics.accuracy or 0.0 for metrics in evaluated(history, config.eval_every)]
    similarities = [value for metrics in history if (value := metrics.reported.get("psnr")) is not None]
    return {
        "method": config.method,
        "final_accuracy": accuracies[-1],
        "best_accuracy": max(accuracies),
        "best_five_accuracy": statistics.fmean(sorted(accuracies)[-5:]),
        "late_accuracy": late_mean(accuracies),
        "rounds": len(history),
        "model_sha256": result.model_sha256,
        "server_state_sha256": result.server_state_sha256,
        "synthetic_sha256": tables_digest(list(result.shared.values())),
        "psnr": similarities[-1] if similarities else None,
        "gflops_per_client_round": gflops_per_round(history),
        "bytes_up": sum(metrics.bytes_up for metrics in history),
        "bytes_down": sum(metrics.bytes_down for metrics in history),
        "failures": sum(metrics.failures for metrics in history),
        "stopped": result.stopped or None,
    }


def times(started: float, setup: float) -> dict[str, float]:
    """The times in summary.json: until the first round, and until now."""
    return {"setup_seconds": round(setup, 3), "seconds": round(time.perf_counter() - started, 3)}


def gflops_per_round(history: list[RoundMetrics]) -> dict[str, float]:
    """GFLOPs of one client: a round's training as counted in the last, each part's exchanges spread over the rounds."""
    totals: dict[str, float] = {}
    for metrics in history:
        for name, gflops in metrics.gflops.items():  # training is counted again where a run was extended
            totals[name] = gflops if name == "training" else totals.get(name, 0.0) + gflops / len(history)
    return {name: round(gflops, 4) for name, gflops in totals.items()}
