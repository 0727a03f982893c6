"""What own code may do: a hook that goes wrong ends the run in one line that names it, its part and the round.

The part that goes wrong is tests/parts/rogue.py.
"""

import json
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysim.cli import main
from raysim.engine.failures import RunFailure
from raysim.engine.round_metrics import ENGINE_NAMES
from raysim.engine.simulation import Simulation
from raysim.engine.written import usable_metrics
from raysim.errors import InputError, RaysimError
from raysim.methods import part_classes
from raysim.methods.base import Part, Upload
from raysim.methods.common.contract import HookError
from raysim.observe.figures import figures
from raysim.settings import flag
from tests.parts.rogue import HOOKS, METRICS, NUMBERS, SERVER, Rogue, table_of
from tests.simulate import blobs, simulate

TINY = {
    "method": "tests.parts.rogue", "clients": 4, "active": 3, "rounds": 2, "batch_size": 16, "model": "mlp",
    "client_retries": 0, "privacy": 8, "tsne": 8, "fuse": 1,
}  # fmt: skip


def run(where: str, what: str, t: int = 1, **settings):
    """A run of which one hook goes wrong in round t, in this process."""
    rogue = {"rogue.where": where, "rogue.what": what, "rogue.round": t}
    return simulate(blobs(60, 20, shape=(1, 6, 6)), **TINY | rogue | settings)


def line_of(where: str, what: str, t: int = 1, kind: type[RaysimError] = RunFailure, **settings) -> str:
    """The one line in which the run ends."""
    with pytest.raises(kind) as caught:
        run(where, what, t, **settings)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


# -- models, at the server ---------------------------------------------------------------------------------------------

HANDED_OUT = [hook for hook in SERVER if hook not in ("setup", "update")]


@pytest.mark.parametrize("where", HANDED_OUT)
@pytest.mark.parametrize("how", ["in_place", "item", "list"])
def test_models_that_are_written_elsewhere_than_in_update_are_refused(where, how):
    """In one process clients would have got them, and on Ray nobody."""
    said = line_of(where, f"models-{how}")
    assert said.startswith(f"`{where}` of rogue failed in round ")
    assert "models are changed in `setup` and `update` only" in said


@pytest.mark.parametrize("where", ["setup", "update"])
@pytest.mark.parametrize("how", ["nan", "shape", "lists", "tensor", "none", "large"])
def test_models_that_nobody_could_train_name_who_left_them_at_once(where, how):
    """In the last round, too, after which no client would have failed over them."""
    said = line_of(where, f"models-{how}", t=2)
    when = "before round 1" if where == "setup" else "in round 2"
    assert said.startswith(f"`{where}` of rogue failed {when}: it left ")


def test_models_of_another_float_type_are_taken_over(monkeypatch):
    from tests.parts.everything import Everything

    def update(self, server, uploads):
        server.weights = [weights.astype(np.float64) for weights in server.weights]

    monkeypatch.setattr(Everything, "update", update)
    monkeypatch.setattr(Everything, "setup", lambda self, server: server.state.update({self.name: {"centre": 0.0}}))
    (model,) = simulate(method="tests.parts.everything", rounds=1).models
    assert {array.dtype for array in model.values()} == {np.dtype(np.float32)}


# -- shared datasets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["shape", "dtype", "flat", "nan", "labels", "columns", "empty", "no_table"])
@pytest.mark.parametrize("where", ["setup", "update"])
def test_images_that_clients_could_not_train_on_are_refused_when_they_are_shared(where, kind):
    assert line_of(where, f"share-{kind}").startswith(f"`{where}` of rogue failed ")


@pytest.mark.parametrize("where", ["setup", "broadcast", "route"])
def test_what_a_hook_shares_reaches_the_clients(where, monkeypatch):
    """That of `setup` in round 1 already; also of a part that has no other hook at the server."""
    seen = {}

    def share(part, server, *ignored):
        if server.t == (where != "setup"):
            server.share(part.name, table_of(server.data.shape, "right"))
        return {"setup": None, "broadcast": {}, "route": None}[where]

    for hook in {*HOOKS} - {where, "begin"}:
        monkeypatch.setattr(Rogue, hook, getattr(Part, hook))
    monkeypatch.setattr(Rogue, where, share)
    monkeypatch.setattr(Rogue, "begin", lambda part, client: seen.update({client.t: set(client.shared)}))
    result = run("", "", rounds=3)
    assert seen == {t: {"rogue"} if t > (where != "setup") else set() for t in (1, 2, 3)}
    assert result.shared["rogue"].num_rows == 10
    assert result.history[0].reported["shared_bytes"] == result.shared["rogue"].nbytes
    assert result.history[0].bytes_down > result.history[1].bytes_down  # every client downloads it once


