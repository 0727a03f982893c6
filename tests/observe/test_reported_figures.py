"""What reports say of runs written by hand: every figure, row and series worked out here once more."""

from pathlib import Path

import pytest

from raysim.observe.report import write_comparison, write_report
from tests.observe.by_hand import charts, sections, written

ROUNDS = [
    {"round": 1, "accuracy": 0.25, "loss": 2.0, "train_loss": 1.5, "terms": {"fedprox": 0.5}, "bytes_up": 1000,
     "bytes_down": 3000, "phases": {"training": 3.0, "evaluation": 1.0}, "seconds": 5.0, "failures": 2, "retries": 1,
     "skipped": 1, "gpu_bytes": 2_000_000_000, "psnr": 10.0, "mypart.speed": 4, "shared_bytes": 500,
     "hfmds.ratio": 0.5, "hfmds.psnr": 10.0, "generator.untrained_intra": 4.0, "generator.intra": 3.0},
    {"round": 2, "accuracy": None, "train_loss": 1.25, "bytes_up": 1500, "bytes_down": 3000,
     "phases": {"training": 2.0}, "seconds": 2.0, "failures": 1, "gpu_bytes": 3_000_000_000, "mypart.speed": 6,
     "other.once": 0.5, "generator.fid": 0.75},
    {"round": 3, "accuracy": 0.2, "loss": 1.0, "train_loss": 1.0, "terms": {"fedprox": 0.25}, "bytes_up": 1000,
     "bytes_down": 3500, "phases": {"training": 1.0, "evaluation": 0.5}, "seconds": 2.0, "psnr": 12.5,
     "shared_bytes": 1500, "hfmds.ratio": 0.75, "generator.intra": 1.0},
]  # fmt: skip
FILES = {
    "summary": {
        "method": "fedprox", "final_accuracy": 0.2, "best_accuracy": 0.25, "rounds": 3, "model_sha256": "ab" * 32,
        "seconds": 65.0, "setup_seconds": 1.5, "gflops_per_client_round": {"training": 1.5, "fedprox": 0.25},
        "stopped": "patience", "tsne": {"real": {"intra": 1.25, "inter": 7.5}},
    },
    "events": [
        {"time": 1.0, "event": "actor_lost", "actor": 1, "reason": "<gone>", "round": 2},
        *[{"time": 2.0, "event": "warning", "text": "take care"}] * 2,
    ],
    "timeline": [
        {"round": 1, "seconds": 5.0, "spans": {"training": [[0, 0.0, 3.0], [1, 0.5, 2.0]], "evaluation": [[0, 3, 4]]}},
        {"round": 2, "seconds": 2.0, "spans": {"training": [[0, 0.0, 2.0]]}},
    ],
    "labels": "3,0\n1,1\n0,5\n",
    "privacy": [{"name": "model.auc", "value": 0.5, "interval": [0.25, 0.75], "note": "how"}],
    "measures": [{"name": "mine.fd", "value": 2.0, "note": "of 5"}, {"name": "training.fd", "value": 1.0}],
    "features": {"real": {"x": [0.0, 2.0], "y": [1.0, -1.0], "label": [0, 1]}},
}  # fmt: skip


@pytest.fixture
def page(tmp_path) -> Path:
    return write_report(written(tmp_path / "whole", ROUNDS, **FILES))


def rows(texts: list[str], first: str, width: int) -> list[list[str]]:
    """The table whose first head is this."""
    at = texts.index(first)
    return [texts[i : i + width] for i in range(at, len(texts) - width + 1, width)]


def test_the_tiles(page):
    _, about, ended, warning, *tiles = sections(page)[""]
    assert about == "3 clients (2 active), iid, hfmds-cnn, 3 rounds, seed 7"
    assert (ended, warning) == ("Ended after 3 rounds: patience.", "take care")
    assert [tuple(tiles[i : i + 3]) for i in range(0, len(tiles), 3)] == [
        ("Accuracy", "20.00 %", "after round 3"), ("Best accuracy", "25.00 %", "in round 1"),
        ("Time", "1m05s", "3.00 s a round"),  # of the rounds alone
        ("PSNR", "12.50 dB", "synthetic beside real"), ("GFLOPs", "1.75", "per client and round"),
        ("Sent by clients", "3.5 kB", "to them 9.5 kB"),
        ("GPU memory", "3 GB", "the most that a client actor held"), ("Failures", "3", "1 clients skipped"),
    ]  # fmt: skip


