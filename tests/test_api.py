"""The public interface in Python."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import ray
import torch

import raysim
from raysim.cli import main
from raysim.data import load
from raysim.engine.callbacks import Callback
from raysim.methods.fedprox import FedProx
from raysim.storage.formats import read_summary

ROOT = Path(__file__).parents[1]
TINY = {"model": "mlp", "clients": 6, "active": 3, "rounds": 2, "train_size": 120, "test_size": 40, "privacy": 0}
QUIET = {"progress": False, "in_process": True}


def words(**settings) -> list[str]:
    return [f"--{key.replace('_', '-')}={value}" for key, value in settings.items()]


@pytest.fixture(scope="module")
def by_command(tmp_path_factory) -> str:
    """The hash that the command line ends in."""
    out = tmp_path_factory.mktemp("command") / "run"
    assert main(["run", *words(**TINY, out=out), "--in-process", "--method", "fedprox", "--fedprox.mu", "0.5"]) == 0
    return read_summary(out)["model_sha256"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return raysim.run(
        **TINY, **QUIET, out=tmp_path_factory.mktemp("api") / "run", method="fedprox", fedprox={"mu": 0.5}
    )


def test_importing_imports_none_of_the_large_packages():
    code = "import sys, raysim; raysim.InputError; assert not {'torch', 'ray', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_that_is_exported_exists():
    assert all(getattr(raysim, name) is not None for name in raysim.__all__)
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = raysim.nothing


# -- one run -----------------------------------------------------------------------------------------------------------


def test_a_call_gives_the_hash_of_the_command(by_command, finished):
    assert finished.summary["model_sha256"] == by_command


def test_a_run_has_what_it_measured(finished):
    assert finished.accuracy == finished.summary["final_accuracy"] == finished.history[-1].accuracy
    assert [metrics.round for metrics in finished.history] == [1, 2]
    assert finished.settings["fedprox.mu"] == 0.5
    assert f"{100 * finished.accuracy:.2f} %" in repr(finished)


def test_the_model_of_a_run_predicts_as_it_was_evaluated(finished):
    test = load("shapes", train_size=120, test_size=40).test
    logits = finished.model()(finished.normalise(test.x))
    assert (logits.argmax(1).numpy() == test.y).mean() == finished.accuracy


def test_a_notebook_shows_the_report(finished):
    shown = finished._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert shown.count('"') == 4
    assert "fedprox" in shown


def test_the_history_is_a_table(finished):
    pytest.importorskip("pandas")
    table = finished.history.to_pandas()
    assert list(table.index) == [1, 2]
    assert table.loc[2, "terms/fedprox"] == finished.history[-1].terms["fedprox"]


def test_without_pandas_that_is_said(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(raysim.InputError, match="pip install pandas"):
        finished.history.to_pandas()


def test_shared_images_are_a_dataset(tmp_path):
    hfmds = {"every": 2, "steps": 2, "per_client": 4}
    run = raysim.run(**TINY | {"model": "small-cnn"}, **QUIET, out=tmp_path / "run", method="hfmds", hfmds=hfmds)
    images = run.synthetic()
    assert len(images) == 6 * 4
    x, y = images[0]
    assert x.shape == (3, 32, 32)
    assert x.dtype == torch.float32
    assert 0 <= int(y) < 10
    assert torch.isfinite(run.model()(images[:8][0])).all()


def test_a_run_without_them_says_so(finished):
    with pytest.raises(raysim.InputError, match="no synthetic images"):
        finished.synthetic()


def test_a_run_is_opened_again(finished):
    again = raysim.open_run(finished.path)
    assert again.accuracy == finished.accuracy
    assert all(
        torch.equal(a, b) for a, b in zip(again.model().parameters(), finished.model().parameters(), strict=True)
    )
    with pytest.raises(raysim.InputError, match="not a run directory"):
        raysim.open_run(finished.path / "nothing")


def test_a_run_that_was_stopped_is_resumed(tmp_path):
    class Stop(Callback):
        def on_round(self, metrics):
            if metrics.round == 2:
                raise KeyboardInterrupt

    settings = TINY | {"rounds": 3} | QUIET
    whole = raysim.run(**settings, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        raysim.run(**settings, out=tmp_path / "run", callback=Stop())
    assert len(raysim.open_run(tmp_path / "run").history) == 1  # who may end a run hears of a round before it is kept
    resumed = raysim.resume(tmp_path / "run", **QUIET)
    assert resumed.summary["model_sha256"] == whole.summary["model_sha256"]


def test_callbacks_are_objects(tmp_path):
    class Counts(Callback):
        rounds = 0

        def on_round(self, metrics):
            self.rounds += 1

    one, other = Counts(), Counts()
    raysim.run(**TINY, **QUIET, out=tmp_path / "run", callback=[one, other])
    assert (one.rounds, other.rounds) == (2, 2)


@dataclass(frozen=True)
class Gentle(raysim.Part):
    """A part that is defined where it is used."""

    factor: float = raysim.setting(1.0, "of the cross-entropy", minimum=0)

    def ce_weight(self, client):
        return self.factor


def test_methods_are_objects(by_command, tmp_path):
    run = raysim.run(**TINY, **QUIET, out=tmp_path / "run", method=FedProx(mu=0.5))
    assert run.summary["model_sha256"] == by_command
    both = raysim.run(**TINY, **QUIET, out=tmp_path / "both", method=[Gentle(factor=0.5), "fedprox"])
    assert both.settings["method"] == "tests.test_api+fedprox"
    assert both.settings["test_api.factor"] == 0.5
    assert both.summary["model_sha256"] != by_command


def test_a_run_with_an_own_method_is_resumed_with_it(tmp_path):
    Own = dataclass(frozen=True)(type("Own", (Gentle,), {"__module__": "__main__"}))
    run = raysim.run(**TINY, **QUIET, out=tmp_path / "run", method=Own(factor=0.5))
    assert run.settings["method"] == "own"
    (run.path / "summary.json").unlink()
    with pytest.raises(raysim.InputError, match="unknown method 'own'"):
        raysim.resume(run.path, **QUIET)
    assert raysim.resume(run.path, **QUIET, method=Own).accuracy == run.accuracy


# -- many runs ---------------------------------------------------------------------------------------------------------


def test_many_methods_are_compared(by_command, tmp_path):
    found = raysim.compare(["fedavg", "fedprox"], seeds=[0], **TINY, **QUIET, fedprox={"mu": 0.5}, out=tmp_path / "all")
    assert [run.settings["method"] for run in found.runs] == ["fedavg", "fedprox"]
    assert found.runs[1].summary["model_sha256"] == by_command
    assert "fedprox" in found.table
    assert "iframe" in found._repr_html_()


def test_objects_reach_the_runs_of_a_comparison(tmp_path):
    class Net(torch.nn.Sequential):
        def __init__(self, shape, classes):
            super().__init__(torch.nn.Flatten(), torch.nn.Linear(shape[0] * shape[1] * shape[2], classes))

    Own = dataclass(frozen=True)(type("Own", (Gentle,), {"__module__": "__main__"}))
    images = load("shapes", train_size=60, test_size=20)
    data = (images.train.x, images.train.y, images.test.x, images.test.y)
    settings = {**TINY, **QUIET, "model": Net, "dataset": data, "train_size": None, "test_size": None}
    found = raysim.compare(["fedavg", Own(factor=0.5)], **settings, out=tmp_path / "all")
    alone = raysim.run(**settings, method=Own(factor=0.5), out=tmp_path / "alone")
    assert [run.settings["method"] for run in found.runs] == ["fedavg", "own"]
    assert found.runs[1].summary["model_sha256"] == alone.summary["model_sha256"]
    assert isinstance(found.runs[0].model(), Net)


def test_a_setting_is_swept(by_command, tmp_path):
    over = {"fedprox.mu": [0, 0.5]}
    found = raysim.sweep(over=over, method="fedprox", **TINY, **QUIET, out=tmp_path / "all")
    assert [run.settings["fedprox.mu"] for run in found.runs] == [0, 0.5]
    assert found.runs[1].summary["model_sha256"] == by_command


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rouns": 3}, "this call: unknown setting --rouns; did you mean '--rounds'?"),
        ({"rounds": "many"}, "--rounds must be a whole number, not 'many'"),
        ({"rounds": FedProx()}, "--rounds must be a whole number"),
        ({"fedprox": {"mu": 1}}, "--fedprox.mu belongs to fedprox, which is not in --method fedavg"),
        ({"method": object()}, "object is no method"),
        ({"method": [FedProx(), FedProx()]}, "'fedprox' is there twice"),
        ({"preset": "nothing"}, "unknown preset 'nothing'"),
        ({"model": "nothing"}, "unknown model 'nothing'"),
    ],
)
def test_errors_are_exceptions_of_one_line(settings, message, tmp_path):
    with pytest.raises(raysim.InputError, match=r"^[^\n]*$") as raised:
        raysim.run(**settings, out=tmp_path / "run", **QUIET)
    assert message in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_a_directory_without_a_run_is_not_resumed(tmp_path):
    with pytest.raises(raysim.InputError, match="not a run directory"):
        raysim.resume(tmp_path)


# -- on Ray ------------------------------------------------------------------------------------------------------------


def test_on_a_connected_ray_it_gives_the_same_hash_and_leaves_it_as_it_was(by_command, tmp_path, local_ray):
    held, job = ray.put(np.arange(3)), ray.get_runtime_context().get_job_id()
    run = raysim.run(**TINY, progress=False, actors=2, out=tmp_path / "run", method="fedprox", fedprox={"mu": 0.5})
    assert run.summary["model_sha256"] == by_command
    assert ray.get_runtime_context().get_job_id() == job
    assert ray.get(held).tolist() == [0, 1, 2]
    until = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 4 and time.monotonic() < until:  # Ray takes places back in its time
        time.sleep(0.2)
    assert ray.available_resources()["CPU"] == 4  # nothing of the run is left


def test_in_a_task_of_ray_it_gives_the_same_hash(by_command, tmp_path, local_ray):
    @ray.remote(num_cpus=1)
    def trial(mu: float) -> str:
        settings = {**TINY, "progress": False, "actors": 2, "out": tmp_path / "run"}
        return raysim.run(**settings, method="fedprox", fedprox={"mu": mu}).summary["model_sha256"]

    assert ray.get(trial.remote(0.5)) == by_command


@pytest.mark.slow
def test_in_a_trial_of_ray_tune_it_gives_the_same_hash(by_command, tmp_path, local_ray):
    tune = pytest.importorskip("ray.tune")

    def trial(config):
        settings = {**TINY, "progress": False, "actors": 1, "out": tmp_path / f"run-{config['mu']}"}
        run = raysim.run(**settings, method="fedprox", fedprox=config)
        return {"accuracy": run.accuracy, "hash": run.summary["model_sha256"]}

    space = {"mu": tune.grid_search([0.5, 0.0])}
    config = tune.RunConfig(storage_path=str(tmp_path / "tune"), verbose=0)
    results = tune.Tuner(trial, param_space=space, run_config=config).fit()
    assert {result.config["mu"]: result.metrics["hash"] for result in results}[0.5] == by_command


@pytest.mark.slow
def test_in_a_submitted_job_it_gives_the_same_hash(by_command, tmp_path):
    script = tmp_path / "job.py"
    settings = TINY | {"method": "fedprox", "fedprox": {"mu": 0.5}, "actors": 2, "out": str(tmp_path / "run")}
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport raysim\n"
        f"print('hash', raysim.run(**{settings!r}).summary['model_sha256'])\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    done = subprocess.run(
        ["cluster/one_job.sh", str(Path(sys.executable).parent), "--", "python", str(script)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"hash {by_command}" in done.stdout, done.stdout + done.stderr


def test_the_plan_is_that_of_the_cluster(local_ray):
    plan = raysim.plan(**TINY | {"actors": 3})
    assert plan.actors == 3
    assert "3 client actors" in str(plan)


def test_an_interrupt_ends_the_run_and_not_the_program(by_command, tmp_path):
    """As in the cell of a notebook: the next one runs."""
    script = tmp_path / "cells.py"
    script.write_text(
        textwrap.dedent(f"""
        import raysim
        tiny = {TINY | {"method": "fedprox", "fedprox": {"mu": 0.5}, "actors": 2}}
        try:
            raysim.run(**tiny | {{"rounds": 100000}}, out="long")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(raysim.run(**tiny, out="short", progress=False).summary["model_sha256"], flush=True)
        """)
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    process = subprocess.Popen(
        [sys.executable, script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert any("round      3/" in line for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)  # as Jupyter does: to the kernel and all it has started
        rest = process.communicate(timeout=120)[0].splitlines()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert rest[-2:] == ["interrupted", by_command]
    assert process.returncode == 0
