"""Detection of a GPU by its drivers' files, without torch, which may not see it."""

from pathlib import Path

# Of NVIDIA (also under Windows) and AMD, whatever torch was built for.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def machine_has_gpu() -> bool:
    """Whether this machine has a GPU's driver.

    Without one, GPUs that Ray counts are logical (`ray start --num-gpus`).
    """
    return any(Path(driver).exists() for driver in DRIVERS)