def test_the_tables(page):
    found = sections(page)
    assert rows(found["Time"], "phase", 4)[:3] == [
        ["phase", "in all", "of the rounds", "longest"],
        ["training", "6.00 s", "66.7 %", "3.000 s"], ["evaluation", "1.50 s", "16.7 %", "1.000 s"],
    ]  # fmt: skip
    assert found["Time"][13:] == [
        "before the first round", "1.50 s", "a client, per round", "GFLOPs", "training", "1.5", "fedprox", "0.25",
        "Actors at work", "2 actors, busy 54 % of the time in rounds",  # 3 + 1.5 + 1 + 2 of two times 7 seconds
    ]  # fmt: skip
    assert rows(found["Synthetic images"], "a synthesis: means over its images", 3)[1:3] == [
        ["round 1", "0.5", "10"], ["round 3", "0.75", "–"],
    ]  # fmt: skip
    assert rows(found["Synthetic images"], "features of hfmds-cnn", 3)[:2] == [
        ["features of hfmds-cnn", "shared by mine", "training images"], ["Fréchet distance", "2", "1"],
    ]  # fmt: skip
    assert found["Further figures"][-3:] == ["other: once", "0.5", "round 2"]
    assert found["Features"][-3:] == ["real", "1.25", "7.50"]
    assert found["Privacy"][1:] == ["attack on the model: area under the ROC curve (AUC)", "how", "0.5 (0.25 to 0.75)"]
    assert found["Clients' data"][0] == (
        "3 clients with 2 to 5 samples, 10 together; a client has 1.3 of 2 classes on average."
    )
    assert "The shared dataset takes 1.5 kB of the object store." in found["Traffic"]
    assert found["Events"][0] == "2 × warning, 1 × actor lost."
    assert rows(found["Events"], "event", 3)[1:] == [
        ["actor lost", "2", "<gone> actor 1"], *[["warning", "–", "take care"]] * 2,
    ]  # fmt: skip
    assert found["Where it ran"][:4] == ["model_sha256", "ab" * 32, "run", "by hand"]
    assert found["Where it ran"][-2:] == ["versions", "raysim 0"]


def series(chart: dict) -> dict:
    """x and y of each series, or its bars, by its name."""
    x = [first for first, last in chart["bins"] if first == last] if chart["kind"] == "bars" else None
    return {each["name"]: (each.get("x", x), each["y"]) for each in chart["series"]}


def test_the_charts(page):
    found = charts(page)
    curves = {title: series(spec) for title, spec in found.items() if spec["kind"] in ("lines", "bars")}
    assert curves == {
        "Test accuracy": {"accuracy": ([1, 3], [25, 20])},
        "Cross-entropy": {"test": ([1, 3], [2, 1]), "local training": ([1, 2, 3], [1.5, 1.25, 1])},
        "fedprox": {"fedprox": ([1, 2, 3], [0.5, None, 0.25])},
        "PSNR over rounds": {"psnr": ([1, 3], [10, 12.5])},
        "Distances of generated features": {"within a class": ([0, 1, 3], [4, 3, 1])},
        "Fidelity loss": {"generator.fid": ([2], [0.75])},
        "mypart: speed": {"mypart.speed": ([1, 2], [4, 6])},
        "Time of a round by phase": {"training": ([1, 2, 3], [3, 2, 1]), "evaluation": ([1, 2, 3], [1, 0, 0.5])},
        "Sent in a round": {
            "by clients": ([1, 2, 3], [1000, 1500, 1000]), "to clients": ([1, 2, 3], [3000, 3000, 3500]),
        },
        "Failures in a round": {
            "failures": ([1, 2, 3], [2, 1, 0]), "retries": ([1, 2, 3], [1, 0, 0]), "skipped": ([1, 2, 3], [1, 0, 0]),
        },
    }  # fmt: skip
    assert found["Test accuracy"]["unit"] == "percent"
    assert found["Cross-entropy"]["series"][1]["at"] == {"seconds": [5, 7, 9], "bytes": [4000, 8500, 13000]}
    labels = found["Labels over clients"]
    assert labels["values"] == [[3, 0], [1, 1], [0, 5]]
    assert (labels["sizes"], labels["rows"], labels["sorted"]) == ([3, 2, 5], ["ant", "bee"], False)
    dots = found["t-SNE of features"]
    assert dots["panels"] == [{"name": "real", "x": [0, 2], "y": [1, -1], "label": [0, 1]}]
    assert (dots["low"], dots["high"], dots["present"]) == ([0, -1], [2, 1], [0, 1])
    strip = found["Actors at work"]
    assert strip["spans"] == [[[0, 3, 0, 1], [3, 4, 1, 1], [5, 7, 0, 1]], [[0.5, 2, 0, 1]]]
    assert (strip["end"], strip["rounds"], strip["busy"]) == (7, [0, 5], pytest.approx(7.5 / 14))


# -- several runs -----------------------------------------------------------------------------------------------------


