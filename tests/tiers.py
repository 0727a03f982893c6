"""The tiers of tests: which tests start Ray or another process, found from what their code uses.

`make test` runs the quick ones, which start neither, and one real run; `make test-full` runs the others that are not
`slow`. A test is found to start processes if it, a fixture that it asks for, or a function of the tests that one of
them calls uses one of STARTERS. What is overlooked fails, since conftest.py lets no quick test start a process: mark it
`processes` where its code does not show that, as where `main(["compare", …])` does.
"""

import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType

import pytest

REAL_RUN = "test_real_run.py"  # quick although it starts processes
STARTERS = (
    "posix.fork", "subprocess", "multiprocessing", "ray", "raysim.engine.ray_runner.runner",
    "raysim.engine.ray_runner.cluster",
    "raysim.api.compare", "raysim.api.sweep", "raysim.experiments.scheduler",
)  # fmt: skip


def is_quick(item: pytest.Item) -> bool:
    """Whether `make test` runs the test."""
    if item.get_closest_marker("slow") or item.get_closest_marker("processes"):
        return False
    return item.path.name == REAL_RUN or not (isinstance(item, pytest.Function) and starts_processes(item))


def starts_processes(item: pytest.Function) -> bool:
    """Whether the test, or a fixture that it asks for, may start a process."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    functions = [item.function, *(definition.func for several in fixtures for definition in several)]
    return any(_uses_starter(function, set()) for function in functions)


def _uses_starter(function: object, seen: set[object]) -> bool:
    """Whether a function of the tests refers to one of STARTERS, or to another function of the tests that does."""
    function = inspect.unwrap(function) if callable(function) else function
    if function in seen:
        return False
    seen.add(function)
    return any(_is_starter(value) or (_is_ours(value) and _uses_starter(value, seen)) for value in _mentioned(function))


def _mentioned(function: object) -> Iterator[object]:
    """Yield what a function's code, or the methods of a class, refer to by a global name."""
    for part in vars(function).values() if inspect.isclass(function) else [function]:
        if isinstance(part := getattr(part, "__func__", part), FunctionType):
            names = set(_names(part.__code__))
            for value in [part.__globals__[name] for name in names if name in part.__globals__]:
                yield value
                if isinstance(value, ModuleType) and value.__name__.startswith(("os", "raysim", "benchmarks")):
                    yield from [getattr(value, name) for name in names if hasattr(value, name)]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_starter(value: object) -> bool:
    own = getattr(value, "__name__", "")
    name = own if isinstance(value, ModuleType) else f"{getattr(value, '__module__', '')}.{own}"
    return any(f"{name}.".startswith(f"{starter}.") for starter in STARTERS)


def _is_ours(value: object) -> bool:
    value = inspect.unwrap(value) if callable(value) else value  # as where a result is cached
    own = (inspect.isfunction(value) or inspect.isclass(value)) and value.__module__
    return bool(own) and own.startswith(("tests.", "benchmarks.", "conftest"))
