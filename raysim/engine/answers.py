"""What the driver makes of a pass's answers, taken together."""

import math
from collections import Counter

from raysim.engine.messages import LOSS_BITS, ClientReport
from raysim.engine.work_queue import Answers


def all_reports(answers: Answers) -> list[ClientReport]:
    """Those of all calls, in order of client: so that nothing depends on who worked where."""
    return sorted((report for reports in answers.first for report in reports), key=lambda report: report.client)


def training_loss(reports: list[ClientReport]) -> dict:
    """The clients' mean cross-entropy and further terms, weighted by samples; summed in client order."""
    reports = [report for report in reports if not report.skipped]
    if not reports:
        return {"train_loss": None, "terms": {}}
    samples = sum(report.samples for report in reports)
    names = sorted({name for report in reports for name in report.terms})
    means = {name: math.fsum(r.samples * r.terms[name] for r in reports if name in r.terms) / samples for name in names}
    return {"train_loss": means.pop("ce"), "terms": means}


def evaluated(counts: list[tuple[int, int | None]], images: int) -> dict:
    """Accuracy and mean loss from each test batch's correct predictions and summed loss (None: it is not finite)."""
    finite = all(loss is not None for _, loss in counts)
    return {
        "accuracy": sum(correct for correct, _ in counts) / images,
        "loss": sum(loss for _, loss in counts) / 2.0**LOSS_BITS / images if finite else None,
    }


def counted(reports: list[ClientReport]) -> tuple[float, int]:
    """The GFLOPs of the client whose operations were counted, and its samples."""
    found = ((report.flops / 1e9, report.samples) for report in reports if report.flops)
    return next(found, (0.0, 1))  # the client may have been skipped


def misshapen(reports: list[ClientReport]) -> dict[int, str]:
    """Client -> what it sent in another shape than most (of equally many: than the one of the lowest client)."""
    found = {}
    for name in sorted({name for report in reports for name in report.shapes}):
        sent = {report.client: report.shapes[name] for report in reports if name in report.shapes}
        ((usual, _),) = Counter(sent.values()).most_common(1)
        for client, shape in sent.items():
            if shape != usual:
                found.setdefault(client, f"its {name} has shape {_said(shape)}, other clients' {_said(usual)}")
    return found


def _said(shape: tuple[int | None, ...]) -> str:
    """As NumPy prints a shape; None, for a number of rows that is the client's own, as `any`.

    >>> _said((None, 3, 28, 28))
    '(any, 3, 28, 28)'
    """
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
