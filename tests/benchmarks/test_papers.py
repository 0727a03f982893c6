"""The papers' tables at their own size: what is kept of runs, and the table it gives."""

import json

from benchmarks.papers import lines_of, main, markdown, merged, ordering, read
from raysim.config import resolve
from raysim.experiments import grid
from tests.observe.by_hand import config_json

FEDPA, HFMDS, OURS = "fedpa-table2-mnist-reference", "hfmds-table2-cifar10", "hfmds-table2-cifar10-own"


def finish(folder, seed, accuracy, row="fedpa, dirichlet 0.1", sweep=FEDPA, **others):
    """A run directory as a row of a sweep leaves it, or one with other settings."""
    (run,) = [run for run in grid.from_words("sweep", [sweep, "--seeds", str(seed)]).runs if run.row == row]
    settings = run.config.settings() | {"fuse": 2} | others  # which a run chooses, and records
    folder.mkdir(parents=True)
    config = config_json(resolve([("test", settings)]).settings(), git="abc")
    summary = {"final_accuracy": accuracy + 0.01, "late_accuracy": accuracy, "best_five_accuracy": accuracy}
    summary |= {"rounds": settings["rounds"], "seconds": 61.2, "model_sha256": "f" * 64}
    (folder / "config.json").write_text(config)
    (folder / "summary.json").write_text(json.dumps(summary))


def test_a_line_for_each_run_by_the_papers_measure(tmp_path):
    finish(tmp_path / "a", 3, 0.9479)
    finish(tmp_path / "b", 4, 0.95, "fedgen, dirichlet 0.1")
    first, second = lines_of(tmp_path)
    assert [first[key] for key in ("paper", "method", "seed", "accuracy", "final_accuracy")] == [
        "FedPA table II", "fedpa", "3", "94.79", "95.79",
    ]  # fmt: skip
    assert (second["method"], second["git"], second["rounds"]) == ("fedgen", "abc", "200")


def test_a_run_with_other_settings_is_no_cell_of_a_table(tmp_path):
    finish(tmp_path / "small", 5, 0.99, train_size=100, fraction=None)
    finish(tmp_path / "short", 5, 0.99, rounds=20)
    finish(tmp_path / "faster", 5, 0.99, lr=0.1)
    finish(tmp_path / "other", 5, 0.99, beta=0.7)
    finish(tmp_path / "ablation", 0, 0.99, "server_steps=0", "sdafl-fig5")
    finish(tmp_path / "formulas", 5, 0.99, sweep="fedpa-table2-mnist")
    assert lines_of(tmp_path) == []


def test_a_run_of_one_paper_is_no_run_of_another(tmp_path):
    """HFMDS-FL and SDA-FL both have FedAvg on CIFAR-10 with two classes per client."""
    finish(tmp_path / "one", 0, 0.5, "fedavg, classes 2", HFMDS)
    finish(tmp_path / "other", 0, 0.5, "fedavg, classes 2", "sdafl-table1-cifar10")
    assert [line["paper"] for line in lines_of(tmp_path)] == ["HFMDS-FL table 2", "SDA-FL table 1"]


def test_our_synthesis_is_a_row_of_its_own_and_the_bound_is_none(tmp_path):
    """HFMDS by the paper's letter and by our default are different methods; sharing real images is no method."""
    finish(tmp_path / "ours", 0, 0.56, "hfmds, classes 2", OURS)
    finish(tmp_path / "letter", 0, 0.54, "fmds, classes 2", HFMDS)
    finish(tmp_path / "bound", 0, 0.6, "real images, classes 2", OURS)
    lines = merged([], lines_of(tmp_path))
    assert [(line["method"], line["accuracy"]) for line in lines] == [
        ("fmds", "54.00"), ("hfmds (our synthesis)", "56.00"),
    ]  # fmt: skip
    rows = [row.split(" | ")[2:6] for row in markdown(lines).splitlines()[2:]]
    assert rows == [
        ["fmds", "52.69 ± 0.58", "54.00", "**+1.31**"],
        ["hfmds (our synthesis)", "53.74 ± 0.26", "56.00", "**+2.26**"],
    ]


def test_the_papers_synthesis_and_ours_are_not_ranked_with_each_other(tmp_path):
    finish(tmp_path / "fedavg", 0, 0.50, "fedavg, classes 2", OURS)
    finish(tmp_path / "fedprox", 0, 0.49, "fedprox, classes 2", HFMDS)
    finish(tmp_path / "ours", 0, 0.56, "hfmds, classes 2", OURS)
    finish(tmp_path / "ours without", 0, 0.57, "fmds, classes 2", OURS)
    finish(tmp_path / "letter", 0, 0.52, "hfmds, classes 2", HFMDS)
    rows = [row.split(" | ")[2:5] for row in ordering(merged([], lines_of(tmp_path))).splitlines()[2:]]
    # The paper: FedAvg 50.44, FedProx 46.36, FMDS 52.69, HFMDS 53.74. A pair that both lists have is there once.
    assert rows == [
        ["hfmds (our synthesis) over fmds (our synthesis)", "+1.05", "-1.00"],
        ["fmds (our synthesis) over fedavg", "+2.25", "+7.00"],
        ["fedavg over fedprox", "+4.08", "+1.00"],
        ["hfmds over fedavg", "+3.30", "+2.00"],
    ]


