"""The table of many runs against a computation by hand, and what it says where figures are missing."""

import csv
import json

import pytest

from raysim.experiments import grid
from raysim.experiments.table import COLUMNS, PAPER_AFTER, write_table
from tests.observe.by_hand import config_json


def wanted(tmp_path, words="--methods fedavg hfmds --seeds 0 1"):
    settings = "--dataset cifar10 --partition classes --classes-per-client 2"
    return grid.from_words("compare", [*words.split(), *settings.split(), "--out", str(tmp_path)])


def finish(run, accuracy, **more):
    run.folder.mkdir(parents=True)
    summary = {"method": run.row, "rounds": 2, "model_sha256": "0" * 64}
    summary |= {"final_accuracy": accuracy, "best_accuracy": accuracy + 0.1, "seconds": 60.4, "psnr": None}
    summary["late_accuracy"] = accuracy - 0.01
    summary |= {"bytes_up": 2_500_000, "bytes_down": 3_000_000} | more
    (run.folder / "summary.json").write_text(json.dumps(summary))
    (run.folder / "config.json").write_text(config_json(run.config.settings()))


def test_means_and_deviations_beside_the_papers_figures(tmp_path):
    asked = wanted(tmp_path)
    figures = {"model.auc": 0.6, "hfmds.auc": 0.75, "hfmds.tpr_at_1%_fpr": None, "hfmds.epsilon": None}
    figures["hfmds.psnr_nearest"] = 14.5
    for run, accuracy in zip(asked.runs, (0.3, 0.4, 0.5, 0.6), strict=True):
        measures = {"hfmds.fd": 12.5, "hfmds.kd": 0.5, "hfmds.coverage": 0.25, "training.fd": 1.0}
        more = {"psnr": 16.0, "privacy": figures, "measures": measures} if run.row == "hfmds" else {}
        finish(run, accuracy, gflops_per_client_round={"training": 1.5, "hfmds": 2.0}, **more)
    heads, _, average, hfmds, *_ = write_table(asked, {}).splitlines()
    assert heads == (
        "| run | seeds | final % | last quarter % | best % | paper % | difference | seconds | MB up | MB down | "
        "GFLOPs | paper's GFLOPs | PSNR dB | paper's PSNR | PSNR to nearest | feature FD | coverage | "
        "attack on shared data: AUC | attack on model: AUC |"
    )
    # HFMDS-FL is compared by the last quarter, SDA-FL by the last round. The standard deviation of 30 and 40 by hand:
    # √((5² + 5²) / 1) = 7.07.
    assert average == (
        "| fedavg | 0 1 | 35.00 ± 7.07 | 34.00 ± 7.07 | 45.00 ± 7.07 | "
        "50.44 ± 2.70 (HFMDS-FL table 2); 61.28 (SDA-FL table 1) | -16.44; -26.28 | "
        "60 ± 0 | 2.5 ± 0.0 | 3.0 ± 0.0 | 3.50 ± 0.00 | – | – | – | – | – | – | – | – |"
    )
    assert (
        "| 3.50 ± 0.00 | 69.33 | 16.00 ± 0.00 | 16.60 | 14.50 ± 0.00 | 12.50 ± 0.00 | 0.250 ± 0.000 | 0.750 ± 0.000 | "
        "0.600 ± 0.000 |"
    ) in hfmds
    assert "by the features of each run's own model" in (tmp_path / "table.md").read_text()
    with open(tmp_path / "table.csv") as file:
        first, second = csv.DictReader(file)
    assert float(first["final_accuracy_std"]) == pytest.approx(50**0.5)
    assert (first["psnr_mean"], float(second["psnr_mean"])) == ("", 16.0)
    assert (first["feature_kd_mean"], float(second["feature_kd_mean"])) == ("", 0.5)
    headings = [column.heading for column in COLUMNS] + [heading for heading, _ in PAPER_AFTER.values()]
    assert len({*headings}) == len(headings)


def test_where_a_paper_tunes_the_best_has_a_row_and_the_papers_figure(tmp_path):
    asked = grid.from_words("sweep", ["sdafl-table1-mnist", "--out", str(tmp_path)])
    for run in asked.runs:
        if run.row.endswith("classes 1") and run.row.startswith(("fedavg", "fedprox")):
            finish(run, 0.8 + 0.1 * ("mu=0.01," in run.row))
    lines = {line.split(" | ")[0][2:]: line for line in write_table(asked, {}).splitlines() if line.startswith("| ")}
    best = lines["fedprox, classes 1 (best of 4)"]
    assert "| 90.00 |" in best
    assert "84.17 (SDA-FL table 1) | +5.83" in best
    assert "SDA-FL" not in lines["fedprox mu=0.01, classes 1"]
    assert "83.44 (SDA-FL table 1) | -3.44" in lines["fedavg, classes 1"]
    assert list(lines).index("fedprox, classes 1 (best of 4)") == list(lines).index("fedprox mu=1, classes 1") + 1


def test_an_ablation_has_the_figures_printed_for_it_and_none_of_a_table(tmp_path):
    asked = grid.from_words("sweep", ["sdafl-fig5", "--out", str(tmp_path)])
    for run in asked.runs:
        finish(run, 0.9)
    lines = {line.split(" | ")[0][2:]: line for line in write_table(asked, {}).splitlines() if line.startswith("| ")}
    assert "86.87 (this ablation) | +3.13" in lines["server_steps=50"]
    assert "86.87" not in lines["server_steps=0"]


