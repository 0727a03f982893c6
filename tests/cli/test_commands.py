"""The commands as a user calls them, and what a run leaves behind."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from raysim import __version__
from raysim.cli import COMMANDS, main
from raysim.config import TOPICS, from_command_line, load_layers, resolve
from raysim.papers import presets

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


OWN_METHOD = """
from dataclasses import dataclass
from raysim import Part, setting

@dataclass(frozen=True)
class Mine(Part):
    '''Mine: does little.

    It says more here.
    '''

    strength: float = setting(0.5, "how strong")
"""


def listing(*words, capsys) -> str:
    capsys.readouterr()
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def several(tmp_path_factory) -> Path:
    """A folder of runs: two methods, two seeds, in folders of folders, one of them unfinished; and a model's folder."""
    folder = tmp_path_factory.mktemp("several")
    for method, seed, out in [("fedavg", 0, "a"), ("fedavg", 1, "b"), ("fedprox", 0, "deeper/c"), ("fedprox", 1, "d")]:
        words = ["--method", method, "--seed", str(seed), "--privacy", "0", "--out", str(folder / out)]
        assert main(["run", *TINY, "--in-process", *words]) == 0
    (folder / "d" / "summary.json").unlink()
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"architectures": ["Bert"]}')
    return folder


def test_show_has_a_line_per_run_the_most_accurate_first(several, capsys):
    head, *lines = listing("show", several, capsys=capsys).splitlines()
    assert head.split() == [
        "run",
        "method",
        "seed",
        "rounds",
        "final",
        "%",
        "best",
        "%",
        "last",
        "quarter",
        "%",
        "time",
    ]
    assert {line.split()[0] for line in lines} == {str(several / name) for name in ("a", "b", "deeper/c", "d")}
    (unfinished,) = (line for line in lines if line.startswith(str(several / "d ")))
    assert "fedprox  1     2 of 2" in unfinished
    found = json.loads(listing("show", several, "--json", capsys=capsys))
    accuracies = [run["final_accuracy"] for run in found]
    assert accuracies == sorted(accuracies, reverse=True)
    for run in found:
        history = [json.loads(line) for line in (Path(run["run"]) / "metrics.jsonl").read_text().splitlines()]
        each = [line["accuracy"] for line in history]
        assert (run["final_accuracy"], run["best_accuracy"], run["rounds"]) == (each[-1], max(each), 2)
        assert run["late_accuracy"] == each[-1]  # a quarter of two rounds is the last
        settings = json.loads((Path(run["run"]) / "config.json").read_text())["settings"]
        assert (run["method"], run["seed"]) == (settings["method"], settings["seed"])
        if run["finished"]:
            assert run["seconds"] == json.loads((Path(run["run"]) / "summary.json").read_text())["seconds"]


def test_show_can_be_sorted_cut_and_read_by_programs(several, capsys):
    by_seed = json.loads(listing("show", "--json", several, "--sort", "seed", capsys=capsys))
    assert [run["seed"] for run in by_seed] == [0, 0, 1, 1]
    seconds = [
        run["seconds"] for run in json.loads(listing("show", several, "--json", "--sort=seconds", capsys=capsys))
    ]
    assert seconds == sorted(seconds)
    first = listing("show", several, "--csv", "--sort", "run", "--top", "1", capsys=capsys).splitlines()
    assert first[0] == "run,method,seed,rounds,finished,final_accuracy,best_accuracy,late_accuracy,seconds"
    assert first[1].startswith(f"{several / 'a'},fedavg,0,2,True,0.")
    assert len(first) == 2
    latex = listing("show", several, "--latex", "--sort", "run", capsys=capsys).splitlines()
    assert latex[0] == r"\begin{tabular}{lllrrrrr}"
    assert latex[1] == r"run & method & seed & rounds & final \% & best \% & last quarter \% & time \\"
    assert latex[2:3] == [r"\hline"]
    assert latex[-1] == r"\end{tabular}"
    assert all(line.count("&") == 7 and line.endswith(r" \\") for line in latex[3:-1])
    markdown = listing("show", several, "--markdown", "--sort", "run", capsys=capsys).splitlines()
    assert markdown[0] == "| run | method | seed | rounds | final % | best % | last quarter % | time |"
    assert [line.split(" | ")[:3] for line in markdown[2:3]] == [[f"| {several / 'a'}", "fedavg", "0"]]
    alone = listing("show", several / "a", capsys=capsys)
    assert "fedavg  shapes" in alone
    assert main(["show", str(several), "--sort", "beta"]) == 2
    assert "cannot be sorted by 'beta'" in capsys.readouterr().err


