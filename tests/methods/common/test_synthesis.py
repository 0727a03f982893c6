"""Synthesis option by option, against NumPy, finite differences and objectives written out here."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from raysim.data.normalisation import Normalisation
from raysim.methods.common.features import class_activation
from raysim.methods.common.synthesis import ImageSynthesis, optimise_images, total_variation
from raysim.models import build

LABELS = torch.tensor([0, 1, 3, 3])
LIMITS = Normalisation((120.0, 110.0, 100.0), (60.0, 60.0, 50.0)).on(torch.device("cpu")).limits()


PLAIN = {
    "layer": "features",
    "match": "none",
    "cam": "none",
    "label_weight": 1.0,
    "tv": 0.0,
    "clamp": False,
    "levels": 0,
    "lr": 0.02,
}


def synthesis(**own):
    """The plain one, cross-entropy alone, but for these settings."""
    return ImageSynthesis(**PLAIN | own)


@pytest.fixture
def module():
    return build("small-cnn", (3, 16, 16), 5, seed=3).eval()


@pytest.fixture
def real():
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def start():
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def synthesise(part, module, real, start, prototypes=None, seed=0):
    return part.synthesise(module, real, LABELS, prototypes, start, LIMITS, np.random.default_rng(seed))


def double():
    return build("small-cnn", (3, 16, 16), 5, seed=3).eval().double()


def assert_first_step(made, start, objective, lr=0.02, after=lambda pixels: pixels):
    """That these images are after one step of Adam on the objective: −lr·g/(|g| + ε), with g in float64."""
    x = start.double().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(x), [x])
    expected = after(start.double() - lr * gradient / (gradient.abs() + 1e-8))
    clear = after(gradient.abs()) > 1e-6  # where the sign is beyond rounding
    assert clear.float().mean() > 0.4
    assert torch.allclose(made.double()[clear], expected[clear], atol=1e-4)


def test_the_activation_of_maps_is_a_derivative_that_depends_on_them(real):
    module = double()
    maps = module.maps(real.double()).detach()
    logits = lambda z: module.head(module.features_of(z))  # noqa: E731
    found = class_activation(logits, maps, LABELS)
    assert not torch.allclose(found[2], found[3])  # of one class, unlike a head's row
    for sample, i in ((0, 0), (1, 7), (2, 11), (3, 15)):
        up, down = maps.clone(), maps.clone()
        up[sample, i] += 1e-6
        down[sample, i] -= 1e-6
        slope = (logits(up) - logits(down))[sample, LABELS[sample]] / 2e-6
        assert found[sample, i].item() == pytest.approx(slope.item(), abs=1e-7)


@pytest.mark.parametrize("cam", ["relu", "raw", "none"])
def test_maps_are_matched_through_the_activation_at_the_hard_maps(cam, module, real, start):
    prototypes = torch.rand(4, 16)
    part = synthesis(layer="maps", match="relative", match_weight=2.0, label_weight=0.3, cam=cam, mu=0.5, steps=1)
    made, record = synthesise(part, module, real, start, prototypes)
    other = double()
    target = (1.5 * other.maps(real.double()) - 0.5 * prototypes.double()).detach().requires_grad_()
    score = other.head(other.features_of(target))[range(4), LABELS].sum()
    mask = torch.autograd.grad(score, [target])[0]
    mask = {"relu": mask.clamp(min=0), "raw": mask, "none": torch.ones_like(mask)}[cam]
    wanted = (target * mask).detach()

    def matching(x):
        return ((other.maps(x) * mask - wanted) ** 2).sum(1) / (wanted**2).sum(1)

    def cross_entropy(x):
        return F.cross_entropy(other(x), LABELS, reduction="none")

    assert_first_step(made, start, lambda x: (0.3 * cross_entropy(x) + 2.0 * matching(x)).sum())
    assert torch.allclose(record["matching_start"].double(), matching(start.double()), rtol=1e-4)
    assert torch.allclose(record["matching_end"].double(), matching(made.double()), rtol=1e-4)
    assert torch.allclose(record["ce_end"].double(), cross_entropy(made.double()), rtol=1e-4)
    cosines = F.cosine_similarity(other.maps(made.double()) * mask, wanted)
    assert torch.allclose(record["cosine_end"].double(), cosines, atol=1e-4)


def test_auto_weighs_each_image_so_that_its_gradient_is_a_share_of_the_cross_entropys(module, real, start):
    part = synthesis(layer="maps", match="mse", match_weight="auto", match_share=0.25, cam="none", mu=0, steps=1)
    made, record = synthesise(part, module, real, start)
    other, x = double(), start.double().requires_grad_()
    matching = ((other.maps(x) - other.maps(real.double())) ** 2).mean(1)
    ce = F.cross_entropy(other(x), LABELS, reduction="none")
    norms = [torch.autograd.grad(v.sum(), [x], retain_graph=True)[0].flatten(1).norm(dim=1) for v in (matching, ce)]
    weights = (0.25 * norms[1] / norms[0]).detach()
    assert weights.max() > 1.01 * weights.min()

    def objective(x):
        matching = ((other.maps(x) - other.maps(real.double()).detach()) ** 2).mean(1)
        return (weights * matching + F.cross_entropy(other(x), LABELS, reduction="none")).sum()

    assert_first_step(made, start, objective)
    assert torch.allclose(record["ratio"], torch.full((4,), 0.25), rtol=1e-4)
    fixed = synthesis(layer="maps", match="mse", match_weight=3.0, cam="none", mu=0, steps=0)
    ratio = synthesise(fixed, module, real, start)[1]["ratio"]
    assert torch.allclose(ratio.double(), (3 * norms[0] / norms[1]).detach(), rtol=1e-4)


def test_total_variation(start):
    x = start.numpy()
    down = [np.abs(image[:, 1:] - image[:, :-1]).mean() for image in x]
    across = [np.abs(image[:, :, 1:] - image[:, :, :-1]).mean() for image in x]
    np.testing.assert_allclose(total_variation(start).numpy(), np.add(down, across), rtol=1e-5)
    part = synthesis(match="none", label_weight=0.0, tv=0.5, steps=200)
    module, real = build("small-cnn", (3, 16, 16), 5, seed=3).eval(), torch.zeros_like(start)
    assert total_variation(synthesise(part, module, real, start)[0]).max() < 0.2 * total_variation(start).min()


def test_total_variation_is_a_term_beside_the_cross_entropy(module, real, start):
    """By its definition, written out here: the first step goes by the signs of the gradient of their sum."""
    made, _ = synthesise(synthesis(tv=0.5, steps=1), module, real, start)
    other = double()

    def objective(x):
        down, across = x[:, :, 1:] - x[:, :, :-1], x[..., 1:] - x[..., :-1]
        variation = down.abs().mean((1, 2, 3)) + across.abs().mean((1, 2, 3))
        return (F.cross_entropy(other(x), LABELS, reduction="none") + 0.5 * variation).sum()

    assert_first_step(made, start, objective)


@pytest.mark.parametrize("match", ["kl", "kl-reverse"])
def test_features_are_matched_at_the_temperature(match, module, real, start):
    part = synthesis(match=match, match_weight=2.0, temperature=0.3, label_weight=0.0, mu=0, steps=1)
    made, record = synthesise(part, module, real, start)
    other = double()
    wanted = other.features(real.double()).detach()

    def matching(x):
        p, q = (torch.softmax(z / 0.3, 1) for z in (other.features(x), wanted))
        return ((p * (p / q).log()) if match == "kl" else (q * (q / p).log())).sum(1)

    assert_first_step(made, start, lambda x: 2.0 * matching(x).sum())
    assert torch.allclose(record["matching_start"].double(), matching(start.double()), rtol=1e-3)


def test_auto_takes_maps_where_the_model_has_them(module):
    assert ImageSynthesis().layer_of(module)[0] == module.maps
    flat = build("mlp", (3, 16, 16), 5, seed=3)
    assert ImageSynthesis().layer_of(flat)[0] == flat.features


def test_a_term_of_weight_0_is_not_computed(real, start):
    module = build("small-cnn", (3, 16, 16), 5, seed=3).eval()
    calls = []
    module.head.register_forward_hook(lambda *_: calls.append(1))
    part = synthesis(layer="maps", match="mse", cam="none", mu=0, label_weight=0.0, steps=7)
    synthesise(part, module, real, start)
    assert len(calls) == 2  # what is recorded of the first and the last images
    unmatched = synthesis(match="none", steps=7)
    assert set(synthesise(unmatched, module, real, start)[1]) == {"ce_end"}


def test_the_scale_of_the_noise_and_its_shape():
    shape, drawn = (4, 3, 16, 15), np.random.default_rng(5).standard_normal((4, 3, 16, 15), dtype=np.float32)
    for scale in (1.0, 0.1):
        got = synthesis(noise=scale).start(np.random.default_rng(5), shape)
        np.testing.assert_allclose(got.numpy(), scale * drawn, rtol=1e-6)
    assert synthesis(coarse=2).start(np.random.default_rng(5), shape).shape == (4, 3, 8, 8)


def bilinear(pixels, side):
    """Square images in another size, by a matrix: neighbours count by their distance, edges by themselves."""
    given = pixels.shape[-1]
    matrix = torch.zeros(side, given, dtype=torch.float64)
    for i in range(side):
        place = (i + 0.5) * given / side - 0.5
        low = int(np.floor(place))
        for j, share in ((low, 1 - (place - low)), (low + 1, place - low)):
            matrix[i, min(max(j, 0), given - 1)] += share
    return matrix @ pixels @ matrix.T


def test_coarse_images_are_optimised_and_enlarged(module, real):
    coarse = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(4))
    enlarge = lambda pixels: bilinear(pixels, 16)  # noqa: E731
    part = synthesis(match="none", coarse=2, steps=0)
    assert torch.allclose(synthesise(part, module, real, coarse)[0].double(), enlarge(coarse.double()), atol=1e-5)
    part, other = synthesis(match="none", coarse=2, steps=1), double()
    made, _ = synthesise(part, module, real, coarse)
    assert made.shape == real.shape
    objective = lambda x: F.cross_entropy(other(enlarge(x)), LABELS, reduction="sum")  # noqa: E731
    assert_first_step(made, coarse, objective, after=enlarge)


def steps_of_levels(start, sides, objective, lr, limits, steps):
    """Adam by its formulas on an image and coarser ones beside it, all in float64; what leaves the range is cut off."""
    parts = [start.double(), *(torch.zeros(*start.shape[:2], side, side, dtype=torch.float64) for side in sides)]
    means, squares = ([torch.zeros_like(part) for part in parts] for _ in range(2))
    whole = lambda parts: sum(bilinear(part, start.shape[-1]) for part in parts)  # noqa: E731
    for step in range(1, steps + 1):
        parts = [part.requires_grad_() for part in parts]
        gradients = torch.autograd.grad(objective(whole(parts)), parts)
        for i, gradient in enumerate(gradients):
            means[i] = 0.9 * means[i] + 0.1 * gradient
            squares[i] = 0.999 * squares[i] + 0.001 * gradient**2
            mean, square = means[i] / (1 - 0.9**step), squares[i] / (1 - 0.999**step)
            parts[i] = parts[i].detach() - lr * mean / (square.sqrt() + 1e-8)
        images = whole(parts)
        parts[0] = parts[0] + images.clamp(*limits) - images
    return whole(parts)


def test_coarser_images_are_optimised_along_and_added():
    """A smooth objective, so that rounding does not decide a sign; 10 halved and rounded up is 5, 3 and 2."""
    draw = torch.Generator().manual_seed(6)
    start, goal = (torch.randn(2, 3, 10, 10, generator=draw) for _ in range(2))
    limits = torch.full((1, 3, 1, 1), -1.2), torch.full((1, 3, 1, 1), 1.2)
    objective = lambda x: (x.mean(3) - 2 * goal.to(x.dtype).mean(3)).square().sum() + (x - goal).pow(4).sum()  # noqa: E731
    made = optimise_images(start, objective, 12, 0.05, limits, levels=3)
    expected = steps_of_levels(start, (5, 3, 2), objective, 0.05, limits, 12)
    assert torch.allclose(made.double(), expected, atol=1e-4)
    assert (made.abs() <= torch.tensor(1.2)).all()
    assert not torch.allclose(made, optimise_images(start, objective, 12, 0.05, limits), atol=0.05)


def test_large_shapes_need_fewer_steps_with_coarser_images():
    """What they are for: the same steps bring a smooth image nearer, by the maps of the paper's CNN."""
    module = build("hfmds-cnn", (3, 32, 32), 5, seed=3).eval()
    draw = torch.Generator().manual_seed(1)
    smooth = F.avg_pool2d(torch.randn(4, 3, 48, 48, generator=draw), 17, 1)
    smooth, start = smooth / smooth.std(), 0.1 * torch.randn(4, 3, 32, 32, generator=draw)
    errors = {}
    for levels in (0, 3):
        part = synthesis(
            layer="maps", match="relative", mu=0, label_weight=0.0, tv=0.1, lr=0.06, levels=levels, steps=20
        )
        errors[levels] = (synthesise(part, module, smooth, start)[0] - smooth).square().mean().item()
    assert errors[3] < 0.5 * errors[0]