# -- weights -----------------------------------------------------------------------------------------------------------


def weighed(monkeypatch, weight, **settings):
    """The model of a run whose clients have this weight."""
    monkeypatch.setattr(Rogue, "weight", lambda part, client: weight(client))
    return run("", "", **settings).models[0]


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_weights_of_another_scale_than_samples_give_the_same_mean(scale, monkeypatch):
    expected = weighed(monkeypatch, lambda client: client.samples)
    found = weighed(monkeypatch, lambda client: scale * client.samples)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        (1e9, r"^client \d failed in round 1 .*: it returned 1e\+09, 1.*e\+07 times .* \(`weight` of rogue\)$"),
        (
            2e8,
            "^`weight` of rogue failed in round 1: .* add up to .e.07 times what was planned, too much to be exact; ",
        ),
        (1e-7, "^`weight` of rogue failed in round 1: .* add up to .*e-09 times what was planned, too little"),
        (0, "^`weight` of rogue failed in round 1: the weights it returned add up to nothing; "),
    ],
)
def test_weights_that_leave_no_exact_mean_are_refused_in_one_line(weight, said, monkeypatch):
    """Of 1e9 a sum of whole numbers of 64 bits wrapped around, and the loss was 14, 341 and 72."""
    with pytest.raises(RunFailure, match=said) as caught:
        weighed(monkeypatch, lambda client: weight, weighting="samples")
    assert len(str(caught.value).splitlines()) == 1


def test_two_parts_that_weigh_clients_are_refused():
    with pytest.raises(InputError, match="rogue and everything both decide 'weight'; use one of them"):
        part_classes("tests.parts.rogue+tests.parts.everything")


@pytest.mark.parametrize("settings", [{}, {"weighting": "uniform"}, {"labelled": 5, "unlabelled_batch": 4}])
def test_a_sum_with_another_share_than_was_planned_is_found_out(settings, monkeypatch):
    simulate(rounds=1, **settings)
    broadcast = Simulation.broadcast

    def with_more(self, *arguments):
        made = broadcast(self, *arguments)
        return replace(made, total_weight=made.total_weight + 0.01)

    monkeypatch.setattr(Simulation, "broadcast", with_more)
    with pytest.raises(RunFailure, match=r"^round 1 has added models with 0\.\d+ of the weight, not [01][.\d]*$"):
        simulate(rounds=1, **settings)


# -- metrics -----------------------------------------------------------------------------------------------------------

REPORTING = [
    hook for hook in SERVER if hook not in ("sample_features", "shared_means", "certificate", "model_certificate")
]


@pytest.mark.parametrize("kind", METRICS)
@pytest.mark.parametrize("where", ["setup", "receive", "update"])
def test_what_is_no_number_or_has_a_name_of_the_engines_is_refused_when_it_is_set(where, kind):
    said = line_of(where, f"metric-{kind}", t=2)
    assert said.startswith(
        f"`{where}` of rogue failed {'before round 1' if where == 'setup' else 'in round 2'}: it set "
    )
    name = "accuracy" if kind == "engine" else "rogue.odd"
    assert f"`server.metrics['{name}']`" in said


@pytest.mark.parametrize("name", sorted(ENGINE_NAMES))
def test_every_name_of_the_engines_is_its_own(name):
    with pytest.raises(HookError, match="which the engine itself reports; take another name"):
        usable_metrics({name: 1.0})


def test_metrics_that_are_no_dict_or_have_no_name_are_refused():
    for metrics in ("high", [1.0], {3: 1.0}, {"": 1.0}):
        with pytest.raises(HookError):
            usable_metrics(metrics)


@pytest.mark.parametrize("where", REPORTING)
def test_every_server_hook_of_a_round_can_report(where):
    first, second = run(where, "number-float32", t=1).history
    assert first.reported["rogue.float32"] == 0.5
    assert "rogue.float32" not in second.reported


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_of_any_library_are_numbers_of_python(kind):
    """What is not finite is null in JSON."""
    (found,) = run("update", f"number-{kind}", rounds=1).history
    value = found.reported[f"rogue.{kind}"]
    assert type(value) in (int, float, type(None))
    expected = float(NUMBERS[kind])
    assert value == (expected if math.isfinite(expected) else None)
    assert json.loads(json.dumps(found.to_line(), allow_nan=False))[f"rogue.{kind}"] == value


