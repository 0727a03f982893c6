"""Classes and functions of the user's own: found as MODULE:NAME, named, and told apart by a digest of their source."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import sys
import sysconfig
import textwrap
import traceback
import types
from pathlib import Path
from typing import Any

from raysim.errors import InputError
from raysim.settings import Given, flag


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
    """SHA-256 of the source of a class or function and of all of the user's own that it uses, whatever its comments.

    Installed packages, and Python's own modules, count by their names. Of an object its class counts, and its text.
    """
    texts: dict[str, str] = {}
    if not isinstance(definition, type | types.FunctionType | types.MethodType | functools.partial):
        texts["object"], definition = repr(definition), type(definition)
    _collect(definition, texts, "")
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()


def _collect(value: Any, texts: dict[str, str], at: str) -> None:
    """Add the source of a definition to the texts, by its name, and of what it uses; of any other value, its text."""
    if isinstance(value, functools.partial):
        texts[at] = repr((name_of(value), value.args, sorted(value.keywords.items())))
        value = value.func
    value = inspect.unwrap(value) if callable(value) else value
    if isinstance(value, types.MethodType):
        value = value.__func__
    if not isinstance(value, type | types.FunctionType):
        if isinstance(value, bool | int | float | str | bytes | tuple | frozenset | None):
            texts[at] = repr(value)
        elif not isinstance(value, types.ModuleType):
            texts[at] = type(value).__qualname__
        return
    name = name_of(value)
    if name in texts:
        return
    if _is_installed(value):
        texts[name] = ""
    elif isinstance(value, type):
        texts[name] = repr([name_of(base) for base in value.__bases__])
        for key, member in sorted(vars(value).items()):
            member = getattr(member, "__func__", getattr(member, "fget", member))
            if not key.startswith("__") or isinstance(member, types.FunctionType):
                _collect(member, texts, f"{name}.{key}")
        for base in value.__bases__:
            _collect(base, texts, "")
    else:
        texts[name] = _source(value)
        for key, used in sorted(_used(value).items()):
            _collect(used, texts, f"{name} uses {key}")


def _used(function: types.FunctionType) -> dict[str, Any]:
    """What a function uses of its module and of the functions around it, and its defaults, by name."""
    codes, names = [function.__code__], set[str]()
    while codes:
        code = codes.pop()
        names |= {*code.co_names}
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found |= {name: cell.cell_contents for name, cell in cells if name != "__class__"}
    return found | {f"default {i}": value for i, value in enumerate(function.__defaults__ or ())}


def _source(function: types.FunctionType) -> str:
    """A function's source without its comments and layout; where there is no source, its compiled code."""
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, SyntaxError, TypeError):  # typed at a prompt, or a lambda in the midst of something
        return function.__code__.co_code.hex() + repr(_constants(function.__code__))


def _constants(code: types.CodeType) -> list[Any]:
    """The constants and names of compiled code, those of what it defines included."""
    return [code.co_names, *(_constants(c) if isinstance(c, types.CodeType) else c for c in code.co_consts)]


def _is_installed(definition: Any) -> bool:
    module = sys.modules.get(definition.__module__ or "")
    if module is None or definition.__module__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return file is None or _is_installed_file(file)  # without a file it is built in


def _is_installed_file(path: str) -> bool:
    """Whether the file belongs to Python, to an installed package or to raysim."""
    places = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return any(Path(path).is_relative_to(place) for place in [*places, str(Path(__file__).parent)])
