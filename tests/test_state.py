"""A part's state: everything it may hold comes back as it was, and everything else is refused by name."""

import copy
import json
import pickle
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load, save

import raysim
from raysim.engine.digest import digest
from raysim.errors import InputError, RaysimError
from raysim.state import ARRAY, TAGS, check_state, pack, state_to_device, state_to_host, unpack
from raysim.storage.server_state import read_state
from tests.simulate import simulate, simulate_on_ray

TORCH_TYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
    torch.int64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
NUMPY_TYPES = [
    "?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8", "M8[D]",
    "m8[ns]", "U3", "S3",
]  # fmt: skip


def drawn(kind: str, size: int, seed: int) -> np.ndarray:
    """An array of any bits that this type can have."""
    dtype = np.dtype(kind)
    draw = np.random.default_rng(seed)
    if dtype.kind in "?bU":
        return draw.integers(0, 2, size).astype(dtype)
    return np.frombuffer(draw.bytes(size * dtype.itemsize), dtype).copy()


shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def arrays(draw: Any) -> np.ndarray:
    shape = draw(shapes)
    array = drawn(draw(st.sampled_from(NUMPY_TYPES)), int(np.prod(shape)), draw(st.integers(0, 99))).reshape(shape)
    return draw(st.sampled_from([array, array.T, array[..., ::-1] if shape else array, np.asfortranarray(array)]))


@st.composite
def tensors(draw: Any) -> torch.Tensor:
    shape = draw(shapes)
    raw = drawn("u1", 16 * int(np.prod(shape)) + 16, draw(st.integers(0, 99)))
    kind = draw(st.sampled_from(TORCH_TYPES))
    if kind == torch.bool:
        tensor = torch.from_numpy(raw[16::16] > 127).reshape(shape)
    else:
        tensor = torch.from_numpy(raw).view(kind)[: int(np.prod(shape))].reshape(shape)
    ways = [tensor, tensor.permute(tuple(reversed(range(tensor.ndim))))]
    if kind.is_complex:
        ways += [tensor.conj(), tensor.conj().imag]
    return draw(st.sampled_from(ways))


numbers = st.integers() | st.integers(2**63, 2**70).map(lambda n: -(n**300)) | st.floats()
texts = st.text(st.characters(exclude_categories=[])) | st.sampled_from(sorted(TAGS))
scalars = st.none() | st.booleans() | numbers | texts
generics = arrays().filter(lambda array: array.size).map(lambda array: array.reshape(-1)[0])
keys = st.recursive(
    scalars | generics | st.sampled_from(["a", "a/b", "b", "a'"]), lambda inner: st.tuples(inner, inner)
)


def below(inner: Any) -> Any:
    dicts = st.dictionaries(keys, inner, max_size=4)
    return st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | dicts | dicts.map(OrderedDict)


states = st.dictionaries(keys, st.recursive(scalars | generics | arrays() | tensors(), below, max_leaves=8), max_size=4)


def bits(value: Any) -> Any:
    """A value as what can be compared: its types, and every bit."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return kind, [(bits(key), bits(inner)) for key, inner in value.items()]
    if kind in (list, tuple):
        return kind, [bits(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return kind, value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return kind, value.dtype, tuple(value.shape), value.resolve_conj().resolve_neg().contiguous().numpy().tobytes()
    return kind, np.float64(value).tobytes() if kind is float else value


def through_files(host: Any) -> Any:
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(pack(host, arrays, "at"), allow_nan=False).encode()
    return unpack(json.loads(text), load(save(arrays)))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(states)
def test_every_state_comes_back_from_a_file_bit_for_bit(state):
    check_state("part", state)
    before = bits(state)
    host = state_to_host(state)
    assert bits(state_to_device(host, torch.device("cpu"))) == before
    assert bits(state_to_device(pickle.loads(pickle.dumps(host, protocol=5)), torch.device("cpu"))) == before  # noqa: S301
    back = state_to_device(through_files(host), torch.device("cpu"))
    assert bits(back) == before
    assert digest([{"part": through_files(host)}]) == digest([{"part": host}])


def test_what_has_gone_wrong_before():
    for state in (
        {"a/b": 1, "a": {"b": 0}},
        {"a/b": np.zeros(1), "a": {"b": np.ones(1)}},
        {"tensor": 3},
        {"own": {"tensor": "text"}},
        {"$dict": []},
        {2: "two", "2": "text", True: 0, None: 2},
        {"pair": (1, (2,)), "list": [1, [2]]},
        {"steps": np.float64(0.5), "n": np.int64(3)},
    ):
        assert bits(through_files(state_to_host(state))) == bits(state_to_host(state))


def test_what_comes_back_can_be_written_to():
    state = state_to_device(
        through_files(state_to_host({"own": np.zeros(2), "t": torch.zeros(2)})), torch.device("cpu")
    )
    state["own"] += 1
    state["t"] += 1
    assert state["own"].tolist() == state["t"].tolist() == [1.0, 1.0]


def test_a_copy_on_the_host_is_a_copy():
    host = copy.deepcopy(state_to_host({"own": (own := np.zeros(2))}))
    own += 1
    assert host["own"].array.tolist() == [0.0, 0.0]


def test_files_of_before_are_read():
    """Those had lists in place of tuples, and texts in place of other keys."""
    values = {"server/a/0": np.array(1.5)}
    old = {"a": [{"tensor": "server/a/0"}, {"b": 2}], "c": [True, "x"]}
    assert unpack(old, values) == {"a": [1.5, {"b": 2}], "c": [True, "x"]}


@pytest.mark.parametrize(
    "tree", [{"tensor": "gone"}, {ARRAY: ["x", "f4", [9]]}, {ARRAY: 3}, {"$int": 3}, {"$dict": [1]}, {"$float": "00"}]
)
def test_what_was_not_packed_raises(tree):
    with pytest.raises((LookupError, TypeError, ValueError)):
        unpack(tree, {"x": np.zeros(4, np.uint8)})


class Numbers(dict):
    """A dict of one's own."""


