"""Which runs `compare` and `sweep` make of their words, and what they refuse."""

import dataclasses
import subprocess
import sys
import time

import pytest
import torch

from raysim import api, methods
from raysim.config import from_command_line, load_layers, resolve
from raysim.engine.ray_runner.plan import Node
from raysim.engine.stopping import length_settings
from raysim.errors import InputError
from raysim.experiments import grid, scheduler
from raysim.experiments.scheduler import flags, locked, merged, units
from raysim.methods.fedprox import FedProx
from raysim.methods.hfmds import HFMDS
from raysim.methods.moon import Moon
from raysim.papers import presets, sweeps
from raysim.rng import stream


def compare(words: str) -> grid.Grid:
    return grid.from_words("compare", words.split())


def test_compare_has_every_combination():
    words = "--methods fedavg,fedprox hfmds --seeds 0 1 --partitions classes:2 dirichlet:0.1 --rounds 7 --hfmds.mu 0.3"
    found = compare(words + " --out here")
    assert len(found.runs) == 3 * 2 * 2
    assert [run.title for run in found.runs[:3]] == [
        "fedavg, classes 2, seed 0", "fedavg, classes 2, seed 1", "fedavg, dirichlet 0.1, seed 0",
    ]  # fmt: skip
    last = found.runs[-1].config
    assert (last.method, last.beta, last.rounds, last.seed, last.parts[0].mu) == ("hfmds", 0.1, 7, 1, 0.3)
    assert len({run.folder for run in found.runs}) == 12
    assert all(run.folder.parent == found.folder and run.config.resume for run in found.runs)


def test_a_preset_under_the_words_and_an_alias_by_its_own_name():
    found = compare("--preset hfmds-cifar10 --methods fedavg fmds --rounds 3")
    average, fmds = (run.config for run in found.runs)
    assert (average.clients, average.rounds, average.parts) == (20, 3, ())
    assert (fmds.method, fmds.parts[0].mu, fmds.parts[0].alpha) == ("hfmds", 0.0, 0.1)
    assert [run.row for run in found.runs] == ["fedavg", "fmds"]


def test_the_same_words_find_the_same_folder_and_others_another():
    words = "--methods fedavg --rounds 3"
    assert compare(words).folder == compare(words + " --actors 4").folder
    assert compare(words).folder != compare(words + " --lr 0.3").folder


def test_sweep_over_any_settings():
    words = "--method hfmds --over hfmds.mu=-0.5,1 batch-size=4,8 --seeds 0,1,2"
    found = grid.from_words("sweep", words.split())
    assert len(found.runs) == 2 * 2 * 3
    assert found.runs[-1].row == "hfmds.mu=1, batch-size=8"
    assert (found.runs[0].config.parts[0].mu, found.runs[0].config.batch_size) == (-0.5, 4)


def rows(found: grid.Grid) -> list[str]:
    return [run.row for run in found.runs]


def test_methods_of_one_name_are_told_apart_by_the_settings_in_which_they_differ():
    lists = {"methods": [FedProx(mu=0.0), FedProx(mu=5.0), "fedavg"], "partitions": ["iid", "classes:2"]}
    found = grid.compare(lists, {})
    assert rows(found)[::2] == ["fedprox mu=0.0, iid", "fedprox mu=5.0, iid", "fedavg, iid"]
    assert [run.config.settings().get("fedprox.mu") for run in found.runs] == [0.0, 0.0, 5.0, 5.0, None, None]
    assert len({run.folder for run in found.runs}) == 6


def test_a_class_has_the_settings_of_the_preset_and_parts_of_two_keep_their_names():
    found = grid.compare({"methods": [FedProx, FedProx(mu=5.0)]}, {"preset": "hfmds-cifar10", "rounds": 1})
    assert rows(found) == [f"fedprox mu={found.runs[0].config.parts[0].mu}", "fedprox mu=5.0"]
    both = [[FedProx(mu=mu), Moon(mu=1.0, temperature=mu)] for mu in (0.1, 0.2)]
    assert rows(grid.compare({"methods": both}, {})) == [
        "fedprox+moon fedprox.mu=0.1 moon.temperature=0.1", "fedprox+moon fedprox.mu=0.2 moon.temperature=0.2",
    ]  # fmt: skip
    assert rows(grid.compare({"methods": [FedProx(mu=5.0), "fedavg"]}, {})) == ["fedprox", "fedavg"]


