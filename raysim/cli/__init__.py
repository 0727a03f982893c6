"""The command line: `raysim COMMAND …`, `python -m raysim COMMAND …`, and `job` for the files in jobs/.

What a command needs is imported when it runs: `raysim --help` loads neither torch nor ray.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from traceback import format_exception
from typing import NoReturn

from rich.console import Console

from raysim import __version__
from raysim.engine.ending import ending
from raysim.engine.ray_runner.environment import secure_local_ray
from raysim.engine.signals import end_with_parent, interrupted_line, interruptible, leave
from raysim.errors import InputError, RaysimError, one_line
from raysim.settings import nearest

COMMANDS = {
    "run": "run a simulation",
    "resume": "go on with a run that was interrupted: resume RUN_DIR",
    "compare": "methods × seeds × partitions on one cluster, and their table: --methods A B --seeds 0 1 …",
    "sweep": "an ablation: sweep NAME, or sweep --over key=value,value …",
    "search": "settings drawn by Optuna, worse trials ended early: search --over lr=loguniform:1e-4,1e-1 --trials 20",
    "plan": "print the placement plan of a configuration and stop",
    "doctor": "examine the cluster: versions, memory, and a self-test on every GPU",
    "show": "one line per run, the most accurate first: show RUN_DIR… or folders of runs",
    "report": "write a run's HTML report again, or one page about several: report RUN_DIR… [--out PAGE]",
    "features": "one t-SNE map of what several runs shared, beside real images: features RUN_DIR…",
    "methods": "the methods there are; methods NAME shows one with its settings",
    "datasets": "the datasets there are",
    "models": "the models there are",
    "presets": "the papers' settings by name; presets NAME shows one",
    "sweeps": "the papers' ablations by name; sweeps NAME shows one",
    "settings": "every setting, as docs/settings.md",
}  # each is a function of raysim/cli/commands.py

HELP = {"-h", "--help"}

Words = list[str]


def main(arguments: Words | None = None) -> int:
    """Run a command; returns the exit code. Without arguments it is this process's own, which ends with it."""
    return _guarded(_command, sys.argv[1:] if arguments is None else arguments, last=arguments is None)


def console() -> NoReturn:
    """Run the command of this process. Like `python -m` it finds modules in the current directory."""
    end_with_parent()
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    leave(main())


def job(beside: str | None = None, **defaults: object) -> NoReturn:
    """A job file's whole content: `run` with other defaults; takes the same flags, exits with the same codes.

    `beside`: run this baseline with the same settings afterwards, and print both accuracies. `preset` among the
    defaults starts from a paper's settings.
    """

    def run(words: Words) -> None:
        from raysim.cli import commands

        commands.run(words, defaults, beside)

    leave(_guarded(run, sys.argv[1:], last=True))


def _guarded(function: Callable[[Words], None], words: Words, last: bool = False) -> int:
    """Turn errors meant for people into one line on stderr and their exit code, and an interrupt into 130."""
    error_console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    secure_local_ray()
    code = 0
    lines: list[str] = []
    with interruptible(last) as interrupts:
        try:
            try:
                code, lines = _outcome(function, words)
            except KeyboardInterrupt as interrupt:  # not always of a signal: a grid raises it with a line of its own
                code, lines = 130, [str(interrupt) or interrupted_line()]
            interrupts.ignore()
        except KeyboardInterrupt:  # of a signal that came at the last moment
            code, lines = 130, [interrupted_line()]
        finally:
            interrupts.ignore()
            ending.take(wait=True)
            for line in lines:
                error_console.print(line)
            ending.said()
    return code


def _outcome(function: Callable[[Words], None], words: Words) -> tuple[int, list[str]]:
    """The exit code that a command ends with, and its last lines."""
    try:
        function(words)
        return 0, []
    except (Exception, SystemExit) as error:
        if ending.interrupted:  # Ray's processes may have got it too: what they failed at is its consequence
            return 130, [interrupted_line()]
        if isinstance(error, RaysimError):
            trace = getattr(error, "traceback", "").rstrip()
            said = "; ".join([str(error), *getattr(error, "__notes__", ())])
            return error.exit_code, [*([trace] if trace else []), f"raysim: {said}"]
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return 2, [f"raysim: {one_line(repr(error.filename))} is too long a path; give a shorter one"]
        if isinstance(error, SystemExit):  # nothing of ours ends the process so: its code would be the command's
            trace = "".join(format_exception(error)).rstrip()
            return 1, [trace, f"raysim: own code ended the process ({type(error).__name__}: {error.code})"]
        raise


def _print(text: str) -> None:
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


def _command(words: Words) -> None:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in {*HELP, "help"}:
        lines = [f"  {name:10} {about}" for name, about in COMMANDS.items()]
        more = ["raysim run --help lists the settings, raysim COMMAND --help says more about a command"]
        _print("\n".join(["usage: raysim COMMAND [settings]", "", *lines, "", *more, f"version {__version__}"]))
    elif command in ("-V", "--version", "version"):
        _print(f"raysim {__version__}")
    elif command in COMMANDS:
        from raysim.cli import commands

        if HELP & {*rest} and command not in commands.WITH_OWN_HELP:
            _print(f"{COMMANDS[command]}\n\n{commands.about(command)}")
        else:
            getattr(commands, command)(rest)
    else:
        raise InputError(f"unknown command '{command}'{nearest(command, COMMANDS, '; see `raysim --help`')}")
