"""Training of a WGAN-GP (Gulrajani et al., 2017) in repeatable slices, with a differentially private critic if wanted.

A step is a step of the critic; after every `critic_steps` of them the generator takes one. A slice of steps depends
only on the state it continues from and on one stream of draws: repeated, it gives the same result on any actor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.errors import InputError
from raysim.methods.base import Part
from raysim.models.flat import FlatModel
from raysim.models.gan import build_gan
from raysim.privacy.dpsgd import Privacy, private_gradient, sdafl_epsilon
from raysim.privacy.figures import Figure
from raysim.privacy.noise import normal_noise
from raysim.settings import setting
from raysim.tensors import upload_all
from raysim.training.optimizers import Adam, fresh_moments

if TYPE_CHECKING:
    from raysim.config import RunConfig
    from raysim.engine.server import Server

BETAS = (0.0, 0.9)  # Adam's, as in WGAN-GP
MOST_PRIVATE_STEPS = 200_000  # that the accountant composes in seconds; the paper has 18,000
SAMPLED = 500  # images generated at once


@dataclass(frozen=True)
class GanPart(Part):
    """A part that trains GANs before the first round: its settings and its privacy figures."""

    replies_with_model = False  # GANs are trained without the classifier

    pool: int = setting(40_000, "synthetic images of all clients together; 0: no GAN", minimum=0, maximum=10**8)
    gan_rounds: int = setting(200, "rounds of GAN training", minimum=1, maximum=10**6)
    gan_steps: int = setting(90, "critic steps per GAN round", minimum=1, maximum=10**6)
    gan_batch: int = setting(64, "real images per critic step, and as many generated ones", minimum=2, maximum=10**5)
    gan_lr: float = setting(1e-4, "learning rate of Adam, for generator and critic", above=0)
    critic_steps: int = setting(5, "critic steps per generator step", minimum=1)
    penalty: float = setting(10.0, "weight of the gradient penalty", minimum=0)
    noise: int = setting(100, "size of the generator's noise vector", minimum=1, maximum=10**4)
    width: int = setting(
        64, "channels of the critic's first layer; the next have twice and four times as many", minimum=1, maximum=4096
    )
    epsilon: float | None = setting(
        None, "ε of a client's whole GAN training; none: not private (no certificate)", above=0
    )
    delta: float = setting(1e-5, "δ of the (ε, δ) of the GAN training", minimum=1e-10, maximum=0.5)
    clip: float = setting(1.0, "norm to which a sample's critic gradient is clipped, if epsilon is given", above=0)

    @property
    def passes(self) -> int:
        """Return how many passes over the clients train the GANs."""
        return self.gan_rounds

    def exchange(self, server: "Server", t: int, i: int) -> str | None:
        return "all" if self.pool and t == 1 and i < self.passes else None

    def check(self, config: "RunConfig") -> None:
        if others := [part.name for part in config.parts if isinstance(part, GanPart) and part is not self]:
            raise InputError(f"--method {config.method}: {self.name} and {others[0]} both train GANs; use one of them")
        if self.epsilon is not None and self.gan_rounds * self.gan_steps > MOST_PRIVATE_STEPS:
            raise InputError(
                f"--{self.name}.epsilon: of more than {MOST_PRIVATE_STEPS:,} steps it would take minutes to compute; "
                f"lower --{self.name}.gan-rounds or --{self.name}.gan-steps"
            )

    def privacy(self, samples: int) -> Privacy | None:
        """Return the private steps of a client with this many samples; None without an ε."""
        if self.epsilon is None:
            return None
        rate = min(1.0, self.gan_batch / samples)
        return Privacy.calibrated(self.epsilon, self.delta, rate, self.gan_rounds * self.gan_steps, self.clip)

    def privacy_facts(self, privacy: Privacy | None) -> dict[str, float]:
        """Return the ε of a client's GAN training, by the accountant and by SDA-FL's formula, and its σ."""
        if privacy is None:
            return {}
        paper = sdafl_epsilon(privacy.noise_multiplier, privacy.rate, self.gan_steps, self.delta)
        return {"epsilon": privacy.epsilon(self.delta), "paper_epsilon": paper, "sigma": privacy.noise_multiplier}

    def certificate(self, server: "Server") -> list[Figure]:
        """Return the largest ε of all clients, beside that of SDA-FL's formula, or the reason why there is none."""
        if not self.pool:
            return [Figure("epsilon", None, note="nothing was shared")]
        if (facts := server.state[self.name].get("privacy")) is None:
            why = "no certificate: the critic's gradients are not clipped, so nothing bounds what one sample changes"
            return [Figure("epsilon", None, note=why)]
        note = f"δ {self.delta:g}, of the GAN's images alone; one sample added or removed, counts of labels public"
        paper = f"by SDA-FL's eq. 2: of one GAN round ({self.gan_steps} steps), not of all {self.gan_rounds}"
        return [
            Figure("epsilon", facts["epsilon"], note=note),
            Figure("paper_epsilon", facts["paper_epsilon"], note=paper),
        ]

    def note_privacy(self, server: "Server", facts: list[dict[str, Any]]) -> None:
        """Put the privacy facts of the client with the largest ε into the state and the metrics."""
        if self.epsilon is not None:
            largest = max(facts, key=lambda one: one["epsilon"])
            worst = {key: float(largest[key]) for key in ("epsilon", "paper_epsilon", "sigma")}
            server.state[self.name]["privacy"] = worst
            server.metrics |= {f"{self.name}.{key}": value for key, value in worst.items()}


