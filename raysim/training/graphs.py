"""Whole local steps as CUDA graphs (--cuda-graphs): what a step launches is captured once and then replayed at once.

A replay reads and writes the memory of the capture and runs no Python. So everything a step reads is moved to a fixed
place first: the batch, images that parts add, the broadcast weights, and what parts with a loss or a pull keep in their
scratch, state and broadcast. What Python decides is part of the key under which a captured step is found again.

Steps of whole batches are replayed and others, such as an epoch's last, are not: that depends on the configuration and
the data alone, and not on what an actor did before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from raysim.errors import InputError
from raysim.models.flat import FlatModel
from raysim.training.client import Client, Inputs, add_gradients, added_images, ce_weight, make_optimizer
from raysim.training.device import autocast
from raysim.training.optimizers import Optimizer
from raysim.training.profiling import FlopCounter

Terms = dict[str, torch.Tensor]  # of the loss, to report
Work = Callable[[], Terms]

WARM_UP = 3  # steps before a capture, in which libraries allocate what they need; torch advises three
MOST = 8  # captured steps to keep; each has memory of its own


class CudaGraph:
    """CUDA's own graph."""

    def __init__(self, device: torch.device):
        self.device, self.graph = device, torch.cuda.CUDAGraph()

    @staticmethod
    def is_for(device: torch.device) -> bool:
        """Whether the device has such graphs."""
        return device.type == "cuda"

    @staticmethod
    def wait_for(device: torch.device) -> None:
        """Wait until nothing is being replayed: only then may the memory of graphs be let go."""
        torch.cuda.synchronize(device)

    def warm_up(self, work: Work) -> None:
        """Do the work a few times, aside from the stream on which everything else is done, as CUDA asks for."""
        side, current = torch.cuda.Stream(self.device), torch.cuda.current_stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                work()
        current.wait_stream(side)

    def capture(self, work: Work) -> Terms:
        """Note what the work launches; its results are there after the first replay."""
        with torch.cuda.graph(self.graph):
            return work()

    def replay(self) -> None:
        self.graph.replay()


def check_device(device: torch.device) -> None:
    """Raise an InputError if the device has no graphs."""
    if not CudaGraph.is_for(device):
        raise InputError("--cuda-graphs needs GPUs by NVIDIA or AMD, and there is none here; leave it out")


class Places:
    """Tensors whose memory stays the same, for values that come as new tensors."""

    def __init__(self) -> None:
        self.held: dict[tuple[Hashable, ...], torch.Tensor] = {}

    def put(self, value: Any, *place: Hashable) -> Any:
        """The value with the tensors in it, also nested in dicts, lists and tuples, moved to their places."""
        if isinstance(value, torch.Tensor):
            if place not in self.held:
                self.held[place] = value.clone()  # with the same strides
            elif self.held[place] is not value:
                self.held[place].copy_(value)
            return self.held[place]
        if isinstance(value, dict):
            return {key: self.put(one, *place, key) for key, one in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.put(one, *place, i) for i, one in enumerate(value))
        return value


