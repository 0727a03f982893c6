"""RunConfig: everything that decides a run, and how flags, TOML files and presets resolve to one."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from raysim import methods
from raysim.config.presets import PRESETS
from raysim.errors import InputError
from raysim.methods.base import Part, can_fuse
from raysim.settings import Layer, as_dict, convert, flag, from_toml, nearest, setting


@dataclass(frozen=True)
class RunConfig:
    """One run. Every setting is a flag (`--batch-size`), a TOML line (`batch_size`) and may be in a preset."""

    method: str = setting("fedavg", "parts joined by +, e.g. fedprox; `raysim methods` lists them")
    parts: tuple[Part, ...] = ()

    dataset: str = setting("shapes", "a name (`raysim datasets`), or a folder of Parquet files or images")
    data: str | None = setting(None, "folder to look for the named dataset in; also RAYSIM_DATA")
    download: bool = setting(False, "download a named dataset that is not found")
    image_size: int | None = setting(None, "resize images to this many pixels square", minimum=8, maximum=4096)
    train_size: int | None = setting(None, "training images to keep, stratified; for shapes, to make", minimum=1)
    fraction: float | None = setting(None, "share of the training images to keep", above=0, maximum=1)
    test_size: int | None = setting(None, "test images to keep, stratified; for shapes, to make", minimum=1)
    normalise: Literal["data", "half"] = setting(
        "data", "pixels by the training split's mean and std per channel, or (half) to [-1, 1]"
    )

    clients: int = setting(100, "clients the training split is dealt to", minimum=1)
    active: int | None = setting(None, "clients that train each round; none means all", minimum=1)
    partition: Literal["iid", "classes", "dirichlet", "table"] = setting("dirichlet", "how samples are dealt")
    beta: float = setting(0.5, "concentration of the Dirichlet partition", above=0)
    classes_per_client: int = setting(2, "classes each client has in the classes partition", minimum=1)
    table: str | None = setting(None, "CSV of client × class counts for the table partition, or covid19")
    labelled: int | None = setting(
        None, "labelled samples of each client, stratified; the others go without labels; none: all", minimum=1
    )
    unlabelled_batch: int = setting(64, "unlabelled samples per local step, in methods that use them", minimum=1)

    rounds: int = setting(50, "communication rounds", minimum=1)
    seed: int = setting(0, "of everything random", minimum=0)
    weighting: Literal["samples", "uniform"] = setting("samples", "what a client's model weighs in the average")
    model: str = setting("hfmds-cnn", "`raysim models` lists them")
    batch_size: int = setting(10, "samples per local step", minimum=1)
    local_epochs: int | None = setting(None, "passes over the client's data per round; 1 if nothing is said", minimum=1)
    local_steps: int | None = setting(None, "local steps per round, instead of epochs", minimum=1)
    drop_last: bool = setting(False, "leave out an epoch's last batch where it is smaller than the others")
    optimizer: Literal["sgd", "adam"] = setting("sgd", "local optimiser, fresh for every client and round")
    lr: float = setting(0.01, "local learning rate", above=0)
    lr_decay: float = setting(1.0, "factor on the learning rate every lr_decay_every rounds", above=0)
    lr_decay_every: int = setting(1, "rounds between two decays", minimum=1)
    momentum: float = setting(0.9, "of SGD", minimum=0, maximum=1)
    weight_decay: float = setting(0.0, "L2 penalty in the optimiser", minimum=0)
    eval_every: int = setting(1, "rounds between evaluations; 0 evaluates only after the last", minimum=0)
    eval_batch: int = setting(500, "test images per evaluation batch", minimum=1)
    evaluation: Literal["global", "clients"] = setting(
        "global", "the global model on the test split, or each client's own on test images of its classes"
    )
    tsne: int = setting(0, "features of each kind (real, synthetic, generated) to draw by t-SNE at the end", minimum=0)
    privacy: int = setting(
        2000, "training images, and as many held-out ones, that attacks try at the end; 0: no privacy figures",
        minimum=0,
    )  # fmt: skip

    actors: int | None = setting(None, "client actors; by default 2 per GPU, or one per CPU", minimum=1)
    actor_per_client: bool = setting(False, "one actor for each client, and that client's work only there")
    gpu_fraction: float | None = setting(None, "of a GPU per client actor; by default what fits", above=0, maximum=1)
    fuse: int = setting(
        1, "clients trained in one vectorised step; part of the result, since it changes the last bits", minimum=1
    )
    threads: int = setting(1, "torch threads per actor; part of the result, since it changes the last bits", minimum=1)
    precision: Literal["float32", "tf32", "bf16"] = setting(
        "float32", "of local training: tf32 in GPU products and convolutions, or bf16 where autocast allows it"
    )
    compile: Literal["no", "yes", "cuda-graphs"] = setting(
        "no", "the local step's forward pass by torch.compile; cuda-graphs also replays it, on GPUs"
    )
    in_process: bool = setting(False, "no Ray: everything in this process, for a debugger; the same result")
    fast_nondeterministic: bool = setting(False, "on GPUs, allow algorithms whose last bits vary between runs")

    metrics: bool = setting(True, "report the run's figures as metrics of Ray, for Prometheus and Grafana")
    callback: str | None = setting(
        None, "MODULE:CLASS told of the start, every round and the end (docs/tracking.md); several joined by commas"
    )
    profile: bool = setting(False, "profile a client's training and every kind of exchange: a table and a Chrome trace")
    on_client_error: Literal["stop", "retry", "skip"] = setting(
        "retry", "when a client's own code raises: stop, try again and then stop, or try again and then leave it out"
    )
    client_retries: int = setting(2, "times a client that raised is tried again", minimum=0)
    client_timeout: float | None = setting(
        None, "seconds a client may take before its actor is replaced; by default ten times what others took",
        above=0,
    )  # fmt: skip
    watchdog: float = setting(
        3600.0, "seconds without any answer from the server, or from actors being started, before the run ends", above=0
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints, from which a run can go on; 0: none", minimum=0)
    resume: bool = setting(False, "go on where the run in --out stopped, if there is one")
    out: str | None = setting(None, "run directory; by default runs/<method>-<dataset>-<time>")
    overwrite: bool = setting(False, "replace the run directory if it is there")

    def learning_rate(self, t: int) -> float:
        """In round t = 1, 2, …"""
        return self.lr * self.lr_decay ** ((t - 1) // self.lr_decay_every)

    def identity(self) -> dict[str, object]:
        """The settings that decide the result: a run goes on only from a checkpoint that agrees in them."""
        return {key: value for key, value in self.settings().items() if key not in OPERATIONAL}

    def settings(self) -> dict[str, object]:
        """All settings, the parts' included, as they would be written in TOML."""
        values = as_dict(self)
        for part in self.parts:
            values |= {f"{part.name}.{key}": value for key, value in as_dict(part).items()}
        return values


