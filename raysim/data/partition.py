"""Who owns which training sample: iid, dirichlet(β), classes(c) and explicit tables, all seeded."""

import csv
import heapq
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from raysim.errors import InputError
from raysim.rng import stream

KINDS = ("iid", "dirichlet", "classes", "table")

# SDA-FL table 5: six hospitals; columns Normal, Covid-19, Pneumonia.
TABLES = {
    "covid19": (
        (2000, 750, 0),
        (0, 750, 250),
        (2000, 0, 250),
        (2000, 750, 0),
        (0, 750, 250),
        (2000, 0, 250),
    )
}


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of every client: client k owns `order[offsets[k]:offsets[k + 1]]`, in ascending order.

    >>> parts = partition([0, 0, 1, 1], 2, kind="classes", clients=2, seed=0, classes_per_client=1)
    >>> parts.sizes.tolist()
    [2, 2]
    """

    order: np.ndarray  # int64 indices into the training split, client after client
    offsets: np.ndarray  # int64 [clients + 1]
    notes: tuple[str, ...] = ()  # one-liners the run tells the user

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.offsets)

    def indices(self, client: int) -> np.ndarray:
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of {self.clients}")
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def counts(self, labels, classes: int) -> np.ndarray:
        """Samples per client and class, int64 [clients, classes]."""
        owner = np.repeat(np.arange(self.clients), self.sizes)
        cell = owner * classes + np.asarray(labels)[self.order]
        return np.bincount(cell, minlength=self.clients * classes).reshape(self.clients, classes)


def deal_test(labels: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order and offsets of test images by client: of each class a client holds, one client's share of its images.

    `held` is boolean [clients, classes]. Shares of a class do not overlap, unless it has fewer images than clients.
    """
    taken: list[list[np.ndarray]] = [[] for _ in held]
    for label in range(held.shape[1]):
        rows = np.flatnonzero(labels == label)
        share = max(1, len(rows) // len(held))
        for i, client in enumerate(np.flatnonzero(held[:, label]) if len(rows) else ()):
            taken[client].append(rows[np.arange(i * share, (i + 1) * share) % len(rows)])
    parts = [np.sort(np.concatenate([*t, np.empty(0, np.int64)])) for t in taken]
    return np.concatenate(parts), np.cumsum([0, *(len(p) for p in parts)])


def partition(
    labels,
    classes: int,
    *,
    kind: str,
    clients: int,
    seed: int,
    beta: float = 0.5,
    classes_per_client: int = 2,
    table=None,
) -> Partition:
    """Give the samples with these labels (0 … classes - 1) to the clients; nobody stays empty.

    `table` is a clients × classes array of counts, or what `read_table` reads.
    """
    labels = np.asarray(labels)
    if kind not in KINDS:
        raise InputError(f"partition: unknown kind {kind!r}; choose one of {', '.join(KINDS)}")
    if clients < 1:
        raise InputError(f"partition: {clients} clients; ask for at least 1")
    if clients > len(labels):
        raise InputError(f"partition: {clients} clients but only {len(labels)} training samples; use fewer clients")
    if labels.min() < 0 or labels.max() >= classes:
        raise InputError(
            f"partition: labels go from {labels.min()} to {labels.max()}, but there are {classes} classes; "
            f"number them 0 to {classes - 1}"
        )
    rng = stream(seed, "partition")
    members = _members(labels, classes, rng)
    if kind == "iid":
        owner, notes = _iid(len(labels), clients, rng), ()
    elif kind == "dirichlet":
        owner, notes = _dirichlet(members, clients, beta, rng)
    elif kind == "classes":
        owner, notes = _classes(members, clients, classes_per_client, rng)
    else:
        owner, notes = _table(members, clients, table)
    # A stable sort by owner leaves each client's samples in ascending order; -1 marks samples nobody owns.
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    order = np.argsort(owner, kind="stable")[sizes[0] :]
    offsets = np.concatenate([[0], np.cumsum(sizes[1:])])
    return Partition(order, offsets, notes)


def read_table(source) -> np.ndarray:
    """A clients × classes table of counts: a name in TABLES, or a CSV file of integers, one row per client."""
    if source in TABLES:
        return np.array(TABLES[source], dtype=np.int64)
    path, rows = Path(source), []
    try:
        if not path.is_file():
            raise InputError(f"partition table {source}: no such file; give a CSV file or one of {', '.join(TABLES)}")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            for cells in reader:
                if not any(cell.strip() for cell in cells):
                    continue
                where = f"partition table {path}, line {reader.line_num}"
                try:
                    row = np.array([int(cell) for cell in cells], dtype=np.int64)
                except (ValueError, OverflowError):
                    raise InputError(f"{where}: not integers; write one count per class, separated by commas") from None
                if rows and len(row) != len(rows[0]):
                    raise InputError(f"{where}: {len(row)} columns, before it {len(rows[0])}; give one per class")
                rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"partition table {path}: cannot be read ({error}); give a CSV file of integers") from error
    if not rows:
        raise InputError(f"partition table {path}: empty; write one row of counts per client")
    return _checked(np.stack(rows), f"partition table {path}")


