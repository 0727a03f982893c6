"""The cases of the fuzzer: each is a command line, and the files it names, drawn from one seed."""

import random
import typing
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Any

import numpy as np

from raysim import methods
from raysim.config import RunConfig
from raysim.settings import flag, setting_fields
from tests.data.made import encoded, pixels, write_folder, write_idx_set, write_parquet
from tests.methods.tiny import QUICK, TINY

# Nothing that starts Ray, the network or another place for files; sizes that say how long a sound case may take.
FIXED = {
    "rounds": 2, "train_size": 60, "test_size": 20, "clients": 5, "active": 4, "model": "small-cnn", "batch_size": 5,
    "eval_batch": 25, "privacy": 8,
}  # fmt: skip
LEFT_ALONE = {"in_process", "download", "data", "callback", "profile", "compile", "resume", "overwrite", "metrics"}
# What is multiplied into the time or the memory of a sound run: drawn small, or so large that it is refused.
SMALL = {
    "rounds", "local_epochs", "local_steps", "train_size", "test_size", "clients", "image_size", "gan_rounds", "tsne",
    "gan_steps", "gan_batch", "pool", "width", "noise", "steps", "server_steps", "server_batch", "gen_steps", "models",
    "gen_batch", "per_client", "quota", "tries", "fuse", "threads", "unlabelled_batch", "batch_size", "critic_steps",
    "client_retries", "group", "actors", "privacy",
}  # fmt: skip
NASTY = [
    "", " ", "nan", "inf", "-inf", "1e400", "-1", "0", "9" * 25, "9" * 6000, "1" + "0" * 400, "1e-400", "٣", "1_0",
    "0x10", "none", "true", "x" * 300, "a/" * 3000, "a\0b", "\n", "\ud800", "..", ".x", "a..b", "~nobody/x",
    "/dev/null", "é" * 150, "'\"[bold]", "--", "-5", "1.5", "+3", "1e3", "🙂",
]  # fmt: skip


def settings_case(draw: random.Random, folder: Path) -> list[str]:
    """A tiny run of one or two methods, with some of its settings replaced by others, sound or not."""
    names = draw.sample([name for name in methods.names() if name not in methods.ALIASES], draw.choice([1, 1, 1, 2]))
    values: dict[str, object] = TINY | FIXED
    for name in names:
        values |= QUICK.get(name, {})
    values |= {"method": "+".join(names), "out": str(folder / "run"), "rounds": min(2, int(str(values["rounds"])))}
    fields = {key: field for key, field in setting_fields(RunConfig).items() if key not in LEFT_ALONE}
    for name in names:
        if name != "fedavg":
            fields |= {f"{name}.{key}": field for key, field in setting_fields(methods.part_class(name)).items()}
    for key in draw.sample(sorted(fields), draw.choice([1, 1, 2, 3, 6])):
        if draw.random() < 0.4:
            values[key] = draw.choice(NASTY)
        else:
            values[key] = _value(draw, key, fields[key])
    if str(values["out"]) != str(folder / "run") and not str(values["out"]).strip():
        values["out"] = str(folder / "run")
    return words(values)


def _value(draw: random.Random, key: str, field: Field[Any]) -> object:
    """A value of the setting's type, in its range or just outside."""
    kinds = typing.get_args(field.type) or (field.type,)
    if isinstance(kinds[0], str):
        return draw.choice([*kinds, "other"])
    if field.metadata["choices"]:
        return draw.choice([*field.metadata["choices"](), "other"])
    if bool in kinds:
        return draw.choice(["true", "false", "maybe"])
    if str in kinds:
        return draw.choice(NASTY)
    limits = [field.metadata[name] for name in ("minimum", "above", "maximum") if field.metadata[name] is not None]
    if int in kinds:
        small = key.rpartition(".")[2] in SMALL
        usual = [0, 1, 2, 3, 5, 9] if small else [0, 1, 2, 3, 7, 100, 10**6]
        edges = [int(limit) + d for limit in limits for d in (-1, 0, 1) if not small or limit <= 9 or d == 1]
        return draw.choice([*usual, *edges, 10**25])
    edges = [limit + d for limit in limits for d in (-1e-9, 0.0, 1e-9)]
    return draw.choice([0.0, 1e-300, 1e-9, 1e-3, 0.5, 1.0, 3.0, 1e3, 1e9, 1e30, -1.0, *edges])


def words(values: dict[str, object]) -> list[str]:
    """The command line of a run in this process."""
    return ["run", "--in-process", *(word for key, value in values.items() for word in (flag(key), str(value)))]


# -- files -------------------------------------------------------------------------------------------------------------


