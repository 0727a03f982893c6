"""The data from which assets/*.js draw charts, small enough for a page however long the run is."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from raysim.engine.round_metrics import RoundMetrics
from raysim.observe.labels import arrange

POINTS = 600  # of a line; of more rounds every second, third, … is shown
BARS = 120  # of a chart; more rounds are averaged
CELLS = 60_000  # of the label picture
DOTS = 1500  # of a kind in the t-SNE map
SPANS = 4000  # of the strip; more are averaged in COLUMNS steps of time
COLUMNS = 400
ROWS = 64  # of the strip; more actors are averaged

Spec = dict[str, Any]
Work = tuple[int, float, float, int]  # actor, start and stop in seconds, number of the phase
Reached = dict[int, tuple[float, float]]  # round -> seconds and bytes since the start
Item = TypeVar("Item")


def significant(value: float | None, digits: int = 5) -> float | None:
    """Round the value to as many digits as a chart needs."""
    return None if value is None else float(f"{value:.{digits}g}")


def thin(items: list[Item], most: int = POINTS) -> list[Item]:
    """Return at most so many of the items, evenly spaced, always with the last."""
    step = -(-len(items) // most)
    return items[::-1][::step][::-1] if step > 1 else items


def reached(history: Sequence[RoundMetrics]) -> Reached:
    """Return the seconds that rounds had taken, and the bytes that had been sent, when each round ended."""
    seconds = accumulate(metrics.seconds for metrics in history)
    sent = accumulate(metrics.bytes_up + metrics.bytes_down for metrics in history)
    return {metrics.round: both for metrics, both in zip(history, zip(seconds, sent, strict=True), strict=True)}


def other_axes(places: Sequence[tuple[float, float]]) -> Spec:
    """Return what a series needs to be drawn over seconds or bytes in place of rounds, for each of its points."""
    seconds, sent = ([significant(place[i], 6) for place in places] for i in (0, 1))
    return {"at": {"seconds": seconds, "bytes": sent}}


def curve(
    name: str, points: list[tuple[int, float | None]], factor: float = 1.0, places: Reached | None = None
) -> Spec:
    """Return a series for `lines` from pairs of round and value; with `places`, also over seconds and bytes."""
    points = thin(points)
    values = [None if value is None else significant(factor * value) for _, value in points]
    series = {"name": name, "x": [x for x, _ in points], "y": values}
    if places is not None and all(t in places for t, _ in points):
        series |= other_axes([places[t] for t, _ in points])
    return series


def lines(series: list[Spec], unit: str = "number", tall: bool = False) -> Spec | None:
    """Return lines over rounds; None where no series has a value."""
    series = [s for s in series if any(value is not None for value in s["y"])]
    return {"kind": "lines", "x": "round", "unit": unit, "tall": tall, "series": series} if series else None


def bars(history: Sequence[RoundMetrics], values: dict[str, list[float]], unit: str) -> Spec | None:
    """Return stacked bars over rounds, name -> a value per round, without names that are always 0; None if all are."""
    values = {name: each for name, each in values.items() if any(each)}
    if not values:
        return None
    rounds, group = [metrics.round for metrics in history], -(-len(history) // BARS)
    starts = range(0, len(rounds), group)
    bins = [[rounds[i], rounds[min(i + group, len(rounds)) - 1]] for i in starts]
    series = [
        {"name": name, "y": [significant(float(np.mean(each[i : i + group]))) for i in starts]}
        for name, each in values.items()
    ]
    return {"kind": "bars", "x": "round", "unit": unit, "bins": bins, "series": series}


def heat(counts: np.ndarray, class_names: list[str]) -> Spec:
    """Return samples per client and class under the clients' sizes; many clients are sorted and averaged in groups."""
    shown, group, order = arrange(counts, max(1, CELLS // counts.shape[1]))
    named = [order[i : i + group] for i in range(0, len(order), group)]
    return {
        "kind": "heat", "rows": list(map(str, class_names)), "columns": [_clients(each) for each in named],
        "values": [[significant(v, 3) for v in row] for row in shown.tolist()],
        "sizes": [significant(v, 4) for v in shown.sum(axis=1).tolist()],
        "sorted": bool((np.diff(order) != 1).any()),
    }  # fmt: skip


def _clients(ids: np.ndarray) -> str:
    if len(ids) == 1:
        return f"client {ids[0]}"
    return f"mean of clients {', '.join(map(str, ids[:3]))}{', …' if len(ids) > 3 else ''}"


def scatter(points: dict[str, Spec], class_names: list[str]) -> Spec | None:
    """Return the t-SNE map from kind -> x, y and label of its points; None where there is no point."""
    panels: list[Spec] = []
    for kind, each in points.items():
        chosen = thin(list(range(len(each["x"]))), DOTS)
        panels.append({"name": kind} | {key: [each[key][i] for i in chosen] for key in ("x", "y", "label")})
    every = np.array([[x, y] for panel in panels for x, y in zip(panel["x"], panel["y"], strict=True)])
    if not len(every):
        return None
    return {
        "kind": "scatter", "panels": panels, "names": list(map(str, class_names)),
        "present": sorted({label for panel in panels for label in panel["label"]}),
        "low": every.min(0).tolist(), "high": every.max(0).tolist(),
    }  # fmt: skip


def strip(timeline: list[Spec], phases: list[str]) -> Spec | None:
    """Return which actor worked when: rounds one after the other, without the time between them."""
    by_round = {line["round"]: line for line in timeline}  # of a round that was repeated the last line counts
    rounds = [by_round[t] for t in sorted(by_round)]
    begins = np.concatenate([[0.0], np.cumsum([line["seconds"] for line in rounds])])
    phases = list(dict.fromkeys([*phases, *(phase for line in rounds for phase in line["spans"])]))
    work: list[Work] = [
        (actor, begin + start, begin + stop, phases.index(phase))
        for line, begin in zip(rounds, begins, strict=False)
        for phase, spans in line["spans"].items()
        for actor, start, stop in spans
    ]
    if not work:
        return None
    actors = sorted({actor for actor, *_ in work})
    end = float(max(begins[-1], max(stop for _, _, stop, _ in work), 1e-9))  # no round takes no time
    if len(work) <= SPANS and len(actors) <= ROWS:
        names, spans = [f"actor {actor}" for actor in actors], _exact(work, actors)
    else:
        names, spans = _averaged(work, actors, len(phases), end)
    busy = sum(stop - start for _, start, stop, _ in work) / (len(actors) * end)
    return {
        "kind": "strip", "rows": names,
        "phases": phases, "spans": spans, "end": end, "rounds": [significant(float(b), 6) for b in begins[:-1]],
        "first": rounds[0]["round"], "busy": busy, "actors": len(actors),
    }  # fmt: skip


def _exact(work: list[Work], actors: list[int]) -> list[list[Any]]:
    rows: dict[int, list[Any]] = {actor: [] for actor in actors}
    for actor, start, stop, phase in sorted(work, key=lambda each: each[1]):
        rows[actor].append([round(start, 4), round(stop, 4), phase, 1])
    return list(rows.values())


def _averaged(work: list[Work], actors: list[int], phases: int, end: float) -> tuple[list[str], list[list[Any]]]:
    """Return the share of each step of time in which the actors of a row were busy, with its longest phase."""
    group = -(-len(actors) // ROWS)
    place = {actor: i // group for i, actor in enumerate(actors)}
    shares = np.zeros((place[actors[-1]] + 1, COLUMNS, phases))
    width = end / COLUMNS
    for actor, start, stop, phase in work:
        first, last = int(start / width), min(int(stop / width), COLUMNS - 1)
        steps = np.arange(first, last + 1)
        covered = np.minimum(stop, (steps + 1) * width) - np.maximum(start, steps * width)
        shares[place[actor], steps, phase] += covered / width
    named = [actors[i : i + group] for i in range(0, len(actors), group)]
    shares /= np.array([len(each) for each in named])[:, None, None]
    names = [f"actor {each[0]}" if len(each) == 1 else f"actors {each[0]}–{each[-1]}" for each in named]
    spans = []
    for row in shares:
        total, most = row.sum(1), row.argmax(1)
        spans.append([
            [round(i * width, 4), round((i + 1) * width, 4), int(most[i]), round(min(float(total[i]), 1.0), 2)]
            for i in range(COLUMNS) if total[i] > 0.005
        ])  # fmt: skip
    return names, spans
