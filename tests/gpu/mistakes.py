"""Mistakes that only a GPU would show, made on purpose: the pretended device has to show them too."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from raysim.engine.failures import ClientFailure
from raysim.methods.fedprox import FedProx
from tests.gpu.device import LOG, WrongDevice
from tests.gpu.runs import measured_runs, on_device, steps
from tests.simulate import blobs, simulate


def _waits(part: FedProx, client: Any, step: Any) -> torch.Tensor | None:
    return 0 * step.ce if step.ce.item() > 0 else None


def _waits_for_a_mask(part: FedProx, client: Any, step: Any) -> torch.Tensor:
    return 0 * step.features[step.real_y == 0].sum()


def _uploads(part: FedProx, client: Any, step: Any) -> torch.Tensor:
    noise = client.stream("noise").standard_normal(step.features.shape[1], dtype=np.float32)
    return 0 * (step.features * torch.from_numpy(noise).to(step.features.device)).sum()


def _indexes_from_the_host(part: FedProx, client: Any, step: Any) -> torch.Tensor:
    return 0 * step.features[torch.arange(2)].sum()


def _forgets_to_upload(part: FedProx, client: Any, step: Any) -> torch.Tensor:
    return 0 * (step.features * torch.ones(step.features.shape[1])).sum()


def _loss(mistaken: Any) -> AbstractContextManager[Any]:
    return patch.object(FedProx, "loss", mistaken)


def _seeded() -> dict[str, AbstractContextManager[Any]]:
    """What is done wrong -> a context in which it is."""
    return {
        "a tensor stays on the host": _loss(_forgets_to_upload),
        "the host reads the device's memory": patch(
            "raysim.engine.client_work.to_host", lambda sums: {key: total.numpy() for key, total in sums.items()}
        ),
        "a step waits for a number": _loss(_waits),
        "a step waits for a mask": _loss(_waits_for_a_mask),
        "a step uploads draws": _loss(_uploads),
        "a step uploads an index": _loss(_indexes_from_the_host),
    }


def caught() -> dict[str, str]:
    """What is done wrong -> how the device shows it; empty where it does not."""
    return {what: _shown(mistake) for what, mistake in _seeded().items()}


def _shown(mistake: AbstractContextManager[Any]) -> str:
    settings = measured_runs()["fedprox"] | {"privacy": 0, "rounds": 1, "on_client_error": "stop"}
    try:
        with mistake, on_device():
            simulate(blobs(train=60, test=20, shape=(3, 32, 32)), **settings)
    except (ClientFailure, WrongDevice) as error:
        return str(error) if WrongDevice.__name__ in repr(error) else ""
    return "; ".join(steps(LOG.events)[1])
