"""SGD and Adam beside torch.optim's classes, bit by bit, and beside the formulas by hand."""

import subprocess
import sys

import pytest
import torch

from raysim.training.optimizers import Adam, Sgd, fresh_moments

CASES = [
    (Sgd, torch.optim.SGD, {"lr": 0.1}),
    (Sgd, torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (Adam, torch.optim.Adam, {"lr": 0.1}),
    (Adam, torch.optim.Adam, {"lr": 0.1, "weight_decay": 0.01, "betas": (0.5, 0.9), "eps": 1e-3}),
]


def make_parameters() -> list[torch.Tensor]:
    torch.manual_seed(1)
    kernel = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(values) for values in (kernel, torch.randn(7))]


@pytest.mark.parametrize(("ours", "theirs", "settings"), CASES)
def test_steps_are_those_of_torch(ours, theirs, settings):
    mine, expected = make_parameters(), make_parameters()
    a, b = ours(mine, **settings), theirs(expected, fused=True, **settings)
    for step in range(4):
        for p, q in zip(mine, expected, strict=True):
            q.grad = torch.sin(p.detach() * (step + 1))
            p.grad = q.grad.clone()
        a.step()
        b.step()
    assert all(torch.equal(p, q) for p, q in zip(mine, expected, strict=True))


def test_sgd_by_hand():
    (p,) = parameters = [torch.nn.Parameter(torch.tensor([1.0]))]
    optimizer = Sgd(parameters, lr=0.5, momentum=0.5, weight_decay=0.1)
    p.grad = torch.tensor([1.0])
    optimizer.step()  # velocity 1 + 0.1·1 = 1.1
    assert p.item() == pytest.approx(1 - 0.5 * 1.1)
    p.grad = torch.tensor([2.0])
    optimizer.step()  # velocity 0.5·1.1 + 2 + 0.1·0.45 = 2.595
    assert p.item() == pytest.approx(0.45 - 0.5 * 2.595)


@pytest.mark.parametrize("kind", [Sgd, Adam])
def test_without_a_gradient_nothing_moves(kind):
    first, second = make_parameters()
    before = second.detach().clone()
    optimizer = kind([first, second], lr=0.1)
    first.grad = torch.ones_like(first)
    optimizer.step()
    assert torch.equal(second, before)
    optimizer.zero_grad()
    assert first.grad is None
    second.grad = torch.ones_like(second)  # its first step is the optimiser's second
    optimizer.step()
    assert not torch.equal(second, before)


def test_kept_moments_let_adam_go_on():
    straight, stopped = make_parameters()[:1], make_parameters()[:1]
    whole, moments = Adam(straight, lr=0.1), [fresh_moments(stopped[0])]
    for _ in range(4):
        straight[0].grad = torch.sin(straight[0].detach())
        whole.step()
        stopped[0].grad = torch.sin(stopped[0].detach())
        Adam(stopped, lr=0.1, moments=moments).step()
    assert torch.equal(straight[0], stopped[0])
    assert moments[0]["step"].item() == 4


def test_the_compiler_stays_out():
    """Which is what the module is for."""
    code = (
        "import sys, torch; from raysim.training.optimizers import Adam, Sgd; p = torch.nn.Parameter(torch.ones(3));"
        "p.grad = torch.ones(3); Sgd([p], lr=0.1, momentum=0.9).step(); Adam([p], lr=0.1).step();"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
