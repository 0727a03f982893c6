"""The papers' figures: cells here and there as they are printed, and how a run finds its own."""

import hashlib
import json
import subprocess
import sys

import pytest

from raysim.config import resolve
from raysim.experiments import grid
from raysim.papers import files, find, method_name, partition_name, sweeps


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"dataset": "cifar100", "method": "hfmds", "beta": 0.01}, [("HFMDS-FL table 2", 29.48, 0.79, 12.36)]),
        ({"dataset": "cifar10", "method": "fedgen", "beta": 0.05}, [("HFMDS-FL table 2", 45.66, 1.59, None)]),
        ({"dataset": "emnist", "method": "fedhkd", "beta": 1}, [("FedPA table II", 79.27, 0.36, None)]),
        ({"dataset": "celeba", "method": "fedensemble", "partition": "iid"}, [("FedPA table II", 87.64, 0.69, None)]),
        ({"dataset": "cifar100", "method": "moon", "beta": 0.5}, [("FedDPMS table 1", 37.15, None, None)]),
        (
            {"dataset": "svhn", "method": "scaffold", "partition": "classes", "classes_per_client": 2},
            [("SDA-FL table 1", 73.34, None, None)],
        ),
        ({"dataset": "mnist", "method": "fedprox+hfmds", "beta": 0.1}, []),
        ({"dataset": "mnist", "method": "fedavg", "beta": 0.2}, []),
        (
            {"dataset": "mnist", "method": "fedpa_reference+fedbn", "beta": 0.1, "evaluation": "clients"},
            [("FedPA table II", 94.79, 0.18, None)],
        ),
    ],
)
def test_a_run_finds_its_own(settings, expected):
    found = find(resolve([("test", settings)]).settings())
    assert [(f.paper, f.accuracy, f.std, f.psnr) for f in found] == expected


@pytest.mark.parametrize(
    ("method", "accuracy"), [("fedgen_reference", 90.49), ("fedhkd_reference", 90.15), ("fedensemble", 91.09)]
)
def test_methods_of_fedpas_code_have_the_papers_names(method, accuracy):
    settings = {"dataset": "mnist", "method": f"{method}+fedbn", "beta": 0.1, "evaluation": "clients"}
    (found,) = find(resolve([("test", settings)]).settings())
    assert (found.accuracy, found.measure) == (accuracy, "best_five_accuracy")


def test_fmds_is_not_hfmds():
    settings = {"dataset": "cifar10", "partition": "classes", "classes_per_client": 2}
    both = [find(resolve([("test", settings | {"method": name})]).settings())[0].psnr for name in ("fmds", "hfmds")]
    assert both == [16.69, 16.60]


@pytest.mark.parametrize("file", [name for name in files.names(of_tables=True) if "paper" in files.read(name)])
def test_every_cell_of_a_table_is_found_by_a_run_of_its_sweeps(file):
    """A method or a partition that no run is called would leave its figures unseen."""
    table = files.read(file)
    cells = {
        (dataset, partition, method)
        for dataset, lines in table["figures"].items()
        for method, line in lines.items()
        if method != "columns"
        for partition, text in zip(lines["columns"], line, strict=True)
        if text != "–"
    }
    runs = [run for name in table["sweeps"] for run in grid.from_words("sweep", [name]).runs]
    settings = [run.config.settings() for run in runs if table["paper"] in {figure.paper for figure in run.paper}]
    assert cells == {(each["dataset"], partition_name(each), method_name(each)) for each in settings}


def test_an_ablation_has_the_figure_of_table_1_where_its_value_is_the_usual_one():
    assert sweeps()["sdafl-fig7"].paper == {"gan_rounds=30": 83.76, "gan_rounds=200": 86.87}


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("import raysim.cli.commands; from raysim.config import resolve; resolve([])", "nothing"),
        ("from raysim.config import load_layers; load_layers({'preset': 'fedpa-mnist'}, {})", "papers"),
    ],
)
def test_what_is_not_asked_for_is_not_read(command, read):
    """A run starts without the papers' files; a preset needs no tables."""
    code = f"{command}\nfrom raysim.papers import files; print(files.read.cache_info().currsize)"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(output) == (0 if read == "nothing" else len(files.names(of_tables=False)))


def printed(content) -> object:
    """What a file has of a paper's own: its figures, and whose they are."""
    sweeps_own = {name: each["figures"] for name, each in content.get("sweeps", {}).items() if "figures" in each}
    return [content.get(key) for key in ("paper", "measure", "figures", "psnr", "gflops", "usual")] + [sweeps_own]


# Read against the papers; a digit of one cell that changes changes its table's line here.
AS_PRINTED = {
    "feddpms-table1": "9ac236230a42",
    "feddpms-table2": "9483a08d36d9",
    "fedpa-table2": "16f03d0e739b",
    "fedpa-table3": "5c369e0b97c4",
    "fedpa-table4": "68449960be47",
    "hfmds-table2": "802ba78862d3",
    "hfmds-table4": "3beab3eeb208",
    "sdafl-table1": "500f664f5379",
    "sdafl-table6": "f20937124d08",
    "sdafl-fig5": "397da6fe591a",
}


def test_every_table_with_figures_was_read():
    nothing = printed({})
    assert {name for name in files.names(of_tables=True) if printed(files.read(name)) != nothing} == set(AS_PRINTED)


@pytest.mark.parametrize("file", AS_PRINTED)
def test_every_digit_of_a_table_is_as_it_was_read_in_the_paper(file):
    text = json.dumps(printed(files.read(file)), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == AS_PRINTED[file], "compare it with the paper, then this"
