"""Loaders of the user's own data: an object given in Python, the result of MODULE:FUNCTION, or `hf:NAME`."""

import importlib
from typing import Any

from raysim.data import own
from raysim.data.dataset import Found, wrong
from raysim.data.loaders.base import Loader, Request
from raysim.definitions import described, find, is_own
from raysim.settings import Given

HUGGING_FACE, IN_MEMORY = "hf:", "memory:"


class OwnData(Loader):
    """A loader of names with a colon, which no dataset's own name has; it is asked last."""

    turn = 9

    def find(self, request: Request) -> Found | None:
        name = request.name
        if request.folder is not None or not is_own(name):
            return None
        where = f"--dataset {name}"
        value = _load(name.removeprefix(HUGGING_FACE)) if name.startswith(HUGGING_FACE) else _given(name, where)
        return own.found(value, where, request.columns)

    def catalogue(self) -> dict[str, str]:
        return {"hf:NAME": "a dataset of Hugging Face, by the package datasets; hf:NAME:CONFIG for one of several"}


def _given(name: str, where: str) -> Any:
    """Return the object that was given, or that a function of the user's returns."""
    if name.startswith(IN_MEMORY) and not isinstance(name, Given):
        raise wrong(f"{where} was data in memory; give the same in Python: raysim.resume(path, dataset=…)")
    value = find(name, "dataset")
    if not callable(value) or hasattr(value, "__getitem__"):
        return value
    try:
        return value()
    except Exception as error:
        raise wrong(f"{where}: {described(error)}") from error


def _load(name: str) -> Any:
    """Return a dataset of Hugging Face; code that comes with one is never run."""
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise wrong(f"--dataset hf:{name} needs the package datasets ({error}): pip install datasets") from None
    path, _, config = name.partition(":")
    try:
        return datasets.load_dataset(path, config or None)
    except Exception as error:  # no network, no such dataset, a broken file
        raise wrong(f"--dataset hf:{name}: {type(error).__name__}: {error}") from error
