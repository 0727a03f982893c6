"""Wrong input: one line on stderr, exit code 2, no traceback, nothing half-written. Before Ray starts: these tests
are quick ones, which may not start a process (tests/tiers.py)."""

import io
import os
import sys
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from raysim.cli import main

SMALL = ["--clients", "4", "--rounds", "1"]


def png(size=(16, 16)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size).save(buffer, "PNG")
    return buffer.getvalue()


def parquet_folder(path, images, labels):
    path.mkdir()
    for split in ("train", "test"):
        table = pa.table({"image": [{"bytes": image, "path": None} for image in images], "label": labels})
        pq.write_table(table, path / f"{split}-00000-of-00001.parquet")
    return path


def corrupt_parquet(tmp_path):
    folder = parquet_folder(tmp_path / "d", [png()] * 8, [0, 1] * 4)
    (folder / "train-00000-of-00001.parquet").write_bytes(b"PAR1 not really PAR1")
    return ["--dataset", str(folder)], ["train-00000-of-00001.parquet"]


def not_an_image(tmp_path):
    folder = parquet_folder(tmp_path / "d", [png()] * 5 + [b"hello"] + [png()] * 2, [0, 1] * 4)
    return ["--dataset", str(folder)], ["train-00000-of-00001.parquet", "5"]


def huge_image(tmp_path):
    # A real PNG header that announces 20,000 × 20,000 pixels; decoding it would take 1.2 GB.
    bomb = bytearray(png())
    bomb[16:24] = (20_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bytes(bomb[12:29])).to_bytes(4, "big")
    folder = parquet_folder(tmp_path / "d", [png()] * 7 + [bytes(bomb)], [0, 1] * 4)
    return ["--dataset", str(folder)], ["row 7", "20,000x20,000", "4,096x4,096"]


def labels_out_of_range(tmp_path):
    return ["--dataset", str(parquet_folder(tmp_path / "d", [png()] * 8, [0, 1, -3, 1] * 2))], ["-3", "label"]


