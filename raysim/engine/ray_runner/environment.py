"""The environment Ray reads when it is imported; so this comes first, and imports no Ray."""

import os
import secrets


def has_own_ray() -> bool:
    """Whether a run starts its own Ray; otherwise RAY_ADDRESS names a cluster. "local" is Ray's word for that."""
    return os.environ.get("RAY_ADDRESS", "") in ("", "local")


def secure_local_ray() -> None:
    """A Ray started by this process takes orders only from whoever knows a token made here.

    Nothing is changed where a cluster is given (RAY_ADDRESS) or authentication was decided by the user.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if has_own_ray() and "RAY_AUTH_MODE" not in os.environ:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