def test_jitter_shifts_the_images_in_every_step(module, real, start):
    part = synthesis(match="none", jitter=3, steps=1)
    made, _ = synthesise(part, module, real, start, seed=8)
    down, across = np.random.default_rng(8).integers(-3, 4, 2)
    assert (down, across) != (0, 0)
    other = double()

    def objective(x):
        return F.cross_entropy(other(x.roll((int(down), int(across)), (2, 3))), LABELS, reduction="sum")

    assert_first_step(made, start, objective)


def test_jitter_shifts_the_images_otherwise_in_the_next_step(module, real, start):
    part = synthesis(jitter=3, steps=2)
    draw = np.random.default_rng(8)
    shifts = [tuple(draw.integers(-3, 4, 2).tolist()) for _ in range(2)]
    assert shifts[0] != shifts[1]
    made, _ = synthesise(part, module, real, start, seed=8)
    expected = steps_of_shifts(start, shifts)
    assert (made.double() - expected).abs().median() < 1e-5
    assert (made.double() - steps_of_shifts(start, [shifts[0]] * 2)).abs().median() > 1e-4


def steps_of_shifts(start, shifts, lr=0.02):
    """Adam by its formulas on the cross-entropy of images that are shifted by so much in each step, in float64."""
    module, x = double(), start.double()
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    for step, shift in enumerate(shifts, 1):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(module(x.roll(shift, (2, 3))), LABELS, reduction="sum"), [x])
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        x = x - lr * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
    return x.detach()