def test_a_loss_term_that_is_not_finite_is_null(monkeypatch):
    """It has no gradient, so the model is sound."""
    monkeypatch.setattr(Rogue, "loss", lambda part, client, step: step.ce.detach() * math.nan)
    (found,) = run("", "", rounds=1).history
    assert found.terms["rogue"] is None
    assert math.isfinite(found.train_loss)


def test_readers_cope_with_a_metric_that_was_not_finite(tmp_path, capsys):
    rogue = ["--rogue.where", "update", "--rogue.what", "number-nan", "--rogue.round", "1"]
    words = [
        word
        for key, value in (TINY | {"train_size": 60, "test_size": 20, "tsne": 0}).items()
        for word in (flag(key), str(value))
    ]
    out = str(tmp_path / "run")
    assert main(["run", "--in-process", *words, *rogue, "--out", out]) == 0
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert [line.get("rogue.nan", "none") for line in lines] == [None, "none"]
    assert "rogue.nan" not in figures(lines[0])
    for command in (["show", out], ["report", out], ["resume", out]):
        assert main(command) == 0
    assert "Traceback" not in capsys.readouterr().err


# -- exits and names ---------------------------------------------------------------------------------------------------


def ends(arguments: list[str], capsys) -> tuple[int, str]:
    """The exit code of a command and the last line of what it says."""
    code = main(arguments)
    return code, capsys.readouterr().err.strip().splitlines()[-1]


def command(out, where: str, what: str, **settings) -> list[str]:
    """The command line of a run of which one hook goes wrong."""
    values = TINY | {"train_size": 60, "test_size": 20, "tsne": 0, "out": out, "rogue.where": where, "rogue.what": what}
    return ["run", "--in-process", *(w for key, value in (values | settings).items() for w in (flag(key), str(value)))]


@pytest.mark.parametrize(("what", "said"), [("exits-0", "SystemExit: 0"), ("interrupts", "KeyboardInterrupt")])
@pytest.mark.parametrize("where", ["check", "idle", "setup", "group_size", "begin", "update", "predict"])
def test_own_code_does_not_choose_the_exit_code(where, what, said, tmp_path, capsys):
    if (where, what) == ("check", "interrupts"):
        pytest.skip("nothing has begun")
    code, line = ends(command(tmp_path / "run", where, what), capsys)
    assert code == (2 if where == "check" else 1)
    assert line.startswith("raysim: ")
    assert f"`{where}` of rogue" in line
    assert said in line


def test_who_ends_the_process_elsewhere_does_not_choose_the_exit_code_either(monkeypatch, capsys):
    monkeypatch.setattr("raysim.cli.commands.methods", lambda words: sys.exit(0))
    assert ends(["methods"], capsys) == (1, "raysim: own code ended the process (SystemExit: 0)")


@pytest.mark.parametrize("name", ["personal", "model", "training", "ce", "feature_kl"])
def test_a_method_with_a_name_of_the_engines_is_refused(name, tmp_path, monkeypatch):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / f"{name}.py").write_text("from raysim import Part\n\nclass Own(Part):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=f"under the name '{name}'; rename the file"):
        part_classes(f"lab.{name}")


@pytest.mark.parametrize(
    "words", [["resume"], ["report"], ["show"], ["features"], ["compare", "--methods", "fedavg", "--out"]]
)
def test_a_path_that_is_too_long_is_one_line(words, tmp_path, capsys):
    assert main([*words, str(tmp_path / ("x" * 300))]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "is too long" in line


@pytest.mark.parametrize("field", ["sum", "each", "rows", "metadata"])
@pytest.mark.parametrize("kind", ["sparse", "bfloat16", "set", "object"])
def test_what_cannot_be_sent_is_refused_with_the_hook_that_uploads_it(field, kind, monkeypatch):
    """Found by fuzzing: a sparse tensor ended in a traceback of the conversion. Sums are taken of bfloat16, too."""
    made = {
        "sparse": torch.eye(3).to_sparse(), "bfloat16": torch.ones(3, dtype=torch.bfloat16), "set": {1},
        "object": object(),
    }  # fmt: skip
    monkeypatch.setattr(Rogue, "end", lambda part, client: Upload(**{field: {"odd": made[kind]}}))
    monkeypatch.setattr(Rogue, "update", Part.update)
    if (field, kind) == ("sum", "bfloat16"):
        run("", "", rounds=1)
        return
    said = line_of("", "")
    assert re.match(
        r"client \d failed in round 1 \(tests.parts.rogue\): it returned an object of the class Upload, ", said
    )
    assert said.endswith("(`end` of rogue)")
