"""What the driver concludes from the answers of a whole pass."""

from __future__ import annotations

from collections import Counter

from raysim.engine.messages import ClientReport
from raysim.engine.work_queue import Answers


def all_reports(answers: Answers) -> list[ClientReport]:
    """The reports of all calls, in order of client: so that nothing depends on who worked where."""
    return sorted((report for reports in answers.first for report in reports), key=lambda report: report.client)


def misshapen(reports: list[ClientReport]) -> dict[int, str]:
    """The clients that sent something in another shape than most did, and what that was.

    Where as many clients sent one shape as another, the shape of the lowest client counts as the right one.
    """
    found: dict[int, str] = {}
    for name in sorted({name for report in reports for name in report.shapes}):
        sent = {report.client: report.shapes[name] for report in reports if name in report.shapes}
        ((usual, _),) = Counter(sent.values()).most_common(1)
        for client, shape in sent.items():
            if shape != usual:
                found.setdefault(client, f"its {name} has shape {_shown(shape)}, other clients' {_shown(usual)}")
    return found


def _shown(shape: tuple[int | None, ...]) -> str:
    """A shape as NumPy prints it, with `any` for None: a number of rows that may differ between clients.

    >>> _shown((None, 3, 28, 28))
    '(any, 3, 28, 28)'
    """
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
