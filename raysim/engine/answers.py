"""What the driver concludes from the answers of a whole pass."""

from __future__ import annotations

from raysim.engine.messages import Reports


def misshapen(reports: Reports) -> dict[int, str]:
    """The clients that sent something in another shape than most did, and what that was.

    Where as many clients sent one shape as another, the shape of the lowest client counts as the right one.
    """
    found: dict[int, str] = {}
    for name, by_shape in sorted(reports.shapes.items()):
        usual = max(by_shape, key=lambda shape: (len(by_shape[shape]), -min(by_shape[shape])))
        others = {client: shape for shape in by_shape if shape != usual for client in by_shape[shape]}
        for client, shape in sorted(others.items()):
            found.setdefault(client, f"its {name} has shape {_shown(shape)}, other clients' {_shown(usual)}")
    return found


def _shown(shape: tuple[int | None, ...]) -> str:
    """A shape as NumPy prints it, with `any` for None: a number of rows that may differ between clients.

    >>> _shown((None, 3, 28, 28))
    '(any, 3, 28, 28)'
    """
    return "(" + ", ".join("any" if size is None else str(size) for size in shape) + ")"
