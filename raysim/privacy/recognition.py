"""The share of images that give away which real ones they were made from."""

from collections.abc import Iterable

import torch
from torch import Tensor

from raysim.models.convolution import counted_as

FAINT = 1e-3  # length of an image without its mean, below which it is rounding


def recognised(made: Tensor, sources: Tensor, images: Iterable[Tensor]) -> Tensor:
    """Return 1 for each image that is more like its source than like any other real image, and 0 for the rest.

    `images` are all real images, in batches; `sources` are the rows of those that these were made from. Likeness is the
    correlation of the pixels, which brightness and contrast do not change. By chance one in as many images as there are
    is recognised.
    """
    with counted_as(0):  # measuring is not the method's work
        likeness = torch.cat([directions(made) @ directions(batch).T for batch in images], 1)
    most, nearest = likeness.max(1)
    return ((nearest == sources) & (most > 0)).to(made.dtype)


def directions(images: Tensor) -> Tensor:
    """Return images as rows of length 1 and mean 0, whose products are correlations.

    An image without any contrast is 0.
    """
    rows = images.flatten(1)
    rows = rows - rows.mean(1, keepdim=True)
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(lengths > FAINT, rows / lengths, 0)
