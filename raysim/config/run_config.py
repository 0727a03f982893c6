"""RunConfig: every setting of a run, and what can be wrong between settings."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raysim.config.addresses import is_remote, parsed
from raysim.data import partitions
from raysim.data.partitions import Partitioner
from raysim.errors import InputError
from raysim.methods.base import Part, can_fuse
from raysim.methods.common.contract import HookError
from raysim.rng import stream
from raysim.settings import as_dict, flag, setting, setting_fields

# Upper limits, far above what anyone has used: a value beyond them is a slip, and would end in a lack of memory.
MOST_IMAGES = 10**15  # whether they fit is decided by the memory there is
MOST_CLIENTS = 10**8
MOST_ROWS = 10**6  # of a batch
MOST_ACTORS = 10**5


@dataclass(frozen=True)
class _DataSettings:
    """The settings before those of the partitions: what is trained, and on which data."""

    method: str = setting("fedavg", "a method, or several joined by +; `raysim methods` lists them", own=True)
    parts: tuple[Part, ...] = ()

    dataset: str = setting(
        "shapes", "a name that `raysim datasets` lists, a folder of Parquet files or images, or MODULE:FUNCTION",
        own=True,
    )  # fmt: skip
    image_column: str | None = setting(
        None, "column with the images, of Parquet files and own data; by default image or img"
    )
    label_column: str | None = setting(
        None, "column with the labels, of Parquet files and own data; by default label or fine_label"
    )
    data: str | None = setting(
        None, "folder to look for named datasets in; by default RAYSIM_DATA, or the folder data", decides_result=False
    )
    download: bool = setting(False, "download a named dataset that is not found", decides_result=False)
    image_size: int | None = setting(None, "resize images to this many pixels square", minimum=8, maximum=4096)
    train_size: int | None = setting(
        None, "number of training images to keep, in proportion to the classes; for shapes, to generate",
        minimum=1, maximum=MOST_IMAGES,
    )  # fmt: skip
    fraction: float | None = setting(
        None, "share of the training images to keep, instead of --train-size", above=0, maximum=1
    )
    test_size: int | None = setting(
        None, "number of test images to keep, in proportion to the classes; for shapes, to generate",
        minimum=1, maximum=MOST_IMAGES,
    )  # fmt: skip
    normalise: Literal["data", "half"] = setting(
        "data", "scale pixels by the training split's mean and std per channel (data), or to [-1, 1] (half)"
    )

    clients: int = setting(100, "number of clients that share the training split", minimum=1, maximum=MOST_CLIENTS)
    active: int | None = setting(
        None, "clients that train in each round; by default all", minimum=1, maximum=MOST_CLIENTS
    )
    partition: str = setting(
        "dirichlet", "how samples are dealt to the clients, or MODULE:NAME of an own one",
        choices=partitions.names, own=True,
    )  # fmt: skip


if TYPE_CHECKING:
    _PartitionSettings = _DataSettings  # only the partitions themselves read their settings, by `partitioner`
else:
    _PartitionSettings = dataclasses.make_dataclass(
        "_PartitionSettings",
        [
            (name, field.type, dataclasses.field(default=field.default, metadata=field.metadata))
            for name, field in partitions.own_settings().items()
        ],
        bases=(_DataSettings,),
        frozen=True,
    )


@dataclass(frozen=True)
class RunConfig(_PartitionSettings):
    """One run. Every setting is a flag (`--batch-size`), a TOML line (`batch_size`) and may be in a preset."""

    labelled: int | None = setting(
        None, "samples per client that keep their label, in proportion to the classes; by default all do", minimum=1
    )
    unlabelled_batch: int = setting(
        64, "unlabelled samples per local step, for methods that use them", minimum=1, maximum=MOST_ROWS
    )

    rounds: int = setting(50, "number of communication rounds", minimum=1)
    stop_accuracy: float | None = setting(
        None, "end the run after the first round with at least this accuracy, from 0 to 1", above=0, maximum=1
    )
    patience: int | None = setting(
        None, "end the run when its best accuracy is this many rounds old; only evaluated rounds count", minimum=1
    )
    seed: int = setting(0, "seed of all random draws", minimum=0, maximum=2**63 - 1)
    weighting: Literal["samples", "uniform"] = setting(
        "samples", "weight of a client's model in the average: its number of samples, or the same for all (uniform)"
    )
    model: str = setting(
        "hfmds-cnn", "the classifier to train: one that `raysim models` lists, or an own one as MODULE:NAME", own=True
    )
    start_from: str | None = setting(
        None, "a finished run, or a file of weights (.safetensors), to start from; by default random weights"
    )
    batch_size: int = setting(10, "samples per local step", minimum=1, maximum=MOST_ROWS)
    local_epochs: int | None = setting(
        None, "passes over a client's data per round; 1 unless --local-steps is given", minimum=1
    )
    local_steps: int | None = setting(None, "local steps per round, instead of --local-epochs", minimum=1)
    drop_last: bool = setting(False, "skip the last batch of an epoch if it is smaller than the others")
    optimizer: Literal["sgd", "adam"] = setting("sgd", "local optimiser, created anew for every client and round")
    lr: float = setting(0.01, "local learning rate", above=0, maximum=1e6)
    lr_decay: float = setting(1.0, "factor on the learning rate every --lr-decay-every rounds", above=0)
    lr_decay_every: int = setting(1, "rounds between two decays of the learning rate", minimum=1)
    momentum: float = setting(0.9, "momentum of SGD", minimum=0, maximum=1)
    weight_decay: float = setting(0.0, "L2 penalty in the optimiser", minimum=0)
    eval_every: int = setting(1, "rounds between two evaluations; 0: evaluate only after the last round", minimum=0)
    eval_batch: int = setting(500, "test images per evaluation batch", minimum=1, maximum=MOST_ROWS)
    evaluation: Literal["global", "clients"] = setting(
        "global", "evaluate the global model on the test split, or each client's model on test images of its classes"
    )
    tsne: int = setting(
        0, "features of each kind (real, synthetic, generated) to draw with t-SNE at the end; 0: no drawing",
        minimum=0, decides_result=False,
    )  # fmt: skip
    privacy: int = setting(
        2000, "training images, and as many held-out ones, to attack at the end; 0: no privacy figures",
        minimum=0, decides_result=False,
    )  # fmt: skip
    measures: int = setting(
        1000, "shared images to compare with as many held-out ones by their features at the end; 0: do not",
        minimum=0, maximum=10**5, decides_result=False,
    )  # fmt: skip
    feature_kl: int = setting(
        0, "held-out images by which to compare the active clients' features of a class every round; 0: do not",
        minimum=0, maximum=10**6, decides_result=False,
    )  # fmt: skip

    actors: int | None = setting(
        None, "number of client actors; by default --actors-per-gpu, or one per CPU",
        minimum=1, maximum=MOST_ACTORS, decides_result=False,
    )  # fmt: skip
    actors_per_gpu: int | None = setting(
        None, "client actors on every GPU; by default as many as its free memory holds and CPUs can feed, at most 8",
        minimum=1, maximum=1000, decides_result=False,
    )  # fmt: skip
    gpu_type: str | None = setting(
        None, "use GPUs of this type alone, as Ray names it (A100, H100, T4, …); by default all", decides_result=False
    )
    actor_per_client: bool = setting(False, "give every client an actor of its own", decides_result=False)
    gpu_fraction: float | None = setting(
        None, "share of a GPU per client actor; by default as much as fits", above=0, maximum=1, decides_result=False
    )
    fuse: int | Literal["auto"] = setting(
        "auto", "clients to train in one vectorised step, or as many as suit the model (auto); changes the last bits",
        minimum=1, maximum=MOST_ACTORS,
    )  # fmt: skip
    threads: int = setting(1, "torch threads per actor; changes the last bits of the result", minimum=1, maximum=1024)
    precision: Literal["float32", "tf32", "bf16"] = setting(
        "float32", "precision of local training: tf32 for products and convolutions on GPUs, or bf16 by autocast"
    )
    compile: Literal["no", "yes"] = setting("no", "compile the local forward pass with torch.compile")
    in_process: bool = setting(
        False, "run everything in this process, without Ray, for a debugger; the result is the same",
        decides_result=False,
    )  # fmt: skip
    fast_nondeterministic: bool = setting(False, "on GPUs, allow faster algorithms whose last bits vary between runs")

    metrics: bool = setting(
        True, "report the run's figures as Ray metrics, for Prometheus and Grafana", decides_result=False
    )
    track: str | None = setting(
        None, "trackers to write to, joined by commas: mlflow, tensorboard, wandb (docs/tracking.md)",
        decides_result=False,
    )  # fmt: skip
    callback: str | None = setting(
        None, "MODULE:CLASS to call at the start, every round and the end (docs/tracking.md); several joined by commas",
        decides_result=False, own=True,
    )  # fmt: skip
    profile: bool = setting(
        False, "profile a client's training and every kind of exchange: tables and Chrome traces", decides_result=False
    )
    on_client_error: Literal["stop", "retry", "skip"] = setting(
        "retry", "if a client's code raises: stop the run, retry and then stop, or retry and then leave the client out"
    )
    client_retries: int = setting(2, "number of retries for a client whose code raised", minimum=0, maximum=1000)
    client_timeout: float | None = setting(
        None, "seconds a client may take before its actor is replaced; by default ten times what others took",
        above=0, decides_result=False,
    )  # fmt: skip
    watchdog: float = setting(
        3600.0, "seconds without an answer from the server, or from starting actors, before the run is ended",
        above=0, decides_result=False,
    )  # fmt: skip
    checkpoint_every: int = setting(
        1, "rounds between two checkpoints, from which a run can be resumed; 0: no checkpoints",
        minimum=0, decides_result=False,
    )  # fmt: skip
    resume: bool = setting(False, "continue the run in --out, if there is one", decides_result=False)
    out: str | None = setting(None, "run directory; by default runs/<method>-<dataset>-<time>", decides_result=False)
    overwrite: bool = setting(False, "replace the run directory if it exists", decides_result=False)

    LENGTH: ClassVar = ("rounds", "stop_accuracy", "patience")  # they decide after which round a run ends, no more

    def learning_rate(self, t: int) -> float:
        """The local learning rate in round t = 1, 2, …"""
        return self.lr * self.lr_decay ** ((t - 1) // self.lr_decay_every)

    def cohort(self, t: int) -> list[int]:
        """The clients that are active in round t = 1, 2, …, in order of id."""
        drawn = stream(self.seed, "cohort", t).choice(self.clients, self.active or self.clients, replace=False)
        return sorted(drawn.tolist())

    @property
    def fuse_size(self) -> int:
        """How many clients train in one vectorised step; 1 as long as `auto` is not settled (config/fusing.py)."""
        return 1 if self.fuse == "auto" else self.fuse

    def partitioner(self) -> Partitioner:
        """The chosen partition with its settings."""
        return partitions.from_settings(as_dict(self))

    def settings(self) -> dict[str, object]:
        """All settings, those of the method's parts included, with the keys of a TOML file."""
        values = as_dict(self)
        for part in self.parts:
            values |= {f"{part.name}.{key}": value for key, value in as_dict(part).items()}
        return values

    def identity(self) -> dict[str, object]:
        """The settings that decide a round's result: a checkpoint can be resumed only by a run that agrees in them.

        The number of rounds is one of them only where a part goes by it.
        """
        ignored = {*self.operational(), *self.LENGTH}
        if any(part.goes_by_rounds for part in self.parts):
            ignored.remove("rounds")
        for part in self.parts:
            ignored |= {f"{part.name}.{key}" for key in _operational(type(part))}
        return {key: value for key, value in self.settings().items() if key not in ignored}

    @classmethod
    def operational(cls) -> tuple[str, ...]:
        """The settings that change where or how a run is done, but not its result."""
        return _operational(cls)


