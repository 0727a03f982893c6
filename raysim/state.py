"""The parts' state: what it may hold, and its forms on the host, on a device and in files.

All of them give back what was given: every type, every key, every bit; `check_state` refuses the rest. What they do not
keep is a tensor's device and gradient, an array's order in memory, and that two names mean one object.

In its form on the host, which is sent and kept, a bare array is what was a tensor; what was an array is an `OwnArray`.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.errors import InputError

if TYPE_CHECKING:
    import torch

DEEPEST = 50  # levels of dicts and lists; one that contains itself has more
SCALARS = {type(None), bool, int, float, str}
DICTS = {dict, OrderedDict}
KINDS = "biufcmMSU"  # of NumPy's types: numbers, times and texts, but neither objects nor records
LONG = "gG"  # of those the numbers whose bytes are not decided by their value, and mean nothing elsewhere
TENSORS = {
    f"torch.{name}"
    for name in (
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
        "float64", "complex64", "complex128",
    )
}  # fmt: skip
# Types of arrays that safetensors can hold; others are kept as bytes.
NATIVE = {*map(np.dtype, ("bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8"))}
PLAIN_NAME = re.compile(r"[\w.-]{1,80}")

# A JSON object that has one of these keys and no other stands for something that JSON does not have.
TENSOR, ARRAY, SCALAR = "tensor", "$array", "$scalar"
TUPLE, DICT, ORDERED = "$tuple", "$dict", "$ordered"
INTEGER, FLOAT = "$int", "$float"
TAGS = {TENSOR, ARRAY, SCALAR, TUPLE, DICT, ORDERED, INTEGER, FLOAT}


@dataclass(frozen=True)
class OwnArray:
    """An array of a state that was one of NumPy's, and no tensor."""

    array: np.ndarray


def check_state(part: str, state: object) -> None:
    """Refuse a part's state that cannot be given back as it is: an InputError names part, key and type."""
    if type(state) not in DICTS:
        raise InputError(f"{part}: its state is {_kind(state)}, where a dict belongs")
    if found := _fault(state, 0):
        fault, *keys = found
        place = "".join(f"[{short(key)}]" for key in keys[:-6:-1]) + ("[…]" if len(keys) > 5 else "")
        raise InputError(f"{part}: state{place} {fault}")


def _fault(value: Any, depth: int) -> list[Any] | None:
    """What is wrong with a value, followed by the keys that lead to it, the innermost first; None if nothing is."""
    kind = type(value)
    if kind in SCALARS:
        return None
    if depth > DEEPEST:
        return [f"is nested deeper than {DEEPEST} levels, or in itself; keep it flatter"]
    if kind in DICTS or kind in (list, tuple):
        for key, inner in value.items() if kind in DICTS else enumerate(value):
            if not _is_key(key):
                return [f"has a key that is {_kind(key)}, which no checkpoint can keep; take a text or a number"]
            if found := _fault(inner, depth + 1):
                return [*found, key]
        return None
    if _is_array(value):
        return None
    return [
        f"is {_kind(value)}, which no checkpoint can keep; a state has dicts, lists, tuples, numbers, texts, None, "
        "tensors and arrays (bfloat16 as float32)"
    ]


def _is_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_is_key, key))
    return type(key) in SCALARS or (isinstance(key, np.generic) and _can_be_bytes(key.dtype))


def _is_array(value: Any) -> bool:
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return _can_be_bytes(value.dtype)
    return _is_tensor(value) and str(value.dtype) in TENSORS and str(value.layout) == "torch.strided"


def _can_be_bytes(dtype: np.dtype) -> bool:
    return dtype.kind in KINDS and dtype.char not in LONG


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "layout")  # torch is not imported to find that out


def _kind(value: Any) -> str:
    """The type of a value, in words."""
    if _is_tensor(value):
        layout = "" if str(value.layout) == "torch.strided" else str(value.layout).replace("torch.", "") + " "
        return f"a {layout}tensor of {str(value.dtype).removeprefix('torch.')}"
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"a {name} of {value.dtype}"[:200] if isinstance(value, np.ndarray | np.generic) else f"a {name}"[:200]


def short(key: Any) -> str:
    """Return a key of a state as a text for people, of at most 60 characters."""
    if type(key) is tuple:
        text = f"({', '.join(map(short, key))})"
    else:  # Python writes no decimal of some thousand digits
        text = hex(key) if type(key) is int and key.bit_length() > 64 else repr(key)
    return text if len(text) <= 60 else f"{text[:60]}…"


# -- on the host and on a device ---------------------------------------------------------------------------------------


