"""The command line, TOML files, presets and run directories as layers of one configuration."""

from pathlib import Path

import pytest

from raysim.config import from_command_line, from_record, load_layers, resolve, take
from raysim.errors import InputError

from .words import from_words


def test_flags_in_all_their_spellings():
    config = from_words("--batch-size=32", "--lr", "1e-3", "--no-download", "--overwrite", "--data", "none")
    assert (config.batch_size, config.lr, config.data) == (32, 1e-3, None)
    assert (config.download, config.overwrite) == (False, True)


def test_later_layers_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('clients = 7\nlr = 1\nmethod = "fedprox"\n[fedprox]\nmu = 0.3\n')
    words = {"preset": "fedavg-cifar10", "config": str(file), "lr": "0.5", "active": "7"}
    config = resolve(load_layers(words, {"rounds": 9, "seed": 4}))
    assert (config.seed, config.rounds, config.clients, config.lr, config.parts[0].mu) == (4, 60, 7, 0.5, 0.3)


def test_saying_epochs_takes_back_the_steps_of_an_earlier_layer():
    config = resolve([("preset", {"local_steps": 20}), ("command line", {"local_epochs": "2"})])
    assert (config.local_steps, config.local_epochs) == (None, 2)
    assert resolve([]).local_epochs == 1


