"""Writes into whatever it is shown of another part's shared dataset: none of it may reach the store."""

from dataclasses import dataclass

import pytest

from raysim.data.synthetic_tables import column, images_of
from raysim.methods.base import Part


@dataclass(frozen=True)
class Vandal(Part):
    """A client that tries to change the shared dataset."""

    def begin(self, client):
        if (shared := client.shared.get("hfmds")) is None:
            return
        for view in (images_of(shared.table), column(shared.table, "label")):
            with pytest.raises(ValueError, match="read-only"):
                view[...] = 0
        images, labels = shared.rows(client.stream(f"{self.name}/rows").integers(len(shared), size=len(shared)))
        images.zero_()
        labels.zero_()
