import torch

from raysim.methods.common.features import class_sums, optimise_images


def test_class_sums_by_hand():
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 20.0]])
    sums, counts = class_sums(features, torch.tensor([2, 0, 2]), 4)
    assert sums.tolist() == [[3.0, 4.0], [0.0, 0.0], [11.0, 22.0], [0.0, 0.0]]
    assert counts.tolist() == [1.0, 0.0, 2.0, 0.0]


def test_optimising_images_stops_when_it_no_longer_helps():
    """(x − 1)² from 0: Adam gains a lot at first and little later."""
    calls = []

    def objective(x):
        calls.append(x)
        return (x - 1).square().sum()

    start = torch.zeros(2, 1, 3, 3)
    whole = optimise_images(start, objective, 300, 0.02)
    assert len(calls) == 300
    assert torch.allclose(whole, torch.ones_like(whole), atol=1e-2)
    calls.clear()
    early = optimise_images(start, objective, 300, 0.02, tolerance=0.5)
    stopped = len(calls) - 1  # its loss was only looked at
    assert stopped in (10, 20, 30, 40)
    assert torch.equal(early, optimise_images(start, objective, stopped, 0.02))
    assert not start.any()