def test_a_damaged_run_in_a_folder_is_named(several, tmp_path, capsys):
    shutil.copytree(several, tmp_path / "copy")
    (tmp_path / "copy" / "b" / "config.json").write_text("{")
    assert main(["show", str(tmp_path / "copy")]) == 2
    assert f"{tmp_path / 'copy' / 'b' / 'config.json'} is damaged" in capsys.readouterr().err


def test_a_report_of_a_folder_is_about_the_runs_in_it(several, tmp_path, capsys):
    assert listing("report", several, capsys=capsys).split() == ["wrote", str(several / "comparison.html")]
    page = (several / "comparison.html").read_text()
    assert "4 runs, 2 configurations" in page
    assert listing("report", several / "deeper", "--out", tmp_path / "p.html", capsys=capsys).split()[0] == "wrote"
    assert "fedprox on shapes" in (tmp_path / "p.html").read_text()


def test_one_preset_is_a_file_of_settings(tmp_path, capsys):
    text = listing("presets", "hfmds-cifar10", capsys=capsys)
    (tmp_path / "run.toml").write_text(text)
    again, preset = (
        resolve(load_layers(from_command_line(words), {})).settings()
        for words in (["--config", str(tmp_path / "run.toml")], ["--preset", "hfmds-cifar10"])
    )
    assert again == preset
    assert text.startswith("# ")


def test_every_preset_is_valid_toml(capsys):
    for name, preset in presets().items():
        content = tomllib.loads(listing("presets", name, capsys=capsys))
        tables = {f"{k}.{i}": v for k, table in content.items() if isinstance(table, dict) for i, v in table.items()}
        plain = {k: v for k, v in content.items() if not isinstance(v, dict)}
        assert plain | tables == {k: v for k, v in preset.settings.items() if v is not None}


def test_one_sweep_and_one_method_in_full(tmp_path, monkeypatch, capsys):
    told = listing("sweeps", "hfmds-table4-cifar10", capsys=capsys)
    for text in ("12 runs; seeds: 0, 1, 2", "--preset hfmds-cifar10", "L_C + L_HFM: --hfmds.mu 0.5", "L_C: 52.08"):
        assert text in told
    told = listing("methods", "feddpms", capsys=capsys)
    assert "--feddpms.quota" in told
    assert "--fedprox" not in told
    assert "--hfmds.every" in listing("methods", "fmds", capsys=capsys)
    (tmp_path / "my_own_lab").mkdir()
    (tmp_path / "my_own_lab" / "mine.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    told = listing("methods", "my_own_lab.mine", capsys=capsys)
    assert "It says more here." in told
    assert "how strong (default 0.5)" in told
    told = listing("run", "--help", "--method", "my_own_lab.mine+fedprox", capsys=capsys)
    assert "--mine.strength " in told
    assert "--fedprox.mu " in told
    assert "--hfmds.mu " not in told


def test_help_fits_one_screen_and_names_the_topics(capsys):
    told = listing("run", "--help", capsys=capsys)
    assert len(told.splitlines()) <= 30
    assert all(f"--help {topic} " in told for topic in TOPICS)
    assert "--fuse" not in told


def test_help_on_a_topic_a_method_and_everything(capsys):
    assert "--fuse " in (told := listing("run", "--help", "gpu", capsys=capsys))
    assert "--lr " not in told
    assert "--hfmds.every " in (told := listing("run", "--help", "fmds", capsys=capsys))
    assert "--moon.mu " not in told
    assert "Federated averaging" in listing("run", "--help", "fedavg", capsys=capsys)
    told = listing("run", "-h", "all", capsys=capsys)
    assert "\nTraining\n  --rounds " in told
    assert all(word in told for word in ("--batch-size ", "--moon.mu ", "--watchdog "))


def test_help_on_something_else_names_the_nearest(capsys):
    assert main(["run", "--help", "hfmdss"]) == 2
    assert capsys.readouterr().err == "raysim: --help: no topic or method 'hfmdss'; did you mean 'hfmds'?\n"


def test_help_has_the_settings_of_the_methods_asked_for(capsys):
    assert "--hfmds.every " in listing("run", "--method", "fmds", "--help", capsys=capsys)
    assert "--fedpa.noise " in listing("run", "--help", "--preset", "fedpa-mnist", capsys=capsys)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(command, capsys):
    told = listing(command, "--help", capsys=capsys)
    assert len(told.splitlines()) > 2
    assert command in told


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version(flag, capsys):
    assert listing(flag, capsys=capsys) == f"raysim {__version__}\n"


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
