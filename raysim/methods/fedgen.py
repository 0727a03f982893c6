"""FedGen (Zhu et al., 2021): a feature generator at the server, trained on the clients' heads alone."""

from dataclasses import dataclass, field
from typing import Literal

from raysim.methods.fedpa import FedPA


@dataclass(frozen=True)
class FedGen(FedPA):
    """FedGen: a head also trained on features from the server's generator; FedPA without prototypes."""

    # Fixed, and so no settings: these values make FedPA into FedGen.
    lambda_po: float = field(default=0.0, init=False)
    lambda_po_floor: float = field(default=0.0, init=False)
    gamma_ad: float = field(default=0.0, init=False)
    ad_reach: float | None = field(default=None, init=False)
    pairs: Literal["same", "different", "all"] = field(default="all", init=False)
