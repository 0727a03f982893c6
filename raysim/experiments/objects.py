"""How objects given in Python reach the runs of a grid, which are processes of their own: through shared memory.

They are pickled, as Ray does between the processes of a cluster, into memory without a name in any file system, of
which a run inherits the descriptor. Nothing is unpickled from a path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from raysim.config import RunConfig
from raysim.settings import Given, as_dict

DESCRIPTOR = "RAYSIM_OBJECTS"  # in the environment of a run: where its objects are


@contextmanager
def handed_over(config: RunConfig) -> Iterator[dict[str, str]]:
    """What the environment of a process must have to find this configuration's objects; {} if there are none.

    The descriptor in it has to be inherited.
    """
    given = {key: value for key, value in as_dict(config).items() if isinstance(value, Given)}
    if not given:
        yield {}
        return
    from ray import cloudpickle

    descriptor = os.memfd_create("raysim")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(cloudpickle.dumps(given))
        yield {DESCRIPTOR: str(descriptor)}
    finally:
        os.close(descriptor)


def taken_over(flags: dict[str, object]) -> dict[str, object]:
    """The flags of a run that was started with objects, with these in their place."""
    if (descriptor := os.environ.pop(DESCRIPTOR, None)) is None:
        return flags
    from ray import cloudpickle

    with open(int(descriptor), "rb") as file:
        file.seek(0)
        given: dict[str, Given] = cloudpickle.load(file)
    return flags | given
