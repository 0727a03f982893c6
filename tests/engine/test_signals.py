"""An interrupt ends a process of ours: in order, or by force, and with what it started."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]

STUBBORN = """
import subprocess, sys, time
from raysim.engine import signals as ending
ending.FORCE_SECONDS = 0.5
with ending.interruptible():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    while True:
        try:
            print(child.pid, flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print("not now", flush=True)
"""

DROPPED = """
import os, signal, time
from raysim.engine.signals import interruptible
class Broken:
    def __del__(self):
        raise ValueError("broken")
class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.KIND)
        time.sleep(30)
try:
    with interruptible():
        Broken()
        Interrupted()
        time.sleep(30)
except KeyboardInterrupt:
    print("it came", end="")
"""

CRASHES_AT_THE_END = """
import atexit, os, signal
from raysim.engine.signals import leave
atexit.register(lambda: os.kill(os.getpid(), signal.SIGSEGV))
print("all is done", end="")
leave(3)
"""


def python(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_process_that_does_not_end_in_order_is_ended(kind):
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(process.stdout.readline()))
    process.send_signal(kind)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "not now" in said
    assert errors.startswith("raysim: interrupted")
    child.wait(5)


@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM"])
def test_an_interrupt_in_a_destructor_is_not_lost_and_other_errors_there_are_told(kind):
    done = python(DROPPED.replace("KIND", kind))
    assert done.stdout == "it came"
    assert "ValueError: broken" in done.stderr
    assert "KeyboardInterrupt" not in done.stderr


def test_leaving_says_everything_and_does_not_take_the_interpreter_down():
    done = python(CRASHES_AT_THE_END)
    assert (done.returncode, done.stdout) == (3, "all is done")


FAILS_AFTERWARDS = """
import os, signal, sys, time
from raysim.cli import _guarded
from raysim.engine.ending import ending
from raysim.engine.signals import leave
from raysim.errors import RaysimError
def run(words):
    ending.run_directory = "RUN"
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    except KeyboardInterrupt:
        time.sleep(0.2)
        raise RaysimError("Ray failed: it got the signal too") from None
leave(_guarded(run, []))
"""


@pytest.mark.parametrize(
    ("files", "then"),
    [
        ([], "give the same command again"),
        (["events.jsonl"], "give the same command again, with --out {run} --resume"),
        (["config.json", "events.jsonl"], "`python -m raysim resume {run}` goes on"),
    ],
)
def test_what_fails_after_an_interrupt_is_its_consequence(tmp_path, files, then):
    """And the line says how to go on with just this run."""
    run = tmp_path / "my-run"
    for name in files:
        run.mkdir(exist_ok=True)
        (run / name).write_text("")
    done = python(FAILS_AFTERWARDS.replace("RUN", str(run)))
    assert done.returncode == 130
    assert done.stderr == f"raysim: interrupted; {then.format(run=run)}\n"


CRASH_HANDLER = """
import ctypes, os, signal, sys, time
from raysim.cli import _guarded
from raysim.engine.signals import leave
def run(words):
    handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda signum: os._exit(99))
    ctypes.CDLL(None).signal(signal.SIGTERM, handler)  # as a library may, unknown to Python
    try:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        print("in order", flush=True)
leave(_guarded(run, []))
"""


def test_sigterm_is_an_interrupt_whatever_handlers_there_are_and_the_second_does_not_disturb_the_end():
    done = python(CRASH_HANDLER)
    assert (done.returncode, done.stdout) == (130, "in order\n")
    assert done.stderr == "raysim: interrupted; give the same command again\n"


SAYS_ITS_LAST_WORD = """
import os, signal, time
from raysim.cli import _guarded
from raysim.engine.ending import ending
from raysim.engine.signals import leave
def interrupted(word):
    if word == "said":
        os.kill(os.getpid(), signal.KIND)
        time.sleep(0.5)
leave(_guarded(lambda words: ending.listeners.append(interrupted), []))
"""


@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM"])
def test_an_interrupt_of_the_last_word_changes_nothing(kind):
    done = python(SAYS_ITS_LAST_WORD.replace("KIND", kind))
    assert (done.returncode, done.stderr) == (0, "")


AT_EVERY_LINE = """
import os, signal, sys, tempfile
from raysim.cli import _guarded
from raysim.engine.signals import leave

def attempt(first, at, told):
    # Interrupted in the command, if it is to be; then a SIGINT at so many lines of ours after that.
    lines = 0
    def trace(frame, kind, argument):
        nonlocal lines
        if not any(name in frame.f_code.co_filename for name in ("raysim", "contextlib")):
            return None
        lines += kind == "line"
        if kind == "line" and lines == at:
            os.write(told, b"!")
            os.kill(os.getpid(), signal.SIGINT)
        return trace
    def run(words):
        frame = sys._getframe()
        while frame := frame.f_back:
            frame.f_trace = trace
        sys.settrace(trace)
        if first:
            os.kill(os.getpid(), signal.SIGINT)
    leave(_guarded(run, [], last=True))

for first in (False, True):
    codes, sent, at = set(), True, 0
    while sent:
        at += 1
        hearing, told = os.pipe()
        with tempfile.TemporaryFile() as errors:
            if not (child := os.fork()):
                os.dup2(errors.fileno(), 2)
                attempt(first, at, told)
            os.close(told)
            _, status = os.waitpid(child, 0)
            sent = bool(os.read(hearing, 1))
            errors.seek(0)
            said = errors.read().decode()
        codes.add((os.waitstatus_to_exitcode(status), said))
    print(first, at, codes)
    line = "raysim: interrupted; give the same command again\\n"
    assert codes == ({(130, line)} if first else {(130, line), (0, "")}), codes
    assert at > 20
"""


def test_an_interrupt_at_any_line_of_the_end_and_a_second_one_after_the_first():
    """Whatever is done in the last moments, it is 130 and one line, or the end that was decided before."""
    done = python(AT_EVERY_LINE)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def is_loading(pid: int, run: Path) -> bool:
    return "_psutil" in Path(f"/proc/{pid}/maps").read_text()


def is_running(pid: int, run: Path) -> bool:
    return (run / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("has_come", "gap"), [(is_loading, 0.0), (is_loading, 0.1), (is_running, 0.0), (is_running, 0.1), (is_running, 0.3)]
)
def test_two_interrupts_end_a_run_with_130(tmp_path, has_come, gap):
    """The second comes while the run is being ended, or in its last moments."""
    words = ["--train-size", "60", "--test-size", "20", "--clients", "3", "--model", "mlp", "--in-process"]
    process = subprocess.Popen(
        [sys.executable, "-m", "raysim", "run", *words, "--rounds", "5000", "--out", str(tmp_path / "run")],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not has_come(process.pid, tmp_path / "run"):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    time.sleep(gap)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.startswith("raysim: interrupted; ")
    assert errors.count("\n") == 1