looped: dict = {}
looped["deep"] = [looped]
Pair = namedtuple("Pair", "a b")
KEEP = r"which no checkpoint can keep; a state has dicts, lists, tuples, numbers, texts, None, tensors and arrays"
REFUSED = {
    "object": (object(), "is a object, " + KEEP),
    "set": ({1}, "is a set, " + KEEP),
    "bytes": (b"x", "is a bytes, " + KEEP),
    "lambda": (lambda: 0, "is a function, " + KEEP),
    "bfloat16": (torch.zeros(2, dtype=torch.bfloat16), r"is a tensor of bfloat16, .* \(bfloat16 as float32\)$"),
    "float8": (torch.zeros(2).to(torch.float8_e5m2), "is a tensor of float8_e5m2, "),
    "sparse": (torch.eye(2).to_sparse(), "is a sparse_coo tensor of float32, "),
    "objects": (np.array([None, 1]), "is a numpy.ndarray of object, "),
    "long double": (np.zeros(2, np.longdouble), "is a numpy.ndarray of "),
    "record": (np.zeros(2, "i4,f4"), "is a numpy.ndarray of "),
    "masked": (np.ma.masked_array([1.0]), "is a numpy.ma.*MaskedArray of float64, "),
    "complex": (1j, "is a complex, "),
    "defaultdict": (defaultdict(int), "is a collections.defaultdict, "),
    "own dict": (Numbers(), "is a tests.test_state.Numbers, "),
    "named tuple": (Pair(1, 2), "is a tests.test_state.Pair, "),
    "size": (torch.zeros(2).shape, "is a torch.Size, "),
    "module": (torch.nn.Linear(1, 1), "is a torch.nn.modules.linear.Linear, "),
    "key": ({frozenset(): 1}, "has a key that is a frozenset, which no checkpoint can keep; take a text or a number$"),
    "tensor key": ({torch.zeros(()): 1}, "has a key that is a tensor of float32, "),
    "loop": (looped, r"\['deep'\]\[0\].*\[…\] is nested deeper than 50 levels, or in itself; keep it flatter$"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_come_back_is_refused_with_part_key_and_type(name):
    value, says = REFUSED[name]
    with pytest.raises(InputError, match=says) as caught:
        check_state("fedx", {"fine": 1, "seen": [0, value]})
    assert str(caught.value).startswith("fedx: state['seen'][1]")
    assert "\n" not in str(caught.value)


def test_a_state_is_a_dict():
    with pytest.raises(InputError, match=r"^fedx: its state is a list, where a dict belongs$"):
        check_state("fedx", [])


def test_keys_of_a_message_are_short():
    with pytest.raises(InputError) as caught:
        check_state("fedx", {"k" * 10_000: {16**9000: set()}})
    assert len(str(caught.value)) < 400


# -- in a run ----------------------------------------------------------------------------------------------------------


HOARDER = "tests.parts.hoarder"
SAID = r"hoarder: state\['seen'\] is a set, which no checkpoint can keep; [^\n]*$"


def refused(hook: str, run: Any = simulate) -> int:
    """The round that a run gets to whose hook keeps a set; what is said of it is checked."""
    rounds: list = []
    when = "before round 1" if hook == "setup" else "in round 2"
    of_client = hook in ("reply", "begin", "end")
    who = (
        r"client \d failed in round 2 \(tests.parts.hoarder\): "
        if of_client
        else f"`{hook}` of hoarder failed {when}: "
    )
    with pytest.raises(RaysimError, match=f"^{who}{SAID}") as caught:
        run(method=HOARDER, rounds=3, on_round=rounds.append, **{"hoarder.hook": hook})
    assert not getattr(caught.value, "traceback", "")
    return len(rounds) + 1


@pytest.mark.parametrize("hook", ["exchange", "broadcast", "route", "receive", "aggregate", "update"])
def test_what_a_servers_hook_keeps_is_refused_in_its_round(hook):
    assert refused(hook) == 2


def test_what_is_kept_in_setup_is_refused_before_the_first_round():
    assert refused("setup") == 1


@pytest.mark.parametrize("hook", ["reply", "begin", "end"])
def test_what_a_clients_hook_keeps_is_refused_in_its_round(hook):
    assert refused(hook) == 2


@pytest.mark.parametrize("hook", ["setup", "receive", "update", "end"])
def test_on_ray_it_is_refused_in_the_same_words(hook, local_ray):
    assert refused(hook, simulate_on_ray) == (1 if hook == "setup" else 2)


def test_a_run_goes_on_with_what_it_kept(tmp_path):
    """Integer keys, tuples and arrays in the states of server and clients, which decide its models."""
    settings = {
        "method": "tests.parts.curio", "model": "small-cnn", "clients": 4, "active": 2, "train_size": 120,
        "test_size": 40, "privacy": 0, "in_process": True, "progress": False,
    }  # fmt: skip
    whole = raysim.run(**settings, rounds=4, out=tmp_path / "whole")
    parts = raysim.run(**settings, rounds=2, out=tmp_path / "parts")
    parts = raysim.resume(parts.path, rounds=4, in_process=True, progress=False)
    for name in ("model_sha256", "server_state_sha256"):
        assert parts.summary[name] == whole.summary[name]
    assert read_state(parts.path)["curio"][7] == (1, [2.5], None)
    assert read_state(parts.path)["curio"]["count"].tolist() == [0.0, 2.0, 0.0]
