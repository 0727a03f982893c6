"""Measures of what clients share and learn, in the space of a model's features, none of which decides a result.

Importing this package does not import torch: the driver reads the names.
"""

# Of shared images, after the name of the part that shares them -> what it is, for people.
IMAGE_MEASURES = {
    "fd": "Fréchet distance",
    "kd": "kernel distance (unbiased MMD², cubic)",
    "precision": "precision: share among the real ones",
    "recall": "recall: share of the real ones among them",
    "density": "density around real ones; as dense as these: 1",
    "coverage": "coverage: share of real ones with one near",
}
TRAINING = "training"  # training images' measures, to compare with, have this in place of a part's name
