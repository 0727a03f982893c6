"""What the driver concludes from the answers of a whole pass."""

from __future__ import annotations

import math
from collections import Counter

from raysim.engine.messages import LOSS_BITS, ClientReport
from raysim.engine.work_queue import Answers


def all_reports(answers: Answers) -> list[ClientReport]:
    """The reports of all calls, in order of client: so that nothing depends on who worked where."""
    return sorted((report for reports in answers.first for report in reports), key=lambda report: report.client)


def training_loss(reports: list[ClientReport]) -> tuple[float | None, dict[str, float]]:
    """The clients' mean cross-entropy, and that of each further term, weighted by samples; summed in client order."""
    reports = [report for report in reports if not report.skipped]
    if not reports:
        return None, {}
    samples = sum(report.samples for report in reports)
    names = sorted({name for report in reports for name in report.terms})
    means = {name: math.fsum(r.samples * r.terms[name] for r in reports if name in r.terms) / samples for name in names}
    return means.pop("ce"), means


def evaluated(counts: list[tuple[int, int | None]], images: int) -> tuple[float, float | None]:
    """Accuracy and mean loss from each test batch's correct predictions and summed loss; None if that is not finite."""
    losses = [loss for _, loss in counts if loss is not None]
    loss = sum(losses) / 2.0**LOSS_BITS / images if len(losses) == len(counts) else None
    return sum(correct for correct, _ in counts) / images, loss


def counted(reports: list[ClientReport]) -> tuple[float, int]:
    """The GFLOPs of the client whose operations were counted, and its samples."""
    found = ((report.flops / 1e9, report.samples) for report in reports if report.flops)
    return next(found, (0.0, 1))  # the client may have been skipped


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
