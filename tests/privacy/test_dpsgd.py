"""Private gradients against a loop over samples; the noise; the calibration to a target ε."""

import math

import numpy as np
import pytest
import torch

from raysim.methods.common.wgan import Gan, GanPart, critic_losses, sample_loss
from raysim.privacy.dpsgd import Privacy, private_gradient, sdafl_epsilon


@pytest.fixture
def gan():
    return Gan(GanPart(width=4, noise=8), (1, 8, 8), 0, torch.device("cpu"), seed=1)


def one_by_one(gan, inputs, clip):
    """Each sample's gradient by autograd, cut to the norm, added up."""
    total = torch.zeros_like(gan.critic.gradients)
    for each in zip(*inputs, strict=True):
        loss = critic_losses(gan.critic.module, *(value[None] for value in each), 10.0)[0]
        gradients = torch.autograd.grad(loss, gan.critic.parameters, retain_graph=True)
        norm = torch.cat([g.flatten() for g in gradients]).norm().item()
        for name, g in zip(gan.critic.parameter_names, gradients, strict=True):
            gan.critic.view(total, name).add_(g * min(1.0, clip / norm))
    return total


# 70 is more than one chunk; the clips: all are cut, some, none.
@pytest.mark.parametrize(("samples", "clip"), [(70, 0.5), (9, 12.0), (9, 1e6)])
def test_clipped_gradients_with_the_penalty_against_a_loop(gan, samples, clip):
    torch.manual_seed(2)
    real, fake = torch.randn(2, samples, 1, 8, 8).unbind()
    inputs = real, fake, torch.rand(samples), torch.empty(samples, 0)
    silence = torch.zeros(len(gan.critic.gradients))
    private_gradient(gan.critic, sample_loss(gan.critic.module, 10.0), inputs, Privacy(1.0, 0.1, 1, clip), silence)
    expected = one_by_one(gan, inputs, clip)
    torch.testing.assert_close(gan.critic.gradients, expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())
    if clip == 0.5:
        assert gan.critic.gradients.norm() <= samples * clip * (1 + 1e-5)


def test_the_noise_is_sigma_times_the_clip_and_an_empty_batch_gives_it_alone(gan):
    empty = torch.empty(0, 1, 8, 8), torch.empty(0, 1, 8, 8), torch.empty(0), torch.empty(0, 0)
    noise = torch.randn(len(gan.critic.gradients), generator=torch.Generator().manual_seed(0))
    private_gradient(gan.critic, sample_loss(gan.critic.module, 10.0), empty, Privacy(3.0, 0.1, 1, 0.5), noise)
    np.testing.assert_allclose(gan.critic.gradients, 1.5 * noise, rtol=1e-6)


def test_one_sample_more_moves_the_sum_by_no_more_than_the_clip(gan):
    torch.manual_seed(3)
    real, fake = 30 * torch.randn(2, 6, 1, 8, 8).unbind()[0], torch.randn(6, 1, 8, 8)
    inputs = real[:6], fake, torch.rand(6), torch.empty(6, 0)
    silence = torch.zeros(len(gan.critic.gradients))
    sums = []
    for count in (5, 6):
        taken = tuple(value[:count] for value in inputs)
        private_gradient(gan.critic, sample_loss(gan.critic.module, 10.0), taken, Privacy(1.0, 0.1, 1, 0.7), silence)
        sums.append(gan.critic.gradients.clone())
    assert (sums[1] - sums[0]).norm().item() == pytest.approx(0.7, rel=1e-3)  # such images have long gradients


def test_poisson_batches_have_the_rate_and_every_sample_its_chance(gan):
    draw, privacy = np.random.default_rng(0), Privacy(1.0, 0.25, 1, 1.0)
    batches = [drawn.rows for drawn in gan._draws(40, 2000, draw, privacy)]
    sizes = np.array([len(rows) for rows in batches])
    assert sizes.mean() == pytest.approx(10, abs=0.3)
    assert sizes.var() == pytest.approx(40 * 0.25 * 0.75, rel=0.15)  # of a binomial: batches are not of one size
    counts = np.bincount(np.concatenate(batches), minlength=40) / 2000
    assert np.abs(counts - 0.25).max() < 0.05


def test_the_noise_is_calibrated_to_epsilon_over_all_steps():
    privacy = Privacy.calibrated(5.0, 1e-5, 64 / 600, 200, 1.0)
    assert 4.9 < privacy.epsilon(1e-5) <= 5.0
    assert Privacy.calibrated(5.0, 1e-5, 64 / 600, 800, 1.0).noise_multiplier > privacy.noise_multiplier


def test_the_papers_formula_by_hand():
    """σ = 2q√(n_d ln(1/δ))/ε with q 0.01, n_d 90, δ 1e-5, ε 5."""
    sigma = 2 * 0.01 * math.sqrt(90 * math.log(1e5)) / 5
    assert sdafl_epsilon(sigma, 0.01, 90, 1e-5) == pytest.approx(5)
