"""Folders of images, one sub-folder per class: DIR/train/<class>/*.png with DIR/test/…, or DIR/<class>/*.png."""

from pathlib import Path

import numpy as np

from raysim.data import images
from raysim.data.dataset import Found, Source, wrong
from raysim.data.loaders.base import Loader, Request

TEST_FOLDERS = ("test", "validation", "valid", "val")  # the first one found is used
EXPECTED = "give a folder with *.parquet files, train/<class>/ and test/<class>/, or <class>/ holding .png or .jpg"


class ImageFolder(Loader):
    """A loader of folders that no other loader knows: of images, one sub-folder per class."""

    turn = 3

    def find(self, request: Request) -> Found | None:
        return None if request.folder is None else _find(request.folder)


def _find(folder: Path) -> Found:
    train, test = folder, None
    if _folders(folder / "train"):  # without sub-folders, train is a class of that name
        train = folder / "train"
        test = next((folder / name for name in TEST_FOLDERS if _folders(folder / name)), None)
    class_names = tuple(path.name for path in _folders(train))
    if not class_names:
        raise wrong(f"{folder}: no images in folders of classes; {EXPECTED}")
    notes: list[str] = []
    train_source = _source(train, class_names, notes)
    if test is None:
        return Found(class_names, train_source, None, tuple(notes), name=folder.resolve().name)
    for path in _folders(test):
        if path.name not in class_names:
            raise wrong(f"{path}: a class that {train} does not have; rename it or add training images")
    if test.name != "test":
        notes.append(f"{folder}: no test split; {test.name} is the test split")
    test_source = _source(test, class_names, notes)
    return Found(class_names, train_source, test_source, tuple(notes), name=folder.resolve().name)


def _folders(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")) if path.is_dir() else []


def _source(root: Path, class_names: tuple[str, ...], notes: list[str]) -> Source:
    files: list[Path] = []
    y: list[int] = []
    ignored = 0
    for folder in _folders(root):
        inside = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        mine = [path for path in inside if path.suffix.lower() in images.EXTENSIONS]
        if not mine:
            raise wrong(f"{folder}: no images in this class; add {' '.join(images.EXTENSIONS)} files or remove it")
        ignored += len(inside) - len(mine)
        files += mine
        y += [class_names.index(folder.name)] * len(mine)
    if ignored:
        notes.append(f"{root}: {ignored} files that are not {' '.join(images.EXTENSIONS)} were left out")
    return Source(np.array(y, np.int64), images.reader(files))
