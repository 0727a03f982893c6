"""`raysim features RUN…`: the images that several runs shared, in one map of features beside real ones.

HFMDS-FL's figure 4 is such a map, of runs that differ in μ. One model gives all features: the final one of the first
run. The shared images are read from synthetic.parquet, whose pixels have 8 bits.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysim import models
from raysim.config import RunConfig, from_record, resolve
from raysim.data import Dataset
from raysim.data.images import decode
from raysim.data.normalisation import Normalisation
from raysim.errors import InputError
from raysim.observe.features import draw_levels
from raysim.observe.listing import differing
from raysim.observe.report.page import text_of
from raysim.rng import stream
from raysim.single_run import load_data
from raysim.storage.formats import DamagedFile
from raysim.storage.model_weights import read_weights
from raysim.storage.run_reader import Run, find_runs, read_run

REAL = "real"
BATCH = 500  # images at once

Labelled = tuple[np.ndarray, np.ndarray]  # images or features, and their labels


def draw_map(paths: Sequence[str | Path], out: Path, count: int) -> dict[str, float]:
    """Draw the map of so many images of each run and of the test split; its points go into a JSON file beside it.

    Returns how far the features of each kind are from the mean feature of the real images of their class, on average.
    """
    runs = [read_run(path) for path in find_runs(paths)]
    config = _config(runs[0])
    dataset = load_data(config)
    test, draw = dataset.test, stream(config.seed, "feature map")
    rows = np.sort(draw.permutation(len(test.y))[:count])
    kinds = {REAL: (test.x[rows], test.y[rows])}
    for run, name in zip(runs, _names(runs), strict=True):
        kinds[name] = _shared(run, dataset, count)
    features = {kind: (_features(runs[0], config, dataset, x), y) for kind, (x, y) in kinds.items()}
    draw_levels(features, list(dataset.class_names), out)
    return {kind: distance_to_class_means(features[REAL], each) for kind, each in features.items()}


def distance_to_class_means(real: Labelled, others: Labelled) -> float:
    """The mean distance of feature vectors to the mean of the real ones of their class; classes without any are out."""
    found = []
    for label in np.intersect1d(real[1], others[1]):
        mean = real[0][real[1] == label].mean(0, dtype=np.float64)
        found.append(np.sqrt(((others[0][others[1] == label] - mean) ** 2).sum(1)))
    return float(np.concatenate(found).mean()) if found else float("nan")


def _config(run: Run) -> RunConfig:
    source = str(run.path / "config.json")
    return resolve([(source, from_record(run.settings, source))])


def _names(runs: list[Run]) -> list[str]:
    """The runs by the settings in which they differ, or by their folders where that is not enough."""
    varied = differing(runs)
    by_settings = [", ".join(f"{key} {text_of(run.settings.get(key))}" for key in varied) for run in runs]
    for names in (by_settings, [run.path.name for run in runs]):
        if len({"", REAL, *names}) == 2 + len(names):
            return names
    return [str(run.path) for run in runs]


def _shared(run: Run, dataset: Dataset, count: int) -> Labelled:
    """Some of the labelled images that a run shared, and their labels."""
    path = run.path / "synthetic.parquet"
    if not path.exists():
        raise InputError(f"'{run.path}' has no synthetic.parquet: its method shared no images; leave it out")
    try:
        table = pq.read_table(path, columns=["image", "label"])
        labels = table.column("label").to_numpy()
        images = table.column("image").combine_chunks().field("bytes")
    except (OSError, pa.ArrowException, KeyError) as error:
        raise DamagedFile(path, f"its images cannot be read ({error})") from None
    labelled = np.flatnonzero((labels >= 0) & (labels < dataset.classes))
    rows = np.sort(stream(run.settings["seed"], "feature map").permutation(labelled)[:count])
    if not len(rows):
        raise InputError(f"{path} has no labelled images of {dataset.name}'s classes; leave that run out")
    x = decode(((f"{path} row {row}", images[row].as_py()) for row in rows.tolist()), len(rows))
    if x.shape[1:] != dataset.shape:
        raise InputError(f"{path} has images of {x.shape[1:]}, the first run's are {dataset.shape}; leave it out")
    return x, labels[rows]


def _features(run: Run, config: RunConfig, dataset: Dataset, images: np.ndarray) -> np.ndarray:
    """Features by the run's final model, the first one where it has several."""
    import torch

    from raysim.models.flat import FlatModel

    path = run.path / "model.safetensors"
    if not path.exists():
        raise InputError(f"'{run.path}' has no model.safetensors: it is not finished; give a finished run first")
    module: Any = models.build(config.model, dataset.shape, dataset.classes, config.seed).eval()
    model = FlatModel(module, torch.device("cpu"))
    model.load(model.packed(read_weights(path, model.export(model.weights), config.model)))
    scale = Normalisation(tuple(run.facts["mean"]), tuple(run.facts["std"])).on(torch.device("cpu"))
    found = []
    with torch.no_grad():
        for start in range(0, len(images), BATCH):
            pixels = torch.from_numpy(images[start : start + BATCH]).float()
            found.append(module.features(scale.normalise_(pixels)).flatten(1))
    return torch.cat(found).numpy()
