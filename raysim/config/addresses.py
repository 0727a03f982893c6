"""Addresses of run directories in an object store: s3://bucket/path, gs://…, abfs://…; what they may say, and not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from raysim.errors import InputError

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss")
OPTIONS = ("endpoint_override", "scheme", "region")  # of an s3 address, after a question mark
AZURE_PLACE = re.compile(r"([^:@]+@)?[^:@]+(:\d+)?")  # a container at an account, which may be on a port


@dataclass(frozen=True)
class Address:
    """An address in its parts."""

    scheme: str
    path: str  # with the bucket, as stores take it
    options: dict[str, str]


def is_remote(path: object) -> bool:
    """Whether a path is an address in an object store."""
    return isinstance(path, str) and "://" in path


def parsed(where: str, text: str) -> Address:
    """Return the parts of an address; an InputError that does not repeat it where it has credentials in it.

    They would be printed, recorded in config.json and passed on by reports. `where` is the setting or the command.
    """
    try:
        parts = urlsplit(text)
    except ValueError:  # its message may repeat what stands before an @
        raise InputError(f"{where}: what is given is no address; give one like s3://bucket/runs/first") from None
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if _has_credentials(parts.scheme, unquote(parts.netloc), unquote(parts.path)) or any(
        "@" in value for value in options.values()
    ):
        raise InputError(f"{where}: leave credentials out of the address; they are read from the environment")
    path = f"{parts.netloc}/{parts.path.strip('/')}"
    short = f"{parts.scheme}://{path}"
    if parts.scheme not in SCHEMES:
        raise InputError(f"{where} {short}: unknown kind of store; there are {', '.join(f'{s}://' for s in SCHEMES)}")
    if not parts.netloc or not parts.path.strip("/"):
        raise InputError(f"{where} {short}: give a bucket and a path in it, as in s3://bucket/runs/first")
    if unknown := sorted(options.keys() - {*(OPTIONS if parts.scheme == "s3" else ())}):
        name = f" '{unknown[0]}'" if options[unknown[0]] and re.fullmatch(r"[a-z_]{1,30}", unknown[0]) else ""
        raise InputError(f"{where} {short}: unknown option{name} after the question mark; remove it")
    if parts.fragment:
        raise InputError(f"{where} {short}: an address ends before the first '#'; remove what follows")
    return Address(parts.scheme, path, options)


def _has_credentials(scheme: str, place: str, path: str) -> bool:
    """Whether a place is more than a bucket, or an Azure container at its account.

    A secret may have a slash in it, after which the rest of it is in the path.
    """
    if not scheme.startswith("abfs"):
        return "@" in place or ":" in place
    return not AZURE_PLACE.fullmatch(place) or (":" in place and "@" in path)
