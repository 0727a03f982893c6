"""The papers' tables and ablations by name (`raysim sweep NAME`), each a grid of settings. Imports no method.

Where a paper draws a figure without printing the settings of its points, we read them off the figure.
"""

from dataclasses import dataclass, field

Settings = dict[str, object]
Axis = dict[str, Settings]  # name of a point in the table -> its settings


@dataclass(frozen=True)
class Sweep:
    """Every combination of the axes' points, on top of the base (which may name a preset)."""

    about: str
    base: Settings
    axes: tuple[Axis, ...]
    # Row -> accuracy in %, where the paper prints it; None: rows are cells of the tables in observe/papers.py.
    paper: dict[str, float] | None = None
    seeds: tuple[int, ...] = ()  # as many as the paper has trials; empty: the one of the base
    # Name of a point -> the name under which the table has the best of such points, where the paper tunes a setting.
    best_of: dict[str, str] = field(default_factory=dict)


def _methods(names: str) -> Axis:
    return {name: {"method": name} for name in names.split()}


def _values(key: str, *values: float | None) -> Axis:
    name = key.rpartition(".")[2]
    return {f"{name}={'none' if value is None else f'{value:g}'}": {key: value} for value in values}


def _tuned(method: str, key: str, *values: float) -> Axis:
    """A method with several values of a setting, of which the paper reports the best."""
    return {f"{method} {name}": {"method": method} | point for name, point in _values(key, *values).items()}


def _dirichlet(*betas: float) -> Axis:
    return {f"dirichlet {beta:g}": {"partition": "dirichlet", "beta": beta} for beta in betas}


def _classes(*counts: int) -> Axis:
    return {f"classes {count}": {"partition": "classes", "classes_per_client": count} for count in counts}


def _rows(methods: str, points: list[str], lines: str) -> dict[str, float]:
    """Row -> accuracy from a printed table, which has a line of figures for each method."""
    figures = [line.split() for line in lines.strip().splitlines()]
    return {
        f"{method}, {point}": float(figure)
        for method, line in zip(methods.split(), figures, strict=True)
        for point, figure in zip(points, line, strict=True)
    }


# -- HFMDS-FL: CIFAR-10 with 2 classes per client, CIFAR-100 with 10, three trials -----------------------------------

_HFMDS_METHODS = "fedavg fedprox moon fedgen fedmix fedgan fmds hfmds"
_LOSSES: Axis = {
    "L_C": {"hfmds.match": "none"},
    "L_C + L_EFM": {"hfmds.mu": -0.5},
    "L_C + L_FM": {"hfmds.mu": 0.0},
    "L_C + L_HFM": {"hfmds.mu": 0.5},
}


def _hfmds(dataset: str, classes: int, losses: tuple[float, ...], figures: tuple[int, int, int]) -> dict[str, Sweep]:
    preset: Settings = {"preset": f"hfmds-{dataset}"}
    base = preset | {"partition": "classes", "classes_per_client": classes}
    # The paper's α holds for FedGAN too; the preset has it for hfmds only. Its FedMix mixes two samples of a class.
    methods, seeds = _methods(_HFMDS_METHODS), (0, 1, 2)
    drawn = 0, 2, 4  # as in our studies of fewer images, of which seeds 1 and 3 find no draw at Dirichlet 0.01
    methods |= {"fedgan": {"method": "fedgan", "fedgan.alpha": 0.1}}
    methods |= {"fedmix": {"method": "fedmix", "fedmix.one_class": True, "fedmix.mean_of": 2}}
    columns = _dirichlet(0.01, 0.05) | _classes(classes)
    # Our synthesis, with steps enough for a model that fits, and the bound of any: the real images themselves.
    own = _methods("fedavg") | {method: {"method": method, "hfmds.steps": 100} for method in ("fmds", "hfmds")}
    own |= {"real images": {"method": "hfmds", "hfmds.share": "real"}}
    mu, clients, epochs = figures
    return {
        f"hfmds-table2-{dataset}": Sweep(
            f"HFMDS-FL table 2 on {dataset}: eight methods, three partitions", preset, (methods, columns), seeds=drawn
        ),
        f"hfmds-table2-{dataset}-own": Sweep(
            f"HFMDS-FL table 2 on {dataset}, with our synthesis (100 steps) in place of the paper's letter",
            {"preset": f"fedavg-{dataset}"}, (own, columns), seeds=drawn,
        ),
        f"hfmds-table4-{dataset}": Sweep(
            f"HFMDS-FL table 4 on {dataset}: the terms of the synthesis loss",
            base, (_LOSSES,), dict(zip(_LOSSES, losses, strict=True)), seeds,
        ),
        f"hfmds-fig{mu}": Sweep(
            f"HFMDS-FL fig. {mu}: how far features go beyond their prototype (μ), {dataset}",
            base, (_values("hfmds.mu", 0.0, 0.25, 0.5, 1.0, 1.5, 2.0),), {}, seeds,
        ),
        f"hfmds-fig{clients}": Sweep(
            f"HFMDS-FL fig. {clients}: up to 100 clients, ten active, {dataset}",
            base | {"active": 10}, (methods, _values("clients", 20, 50, 100)), {}, seeds,
        ),
        f"hfmds-fig{epochs}": Sweep(
            f"HFMDS-FL fig. {epochs}: local epochs, {dataset}",
            base, (methods, _values("local_epochs", 1, 2, 5, 10)), {}, seeds,
        ),
    }  # fmt: skip