def state_to_host(value: Any) -> Any:
    """Return a state, or what is in one, in its form on the host."""
    if type(value) in DICTS:
        return type(value)((key, state_to_host(inner)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value)(map(state_to_host, value))
    if _is_tensor(value):
        return value.detach().cpu().resolve_conj().resolve_neg().numpy()
    return OwnArray(np.asarray(value, order="C")) if isinstance(value, np.ndarray) else value


def state_to_device(value: Any, device: torch.device) -> Any:
    """Return a copy of a state in its form on the host, with its tensors on the device."""
    if type(value) in DICTS:
        return type(value)((key, state_to_device(inner, device)) for key, inner in value.items())
    if type(value) in (list, tuple):
        return type(value)(state_to_device(inner, device) for inner in value)
    if isinstance(value, np.ndarray):
        import torch

        return torch.tensor(value, device=device)
    return np.array(value.array) if isinstance(value, OwnArray) else value


# -- in files ----------------------------------------------------------------------------------------------------------


def pack(value: Any, tensors: dict[str, np.ndarray], at: str) -> Any:
    """Return a state on the host as JSON; its arrays move to `tensors`, under names that begin with `at`."""
    if type(value) in DICTS:
        inner = [(key, pack(each, tensors, _name(at, i, key))) for i, (key, each) in enumerate(value.items())]
        if type(value) is dict and all(type(key) is str for key in value) and not _looks_tagged(value):
            return dict(inner)
        tag = DICT if type(value) is dict else ORDERED
        return {tag: [[pack(key, tensors, f"{at}/key"), each] for key, each in inner]}
    if type(value) in (list, tuple):
        items = [pack(each, tensors, f"{at}/{i}") for i, each in enumerate(value)]
        return items if type(value) is list else {TUPLE: items}
    if isinstance(value, OwnArray):
        return {ARRAY: _put(value.array, tensors, at)}
    if isinstance(value, np.generic):  # before float, which NumPy's float64 is too
        return {SCALAR: _put(np.asarray(value), tensors, at)}
    if isinstance(value, np.ndarray):
        return {TENSOR: _put(value, tensors, at)}
    if type(value) is float and not math.isfinite(value):
        return {FLOAT: np.array(value, "<f8").tobytes().hex()}  # a NaN has bits that count in digests
    if type(value) is int and value.bit_length() > 64:  # as for `short`
        return {INTEGER: hex(value)}
    if type(value) not in SCALARS:
        raise TypeError(f"{at} is {_kind(value)}")
    return value


def _looks_tagged(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in TAGS


def _name(at: str, i: int, key: Any) -> str:
    """The name of what a dict has at a key, for people: it need neither be unique nor have the whole key."""
    return f"{at}/{key}" if type(key) is str and PLAIN_NAME.fullmatch(key) else f"{at}/{i}"


def _put(array: np.ndarray, tensors: dict[str, np.ndarray], name: str) -> Any:
    """Put an array under a name that is free; returns the name, for one of bytes with its type and shape."""
    while name in tensors:
        name += "'"
    array = np.asarray(array, order="C")
    if array.dtype in NATIVE:
        tensors[name] = array
        return name
    tensors[name] = np.frombuffer(array.tobytes(), np.uint8)
    return [name, array.dtype.str, list(array.shape)]


def unpack(tree: Any, tensors: dict[str, np.ndarray]) -> Any:
    """Return what was given to `pack`, its arrays perhaps as views. Raises what is in `MALFORMED` of anything else."""
    if isinstance(tree, list):
        return [unpack(each, tensors) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if not _looks_tagged(tree):
        return {key: unpack(each, tensors) for key, each in tree.items()}
    ((tag, content),) = tree.items()
    if tag == TUPLE:
        return tuple(unpack(each, tensors) for each in content)
    if tag in (DICT, ORDERED):
        pairs: Iterable[tuple[Any, Any]] = ((unpack(key, tensors), unpack(each, tensors)) for key, each in content)
        return dict(pairs) if tag == DICT else OrderedDict(pairs)
    if tag == FLOAT:
        return np.frombuffer(bytes.fromhex(content), "<f8")[0].item()
    if tag == INTEGER:
        return int(content, 16)
    array = _get(content, tensors)
    if tag == SCALAR:
        return array[()]
    return OwnArray(array) if tag == ARRAY else array


def _get(place: Any, tensors: dict[str, np.ndarray]) -> np.ndarray:
    if isinstance(place, str):
        return tensors[place]
    name, dtype, shape = place
    return np.ndarray(shape, np.dtype(dtype), tensors[name].tobytes())
