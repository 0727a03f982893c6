"""The report in a real browser: every figure is drawn, values can be read, nothing leaves the page; and its data."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from raysim.cli import main
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError
from raysim.observe.report import specs, write_comparison, write_report
from raysim.observe.report.comparison import departures, grouped
from raysim.observe.report.page import as_script_data
from raysim.observe.report.pairs import image_pairs
from raysim.observe.report.single import _key_figures, figure_rows
from raysim.observe.synthetic import Pair, save_pairs
from raysim.papers import presets
from raysim.storage.run_reader import Run, read_run
from tests.browser import Browser, needs_chromium

TINY = ["--train-size", "100", "--test-size", "40", "--clients", "5", "--model", "small-cnn", "--in-process"]
PARTS = [
    "--method", "hfmds+fedpa", "--rounds", "4", "--hfmds.every", "2", "--hfmds.first", "2", "--hfmds.steps", "2",
    "--hfmds.per-client", "5", "--fedpa.gen-steps", "3", "--tsne", "20",
]  # fmt: skip
LONG_NOTE = "share of the shared images that are nearer to training than to held-out images; by chance one half"
HOSTILE = "</script><script>throw 'in'</script><b>"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run with everything a report can show, one class of which has a name that would be markup."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["run", *TINY, *PARTS, "--out", str(out)]) == 0
    facts = json.loads((out / "config.json").read_text())
    facts["classes"][3] = HOSTILE
    (out / "config.json").write_text(json.dumps(facts))
    figures = [{"name": "hfmds.nearer_to_training", "value": 0.61, "interval": [0.5, 0.7], "note": LONG_NOTE}]
    (out / "privacy.json").write_text(json.dumps(figures))
    lines = (out / "metrics.jsonl").read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"failures": 2, "skipped": 1, "mypart.speed": 3})
    lines[2] = json.dumps(json.loads(lines[2]) | {"mypart.speed": 4, "gpu_bytes": 3 * 2**30})
    (out / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    event = {"time": 1.0, "event": "actor_lost", "actor": 1, "reason": "<gone>"}
    (out / "events.jsonl").write_text(json.dumps(event) + "\n")
    write_report(out)
    return out


def history_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_the_memory_of_a_gpu_is_among_the_figures(run):
    assert ("GPU memory", "3.22 GB", "the most that a client actor held") in _key_figures(read_run(run))


# -- in the browser ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with Browser() as browser:
        yield browser


def opened(browser, path: Path, **size):
    page = browser.page(**size)
    page.open(path.as_uri())
    page.wait_for("[...document.querySelectorAll('.plot svg')].every(svg => svg.childElementCount)")
    return page


def figure(title: str) -> str:
    return f"[...document.querySelectorAll('figure')].find(f => f.querySelector('b').textContent === {title!r})"


def table_after(heading: str) -> str:
    found = f"[...document.querySelectorAll('h2, h3')].find(h => h.textContent === {heading!r})"
    after = "[...document.querySelectorAll('table')].find(t => h.compareDocumentPosition(t) & 4)"
    return f"(h => {after})({found})"


# Which tables are cut off: wider than the place they have, and without a way to scroll there.
CUT = """[...document.querySelectorAll('table')].filter(t => t.offsetParent && t.getBoundingClientRect().right >
    t.parentElement.getBoundingClientRect().right + 1 && getComputedStyle(t.parentElement).overflowX !== 'auto')
    .map(t => t.innerText)"""
# How much wider than its place a section's first table is.
TOO_WIDE = "(t => t.offsetWidth - t.parentElement.clientWidth)"


def tip(page, title: str) -> str:
    return page.evaluate(f"(t => t.hidden ? '' : t.innerText)({figure(title)}.querySelector('.tip'))")


def hover(page, title: str, across: float = 0.5, down: float = 0.5) -> str:
    """What the chart says under the pointer. Until a scroll has reached the screen, moves go to what was there."""
    where = f"(b => [b.x + b.width * {across}, b.y + b.height * {down}])"
    scrolled = f"({figure(title)}.scrollIntoView({{behavior: 'instant', block: 'center'}}), {figure(title)})"
    for _ in range(50):
        page.move_to(*page.evaluate(f"{where}({scrolled}.querySelector('.plot').getBoundingClientRect())"))
        page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")
        if told := tip(page, title):
            return told
        page.move_to(1, 1)
    return ""


# Whether something was painted: pixels that are not all alike.
PAINTED = """(canvas => new Set(new Uint32Array(
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"""


@needs_chromium
def test_every_figure_is_drawn_and_nothing_leaves_the_page(run, browser):
    page = opened(browser, run / "report.html")
    titles = page.evaluate("[...document.querySelectorAll('figure[data-chart] b')].map(b => b.textContent)")
    assert titles == [
        "Test accuracy", "Cross-entropy", "fedpa", "hfmds", "Labels over clients", "PSNR over rounds",
        "t-SNE of features", "Distances of generated features", "Distance to prototypes", "Diversity loss",
        "Fidelity loss", "mypart: speed", "Time of a round by phase", "Actors at work", "Sent in a round",
        "Failures in a round",
    ]  # fmt: skip
    assert page.evaluate("[...document.querySelectorAll('h2')].map(h => h.textContent)") == [
        "Accuracy and loss", "Loss terms", "Clients' data", "Synthetic images", "Privacy", "Features", "Generator",
        "Further figures", "Time", "Traffic", "Events", "Configuration", "Where it ran",
    ]  # fmt: skip
    marks = page.evaluate("[...document.querySelectorAll('.plot svg')].map(s => s.querySelectorAll('*').length)")
    assert min(marks) > 5
    colours = page.evaluate(f"[...document.querySelectorAll('canvas')].map({PAINTED})")
    assert len(colours) == 3
    assert min(colours) > 3
    pairs = page.evaluate("[...document.querySelectorAll('.pair')].map(p => p.title)")
    assert len(pairs) > 5
    assert "a real image, and a synthetic one of client" in pairs[0]
    text = page.evaluate("document.body.innerText")
    named = "share of hfmds's images nearer to training than to held-out images"
    synthesis = ("a synthesis: means over its images", "cosine to the target")
    for word in (*synthesis, named, "0.61 (0.5 to 0.7)", "actor lost", "<gone>", HOSTILE, "hfmds+fedpa on shapes"):
        assert word in text
    assert "hfmds.nearer_to_training" not in text
    measures = page.evaluate(f"{table_after('Beside held-out images')}.innerText").split("\n")
    assert measures[0].split("\t") == ["features of small-cnn", "shared by hfmds", "training images"]
    assert len(measures) == 7
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith("data:")] == [(run / "report.html").as_uri()]


@needs_chromium
def test_values_are_read_by_pointer_and_by_keys(run, browser):
    history = history_of(run)
    page = opened(browser, run / "report.html")
    assert hover(page, "Test accuracy", 0.99).split("\n") == [
        "round 4", "accuracy", f"{100 * history[3]['accuracy']:.2f} %",
    ]  # fmt: skip
    page.move_to(1, 1)
    assert tip(page, "Test accuracy") == ""
    # By Tab from the first link on, then by arrows.
    page.evaluate("document.querySelector('nav a:last-child').focus()")
    page.press("Tab")
    assert f"{100 * history[3]['accuracy']:.2f} %" in tip(page, "Test accuracy")
    page.press("ArrowLeft")
    page.press("ArrowLeft")
    assert tip(page, "Test accuracy").split("\n")[2] == f"{100 * history[1]['accuracy']:.2f} %"
    page.press("Home")
    assert tip(page, "Test accuracy").startswith("round 1\n")
    page.press("Escape")
    assert tip(page, "Test accuracy") == ""


@needs_chromium
def test_every_chart_answers_the_arrow_keys_and_stays_in_its_place(run, browser):
    page = opened(browser, run / "report.html")
    titles = page.evaluate("[...document.querySelectorAll('figure[data-chart] b')].map(b => b.textContent)")
    for title in titles:
        page.evaluate(f"{figure(title)}.querySelector('.plot').focus()")
        for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "End"):
            page.press(key)
            assert len(tip(page, title).split("\n")) >= 2, (title, key)
        left, right, width = page.evaluate(
            "(f => (t => [t.offsetLeft, t.offsetLeft + t.offsetWidth, f.offsetWidth])(f.querySelector('.tip')))"
            f"({figure(title)})"
        )
        assert 0 <= left < right <= width + 1, title
    assert page.errors == []


@needs_chromium
def test_the_dense_pictures_say_what_is_under_the_pointer(run, browser):
    page = opened(browser, run / "report.html")
    counts = read_run(run).labels()
    page.evaluate(f"{figure('Labels over clients')}.querySelector('.plot').focus()")
    page.press("ArrowRight")
    page.press("ArrowDown")
    page.press("ArrowDown")
    told = tip(page, "Labels over clients").split("\n")
    names = json.loads((run / "config.json").read_text())["classes"]
    wanted = counts[1 if told[0] == "client 1" else 0]
    assert told == [told[0], names[2], str(wanted[2]), "all classes", str(wanted.sum())]
    assert "actor 0" in hover(page, "Actors at work", 0.5, 0.25)
    page.evaluate(f"{figure('t-SNE of features')}.querySelector('.plot').focus()")
    page.press("Home")
    points = json.loads((run / "features.json").read_text())
    told = tip(page, "t-SNE of features").split("\n")
    first = min(label for each in points.values() for label in each["label"])
    assert told[0] == names[first]
    assert told[1:] == [word for kind, each in points.items() for word in (kind, str(each["label"].count(first)))]


@needs_chromium
def test_a_legend_hides_and_shows_a_series(run, browser):
    page = opened(browser, run / "report.html")
    button = f"{figure('Cross-entropy')}.querySelector('.legend button')"
    count = f"{figure('Cross-entropy')}.querySelectorAll('path.line').length"
    assert page.evaluate(count) == 2
    page.evaluate(f"{button}.focus()")
    page.evaluate(f"{button}.click()")
    assert page.evaluate(count) == 1
    assert page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    page.evaluate(f"{button}.click()")
    assert page.evaluate(count) == 2


@needs_chromium
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_no_width_scrolls_sideways(run, browser, width):
    page = opened(browser, run / "report.html", width=width, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(CUT) == []
    assert page.errors == []


@needs_chromium
def test_the_privacy_figures_fit_on_a_telephone(run, browser):
    page = opened(browser, run / "report.html", width=390, height=800)
    assert page.evaluate(f"{TOO_WIDE}({table_after('Privacy')})") <= 0
    seen = page.evaluate(
        f"[...{table_after('Privacy')}.querySelectorAll('td')].map(c => c.getBoundingClientRect().right)"
    )
    assert max(seen) <= 390


@needs_chromium
def test_curves_can_be_drawn_over_seconds_and_bytes(run, browser):
    history = history_of(run)
    page = opened(browser, run / "report.html")
    buttons = "[...document.querySelectorAll('.over button')]"
    assert page.evaluate(f"{buttons}.map(b => b.textContent)") == ["rounds", "seconds", "bytes"]
    ends = {
        "seconds": sum(line["seconds"] for line in history),
        "bytes": sum(line["bytes_up"] + line["bytes_down"] for line in history),
    }
    for i, (name, end) in enumerate(ends.items(), 1):
        page.evaluate(f"{buttons}[{i}].click()")
        assert page.evaluate(f"{buttons}.map(b => b.getAttribute('aria-pressed'))")[i] == "true"
        spec = json.loads(page.evaluate("document.getElementById('charts').textContent"))["c0"]
        assert spec["series"][0]["at"][name][-1] == pytest.approx(end, rel=1e-4)
        told = hover(page, "Test accuracy", 0.999).split("\n")
        assert told[0].startswith({"seconds": "time in rounds: ", "bytes": "sent up and down: "}[name])
        assert told[1:] == ["accuracy", f"{100 * history[3]['accuracy']:.2f} %"]
        assert "round" in page.evaluate(f"{figure('Time of a round by phase')}.querySelector('svg').textContent")
    page.evaluate(f"{buttons}[0].click()")
    assert hover(page, "Test accuracy", 0.999).startswith("round 4\n")
    assert page.errors == []


@needs_chromium
def test_light_and_dark(run, browser):
    shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)"
    assert opened(browser, run / "report.html").evaluate(shade) > 600
    assert opened(browser, run / "report.html", dark=True).evaluate(shade) < 150


# -- long and odd runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_run(run, tmp_path_factory) -> Path:
    """200 rounds of 100 clients on 16 actors with pictures of 20 classes, made from the lines of a small run."""
    out = tmp_path_factory.mktemp("runs") / "long"
    shutil.copytree(run, out)
    draw = np.random.default_rng(0)
    facts = json.loads((out / "config.json").read_text())
    facts["settings"] |= {"clients": 100, "active": 100, "rounds": 200}
    (out / "config.json").write_text(json.dumps(facts))
    np.savetxt(out / "labels.csv", draw.integers(0, 500, (100, 10)), fmt="%d", delimiter=",")
    line = history_of(run)[3]
    rounds = [line | {"round": t, "accuracy": draw.random(), "loss": draw.random()} for t in range(1, 201)]
    (out / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rounds))
    begins = draw.random((200, 16, 3))
    timeline = [
        {"round": t + 1, "seconds": 4.0, "spans": {
            phase: [[a, i + float(begins[t, a, i]) / 2, i + 1.0] for a in range(16)]
            for i, phase in enumerate(("hfmds exchange", "training", "evaluation"))
        }}
        for t in range(200)
    ]  # fmt: skip
    (out / "timeline.jsonl").write_text("".join(json.dumps(each) + "\n" for each in timeline))
    kinds = {
        kind: {"x": draw.normal(0, 30, 5000).round(1).tolist(), "y": draw.normal(0, 30, 5000).round(1).tolist(),
               "label": draw.integers(0, 10, 5000).tolist()}
        for kind in ("real", "synthetic", "generated")
    }  # fmt: skip
    (out / "features.json").write_text(json.dumps(kinds))
    write_report(out)
    return out


def test_a_long_run_stays_small(long_run):
    assert (long_run / "report.html").stat().st_size < 5_000_000 / 4  # much below what is promised


@needs_chromium
def test_a_long_run_is_drawn_too(long_run, browser):
    page = opened(browser, long_run / "report.html")
    assert page.errors == []
    assert min(page.evaluate(f"[...document.querySelectorAll('canvas')].map({PAINTED})")) > 3
    assert hover(page, "Test accuracy", 0.999).startswith("round 200\n")
    assert "16 actors, busy" in page.evaluate("document.body.innerText")
    assert hover(page, "Actors at work", 0.4, 0.3).startswith("actor ")


def test_an_unfinished_run_and_one_with_hardly_anything(run, tmp_path):
    for name in ("config.json", "metrics.jsonl", "timeline.jsonl"):
        shutil.copy(run / name, tmp_path / name)
    with open(tmp_path / "timeline.jsonl", "a") as file:
        file.write('{"round": 5, "sec')  # a kill cut it
    page = write_report(tmp_path).read_text()
    assert "Not finished: 4 of 4 rounds" in page
    assert "Actors at work" in page
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "timeline.jsonl").unlink()
    assert "Not finished: 0 of 4 rounds" in write_report(tmp_path).read_text()


def test_a_value_that_is_not_finite_leaves_a_gap(run, tmp_path):
    shutil.copy(run / "config.json", tmp_path)
    lines = [line | {"loss": None, "train_loss": float("nan")} for line in history_of(run)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report(tmp_path).read_text()
    assert "NaN" not in page.partition('id="charts">')[2].partition("</script>")[0]


# -- the data of the charts -------------------------------------------------------------------------------------------


def test_names_cannot_end_the_script():
    text = as_script_data({"a": HOSTILE, "b": float("inf"), "c": (1.5, "é")})
    assert "<" not in text
    assert json.loads(text) == {"a": HOSTILE, "b": None, "c": [1.5, "é"]}


def test_thin_keeps_the_last():
    assert specs.thin(list(range(10)), 10) == list(range(10))
    assert specs.thin(list(range(10)), 4) == [0, 3, 6, 9]
    assert specs.thin(list(range(1, 1202)), 600)[-1] == 1201


def test_bars_average_many_rounds():
    history = [RoundMetrics(t) for t in range(1, 302)]
    spec = specs.bars(history, {"a": [float(t) for t in range(1, 302)]}, "seconds")
    assert spec["bins"][0] == [1, 3]
    assert spec["bins"][-1] == [301, 301]
    assert spec["series"][0]["y"][:2] == [2.0, 5.0]
    assert specs.bars(history, {"a": [0.0] * 301}, "seconds") is None


def test_the_strip_puts_rounds_one_after_the_other():
    timeline = [
        {"round": 1, "seconds": 2.0, "spans": {"training": [[0, 0.0, 1.0], [1, 0.5, 2.0]]}},
        {"round": 2, "seconds": 9.0, "spans": {"training": [[0, 0.0, 9.0]]}},  # done again
        {"round": 2, "seconds": 3.0, "spans": {"evaluation": [[1, 1.0, 2.0]], "lost": [[0, 0.0, 0.5]]}},
    ]
    spec = specs.strip(timeline, ["training", "evaluation"])
    assert spec["phases"] == ["training", "evaluation", "lost"]
    assert spec["spans"] == [[[0.0, 1.0, 0, 1], [2.0, 2.5, 2, 1]], [[0.5, 2.0, 0, 1], [3.0, 4.0, 1, 1]]]
    assert spec["rounds"] == [0.0, 2.0]
    assert spec["busy"] == pytest.approx((1 + 1.5 + 0.5 + 1) / (2 * 5))
    assert specs.strip([], []) is None


def test_the_strip_of_many_actors_is_averaged():
    spans = [[actor, 0.0, 1.0 if actor % 2 else 0.5] for actor in range(130)]
    spec = specs.strip([{"round": 1, "seconds": 2.0, "spans": {"training": spans}}], ["training"])
    assert len(spec["rows"]) == 44
    assert spec["rows"][:2] == ["actors 0–2", "actors 3–5"]
    # Of actors 0, 1, 2 all work in the first quarter, one in the second, none after that.
    shares = {(from_, share) for from_, _, _, share in spec["spans"][0]}
    assert {share for from_, share in shares if from_ < 0.49} == {1.0}
    assert {share for from_, share in shares if from_ >= 0.5} == {0.33}
    assert max(from_ for from_, _ in shares) < 1.0
    assert spec["busy"] == pytest.approx((65 * 1.0 + 65 * 0.5) / (130 * 2.0))


def test_the_label_picture_of_many_clients_is_sorted_and_averaged():
    counts = np.random.default_rng(1).integers(0, 50, (5000, 10))
    spec = specs.heat(counts, list("abcdefghij"))
    assert len(spec["columns"]) <= 600
    assert spec["sorted"]
    assert spec["columns"][0].startswith("mean of clients ")
    assert specs.heat(counts[:3], list("abcdefghij"))["columns"] == ["client 0", "client 1", "client 2"]


def test_of_large_images_fewer_are_shown(tmp_path):
    """60 pairs of 120 × 200 pixels in 3 classes are 8.6 MB; each class keeps its first ones."""
    draw = np.random.default_rng(0)
    pairs = [Pair(i % 3, i, 1, *draw.integers(0, 256, (2, 3, 120, 200), dtype=np.uint8)) for i in range(60)]
    save_pairs(pairs, tmp_path / "pairs.png")
    text = image_pairs(Run(tmp_path, {"classes": ["a", "b", "c"]}))
    assert len(text) < 2_200_000
    shown = [int(number) for number in re.findall(r'title="[abc]: [^"]* of client (\d+),', text)]
    assert shown == [0, 3, 6, 1, 4, 7, 2, 5, 8]
    (encoded,) = re.findall(r"base64,([^)]*)\)", text)
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as picture:
        pixels = np.asarray(picture)
    assert pixels.shape == (240, 200 * 9, 3)
    assert np.array_equal(pixels[:120, 200:400], pairs[3].real.transpose(1, 2, 0))
    assert np.array_equal(pixels[120:, -200:], pairs[8].made.transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        (None, []),
        ([{"name": "a", "value": None, "note": "too few samples"}], [("a", "–", "too few samples")]),
        ([{"name": "a", "value": 0.5, "interval": [0.25, 0.75]}], [("a", "0.5 (0.25 to 0.75)", "")]),
        ({"mia": {"auc": 0.123456, "n": 7}}, [("mia.auc", "0.1235", ""), ("mia.n", "7", "")]),
        ({"x": [1, 2]}, [("x", "1, 2", "")]),
        ({"mia": [{"name": "auc", "value": 1}]}, [("mia.auc", "1", "")]),
    ],
)
def test_privacy_figures_of_any_form(content, rows):
    assert figure_rows(content) == rows


# -- several runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def four(tmp_path_factory) -> list[Path]:
    """fedavg and fedprox with two seeds each, called CIFAR-10 afterwards, which a paper has figures for."""
    base, paths = tmp_path_factory.mktemp("many"), []
    for method in ("fedavg", "fedprox"):
        for seed in (0, 1):
            paths.append(base / f"{method}-{seed}")
            words = ["--method", method, "--seed", str(seed), "--rounds", "2", "--beta", "0.05"]
            assert main(["run", *TINY, *words, "--out", str(paths[-1])]) == 0
            facts = json.loads((paths[-1] / "config.json").read_text())
            facts["settings"]["dataset"] = "cifar10"
            (paths[-1] / "config.json").write_text(json.dumps(facts))
    return paths


@needs_chromium
def test_several_runs_stand_side_by_side(four, browser, capsys):
    assert main(["report", *map(str, four)]) == 0
    out = four[0].parent / "comparison.html"
    assert capsys.readouterr().out.split() == ["wrote", str(out)]
    page = opened(browser, out)
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith("data:")] == [out.as_uri()]
    accuracies = [[100 * line["accuracy"] for line in history_of(path)] for path in four[:2]]
    mean, std = np.mean(accuracies, axis=0), np.std(accuracies, axis=0, ddof=1)
    told = hover(page, "Test accuracy", 0.999).split("\n")
    assert told[:3] == ["round 2", "fedavg", f"{mean[1]:.2f} % ± {std[1]:.2f} % (2 runs)"]
    assert told[3] == "fedprox"
    rows = page.evaluate("[...document.querySelectorAll('tbody')][0].innerText")
    assert f"{mean[1]:.2f} ± {std[1]:.2f}" in rows
    assert "45.31 ± 1.64" in rows  # HFMDS-FL table 2, FedAvg at Dirichlet 0.05
    assert "42.57 ± 2.10" in rows  # FedProx
    text = page.evaluate("document.body.innerText")
    assert "Differences from the nearest preset of a paper: fedavg:" in text
    assert "rounds 2 (not 60)" in text
    heads = page.evaluate("[...document.querySelector('table').querySelectorAll('th')].map(h => h.textContent)")
    assert len({*heads}) == len(heads)
    quoted = page.evaluate(f"{figure('Time of a round')}.querySelector('.legend button span').textContent")
    means = np.mean([[line["seconds"] for line in history_of(path)] for path in four[:2]], axis=0)
    number, unit = quoted.split()
    assert float(number) * {"s": 1, "ms": 1e-3}[unit] == pytest.approx(np.median(means), rel=0.01)
    assert page.evaluate(f"{TOO_WIDE}(document.querySelector('table'))") <= 0  # it fits
    page = opened(browser, out, width=390, height=800)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(CUT) == []


def test_groups_are_named_by_what_differs(four, tmp_path):
    runs = [read_run(path) for path in four]
    for i, mu in ((2, 0.01), (3, 1.0)):
        runs[i].settings["fedprox.mu"] = mu
    groups = grouped(runs)
    assert [(g.name, len(g.runs)) for g in groups] == [
        ("fedavg", 2), ("fedprox, fedprox.mu 0.01", 1), ("fedprox, fedprox.mu 1", 1),
    ]  # fmt: skip
    assert groups[1].spread("final_accuracy")[1] is None


def test_own_models_of_one_name_are_told_apart_by_their_source(four):
    runs = [read_run(path) for path in four[:2]]
    for run, digest in zip(runs, ("aaaaaa1", "bbbbbb1"), strict=True):
        run.settings["seed"] = 0
        run.facts["sources"] = {"model": digest, "dataset": digest}  # of files: settings say which
    assert [(g.name, len(g.runs)) for g in grouped(runs)] == [("fedavg, model aaaaaa", 1), ("fedavg, model bbbbbb", 1)]
    for run in runs:
        del run.facts["sources"]["model"]
        run.settings["dataset"] = "memory:arrays"
    assert [g.name for g in grouped(runs)] == ["fedavg, dataset aaaaaa", "fedavg, dataset bbbbbb"]


def test_a_run_that_repeats_another_counts_once(four, tmp_path):
    """The one that has come furthest, however often there are others."""
    begun = tmp_path / "begun"
    shutil.copytree(four[0], begun)
    (begun / "summary.json").unlink()
    copies = [tmp_path / "copy", tmp_path / "again"]
    for copy in copies:
        shutil.copytree(four[0], copy)
    (group,) = grouped([read_run(path) for path in (begun, *copies, four[1])])
    assert [run.path.name for run in group.runs] == ["copy", "fedavg-1"]
    assert [run.path.name for run in group.repeated] == ["begun", "again"]
    both = [read_run(path).summary["final_accuracy"] for path in four[:2]]
    assert group.spread("final_accuracy") == (np.mean(both), pytest.approx(np.std(both, ddof=1)))
    page = write_comparison([begun, *copies, four[1]], tmp_path / "page.html").read_text()
    assert "2 of the runs repeat another with its seed, and count once." in page
    assert all(f"{name}/report.html" in page for name in ("begun", "copy", "again"))


def test_departures_from_the_papers_setting(four):
    settings = read_run(four[0]).settings
    different = departures(settings)
    assert "rounds 2 (not 60)" in different
    assert "train_size 100" in different
    assert not any(each.startswith(("seed", "out", "beta")) for each in different)
    assert departures(settings | {"dataset": "a-folder"}) == []
    # A method without a preset of its own is held against those of its dataset, but for parts' settings.
    assert departures(settings | {"method": "moon", "moon.mu": 1.0}) == different
    own = departures(settings | presets()["hfmds-cifar10"].settings | {"hfmds.steps": 7})
    assert own == ["hfmds.steps 7 (not 500)", "test_size 40", "train_size 100"]


def test_where_the_page_goes(four, tmp_path, capsys):
    assert main(["report", str(four[0]), str(four[1]), "--out", str(tmp_path / "page.html")]) == 0
    assert main(["report", str(four[0]), "--out", str(tmp_path / "one.html")]) == 0
    assert "fedavg on cifar10" in (tmp_path / "one.html").read_text()
    assert write_comparison(four[:1], tmp_path / "alone.html").exists()
    capsys.readouterr()
    for words, said in [
        ([str(four[0]), "--out", str(tmp_path)], "is a directory"),
        ([str(four[0]), "--out", str(tmp_path / "none" / "x.html")], "there is no folder"),
        ([str(four[0]), "--wide"], "unknown flag --wide"),
        ([str(four[0]), str(tmp_path)], "not a run directory"),
    ]:
        assert main(["report", *words]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(InputError, match="no run directory"):
        write_comparison([])
