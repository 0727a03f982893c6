"""Privacy figures of whole runs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from raysim.cli import main
from raysim.engine.in_process import InProcess
from raysim.errors import InputError
from raysim.methods.fedbn import FedBN
from raysim.methods.fedprox import FedProx
from raysim.methods.hfmds import HFMDS
from raysim.privacy.accounting import gaussian_epsilon
from raysim.privacy.figures import Figure
from tests.simulate import SYNTHESIS, blobs, configure, simulate

TINY = ["--train-size", "300", "--test-size", "200", "--clients", "4", "--rounds", "2", "--model", "small-cnn"]
ATTACK = ["auc", "tpr_at_1%_fpr", "tpr_at_0.1%_fpr"]
IMAGES = ["nearest_training", "nearest_held_out", "nearer_to_training", "psnr_nearest"]


def run(tmp_path, *words) -> tuple[list[dict], dict]:
    assert main(["run", *TINY, "--in-process", "--out", str(tmp_path / "run"), *words]) == 0
    return tuple(json.loads((tmp_path / "run" / name).read_text()) for name in ("privacy.json", "summary.json"))


def names(part: str, kinds: list[str]) -> list[str]:
    return [f"{part}.{kind}" for kind in kinds]


def test_fedavg_shares_its_model_alone(tmp_path, capsys):
    rows, summary = run(tmp_path)
    assert [row["name"] for row in rows] == names("model", [*ATTACK, "epsilon"])
    assert [row.keys() for row in rows] == [{"name", "value", "interval", "note"}] * 4
    low, high = rows[0]["interval"]
    assert 0.3 < low < rows[0]["value"] < high < 0.8
    assert rows[2]["note"].startswith("too few samples")
    assert rows[3]["note"].startswith("no certificate")
    assert summary["privacy"] == {row["name"]: row["value"] for row in rows}
    assert "privacy: attack on model AUC" in capsys.readouterr().out


def test_hfmds_shares_images(tmp_path):
    rows, summary = run(tmp_path, "--method", "hfmds", "--hfmds.first", "2", "--hfmds.steps", "3")
    expected = [*names("model", ATTACK), *names("hfmds", [*ATTACK, *IMAGES]), "model.epsilon", "hfmds.epsilon", "psnr"]
    assert [row["name"] for row in rows] == expected
    assert rows[-1]["value"] == summary["psnr"]
    assert all(row["value"] is not None or row["note"] for row in rows)


def test_none_are_made_where_none_are_asked_for(tmp_path):
    assert main(["run", *TINY, "--in-process", "--out", str(tmp_path / "run"), "--privacy", "0"]) == 0
    assert not (tmp_path / "run" / "privacy.json").exists()
    assert "privacy" not in json.loads((tmp_path / "run" / "summary.json").read_text())


def test_they_do_not_depend_on_who_computes_and_change_nothing():
    alone = simulate(**SYNTHESIS)
    assert simulate(**SYNTHESIS, runner=InProcess(3)).privacy == alone.privacy
    without = simulate(**SYNTHESIS, privacy=0)
    assert without.model_sha256 == alone.model_sha256
    assert without.server_state_sha256 == alone.server_state_sha256
    kinds = [*names("model", ATTACK), *names("hfmds", [*ATTACK, *IMAGES]), *names("fedpa", ATTACK)]
    certified = ["model.epsilon", "hfmds.epsilon", "fedpa.epsilon"]
    assert [f.name for f in alone.privacy] == [*kinds, *certified, "psnr"]


def test_a_memorising_synthesis_is_caught_in_a_run(monkeypatch):
    """HFMDS that shares the real images it should imitate."""
    monkeypatch.setattr(HFMDS, "synthesise", lambda self, module, real, *_: (real.clone(), {}))
    settings = {"method": "hfmds", "hfmds.layer": "features", "hfmds.first": 2, "rounds": 2}
    found = {figure.name: figure for figure in simulate(**settings).privacy}
    assert found["hfmds.auc"].value > 0.9
    assert found["hfmds.nearer_to_training"].interval[0] > 0.75  # not of all sources there are as many held out


def test_a_model_that_learnt_its_data_by_heart_is_caught():
    """Labels that mean nothing can only be remembered."""
    settings = {"clients": 2, "active": 2, "rounds": 5, "local_epochs": 10, "partition": "iid", "eval_every": 0}
    dataset = blobs(train=60)
    split = replace(dataset.train, y=np.random.default_rng(0).permutation(dataset.train.y))
    (area, *_) = simulate(replace(dataset, train=split), **settings).privacy
    assert area.interval[0] > 0.9


@pytest.mark.parametrize("method", ["naivemix", "fedmix", "fedhkd"])
def test_what_others_share_is_attacked(method):
    found = {figure.name: figure for figure in simulate(method=method).privacy}
    low, high = found[f"{method}.auc"].interval
    assert low < found[f"{method}.auc"].value < high
    assert (f"{method}.nearest_training" in found) == (method != "fedhkd")
    if method == "naivemix":  # a mean of two images is nearer to them than to others
        assert low > 0.7


def test_a_part_says_what_it_certifies(monkeypatch):
    """Only parts that share something are asked."""
    epsilon = gaussian_epsilon(1, 2, 1e-5)

    def certificate(self, server):
        assert server.t == server.config.rounds
        return [Figure("epsilon", epsilon), Figure("epsilon_by_the_paper", 0.5, note="why it is less")]

    monkeypatch.setattr(HFMDS, "certificate", certificate)
    monkeypatch.setattr(FedProx, "certificate", certificate)
    figures = simulate(method="hfmds+fedprox", **{"hfmds.layer": "features", "hfmds.steps": 1}).privacy
    assert figures[-3:-1] == [
        Figure("hfmds.epsilon", epsilon), Figure("hfmds.epsilon_by_the_paper", 0.5, note="why it is less")
    ]  # fmt: skip
    assert not [figure for figure in figures if figure.name.startswith("fedprox")]


def test_a_model_that_stays_at_the_clients_is_not_attacked_nor_used_to_attack_prototypes():
    settings = {"method": "fedpa_reference+fedbn", "model": "fedpa-cnn", "evaluation": "clients"}
    figures = simulate(**settings, **{"fedpa_reference.gen_steps": 2}).privacy
    attacked = {figure.name: figure for figure in figures if not figure.name.endswith(".epsilon")}
    assert attacked.keys() == {"model.auc", "fedpa_reference.auc"}
    for figure in attacked.values():
        assert figure.value is None
        assert "fedbn keeps what it predicts with" in figure.note


class TestTheModelsCertificate:
    """Where no part certifies the model, nothing is said about methods that nobody looked at."""

    def of(self, method: str) -> Figure:
        (found,) = [
            each for each in simulate(method=method, rounds=1, privacy=5).privacy if each.name == "model.epsilon"
        ]
        return found

    def test_without_one_the_note_says_who_was_asked(self):
        assert self.of("fedavg").note == "no certificate: averaging neither clips nor adds noise"
        own = self.of("fedprox+tests.parts.everything").note
        assert own == f"{self.of('fedavg').note}, and nothing is certified by fedprox, everything"

    def test_a_part_may_give_one(self, monkeypatch):
        figures = [Figure("epsilon", 2.0, note="δ 1e-05, clipped to 1"), Figure("paper_epsilon", 1.5)]
        monkeypatch.setattr(FedProx, "model_certificate", lambda part, server: figures)
        assert self.of("fedprox") == Figure("model.epsilon", 2.0, note="δ 1e-05, clipped to 1")
        monkeypatch.setattr(FedBN, "model_certificate", lambda part, server: figures)
        with pytest.raises(InputError, match="fedprox and fedbn both decide 'model_certificate'"):
            configure(method="fedprox+fedbn", evaluation="clients")