def test_settings_of_a_part_a_later_method_left_out_are_ignored_but_not_if_asked_for():
    layers = [("preset x", {"method": "fedprox", "fedprox.mu": 1.0}), ("command line", {"method": "fedavg"})]
    assert resolve(layers).parts == ()
    with pytest.raises(InputError, match=r"--fedprox.mu belongs to fedprox, which is not in --method fedavg"):
        from_words("--fedprox.mu", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--metod", "fedavg"], r"unknown setting --metod; did you mean '--method'\?"),
        (["--method", "fedprocks"], r"unknown method 'fedprocks'; did you mean 'fedprox'\?"),
        (["--method", "no.such.module"], r"cannot import 'no.such.module'"),
        (["--method", "fedprox,scaffold"], r"methods are joined by \+; write --method fedprox\+scaffold"),
        (["--method", "fedprox+"], r"--method fedprox\+: a name is missing beside a \+"),
        (["--method", "nope:X"], r"unknown method 'nope:X'; there are fedavg"),
        (["--preset", "fedavg-cifr10"], r"unknown preset 'fedavg-cifr10'; did you mean 'fedavg-cifar10'\?"),
        (["--clients", "ten"], r"--clients must be a whole number, not 'ten'"),
        (["--clients", "1.5"], r"--clients must be a whole number"),
        (["--clients", "0"], r"--clients must be at least 1, not 0"),
        (["--lr", "nan"], r"--lr must be a number"),
        (["--lr", "0"], r"--lr must be above 0"),
        (["--fraction", "1.5"], r"--fraction must be at most 1"),
        (["--partition", "magic"], r"--partition must be one of iid, classes, column, dirichlet, table, not 'magic'"),
        (["--download", "perhaps"], r"--download must be true or false"),
        (["--active", "5", "--clients", "3"], r"--active 5 is more than --clients 3"),
        (["--local-epochs", "1", "--local-steps", "1"], r"give --local-epochs or --local-steps, not both"),
        (["--partition", "table"], r"goes with --table"),
        (["rounds", "3"], r"'rounds' is not a flag"),
        (["--config", "nowhere.toml"], r"--config nowhere.toml: No such file"),
    ],
)
def test_wrong_words_are_named_on_one_line(words, message):
    with pytest.raises(InputError, match=message) as caught:
        from_words(*words)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('clients = "ten"', r"run.toml: --clients must be a whole number, not 'ten'"),
        ("clients = true", r"--clients must be a whole number"),
        ("clients = 2.5", r"--clients must be a whole number"),
        ("dataset = 3", r"--dataset must be text"),
        ("overwrite = 1", r"--overwrite must be true or false"),
        ("clints = 3", r"run.toml: unknown setting --clints; did you mean '--clients'"),
        ("clients = ", r"run.toml: not valid TOML"),
        # Tables of parts that are not in the method, too.
        ("[fedprox]\nmuu = 1", r"run.toml: unknown setting --fedprox.muu; did you mean '--fedprox.mu'"),
        ('[fedprox]\nmu = "much"', r"run.toml: --fedprox.mu must be a number, not 'much'"),
        ("[fedprox]\nmu = -1", r"run.toml: --fedprox.mu must be at least 0"),
        ("[fmds]\nalpha = 1", r"run.toml: \[fmds\] has no settings of its own; write them into \[hfmds\]"),
        ("[fedavg]\nmu = 1", r"run.toml: unknown setting --fedavg.mu"),
        ("[nothing]\nmu = 1", r"run.toml: unknown setting --nothing.mu"),
    ],
)
def test_a_wrong_file_is_named_on_one_line(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        from_words("--config", "run.toml")
    assert "\n" not in str(caught.value)


def test_resolved_settings_read_back_as_the_same_configuration():
    config = from_words("--method", "fedprox", "--fedprox.mu", "0.2", "--active", "3")
    assert resolve([("again", {k: v for k, v in config.settings().items() if v is not None})]) == config


def test_a_switch_needs_no_value():
    config = from_words("--download", "--no-metrics", "--overwrite=false", "--profile", "true", "--resume")
    assert (config.download, config.metrics, config.overwrite, config.profile) == (True, False, False, True)
    config = from_words("--no-fixmatch.flip", "--method", "fixmatch")
    assert config.settings()["fixmatch.flip"] is False
    assert from_words("--no-metrics", "true").metrics is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "--rounds", "3"], r"command line: --out needs a value; write --out VALUE"),
        (["--rounds"], r"--rounds needs a value"),
        (["--method", "--rounds", "3"], r"--method needs a value"),
        (["--method", "fedprox", "--fedprox.mu"], r"--fedprox.mu needs a value"),
        (["--partition"], r"--partition needs a value"),
        (["--compile"], r"--compile needs a value"),
        (["--preset"], r"--preset needs a value"),
        (["--config", "--lr", "1"], r"--config needs a value"),
        (["--no-rounds"], r"unknown setting --no-rounds; did you mean '--rounds'\?"),
        (["--no-such"], r"unknown setting --no-such; see `raysim run --help`$"),
        (["--no-method"], r"unknown setting --no-method"),
        (["--no-preset"], r"unknown setting --no-preset"),
        (["--no-download", "3"], r"unknown setting --no-download"),
    ],
)
def test_anything_but_a_switch_needs_a_value(words, message):
    with pytest.raises(InputError, match=message) as caught:
        from_words(*words)
    assert "\n" not in str(caught.value)


def test_a_flag_that_is_no_setting_is_taken_out():
    flags = from_command_line(["--out", "page.html", "--bare"])
    assert (take(flags, "out"), take(flags, "at_once")) == ("page.html", None)
    assert "out" not in flags
    with pytest.raises(InputError, match="--bare needs a value"):
        take(flags, "bare")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("invention", "unknown setting --invention"), ("fedprox.mu", "unknown setting --fedprox.mu"),
        ("hfmds.invention", "unknown setting --hfmds.invention"), ("lr", "no --lr"), ("hfmds.mu", "no --hfmds.mu"),
    ],
)  # fmt: skip
def test_what_another_raysim_recorded_is_refused(key, says):
    recorded = resolve([("test", {"method": "hfmds"})]).settings()
    assert from_record(recorded, "run/config.json") == recorded
    other = recorded | {key: 1.0} if key not in recorded else {k: v for k, v in recorded.items() if k != key}
    with pytest.raises(InputError, match=f"^run/config.json: {says}; another version of raysim wrote it: use that one"):
        from_record(other, "run/config.json")
