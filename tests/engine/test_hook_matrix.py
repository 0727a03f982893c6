"""Every hook × every way to go wrong, in one process and on Ray: one line that names hook, part and round.

The part is tests/parts/rogue.py; what one of its hooks does wrong comes from there.
"""

import json
import re

import pytest

from raysim.cli import main
from raysim.engine.signals import interruptible
from raysim.errors import RaysimError
from raysim.settings import flag
from tests.engine.test_own_code import TINY
from tests.methods.test_all import Standing, StandingRunner
from tests.parts.rogue import CLIENT, FUSED, HOOKS, METRICS, SERVER, STATES, Rogue
from tests.simulate import blobs, configure, simulate

WITH_STATE = (*SERVER, *CLIENT, *FUSED)
SHAPED = (
    "route", "aggregate", "sample_features", "shared_means", "reply", "batch", "extra", "ce_weight", "loss", "pull",
    "weight", "fused_loss", "group_size", "predict", "end",
)  # fmt: skip
NUMBERS = ("aggregate", "ce_weight", "loss", "fused_loss", "weight", "end")
IN_ROUNDS = [hook for hook in HOOKS if hook not in ("check", "idle")]  # which are asked before there is a runner

CASES = [
    *((hook, what) for hook in IN_ROUNDS for what in ("raises", "exits-3", "interrupts", "type")),
    *((hook, "shape") for hook in SHAPED),
    *((hook, "nan") for hook in NUMBERS),
    *((hook, f"models-{how}") for hook in ("setup", "update") for how in ("shape", "nan")),
    *((hook, f"state-{kind}") for hook in WITH_STATE for kind in STATES),
    *((hook, f"metric-{kind}") for hook in SERVER for kind in METRICS),
]
DATA = blobs(60, 20, shape=(1, 6, 6))


def line_of(hook: str, what: str, runner=None) -> str:
    """What is said of a run in which the hook goes wrong in round 2; it ends with what a command makes exit code 1."""
    settings = settings_of(hook, what)
    with interruptible(), pytest.raises(RaysimError) as caught:  # as in a command
        simulate(DATA, runner and runner(configure(**settings)), **settings)
    assert caught.value.exit_code in (1, 2)
    return str(caught.value)


def settings_of(hook: str, what: str) -> dict[str, object]:
    exchanged = hook in ("exchange", "reply", "receive", "group_size")
    rogue = {"rogue.where": hook, "rogue.what": what, "rogue.round": 2}
    return (
        TINY
        | rogue
        | {"fuse": 3 if hook in FUSED else 1, "tsne": 8 if hook == "sample_features" else 0}
        | ({"rounds": 2} if not exchanged else {})
    )


def check(hook: str, what: str, said: str) -> None:
    """The line names hook, part and round, and for a client the client."""
    assert len(said.splitlines()) == 1
    assert f"`{hook}` of rogue" in said
    if hook in (*CLIENT, *FUSED):
        assert re.match(r"(client \d|one of the clients \d, \d.*) failed in round 2 \(tests.parts.rogue\): ", said)
    elif hook in ("group_size", "predict"):  # which are not told the round
        assert re.match(rf"`{hook}` of rogue failed in round 1: ", said)
    else:
        when = "before round 1" if hook == "setup" else "in round 2"
        assert said.startswith(f"`{hook}` of rogue failed {when}: ")
    kind = what.partition("-")[0]
    expected = {
        "raises": "ValueError: this hook is rogue", "exits": "SystemExit: 3", "interrupts": "KeyboardInterrupt",
        "type": "it returned ", "shape": "", "nan": "", "models": "it left model 0 of `server.weights` as ",
        "state": "rogue: state['deep']['odd'] is ", "metric": "it set `server.metrics[",
    }  # fmt: skip
    assert expected[kind] in said


@pytest.mark.parametrize(("hook", "what"), CASES)
def test_in_one_process(hook, what):
    check(hook, what, line_of(hook, what))


@pytest.mark.parametrize("what", ["raises", "exits-3", "type"])
@pytest.mark.parametrize("hook", ["check", "idle"])
def test_before_anything_starts(hook, what, tmp_path, capsys):
    code = main(command(tmp_path / "run", hook, what))
    (*_, said) = capsys.readouterr().err.strip().splitlines()
    assert code == (2 if hook == "check" else 1)
    assert f"`{hook}` of rogue failed" in said


def command(out, hook: str, what: str) -> list[str]:
    values = settings_of(hook, what) | {"train_size": 60, "test_size": 20, "out": out, "privacy": 0, "tsne": 0}
    return ["run", "--in-process", *(word for key, value in values.items() for word in (flag(key), str(value)))]


@pytest.mark.parametrize("hook", ["exchange", "broadcast", "route", "aggregate", "update", "begin", "loss", "end"])
def test_such_a_run_goes_on_where_it_was_once_the_code_is_right(hook, tmp_path, capsys, monkeypatch):
    """What is wrong here is patched away; a setting would be another run."""
    assert main(command(tmp_path / "run", hook, "raises")) == 1
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    monkeypatch.setattr(Rogue, "go_wrong", lambda part, hook, found, *more, **named: found)
    assert main(["resume", str(tmp_path / "run")]) == 0
    assert "going on after round 1" in capsys.readouterr().out
    assert main(command(tmp_path / "undisturbed", hook, "raises")) == 0
    ends = [json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "undisturbed")]
    assert ends[0]["model_sha256"] == ends[1]["model_sha256"]


# -- on Ray ------------------------------------------------------------------------------------------------------------

QUICK = [
    ("setup", "raises"), ("exchange", "type"), ("route", "shape"), ("receive", "state-set"), ("aggregate", "nan"),
    ("update", "exits-3"), ("update", "models-nan"), ("update", "metric-text"), ("certificate", "raises"),
    ("reply", "exits-3"), ("begin", "interrupts"), ("weight", "nan"), ("end", "state-object"), ("loss", "type"),
    ("fused_loss", "raises"), ("predict", "exits-3"), ("predict", "shape"), ("group_size", "raises"),
]  # fmt: skip


@pytest.fixture(scope="module")
def standing(local_ray):
    return Standing(2)


def check_on_ray(hook: str, what: str, standing: Standing) -> None:
    """The same line; whose client comes first depends on the actors."""
    said = line_of(hook, what, lambda config: StandingRunner(standing.using(2), config))
    check(hook, what, said)
    here = line_of(hook, what)
    assert re.sub(r"client \d", "client", said) == re.sub(r"client \d", "client", here)


@pytest.mark.parametrize(("hook", "what"), QUICK)
def test_on_ray_it_is_the_same_line(hook, what, standing):
    check_on_ray(hook, what, standing)


@pytest.mark.slow
@pytest.mark.parametrize("hook", IN_ROUNDS)
def test_on_ray_it_is_the_same_line_whatever_goes_wrong(hook, standing):
    for where, what in CASES:
        if where == hook and (where, what) not in QUICK:
            check_on_ray(where, what, standing)
