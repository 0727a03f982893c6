"""The GAN's networks: layers, sizes of images, conditions, and samples that stay by themselves in the critic."""

import pytest
import torch
from torch import nn

from raysim.models.gan import build_gan


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8), (3, 9, 30)])
@pytest.mark.parametrize("classes", [0, 10])
def test_images_of_any_size_with_or_without_a_class(shape, classes):
    generator, critic = build_gan(16, shape, 4, classes, seed=1)
    given = torch.eye(classes)[torch.zeros(2, dtype=torch.long)] if classes else torch.empty(2, 0)
    made = generator(torch.randn(2, 16), given)
    assert made.shape == (2, *shape)
    assert made.abs().max() <= 1
    assert critic(made, given).shape == (2,)


def test_four_transposed_convolutions_and_four_convolutions_with_a_linear_layer_and_no_batch_norm_in_the_critic():
    generator, critic = build_gan(100, (1, 28, 28), 64, 0, seed=1)
    made, judged = ([type(m) for m in net.modules()] for net in (generator, critic))
    assert made.count(nn.ConvTranspose2d) == 4
    assert (judged.count(nn.Conv2d), judged.count(nn.Linear), judged.count(nn.BatchNorm2d)) == (4, 1, 0)


def test_the_condition_chooses_the_score_and_changes_the_image():
    generator, critic = build_gan(8, (1, 8, 8), 4, 3, seed=1)
    x, noise = torch.randn(1, 1, 8, 8), torch.randn(1, 8)
    scores = critic.head(critic.layers(x))[0]
    generator.eval()
    made = [generator(noise, torch.eye(3)[[label]]) for label in range(3)]
    assert [critic(x, torch.eye(3)[[label]]).item() for label in range(3)] == scores.tolist()
    assert not torch.allclose(made[0], made[1])


def test_the_seed_decides_the_weights_and_torchs_own_draws_stay():
    torch.manual_seed(3)
    expected = torch.randn(2)
    torch.manual_seed(3)
    first, second, other = (build_gan(8, (1, 8, 8), 4, 0, seed)[1].head.weight for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.randn(2), expected)


def test_images_too_small_are_refused():
    with pytest.raises(ValueError, match="at least 8×8, not 8×7"):
        build_gan(8, (1, 8, 7), 4, 0, seed=1)
