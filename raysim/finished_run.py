"""A run as Python sees it: its figures, its trained model, the images it shared, and its report in a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from raysim import definitions, models
from raysim.config.addresses import is_remote
from raysim.data.images import decode
from raysim.data.normalisation import Normalisation
from raysim.engine.round_metrics import RoundMetrics
from raysim.errors import InputError
from raysim.settings import Given
from raysim.storage.formats import DamagedFile
from raysim.storage.model_weights import read_weights
from raysim.storage.remote import Mirror
from raysim.storage.run_reader import read_run

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch


class History(list[RoundMetrics]):
    """The metrics of every round, in order."""

    def to_pandas(self) -> pd.DataFrame:
        """A row per round; the entries of a dict are columns such as `terms/fedprox`."""
        try:
            import pandas as pd
        except ImportError:
            raise InputError("to_pandas needs the package pandas; install it: pip install pandas") from None
        lines = [{key: value for key, value in metrics.items() if key != "format"} for metrics in self]
        return pd.json_normalize(lines, sep="/").set_index("round")


class Run:
    """A run directory. A notebook shows its report."""

    def __init__(self, path: str | PathLike[str], model: Given | None = None):
        """`model`: the own model that the run was given in Python, if it was, to build it again."""
        if is_remote(where := str(path)):
            mirror = Mirror(where, "open_run")
            finalize(self, mirror.discard)
            mirror.fetch()
            path = mirror.folder
        self._read = read_run(path)
        self._model = model
        self.path = self._read.path
        self.settings: Mapping[str, Any] = self._read.settings
        self.summary: Mapping[str, Any] = self._read.summary  # of a finished run; empty before
        self.history = History(self._read.history)

    def __repr__(self) -> str:
        state = f"accuracy {100 * self.accuracy:.2f} %" if self._read.evaluated else "not evaluated yet"
        done = f"{len(self.history)} of {self.settings['rounds']} rounds"
        return f"<Run {self._read.title}: {state} after {done}; {self.path}>"

    def _repr_html_(self) -> str:
        return framed(self.path / "report.html")

    @property
    def accuracy(self) -> float:
        """The accuracy after the last round that was evaluated, from 0 to 1."""
        if not self._read.evaluated:
            raise InputError(f"{self.path}: no round has been evaluated yet; raysim.resume goes on with the run")
        return self._read.evaluated[-1].accuracy or 0.0

    @cached_property
    def normalisation(self) -> Normalisation:
        """How pixels from 0 to 255 become what the model takes."""
        facts = self._read.facts
        return Normalisation(tuple(facts["mean"]), tuple(facts["std"]))

    def normalise(self, images: np.ndarray | torch.Tensor) -> torch.Tensor:
        """Return images [N, C, H, W] as the model takes them; given are uint8, or floats from 0 to 1."""
        import torch

        given, channels = torch.as_tensor(images), len(self.normalisation.mean)
        if given.ndim != 4 or given.shape[1] != channels:
            raise InputError(f"normalise: shape {tuple(given.shape)}; give images as [N, {channels}, H, W]")
        scale = self.normalisation.on(given.device)
        if given.dtype == torch.uint8:
            return scale.normalise_(given.to(torch.float32, copy=True))
        if not given.is_floating_point():
            raise InputError(f"normalise: {given.dtype}; give pixels as uint8, or as floats from 0 to 1")
        if given.numel() and not (given.min() >= 0 and given.max() <= 1):  # also where one is not a number
            values = f"values from {given.min():g} to {given.max():g}"
            raise InputError(f"normalise: {values}; give pixels as uint8, or as floats from 0 to 1")
        return scale.from_pixels(given.to(torch.float32))

    def model(self) -> torch.nn.Module:
        """The trained model, in evaluation mode; it takes normalised images (see `normalise`).

        Of several models (fedensemble) this is the first.
        """
        import torch

        path, facts = self.path / "model.safetensors", self._read.facts
        if not path.exists():
            raise InputError(f"{self.path}: the run has no model yet; raysim.resume goes on with it")
        name = self._model or str(self.settings["model"])
        if models.source(name) != facts.get("sources", {}).get("model"):
            raise InputError(f"{self.path}: its model {name} had another source; give the one it was trained with")
        module = models.build_plain(name, tuple(facts["shape"]), len(facts["classes"]), int(self.settings["seed"]))
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        weights = read_weights(path, own, name)
        with torch.no_grad():
            for key, tensor in own.items():
                tensor.copy_(torch.from_numpy(weights[key]))
        return module.eval()

    def synthetic(self) -> torch.utils.data.Dataset:
        """The images that the method shared last, normalised, each with its label (-1: none), as a torch Dataset."""
        import pyarrow as pa
        import pyarrow.parquet as pq
        import torch

        path = self.path / "synthetic.parquet"
        if not path.exists():
            raise InputError(f"{self.path}: no synthetic images: its method shares none, or the run is not finished")
        try:
            table = pq.read_table(path, columns=["image", "label"])
            encoded = [image["bytes"] for image in table.column("image").to_pylist()]
            labels = torch.tensor(table.column("label").to_pylist())
        except (OSError, pa.ArrowException, LookupError, TypeError) as error:
            raise DamagedFile(path, str(error)) from None
        images = decode(((f"{path}: row {i}", each) for i, each in enumerate(encoded)), len(encoded))
        return torch.utils.data.TensorDataset(self.normalise(images), labels)


def open_run(path: str | PathLike[str], *, model: Any = None) -> Run:
    """A run directory for reading; give the `model` if it was a class of a notebook or a script."""
    given = model if isinstance(model, Given | None) else definitions.given(model)
    return Run(path, given)


def framed(page: Path) -> str:
    """A page to be shown inside another, complete in itself."""
    if not page.exists():
        return f"<p>There is no {html.escape(str(page))} yet.</p>"
    content = html.escape(page.read_text(encoding="utf-8"), quote=True)
    return f'<iframe srcdoc="{content}" style="width: 100%; height: 600px; border: 0"></iframe>'