def _operational(cls: type) -> tuple[str, ...]:
    return tuple(name for name, field in setting_fields(cls).items() if not field.metadata["decides_result"])


def why_not_fused(config: RunConfig) -> str | None:
    """Why the settings do not allow several clients in one vectorised step; None: they do."""
    if config.actor_per_client:
        return "--actor-per-client leaves an actor one client"
    if alone := [part.name for part in config.parts if not can_fuse(part)]:
        return f"the loss of {alone[0]} is written for one client at a time"
    if config.compile != "no":
        return "it has a step of its own, which --compile does not know"
    return None


def check(config: RunConfig) -> RunConfig:
    """Raise an InputError if settings contradict each other; fill in defaults that depend on other settings.

    What depends on the data is checked after loading it.
    """
    for key in ("out", "start_from"):  # before anything prints or records them
        if is_remote(address := getattr(config, key)):
            parsed(flag(key), address)
    if config.active is not None and config.active > config.clients:
        raise InputError(f"--active {config.active} is more than --clients {config.clients}; lower the first")
    for name in partitions.names():
        partitions.from_settings(as_dict(config), name).check(chosen=name == config.partition)
    for part in config.parts:
        try:
            part.ask("check", config)
        except InputError:
            raise
        except (Exception, SystemExit) as error:  # own code may raise anything
            text = str(error) if isinstance(error, HookError) else f"{type(error).__name__}: {error}"
            raise InputError(f"--method {config.method}: `check` of {part.name} failed: {text}") from error
    if config.evaluation == "global" and (alone := [part.name for part in config.parts if part.predicts_with_personal]):
        raise InputError(f"--method {alone[0]} keeps what it predicts with at the clients; add --evaluation clients")
    if config.fuse_size > 1 and (reason := why_not_fused(config)):
        raise InputError(f"--fuse: {reason}; use --fuse 1")
    for key in ("stop_accuracy", "patience"):
        if getattr(config, key) is not None and not config.eval_every:
            raise InputError(f"{flag(key)} needs the accuracy of rounds before the last; give --eval-every 1")
    if config.local_epochs is None and config.local_steps is None:
        config = dataclasses.replace(config, local_epochs=1)
    if config.active is None:
        config = dataclasses.replace(config, active=config.clients)
    return config