class Gan:
    """A generator and a critic with their optimisers, new or continued from a state."""

    def __init__(
        self, part: GanPart, shape: Sequence[int], classes: int, device: torch.device,
        state: dict[str, Any] | None = None, seed: int = 0,
    ):  # fmt: skip
        self.part, self.classes = part, classes
        channels, height, width = shape
        modules = build_gan(part.noise, (channels, height, width), part.width, classes, seed)
        self.generator, self.critic = (FlatModel(module, device) for module in modules)
        self.done = 0  # steps of the critic so far
        if state:
            self.done = state["done"]
            self.generator.load(state["generator"])
            self.critic.load(state["critic"])
        models = {"generator": self.generator, "critic": self.critic}
        moments = (state or {}).get("adam") or {name: fresh_moments(m.flat_parameter) for name, m in models.items()}
        self.moments: dict[str, dict[str, Tensor]] = moments
        self.optimizers = {
            name: Adam([model.flat_parameter], lr=part.gan_lr, betas=BETAS, moments=[moments[name]])
            for name, model in models.items()
        }

    def state(self) -> dict[str, object]:
        """Return all that is needed to continue the training."""
        return {
            "done": self.done, "generator": self.generator.weights, "critic": self.critic.weights, "adam": self.moments
        }  # fmt: skip

    def train(
        self, x: Tensor, conditions: Tensor, steps: int, draw: np.random.Generator, privacy: Privacy | None
    ) -> None:
        """Train the critic for `steps` steps on images in [-1, 1], and the generator whenever a step of it is due."""
        key = int(draw.integers(2**63)) if privacy else 0  # of the private noise, which the device draws itself
        for at, drawn in enumerate(self._draws(len(x), steps, draw, privacy)):
            real, given = x[drawn.rows], conditions[drawn.rows]
            # A private critic needs running statistics: by those of the batch, one sample would change the others'
            # generated images, and so their gradients.
            self.generator.module.train(privacy is None)
            with torch.no_grad():
                fake = self.generator.module(drawn.noise, given)
            if privacy is None:
                self._critic_step(real, fake, drawn.mix, given)
            else:
                noise = normal_noise(key, at * self.critic.trainable, self.critic.trainable, x.device)
                self._private_step((real, fake, drawn.mix, given), privacy, noise)
            self.done += 1
            if drawn.generator is not None:
                rows, noise = drawn.generator
                self._generator_step(conditions[rows], noise)

    def _draws(
        self, samples: int, steps: int, draw: np.random.Generator, privacy: Privacy | None
    ) -> Iterator["StepDraws"]:
        """Draw all that each step needs, and upload it at once.

        With privacy these are Poisson samples, as the accountant assumes.
        """
        part, device = self.part, self.critic.device
        rows, mixes, noises, due, given, inputs = [], [], [], [], [], []
        for done in range(self.done + 1, self.done + steps + 1):
            if privacy is None:
                rows.append(draw.integers(samples, size=part.gan_batch))
            else:
                rows.append(np.flatnonzero(draw.random(samples) < privacy.rate))
            mixes.append(draw.random(len(rows[-1]), dtype=np.float32))
            noises.append(draw.standard_normal((len(rows[-1]), part.noise), dtype=np.float32))
            due.append(done % part.critic_steps == 0)
            if due[-1]:
                given.append(draw.integers(samples, size=part.gan_batch))
                inputs.append(draw.standard_normal((part.gan_batch, part.noise), dtype=np.float32))
        generator = iter(zip(upload_all(given, device), upload_all(inputs, device), strict=True))
        each = zip(upload_all(rows, device), upload_all(mixes, device), upload_all(noises, device), due, strict=True)
        return (StepDraws(at, mix, noise, next(generator) if step else None) for at, mix, noise, step in each)

    @torch.no_grad()
    def sample(self, conditions: Tensor, draw: np.random.Generator) -> Tensor:
        """Return images in [-1, 1], one for each row of `conditions`."""
        self.generator.module.eval()
        return torch.cat([self.generator.module(self._noise(draw, len(c)), c) for c in conditions.split(SAMPLED)])

    def _noise(self, draw: np.random.Generator, count: int) -> Tensor:
        noise = draw.standard_normal((count, self.part.noise), dtype=np.float32)
        return torch.from_numpy(noise).to(self.generator.device)

    def _critic_step(self, real: Tensor, fake: Tensor, mix: Tensor, given: Tensor) -> None:
        self.critic.gradients.zero_()
        critic_losses(self.critic.module, real, fake, mix, given, self.part.penalty).mean().backward()
        self.optimizers["critic"].step()

    def _private_step(self, inputs: tuple[Tensor, ...], privacy: Privacy, noise: Tensor) -> None:
        private_gradient(self.critic, sample_loss(self.critic.module, self.part.penalty), inputs, privacy, noise)
        self.critic.gradients /= self.part.gan_batch  # the expected batch size: the actual one is not public
        self.optimizers["critic"].step()

    def _generator_step(self, given: Tensor, noise: Tensor) -> None:
        self.generator.module.train()
        self.critic.module.requires_grad_(False)
        self.generator.gradients.zero_()
        fake = self.generator.module(noise, given)
        (-self.critic.module(fake, given).mean()).backward()
        self.optimizers["generator"].step()
        self.critic.module.requires_grad_(True)


