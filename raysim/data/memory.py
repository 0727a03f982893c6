"""Checks that data fit into the memory, made before it is allocated.

Without asking, the system would grant the memory, and kill the process later without an explanation.
"""

import psutil

from raysim.data.dataset import wrong

SHARE = 0.8  # of the memory that is free now; the rest is for what else a run needs


def check_fits(needed: int, what: str, lower: str) -> None:
    """Raise an InputError if so many bytes are more than there is room for.

    `what` needs them, and `lower` says which settings make it less.
    """
    free = psutil.virtual_memory().available
    if needed > SHARE * free:
        sizes = f"{_amount(needed)} of memory, and {_amount(free)} are free here"
        raise wrong(f"{what} need {sizes} (of which {SHARE:.0%} may be used); {lower}")


def check_images_fit(count: int, shape: tuple[int, ...]) -> None:
    """Raise an InputError if decoded images of this shape (channels, height, width) do not fit into the memory."""
    channels, height, width = shape
    what = f"{count:,} images of {width}x{height} pixels"
    lower = "lower --image-size, --train-size, --fraction or --test-size"
    check_fits(count * channels * height * width, what, lower)


def _amount(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"