def _checked(table, where: str) -> np.ndarray:
    """The table as int64 [clients, classes], or one line about what is wrong with it."""
    try:
        table = np.asarray(table)
    except ValueError:  # rows of different lengths
        table = np.empty(0)
    if table.ndim != 2 or not np.issubdtype(table.dtype, np.integer):
        raise InputError(f"{where}: not a table of integers; give one row per client and one column per class")
    table = table.astype(np.int64)
    negative = np.argwhere(table < 0)
    if len(negative):
        client, label = negative[0]
        raise InputError(f"{where}: client {client}, class {label} has {table[client, label]} samples; use 0 or more")
    empty = np.flatnonzero(~table.any(axis=1))
    if len(empty):
        raise InputError(f"{where}: client {empty[0]} has no sample; give it one or remove its row")
    return table


def _members(labels: np.ndarray, classes: int, rng) -> list[np.ndarray]:
    """The samples of each class, shuffled."""
    shuffled = rng.permutation(len(labels))
    grouped = shuffled[np.argsort(labels[shuffled], kind="stable")]
    return np.split(grouped, np.cumsum(np.bincount(labels, minlength=classes))[:-1])


def _iid(samples: int, clients: int, rng) -> np.ndarray:
    owner = np.empty(samples, dtype=np.int64)
    owner[rng.permutation(samples)] = np.arange(samples) * clients // samples
    return owner


def _dirichlet(members, clients: int, beta: float, rng) -> tuple[np.ndarray, tuple[str, ...]]:
    if not (math.isfinite(beta) and beta > 0):
        raise InputError(f"partition: beta {beta}; give a finite number above 0")
    owner = np.empty(sum(map(len, members)), dtype=np.int64)
    for indices in members:
        # The random phase rounds each share up or down without bias. Plain rounding would favour the same clients in
        # every class where shares are alike and below one sample.
        ends = np.floor(np.cumsum(_shares(clients, beta, rng)) * len(indices) + rng.random()).astype(np.int64)
        ends = np.minimum(ends, len(indices))
        ends[-1] = len(indices)
        owner[indices] = np.repeat(np.arange(clients), np.diff(ends, prepend=0))
    given = _fill_empty(owner, clients, rng)
    if not given:
        return owner, ()
    return owner, (f"partition: {given} of {clients} clients drew no sample; each was given one of the largest client",)


