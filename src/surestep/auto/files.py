"""A user's Python file, and the problem in it."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from surestep.base.errors import ConfigurationError, ProblemError, SurestepError
from surestep.problem import Problem
from surestep.train import Experiment

DEFAULT = "problem"
"""The name that is looked for when none is given."""


def is_file(spec: str) -> bool:
    """Whether a problem's name is that of a file: `my_problem.py` or `my_problem.py:problem`."""
    return Path(spec.partition(":")[0]).suffix == ".py"


def absolute(spec: str) -> str:
    """The same with the whole path and the name, so that it can be found from anywhere."""
    path, name = _parts(spec)
    return f"{path.resolve()}:{name}"


def title(spec: str) -> str:
    """What a person calls it."""
    path, name = _parts(spec)
    return path.name if name == DEFAULT else f"{path.name}:{name}"


def open_file(spec: str) -> Problem | Experiment:
    """The problem (or experiment) that a file defines. The file's code is run."""
    path, name = _parts(spec)
    if not path.is_file():
        raise ConfigurationError(
            f"there is no file {path.name} in {path.resolve().parent}: surestep new {path.name} "
            "writes one to start from"
        )
    module = _run(path)
    if not hasattr(module, name):
        public = tuple(n for n, v in vars(module).items() if isinstance(v, Problem | Experiment))
        raise ProblemError(
            f"{path.name} defines no `{name}`: "
            + (f"did you mean {path.name}:{public[0]}?" if public else f"add `{name} = ...` to it")
        )
    return _checked(getattr(module, name), f"{path.name}:{name}")


def _parts(spec: str) -> tuple[Path, str]:
    file, colon, name = spec.partition(":")
    if colon and not name.isidentifier():
        raise ConfigurationError(
            f"{spec!r} must be a file and a name in it, like my_problem.py:problem"
        )
    return Path(file), name or DEFAULT


def _run(path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(f"surestep_own_{path.stem}", path.resolve())
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    # Files beside it can be imported, as if it were run as a script.
    beside = str(path.resolve().parent)
    sys.path.insert(0, beside)
    sys.modules[found.name] = module
    try:
        found.loader.exec_module(module)
    except SurestepError:
        raise
    except SyntaxError as error:
        raise ProblemError(f"{path.name}, line {error.lineno}: {error.msg}") from error
    except Exception as error:
        raise ProblemError(f"{where(error, path)}: {brief(error)}") from error
    finally:
        sys.path.remove(beside)
    return module


def where(error: BaseException, path: Path) -> str:
    """The last line of a file that an error went through, in words."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).name == path.name]
    return f"{path.name}, line {lines[-1]}" if lines else path.name


def brief(error: BaseException) -> str:
    """An error's kind and the first line of what it says."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _checked(value: Any, where_: str) -> Problem | Experiment:
    if isinstance(value, Problem | Experiment):
        return value
    if isinstance(value, type) and issubclass(value, Problem):
        raise ProblemError(
            f"{where_} is a class: make an instance of it, `problem = {value.__name__}()`"
        )
    raise ProblemError(
        f"{where_} must be a Problem (from surestep.make_problem or a subclass) or an "
        f"Experiment, not {type(value).__name__}"
    )
