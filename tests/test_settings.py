import pytest

from raysim.config import PRESETS, RunConfig, from_command_line, from_toml, help_lines, load_layers, resolve
from raysim.errors import InputError


def from_words(*words: str) -> RunConfig:
    return resolve(load_layers(from_command_line(list(words)), {}))


def test_flags_in_all_their_spellings():
    config = from_words("--batch-size=32", "--lr", "1e-3", "--no-download", "--overwrite", "--data", "none")
    assert (config.batch_size, config.lr, config.data) == (32, 1e-3, None)
    assert (config.download, config.overwrite) == (False, True)


def test_later_layers_win(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('clients = 7\nlr = 1\nmethod = "fedprox"\n[fedprox]\nmu = 0.3\n')
    words = {"preset": "fedavg-cifar10", "config": str(file), "lr": "0.5", "active": "7"}
    config = resolve(load_layers(words, {"rounds": 9, "seed": 4}))
    assert (config.seed, config.rounds, config.clients, config.lr, config.parts[0].mu) == (4, 100, 7, 0.5, 0.3)


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
        (["--preset", "fedavg-cifr10"], r"unknown preset 'fedavg-cifr10'; did you mean 'fedavg-cifar10'\?"),
        (["--clients", "ten"], r"--clients must be a whole number, not 'ten'"),
        (["--clients", "1.5"], r"--clients must be a whole number"),
        (["--clients", "0"], r"--clients must be at least 1, not 0"),
        (["--lr", "nan"], r"--lr must be a number"),
        (["--lr", "0"], r"--lr must be above 0"),
        (["--fraction", "1.5"], r"--fraction must be at most 1"),
        (["--partition", "magic"], r"--partition must be one of iid, classes, dirichlet, table, not 'magic'"),
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
    ],
)
def test_a_wrong_file_is_named_on_one_line(tmp_path, text, message):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        resolve([("run.toml", from_toml(str(file)))])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_resolves_and_a_flag_wins_over_it(name):
    assert from_words("--preset", name, "--rounds", "2").rounds == 2
    preset, settings = PRESETS[name].settings, from_words("--preset", name).settings()
    for part in {key.partition(".")[0] for key in preset.keys() - settings}:  # one to compare methods by has theirs too
        settings = from_words("--preset", name, "--method", part).settings() | settings
    assert all(settings[key] == value for key, value in preset.items())


def test_help_has_a_line_for_every_setting():
    text = "\n".join(help_lines(RunConfig))
    assert all(f"--{name.replace('_', '-')} " in text for name in resolve([]).settings())


def test_resolved_settings_read_back_as_the_same_configuration():
    config = from_words("--method", "fedprox", "--fedprox.mu", "0.2", "--active", "3")
    assert resolve([("again", {k: v for k, v in config.settings().items() if v is not None})]) == config
