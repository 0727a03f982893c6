"""The loaders are found by their files and asked in their turn."""

import subprocess
import sys

from raysim.data.loaders import all_loaders, catalogue

NEW = """
import numpy as np
from raysim.data import images
from raysim.data.dataset import Found
from raysim.data.loaders.base import Loader

class Raw(Loader):
    turn = 2

    def find(self, request):
        if request.folder is None or not (file := request.folder / "images.npy").exists():
            return None
        x = np.load(file)
        return Found(("even", "odd"), images.in_memory(x, np.arange(len(x)) % 2), None)
"""
USE = """
import sys
from raysim.data import load, loaders
loaders.__path__.append(sys.argv[1])
import numpy as np
np.save(sys.argv[2] + "/images.npy", np.zeros((12, 1, 8, 8), np.uint8))
assert load(sys.argv[2]).train.x.shape == (10, 1, 8, 8)
"""


def test_names_are_asked_before_layouts():
    names = ["Shapes", "ByName", "ParquetFolder", "ImageFolder", "OwnData"]
    assert [type(loader).__name__ for loader in all_loaders()] == names
    assert [name for name, _ in catalogue()][:2] == ["shapes", "mnist"]


def test_a_new_layout_is_one_file(tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "code" / "raw.py").write_text(NEW)
    words = [sys.executable, "-c", USE, str(tmp_path / "code"), str(tmp_path / "images")]
    subprocess.run(words, check=True, timeout=60)


def test_they_are_imported_when_a_dataset_is_loaded():
    code = "import sys, raysim.data; sys.exit(bool({'PIL', 'pyarrow', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
