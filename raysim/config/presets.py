"""The papers' settings by name (`--preset`); flags given beside a preset win over it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Settings by name, with a line about their origin."""

    about: str
    settings: dict[str, Any]


# HFMDS-FL (arXiv 2308.04761), section 6 and table 1. The rounds, the active clients and the range of the pixels of its
# table 2 are not given; with these FedAvg is near the paper's on CIFAR-10 (docs/results.md).
_HFMDS_PAPER = {
    "model": "hfmds-cnn", "clients": 20, "active": 10, "rounds": 60, "weighting": "uniform", "normalise": "half",
    "batch_size": 10, "local_epochs": 1, "lr": 0.005, "momentum": 0.9, "weight_decay": 5e-4,
    "partition": "dirichlet", "beta": 0.05, "min_samples": 10,
}  # fmt: skip

# FedPA (TDSC 2024), section VI: 20 clients, half of them active, 200 rounds, Adam, seed 3.
_FEDPA_PAPER = {
    "model": "fedpa-cnn", "clients": 20, "active": 10, "rounds": 200, "weighting": "samples",
    "batch_size": 32, "local_epochs": 20, "optimizer": "adam", "lr": 3e-4, "seed": 3, "partition": "dirichlet",
    "min_samples": 10,
}  # fmt: skip

# The same by the authors' published code, which gave the figures: E = 20 is mini-batch steps, every client takes part.
# It keeps at most 1,500 images per class of MNIST and FashionMNIST, where we keep a quarter of each class (of MNIST
# 1,355 to 1,686), and half of EMNIST. A client may have up to as much as an even share of half the dataset (so twice
# that of a quarter); clients have at least 10 samples, outside MNIST 10 per class.
_FEDPA_REFERENCE = {
    "model": "fedpa-cnn", "clients": 20, "active": 20, "rounds": 200, "weighting": "samples",
    "batch_size": 32, "local_steps": 20, "drop_last": True, "optimizer": "sgd", "lr": 0.01, "lr_decay": 0.99,
    "momentum": 0.0, "seed": 3, "partition": "dirichlet", "normalise": "half", "evaluation": "clients",
    "fedbn.keep": "statistics",
}  # fmt: skip
_FEDPA_REFERENCE_MNIST = {"dataset": "mnist", "beta": 0.1, "fraction": 0.25, "min_samples": 10, "quota": 2.0}
_FEDPA_REFERENCE_FASHION = {
    "dataset": "fashion_mnist", "beta": 0.3, "fraction": 0.25, "min_samples": 100, "quota": 2.0,
}  # fmt: skip

# HFMDS-FL's synthesis by the paper's letter, which is not the default.
HFMDS_LETTER = {
    "hfmds.mu": 0.5, "hfmds.lr": 0.02, "hfmds.match": "kl", "hfmds.match_weight": 1.0, "hfmds.temperature": 1.0,
    "hfmds.cam": "relu", "hfmds.layer": "features", "hfmds.label_weight": 1.0, "hfmds.noise": 1.0, "hfmds.tv": 0.0,
    "hfmds.clamp": False, "hfmds.levels": 0,
}  # fmt: skip
# HFMDS-FL table 1: B_g, T_g, T_d, α, λ.
_HFMDS_SETTINGS = HFMDS_LETTER | {
    "hfmds.per_client": 100, "hfmds.steps": 500, "hfmds.every": 20, "hfmds.alpha": 0.1, "hfmds.momentum": 0.5,
    "hfmds.first": "every",
}  # fmt: skip

