"""FedDPGAN (Zhang et al., 2021): FedGAN whose critics are trained with clipped and noisy gradients."""

from dataclasses import dataclass

from raysim.errors import InputError
from raysim.methods.fedgan import FedGAN
from raysim.settings import setting


@dataclass(frozen=True)
class FedDPGAN(FedGAN):
    """FedDPGAN: FedGAN with differentially private critics at the clients."""

    epsilon: float | None = setting(10.0, "ε of a client's whole GAN training", above=0)

    def check(self, config):
        super().check(config)
        if self.epsilon is None:
            raise InputError("--feddpgan.epsilon none: that is fedgan; give a number, or use --method fedgan")