# -- FedPA: by the paper's formulas, and (-reference) by its authors' code, whose clients keep batch-norm's statistics -

_FEDPA_COLUMNS = {"mnist": _dirichlet(0.1, 1), "emnist": _dirichlet(0.1, 1), "fashion": _dirichlet(0.3, 1)}
# Its other methods have the settings of its authors' code, for which the paper's text gives none.
_FEDPA_PAPER: Axis = {
    "fedavg": {"method": "fedavg"},
    "fedprox": {"method": "fedprox", "fedprox.mu": 1.0},
    "fedensemble": {"method": "fedensemble"},
    "fedgen": {"method": "fedgen_reference"},
    "fedhkd": {"method": "fedhkd_reference"},
    "fedpa": {"method": "fedpa"},
}
_REFERENCE: Axis = {
    "fedavg": {"method": "fedbn"},
    "fedprox": {"method": "fedprox+fedbn", "fedprox.mu": 1.0, "weight_decay": 1e-3},
    "fedensemble": {"method": "fedensemble+fedbn", "fedensemble.vote": "logits"},
    "fedgen": {"method": "fedgen_reference+fedbn"},
    "fedhkd": {"method": "fedhkd_reference+fedbn"},
    "fedpa": {"method": "fedpa_reference+fedbn"},
}
_PARTICIPATION: Axis = {"C=0.1": {"active": 2}, "C=0.5": {"active": 10}, "C=0.8": {"active": 16}}
_TABLE_III = "fedavg fedgen fedhkd fedpa"
_TABLE_III_FIGURES = _rows(
    _TABLE_III, list(_PARTICIPATION), "66.39 70.13 70.87\n 69.46 75.59 76.21\n 70.58 71.83 73.41\n 74.00 77.14 78.35"
)
_TABLE_IV = {"none": 70.94, "po": 75.21, "ge": 77.39, "ge + ad": 77.42, "ge + po": 78.85, "all": 78.93}


def _terms(part: str) -> Axis:
    """FedPA with only some of its loss terms: their weights are zero elsewhere."""
    ge, po, ad = f"{part}.lambda_ge", f"{part}.lambda_po", f"{part}.gamma_ad"
    return {
        "none": {ge: 0.0, po: 0.0, ad: 0.0},
        "po": {ge: 0.0, ad: 0.0},
        "ge": {po: 0.0, ad: 0.0},
        "ge + ad": {po: 0.0},
        "ge + po": {ad: 0.0},
        "all": {ge: 25.0},
    }


def _generators(part: str) -> Axis:
    """FedPA after the rounds of table V; round 0 is the untrained generator: one round whose generator has no loss."""
    untrained: Settings = {f"{part}.{weight}": 0.0 for weight in ("gamma_fid", "gamma_div", "gamma_ad")}
    return {"round 0": untrained | {"rounds": 1}} | {f"round {t}": {"rounds": t} for t in (2, 3, 10)}


def _fedpa(suffix: str, methods: Axis, part: str, how: str) -> dict[str, Sweep]:
    # The networks are tiny: fused, the clients of a round take a third of the time.
    fused: Settings = {"fuse": 20}
    found = {
        f"fedpa-table2-{dataset}{suffix}": Sweep(
            f"FedPA table II on {dataset}{how}", {"preset": f"fedpa-{dataset}{suffix}"} | fused,
            (methods, partitions), seeds=(3, 4, 5),
        )
        for dataset, partitions in _FEDPA_COLUMNS.items()
    }  # fmt: skip
    emnist: Settings = {"preset": f"fedpa-emnist{suffix}"} | fused
    celeba: Settings = {"preset": f"fedpa-celeba{suffix}"}
    some = {name: methods[name] for name in _TABLE_III.split()}
    return found | {
        f"fedpa-table2-celeba{suffix}": Sweep(f"FedPA table II on celeba{how}", celeba, (methods,)),
        # Where not all clients are active, fedpa_reference departs from the code: that draws labels from all classes of
        # the federation, we from those seen so far; it makes all prototypes anew in every round, we keep the last ones.
        f"fedpa-table3{suffix}": Sweep(
            f"FedPA table III: participation, EMNIST{how}", emnist, (some, _PARTICIPATION), _TABLE_III_FIGURES
        ),
        f"fedpa-table4{suffix}": Sweep(
            f"FedPA table IV: without some of its terms, EMNIST{how}", emnist, (_terms(part),), _TABLE_IV
        ),
        f"fedpa-table5{suffix}": Sweep(
            f"FedPA table V: 150 generated features per class in a t-SNE map, EMNIST{how}",
            emnist | {"active": 10, "tsne": 26 * 150},
            (_generators(part), _dirichlet(0.1, 0.4, 0.7, 1)),
            {},
        ),
    }


