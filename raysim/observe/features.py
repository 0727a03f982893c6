"""Pictures of features in one t-SNE map: real, synthetic and generated ones."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.engine.callbacks import Callback
from raysim.engine.runner import LabelledFeatures
from raysim.storage.files import write_atomically

if TYPE_CHECKING:
    from raysim.engine.simulation import Result

NAMED = 20  # classes at most that have a legend


class FeatureMap(Callback):
    """Draws features.png and features.json where a run samples features (--tsne)."""

    def __init__(self, class_names: list[str]):
        self.class_names = class_names

    def on_start(self, settings: dict[str, Any], out: Path) -> None:
        self.out = out

    def on_result(self, result: Result) -> dict[str, Any] | None:
        if not result.features:
            return None
        generated = {kind: pair for kind, pair in result.features.items() if kind.startswith("generated")}
        maps = {kind: generator_map(*pair) for kind, pair in generated.items()}
        tsne = draw_features(result.features, self.class_names, self.out / "features.png")
        return {"tsne": tsne} | ({"generator_map": maps} if maps else {})


def draw_features(kinds: LabelledFeatures, class_names: list[str], path: Path) -> dict[str, dict[str, float]]:
    """Draw one map of all features, a panel per kind (kind -> features, labels), coloured by class; JSON goes beside.

    Returns by kind the mean distance in the map of two points of one class (intra) and of two classes (inter): a
    measure that does not depend on the features' scale.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    places = embed([features for features, _ in kinds.values()])
    low, high = np.concatenate(places).min(0), np.concatenate(places).max(0)
    margin = np.where(high > low, 0.04 * (high - low), 1.0)  # of points on one line, or of a single one
    present = np.unique(np.concatenate([labels for _, labels in kinds.values()]))
    colours = colormaps["tab10" if len(present) <= 10 else "tab20"]
    figure = Figure(figsize=(4.2 * len(kinds) + 1.4, 4.5), layout="constrained")
    panels = figure.subplots(1, len(kinds), squeeze=False)[0]
    measured = {}
    for axes, place, (kind, (_, labels)) in zip(panels, places, kinds.items(), strict=True):
        for i, label in enumerate(present):
            at = place[labels == label]
            axes.scatter(*at.T, s=7, color=colours(i % colours.N), label=_plain(class_names[label]), linewidths=0)
        intra, inter = class_distances(place, labels)
        measured[kind] = {"intra": intra, "inter": inter}
        title = f"{kind}: {len(labels):,}\n{intra:.1f} apart in a class, {inter:.1f} between classes"
        axes.set_title(title, fontsize=10)
        axes.set(xticks=[], yticks=[])
        axes.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    if len(present) <= NAMED:
        entries = panels[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside right center", frameon=False, markerscale=2, fontsize=8)
    _save(figure, path, kinds, places)
    return measured


def draw_levels(kinds: LabelledFeatures, class_names: list[str], path: Path) -> None:
    """Draw one map of all features in one panel, classes by colour and kinds by level: the first is the lightest."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure

    places = embed([features for features, _ in kinds.values()])
    present = np.unique(np.concatenate([labels for _, labels in kinds.values()]))
    colours = colormaps["tab10" if len(present) <= 10 else "tab20"]
    figure = Figure(figsize=(8.4, 6.2), layout="constrained")
    axes = figure.subplots()
    for level, (kind, place) in enumerate(zip(kinds, places, strict=True)):
        labels = kinds[kind][1]
        for i, label in enumerate(present):
            shade = _shade(to_rgb(colours(i % colours.N)), level, len(kinds))
            x, y = place[labels == label].T
            axes.scatter(x, y, s=9, color=[shade], linewidths=0, zorder=level)
    for level, kind in enumerate(kinds):
        axes.scatter([], [], s=30, color=[_shade((0.35, 0.35, 0.35), level, len(kinds))], label=_plain(kind))
    if len(present) <= NAMED:
        for i, label in enumerate(present):
            axes.scatter([], [], s=30, color=[colours(i % colours.N)], label=_plain(class_names[label]))
    axes.set(xticks=[], yticks=[])
    axes.set_title(f"t-SNE of {sum(map(len, places)):,} features by one model", fontsize=10)
    figure.legend(loc="outside right center", frameon=False, fontsize=8)
    _save(figure, path, kinds, places)


def _shade(colour: tuple[float, ...], level: int, levels: int) -> tuple[float, ...]:
    """Mix the colour with white for the first levels, and with black for the last ones."""
    mix = 0.75 - 1.2 * level / max(1, levels - 1)  # 0.75 of white … 0.45 of black
    return tuple(c + mix * (1 - c) if mix > 0 else c * (1 + mix) for c in colour)


def _plain(name: str) -> str:
    return name.replace("$", r"\$")  # starts no formula


def _save(figure: Any, path: Path, kinds: LabelledFeatures, places: list[np.ndarray]) -> None:
    """Write the picture, and its points as JSON beside it."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    write_atomically(path, buffer.getvalue())
    points = {
        kind: {"x": place[:, 0].round(1).tolist(), "y": place[:, 1].round(1).tolist(), "label": labels.tolist()}
        for place, (kind, (_, labels)) in zip(places, kinds.items(), strict=True)
    }
    write_atomically(path.with_suffix(".json"), json.dumps(points).encode())


def generator_map(features: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Measure a t-SNE map of the generated features alone, as FedPA's code does for its table V.

    Intra is the mean over the classes of their points' mean distance to the class's centroid, inter the mean over all
    ordered pairs of centroids, those of a centroid with itself included.
    """
    (places,) = embed([features])
    groups = [places[labels == label].astype(np.float64) for label in np.unique(labels)]
    centroids = np.stack([group.mean(0) for group in groups])
    spread = [np.linalg.norm(group - centre, axis=1).mean() for group, centre in zip(groups, centroids, strict=True)]
    apart = np.linalg.norm(centroids[:, None] - centroids, axis=2)
    return {"intra": float(np.mean(spread)), "inter": float(apart.mean())}


def class_distances(points: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return the mean distance of two points of one class, and of two classes; 0 where there are no such two."""
    apart = np.sqrt(((points[:, None] - points) ** 2).sum(2, dtype=np.float64))
    same = labels[:, None] == labels
    pairs = same.sum() - len(labels), (~same).sum()
    return float(apart[same].sum() / max(pairs[0], 1)), float(apart[~same].sum() / max(pairs[1], 1))


def embed(groups: list[np.ndarray]) -> list[np.ndarray]:
    """Place all points together in the plane, and return them group by group; the same for the same points."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # which scikit-learn needs too

    points = np.concatenate(groups)
    if len(points) < 3:  # too few for a map: side by side
        placed = np.stack([np.arange(len(points)), np.zeros(len(points))], 1)
    else:
        perplexity = min(30.0, (len(points) - 1) / 3)  # t-SNE wants it below the number of points
        # By one thread: sums by several depend on how many, and on a busy machine they wait for each other for minutes.
        with threadpool_limits(1):
            placed = TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
    return np.split(placed, np.cumsum([len(g) for g in groups])[:-1])