# Where and how a run is done, not what comes out of it.
OPERATIONAL = (
    "data", "download", "actors", "actor_per_client", "gpu_fraction", "in_process", "tsne", "privacy", "metrics",
    "callback", "profile", "client_timeout", "watchdog", "checkpoint_every", "resume", "out", "overwrite",
)  # fmt: skip

# Saying one of these in a later layer takes back the other of an earlier one.
EITHER_OR = (("local_epochs", "local_steps"), ("train_size", "fraction"), ("actors", "actor_per_client"))


def load_layers(command_line: dict[str, object], defaults: dict[str, object]) -> list[Layer]:
    """The layers of one call, first to last: what the job file says, --preset, --config, the flags."""
    flags = dict(command_line)
    layers: list[Layer] = [("job", defaults)]
    if (name := flags.pop("preset", None)) is not None:
        if name not in PRESETS:
            hint = nearest(str(name), PRESETS, "; see `raysim presets`")
            raise InputError(f"--preset: unknown preset '{name}'{hint}")
        layers.append((f"preset {name}", PRESETS[name].settings))
    if (path := flags.pop("config", None)) is not None:
        layers.append((str(path), from_toml(str(path))))
    return [*layers, ("command line", flags)]


def resolve(layers: list[Layer]) -> RunConfig:
    """One RunConfig from the layers, later ones winning; an InputError names the layer that is wrong.

    Every layer is checked as a whole, so a mistake in a file is told even where a flag overrides it.
    """
    fields = {f.name: f for f in dataclasses.fields(RunConfig) if "help" in f.metadata}
    method = fields["method"].default
    expanded = []
    for where, values in layers:
        if "method" in values:
            method, implied = methods.expand(convert(fields["method"], values["method"], where, "method"))
            values = implied | values | {"method": method}
        expanded.append((where, values))
    layers = expanded
    classes = methods.part_classes(method)
    for prefix, cls in classes.items():
        fields |= {f"{prefix}.{f.name}": f for f in dataclasses.fields(cls) if "help" in f.metadata}

    merged: dict[str, object] = {}
    for where, values in layers:
        for first, second in EITHER_OR:
            if all(values.get(key) not in (None, "none", "false", False) for key in (first, second)):
                raise InputError(f"{where}: give {flag(first)} or {flag(second)}, not both")
            if first in values or second in values:
                merged = {key: value for key, value in merged.items() if key not in (first, second)}
        for key, value in values.items():
            prefix = key.rpartition(".")[0]
            if key in fields:
                merged[key] = convert(fields[key], value, where, key)
            elif prefix in methods.names() and prefix not in classes:
                # A preset's settings for a part left out by a later --method do nothing; a flag for it is a slip.
                if where == "command line":
                    raise InputError(f"{where}: {flag(key)} belongs to {prefix}, which is not in --method {method}")
            else:
                hint = nearest(flag(key), map(flag, [*fields, "preset", "config"]), "; see `raysim run --help`")
                raise InputError(f"{where}: unknown setting {flag(key)}{hint}")
    parts = tuple(
        cls(**{key.removeprefix(f"{prefix}."): v for key, v in merged.items() if key.startswith(f"{prefix}.")})
        for prefix, cls in classes.items()
    )
    return check(RunConfig(**{key: value for key, value in merged.items() if "." not in key}, parts=parts))