def form(value: Any) -> Hashable:
    """What of a value a captured step cannot change: the tensors' sizes, the numbers and words, the types of others."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype
    if isinstance(value, dict):
        return tuple((key, form(one)) for key, one in value.items())
    if type(value) in (list, tuple):
        return tuple(map(form, value))
    if value is None or isinstance(value, bool | int | float | str):
        return type(value), value
    return type(value).__name__


@dataclass
class Captured:
    """A step that can be replayed."""

    graph: Any
    places: Places
    terms: Terms
    flops: float


class Graphs:
    """The captured steps of an actor, for one client after the other."""

    def __init__(self, model: FlatModel):
        check_device(model.device)
        self.model = model
        self.captured: dict[Hashable, Captured] = {}
        self.optimizer: Optimizer | None = None
        self.rate = 0.0  # the optimiser's learning rate, a number that is captured
        self.uncounted = 0.0  # operations of a client's replays, less those of captures: a FlopCounter sees only these

    def begin(self, client: Client) -> Optimizer:
        """The optimiser of a client's steps: the same for all clients as long as the learning rate stays."""
        rate = client.config.learning_rate(client.t)
        if self.optimizer is None or rate != self.rate:
            self.drop()
            self.optimizer, self.rate = make_optimizer(self.model.parameters, client.config, client.t), rate
        self.optimizer.reset()
        self.uncounted = 0.0
        return self.optimizer

    def drop(self) -> None:
        """Let go of all captured steps, of their memory, and of the optimiser that they step."""
        self._forget()
        self.optimizer = None

    def _forget(self) -> None:
        if self.captured:
            CudaGraph.wait_for(self.model.device)
            self.captured.clear()

    def step(self, client: Client, inputs: Inputs, one: torch.Tensor) -> Terms:
        """Do a step by a replay; the first of its form is captured before."""
        with autocast(client.config, self.model.device):
            inputs = inputs._replace(extras=added_images(client))
        key = form(inputs._asdict()), inputs.x is inputs.real_x, inputs.y is inputs.real_y, _form_of(client)
        if (found := self.captured.get(key)) is None:
            if len(self.captured) == MOST:
                self._forget()
            found = self.captured[key] = self._capture(client, inputs, one)
        else:
            _settle(client, inputs, found.places)
        found.graph.replay()
        self.uncounted += found.flops
        return {name: term.clone() for name, term in found.terms.items()}  # the next replay writes them again

    def _capture(self, client: Client, inputs: Inputs, one: torch.Tensor) -> Captured:
        """Capture the client's step; nothing is trained by that."""
        places, graph, optimizer = Places(), CudaGraph(self.model.device), self.optimizer
        if optimizer is None:
            raise RuntimeError("a step before `begin`")
        inputs = _settle(client, inputs, places)
        one = places.put(one, "one")

        def work() -> Terms:
            terms = add_gradients(client, inputs, optimizer, one)
            optimizer.step()
            return terms

        with self._undone(optimizer, places), FlopCounter() as counter:
            graph.warm_up(work)
            terms = graph.capture(work)
        self.uncounted -= counter.total
        return Captured(graph, places, terms, counter.total / (WARM_UP + 1))

    @contextmanager
    def _undone(self, optimizer: Optimizer, places: Places) -> Iterator[None]:
        """Put everything back afterwards that steps write: the model, the optimiser's state, what parts add up."""

        def written() -> list[torch.Tensor]:
            return [self.model.weights, *self.model.integer_buffers.values(), *places.held.values(), *optimizer.state()]

        before = [(tensor, tensor.clone()) for tensor in written()]
        yield
        known = {id(tensor) for tensor, _ in before}
        for tensor, value in before:
            tensor.copy_(value)
        for tensor in written():  # that the optimiser has made meanwhile
            if id(tensor) not in known:
                tensor.zero_()


def _read(client: Client) -> Iterator[tuple[str, str]]:
    """What a captured step of the client may read: fields of the client, and a part's name in them."""
    for part in client.config.parts:
        if part.overrides("loss") or part.overrides("pull"):
            fields = ("scratch", "state", "broadcast")
            yield from ((field, part.name) for field in fields if part.name in getattr(client, field))


def _form_of(client: Client) -> Hashable:
    """What Python decides in a client's step."""
    values = ((field, name, form(getattr(client, field)[name])) for field, name in _read(client))
    return ce_weight(client), tuple(values)


def _settle(client: Client, inputs: Inputs, places: Places) -> Inputs:
    """Move all that the client's step reads to its place; the client then has what is there, and the step writes it."""
    client.broadcast = dict(client.broadcast)  # a copy, since that of all clients is only to be read
    for field, name in _read(client):
        values = getattr(client, field)
        values[name] = places.put(values[name], field, name)
    client.global_weights = places.put(client.global_weights, "global_weights")
    real_x, real_y = places.put((inputs.real_x, inputs.real_y), "real")
    x = real_x if inputs.x is inputs.real_x else places.put(inputs.x, "x")
    y = real_y if inputs.y is inputs.real_y else places.put(inputs.y, "y")
    return Inputs(x, y, real_x, real_y, places.put(inputs.extras, "extras"))