# FedDPMS (CVPR workshops 2023), section 4.1; n, λ, α and σ, of its missing supplement, from the authors' code (whose
# scripts also have σ 4 for FashionMNIST and CIFAR-100, 50 means per class for CIFAR-100), and so the weights of the
# methods it compares with and the share of CIFAR-10 that is used. (That code multiplies FedProx's term by μ twice,
# averages models uniformly, and never lowers the learning rate, as the paper does.)
_FEDDPMS_PAPER = {
    "method": "feddpms", "clients": 10, "active": 10, "rounds": 50, "weighting": "samples", "batch_size": 64,
    "local_epochs": 5, "optimizer": "adam", "lr": 1e-3, "lr_decay": 0.5, "lr_decay_every": 10,
    "partition": "dirichlet", "beta": 0.5, "feddpms.vae_weight": 0.05, "feddpms.first_stage": 0.4,
    "feddpms.classes": 3, "feddpms.quota": 200, "feddpms.tries": 200, "feddpms.noise": 2.0, "min_samples": 10,
    "fedprox.mu": 0.001, "moon.mu": 10.0, "moon.temperature": 0.5, "fedmix.ratio": 0.05, "fedmix.mean_of": 64,
}  # fmt: skip
_FEDDPMS_CIFAR100 = _FEDDPMS_PAPER | {"dataset": "cifar100", "model": "feddpms-cifar-vae", "feddpms.classes": 10}
# SDA-FL, appendix A (table 3). One class per client is the first third of its table 1: --classes-per-client 2 or 3 are
# the others. Momentum is not mentioned; nor are the GAN's width, noise and learning rate, which are WGAN-GP's usual.
_SDAFL_PAPER = {
    "method": "sdafl", "model": "hfmds-cnn", "clients": 10, "rounds": 200, "weighting": "uniform", "batch_size": 64,
    "local_steps": 90, "lr": 0.03, "momentum": 0.0, "partition": "classes", "classes_per_client": 1,
    "sdafl.pool": 40_000, "sdafl.gan_rounds": 200, "sdafl.gan_steps": 90, "sdafl.server_steps": 50,
    "sdafl.lambda_real": 1.0, "sdafl.threshold": 0.95,
}  # fmt: skip
_SDAFL_CIFAR10 = {"sdafl.gan_rounds": 400, "sdafl.server_steps": 10, "sdafl.lambda_real": 0.0, "model": "resnet18"}
# Two classes per client, 50 labelled samples, 16 of them and 64 others in a step. Baselines are the same preset with
# --method mixup, fixmatch or fixmatch+mixup, and --local-steps 40.
_SDAFL_SEMI = {"classes_per_client": 2, "labelled": 50, "unlabelled_batch": 64, "batch_size": 16, "local_steps": 35}