def out_exists(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    return ["--out", str(tmp_path / "old")], ["exists", "--overwrite"]


def out_is_no_run(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    return ["--out", str(tmp_path / "home"), "--overwrite"], ["not a run directory"]


def out_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return ["--out", str(tmp_path / "file")], ["is a file"]


def out_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return ["--out", str(tmp_path / "file" / "run")], ["cannot be written"]


def wrong_config(tmp_path):
    (tmp_path / "run.toml").write_text('rounds = "many"\n')
    return ["--config", str(tmp_path / "run.toml")], ["run.toml", "--rounds must be a whole number", "many"]


def method_file(content):
    """A method of the user's own, in a file that cannot be imported."""

    def case(tmp_path):
        (tmp_path / "my_lab").mkdir()
        name = f"method_{zlib.crc32(content.encode())}"
        (tmp_path / "my_lab" / f"{name}.py").write_text(content)
        return ["--method", f"my_lab.{name}"], [f"my_lab.{name}", "cannot import"]

    return case


def toml(content: bytes, *mentions):
    def case(tmp_path):
        (tmp_path / "run.toml").write_bytes(content)
        return ["--config", str(tmp_path / "run.toml")], ["run.toml", *mentions]

    return case


HUGE = "9" * 6000

# (flag, value, what the line mentions)
ABSURD = [
    ("out", "x" * 300, "too long"),
    ("out", "a\0b", "--out"),
    ("out", "\ud800", "--out"),
    ("dataset", "x" * 300, "too long"),
    ("dataset", "a\0b", "--dataset"),
    ("dataset", "~nobody/x", "~nobody/x"),
    ("method", "x" * 300, "too long"),
    ("method", ".x", "my_lab.my_method"),
    ("method", "a..b", "my_lab.my_method"),
    ("method", "no_such_lab.method", "no_such_lab"),
    ("fuse", "1" * 25, "at most"),
    ("fuse", HUGE, "--fuse"),
    ("threads", "1000000000000", "at most 1024"),
    ("clients", str(10**12), "at most"),
    ("rounds", str(10**30), "at most"),
    ("rounds", "1" + "0" * 400, "at most"),
    ("rounds", "٣", "a whole number"),
    ("lr", "1e400", "a number"),
    ("lr", "nan", "a number"),
    ("lr", "1e300", "at most"),
    ("seed", str(2**64), "at most"),
    ("config", ".", "--config"),
    ("config", "a\0b", "--config"),
    ("config", "/dev/zero", "bytes"),
    ("train-size", str(10**12), "GiB"),
    ("image-size", "4096", "GiB"),
]


CASES = {
    "unknown command": lambda _: (["rum"], ["unknown command 'rum'", "'run'"]),
    "emoji": lambda _: (["--method", "nope:X"], ["'nope:X'"]),
    "emoji in a path": lambda p: (["report", str(p / ":smile:")], [":smile:' is not a run directory"]),
    "a method's part is missing": lambda _: (["--method", "fedprox+"], ["a name is missing beside a +"]),
    "methods with a comma": lambda _: (["--method", "fedprox,scaffold"], ["--method fedprox+scaffold"]),
    "no such sweep": lambda _: (["sweep", "hfmds-table5"], ["'hfmds-table5'; there are hfmds-table2-cifar10"]),
    "sweeps of nothing": lambda _: (["sweeps", "hfmds-table5"], ["'hfmds-table5'; there are hfmds-table2-cifar10"]),
    "presets of nothing": lambda _: (["presets", "fedavg-cifr10"], ["did you mean 'fedavg-cifar10'"]),
    "methods of nothing": lambda _: (["methods", "fedprx"], ["did you mean 'fedprox'"]),
    "two names": lambda _: (["methods", "fedprox", "moon"], ["give one name"]),
    "help for an unknown method": lambda _: (["run", "--help", "--method", "fedprx"], ["did you mean 'fedprox'"]),
    "show of nothing": lambda p: (["show", str(p)], ["not a run directory and has none in it"]),
    "show by what there is not": lambda _: (["show", "--order", "best"], ["unknown flag --order", "--sort"]),
    "show in two ways": lambda p: (["show", str(p), "--json", "--csv"], ["--json or --csv, not both"]),
    "show too few": lambda p: (["show", str(p), "--top", "0"], ["--top must be a whole number above 0"]),
    "features of nothing": lambda p: (["features", str(p)], ["not a run directory"]),
    "features into a page": lambda p: (["features", str(p), "--out", "x.html"], ["x.html is no .png"]),
    "one class": lambda p: (
        ["--dataset", str(parquet_folder(p / "d", [png()] * 8, [0] * 8))],
        ["d: all images are of one class ('0'); a classifier needs two"],
    ),
    "unknown method": lambda _: (["--method", "fedprx"], ["'fedprx'", "did you mean 'fedprox'"]),
    "unknown dataset": lambda _: (["--dataset", "shaps"], ["shaps", "shapes"]),
    "unknown flag": lambda _: (["--beeta", "1"], ["--beeta", "did you mean '--beta'"]),
    "unknown model": lambda _: (["--model", "hfmds"], ["'hfmds'", "hfmds-cnn"]),
    "dataset not found": lambda p: (["--dataset", "cifar10", "--data", str(p)], [str(p), "--download", "--data"]),
    "corrupt parquet": corrupt_parquet,
    "not an image": not_an_image,
    "huge image": huge_image,
    "labels out of range": labels_out_of_range,
    "too many classes": lambda _: (
        ["--partition", "classes", "--classes-per-client", "11"],
        ["11 classes per client", "10"],
    ),
    "too many clients": lambda _: (["--clients", "20000"], ["20000 clients", "10000 training samples"]),
    "out exists": out_exists,
    "out is no run": out_is_no_run,
    "out is a file": out_is_a_file,
    "out below a file": out_below_a_file,
    "wrong type in config": wrong_config,
    "no value": lambda _: (["--out", "--rounds", "3"], ["--out needs a value"]),
    "no value for many runs": lambda _: (["compare", "--methods", "fedavg", "--out"], ["--out needs a value"]),
    "no value for a page": lambda p: (["report", str(p), "--out"], ["--out needs a value"]),
    "no such switch": lambda _: (["--no-rounds"], ["unknown setting --no-rounds", "did you mean '--rounds'"]),
    "no such table": lambda _: (["--partition", "table", "--table", "no.csv"], ["table no.csv: no such file"]),
    "method with a syntax error": method_file("def broken(:\n"),
    "method that imports what is not there": method_file("import no_such_module_anywhere\n"),
    "method that raises": method_file("1 / 0\n"),
    "method that exits": method_file("import sys\nsys.exit('no')\n"),
    "toml: binary": toml(bytes(range(256)), "not valid TOML"),
    "toml: endless": toml(b"#" * 2**21, "bytes"),
    "toml: a list": toml(b"rounds = [1, 2]", "--rounds"),
    "toml: a date": toml(b"rounds = 1979-05-27", "--rounds"),
    "toml: tables in tables": toml(b'method = "fedprox"\n[fedprox.mu.x]\ny = 1', "--fedprox.mu"),
    "toml: a key of two lines": toml(b'"a\\nb" = 1', "unknown setting"),
    "toml: a long number": toml(b"rounds = " + b"9" * 5000, "not valid TOML"),
    "toml: a long number in hex": toml(b"rounds = 0x" + b"f" * 5000, "--rounds"),
    "toml: deep": toml(b"rounds = " + b"[" * 5000 + b"]" * 5000, "run.toml"),
    **{
        f"--{flag} {value[:20]!r} {len(value)}": lambda _, flag=flag, value=value, mention=mention: (
            [f"--{flag}", value],
            [mention],
        )
        for flag, value, mention in ABSURD
    },
    "report of nothing": lambda p: (["report", str(p)], ["not a run directory"]),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("RAYSIM_DATA", raising=False)
    words, expected = CASES[case](tmp_path)
    before = sorted(tmp_path.rglob("*"))
    if words[0].startswith("--"):
        words = ["run", *SMALL, *words]
    assert main(words) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1, captured.err
    assert all(word in lines[0] for word in expected), lines[0]
    assert "Traceback" not in captured.err + captured.out
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_out_without_permission(tmp_path, capsys):
    (tmp_path / "closed").mkdir(mode=0o500)
    assert main(["run", *SMALL, "--out", str(tmp_path / "closed" / "run")]) == 2
    assert "no permission" in capsys.readouterr().err


def test_images_of_different_sizes_ask_for_image_size(tmp_path, capsys):
    folder = parquet_folder(tmp_path / "d", [png(), png((20, 20))] * 10, [0, 1] * 10)
    words = ["run", *SMALL, "--dataset", str(folder), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "--image-size" in capsys.readouterr().err
    assert main([*words, "--image-size", "16", "--in-process"]) == 0


def test_overwrite_replaces_a_run_and_removes_nothing_beside_other_files(tmp_path, capsys):
    words = ["run", "--train-size", "60", "--test-size", "20", *SMALL, "--in-process", "--out", str(tmp_path / "r")]
    assert main(words) == 0
    (tmp_path / "r" / "notes.txt").write_text("mine")
    first = (tmp_path / "r" / "metrics.jsonl").read_text()
    assert main(words) == 2
    assert main([*words, "--overwrite", "--seed", "5"]) == 2
    assert (tmp_path / "r" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "r" / "metrics.jsonl").read_text() == first
    (tmp_path / "r" / "notes.txt").unlink()
    assert main([*words, "--overwrite", "--seed", "5"]) == 0
    assert (tmp_path / "r" / "metrics.jsonl").read_text() != first
    assert len((tmp_path / "r" / "metrics.jsonl").read_text().splitlines()) == 1