def test_the_distances_in_the_map_of_generated_features_have_columns(tmp_path):
    asked = grid.from_words("sweep", ["fedpa-table5", "--out", str(tmp_path)])
    finish(asked.runs[0], 0.5, generator_map={"generated (fedpa)": {"intra": 27.94, "inter": 53.06}})
    finish(asked.runs[1], 0.5)
    heads, _, first, second, *_ = write_table(asked, {}).splitlines()
    assert heads.endswith("| map of generated features: within a class | between classes |")
    assert first.endswith("| 27.9 | 53.1 |")
    assert second.endswith("| – | – |")


def test_the_best_of_a_grid_is_said_to_be_of_those_that_ran(tmp_path):
    asked = grid.from_words("sweep", ["sdafl-table1-mnist", "--out", str(tmp_path)])
    for run in asked.runs:
        if run.row in ("fedprox mu=0.01, classes 1", "fedprox mu=1, classes 1"):
            finish(run, 0.8)
    assert "fedprox, classes 1 (best of 2)" in write_table(asked, {})


def test_a_paper_that_reports_its_five_best_rounds_is_compared_with_ours(tmp_path):
    asked = grid.from_words("sweep", ["fedpa-table2-mnist-reference", "--out", str(tmp_path), "--seeds", "3"])
    finish(asked.runs[0], 0.80, best_five_accuracy=0.8987)
    text = write_table(asked, {})
    assert "| 89.87 | 88.87 ± 2.19 (FedPA table II) | +1.00 |" in text


def test_what_is_missing_and_what_failed(tmp_path):
    asked = wanted(tmp_path)
    finish(asked.runs[0], 0.3)
    text = write_table(asked, {asked.runs[3]: "no room (log.txt)"})
    assert "| fedavg | 0 | 30.00 | 29.00 | 40.00 |" in text  # one seed has no deviation
    assert "| hfmds | – | – | – |" in text
    assert "Failed: hfmds, seed 1: no room (log.txt)" in text
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert [row["missing"] for row in rows] == [1, 2]


def test_every_figure_of_a_summary_has_its_column(tmp_path):
    """Of two runs, the second's without what a run may lack: each figure by hand, and blanks where there is none."""
    asked = wanted(tmp_path, "--methods hfmds --seeds 4 5")
    full = {
        "rounds": 9, "stopped": "patience", "best_five_accuracy": 0.52, "psnr": 12.0,
        "gflops_per_client_round": {"training": 1.0, "hfmds": 0.25},
        "privacy": {"a.auc": 0.5, "b.auc": 0.7, "model.auc": 0.9, "a.epsilon": None, "b.epsilon": 3.0,
                    "model.tpr_at_1%_fpr": 0.3, "b.tpr_at_1%_fpr": 0.2, "b.psnr_nearest": 11.0},
        "measures": {"a.fd": None, "b.fd": 8.0, "b.kd": 0.1, "b.precision": 0.6, "b.recall": 0.4, "b.density": 1.1,
                     "b.coverage": 0.8, "training.fd": 2.0},
        "generator_map": {"made": {"intra": 20.0, "inter": 50.0}},
    }  # fmt: skip
    finish(asked.runs[0], 0.5, **full)
    finish(asked.runs[1], 0.7, seconds=80.4)
    write_table(asked, {})
    with open(tmp_path / "table.csv") as file:
        (row,) = csv.DictReader(file)
    assert [row[key] for key in ("row", "dataset", "partition", "method", "seeds")] == [
        "hfmds", "cifar10", "classes 2", "hfmds", "4 5",
    ]  # fmt: skip
    keys = [column.key for column in COLUMNS]
    found = {key: [float(row[f"{key}_{what}"] or "nan") for what in ("mean", "std")] for key in keys}
    both = {
        "final_accuracy": [60, 200**0.5], "late_accuracy": [59, 200**0.5], "best_accuracy": [70, 200**0.5],
        "seconds": [70.4, 200**0.5], "megabytes_up": [2.5, 0], "megabytes_down": [3, 0],
    }  # fmt: skip
    once = {
        "ended_after": 9, "best_five_accuracy": 52, "gflops": 1.25, "psnr": 12, "psnr_nearest": 11, "feature_fd": 8,
        "feature_kd": 0.1, "precision": 0.6, "recall": 0.4, "density": 1.1, "coverage": 0.8, "shared_auc": 0.7,
        "shared_tpr": 0.2, "model_auc": 0.9, "model_tpr": 0.3, "epsilon": 3, "generator_intra": 20,
        "generator_inter": 50,
    }  # fmt: skip
    by_hand = both | {key: [value, float("nan")] for key, value in once.items()}
    assert found == {key: pytest.approx(values, nan_ok=True) for key, values in by_hand.items()}


def test_without_a_papers_figure_there_is_no_column_for_one(tmp_path):
    asked = grid.from_words("compare", ["--methods", "fedavg", "--seeds", "0", "--out", str(tmp_path)])
    finish(asked.runs[0], 0.5)
    text = write_table(asked, {})
    assert text == (
        "| run | seeds | final % | last quarter % | best % | seconds | MB up | MB down |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"
        "| fedavg | 0 | 50.00 | 49.00 | 60.00 | 60 | 2.5 | 3.0 |\n\n"
        "Mean ± sample standard deviation over the seeds. Seconds are of runs that shared the machine.\n"
    )
    assert (tmp_path / "table.md").read_text() == text
    with open(tmp_path / "table.csv") as file:
        (row,) = csv.DictReader(file)
    assert (row["paper"], row["difference"]) == ("", "")
    assert json.loads((tmp_path / "table.json").read_text())["failed"] == {}