class StepDraws(NamedTuple):
    """The random draws of one step of the critic, and of the generator's step if one is due after it."""

    rows: Tensor  # of the batch
    mix: Tensor  # where between generated and real images the gradient penalty is taken
    noise: Tensor
    generator: tuple[Tensor, Tensor] | None  # rows whose conditions it is given, and its noise


def penalties(slope: Tensor) -> Tensor:
    """Return the penalty (‖∂D/∂x̂‖ − 1)² of each sample, from its gradient [..., channels, height, width]."""
    return (torch.linalg.vector_norm(slope, dim=(-3, -2, -1)) - 1).square()


def between(real: Tensor, fake: Tensor, mix: Tensor) -> Tensor:
    """Return the points x̂ between generated and real images at which the gradient penalty is taken."""
    mix = mix[..., None, None, None]
    return mix * real + (1 - mix) * fake


def critic_losses(
    critic: torch.nn.Module, real: Tensor, fake: Tensor, mix: Tensor, given: Tensor, penalty: float
) -> Tensor:
    """Return the critic's loss of each sample: D(fake) − D(real) + penalty·(‖∂D/∂x̂‖ − 1)²."""
    losses = critic(fake, given) - critic(real, given)
    if not penalty:
        return losses
    at = between(real, fake, mix).requires_grad_()
    (slope,) = torch.autograd.grad(critic(at, given).sum(), [at], create_graph=True)
    return losses + penalty * penalties(slope)


def sample_loss(critic: torch.nn.Module, penalty: float) -> Callable[..., Tensor]:
    """Return the critic's loss of one sample as a function of its parameters, which torch.func can batch."""

    def loss(parameters: dict[str, Tensor], real: Tensor, fake: Tensor, mix: Tensor, given: Tensor) -> Tensor:
        def score(x: Tensor) -> Tensor:
            return torch.func.functional_call(critic, parameters, (x[None], given[None]))[0]

        value = score(fake) - score(real)
        return value + penalty * penalties(torch.func.grad(score)(between(real, fake, mix))) if penalty else value

    return loss


def to_unit(pixels: Tensor) -> Tensor:
    """Scale pixels in [0, 1] to [-1, 1], the range of a GAN's images."""
    return 2 * pixels - 1
