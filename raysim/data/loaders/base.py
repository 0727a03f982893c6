"""The interface of loaders: one way each to find a dataset, by its name or by the layout of a folder.

A loader is one file in this folder with one `Loader`; a file put here is found and asked like the others.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from raysim.data.dataset import USUAL, Columns, Found


@dataclass(frozen=True)
class Request:
    """A request for a dataset, as `load` was given it."""

    name: str  # a name, or the path of a folder
    folder: Path | None = None  # the folder that the name means, if there is one
    data: str | Path | None = None  # where to look for datasets that go by name
    download: bool = False
    image_size: int | None = None
    train_size: int | None = None
    fraction: float | None = None
    test_size: int | None = None
    seed: int = 0
    columns: Columns = USUAL
    training_counts: tuple[int, ...] | None = None  # per class; without a test split, the rest of the images is it


class Loader(ABC):
    """A way to find a dataset."""

    turn: ClassVar[int]  # the loaders are asked in this order; the first that finds something is used

    @abstractmethod
    def find(self, request: Request) -> Found | None:
        """Return the dataset, with its images still to be read, or None if this loader does not know it.

        Files that are recognised but broken, or named but missing, are an InputError.
        """

    def catalogue(self) -> dict[str, str]:
        """Return the names that the loader knows, each with one line about the dataset and how to get it."""
        return {}
