import torch

from raysim.methods.common.features import class_sums


def test_class_sums_by_hand():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    sums, counts = class_sums(features, torch.tensor([2, 0, 2]), 4)
    assert sums.tolist() == [[3.0, 4.0], [0.0, 0.0], [11.0, 22.0], [0.0, 0.0]]
    assert counts.tolist() == [1.0, 0.0, 2.0, 0.0]