def finished(folder: Path, accuracy: float, scale: int, **settings) -> Path:
    """A run of two rounds; `scale` multiplies what it took and sent."""
    lines = [
        {"round": t, "accuracy": accuracy * t / 2, "loss": 1 / t, "train_loss": 2 / t, "bytes_up": 1000 * scale,
         "bytes_down": 3000 * scale, "seconds": 2.0 * scale, "psnr": 10.0 * scale}
        for t in (1, 2)
    ]  # fmt: skip
    summary = {
        "method": "x", "final_accuracy": accuracy, "late_accuracy": accuracy - 0.1, "best_accuracy": accuracy + 0.1,
        "rounds": 2, "model_sha256": "ab" * 32, "seconds": 100.0 * scale, "bytes_up": 2000 * scale,
        "bytes_down": 6000 * scale, "gflops_per_client_round": {"training": scale, "mine": 0.5},
        "psnr": 10.0 * scale, "measures": {"mine.fd": 4.0 * scale, "training.fd": 1.0},
    }  # fmt: skip
    return written(folder, lines, {"rounds": 2, "train_size": 500, **settings}, summary=summary)


def test_runs_side_by_side(tmp_path):
    paths = [
        finished(tmp_path / "b", 0.4, 1, method="fedavg", seed=1),
        finished(tmp_path / "a", 0.6, 3, method="fedavg", seed=0),
        finished(tmp_path / "c", 0.3, 1),
        written(tmp_path / "d", [{"round": 1, "accuracy": 0.2, "seconds": 1.0}], {"train_size": 500, "lr": 0.5}),
    ]
    (tmp_path / "c" / "report.html").write_text("")
    page = write_comparison(paths)
    assert page == tmp_path / "comparison.html"
    found = sections(page)
    assert found[""] == ["Comparison on cifar10", "4 runs, 3 configurations, 1 setting"]
    texts = found["cifar10, 3 clients (2 active), iid"]
    assert texts[0].startswith("500 training images. Figures are means")
    start = texts.index("method")
    heads = ["method", "runs", "accuracy %", "last quarter %", "best %", "PSNR dB", "feature FD", "GFLOPs*", "sent up",
             "sent down", "time"]  # fmt: skip
    assert texts[start : start + 11] == heads
    # Of 40 and 60 %: a mean of 50 and a standard deviation of √200.
    deviation = "14.14"
    assert texts[start + 11 : start + 22] == [
        "fedavg, rounds 2, lr 0.01", "2", f"50.00 ± {deviation}", f"40.00 ± {deviation}", f"60.00 ± {deviation}",
        f"20.00 ± {deviation}", "8.00 ± 5.66", "2.5", "4 kB", "12 kB", "3m20s",
    ]  # fmt: skip
    assert texts[start + 22 : start + 33] == [
        "fedprox, rounds 2, lr 0.01", "1", "30.00", "20.00", "40.00", "10.00", "4.00", "1.5", "2 kB", "6 kB", "1m40s",
    ]  # fmt: skip
    assert texts[start + 33 : start + 45] == ["fedprox, rounds 3, lr 0.5", "1 not finished", "1", *["–"] * 9]
    assert "<b>50.00 ± 14.14</b>" in page.read_text()
    runs = texts[texts.index("final accuracy") + 2 :]
    assert [runs[i : i + 5] for i in (0, 5, 10)] == [
        ["a", "fedavg, rounds 2, lr 0.01", "0", "60.00 %", "ab" * 6],
        ["b", "fedavg, rounds 2, lr 0.01", "1", "40.00 %", "ab" * 6],
        ["c", "fedprox, rounds 2, lr 0.01", "7", "30.00 %", "ab" * 6],
    ]  # fmt: skip
    assert runs[15:] == ["d", "fedprox, rounds 3, lr 0.5", "7", "1 rounds so far"]
    assert page.read_text().count("<a href=") - page.read_text().count('<a href="#') == 1
    assert '<a href="c/report.html">c</a>' in page.read_text()

    curves = charts(page)
    first, second, third = curves["Test accuracy"]["series"]
    assert (first["x"], first["y"], first["n"]) == ([1, 2], [25, 50], [2, 2])
    assert first["low"] == pytest.approx([25 - 50**0.5, 50 - 200**0.5], rel=1e-4)
    assert first["high"] == pytest.approx([25 + 50**0.5, 50 + 200**0.5], rel=1e-4)
    assert first["at"] == {"seconds": [4, 8], "bytes": [8000, 16000]}
    assert (second["y"], third["y"], "low" in second) == ([15, 30], [20], False)
    assert [each["colour"] for each in (first, second, third)] == [0, 1, 2]
    assert curves["Test loss"]["series"][0]["y"] == [1, 0.5]
    assert curves["Local training loss"]["series"][0]["y"] == [2, 1]
    assert curves["PSNR"]["series"][0]["y"] == [20, 20]
    assert curves["Time of a round"]["series"][0]["y"] == [4, 4]
    common = found["Configuration"]
    pairs = dict(zip(common[1::2], common[2::2], strict=False))
    assert (pairs["method"], pairs["seed"], pairs["lr"]) == ("fedavg | fedprox", "1 | 0 | 7", "0.01 | 0.5")
    assert "train_size" in common[common.index("The same in all runs") :]
