"""Which images are recognised as made from their sources."""

import numpy as np
import torch

from raysim.models import convolution
from raysim.privacy.recognition import recognised


def test_an_image_is_recognised_where_no_other_correlates_more():
    draw = np.random.default_rng(0)
    real = torch.from_numpy(draw.random((30, 3, 4, 4)))
    sources = torch.tensor([3, 0, 29, 7, 12])
    made = real[sources].clone()
    made[0] = 0.1 + 0.2 * made[0]  # darker and paler
    made[1] += torch.from_numpy(0.3 * draw.standard_normal((3, 4, 4)))
    made[2] = real[28]  # of another
    made[3] = torch.from_numpy(draw.random((3, 4, 4)))  # of none
    made[4] = 1 - made[4]  # the negative correlates least
    expected = []
    for image, source in zip(made, sources, strict=True):
        with_each = [np.corrcoef(image.flatten(), other.flatten())[0, 1] for other in real]
        expected.append(float(np.argmax(with_each) == source))
    assert recognised(made, sources, real.split(7)).tolist() == expected
    assert expected[:3] == [1, 1, 0]
    assert expected[4] == 0


def test_an_image_without_contrast_is_not_recognised():
    real = torch.rand(5, 1, 3, 3)
    real[2] = 0.5
    made = torch.stack([real[1], torch.full((1, 3, 3), 0.2), torch.full((1, 3, 3), 0.5)])
    assert recognised(made, torch.tensor([1, 0, 2]), [real]).tolist() == [1, 0, 0]


def test_the_operations_do_not_count():
    seen = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.mm.default:
                seen.append(convolution.useful)
            return function(*args, **kwargs or {})

    with Watched():
        recognised(torch.rand(2, 1, 3, 3), torch.tensor([0, 1]), [torch.rand(4, 1, 3, 3)])
    assert seen == [0]
    assert convolution.useful == 1
