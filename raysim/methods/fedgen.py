"""FedGen (Zhu et al., 2021): a generator of features from the server, trained on the clients' heads alone."""

from dataclasses import dataclass, field
from typing import Literal

from raysim.methods.fedpa import FedPA


@dataclass(frozen=True)
class FedGen(FedPA):
    """FedGen: the head trained on features from the server's generator; FedPA without prototypes."""

    # What makes it FedGen is no setting.
    lambda_po: float = field(default=0.0, init=False)
    lambda_po_floor: float = field(default=0.0, init=False)
    gamma_ad: float = field(default=0.0, init=False)
    pairs: Literal["same", "different", "all"] = field(default="all", init=False)
