"""The methods: one file each, named after the method, with one `Part`; combined by name, as in `hfmds+fedprox`.

A file put into this folder is found by its name. A method elsewhere is given by its module: `my_lab.my_method`.
"""

import importlib
import itertools
import traceback

from raysim import discovery
from raysim.errors import InputError
from raysim.measures import feature_kl
from raysim.methods.base import Part, name_of
from raysim.settings import Given, as_dict, nearest

# Alias -> the method, and the settings that the alias implies.
ALIASES: dict[str, tuple[str, dict[str, object]]] = {
    "fmds": ("hfmds", {"hfmds.mu": 0.0}),
    # FedGen as in the code of FedPA's authors, which compare with it: their generator without prototypes.
    "fedgen_reference": (
        "fedpa_reference",
        {
            "fedpa_reference.lambda_ge": 10.0,
            "fedpa_reference.lambda_po": 0.0,
            "fedpa_reference.gamma_fid": 1.0,
            "fedpa_reference.gamma_fid_floor": 1.0,  # so it does not decay
            "fedpa_reference.gamma_ad": 0.0,
            "fedpa_reference.pairs": "all",
        },
    ),
}


# Names that no part can have: states, sums, uploads, terms and figures of parts stand beside what the engine keeps so.
RESERVED = {
    "personal": "a client's own parameters", "model": "the sums of the models", "training": "the figures of training",
    "ce": "the cross-entropy", feature_kl.NAME: "what --feature-kl compares",
}  # fmt: skip


def of_objects(given: object) -> tuple[Given, dict[str, object]]:
    """Return the name of a method given in Python, and the settings it brings: a part, its class, or a list with names.

    >>> from raysim.methods.fedprox import FedProx
    >>> of_objects([FedProx(mu=0.5), "fedbn"])
    ('fedprox+fedbn', {'fedprox.mu': 0.5})
    """
    words: list[str] = []
    classes: dict[str, type[Part]] = {}
    settings: dict[str, object] = {}
    for item in given if isinstance(given, list | tuple) else [given]:
        cls = item if isinstance(item, type) else type(item)
        if isinstance(item, str):
            words.append(item)
        elif issubclass(cls, Part):
            module, name = cls.__module__, name_of(cls)
            words.append(name if module in ("__main__", f"{__name__}.{name}") else module)
            classes[words[-1]] = cls
            settings |= {f"{name}.{key}": value for key, value in as_dict(item).items()} if item is not cls else {}
        else:
            raise InputError(f"--method: {cls.__name__} is no method; give a name, or a class derived from raysim.Part")
    return Given("+".join(words), classes), settings


def expand(method: str) -> tuple[str, dict[str, object]]:
    """Replace the aliases in a method, and return it with the settings that they imply.

    >>> expand("fmds+fedprox")
    ('hfmds+fedprox', {'hfmds.mu': 0.0})
    """
    parts: list[str] = []
    settings: dict[str, object] = {}
    if "," in method:
        names = [name.strip() for name in method.split(",") if name.strip()]
        raise InputError(f"--method {method}: methods are joined by +; write --method {'+'.join(names)}")
    if not all(name.strip() for name in method.split("+")):
        raise InputError(f"--method {method}: a name is missing beside a +; add it, or leave the + out")
    for name in method.split("+"):
        target, implied = ALIASES.get(name, (name, {}))
        parts.append(target)
        settings |= implied
    expanded = "+".join(parts)
    return Given(expanded, method.value) if isinstance(method, Given) else expanded, settings


def names() -> list[str]:
    """Return the names of all methods: `fedavg`, which has no part, those in this folder, and the aliases."""
    return ["fedavg", *sorted([*discovery.files(__path__), *ALIASES])]


def describe(name: str) -> str:
    """Return one line about a method: the first line of its part's docstring."""
    if name == "fedavg":
        return "Federated averaging (McMahan et al., 2017), to which every other method adds."
    if name in ALIASES:
        target, settings = ALIASES[name]
        return f"{target} with {', '.join(f'{key} = {value}' for key, value in settings.items())}"
    return (part_class(name).__doc__ or "").strip().splitlines()[0]


def part_class(name: str) -> type[Part]:
    """Return the `Part` that the method's file defines."""
    module_name = name if "." in name else f"{__name__}.{name}"
    if "." in name and not all(piece.isidentifier() for piece in name.split(".")):
        raise InputError(f"--method: '{name}' is no module; write it as my_lab.my_method")
    if "." not in name and name not in names():
        hint = nearest(name, names(), f"; there are {', '.join(names())}")
        raise InputError(f"--method: unknown method '{name}'{hint}")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise InputError(f"--method: cannot import '{module_name}': {_describe(error)}; correct that file") from error
    parts = discovery.classes(module, Part)
    if len(parts) != 1:
        raise InputError(f"--method: {module_name} defines {len(parts)} parts; a method's file holds one")
    return parts[0]


def _describe(error: BaseException) -> str:
    """Return the error in words, and the line that raised it."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = (
        "" if "importlib" in where.filename or isinstance(error, SyntaxError) else f" ({where.filename}:{where.lineno})"
    )
    return f"{type(error).__name__}: {error}{at}"


def part_classes(method: str) -> dict[str, type[Part]]:
    """Return settings' prefix -> class for each part of a method such as `hfmds+fedprox`, in the order written."""
    classes: dict[str, type[Part]] = {}
    given = method.value if isinstance(method, Given) else {}
    for name in method.split("+"):
        if name == "fedavg":
            continue
        prefix = name.rpartition(".")[2]
        if prefix in RESERVED:
            raise InputError(
                f"--method {method}: the engine keeps {RESERVED[prefix]} under the name '{prefix}'; rename the file"
            )
        if prefix in classes:
            raise InputError(f"--method {method}: '{name}' is there twice")
        classes[prefix] = given.get(name) or part_class(name)
    for (a, one), (b, other) in itertools.combinations(classes.items(), 2):
        # Only a common base that is itself a method counts: unrelated methods share those in methods/common.
        in_common = {*one.__mro__} & {*other.__mro__} - {*Part.__mro__}
        if any(cls.__module__.rpartition(".")[0] == __name__ for cls in in_common):
            raise InputError(f"--method {method}: {a} and {b} are kinds of one method; use one of them")
    for hook in ("route", "predict", "aggregate", "weight", "model_certificate"):
        deciding = [n for n, cls in classes.items() if getattr(cls, hook) is not getattr(Part, hook)]
        if len(deciding) > 1:
            raise InputError(f"--method {method}: {' and '.join(deciding)} both decide '{hook}'; use one of them")
    return classes


__all__ = ["Part", "describe", "names", "of_objects", "part_class", "part_classes"]
