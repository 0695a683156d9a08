"""Functions that job files name: ``module:function``, beside the job file or installed.

They are found without being imported when a job is only checked: importing would run whatever their
modules do, Spark's own import not the least.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from goddard.errors import ConfigError
from goddard.pipelines.failures import sentence
from goddard.pipelines.jobs.job import Job
from goddard.pipelines.jobs.sections import near

_VALUES: Final = (ast.Constant, ast.Dict, ast.List, ast.Set, ast.Tuple, ast.JoinedStr)


def load_function(place: str, folder: Path) -> Callable[..., object]:
    """What ``module:function`` names; modules beside the job file are found, too."""
    module_name, _, name = place.partition(":")
    here = str(folder.resolve())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), name, None)
    except Exception as error:
        raise ConfigError(f"{place} cannot be used: {sentence(error)}") from error
    if not callable(function):
        raise ConfigError(f"{place} cannot be used: {module_name} has no function {name}")
    found: Callable[..., object] = function
    return found


def module_file(place: str) -> Path | None:
    """The one file that a function's module is, so that executors can be given it too."""
    module = sys.modules.get(place.partition(":")[0])
    path = getattr(module, "__file__", None)
    if path is None or hasattr(module, "__path__") or "site-packages" in path:
        return None
    return Path(path)


def check_functions(job: Job) -> None:
    """Whether the functions of a job are there; ConfigError if not. Nothing is imported."""
    named = [("[[transform]] python", each.python) for each in job.transforms]
    for where, place in (*named, ("[run] after", job.run.after)):
        if place is not None and (problem := _problem(place, job.folder)) is not None:
            raise ConfigError(f"{where} is {place!r}: {problem}")


def _problem(place: str, folder: Path) -> str | None:
    module_name, _, name = place.partition(":")
    spec = _found(module_name, folder)
    if spec is None:
        return f"there is no module {module_name}, neither beside the job file nor installed"
    if spec.origin is None or not spec.origin.endswith(".py"):
        # Compiled, or built in: only importing would tell.
        return None if spec.origin is not None else f"{module_name} is a folder, and no module"
    try:
        module = ast.parse(Path(spec.origin).read_bytes(), spec.origin)
    except (OSError, SyntaxError, ValueError) as error:
        return f"{spec.origin} cannot be read as Python: {error}"
    bound: dict[str, bool] = {}
    for names, may_be_called in _bindings(module.body):
        bound |= dict.fromkeys(names, may_be_called)
    # Whoever imports everything, or makes names up when asked, may have any.
    if name not in bound and not bound.keys() & {"*", "__getattr__"}:
        functions = [each for each, may_be_called in bound.items() if may_be_called]
        hint = f"; {near(name, functions)}" if functions else ""
        return f"{module_name} has no function {name}{hint}"
    return None if bound.get(name, True) else f"{name} of {module_name} is no function"


def _found(module_name: str, folder: Path) -> ModuleSpec | None:
    importlib.invalidate_caches()
    first, *inner = module_name.split(".")
    # Those that are installed by other means than a folder of the path are found by the second.
    spec = PathFinder.find_spec(first, [str(folder.resolve()), *sys.path])
    spec = spec or importlib.util.find_spec(first)
    name = first
    for part in inner:
        if spec is None:
            break
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or []))
    return spec


def _bindings(statements: Sequence[ast.stmt]) -> Iterator[tuple[list[str], bool]]:
    """The names that a module gives to things, in order, and whether those may be called."""
    for each in statements:
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield [each.name], True
            case ast.Import() | ast.ImportFrom():
                names = [alias.asname or alias.name.partition(".")[0] for alias in each.names]
                yield names, True
            case ast.Assign():
                yield _names(each.targets), not isinstance(each.value, _VALUES)
            case ast.AnnAssign(value=ast.expr() as value):
                yield _names([each.target]), not isinstance(value, _VALUES)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                for field in ("body", "orelse", "finalbody"):
                    yield from _bindings(getattr(each, field, []))
                for handler in getattr(each, "handlers", []):
                    yield from _bindings(handler.body)


def _names(targets: Sequence[ast.expr]) -> list[str]:
    return [
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
    ]
