"""Datasets, all in one form: uint8 images and integer labels, in a training and a test split.

`load` finds one by name or path, through the loaders in `loaders`. Torch is imported only if torchvision must read the
files.
"""

from raysim.data.dataset import Dataset, Split
from raysim.data.loaders import catalogue
from raysim.data.loading import load

__all__ = ["Dataset", "Split", "catalogue", "load"]
