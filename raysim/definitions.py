"""Classes and functions of the user's own: found as MODULE:NAME, named, and told apart by a digest of their source."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysim.errors import InputError
from raysim.settings import Given, flag

PLAIN = (bool, int, float, str, bytes, tuple, frozenset, type(None))  # their texts tell them apart


def is_own(name: str) -> bool:
    """Whether a setting's text means something of the user's own: an object given in Python, or MODULE:NAME."""
    return isinstance(name, Given) or ":" in name


def find(name: str, key: str) -> Any:
    """The object that a setting means: the one given, or what MODULE:NAME imports; an InputError names the setting."""
    if isinstance(name, Given):
        return name.value
    module, _, attribute = name.partition(":")
    if module == "__main__":
        raise InputError(
            f"{flag(key)} {name} was defined in a notebook or a script, not in a module; give the object in Python, "
            f"{key}=…, or put it into a module"
        )
    if not (attribute and all(piece.isidentifier() for piece in [*module.split("."), *attribute.split(".")])):
        raise InputError(f"{flag(key)} '{name}': write MODULE:NAME, for example my_lab.my_module:{key.capitalize()}")
    try:
        found = importlib.import_module(module)
        for piece in attribute.split("."):
            found = getattr(found, piece)
        return found
    except (Exception, SystemExit) as error:  # a user's file may raise anything
        raise InputError(f"{flag(key)} {name}: {described(error)}") from error


def name_of(definition: Any) -> str:
    """MODULE:NAME of a class or a function; of any other object, that of its class."""
    if isinstance(definition, functools.partial):
        return name_of(definition.func)
    if not hasattr(definition, "__qualname__"):
        definition = type(definition)
    return f"{definition.__module__}:{definition.__qualname__}"


def described(error: BaseException) -> str:
    """An error of the user's code, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not _is_installed_file(frame.filename) and "<frozen" not in frame.filename]
    where = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return f"{type(error).__name__}: {error}{where}"


def given(definition: Any) -> Given:
    """A class or function, or an object of one, as a setting's value."""
    return Given(name_of(definition), definition, source_digest(definition))


def source_of(name: str, key: str) -> str:
    """The digest of the source of what a setting means."""
    return (name.source if isinstance(name, Given) else None) or source_digest(find(name, key))


def source_digest(definition: Any) -> str:
    """Return a SHA-256 of a class, a function or an object of one: its name, its arguments, and the source behind it.

    The source is that of its module and of all that this imports, but for installed packages, without comments and
    layout. What was defined in a notebook, a script or at a prompt counts by itself, with what it uses.
    """
    found: dict[str, str] = {}
    while isinstance(definition, functools.partial):
        found[f"arguments {len(found)}"] = repr((definition.args, sorted(definition.keywords.items())))
        definition = definition.func
    if not isinstance(definition, type | types.FunctionType | types.MethodType):
        found["object"], definition = repr(definition), type(definition)
    definition = inspect.unwrap(getattr(definition, "__func__", definition))
    # The classes that it derives from, in order: a class may be made without a line of source.
    for each in definition.__mro__ if isinstance(definition, type) else [definition]:
        found[f"definition {len(found)}"] = name_of(each)
        _add(each, found, "")
    if isinstance(definition, types.FunctionType):  # its source is the same whatever it was made around
        for name, value in _enclosed(definition).items():
            _add(value, found, f"enclosed {name}")
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()


def _add(value: Any, found: dict[str, str], at: str) -> None:
    """Add the source of a definition or a module; of any other value its text, where it is a plain one."""
    if isinstance(value, types.ModuleType):
        _add_module(value.__name__, found)
    elif not isinstance(value, type | types.FunctionType):
        found[at] = repr(value) if isinstance(value, PLAIN) else type(value).__qualname__
    elif value.__module__ != "__main__" and value.__module__ in sys.modules:
        _add_module(value.__module__, found)
    elif (name := name_of(value)) not in found:
        found[name] = ""
        for key, member in vars(value).items() if isinstance(value, type) else [("", value)]:
            member = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)))
            if isinstance(member, types.FunctionType):
                names, found[f"{name}.{key}"] = _compiled(member.__code__)
                used = {each: member.__globals__[each] for each in names if each in member.__globals__}
                for each, inner in sorted((used | _enclosed(member)).items()):
                    _add(inner, found, f"{name}.{key} uses {each}")
            elif not key.startswith("__"):
                _add(member, found, f"{name}.{key}")


def _add_module(name: str, found: dict[str, str]) -> None:
    """Add the syntax tree of a module and of its packages and imports, but for installed ones."""
    package = name.rpartition(".")[0]
    if package:
        _add_module(package, found)
    if name in found or (package and package not in found):  # of an installed package nothing is imported here
        return
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # it is the name of something in a module
        return
    locations = [*(spec.submodule_search_locations or ())] if spec else []
    path = Path((spec and spec.origin) or next(iter(locations), ""))  # a package may have no file
    if not spec or _is_installed_file(str(path)) or not path.exists():
        return
    found[name] = ""
    if path.is_file():
        content = path.read_bytes()
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):  # compiled, or not imported yet
            found[name] = hashlib.sha256(content).hexdigest()
            return
        found[name] = ast.unparse(tree)
        for imported in _imports(tree, name if locations else package):
            _add_module(imported, found)


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield what may be the names of modules in the import statements of a module of this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


def _enclosed(function: types.FunctionType) -> dict[str, Any]:
    """Return what a function has of the functions around it, and its defaults, by name."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {name: cell.cell_contents for name, cell in cells if name != "__class__"}
    return found | {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}


def _compiled(code: types.CodeType) -> tuple[set[str], str]:
    """Return the names that compiled code uses, and the code as text, those of what it defines included."""
    names, texts = {*code.co_names}, [code.co_code.hex(), repr(code.co_names)]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            more, text = _compiled(constant)
            names |= more
        else:  # a set has another order in each process
            text = repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)
        texts.append(text)
    return names, " ".join(texts)


def _is_installed_file(path: str) -> bool:
    """Whether the file belongs to Python, to an installed package or to raysim."""
    places = [*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), str(Path(__file__).parent)]
    installed = {"site-packages", "dist-packages"} & {*Path(path).parts}
    return bool(installed) or any(Path(path).is_relative_to(place) for place in places)