def swept(**over) -> grid.Grid:
    """What `raysim.sweep(over=…)` plans."""
    planned = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "_many", lambda found, progress: planned.append(found))
        api.sweep(over={key.replace("__", "."): values for key, values in over.items()})
    return planned[0]


def test_python_sweeps_over_values_and_objects():
    assert rows(swept(lr=[0.1, 0.01], local_epochs=[1])) == [
        "lr=0.1, local_epochs=1", "lr=0.01, local_epochs=1",
    ]  # fmt: skip
    found = swept(method=["fedavg", FedProx(mu=0.0), FedProx(mu=5.0)])
    assert rows(found) == ["method=fedavg", "method=fedprox mu=0.0", "method=fedprox mu=5.0"]
    assert [part.mu for run in found.runs for part in run.config.parts] == [0.0, 5.0]
    assert [run.config.active for run in swept(clients=[8], active=[None, 2]).runs] == [8, 2]
    with pytest.raises(InputError, match="--lr has no value"):
        swept(lr=[])


def test_a_run_directory_has_a_name_of_its_own_that_is_not_too_long():
    found = grid.sweep({"over": [f"data=a/b,a-b,{'/'.join(['long'] * 50)}"]}, {})
    names = [run.folder.name for run in found.runs]
    assert names[0] == "data=a-b-seed-0"
    assert names[1].startswith("data=a-b-seed-0-")
    assert max(map(len, names)) < 200
    assert len(set(names)) == 3


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ([FedProx(mu=5.0), FedProx(mu=5.0)], "compare: 'fedprox, seed 0' is there twice; leave one out"),
        ([FedProx(mu=0), FedProx(mu=5), FedProx(mu=5)], "'fedprox mu=5.0, seed 0' is there twice"),
        (["fmds", HFMDS(mu=0.0)], "'fmds, seed 0' and 'hfmds, seed 0' have the same settings; leave one out"),
    ],
)
def test_equal_ones_are_refused(methods, message):
    with pytest.raises(InputError, match=message) as caught:
        grid.compare({"methods": methods}, {})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("compare", "--methods fedavg fedprox fedavg", "compare: 'fedavg, seed 0' is there twice; leave one out"),
        ("compare", "--methods fmds hfmds --hfmds.mu 0", "'fmds, seed 0' and 'hfmds, seed 0' have the same settings"),
        ("compare", "--methods fedavg --partitions iid iid", "'fedavg, iid, seed 0' is there twice"),
        (
            "compare",
            "--methods fedavg --partitions dirichlet:0.1 dirichlet:0.10",
            r"'fedavg, dirichlet 0.1, seed 0' and 'fedavg, dirichlet 0.10, seed 0' have the same settings",
        ),
        ("sweep", "--over lr=0.1,0.1", "'lr=0.1, seed 0' is there twice"),
        ("sweep", "--over lr=0.1,1e-1", "'lr=0.1, seed 0' and 'lr=1e-1, seed 0' have the same settings"),
        ("sweep", "--over lr=0.1 lr=0.2", "--lr is there twice after --over; join its values by commas"),
        ("compare", "--seeds 0 1", "say which with --methods"),
        ("compare", "--methods fedavg fedprx", r"unknown method 'fedprx'; did you mean 'fedprox'\?"),
        ("compare", "--methods fedavg --seeds 0 0", "'fedavg, seed 0' is there twice"),
        ("compare", "--methods fedavg --partitions clases:2", "'clases:2' is none of iid"),
        ("compare", "--methods fedavg --partitions classes", "'classes' is none of iid, classes:2"),
        ("compare", "--methods fedavg --seeds zero", "--seed must be a whole number, not 'zero'"),
        ("compare", "--methods fedavg --seeds 0 --seed 1", "give the seeds once"),
        ("compare", "--methods fedavg --partitions iid --partition iid", "--partition is what varies"),
        ("compare", "--methods fedavg --hfmds.mu 1", "--hfmds.mu belongs to hfmds, which is not in --method fedavg"),
        ("compare", "--methods fedavg --beeta 1", "unknown setting --beeta; did you mean '--beta'"),
        ("compare", "--methods fedavg --at-once 0", "--at-once must be a whole number above 0"),
        ("compare", "--methods fedavg --overwrite", "give another --out"),
        ("sweep", "", "give a name"),
        ("sweep", "hfmds-table4-cifar1", "unknown sweep 'hfmds-table4-cifar1'; did you mean 'hfmds-table4-cifar10'"),
        (
            "sweep",
            "hfmds-table5",
            r"unknown sweep 'hfmds-table5'; there are hfmds-table2-cifar10, hfmds-table2-cifar10-own",
        ),
        ("sweep", "nothing", r"unknown sweep 'nothing'; see `raysim sweeps`"),
        ("sweep", "hfmds-fig6 --preset hfmds-cifar100", "has a preset of its own"),
        ("sweep", "--over lr", "'lr' is not written key=value,value"),
        ("sweep", "--over hfmds.mu=1,2", "--hfmds.mu belongs to hfmds, which is not in --method fedavg"),
    ],
)
def test_what_is_wrong_is_said_on_one_line(command, words, message):
    with pytest.raises(InputError, match=message) as caught:
        grid.from_words(command, words.split())
    assert "\n" not in str(caught.value)


