"""WGAN-GP: the penalty in closed form on a linear critic, single steps by hand, slices that go on where one ended."""

import numpy as np
import pytest
import torch
from torch import nn

from raysim.data.normalisation import DeviceNormalisation
from raysim.methods.common.wgan import Gan, GanPart, critic_losses, sample_loss, to_unit
from raysim.privacy.dpsgd import Privacy

SMALL = GanPart(width=4, noise=8, gan_batch=8, gan_rounds=2, gan_steps=6, gan_lr=1e-3)
CPU = torch.device("cpu")


class Linear(nn.Module):
    """D(x) = ⟨w, x⟩: its slope is w everywhere, so the penalty is (‖w‖ − 1)²."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(1, 4, 4, dtype=torch.float64))

    def forward(self, x, given):
        return (x * self.w).sum((1, 2, 3))


def test_loss_and_gradient_of_a_linear_critic_in_closed_form():
    torch.manual_seed(0)
    critic = Linear()
    real, fake = torch.randn(2, 5, 1, 4, 4, dtype=torch.float64).unbind()
    mix, given = torch.rand(5, dtype=torch.float64), torch.empty(5, 0)
    loss = critic_losses(critic, real, fake, mix, given, 10.0)
    w = critic.w.detach()
    norm = w.norm()
    np.testing.assert_allclose(loss.detach(), ((fake - real) * w).sum((1, 2, 3)) + 10 * (norm - 1) ** 2)
    loss.mean().backward()
    np.testing.assert_allclose(critic.w.grad, (fake - real).mean(0) + 20 * (norm - 1) * w / norm)


def test_the_penalty_is_taken_between_real_and_fake():
    """D(x) = Σx²/2 has the slope x̂ itself, which shows where it was taken."""
    real, fake, mix = torch.full((1, 1, 2, 2), 3.0), torch.full((1, 1, 2, 2), 1.0), torch.tensor([0.25])
    loss = critic_losses(lambda x, given: x.square().sum((1, 2, 3)) / 2, real, fake, mix, None, 1.0)
    assert loss.item() == pytest.approx(2 - 18 + (2 * (0.25 * 3 + 0.75 * 1) - 1) ** 2)


@pytest.mark.parametrize("classes", [0, 3])
def test_the_loss_of_one_sample_is_that_of_the_batch(classes):
    gan = Gan(SMALL, (1, 8, 8), classes, CPU, seed=1)
    real, fake = torch.rand(2, 5, 1, 8, 8).unbind()
    mix, given = torch.rand(5), torch.eye(classes)[torch.arange(5) % classes] if classes else torch.empty(5, 0)
    together = critic_losses(gan.critic.module, real, fake, mix, given, 10.0)
    one = sample_loss(gan.critic.module, 10.0)
    parameters = dict(gan.critic.module.named_parameters())
    alone = [one(parameters, *each) for each in zip(real, fake, mix, given, strict=True)]
    torch.testing.assert_close(torch.stack(alone), together)


def test_one_step_of_the_critic_by_hand():
    """Adam with β1 = 0 first moves every weight by lr·g/(|g| + ε)."""
    gan = Gan(SMALL, (1, 8, 8), 0, CPU, seed=1)
    x, before = torch.rand(20, 1, 8, 8) * 2 - 1, gan.critic.weights.clone()
    draw = np.random.default_rng(5)
    rows, mix = draw.integers(20, size=8), torch.from_numpy(draw.random(8, dtype=np.float32))
    noise = torch.from_numpy(draw.standard_normal((8, 8), dtype=np.float32))
    twin = Gan(SMALL, (1, 8, 8), 0, CPU, seed=1)
    twin.generator.module.train()
    fake = twin.generator.module(noise, torch.empty(8, 0)).detach()
    critic = twin.critic.module
    at = (mix[:, None, None, None] * x[rows] + (1 - mix[:, None, None, None]) * fake).requires_grad_()
    given = torch.empty(8, 0)
    slope = torch.autograd.grad(critic(at, given).sum(), at, create_graph=True)[0].flatten(1).norm(dim=1)
    loss = critic(fake, given).mean() - critic(x[rows], given).mean() + 10 * ((slope - 1) ** 2).mean()
    gradients = torch.autograd.grad(loss, list(critic.parameters()))
    gan.train(x, torch.empty(20, 0), 1, np.random.default_rng(5), None)
    for name, g in zip(gan.critic.parameter_names, gradients, strict=True):
        moved = gan.critic.view(before - gan.critic.weights, name)
        clear = g.abs() > 1e-4
        torch.testing.assert_close(moved[clear], 1e-3 * g[clear].sign(), rtol=1e-3, atol=1e-6)


def test_the_generator_steps_after_every_fifth_step_of_the_critic():
    gan = Gan(SMALL, (1, 8, 8), 0, CPU, seed=1)
    x, none, draw = torch.rand(20, 1, 8, 8), torch.empty(20, 0), np.random.default_rng(0)
    trainable = len(gan.generator.flat_parameter)
    before, moved = gan.generator.weights[:trainable].clone(), []
    for _ in range(11):
        gan.train(x, none, 1, draw, None)
        moved.append(not torch.equal(before, gan.generator.weights[:trainable]))
        before = gan.generator.weights[:trainable].clone()
    assert [i + 1 for i, has in enumerate(moved) if has] == [5, 10]
    assert all(p.requires_grad for p in gan.critic.module.parameters())


@pytest.mark.parametrize("privacy", [None, Privacy(0.5, 0.4, 12, 1.0)])
def test_slices_from_a_kept_state_equal_the_slices_of_one_gan(privacy):
    x, none = torch.rand(20, 1, 8, 8) * 2 - 1, torch.empty(20, 0)
    whole = Gan(SMALL, (1, 8, 8), 0, CPU, seed=1)
    state = {}
    for part in range(3):
        whole.train(x, none, 4, np.random.default_rng(part), privacy)
        resumed = Gan(SMALL, (1, 8, 8), 0, CPU, state, seed=1)
        resumed.train(x, none, 4, np.random.default_rng(part), privacy)
        state = resumed.state()
    assert state["done"] == whole.done == 12
    assert torch.equal(resumed.generator.weights, whole.generator.weights)
    made = [gan.sample(torch.empty(3, 0), np.random.default_rng(9)) for gan in (whole, resumed)]
    assert torch.equal(*made)


def test_it_learns_two_brightnesses():
    """Of flat images that are dark or light, the generator gives about as many of each and little between."""
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.choice([-0.7, 0.7], 200).astype(np.float32))[:, None, None, None].expand(-1, 1, 8, 8)
    gan = Gan(GanPart(width=8, noise=8, gan_batch=32, gan_lr=2e-3), (1, 8, 8), 0, CPU, seed=1)
    gan.train(x.contiguous(), torch.empty(200, 0), 400, draw, None)
    levels = gan.sample(torch.empty(300, 0), draw).mean((1, 2, 3))
    assert 0.2 < (levels > 0).float().mean() < 0.8
    assert (levels.abs() > 0.35).float().mean() > 0.7


def test_pixels_there_and_back():
    mean, std = torch.tensor([100.0]).view(1, 1, 1, 1), torch.tensor([50.0]).view(1, 1, 1, 1)
    x = torch.linspace(-2, 3.1, 12).view(3, 1, 2, 2)
    pixels = (x * std + mean) / 255
    torch.testing.assert_close(DeviceNormalisation(mean, std).from_unit(to_unit(pixels)), x)
