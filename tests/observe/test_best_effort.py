"""A picture or an embedding never costs a run its summary."""

import json

import pytest

from raysim.cli import main
from raysim.engine.callbacks import Callback
from raysim.errors import RaysimError
from raysim.observe import features, labels, report, synthetic
from raysim.observe.best_effort import BestEffort

SMALL = [
    "run", "--train-size", "60", "--test-size", "40", "--clients", "3", "--model", "small-cnn", "--rounds", "2",
    "--method", "hfmds", "--hfmds.every", "1", "--hfmds.steps", "1", "--hfmds.per-client", "4", "--in-process",
]  # fmt: skip


def events(run) -> list[str]:
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines if line["event"] == "warning"]


@pytest.mark.parametrize(
    ("module", "function", "file"),
    [
        (labels, "draw_labels", "labels.png"),
        (synthetic, "draw_beside_real", "synthetic.png"),
        (features, "embed", "features.png"),
        (report, "write_report", "report.html"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_drawn_is_named_and_the_run_is_whole(tmp_path, monkeypatch, module, function, file):
    def fail(*arguments, **settings):
        raise UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed")

    monkeypatch.setattr(module, function, fail)
    run = tmp_path / "run"
    assert main([*SMALL, "--tsne", "5", "--out", str(run)]) == 0
    assert json.loads((run / "summary.json").read_text())["model_sha256"]
    assert (run / "model.safetensors").exists()
    assert not (run / file).exists()
    assert any(file in text and "surrogates not allowed" in text for text in events(run))


def test_results_are_on_the_disk_before_anything_is_drawn(tmp_path, monkeypatch):
    there = []

    def draw(*arguments):
        there.append(sorted(path.name for path in (tmp_path / "run").iterdir()))
        raise KeyboardInterrupt

    monkeypatch.setattr(synthetic, "draw_beside_real", draw)
    assert main([*SMALL, "--out", str(tmp_path / "run")]) == 130
    assert {"model.safetensors", "metrics.jsonl", "privacy.json"} <= {*there[0]}


def test_one_point_is_no_map_and_no_error(tmp_path):
    assert main([*SMALL, "--tsne", "1", "--out", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_full_disk_is_not_taken_for_a_picture_that_fails():
    class Full(Callback):
        def on_result(self, result):
            raise RaysimError("features.png cannot be written: No space left on device")

    with pytest.raises(RaysimError, match="No space left"):
        BestEffort(Full(), "features.png", lambda text: None).on_result(None)
