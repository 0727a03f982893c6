"""--fuse auto: how many clients train in one vectorised step, decided by configuration and images alone."""

from __future__ import annotations

import dataclasses

from raysim import models
from raysim.config.run_config import RunConfig, why_not_fused
from raysim.definitions import is_own
from raysim.errors import InputError
from raysim.methods.base import balanced_group
from raysim.models.classifiers import Shape, all_models

# Measured on CPUs: smaller steps consist mostly of the overhead of their operations, which a group of clients shares;
# larger ones are faster one by one, in the cache.
SMALL_STEP = 20e6  # floating-point operations
MOST_CLIENTS = 20


def settled(config: RunConfig, shape: Shape, classes: int) -> tuple[RunConfig, str | None]:
    """The configuration with a number in place of `auto`, and a note for the user, if there is something to know."""
    if config.fuse != "auto":
        return config, None
    size = _advised(config, shape, classes)
    if size == 1:
        return dataclasses.replace(config, fuse=1), None
    if reason := _why_not(config, shape, classes):
        return dataclasses.replace(config, fuse=1), f"--fuse auto: clients train one by one: {reason}"
    return dataclasses.replace(config, fuse=size), f"--fuse auto: up to {size} clients train in one vectorised step"


def _advised(config: RunConfig, shape: Shape, classes: int) -> int:
    """The number of clients by the size of a local step, and by how many there are to be dealt to actors."""
    forward = operations(config.model, shape, classes)
    if forward is None or 3 * forward * config.batch_size > SMALL_STEP:  # backward costs twice as much as forward
        return 1
    return balanced_group(config.active or config.clients, MOST_CLIENTS)


def operations(name: str, shape: Shape, classes: int) -> int | None:
    """Floating-point operations of one image's forward pass; None for very many."""
    if not is_own(name):
        count = all_models()[name].operations
        return count(shape) if count else None
    import torch  # the driver has it already, since an own model is tried there

    from raysim.training.profiling import FlopCounter

    module = models.build(name, shape, classes, seed=0).eval()
    with torch.no_grad(), FlopCounter() as counter:
        module(torch.zeros(1, *shape))
    return counter.total


def _why_not(config: RunConfig, shape: Shape, classes: int) -> str | None:
    """Why clients have to train one by one; None: they need not."""
    if reason := why_not_fused(config):
        return reason
    if config.on_client_error == "skip":
        return "with --on-client-error skip, one that fails would take its group along"
    if is_own(config.model):
        from raysim.training import fused

        try:
            fused.check(models.build(config.model, shape, classes, config.seed), config.model, shape)
        except InputError as error:
            return str(error).removeprefix("--fuse: ").removesuffix("; use --fuse 1")
    return None
