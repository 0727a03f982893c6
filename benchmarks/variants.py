"""One synthesis by each variant of HFMDS, from a trained model: a picture side by side, and a table of figures.

    python -m benchmarks.variants RUN --data path/to/data --out docs/synthesis.png

RUN is a finished run of hfmds-cnn on CIFAR-10 with pixels in [-1, 1], e.g. of the study hfmds-two-classes, whose final
model is matched. Figures are means over 100 images, of which the picture shows the first; one is recognised if its
source correlates with it more than any other of 1,000 real images does. Takes some minutes.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional as F

from benchmarks.report import table
from raysim.data import load
from raysim.data.normalisation import Normalisation
from raysim.methods.common.features import class_sums
from raysim.methods.common.synthesis import ImageSynthesis
from raysim.models import build
from raysim.papers import settings_of
from raysim.privacy.psnr import psnr
from raysim.privacy.recognition import recognised

LETTER = {key.removeprefix("hfmds."): value for key, value in settings_of("hfmds", "letter").items()}
VARIANTS = {
    "the paper's letter, 500 steps": LETTER | {"steps": 500},
    "the same, match-weight auto": LETTER | {"steps": 500, "match_weight": "auto"},
    "cross-entropy alone, with our priors": {"match": "none", "label_weight": 1.0},
    "features": {"layer": "features"},
    "maps, with the mask": {"cam": "relu"},
    "maps, μ -0.5 (easy)": {"mu": -0.5},
    "maps, μ 0": {"mu": 0.0},
    "maps, μ 0.5 (default)": {},
    "maps, μ 1": {"mu": 1.0},
    "maps, 100 steps": {"steps": 100},
    "maps, the former synthesis (no coarser images)": {"levels": 0, "lr": 0.1},
}
MADE, SHOWN, ENLARGED = 100, 16, 2


def contrast(images: torch.Tensor) -> torch.Tensor:
    """The standard deviation of each image's pixels."""
    return images.std((1, 2, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory with the model")
    parser.add_argument("--data", required=True, help="folder with CIFAR-10")
    parser.add_argument("--out", type=Path, default=Path("synthesis.png"), help="the picture")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    split = load("cifar10", data=asked.data, train_size=1_000, test_size=10).train
    scale = Normalisation.half(3).on(torch.device("cpu"))
    x = scale.normalise_(torch.from_numpy(split.x).float()).contiguous(memory_format=torch.channels_last)
    y = torch.from_numpy(split.y)
    module = build("hfmds-cnn", (3, 32, 32), 10, seed=0).eval()
    module.load_state_dict(load_file(asked.run / "model.safetensors"))
    real, labels, made, rows = x[:MADE], y[:MADE], {}, []
    for name, settings in VARIANTS.items():
        part = ImageSynthesis(**settings)
        with torch.no_grad():
            sums, counts = class_sums(part.layer_of(module)[0](x), y, 10)
        draw = np.random.default_rng(0)
        start = part.start(draw, real.shape)
        prototypes = (sums / counts[:, None])[labels]
        made[name], record = part.synthesise(module, real, labels, prototypes, start, scale.limits(), draw)
        figures = {"PSNR": psnr(scale.to_pixels(made[name]), scale.to_pixels(real)), "contrast": contrast(made[name])}
        figures |= record | {"recognised": recognised(made[name], torch.arange(MADE), [x])}
        values = {key: f"{value.mean():.3g}" for key, value in figures.items()}
        keys = ("PSNR", "contrast", "ratio", "matching_start", "matching_end", "cosine_end", "ce_end", "recognised")
        rows.append([name, *(values.get(key, "") for key in keys)])
    heads = ["variant", "PSNR dB", "contrast", "gradient ratio", "matching loss: first", "last", "cosine"]
    print(table([*heads, "cross-entropy", "recognised"], rows))
    with torch.no_grad():
        ce = F.cross_entropy(module(real), labels)
        maps = module.maps(x)
    print(f"real images: contrast {contrast(real).mean():.3g}, cross-entropy {ce:.3g}")
    sums, counts = class_sums(maps, y, 10)
    for mu in (0.5, 1.0):
        hard = (1 + mu) * maps - mu * (sums / counts[:, None])[y]
        below = hard.clamp(max=0).square().sum(1) / hard.square().sum(1)
        print(f"μ {mu}: {below.mean():.1%} of a target's squared length is below 0, where no map is")
    apart = made["maps, μ 0"] - made["maps, μ 0.5 (default)"]
    print(f"μ 0 and 0.5: rms difference {apart.square().mean().sqrt():.3f} in [-1, 1]")
    lines = [torch.cat([*scale.to_pixels(images[:SHOWN])], 2) for images in (real, *made.values())]
    pixels = (255 * torch.cat(lines, 1).permute(1, 2, 0)).round().byte().numpy()
    picture = Image.fromarray(pixels)
    size = picture.width * ENLARGED, picture.height * ENLARGED
    picture.resize(size, Image.Resampling.NEAREST).quantize(128).save(asked.out, optimize=True)


if __name__ == "__main__":
    main()
