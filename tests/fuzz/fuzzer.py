"""Runs cases and judges how they end."""

import contextlib
import io
import json
import math
import os
import re
import shlex
import signal
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from raysim.cli import main
from tests.fuzz.cases import FIXED, case, words
from tests.fuzz.own_parts import ends_elsewhere, own_part_case
from tests.methods.tiny import TINY

LIMIT, LONGEST = 20, 600  # seconds a case may take: of the processor, and in all, since others may be at work
CODES = (0, 2, 3)
# Ends a run with 1: no check can foresee that it diverges, or what own code does.
OWN = r"`\w+` of improviser failed |(client \d+|one of the clients [\d, ]*) failed .*improviser"
FORESEEN = re.compile(rf"raysim: (.*; a lower --lr usually helps$|{OWN})")
Case = Callable[[int, Path], list[str]]


class TookTooLong(BaseException):
    """Not an Exception, so that nothing in the program catches it."""


def _stop(signum, frame):
    raise TookTooLong


def judge(seed: int, sandbox: Path, case: Case = case) -> tuple[int | None, str | None, list[str]]:
    """The exit code of a case, what is wrong with how it ended (None: nothing), and its command line."""
    line = case(seed, sandbox)
    before = _files(sandbox)
    out, err = io.StringIO(), io.StringIO()
    code: int | None = None
    amiss: str | None = None
    old = [(kind, signal.signal(kind, _stop)) for kind in (signal.SIGALRM, signal.SIGPROF)]
    cwd = os.getcwd()
    os.chdir(sandbox)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    signal.alarm(LONGEST)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("always")
            code = main(line)
            if case is own_part_case and code == 0 and seed % 4 == 0:
                amiss = ends_elsewhere(line, sandbox)
    except TookTooLong:
        return None, f"more than {LIMIT} s of the processor, or {LONGEST} s", line
    except BaseException as error:  # noqa: BLE001 - that nothing escapes is what is tested
        return None, f"{type(error).__name__}: {error}", line
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        for kind, handler in old:
            signal.signal(kind, handler)
        os.chdir(cwd)
    return code, amiss or _fault(code, err.getvalue(), sandbox, before), line


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def _fault(code: int, stderr: str, sandbox: Path, before: dict[str, tuple[int, int]]) -> str | None:
    lines = stderr.strip().splitlines()
    if code not in CODES and not (code == 1 and lines and FORESEEN.match(lines[-1])):
        return f"exit code {code}: {lines[-1] if lines else ''}"
    if (
        "Traceback" in stderr
        or len(lines) > 1
        or (lines and not lines[0].startswith("raysim: "))
        or len(lines) < bool(code)
    ):
        return f"exit code {code}, and on stderr {stderr[-300:]!r}"
    after = _files(sandbox)
    # A run may choose another directory than ours; whatever it writes is in one that has a config.json.
    runs = {str(path.parent) for path in sandbox.rglob("config.json")}
    stray = [
        name for name in after if before.get(name) != after[name] and not any(name.startswith(run) for run in runs)
    ]
    if stray or before.keys() - after.keys():
        return f"touched {stray or before.keys() - after.keys()}"
    if code == 0:
        return next((fault for path in sandbox.rglob("summary.json") if (fault := _unsound(path))), None)
    return None


def _unsound(path: Path) -> str | None:
    """What is wrong with the figures of a finished run."""

    def refuse(constant):
        raise ValueError(constant)

    try:
        summary = json.loads(path.read_text(), parse_constant=refuse)
        rounds = [json.loads(line, parse_constant=refuse) for line in (path.parent / "metrics.jsonl").open()]
    except ValueError as error:
        return f"a figure that is not finite, or no JSON: {error}"
    for one in [summary["final_accuracy"], *(metrics.get("accuracy") for metrics in rounds)]:
        if one is not None and not (math.isfinite(one) and 0 <= one <= 1):
            return f"an accuracy of {one}"
    return None


def _warm_up() -> None:
    """One sound run, since an import that is interrupted by the time limit would break all later cases."""
    sound = TINY | FIXED | {"method": "fedavg"}
    with TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        if main(words(sound | {"out": f"{folder}/run"})) != 0:
            raise RuntimeError("the sound run failed")


def fuzz(
    count: int,
    first: int = 0,
    seconds: float = math.inf,
    say: Callable[[str], object] = lambda _: None,
    case: Case = case,
) -> tuple[Counter[object], list[str], int]:
    """So many cases, or as many as the time allows: exit codes, failures with what reproduces them, and their number.

    `say` is told of every failure, and of every hundred cases.
    """
    codes: Counter[object] = Counter()
    failures: list[str] = []
    started = perf_counter()
    _warm_up()
    for done in range(count):
        if perf_counter() - started > seconds:
            return codes, failures, done
        with TemporaryDirectory(prefix="fuzz-", ignore_cleanup_errors=True) as folder:
            code, fault, line = judge(first + done, Path(folder), case)
        codes[code] += 1
        if fault:
            shown = " ".join(shlex.quote(word if len(word) < 100 else f"{word[:40]}…") for word in line)
            failures.append(f"seed {first + done}: {fault}\n    raysim {shown}")
            say(failures[-1])
        if done % 100 == 99:
            say(f"{done + 1} cases in {perf_counter() - started:.0f} s, {len(failures)} failures")
    return codes, failures, count
