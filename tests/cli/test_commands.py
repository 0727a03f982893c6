"""The commands as a user calls them, and what a run leaves behind."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from raysim.cli import main

ROOT = Path(__file__).parents[2]
TINY = ["--train-size", "80", "--test-size", "40", "--clients", "4", "--rounds", "2", "--model", "small-cnn"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["run", *TINY, "--in-process", "--method", "fedprox", "--out", str(out)]) == 0
    return out


def test_the_run_directory_is_complete(run):
    names = {path.name for path in run.iterdir()}
    assert names >= {"config.json", "metrics.jsonl", "summary.json", "model.safetensors", "labels.png", "report.html"}
    assert not [name for name in names if name.endswith(".tmp")]
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["fedprox.mu"] == 0.01
    assert config["versions"]["torch"].startswith("2.13.0")
    assert config["fingerprint"][0]["threads"] == 1
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert lines[0].keys() >= {
        "round", "accuracy", "loss", "clients", "seconds", "bytes_up", "bytes_down", "failures", "terms",
    }  # fmt: skip
    assert lines[1]["terms"]["fedprox"] > 0


def test_the_hash_is_what_the_contract_says(run):
    """Name, dtype, shape and little-endian bytes of parameters and floating buffers, sorted by name."""
    sha = hashlib.sha256()
    for name, array in sorted(load_file(run / "model.safetensors").items()):
        assert array.dtype == np.float32
        sha.update(f"{name}|float32|{array.shape}|".encode() + array.astype("<f4").tobytes())
    summary = json.loads((run / "summary.json").read_text())
    assert summary["model_sha256"] == sha.hexdigest()
    assert summary["rounds"] == 2
    assert 0 <= summary["final_accuracy"] <= summary["best_accuracy"] <= 1


def test_the_report_is_one_page_that_asks_for_nothing(run):
    page = (run / "report.html").read_text()
    assert "fedprox on shapes" in page
    assert "Content-Security-Policy" in page
    # The name of an XML vocabulary is no request.
    links = {word for word in page.split('"') if word.startswith(("http:", "https:", "//"))}
    assert links == {"http://www.w3.org/2000/svg"}


def test_the_report_can_be_written_again_also_of_an_unfinished_run(run, tmp_path, capsys):
    for name in ("config.json", "metrics.jsonl"):
        (tmp_path / name).write_text((run / name).read_text())
    assert main(["report", str(tmp_path)]) == 0
    assert "Not finished: 2 of 2 rounds" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("methods", ["fedavg", "fedprox", "scaffold", "moon", "fedgen", "fedensemble", "fedhkd", "naivemix", "fedmix"]),
        ("datasets", ["shapes", "cifar10", "celeba"]),
        ("models", ["hfmds-cnn", "resnet18-gn"]),
        ("presets", ["fedavg-cifar10", "HFMDS"]),
        ("--help", ["run", "plan", "presets"]),
    ],
)
def test_what_there_is(command, words, capsys):
    assert main([command]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in words)


def test_help_lists_every_setting_with_the_parts_own(capsys):
    assert main(["run", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in ("--batch-size", "--fedprox.mu", "--preset", "--config", "--actors"))


def test_the_driver_needs_no_torch(tmp_path):
    """Nor does anything it hears from its actors bring it in: it would take 170 MB."""
    code = (
        "import sys; from raysim.cli import main;"
        f"done = main(['run', '--clients', '4', '--train-size', '40', '--test-size', '10', '--rounds', '1', "
        f"'--model', 'mlp', '--actors', '1', '--out', {str(tmp_path / 'run')!r}]);"
        "sys.exit(done or 'torch' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", ["import raysim", "from raysim.cli import main; main(['--help'])"])
def test_neither_import_nor_help_loads_torch_or_ray(code):
    loaded = f"import sys; {code}; sys.exit(bool({{'torch', 'ray', 'numpy'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, stdout=subprocess.DEVNULL).returncode == 0


def test_a_public_name_is_what_it_says():
    import raysim
    from raysim.single_run import run

    assert raysim.run is run
    assert all(getattr(raysim, name) is not None for name in raysim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = raysim.nothing
