"""The public datasets that have names: where they are looked for, how they are read, what their classes are called.

They are looked for as DIR/NAME/*.parquet, then in torchvision's layout in DIR, then in the folder of Debian's dataset
packages; with --download, torchvision fetches them. CIFAR, SVHN and CelebA in torchvision's layout are read by
torchvision, which checks MD5 sums before it reads (and, for CIFAR, unpickles); the MNIST family is read here, without
torch.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raysim.data import idx, images
from raysim.data.dataset import Found, Source, check_labels, home_path, wrong
from raysim.data.loaders import parquet
from raysim.data.loaders.base import Loader, Request
from raysim.data.torchvision_import import import_torchvision

DEBIAN = Path("/usr/share/datasets")  # of Debian's packages: dataset-fashion-mnist has its files in fashion-mnist/
DIGITS = tuple("0123456789")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""


Splits = tuple[Source, Source]  # training and test


@dataclass(frozen=True)
class Named:
    """A public dataset."""

    about: str
    class_names: tuple[str, ...]
    layout: str  # the file or folder in DIR that shows that torchvision's layout of the dataset is there
    download: Callable[[Any, Path], object]  # (torchvision.datasets, DIR): makes torchvision download it to DIR
    read: Callable[[Any, Path], Splits] | None = None  # (torchvision.datasets, DIR) -> train, test; None: idx
    idx_files: tuple[str, str] = ("train", "t10k")  # the beginnings of their names, training and test
    first_label: int = 0
    upright: bool = True  # False: stored with rows and columns exchanged
    label_column: str | None = None  # in Parquet files, if not one of the usual
    image_size: int | None = None  # unless the user gives another


def _cifar(kind: str) -> Callable[[Any, Path], Splits]:
    def read(datasets: Any, root: Path) -> Splits:
        splits = (getattr(datasets, kind)(root, train=train) for train in (True, False))
        train, test = (images.in_memory(np.moveaxis(split.data, 3, 1), np.array(split.targets)) for split in splits)
        return train, test

    return read


def _svhn(datasets: Any, root: Path) -> Splits:
    splits = (datasets.SVHN(root, split=split) for split in ("train", "test"))
    train, test = (images.in_memory(split.data, split.labels) for split in splits)
    return train, test


def _celeba(datasets: Any, root: Path) -> Splits:
    def source(split: Any) -> Source:
        files = [root / "celeba" / "img_align_celeba" / name for name in split.filename]
        smiling = split.attr[:, split.attr_names.index("Smiling")].numpy().astype(np.int64)
        return Source(smiling, images.reader(files))

    train, test = (source(datasets.CelebA(root, split=split)) for split in ("train", "test"))
    return train, test


DATASETS = {
    "mnist": Named(
        "handwritten digits, 60,000 + 10,000 grey 28x28",
        DIGITS,
        "MNIST/raw",
        lambda datasets, root: datasets.MNIST(root, download=True),
    ),
    "fashion_mnist": Named(
        "clothes, 60,000 + 10,000 grey 28x28; Debian: apt install dataset-fashion-mnist",
        FASHION,
        "FashionMNIST/raw",
        lambda datasets, root: datasets.FashionMNIST(root, download=True),
    ),
    "emnist": Named(
        "handwritten letters (26 classes), 124,800 + 20,800 grey 28x28",
        LETTERS,
        "EMNIST/raw",
        lambda datasets, root: datasets.EMNIST(root, split="letters", download=True),
        idx_files=("emnist-letters-train", "emnist-letters-test"),
        first_label=1,
        upright=False,
    ),
    "cifar10": Named(
        "photographs in 10 classes, 50,000 + 10,000 RGB 32x32",
        CIFAR10,
        "cifar-10-batches-py",
        lambda datasets, root: datasets.CIFAR10(root, download=True),
        read=_cifar("CIFAR10"),
    ),
    "cifar100": Named(
        "photographs in 100 classes, 50,000 + 10,000 RGB 32x32",
        tuple(CIFAR100.split()),
        "cifar-100-python",
        lambda datasets, root: datasets.CIFAR100(root, download=True),
        read=_cifar("CIFAR100"),
    ),
    "svhn": Named(
        "street-view house numbers, 73,257 + 26,032 RGB 32x32",
        DIGITS,
        "train_32x32.mat",
        lambda datasets, root: [datasets.SVHN(root, split=split, download=True) for split in ("train", "test")],
        read=_svhn,
    ),
    "celeba": Named(
        "faces, smiling or not, 162,770 + 19,962 RGB, resized to 84x84 unless --image-size",
        ("not smiling", "smiling"),
        "celeba",
        lambda datasets, root: datasets.CelebA(root, download=True),
        read=_celeba,
        label_column="Smiling",
        image_size=84,
    ),
}


class ByName(Loader):
    """A loader of the public datasets by name."""

    turn = 1

    def find(self, request: Request) -> Found | None:
        if request.name not in DATASETS:
            return None
        found = _find(request)
        return replace(found, image_size=DATASETS[request.name].image_size)

    def catalogue(self) -> dict[str, str]:
        return {name: f"{dataset.about}; from --data DIR, or --download" for name, dataset in DATASETS.items()}


def _find(request: Request) -> Found:
    """Return the dataset of that name; `data` is DIR (default: RAYSIM_DATA, or the folder data)."""
    name, download = request.name, request.download
    named = DATASETS[name]
    root = home_path(request.data or os.environ.get("RAYSIM_DATA") or "data")
    if parquet.has_files(root / name):
        columns = (named.label_column,) if named.label_column else parquet.LABEL_COLUMNS
        return parquet.find_splits(root / name, named.class_names, columns, named.first_label, request.columns)
    debian = DEBIAN / name.replace("_", "-")
    found = _read(named, root, debian)
    if found is None and download:
        _download(name, named, root)
        found = _read(named, root, debian)
    if found is None:
        places = [root / name / "*.parquet", root / named.layout, *([] if named.read else [debian])]
        looked = ", ".join(str(place) for place in places)
        raise wrong(f"{name} was not found (looked for {looked}); give --data DIR, set RAYSIM_DATA, or add --download")
    return found


def _read(named: Named, root: Path, debian: Path) -> Found | None:
    """Return the dataset in torchvision's layout or Debian's, or None if it is in neither."""
    if named.read is None:
        for folder in (root / named.layout, root / named.layout / "gzip", debian):
            if splits := _idx_splits(named, folder):
                return Found(named.class_names, *splits)
        return None
    if not (root / named.layout).exists():
        return None
    try:
        return Found(named.class_names, *named.read(import_torchvision().datasets, root))
    except Exception as error:  # torchvision raises many kinds of exception for broken files
        place = root / named.layout
        raise wrong(f"{place}: torchvision cannot read it ({error}); delete it, then give --download") from error


def _idx_splits(named: Named, folder: Path) -> Splits | None:
    """Return training and test split from the four idx files in a folder, or None if the folder has none of them."""
    names = [f"{split}-{kind}-ubyte" for split in named.idx_files for kind in ("images-idx3", "labels-idx1")]
    places = {n: next((path for path in (folder / n, folder / f"{n}.gz") if path.is_file()), None) for n in names}
    files = [path for path in places.values() if path is not None]
    if not files:
        return None
    if missing := [name for name, path in places.items() if path is None]:
        raise wrong(f"{folder / missing[0]}: missing beside the others; complete or delete that folder")
    return _idx_split(named, *files[:2]), _idx_split(named, *files[2:])


def _idx_split(named: Named, pixels: Path, labels: Path) -> Source:
    """Return one split from its file of images and its file of labels."""
    x, y = idx.read_images(pixels), idx.read_labels(labels).astype(np.int64)
    if len(x) != len(y):
        raise wrong(f"{pixels}: {len(x)} images, but {len(y)} labels in {labels.name}; replace both files")
    check_labels(y, len(named.class_names), str(labels), named.first_label)
    x = x if named.upright else x.transpose(0, 2, 1)
    return images.in_memory(x[:, None], y - named.first_label)


def _download(name: str, named: Named, root: Path) -> None:
    try:
        named.download(import_torchvision().datasets, root)
    except Exception as error:  # no network, no space, a server's refusal, a missing package
        raise wrong(f"{name}: download to {root} failed ({error}); fetch it elsewhere and give --data DIR") from error
