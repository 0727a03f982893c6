"""torchvision, imported in one place: its compiled operators do not load beside the CPU build of torch."""

import importlib
import sys
import warnings
from types import ModuleType

MISSING_OPERATORS = "operator torchvision::nms does not exist"
BOX_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

_kept = []  # a torch.library.Library takes its definitions with it when it goes


def import_torchvision() -> ModuleType:
    """`import torchvision`, for datasets, transforms and models; nobody else in raysim imports it.

    Its compiled operators want CUDA libraries, and without them the import fails on an operator for object detection
    that it only wants to describe. Declaring that operator, without a body, is enough for everything used here.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to load image Python extension")
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            if MISSING_OPERATORS not in str(error):
                raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # half imported
        if not _kept:
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            for operator in ("nms", "qnms"):
                library.define(operator + BOX_SCHEMA)
            _kept.append(library)
        return importlib.import_module("torchvision")
