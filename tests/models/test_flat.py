from dataclasses import dataclass

import torch
from torch import nn

from raysim.methods.base import Part
from raysim.models.flat import FlatModel

CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 4))


def test_weights_are_parameters_then_floating_buffers():
    plain, model = net(), FlatModel(net(), CPU)
    buffers = [b for b in plain.buffers() if b.is_floating_point()]
    # Convolution kernels lie channels-last.
    laid_out = [t.detach().permute(0, 2, 3, 1) if t.dim() == 4 else t.detach() for t in [*plain.parameters(), *buffers]]
    assert torch.equal(model.weights, torch.cat([t.reshape(-1) for t in laid_out]))
    assert model.gradients.numel() == sum(p.numel() for p in plain.parameters())
    assert list(model.integer_buffers) == ["1.num_batches_tracked"]


def test_training_through_the_flat_vector_equals_training_the_module():
    plain, model = net(), FlatModel(net(), CPU)
    ours = torch.optim.SGD([model.flat_parameter], lr=0.1, momentum=0.9, weight_decay=1e-3)
    theirs = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    for _ in range(3):
        model.gradients.zero_()
        nn.functional.cross_entropy(model.module(x), y).backward()
        ours.step()
        theirs.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        theirs.step()
    for name, value in plain.state_dict().items():
        if value.is_floating_point():
            assert torch.allclose(model.view(model.weights, name), value, rtol=1e-5, atol=1e-6), name


def test_loading_changes_the_module_and_batch_norm_buffers_stay_views():
    model = FlatModel(net(), CPU)
    before = model.weights.clone()
    model.module.train()
    model.module(torch.randn(4, 1, 8, 8))
    assert not torch.equal(model.view(model.weights, "1.running_mean"), model.view(before, "1.running_mean"))
    model.load(before)
    assert torch.equal(model.module[1].running_mean, torch.zeros(3))


@dataclass(frozen=True)
class Personal(Part):
    pattern: str

    def personal(self, module, t):
        return (self.pattern,)


def test_personal_mask_and_export():
    model = FlatModel(net(), CPU)
    mask = model.personal_mask([Personal("1.*")], t=1)
    assert int(mask.sum()) == 4 * 3
    assert model.personal_mask([Personal("nothing")], t=1) is None
    exported = model.export(model.weights)
    assert exported["4.weight"].shape == (4, 108)
    assert exported["1.num_batches_tracked"] == 0
    model.weights.zero_()
    assert exported["4.weight"].any()  # a copy
