"""A shared dataset as clients train on it: on an accelerator one copy for all of them, elsewhere the store's own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from raysim.data.synthetic_tables import images_of, labels_of
from raysim.tensors import pinned, to_device, upload_all

if TYPE_CHECKING:
    import pyarrow as pa

MOST_OF_DEVICE = 0.1  # share of a GPU's memory that a dataset may take in every actor; a larger one stays on the host
BLOCK = 64  # local steps whose images are gathered on the host and uploaded at once, if the dataset stays there


class SharedImages:
    """The images and labels of a table, by rows that a part draws."""

    def __init__(self, table: pa.Table, device: torch.device, fits: bool | None = None):
        """Hold the table for a device.

        `fits` says whether the device is to hold the whole dataset; None: if there is room. The CPU needs no copy.
        """
        self.table, self.device = table, device
        self.fits = self._has_room() if fits is None else fits

    def __len__(self) -> int:
        return self.table.num_rows

    def _has_room(self) -> bool:
        if self.device.type != "cuda":
            return self.device.type != "cpu"
        most = MOST_OF_DEVICE * torch.cuda.get_device_properties(self.device).total_memory
        return images_of(self.table).nbytes <= most

    @cached_property
    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all images and labels on the device, uploaded once for all clients while the dataset is the same."""
        images: torch.Tensor = to_device(images_of(self.table), self.device)
        return images.contiguous(memory_format=torch.channels_last), to_device(labels_of(self.table), self.device)

    def drop(self) -> None:
        """Leave the dataset on the host from now on, since the device has no room for it."""
        self.__dict__.pop("whole", None)
        self.fits = False

    def rows(self, rows: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images in these rows with their labels, on the device."""
        ((x, y),) = self.batches([rows]) if "whole" in self.__dict__ else self._from_host([rows])
        return x, y

    def batches(self, rows: Sequence[np.ndarray]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images and labels of one batch of rows after another; the rows are uploaded at the start."""
        return self._from_device(upload_all(rows, self.device)) if self.fits else self._from_host(rows)

    def _from_device(self, rows: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        x, y = self.whole
        return ((x[batch], y[batch]) for batch in rows)

    def _from_host(self, rows: Sequence[np.ndarray]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        images, labels = images_of(self.table), labels_of(self.table)
        size = 1 if self.device.type == "cpu" else BLOCK
        for first in range(0, len(rows), size):
            block = rows[first : first + size]
            together = np.concatenate(block)
            sizes = [len(batch) for batch in block]
            uploads = (pinned(torch.from_numpy(of[together]), self.device) for of in (images, labels))
            x, y = (upload.to(self.device, non_blocking=True) for upload in uploads)
            x = x.contiguous(memory_format=torch.channels_last)
            yield from zip(x.split(sizes), y.split(sizes), strict=True)
