"""`make mutants`: small changes to the code, drawn by seed, and the share that the tests notice, by folder.

python -m tests.mutants [engine storage …] [--each 50] [--seed 0]

mutmut makes the changes and runs the tests that reach each (`[tool.mutmut]` in pyproject.toml); a folder's changes are
tried on the folder's own tests. `equivalent.txt` has the changes that no test can see, each with the reason.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

from mutmut.__main__ import _run, copy_src_dir, create_mutants
from mutmut.configuration import config
from mutmut.mutation.diff_apply import get_diff_for_mutant
from mutmut.mutation.mutators import mutation_operators, operator_string
from mutmut.stats import status_by_exit_code
from mutmut.utils.file_utils import walk_mutatable_files
from mutmut.workers.isolation import ForkServerRunner

MADE = Path("mutants")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
KILLED = ("killed", "timeout", "segfault", "suspicious")  # each of them turns `make test` red


def results() -> dict[str, dict[str, int | None]]:
    """The exit codes of the tests by the changes' names, by file."""
    files = [str(path) for path in walk_mutatable_files() if (MADE / f"{path}.meta").exists()]
    return {file: json.loads((MADE / f"{file}.meta").read_text())["exit_code_by_key"] for file in files}


def drawn(names: list[str], each: int, seed: int) -> list[str]:
    """A sample; it keeps what it can when other code changes."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:each]


def described(file: str, name: str) -> tuple[str, bool]:
    """A change as equivalent.txt names it, and whether no test need see it.

    Its function, the lines before, and those after. `strict=` of a zip is the code's own assertion.
    """
    diff = get_diff_for_mutant(name, path=file).splitlines()[2:]
    before, after = (" ".join(line[1:].strip() for line in diff if line[0] == sign) for sign in "-+")
    where = name.partition("__mutmut_")[0].removeprefix("raysim.").replace("x_", "", 1).replace("xǁ", "", 1)
    change = f"{where.replace('ǁ', '.')}: {before} → {after}"
    loose, still = (re.sub(r"(, )?strict=\w+", "", text).replace(", )", ")") for text in (before, after))
    known = {change, change.partition(": ")[0]} & {*EQUIVALENT.read_text().splitlines()}
    return change, loose == still or bool(known)


def main() -> None:
    folders = {path.strip("*/").removeprefix("raysim/"): path for path in config().only_mutate}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", help=f"of {', '.join(folders)}; all of them if none is named")
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    tests = dict(zip(folders, config().pytest_add_cli_args_test_selection, strict=True))
    chosen = asked.folders or list(folders)
    config().only_mutate = [folders[folder] for folder in chosen]
    config().pytest_add_cli_args_test_selection = [tests[folder] for folder in chosen]

    os.environ["OMP_NUM_THREADS"] = "1"  # two processes at a time are enough for two cores
    # Texts stay: wording is free, and a test for each would only repeat it.
    mutation_operators[:] = [pair for pair in mutation_operators if pair[1] is not operator_string]
    ForkServerRunner.run_clean_tests = lambda self, tests: 0  # they have just passed, when they were timed
    shutil.rmtree(MADE, ignore_errors=True)
    MADE.mkdir()
    copy_src_dir()
    create_mutants(2)
    sample = {}
    for folder in chosen:
        where = f"raysim/{folder}"
        files = {name: file for file, codes in results().items() if file.startswith(where) for name in codes}
        sample[folder] = {name: files[name] for name in drawn(list(files), asked.each, asked.seed)}
    _run([name for names in sample.values() for name in names], 2)

    codes = {name: code for by_name in results().values() for name, code in by_name.items()}
    rows = []
    for folder, names in sample.items():
        count: Counter[str] = Counter()
        for name, file in names.items():
            status = status_by_exit_code[codes[name]]
            if status not in KILLED:
                change, equivalent = described(file, name)
                status = "equivalent" if equivalent else status
                sys.stdout.write("" if equivalent else f"{status}: {name}\n{change}\n")
            count["killed" if status in KILLED else status] += 1
        share = count["killed"] / max(1, len(names) - count["equivalent"])
        cells = [count[key] for key in ("killed", "survived", "no tests", "equivalent")]
        rows.append(f"{folder:<22}{len(names):>6}" + "".join(f"{cell:>12}" for cell in cells) + f"{share:>8.0%}")
    head = f"{'folder':<22}{'drawn':>6}{'killed':>12}{'survived':>12}{'no test':>12}{'equivalent':>12}{'share':>8}"
    sys.stdout.write("\n".join([head, *rows]) + "\n")


if __name__ == "__main__":
    main()
