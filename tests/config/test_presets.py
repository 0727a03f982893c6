"""The presets are settings that resolve, and those of the papers."""

import pytest

from raysim.papers import presets

from .words import from_words


@pytest.mark.parametrize("name", presets())
def test_every_preset_resolves_and_a_flag_wins_over_it(name):
    assert from_words("--preset", name, "--rounds", "2").rounds == 2
    preset, settings = presets()[name].settings, from_words("--preset", name).settings()
    for part in {key.partition(".")[0] for key in preset.keys() - settings}:  # one to compare methods by has theirs too
        settings = from_words("--preset", name, "--method", part).settings() | settings
    assert all(settings[key] == value for key, value in preset.items())


# What the papers and their authors' code set, typed from these and not from the presets.
_FEDPA = {
    "clients": 20, "active": 10, "rounds": 200, "local_epochs": 20, "local_steps": None, "drop_last": False,
    "batch_size": 32, "optimizer": "adam", "lr": 3e-4, "lr_decay": 1.0, "weighting": "samples", "seed": 3,
    "model": "fedpa-cnn", "evaluation": "global",
    "fedpa.lambda_ge": 25, "fedpa.lambda_po": 5, "fedpa.lambda_po_floor": 0.15, "fedpa.gamma_fid": 25,
    "fedpa.gamma_div": 1, "fedpa.gamma_ad": 0.15, "fedpa.decay": 0.98, "fedpa.pairs": "same", "fedpa.noise": 32,
    "fedpa.hidden": 256, "fedpa.gen_lr": 3e-4, "fedpa.ad_reach": None,
}  # fmt: skip
_FEDPA_CODE = {
    "clients": 20, "active": 20, "rounds": 200, "local_epochs": None, "local_steps": 20, "drop_last": True,
    "batch_size": 32, "optimizer": "sgd", "momentum": 0, "lr": 0.01, "lr_decay": 0.99, "lr_decay_every": 1,
    "weighting": "samples", "normalise": "half", "evaluation": "clients", "fedbn.keep": "statistics",
    "fedpa_reference.lambda_ge_floor": 1e-4, "fedpa_reference.gamma_fid_floor": 1e-4,
    "fedpa_reference.lambda_po_floor": 0.15, "fedpa_reference.pairs": "different", "fedpa_reference.noise": 32,
    "fedpa_reference.gen_steps": 50, "fedpa_reference.gen_batch": 32, "fedpa_reference.gen_lr_decay": 0.98,
    "fedpa_reference.gen_weight_decay": 1e-2,
}  # fmt: skip
_HFMDS = {
    "model": "hfmds-cnn", "clients": 20, "active": 10, "weighting": "uniform", "batch_size": 10, "local_epochs": 1,
    "optimizer": "sgd", "lr": 0.005, "lr_decay": 1.0, "momentum": 0.9, "weight_decay": 5e-4,
    "hfmds.per_client": 100, "hfmds.steps": 500, "hfmds.every": 20, "hfmds.alpha": 0.1, "hfmds.mu": 0.5,
    "hfmds.momentum": 0.5, "hfmds.lr": 0.02, "hfmds.match": "kl", "hfmds.match_weight": 1, "hfmds.cam": "relu",
}  # fmt: skip
_FEDDPMS = {
    "clients": 10, "active": 10, "rounds": 50, "local_epochs": 5, "batch_size": 64, "optimizer": "adam", "lr": 1e-3,
    "lr_decay": 0.5, "lr_decay_every": 10, "weighting": "samples", "beta": 0.5, "min_samples": 10,
}  # fmt: skip
_VAE = {
    "feddpms.first_stage": 0.4, "feddpms.classes": 3, "feddpms.vae_weight": 0.05, "feddpms.noise": 2,
    "feddpms.quota": 200, "feddpms.tries": 200,
}  # fmt: skip
_SDAFL = {
    "clients": 10, "active": 10, "rounds": 200, "local_steps": 90, "local_epochs": None, "batch_size": 64, "lr": 0.03,
    "weighting": "uniform", "sdafl.server_steps": 50, "sdafl.gan_rounds": 200, "sdafl.gan_steps": 90,
    "sdafl.lambda_real": 1, "sdafl.threshold": 0.95, "sdafl.pool": 40_000, "model": "hfmds-cnn",
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fedpa-mnist", _FEDPA | {"dataset": "mnist", "partition": "dirichlet", "beta": 0.1}),
        ("fedpa-emnist", _FEDPA | {"dataset": "emnist", "beta": 0.1, "lr": 1e-4, "fedpa.gen_lr": 1e-4}),
        (
            "fedpa-celeba",  # [32, 256, 32]
            _FEDPA
            | {"dataset": "celeba", "partition": "iid", "model": "fedpa-celeba-cnn", "image_size": 84}
            | {"fedpa.noise": 32 - 2},
        ),
        (
            "fedpa-mnist-reference",
            _FEDPA_CODE
            | {"dataset": "mnist", "model": "fedpa-cnn", "beta": 0.1, "fraction": 0.25}
            | {"fedpa_reference.hidden": 256, "fedpa_reference.gen_lr": 3e-4},
        ),
        (
            "fedpa-emnist-reference",
            _FEDPA_CODE
            | {"dataset": "emnist", "model": "fedpa-cnn", "beta": 0.1, "fraction": 0.5}
            | {"fedpa_reference.hidden": 256, "fedpa_reference.gen_lr": 1e-4},
        ),
        (
            "fedpa-celeba-reference",
            _FEDPA_CODE
            | {"dataset": "celeba", "model": "fedpa-celeba-cnn", "partition": "iid", "image_size": 84}
            | {"fedpa_reference.hidden": 128, "fedpa_reference.gen_lr": 3e-4},
        ),
        ("hfmds-cifar10", _HFMDS | {"dataset": "cifar10"}),
        ("hfmds-cifar100", _HFMDS | {"dataset": "cifar100"}),
        ("feddpms-fashion", _FEDDPMS | _VAE | {"dataset": "fashion_mnist", "model": "feddpms-vae"}),
        ("feddpms-cifar10", _FEDDPMS | _VAE | {"dataset": "cifar10"}),
        ("feddpms-cifar100", _FEDDPMS | _VAE | {"dataset": "cifar100", "feddpms.classes": 10}),
        ("feddpms-fashion --method fedprox", _FEDDPMS | {"fedprox.mu": 0.001}),
        ("feddpms-fashion --method moon", _FEDDPMS | {"moon.mu": 10, "moon.temperature": 0.5}),
        ("feddpms-cifar10 --method moon", _FEDDPMS | {"moon.mu": 5, "moon.temperature": 0.5}),
        ("feddpms-cifar100 --method moon", _FEDDPMS | {"moon.mu": 10, "moon.temperature": 0.5}),
        ("feddpms-cifar10 --method fedmix", _FEDDPMS | {"fedmix.ratio": 0.05, "fedmix.mean_of": 64}),
        ("sdafl-mnist", _SDAFL | {"dataset": "mnist"}),
        ("sdafl-fashion", _SDAFL | {"dataset": "fashion_mnist"}),
        (
            "sdafl-cifar10",
            _SDAFL
            | {"dataset": "cifar10", "model": "resnet18"}
            | {"sdafl.server_steps": 10, "sdafl.gan_rounds": 400, "sdafl.lambda_real": 0},
        ),
        (
            "sdafl-covid19 --dataset folder",
            _SDAFL
            | {"clients": 6, "active": 6, "local_steps": 30, "partition": "table", "table": "covid19"}
            | {"model": "resnet18", "sdafl.server_steps": 10, "sdafl.gan_rounds": 50},
        ),
    ],
)
def test_the_papers_presets_have_the_papers_settings(words, expected):
    found = from_words("--preset", *words.split()).settings()
    assert {key: found[key] for key in expected} == expected