def check(config: RunConfig) -> RunConfig:
    """What can be wrong between settings; what depends on the data is checked once it is loaded."""
    if config.active is not None and config.active > config.clients:
        raise InputError(f"--active {config.active} is more than --clients {config.clients}; lower the first")
    if (config.partition == "table") != (config.table is not None):
        raise InputError("--partition table goes with --table FILE (or --table covid19); give both or neither")
    for part in config.parts:
        part.check(config)
    if config.evaluation == "global" and (alone := [part.name for part in config.parts if part.predicts_with_personal]):
        raise InputError(f"--method {alone[0]} keeps what it predicts with at the clients; add --evaluation clients")
    if config.fuse > 1 and config.actor_per_client:
        raise InputError("--fuse trains several clients in one actor, --actor-per-client forbids it; leave one out")
    if config.fuse > 1 and (alone := [part.name for part in config.parts if not can_fuse(part)]):
        raise InputError(f"--fuse: the loss of {alone[0]} is written for one client at a time; use --fuse 1")
    if config.fuse > 1 and config.compile != "no":
        raise InputError("--fuse has a step of its own that --compile does not know; leave one out")
    if config.local_epochs is None and config.local_steps is None:
        config = dataclasses.replace(config, local_epochs=1)
    if config.active is None:
        config = dataclasses.replace(config, active=config.clients)
    return config