def test_narrow_gans_are_a_row_of_their_own(tmp_path):
    finish(tmp_path / "wide", 0, 0.96, "sdafl, classes 1", "sdafl-table1-mnist")
    finish(tmp_path / "narrow", 0, 0.97, "sdafl, narrow GANs, classes 1", "sdafl-table1-mnist")
    rows = [row.split(" | ")[2:6] for row in markdown(merged([], lines_of(tmp_path))).splitlines()[2:]]
    assert rows == [["sdafl", "98.19", "97.00", "-1.19"], ["sdafl (narrow GANs)", "98.19", "98.00", "-0.19"]]


def test_of_a_grid_that_the_paper_tunes_the_best_is_the_row(tmp_path):
    for at, (mu, accuracy) in enumerate({"0.001": 0.61, "0.01": 0.9, "0.1": 0.62, "1": 0.63}.items()):
        finish(tmp_path / str(at), 0, accuracy, f"fedprox mu={mu}, classes 1", "sdafl-table1-mnist")
    finish(tmp_path / "fedavg", 0, 0.8, "fedavg, classes 1", "sdafl-table1-mnist")
    lines = merged([], lines_of(tmp_path))
    assert len(lines) == 5
    rows = [row.split(" | ")[2:6] for row in markdown(lines).splitlines()[2:]]
    assert rows == [["fedavg", "83.44", "81.00", "-2.44"], ["fedprox (best of 4)", "84.17", "91.00", "+6.83"]]
    (order,) = [row.split(" | ")[2:5] for row in ordering(lines).splitlines()[2:]]
    assert order == ["fedprox (best of 4) over fedavg", "+0.73", "+10.00"]


def test_a_later_run_of_the_same_cell_and_seed_wins(tmp_path):
    finish(tmp_path / "a", 3, 0.9)
    finish(tmp_path / "later", 3, 0.8)
    earlier, later = (lines_of(tmp_path / name) for name in ("a", "later"))
    assert [line["accuracy"] for line in merged(earlier, later)] == ["80.00"]


def test_the_table_has_means_and_marks_what_is_beyond_a_standard_deviation(tmp_path):
    for seed, five_best in ((3, 0.94), (4, 0.96)):
        finish(tmp_path / f"fedpa-{seed}", seed, five_best)
    finish(tmp_path / "fedavg", 3, 0.93, "fedavg, dirichlet 0.1")
    rows = markdown(merged([], lines_of(tmp_path))).splitlines()[2:]
    # √((1² + 1²) / 1) = 1.41; the papers' 88.87 ± 2.19 and 94.79 ± 0.18.
    assert rows == [
        "| FedPA table II | mnist, dirichlet 0.1 | fedavg | 88.87 ± 2.19 | 93.00 | **+4.13** | 3 |",
        "| FedPA table II | mnist, dirichlet 0.1 | fedpa | 94.79 ± 0.18 | 95.00 ± 1.41 | **+0.21** | 3, 4 |",
    ]


def test_the_order_is_judged_by_paired_differences(tmp_path):
    accuracies = {
        "fedpa": (0.95, 0.96, 0.955), "fedgen": (0.94, 0.94, 0.94), "fedhkd": (0.93, 0.95, 0.94),
        "fedavg": (0.94, 0.96, 0.95), "fedprox": (0.9, 0.91), "fedensemble": (0.9,),
    }  # fmt: skip
    for method, values in accuracies.items():
        for seed, value in enumerate(values):
            finish(tmp_path / f"{method}-{seed}", seed, value, f"{method}, dirichlet 0.1")
    rows = [row.split(" | ")[2:] for row in ordering(merged([], lines_of(tmp_path))).splitlines()[2:]]
    assert rows == [
        ["fedpa over fedgen", "+4.30", "+1.50 ± 0.50", "+1.00, +2.00, +1.50", "yes |"],
        ["fedgen over fedhkd", "+0.34", "+0.00 ± 1.00", "+1.00, -1.00, +0.00", "undecided |"],
        ["fedhkd over fedavg", "+1.28", "-1.00 ± 0.00", "-1.00, -1.00, -1.00", "no |"],
    ]


def test_the_command_adds_to_what_is_kept(tmp_path, monkeypatch, capsys):
    results, measured = tmp_path / "results.md", tmp_path / "measured.csv"
    sections = "<!-- papers -->\nold\n<!-- end of papers -->\n\n<!-- order -->\n<!-- end of order -->"
    results.write_text(f"# Results\n\n{sections}\n\nmore\n")
    for seed in (3, 4):
        finish(tmp_path / f"runs-{seed}" / "a", seed, 0.95)
        words = ["papers", str(tmp_path / f"runs-{seed}"), "--measured", str(measured), "--results", str(results)]
        monkeypatch.setattr("sys.argv", words)
        main()
    assert [line["seed"] for line in read(measured)] == ["3", "4"]
    text = results.read_text()
    assert "| 95.00 ± 0.00 | **+0.21** | 3, 4 |" in text
    assert "old" not in text
    assert text.endswith("more\n")
    assert "FedPA table II" in capsys.readouterr().out