def data_case(draw: random.Random, folder: Path) -> list[str]:
    """A sound run on a dataset, a table or a TOML file in which bytes were changed."""
    kind: Callable[[random.Random, Path], dict[str, object]] = draw.choice([_parquet, _pictures, _idx, _table, _toml])
    extra = kind(draw, folder / "input")
    values = TINY | FIXED | {"out": str(folder / "run"), "rounds": 1, "clients": 3, "active": 2} | extra
    if "dataset" in extra:
        values |= {"partition": "iid", "image_size": draw.choice(["none", "16", "28"])}
        values = {key: value for key, value in values.items() if key not in ("train_size", "test_size")}
    return words(values)


def _damage(draw: random.Random, content: bytes) -> bytes:
    """The content with bytes flipped, cut off, repeated, put in or replaced by extremes."""
    for _ in range(draw.choice([0, 1, 1, 2, 5, 50])):
        if not content:
            return content
        at = draw.randrange(len(content))
        end = min(len(content), at + draw.choice([1, 1, 4, 8, 100]))
        middle = draw.choice(
            [
                b"",
                draw.randbytes(end - at),
                b"\xff" * (end - at),
                b"\0" * (end - at),
                content[at:end] * 2,
                b"\x7f\xff\xff",
            ]
        )
        content = content[:at] + middle + content[end:]
    return content[: draw.randrange(len(content))] if content and draw.random() < 0.1 else content


def _damage_some(draw: random.Random, folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in draw.sample(files, min(len(files), draw.choice([1, 1, 2]))):
        path.write_bytes(_damage(draw, path.read_bytes()))


def _parquet(draw: random.Random, folder: Path) -> dict[str, object]:
    x = pixels(12, draw.choice([1, 3]), draw.choice([8, 16]), seed=draw.randrange(100))
    format = draw.choice(["PNG", "JPEG", "BMP", "WEBP"])
    blobs = [encoded(image, format) for image in x]
    if draw.random() < 0.4:  # damaged images in a sound file
        blobs[draw.randrange(12)] = _damage(draw, blobs[0])
    labels = [draw.choice([0, 1]) if draw.random() < 0.98 else draw.choice([-1, 2**40, None, 2]) for _ in x]
    for split in ("train", "test"):
        write_parquet(
            folder / f"{split}.parquet", blobs, labels, group=draw.choice([None, 5]), struct=draw.random() < 0.5
        )
    if draw.random() < 0.6:
        _damage_some(draw, folder)
    return {"dataset": str(folder)}


def _pictures(draw: random.Random, folder: Path) -> dict[str, object]:
    write_folder(folder, {"a": 6, "b": 6}, size=16)
    if draw.random() < 0.2:
        (folder / "c").mkdir()
    _damage_some(draw, folder)
    return {"dataset": str(folder)}


def _idx(draw: random.Random, folder: Path) -> dict[str, object]:
    write_idx_set(folder / "MNIST" / "raw", suffix=draw.choice(["", ".gz"]))
    _damage_some(draw, folder)
    return {"dataset": "mnist", "data": str(folder)}


def _table(draw: random.Random, folder: Path) -> dict[str, object]:
    folder.mkdir()
    counts = np.random.default_rng(draw.randrange(100)).integers(0, 3, (3, 10))
    text = "\n".join(",".join(map(str, row)) for row in counts.tolist()).encode()
    if draw.random() < 0.5:
        text = text.replace(b"1", draw.choice(NASTY).encode("utf-8", "surrogatepass"), draw.choice([1, -1]))
    (folder / "table.csv").write_bytes(_damage(draw, text))
    return {"partition": "table", "table": str(folder / "table.csv")}


def _toml(draw: random.Random, folder: Path) -> dict[str, object]:
    folder.mkdir()
    odd = ["[1, 2]", "{ a = 1 }", "1979-05-27", "0x" + "f" * 5000, "nan", "-inf", '"a\\u0000b"', "'''\na\n'''",
           "[" * 2000 + "]" * 2000, "9" * 5000, "true", '"x"', "1.5", "3"]  # fmt: skip
    keys = [
        "lr",
        "momentum",
        "seed",
        "fedprox.mu",
        "drop-last",
        '"a\\nb"',
        "fedprox",
        "method",
        "fedavg.x.y",
        "optimizer",
    ]
    lines = [f"{draw.choice(keys)} = {draw.choice(odd)}" for _ in range(draw.choice([1, 2, 3]))]
    text = "\n".join(["rounds = 1", *lines]).encode()
    (folder / "run.toml").write_bytes(_damage(draw, text) if draw.random() < 0.5 else text)
    return {"config": draw.choice([str(folder / "run.toml")] * 9 + [str(folder)])}


def case(seed: int, folder: Path) -> list[str]:
    """The case of this seed: its files are written into the folder, its command line is returned."""
    draw = random.Random(seed)
    return draw.choice([settings_case, settings_case, data_case])(draw, folder)
