"""`python -m tests.gpu`: run everything on the pretended device, and print what was found as JSON.

With names of runs only these, with the places of all launches of a step. With --write the table of counts is lowered to
what was found; a count that has risen stays, and the tests say so.
"""

import json
import sys
from dataclasses import asdict
from functools import partial

from raysim.models.convolution import DeepConv2d, ImageConv2d
from tests.gpu import COUNTS, counted, lowered
from tests.gpu.mistakes import caught
from tests.gpu.runs import Found, examined, measured_runs, resumed

RESUMED = ("hfmds+fedpa", "scaffold", "sdafl")  # with the server's state, clients' states, a shared dataset, a GAN


def everything(share: int = 0, of: int = 1) -> dict[str, dict]:
    """What all runs show, or every `of`-th of them."""
    runs = measured_runs()
    work = {name: partial(examined, settings) for name, settings in runs.items()}
    work |= {f"{name}, resumed": partial(resumed, runs[name]) for name in RESUMED}
    found: dict[str, Found] = {name: work[name]() for name in [*work][share::of]}
    return {
        "runs": {name: asdict(one) for name, one in found.items()},
        "mistakes": {} if share else caught(),
    }


def main(words: list[str]) -> None:
    for own in (DeepConv2d, ImageConv2d):  # which CPUs compute in a way of their own: the results are to be compared
        del own.forward
    names = [word for word in words if not word.startswith("--")]
    if names:
        shown = {name: asdict(examined(measured_runs()[name], places=True)) for name in names}
        sys.stdout.write(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
        return
    found = everything(*(int(word[2:]) for word in words if word[2:].isdigit()))  # --0 --2: the first half
    if "--write" in words:
        COUNTS.write_text(json.dumps(lowered(counted(found["runs"])), indent=2) + "\n")
    sys.stdout.write(json.dumps(found))


main(sys.argv[1:])
