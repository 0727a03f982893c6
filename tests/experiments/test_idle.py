"""Parts that never act in a run say so before it starts, in its events and in its report."""

import json

import numpy as np
import pytest

from raysim.cli import main
from tests.config.words import from_words

SIZES = np.array([40, 60, 50, 10])
FEW = ["--clients", "4", "--train-size", "80", "--test-size", "40", "--model", "small-cnn", "--in-process"]


def idle(words: str, sizes=SIZES) -> list[str]:
    config = from_words("--clients", "4", *words.split())
    return [reason for part in config.parts if (reason := part.idle(config, sizes))]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--method hfmds --rounds 19 --hfmds.first every", "in round 20, and there are 19; lower --hfmds.every"),
        ("--method hfmds --rounds 3 --hfmds.first 4", "in round 4, and there are 3; lower --hfmds.first"),
        ("--method moon --rounds 1", "no client is active twice"),
        ("--method scaffold --rounds 1", "from the second round"),
        ("--method scaffold --rounds 5 --clients 1", "drifts from nobody"),
        ("--method fedpa --rounds 1", "of the round before"),
        ("--method fedgen --rounds 1", "of the round before"),
        ("--method fedhkd --rounds 1", "from the round before"),
        ("--method feddpms --model feddpms-vae --rounds 2", "no round is left"),
        ("--method fedensemble --active 1", "no ensemble"),
        ("--method fedensemble --fedensemble.mode models --fedensemble.models 1", "no ensemble"),
        ("--method fedprox --batch-size 60", "nobody does a second"),
        ("--method fedprox --local-steps 1", "nobody does a second"),
        ("--method fedprox --labelled 5 --batch-size 10", "nobody does a second"),
    ],
)
def test_it_is_noticed(words, reason):
    (said,) = idle(words)
    assert reason in said


@pytest.mark.parametrize(
    "words",
    [
        "--method hfmds --rounds 1", "--method hfmds --rounds 20 --hfmds.first every",
        "--method scaffold --rounds 2", "--method moon --rounds 2",
        "--method fedprox --batch-size 59", "--method feddpms --model feddpms-vae --rounds 5",
        "--method fedpa --rounds 2",
        "--method fedensemble", "--method fedprox --local-epochs 2 --batch-size 60", "--method naivemix --rounds 1",
    ],
)  # fmt: skip
def test_what_acts_says_nothing(words):
    assert idle(words) == []


def test_moon_looks_at_who_is_active():
    """Of 1,000 clients two are active; in 40 rounds of this seed somebody comes twice or not, as the draws say."""
    for rounds in (2, 40):
        config = from_words("--method", "moon", "--clients", "1000", "--active", "2", "--rounds", str(rounds))
        drawn = [client for t in range(1, rounds + 1) for client in config.cohort(t)]
        assert bool(config.parts[0].idle(config, np.full(1000, 5))) == (len({*drawn}) == len(drawn))


def test_a_run_warns_at_first_in_its_events_and_in_its_report(tmp_path, capsys):
    words = ["--method", "hfmds", "--hfmds.first", "20", "--rounds", "2", "--out", str(tmp_path / "run")]
    assert main(["run", *FEW, *words]) == 0
    told, warning = capsys.readouterr().out, "hfmds never acts: its first synthesis is in round 20, and there are 2"
    assert told.index(f"warning: {warning}") < told.index("round 1/2")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["text"] for event in events if event["event"] == "warning"] == [f"{warning}; lower --hfmds.first"]
    head = (tmp_path / "run" / "report.html").read_text().partition("<nav>")[0]
    assert f'<p class="warning">{warning}; lower --hfmds.first</p>' in head


@pytest.mark.processes
def test_many_runs_warn_before_the_first(tmp_path, capfd):
    words = ["--methods", "fedavg", "hfmds", "--seeds", "0", "1", "--rounds", "1", "--at-once", "1", "--privacy", "0"]
    words += ["--hfmds.first", "20"]
    assert main(["compare", *words, *FEW, "--out", str(tmp_path / "many")]) == 0
    told = capfd.readouterr().out
    assert told.count("warning: hfmds: hfmds never acts") == 1
    assert told.index("never acts") < told.index("[1/4]")