def _shares(clients: int, beta: float, rng) -> np.ndarray:
    """One draw from Dirichlet(β, …, β).

    Gamma(β) draws underflow to 0 for small β, and all of them at once give 0/0 (NumPy's own dirichlet has the same
    trouble). So they are drawn as logarithms: Gamma(β) = Gamma(β + 1) · U^(1/β).
    """
    beta = max(beta, 1e-300)  # below it log(U)/β itself overflows
    logs = np.log(rng.standard_gamma(beta + 1, clients)) + np.log1p(-rng.random(clients)) / beta
    shares = np.exp(logs - logs.max())
    return shares / shares.sum()


def _fill_empty(owner: np.ndarray, clients: int, rng) -> int:
    """Give every client without a sample a random one of whoever is largest then; says how many there were."""
    sizes = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return 0
    shuffled = rng.permutation(len(owner))
    stock = shuffled[np.argsort(owner[shuffled], kind="stable")]  # client after client, in random order within each
    last = np.cumsum(sizes) - 1
    largest = [(-size, client) for client, size in enumerate(sizes.tolist()) if size > 1]
    heapq.heapify(largest)
    for client in empty.tolist():
        size, donor = largest[0]
        owner[stock[last[donor]]] = client
        last[donor] -= 1
        heapq.heapreplace(largest, (size + 1, donor))
    return len(empty)


def _classes(members, clients: int, per_client: int, rng) -> tuple[np.ndarray, tuple[str, ...]]:
    classes, samples = len(members), sum(map(len, members))
    if not 1 <= per_client <= classes:
        raise InputError(f"partition: {per_client} classes per client of {classes} classes; ask for 1 to {classes}")
    shards, extra = np.divmod(clients * per_client, classes)
    shards = np.full(classes, shards)
    shards[rng.permutation(classes)[:extra]] += 1
    for label, (indices, pieces) in enumerate(zip(members, shards, strict=True)):
        if len(indices) < pieces:
            raise InputError(
                f"partition: class {label} has {len(indices)} samples for {pieces} clients; "
                "use fewer clients, fewer classes per client or more samples"
            )
    hands = _deal(shards, clients, per_client, rng)
    owner = np.full(samples, -1)
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


def _deal(shards: np.ndarray, clients: int, per_client: int, rng) -> np.ndarray:
    """The classes of each client, [clients, per_client], each class at most once per client.

    Laid out class after class over the clients in turn, a class (at most as many shards as clients) cannot meet the
    same client twice. Then clients are paired at random and each pair exchanges one class where the rule still holds:
    a fixed number of times, so that it ends for any input.
    """
    classes = len(shards)
    turn = rng.permutation(classes)
    hands = np.repeat(turn, shards[turn]).reshape(per_client, clients).T.copy()
    owned = np.zeros((clients, classes), dtype=bool)
    np.put_along_axis(owned, hands, True, axis=1)
    rounds = 20 * per_client if per_client < classes else 0  # about twenty tries for every shard
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


def _table(members, clients: int, table) -> tuple[np.ndarray, tuple[str, ...]]:
    if table is None:
        raise InputError(f"partition: kind 'table' without a table; give a CSV file or one of {', '.join(TABLES)}")
    classes, samples = len(members), sum(map(len, members))
    table = read_table(table) if isinstance(table, str | Path) else _checked(table, "partition table")
    if table.shape[0] != clients:
        raise InputError(f"partition table: {table.shape[0]} rows for {clients} clients; give one row per client")
    if table.shape[1] != classes:
        raise InputError(f"partition table: {table.shape[1]} columns for {classes} classes; give one column per class")
    owner = np.full(samples, -1)
    for label, (indices, wanted) in enumerate(zip(members, table.T, strict=True)):
        asked = sum(wanted.tolist())  # Python's integers: int64 could overflow and look small
        if asked > len(indices):
            raise InputError(
                f"partition table: class {label} has {len(indices)} samples, the table asks for {asked}; ask for fewer"
            )
        owner[indices[:asked]] = np.repeat(np.arange(clients), wanted)
    unused = int((owner < 0).sum())
    return owner, (f"partition: the table leaves {unused} of {samples} samples unused",) if unused else ()
