"""The partition by classes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from raysim.data.partitions.base import Partitioner
from raysim.errors import InputError
from raysim.settings import setting


@dataclass(frozen=True)
class Classes(Partitioner):
    """The same number of classes for every client, each class cut into equal shards."""

    example: ClassVar[str] = "2"

    classes_per_client: int = setting(2, "number of classes of each client in the classes partition", minimum=1)

    def owners(
        self, members: list[np.ndarray], clients: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        classes, per_client = len(members), self.classes_per_client
        if not 1 <= per_client <= classes:
            raise InputError(f"partition: {per_client} classes per client of {classes} classes; ask for 1 to {classes}")
        shards = _shards(members, clients * per_client, rng)
        hands = _deal(shards, clients, per_client, rng)
        owner = np.full(sum(map(len, members)), -1)
        for label, indices in enumerate(members):
            if shards[label]:
                owners = np.flatnonzero((hands == label).any(axis=1))
                owner[indices] = owners[np.arange(len(indices)) * len(owners) // len(indices)]
        if clients * per_client >= classes:
            return owner, ()
        out = np.flatnonzero(shards == 0)
        named = ", ".join(map(str, out[:10])) + (", …" if len(out) > 10 else "")
        unused = sum(len(members[label]) for label in out)
        return owner, (f"partition: {len(out)} of {classes} classes are left out ({named}), {unused} samples unused",)

    def words(self) -> str:
        return f"{self.classes_per_client} class{'es' * (self.classes_per_client > 1)} per client"


def _shards(members: list[np.ndarray], wanted: int, rng: np.random.Generator) -> np.ndarray:
    """Return the number of shards of every class, [classes]: `wanted` in all, and as even as possible."""
    classes = len(members)
    each, extra = divmod(wanted, classes)
    shards = np.full(classes, each)
    shards[rng.permutation(classes)[:extra]] += 1
    for label, (indices, pieces) in enumerate(zip(members, shards, strict=True)):
        if len(indices) < pieces:
            raise InputError(
                f"partition: class {label} has {len(indices)} samples for {pieces} clients; "
                "use fewer clients, fewer classes per client or more samples"
            )
    return shards


def _deal(shards: np.ndarray, clients: int, per_client: int, rng: np.random.Generator) -> np.ndarray:
    """Return the classes of each client, [clients, per_client], each class at most once per client.

    First the shards are laid out class after class, one client after the other: a class has at most as many shards as
    there are clients, so no client gets it twice. Then clients are paired at random and each pair exchanges one class
    if both still have distinct classes. The number of exchanges is fixed, so that it ends for any input.
    """
    classes = len(shards)
    turn = rng.permutation(classes)
    hands = np.repeat(turn, shards[turn]).reshape(per_client, clients).T.copy()
    owned = np.zeros((clients, classes), dtype=bool)
    np.put_along_axis(owned, hands, True, axis=1)
    rounds = 20 * per_client if per_client < classes else 0  # about twenty exchanges tried for every shard
    pairs = clients // 2
    for _ in range(rounds):
        left, right = rng.permutation(clients)[: 2 * pairs].reshape(2, pairs)
        slots = rng.integers(per_client, size=(2, pairs))
        give, take = hands[left, slots[0]], hands[right, slots[1]]
        legal = ~owned[left, take] & ~owned[right, give]
        left, right, slots, give, take = left[legal], right[legal], slots[:, legal], give[legal], take[legal]
        hands[left, slots[0]], hands[right, slots[1]] = take, give
        owned[left, give] = owned[right, take] = False
        owned[left, take] = owned[right, give] = True
    return hands
