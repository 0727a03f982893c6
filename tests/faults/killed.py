"""Chaos: client actors, the server and the driver are killed, phase by phase."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.faults.harness import CLIENTS, GRACE, REAPED, Lab, Outcome, events, told

SERVER_PHASES = ("exchange", "receive", "broadcast", "aggregation", "generator", "checkpoint")


def clients(lab: Lab, kills: int = 50, rounds: int = 12) -> Outcome:
    """Client actors are killed with -9 while they train, upload, synthesise and evaluate."""
    settings = [*REAPED, "--rounds", rounds]
    fuses, out = lab.light(client_fuses(lab, kills, rounds)), lab.folder / "run"
    outcome = Outcome(kills)
    lab.finish(outcome, lab.start("run", *settings, "--actors", 2, "--reaper.fuses", fuses, "--out", out))
    outcome.problems += [f"not burnt: {fuse.name}" for fuse in fuses.iterdir()]
    if (lost := len(events(out, "actor_lost"))) != kills:
        outcome.problems.append(f"{lost} actor_lost events for {kills} kills")
    outcome.add(out)
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome


def client_fuses(lab: Lab, kills: int, rounds: int) -> list[str]:
    """At most three in one pass: clients that take their actor down a fourth time in a row end the run on purpose."""
    places = []
    for t in range(1, rounds + 1):
        places += [f"{lab.draw.choice(('training', 'upload'))}-{t}-{k}" for k in lab.draw.sample(range(CLIENTS), 3)]
        if t % 2 == 0:
            places += [f"synthesis-{t}-{k}" for k in lab.draw.sample(range(CLIENTS), 2)]
        if t < rounds - 1:
            places.append(f"evaluation-{t}")
    return lab.draw.sample(places, kills)


def server(lab: Lab, kills: int = 10, phases: tuple[str, ...] = SERVER_PHASES) -> Outcome:
    """The server actor is killed with -9 in each of its phases; at most one round is repeated each time."""
    chosen = [*phases, *lab.draw.choices(phases, k=kills - len(phases))]
    lab.draw.shuffle(chosen)
    # In every other round, since there is a synthesis to receive in the even ones only.
    fuses = [(phase, 2 * i if phase == "receive" else lab.draw.choice((2 * i - 1, 2 * i)))
             for i, phase in enumerate(chosen, 1)]  # fmt: skip
    settings, out = [*REAPED, "--rounds", 2 * kills + 1], lab.folder / "run"
    folder = lab.light([f"{phase}-{t}" for phase, t in fuses])
    outcome = Outcome(kills)
    lab.finish(outcome, lab.start("run", *settings, "--actors", 2, "--reaper.fuses", folder, "--out", out))
    back = events(out, "server_back")
    if len(back) != kills:
        outcome.problems.append(f"{len(back)} server_back events for {kills} kills")
    for (phase, t), event in zip(fuses, back, strict=False):
        outcome.rounds += t - event["round"]
        if t - event["round"] > 1:
            outcome.problems.append(f"{phase} in round {t} went back to after round {event['round']}")
    outcome.add(out)
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome


def driver(lab: Lab, kills: int = 20, rounds: int = 60) -> Outcome:
    """The driver is killed with -9 or Ctrl-C while it starts, in a round or while a checkpoint is written; resumed."""
    settings, out = [*REAPED, "--rounds", rounds], lab.folder / "run"
    moments = (["round", "checkpoint", "checkpoint", "round", "start"] * kills)[:kills]
    signals = ([signal.SIGKILL, signal.SIGINT] * kills)[:kills]
    lab.draw.shuffle(moments)
    lab.draw.shuffle(signals)
    outcome, torn = Outcome(kills), 0
    for moment, kind in zip(moments, signals, strict=True):
        process, before, began = resume(lab, settings, out)
        if not reach(lab, moment, process, out, before, began):
            outcome.problems.append(f"ended before it was killed ({moment}): {lab.said()[-1:]}")
            break
        (os.killpg if kind == signal.SIGINT else os.kill)(process.pid, kind)
        code = lab.wait(process, GRACE)
        if code != (130 if kind == signal.SIGINT else -signal.SIGKILL):
            outcome.problems.append(f"exit code {code} after {kind.name} ({moment}): {lab.said()[-1:]}")
        if left := lab.left():
            outcome.problems.append(f"{len(left)} processes left {GRACE} s after {kind.name} ({moment})")
        torn += being_written(out / "checkpoints", began)
        outcome.add_resumed(out, before, began)
    process, before, began = resume(lab, settings, out)
    lab.finish(outcome, process)
    outcome.add_resumed(out, before, began)
    outcome.faults = f"{outcome.faults} ({torn} tore a checkpoint's file)"
    outcome.compare(out, lab.undisturbed(*settings))
    return outcome


def resume(lab: Lab, settings: list, out: Path, log: str = "log"):
    """Go on with a run that may not have got far enough to be resumed: the process, rounds recorded before, when."""
    began, before = time.time(), told(out)
    words = ["resume", out] if (out / "config.json").exists() else ["run", *settings, "--out", out, "--resume"]
    return lab.start(*words, "--actors", 2, log=log), before, began


def reach(lab: Lab, moment: str, process, out: Path, before: int, began: float) -> bool:
    """Wait for the moment to kill the driver; whether it still runs."""
    if moment == "start":
        end = time.monotonic() + lab.draw.uniform(2, 8)
        return lab.until(process, lambda: time.monotonic() > end)
    running = lab.until(process, lambda: told(out) > before)
    lab.remember()
    if moment == "round":
        time.sleep(lab.draw.uniform(0, 0.5))
        return process.poll() is None
    while running and not being_written(out / "checkpoints", began):  # without a pause: it takes milliseconds
        running = process.poll() is None
    return running


def being_written(folder: Path, since: float) -> bool:
    """Whether there is a file that has not got its name yet."""
    with suppress(FileNotFoundError):  # it just got it
        return any(file.stat().st_mtime > since for file in os.scandir(folder) if file.name.endswith(".tmp"))
    return False