# fmt: off
PRESETS: dict[str, Preset] = {
    "hfmds-100clients": Preset(
        "the main job: HFMDS clients and a FedPA server on shapes, one class per client (weights: docs/results.md)",
        {
            "method": "hfmds+fedpa", "dataset": "shapes", "clients": 100, "active": 10, "rounds": 30,
            "partition": "classes", "classes_per_client": 1,
            "hfmds.every": 10, "hfmds.per_client": 10,
            "fedpa.lambda_ge": 2.0, "fedpa.lambda_po": 0.01, "fedpa.lambda_po_floor": 0.0, "fedpa.ad_reach": 1.0,
            "tsne": 400,
        },
    ),
    "hfmds-cifar10": Preset(
        "HFMDS-FL tables 1 and 2, CIFAR-10, Dirichlet 0.05 (rounds, active clients and pixels are our reading)",
        {"method": "hfmds", "dataset": "cifar10"} | _HFMDS_PAPER | _HFMDS_SETTINGS,
    ),
    "hfmds-cifar100": Preset(
        "HFMDS-FL tables 1 and 2, CIFAR-100, Dirichlet 0.05 (rounds, active clients and pixels are our reading)",
        {"method": "hfmds", "dataset": "cifar100"} | _HFMDS_PAPER | _HFMDS_SETTINGS,
    ),
    "fedpa-mnist": Preset(
        "FedPA table II, MNIST, Dirichlet 0.1 (the generator's steps are our reading)",
        {"method": "fedpa", "dataset": "mnist", "beta": 0.1} | _FEDPA_PAPER,
    ),
    "fedpa-fashion": Preset(
        "FedPA table II, FashionMNIST, Dirichlet 0.3 (the generator's steps are our reading)",
        {"method": "fedpa", "dataset": "fashion_mnist", "beta": 0.3} | _FEDPA_PAPER,
    ),
    "fedpa-emnist": Preset(
        "FedPA table II, EMNIST letters, Dirichlet 0.1 (the generator's steps are our reading)",
        {"method": "fedpa", "dataset": "emnist", "beta": 0.1}
        | _FEDPA_PAPER
        | {"lr": 1e-4, "fedpa.gen_lr": 1e-4, "fedpa_reference.gen_lr": 1e-4},  # the latter for fedgen_reference
    ),
    "fedpa-celeba": Preset(
        "FedPA table II, CelebA iid (attribute, image size and the generator's steps are our reading)",
        {"method": "fedpa", "dataset": "celeba"}
        | _FEDPA_PAPER
        # [32, 256, 32]: 30 noise and 2 classes; for fedgen_reference too.
        | {
            "model": "fedpa-celeba-cnn", "partition": "iid", "image_size": 84, "fedpa.noise": 30,
            "fedpa_reference.noise": 30,
        },
    ),
    "fedpa-mnist-reference": Preset(
        "FedPA table II as its authors' code computes it, MNIST, Dirichlet 0.1",
        {"method": "fedpa_reference+fedbn"} | _FEDPA_REFERENCE_MNIST | _FEDPA_REFERENCE,
    ),
    "fedpa-fashion-reference": Preset(
        "FedPA table II as its authors' code computes it, FashionMNIST, Dirichlet 0.3",
        {"method": "fedpa_reference+fedbn"} | _FEDPA_REFERENCE_FASHION | _FEDPA_REFERENCE,
    ),
    "fedpa-emnist-reference": Preset(
        "FedPA table II as its authors' code computes it, EMNIST letters, Dirichlet 0.1",
        {"method": "fedpa_reference+fedbn", "dataset": "emnist", "beta": 0.1, "fraction": 0.5, "min_samples": 260}
        | _FEDPA_REFERENCE
        | {"fedpa_reference.gen_lr": 1e-4},
    ),
    "fedpa-celeba-reference": Preset(
        # The code has 25 devices of ten celebrities each, and pixels from 0 to 255.
        "FedPA table II as its authors' code computes it, CelebA iid (attribute, clients and pixels are our reading)",
        {"method": "fedpa_reference+fedbn", "dataset": "celeba"}
        | _FEDPA_REFERENCE
        | {
            "model": "fedpa-celeba-cnn", "partition": "iid", "image_size": 84, "fedpa_reference.noise": 32,
            "fedpa_reference.hidden": 128,
        },
    ),
    "sdafl-mnist": Preset("SDA-FL table 1, MNIST, one class per client", {"dataset": "mnist"} | _SDAFL_PAPER),
    "sdafl-fashion": Preset(
        "SDA-FL table 1, FashionMNIST, one class per client", {"dataset": "fashion_mnist"} | _SDAFL_PAPER
    ),
    "sdafl-cifar10": Preset(
        "SDA-FL table 1, CIFAR-10, one class per client", {"dataset": "cifar10"} | _SDAFL_PAPER | _SDAFL_CIFAR10
    ),
    "sdafl-svhn": Preset(
        "SDA-FL table 1, SVHN, one class per client", {"dataset": "svhn"} | _SDAFL_PAPER | {"model": "resnet18"}
    ),
    "sdafl-covid19": Preset(
        "SDA-FL table 6: --dataset FOLDER of X-rays whose classes sort as normal, covid, pneumonia (64×64 by us)",
        _SDAFL_PAPER
        | {
            "model": "resnet18", "clients": 6, "partition": "table", "table": "covid19", "image_size": 64,
            "local_steps": 30, "sdafl.server_steps": 10, "sdafl.gan_rounds": 50,
        },
    ),
    "sdafl-mnist-semi": Preset(
        "SDA-FL figure 2, MNIST, 50 labels per client (baselines: --method mixup, fixmatch, and --fixmatch.flip false)",
        {"dataset": "mnist"} | _SDAFL_PAPER | _SDAFL_SEMI,
    ),
    "sdafl-fashion-semi": Preset(
        "SDA-FL figure 2, FashionMNIST, 50 labels per client (baselines: --method mixup, fixmatch, fixmatch+mixup)",
        {"dataset": "fashion_mnist"} | _SDAFL_PAPER | _SDAFL_SEMI,
    ),
    "sdafl-cifar10-semi": Preset(
        "SDA-FL figure 2, CIFAR-10, 50 labels per client (baselines: --method mixup, fixmatch, fixmatch+mixup)",
        {"dataset": "cifar10"}
        | _SDAFL_PAPER
        | _SDAFL_CIFAR10
        | _SDAFL_SEMI
        | {"local_steps": 39, "sdafl.server_steps": 0},
    ),
    "sdafl-mnist-private": Preset(
        "SDA-FL figure 3, MNIST, two classes per client, ε 5 over 30 GAN rounds",
        {"dataset": "mnist"} | _SDAFL_PAPER | {"classes_per_client": 2, "sdafl.gan_rounds": 30, "sdafl.epsilon": 5.0},
    ),
    "sdafl-fashion-private": Preset(
        "SDA-FL figure 3, FashionMNIST, two classes per client, ε 5 over 30 GAN rounds",
        {"dataset": "fashion_mnist"}
        | _SDAFL_PAPER
        | {"classes_per_client": 2, "sdafl.gan_rounds": 30, "sdafl.epsilon": 5.0},
    ),
    "sdafl-cifar10-private": Preset(
        "SDA-FL figure 3, CIFAR-10, two classes per client, ε 50 over 400 GAN rounds",
        {"dataset": "cifar10"} | _SDAFL_PAPER | _SDAFL_CIFAR10 | {"classes_per_client": 2, "sdafl.epsilon": 50.0},
    ),
    "sdafl-mnist-small": Preset(
        "SDA-FL on a tenth of MNIST, one class per client, GANs of 300 steps: minutes on a CPU (docs/results.md)",
        {
            "method": "sdafl", "dataset": "mnist", "train_size": 6000, "test_size": 2000, "model": "small-cnn",
            "clients": 10, "rounds": 20, "weighting": "uniform", "batch_size": 32, "local_steps": 20, "lr": 0.05,
            "momentum": 0.0, "partition": "classes", "classes_per_client": 1,
            "sdafl.pool": 2000, "sdafl.gan_rounds": 6, "sdafl.gan_steps": 50, "sdafl.gan_slice": 1,
            "sdafl.gan_batch": 32, "sdafl.gan_lr": 1e-3, "sdafl.critic_steps": 2, "sdafl.width": 12,
            "sdafl.noise": 32, "sdafl.server_steps": 30,
        },
    ),
    "fedavg-cifar10": Preset(
        "FedAvg as compared in HFMDS-FL table 2, CIFAR-10 (rounds, active clients and pixels are our reading)",
        {"method": "fedavg", "dataset": "cifar10"} | _HFMDS_PAPER,
    ),
    "fedavg-cifar100": Preset(
        "FedAvg as compared in HFMDS-FL table 2, CIFAR-100 (rounds, active clients and pixels are our reading)",
        {"method": "fedavg", "dataset": "cifar100"} | _HFMDS_PAPER,
    ),
    "fedprox-cifar10": Preset(
        "FedProx as compared in HFMDS-FL table 2, CIFAR-10 (rounds, active clients and pixels are our reading)",
        {"method": "fedprox", "dataset": "cifar10", "fedprox.mu": 0.01} | _HFMDS_PAPER,
    ),
    "fedavg-mnist": Preset(
        "FedAvg as compared in FedPA table II, MNIST, Dirichlet 0.1",
        {"method": "fedavg", "dataset": "mnist", "beta": 0.1} | _FEDPA_PAPER,
    ),
    "fedavg-mnist-reference": Preset(
        "FedAvg in the setting of fedpa-mnist-reference, batch-norm's statistics personal too",
        {"method": "fedbn"} | _FEDPA_REFERENCE_MNIST | _FEDPA_REFERENCE,
    ),
    "fedavg-fashion": Preset(
        "FedAvg as compared in FedPA table II, FashionMNIST, Dirichlet 0.3",
        {"method": "fedavg", "dataset": "fashion_mnist", "beta": 0.3} | _FEDPA_PAPER,
    ),
    "fedavg-emnist": Preset(
        "FedAvg as compared in FedPA table II, EMNIST letters, Dirichlet 0.1",
        {"method": "fedavg", "dataset": "emnist", "beta": 0.1} | _FEDPA_PAPER | {"lr": 1e-4},
    ),
    "feddpms-fashion": Preset(
        "FedDPMS table 1, FashionMNIST, Dirichlet 0.5; with --method fedavg its baseline",
        _FEDDPMS_PAPER | {"dataset": "fashion_mnist", "model": "feddpms-vae"},
    ),
    "feddpms-fashion-small": Preset(
        "FedDPMS on 4,000 images of FashionMNIST at 16x16, Dirichlet 0.1 (docs/results.md); also with --method fedavg",
        _FEDDPMS_PAPER
        | {
            "dataset": "fashion_mnist", "model": "feddpms-vae", "image_size": 16, "train_size": 4_000,
            "test_size": 2_000, "beta": 0.1, "rounds": 12, "local_epochs": 10, "batch_size": 20,
            "feddpms.noise": 0.5, "feddpms.quota": 60, "feddpms.tries": 20,
        },
    ),
    # For `raysim compare`: one model for all, the one FedDPMS needs; every weight as in docs/results.md.
    "all-methods-fashion-small": Preset(
        "FashionMNIST, two classes per client, half of ten active: small, with settings for every method to compare",
        {
            "method": "fedavg", "dataset": "fashion_mnist", "model": "feddpms-vae", "image_size": 16,
            "train_size": 2_000, "test_size": 1_000, "clients": 10, "active": 5, "partition": "classes",
            "classes_per_client": 2, "rounds": 12, "local_steps": 40, "batch_size": 32, "lr": 0.02,
            "feddpms.vae_weight": 0.03, "feddpms.noise": 0.5, "feddpms.quota": 40, "feddpms.tries": 20,
            "hfmds.every": 5, "hfmds.steps": 60, "hfmds.per_client": 50,
            "fedpa.lambda_ge": 0.5, "fedpa.lambda_po": 0.01, "fedgen.lambda_ge": 0.5,
            "sdafl.pool": 1_000, "sdafl.gan_slice": 3, "sdafl.server_steps": 20,
        }
        | {
            f"{part}.{key}": value
            for part in ("sdafl", "fedgan", "feddpgan")
            for key, value in {
                "gan_rounds": 2 if part == "feddpgan" else 6, "gan_steps": 50, "gan_batch": 32, "gan_lr": 1e-3,
                "critic_steps": 2, "width": 12, "noise": 32,
            }.items()
        },
    ),
    "feddpms-cifar10": Preset(
        "FedDPMS table 1, CIFAR-10, Dirichlet 0.5; with --method fedavg its baseline",
        _FEDDPMS_PAPER | {"dataset": "cifar10", "model": "feddpms-cifar-vae", "moon.mu": 5.0, "fraction": 0.4},
    ),
    "feddpms-cifar100": Preset(
        "FedDPMS table 1, CIFAR-100, Dirichlet 0.5; with --method fedavg its baseline", _FEDDPMS_CIFAR100
    ),
} | {
    f"feddpms-cifar100-{clients}clients": Preset(
        f"FedDPMS table 2, {clients} clients on {clients} % of CIFAR-100, Dirichlet 0.5",
        _FEDDPMS_CIFAR100 | {"clients": clients, "active": clients, "fraction": clients / 100},
    )
    for clients in (10, 20, 30, 40, 50)
}
# fmt: on

