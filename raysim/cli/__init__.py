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
from raysim.engine.signals import ignore_interrupts, interrupted_line, interruptible, leave
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
    """Run a command; returns the exit code."""
    return _guarded(_command, sys.argv[1:] if arguments is None else arguments)


def console() -> NoReturn:
    """The installed `raysim` command; like `python -m raysim`, it finds modules in the current directory."""
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

    leave(_guarded(run, sys.argv[1:]))


def _guarded(function: Callable[[Words], None], words: Words) -> int:
    """Turn errors meant for people into one line on stderr and their exit code, and an interrupt into 130."""
    error_console = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
    secure_local_ray()
    code, lines = 0, []
    with interruptible():
        try:
            function(words)
        except KeyboardInterrupt as interrupt:
            code, lines = 130, [str(interrupt) or interrupted_line()]
        except Exception as error:
            if ending.interrupted:  # Ray's processes may have got it too: what they failed at is its consequence
                code, lines = 130, [interrupted_line()]
            elif isinstance(error, RaysimError):
                trace = getattr(error, "traceback", "").rstrip()
                code, lines = error.exit_code, [*([trace] if trace else []), f"raysim: {error}"]
            elif isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
                code, lines = 2, [f"raysim: {one_line(repr(error.filename))} is too long a path; give a shorter one"]
            else:
                raise
        except SystemExit as end:  # nothing of ours ends the process so: its code would be the command's
            trace = "".join(format_exception(end)).rstrip()
            code, lines = 1, [trace, f"raysim: own code ended the process ({type(end).__name__}: {end.code})"]
        finally:
            ignore_interrupts()
            ending.take(wait=True)
            for line in lines:
                error_console.print(line)
            ending.said()
    return code


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