# -- FedDPMS: 10 clients, five trials (its table 2: three); every method with the VAE's encoder ----------------------

_DPMS_METHODS = "fedavg fedprox fedmix moon feddpms"
_DPMS_CLIENTS: Axis = {
    f"{count} clients": {"clients": count, "active": count, "fraction": count / 100} for count in (10, 20, 30, 40, 50)
}


def _feddpms() -> dict[str, Sweep]:
    found, methods, five = {}, _methods(_DPMS_METHODS), (0, 1, 2, 3, 4)
    for dataset in ("fashion", "cifar10", "cifar100"):
        base: Settings = {"preset": f"feddpms-{dataset}"}
        found[f"feddpms-table1-{dataset}"] = Sweep(f"FedDPMS table 1 on {dataset}", base, (methods,), seeds=five)
        found[f"feddpms-fig2-{dataset}"] = Sweep(
            f"FedDPMS fig. 2: how uneven the clients are (β), {dataset}",
            base, (methods, _dirichlet(0.1, 0.2, 0.3, 0.4, 0.5)), {}, five,
        )  # fmt: skip
        found[f"feddpms-fig3-{dataset}"] = Sweep(
            f"FedDPMS fig. 3: 15, 20 or 25 of 50 rounds before images are shared, {dataset}",
            base, (_values("feddpms.first_stage", 0.3, 0.4, 0.5),), {}, (0, 1, 2),
        )  # fmt: skip
    printed = """
        18.81 24.01 27.38 28.42 30.66
        18.44 24.08 27.80 29.14 30.81
        18.20 23.65 26.76 28.77 30.45
        18.71 23.75 27.07 29.12 30.95
        23.01 26.95 29.40 30.61 32.08"""
    found["feddpms-table2"] = Sweep(
        "FedDPMS table 2: 10 to 50 clients on 10 to 50 % of CIFAR-100",
        {"preset": "feddpms-cifar100"}, (methods, _DPMS_CLIENTS),
        _rows(_DPMS_METHODS, list(_DPMS_CLIENTS), printed), (0, 1, 2),
    )  # fmt: skip
    return found


# -- SDA-FL: 10 clients, ablations on FashionMNIST with 2 classes per client ----------------------------------------

_SDA_TUNED = {
    "fedprox": _tuned("fedprox", "fedprox.mu", 0.001, 0.01, 0.1, 1),
    "naivemix": _tuned("naivemix", "naivemix.ratio", 0.01, 0.1, 0.2, 0.5),
    "fedmix": _tuned("fedmix", "fedmix.ratio", 0.01, 0.1, 0.2, 0.5),
}
_SDA_BEST_OF = {point: method for method, points in _SDA_TUNED.items() for point in points}
_SDA_METHODS = _methods("fedavg scaffold") | _SDA_TUNED["fedprox"] | _SDA_TUNED["naivemix"] | _SDA_TUNED["fedmix"]
# The paper gives its GANs no width. With a usual one they take a GPU, or days; eight channels do for these images.
_SDA_NARROW: Axis = {"sdafl, narrow GANs": {"method": "sdafl", "sdafl.width": 8, "sdafl.gan_lr": 1e-3}}
_SDA_MIXED: Settings = {"naivemix.mean_of": 9, "fedmix.mean_of": 9}
_SDA_USUAL = 86.87  # in its table 1; an ablation has it at the value that table 1 was made with