# -- small variants: fewer images, rounds and steps, so that a run takes minutes on two CPU cores; their figures are not
# the papers'. They end before another synthesis, whose effect a single round would not show.

_SMALL = {"train_size": 2000, "test_size": 1000, "rounds": 14}
_SMALL_PARTS = {
    "hfmds": {"hfmds.per_client": 50, "hfmds.steps": 50, "hfmds.every": 5},
    "fedpa": {"fedpa.gen_steps": 20},
    "fedpa_reference": {"fedpa_reference.gen_steps": 20},
    "feddpms": {"feddpms.quota": 50, "feddpms.tries": 20},
    "sdafl": {"sdafl.pool": 2000, "sdafl.gan_rounds": 20, "sdafl.server_steps": 10},
}
_AT_MOST = {"local_epochs": 2, "local_steps": 30, "min_samples": 10}


def _small(preset: Preset) -> Preset:
    settings = {key: value for key, value in preset.settings.items() if key != "fraction"} | _SMALL
    settings |= {key: min(settings[key], most) for key, most in _AT_MOST.items() if key in settings}
    for part in settings["method"].split("+"):
        settings |= _SMALL_PARTS.get(part, {})
    return Preset(f"{preset.about}; small", settings)


# What a table deals has a size of its own.
_SMALL_ALREADY = (
    "hfmds-100clients",
    "sdafl-covid19",
    *(name.removesuffix("-small") for name in PRESETS if name.endswith("-small")),
)
PRESETS |= {
    f"{name}-small": _small(preset)
    for name, preset in PRESETS.items()
    if name not in _SMALL_ALREADY and not name.endswith("-small")
}