def test_maps_bring_back_the_image_that_features_do_not():
    """Why they are matched: most of an image can be told from its maps, of the paper's CNN even with random weights."""
    module = build("hfmds-cnn", (3, 32, 32), 5, seed=3).eval()
    draw = torch.Generator().manual_seed(1)
    smooth = F.avg_pool2d(torch.randn(4, 3, 40, 40, generator=draw), 9, 1)
    smooth = smooth / smooth.std()
    errors = {}
    for layer in ("maps", "features"):
        part = synthesis(layer=layer, match="relative", cam="none", mu=0, label_weight=0.0, tv=0.1, steps=60, lr=0.1)
        made, record = synthesise(part, module, smooth, 0.1 * torch.randn(4, 3, 32, 32, generator=draw))
        errors[layer] = (made - smooth).square().mean().item()
        assert record["cosine_end"].min() > 0.9
    assert errors["maps"] < 0.75 * errors["features"]


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


def test_a_synthesis_stops_by_its_tolerance(module, real, start):
    """Of cross-entropy alone, the loss that a share of is asked for; after ten steps it has fallen by less than 0.9."""
    ten, whole, stopped = (
        synthesise(synthesis(**own), module, real, start)[0]
        for own in ({"steps": 10}, {"steps": 30}, {"steps": 30, "tolerance": 0.9})
    )
    assert torch.equal(stopped, ten)
    assert not torch.equal(stopped, whole)