def test_flags_give_the_same_configuration_again():
    words = "--preset fedpa-celeba --fedpa.pairs all --active 3 --local-steps 5 --download --data=a/b --seed 9"
    config = resolve(load_layers(from_command_line(words.split()), {}))
    assert resolve(load_layers(from_command_line(flags(config)), {})) == config
    plain = dataclasses.replace(config, out="x y", resume=True)
    assert resolve(load_layers(from_command_line(flags(plain)), {})) == plain


def test_shares_are_whole_gpus_or_an_actors_cpus():
    head, a, b = Node("head", 0.0, 0, 10), Node("a", 8.0, 2, 100, "T4"), Node("b", 4.0, 2, 100)
    assert units([head, a, b], 1) == [Node("a", 4.0, 1, 50, "T4")] * 2 + [Node("b", 2.0, 1, 50)] * 2
    assert merged(units([a], 1)) == [a]
    cpus = [head, Node("c", 5.0, 0, 100), Node("d", 1.0, 0, 30)]
    assert units(cpus, 2) == [Node("c", 2.5, 0, 50)] * 2 + [Node("d", 1.0, 0, 30)]
    assert merged(units([a, b], 1)) == [a, b]


def test_a_folder_is_worked_in_by_one_command_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "LOCK_SECONDS", 0.2)
    with locked(tmp_path), pytest.raises(InputError, match="in use by another command"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_folder_is_waited_for_while_the_runs_of_a_killed_command_die(tmp_path, monkeypatch):
    holding = locked(tmp_path)
    holding.__enter__()
    # The lock is let go of when somebody has found it taken.
    monkeypatch.setattr(time, "sleep", lambda seconds: holding.__exit__(None, None, None))
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("name", sweeps())
def test_every_sweep_has_rows_that_differ_and_the_papers_figures_belong_to_some(name):
    wanted = {m for axis in sweeps()[name].axes for point in axis.values() for m in point.get("method", "").split("+")}
    if (preset := sweeps()[name].base["preset"]) not in presets() or not wanted <= {"", *methods.names()}:
        pytest.skip(f"no preset {preset}, or one of {wanted} is missing")
    runs = grid.from_words("sweep", [name]).runs
    identities = [str(run.config.identity() | length_settings(run.config)) for run in runs]
    assert len(set(identities)) == len(runs) > 1
    assert (sweeps()[name].paper or {}).keys() <= {run.row for run in runs}


@pytest.mark.parametrize("dataset", ["mnist", "fashion", "emnist", "celeba"])
def test_fedpas_tables_compare_with_methods_set_as_the_papers_were(dataset):
    """FedProx λ 1; FedGen λ_ge 10·0.98^t, fidelity 1, weight decay; FedHKD with MSE and noise."""
    runs = {run.row.partition(",")[0]: run.config for run in grid.from_words("sweep", [f"fedpa-table2-{dataset}"]).runs}
    assert list(runs) == ["fedavg", "fedprox", "fedensemble", "fedgen", "fedhkd", "fedpa"]
    assert runs["fedprox"].settings()["fedprox.mu"] == 1
    (fedgen,) = runs["fedgen"].parts
    assert [fedgen.at("lambda_ge", t) for t in (1, 3)] == pytest.approx([10, 10 * 0.98**2])
    assert [fedgen.at("gamma_fid", t) for t in (1, 200)] == [1, 1]
    assert (fedgen.lambda_po, fedgen.gamma_ad, fedgen.pairs, fedgen.gen_weight_decay) == (0, 0, "all", 1e-2)
    assert (fedgen.draw(stream(0, "test"), torch.ones(5), 100)[0] >= 0).all()  # uniform noise
    (fedhkd,) = runs["fedhkd"].parts
    assert (type(fedhkd).__name__, fedhkd.noise) == ("FedHKDReference", 0.02)
    (fedpa,) = runs["fedpa"].parts
    assert type(fedpa).__name__ == "FedPA"
    for part in (fedgen, fedpa):
        assert part.gen_lr == (1e-4 if dataset == "emnist" else 3e-4)
        assert part.noise == (30 if dataset == "celeba" else 32)


def test_fedpas_table_of_participation_has_the_same_methods():
    table2, table3 = (
        {run.row.partition(",")[0]: run.config.parts for run in grid.from_words("sweep", [f"fedpa-{name}"]).runs}
        for name in ("table2-emnist", "table3")
    )
    assert table3 == {method: table2[method] for method in ("fedavg", "fedgen", "fedhkd", "fedpa")}


@pytest.mark.parametrize("dataset", ["mnist", "fashion", "emnist"])
def test_fedpas_tables_by_its_code_have_the_methods_of_its_code(dataset):
    expected = {
        "fedavg": {"method": "fedbn", "weight_decay": 0},
        "fedprox": {"method": "fedprox+fedbn", "fedprox.mu": 1, "weight_decay": 1e-3},
        "fedensemble": {"method": "fedensemble+fedbn", "weight_decay": 0, "fedensemble.vote": "logits"},
        "fedgen": {
            "method": "fedpa_reference+fedbn", "weight_decay": 0, "fedpa_reference.lambda_ge": 10,
            "fedpa_reference.lambda_po": 0, "fedpa_reference.gamma_ad": 0, "fedpa_reference.gamma_fid": 1,
            "fedpa_reference.gamma_fid_floor": 1, "fedpa_reference.pairs": "all",
        },
        "fedhkd": {"method": "fedhkd_reference+fedbn", "weight_decay": 0, "fedhkd_reference.noise": 0.02},
        "fedpa": {
            "method": "fedpa_reference+fedbn", "weight_decay": 0, "fedpa_reference.lambda_ge": 25,
            "fedpa_reference.lambda_po": 5, "fedpa_reference.gamma_ad": 0.15, "fedpa_reference.gamma_fid": 25,
            "fedpa_reference.gamma_fid_floor": 1e-4, "fedpa_reference.pairs": "different",
        },
    }  # fmt: skip
    shared = {"local_steps": 20, "drop_last": True, "optimizer": "sgd", "lr": 0.01, "fedbn.keep": "statistics"}
    runs = grid.from_words("sweep", [f"fedpa-table2-{dataset}-reference"]).runs
    rows = {run.row.partition(",")[0]: run.config.settings() for run in runs}
    assert list(rows) == list(expected)
    for method, found in rows.items():
        wanted = shared | expected[method]
        assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize("name", ["fedpa-table5", "fedpa-table5-reference"])
def test_fedpas_map_is_of_150_generated_features_of_every_letter(name):
    columns = {f"dirichlet {beta}" for beta in (0.1, 0.4, 0.7, 1)}
    found = {run.row: run.config for run in grid.from_words("sweep", [name]).runs}
    assert found.keys() == {f"round {t}, {column}" for t in (0, 2, 3, 10) for column in columns}
    assert {(config.dataset, config.tsne, config.active) for config in found.values()} == {("emnist", 26 * 150, 10)}
    assert {row.partition(",")[0]: config.rounds for row, config in found.items()} == {
        "round 0": 1, "round 2": 2, "round 3": 3, "round 10": 10,
    }  # fmt: skip


def test_reading_a_command_does_not_import_ray():
    """The command line sets Ray's environment first, and Ray reads it when it is imported."""
    code = "import sys, raysim.experiments.grid, raysim.observe.progress; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
