"""The import of torchvision, whose compiled operators do not load beside the CPU build of torch."""

import importlib
import sys
import warnings
from types import ModuleType

MISSING_OPERATORS = "operator torchvision::nms does not exist"
BOX_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_kept: list[object] = []  # the definitions of a torch.library.Library vanish with it


def import_torchvision() -> ModuleType:
    """Return the module torchvision; all of raysim imports it through this function.

    Its compiled operators need CUDA libraries. Without them the import fails at an operator for object detection, for
    which torchvision only registers a description. Declaring that operator without a body is enough for raysim.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if MISSING_OPERATORS not in str(error):
                raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # only half imported
        if not _kept:
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(operator + BOX_SCHEMA)
            _kept.append(library)
        return importlib.import_module("torchvision")
