"""Chaos: any process of a run is killed, whichever the seed draws, at any moment, whatever the method."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from raysim import methods
from raysim.engine.ray_runner import orphan_watch
from raysim.settings import flag
from tests.faults.harness import GRACE, Lab, Outcome, crash, descendants, told
from tests.faults.killed import resume
from tests.methods.tiny import settings_of

STARTING, ROUNDS = 8.0, 1.0  # seconds after Ray begins to start, or after a round, within which a process is killed
BESIDE = orphan_watch.__name__  # the process that speaks for a driver that was killed
TINY_DATA = {"dataset": "shapes", "train_size": 120, "test_size": 50, "rounds": 30, "privacy": 0}


def anyone(lab: Lab, kills: int = 100, names: tuple[str, ...] = ()) -> Outcome:
    """Any process of a run's tree is killed with -9 at a random moment; the run is resumed where it died of that."""
    names = names or tuple(methods.names())
    outcome = Outcome(0)
    died = 0
    for i, name in enumerate(names):
        wanted = kills * (i + 1) // len(names) - int(outcome.faults)  # with those that an earlier run ended before
        died += _one_method(lab, name, wanted, outcome)
        sys.stdout.write(f"    {name}: {outcome.faults} killed so far, {died} ended the run, {outcome.problems}\n")
        sys.stdout.flush()
    if outcome.faults != kills:
        outcome.problems.append(f"only {outcome.faults} of {kills} processes killed")
    outcome.faults = f"{outcome.faults}, {died} ended the run"
    return outcome


def _one_method(lab: Lab, name: str, kills: int, outcome: Outcome) -> int:
    """Kill so many processes of a run of this method, and compare it with an undisturbed one; how often it died."""
    settings = flags(settings_of(*name.split("+"), **TINY_DATA))
    out, died, done = lab.folder / name, 0, 0
    code = None
    for attempt in range(4 * kills):
        log = f"{name}-{attempt}.log"
        process, before, began = resume(lab, settings, out, log=log)
        victim = None
        while done < kills and (killed := _kill_someone(lab, process, out)):
            victim, done = killed, done + 1
        code = lab.wait(process)
        outcome.add_resumed(out, before, began)
        if code == 0:
            break
        died += 1
        if left := lab.left():
            outcome.problems.append(f"{name}: {len(left)} processes left {GRACE} s after {victim} was killed")
        _check_last_word(lab, f"{name}, {victim} killed", log, outcome)
    outcome.faults = int(outcome.faults) + done
    if code == 0:
        outcome.add(out)
        outcome.compare(out, lab.undisturbed(*settings, name=f"{name}-undisturbed"))
    else:
        outcome.problems.append(f"{name}: never finished, exit code {code}")
    return died


def _kill_someone(lab: Lab, process: subprocess.Popen, out: Path) -> str | None:
    """Kill the driver or one of its descendants at a random moment; its name, or None where the run was over first.

    The moment is while Ray starts, or in a round; a second one comes after what was killed before took effect. Before
    that there is the driver alone, and nobody to say that it was killed.
    """
    before = told(out)
    if not descendants(process, BESIDE) and lab.draw.random() < 0.5:
        lab.until(process, lambda: bool(descendants(process, BESIDE)))
        end = time.monotonic() + lab.draw.uniform(0, STARTING)
    else:
        lab.until(process, lambda: told(out) > before)
        end = time.monotonic() + lab.draw.uniform(0, ROUNDS)
    if not lab.until(process, lambda: time.monotonic() > end):
        return None
    with suppress(psutil.NoSuchProcess):
        driver = psutil.Process(process.pid)
        tree = sorted([driver, *driver.children(recursive=True)], key=lambda found: found.pid)
        victim = lab.draw.choice(tree)
        name = "the driver" if victim == driver else victim.name()
        crash(victim)
        return name
    return None


def _check_last_word(lab: Lab, what: str, log: str, outcome: Outcome) -> None:
    """A run that died has said one line of ours, whoever said it."""
    ours = [line for line in lab.said(log) if line.startswith("raysim: ")]
    if len(ours) != 1:
        outcome.problems.append(f"{what}: {len(ours)} lines of ours, the last of all {lab.said(log)[-1:]}")


def flags(settings: dict[str, object]) -> list[str]:
    """Settings as words of the command line."""
    return [f"{flag(key)}={value}" for key, value in settings.items()]