def _sdafl() -> dict[str, Sweep]:
    found = {
        f"sdafl-table1-{dataset}": Sweep(
            f"SDA-FL table 1 on {dataset}: six methods, 1, 2 or 3 classes per client",
            {"preset": f"sdafl-{dataset}"} | _SDA_MIXED,
            (_SDA_METHODS | _methods("sdafl") | narrow, _classes(1, 2, 3)), best_of=_SDA_BEST_OF,
        )
        for dataset, narrow in {"mnist": _SDA_NARROW, "fashion": _SDA_NARROW, "cifar10": {}, "svhn": {}}.items()
    }  # fmt: skip
    found["sdafl-table6"] = Sweep(
        "SDA-FL table 6: Covid-19 X-rays (DIR/covid19, classes as normal, covid, pneumonia) at six hospitals",
        # How FedDPGAN was trained is not said: as long as SDA-FL's GANs, and with our defaults of ε and α.
        {"preset": "sdafl-covid19", "dataset": "covid19", "feddpgan.gan_rounds": 50} | _SDA_MIXED,
        (
            _SDA_METHODS
            | _methods("feddpgan sdafl")
            | {"fedavg, iid": {"method": "fedavg", "partition": "table", "table": "covid19-iid"}},
        ),
        best_of=_SDA_BEST_OF,
    )
    for dataset in ("mnist", "fashion", "cifar10"):
        # The baselines have 40 local steps, and digits are not flipped.
        local: Settings = {"local_steps": 40}
        flips: Settings = {"fixmatch.flip": dataset != "mnist"}
        found[f"sdafl-fig2-{dataset}"] = Sweep(
            f"SDA-FL fig. 2: 50 labels per client, {dataset}",
            {"preset": f"sdafl-{dataset}-semi"},
            (
                {
                    "sdafl": {"method": "sdafl"},
                    "fixmatch+mixup": {"method": "fixmatch+mixup"} | flips | local,
                    "fixmatch": {"method": "fixmatch"} | flips | local,
                    "mixup": {"method": "mixup"} | local,
                },
            ),
            {},
        )
    base: Settings = {"preset": "sdafl-fashion", "partition": "classes", "classes_per_client": 2}
    budgets: tuple[float | None, ...]
    for dataset, rounds, budgets in (
        ("mnist", 30, (5.0, 10.0, 20.0, None)),
        ("fashion", 30, (5.0, 10.0, 20.0, None)),
        ("cifar10", 400, (50.0, 100.0, 200.0, None)),
    ):
        found[f"sdafl-fig3-{dataset}"] = Sweep(
            f"SDA-FL fig. 3 (and 4, synthetic.png): the GANs' privacy budget, {dataset}",
            base | {"preset": f"sdafl-{dataset}", "sdafl.gan_rounds": rounds},
            (_values("sdafl.epsilon", *budgets),), {}, (0, 1, 2),
        )  # fmt: skip
    # Figure -> what varies, its setting, values, the accuracies the paper prints, and further settings.
    ablations: dict[int, tuple[str, str, tuple[float | None, ...], dict[float | None, float], Settings]] = {
        5: ("updates at the server (the paper's ∞, no client training, is no setting)", "server_steps",
            (0, 20, 50, 100), {50: _SDA_USUAL}, {}),
        6: ("rounds in which labels are revised", "label_rounds", (2, 10, 20, None), {None: _SDA_USUAL}, {}),
        7: ("rounds of GAN training", "gan_rounds", (10, 30, 50, 100, 200), {30: 83.76, 200: _SDA_USUAL}, {}),
        8: ("samples the GANs are trained on, 30 rounds", "gan_samples", (1000, 2000, 3000, 6000), {},
            {"sdafl.gan_rounds": 30}),
        9: ("synthetic images", "pool", (2000, 10_000, 20_000, 40_000, 50_000), {2000: 85.44, 40_000: _SDA_USUAL}, {}),
        10: ("weight of the real images (λ2)", "lambda_real", (0.25, 0.5, 0.75, 1.0, 2.0, 5.0), {1.0: _SDA_USUAL}, {}),
        11: ("threshold of pseudo-labels (τ)", "threshold", (0.5, 0.7, 0.8, 0.95), {0.95: _SDA_USUAL}, {}),
    }  # fmt: skip
    for figure, (about, key, values, printed, further) in ablations.items():
        axis = _values(f"sdafl.{key}", *values)
        reported = {row: printed[value] for row, value in zip(axis, values, strict=True) if value in printed}
        found[f"sdafl-fig{figure}"] = Sweep(f"SDA-FL fig. {figure}: {about}", base | further, (axis,), reported)
    return found


SWEEPS: dict[str, Sweep] = (
    _hfmds("cifar10", 2, (52.08, 52.58, 52.86, 53.82), (6, 8, 10))
    | _hfmds("cifar100", 10, (27.04, 28.03, 29.50, 29.73), (7, 9, 11))
    | _fedpa("", _FEDPA_PAPER, "fedpa", "")
    | _fedpa("-reference", _REFERENCE, "fedpa_reference", ", as its authors' code computes it")
    | _feddpms()
    | _sdafl()
)
