"""raysim and the plain loop take turns; each is what it says it is."""

import sys

import numpy as np
import pytest
import torch

from benchmarks import compare
from benchmarks.report import publish
from benchmarks.turns import Side, here
from benchmarks.workloads import WORKLOADS, client_batch, pixels, plain_model, save, train_plainly

TINY = WORKLOADS["w3"].resized(clients=6, active=4)


@pytest.mark.slow  # starts every side
def test_all_sides_stand_in_the_table_with_their_ratio(tmp_path, capsys):
    out = tmp_path / "docs" / "benchmarks.md"
    compare.main(["--workload", "w3", "--clients", "6", "--active", "4", "--rounds", "2", "--out", str(out)])
    rows = [line for line in out.read_text().splitlines() if line.startswith("| W3")]
    assert [row.split("|")[2].strip() for row in rows] == ["plain loop", "raysim"]
    assert all(row.count("|") == len(compare.HEAD) + 1 for row in rows)


@pytest.mark.slow
def test_a_round_of_the_plain_loop_is_the_mean_of_clients_that_all_started_from_the_global_model():
    cohort = np.random.default_rng(1).choice(TINY.clients, TINY.active, replace=False).tolist()
    images, expected = pixels(TINY), 0
    for client in cohort:
        model = plain_model(TINY.model, TINY.shape)
        train_plainly(model, *client_batch(*images, TINY.rows(client)), np.random.default_rng((1, client)))
        expected += torch.nn.utils.parameters_to_vector(model.parameters()).detach().double() / len(cohort)
    with Side("plain loop", here("bare", TINY.to_json())) as side:
        assert side.round()["norm"] == pytest.approx(expected.norm().item(), rel=1e-5)
        assert side.peak > 0


def test_a_side_that_fails_says_why():
    with pytest.raises(RuntimeError, match="no such luck"):
        Side("unlucky", [sys.executable, "-c", "raise SystemExit('no such luck')"])


def test_another_number_of_fused_clients_is_measured_beside_the_default():
    assert compare.variants(10, {"lr": "1"}) == {
        "raysim --lr 1": {"lr": "1"},
        "raysim --fuse 10 --lr 1": {"lr": "1", "fuse": 10},
    }
    assert list(compare.variants(None, {})) == ["raysim"]


def test_unequal_clients_own_all_images():
    workload = WORKLOADS["w4"]
    sizes = np.diff(workload.offsets)
    assert sizes.min() >= 2
    assert sizes.max() > 5 * workload.samples
    assert workload.offsets[-1] == workload.clients * workload.samples
    assert workload.rows(1) == slice(sizes[0], sizes[:2].sum())


def test_saved_images_are_those_the_other_sides_have(tmp_path):
    save(TINY, tmp_path)
    for mine, saved in zip(pixels(TINY), pixels(TINY, str(tmp_path)), strict=True):
        assert (mine == saved).all()


def test_a_section_is_replaced_and_the_others_stay(tmp_path):
    path = tmp_path / "benchmarks.md"
    for name, text in (("a", "first"), ("b", "second"), ("a", r"third \1")):
        publish(name, text, path)
    assert "first" not in path.read_text()
    assert path.read_text().index(r"third \1") < path.read_text().index("second")
