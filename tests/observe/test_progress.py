"""The lines of progress, and the bar where there is a terminal."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from raysim.engine.round_metrics import RoundMetrics
from raysim.observe.progress import Reporter, duration, round_line

METRICS = RoundMetrics(
    round=7, accuracy=0.4312, loss=1.5, train_loss=1.25, terms={"fedprox": 0.001}, clients=10, seconds=2.0
)


def test_durations():
    assert [duration(s) for s in (0.4, 59, 61, 3599, 3660, 7500)] == ["0s", "59s", "1m01s", "59m59s", "1h01m", "2h05m"]


def test_a_round_on_one_line():
    assert round_line(METRICS, 50, 86.0) == (
        "round  7/50  accuracy  43.12 %  loss 1.5000  train loss 1.2500  fedprox 0.001  clients 10  2.00 s  1m26s left"
    )
    quiet = round_line(replace(METRICS, accuracy=None, loss=None, failures=2), 50, 1)
    assert "accuracy" not in quiet
    assert quiet.endswith("2 failures")


def test_a_notice_is_printed_and_other_events_are_not():
    text = io.StringIO()
    reporter = Reporter(Console(file=text))
    reporter.on_event("notice", {"text": "the matching loss is inert", "round": 3})
    reporter.on_event("actor_lost", {"actor": 1})
    assert text.getvalue() == "note: the matching loss is inert\n"


def test_a_checkpoint_that_is_refused_is_a_warning():
    text = io.StringIO()
    Reporter(Console(file=text, width=200)).on_event(
        "checkpoint_refused", {"text": "checkpoint round-00003.json: gone"}
    )
    assert text.getvalue() == "warning: checkpoint round-00003.json: gone\n"


def test_the_time_left_goes_by_the_rounds_after_the_first():
    text = io.StringIO()
    reporter = Reporter(Console(file=text))
    reporter.on_start({"rounds": 12}, Path("a-run"))
    for at, seconds in enumerate((3600.0, 2.0, 4.0), 1):
        reporter.on_round(replace(METRICS, round=at, seconds=seconds))
    assert [line.split("  ")[-1] for line in text.getvalue().splitlines()] == ["11h00m left", "20s left", "27s left"]


def test_a_pass_of_an_exchange_is_a_line():
    text = io.StringIO()
    Reporter(Console(file=text)).on_event(
        "exchanged", {"part": "sdafl", "round": 1, "passes": 3, "of": 20, "seconds": 130.0}
    )
    assert text.getvalue() == "sdafl: pass  3/20 before round 1  130.00 s  36m50s left\n"


def test_plain_lines_without_a_terminal_and_a_bar_with_one():
    for terminal in (False, True):
        text = io.StringIO()
        reporter = Reporter(Console(file=text, force_terminal=terminal, width=60))
        reporter.on_start({"rounds": 50}, Path("a-run"))
        assert not reporter.on_round(replace(METRICS, round=1))
        reporter.close()
        assert reporter.bar is None
        lines = text.getvalue().splitlines()
        assert ("\x1b" in text.getvalue()) == terminal
        assert any("accuracy  43.12 %" in line and "1m38s left" in line for line in lines)
