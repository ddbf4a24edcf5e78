"""The paper's problems, by name, and users' own, by file.

Each module has `build(config)`, `family(config)` (the problem alone, without rules to tune),
`PRESETS` and the type `Config` of its configuration. It may have
`draw(config, experiment, learned, folder)`, which adds figures of its own to a run's.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from surestep.auto import from_file
from surestep.auto.configure import Config, OwnSettings
from surestep.auto.files import is_file
from surestep.base.errors import ConfigurationError, RunFolderError, unknown
from surestep.problem import Problem
from surestep.run.config import RunConfig
from surestep.storage.records import from_plain
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

if TYPE_CHECKING:
    from surestep.run.learned import Learned

NAMES = ("quadratics", "image", "lasso", "network", "mnist")
"""The paper's problems."""


def presets(name: str) -> dict[str, RunConfig[Any]]:
    """A problem's presets, by name.

    **Arguments:**

    - `name`: one of `NAMES`.

    **Returns:** configurations, by the names of the presets.

    **Raises:** `surestep.errors.ConfigurationError` if there is no such problem.

    **Example:**

    ```python
    print(list(ss.paper.presets("quadratics")))
    ```
    """
    return _module(name).PRESETS


def preset(name: str, preset_name: str) -> RunConfig[Any]:
    """One preset of a problem.

    **Arguments:**

    - `name`: one of `NAMES`.
    - `preset_name`: the preset: `"tiny"`, `"quick"`, `"paper"` and others.

    **Returns:** the configuration; change it with `dataclasses.replace`.

    **Raises:** `surestep.errors.ConfigurationError` if there is no such problem or preset.

    **Example:**

    ```python
    config = dataclasses.replace(ss.paper.preset("quadratics", "tiny"), seed=3)
    ```
    """
    found = presets(name)
    if preset_name not in found:
        raise ConfigurationError(unknown(f"preset of {name}", preset_name, tuple(found)))
    return found[preset_name]


def config_type(config: RunConfig[Any]) -> Any:
    """The type of a configuration."""
    return Config if isinstance(config.problem, OwnSettings) else _module(config.name).Config


def summary(name: str) -> str:
    """What a problem is, in a line.

    **Arguments:**

    - `name`: one of `NAMES`.

    **Returns:** the line.

    **Raises:** `surestep.errors.ConfigurationError` if there is no such problem.

    **Example:**

    ```python
    print(ss.paper.summary("lasso"))
    ```
    """
    return _module(name).SUMMARY


def build(
    config: RunConfig[Any], own_file: str = "", folder: RunFolder | None = None
) -> Experiment:
    """The experiment that a configuration describes.

    **Arguments:**

    - `config`: the configuration.
    - `own_file`: the file of a problem of one's own, like `my_problem.py:problem`. Its code is run
      only if the user names it: a configuration comes from a folder, which may be a stranger's.
    - `folder`: the run's folder; it holds the rule that was chosen for a problem of one's own.

    **Returns:** the problem with its rule, its teacher and its opponents.

    **Raises:** `surestep.errors.ConfigurationError` if a setting cannot work, or if a file is
    needed and not given.

    **Example:**

    ```python
    config = ss.paper.preset("quadratics", "tiny")
    print(list(ss.paper.build(config).baselines))
    ```
    """
    if isinstance(config.problem, OwnSettings):
        return from_file.build(config, own_file, None if folder is None else folder.path)
    return _module(config.name).build(config)


def open_problem(spec: str, preset_name: str = "quick") -> Problem:
    """The problem that a word on the command line means.

    **Arguments:**

    - `spec`: the name of one of the paper's problems; a file of one's own, like
      `my_problem.py:problem`; or the folder of a run of one of the paper's problems, whose settings
      are then used.
    - `preset_name`: the preset whose settings are used with a name.

    **Returns:** the problem.

    **Raises:** `surestep.errors.ConfigurationError` if there is none, or if the folder is of a run
    of one's own problem: it may be a stranger's, and runs no code.

    **Example:**

    ```python
    quadratics = ss.open_problem("quadratics", "tiny")
    ```
    """
    if is_file(spec):
        return from_file.problem_in(spec)
    folder = RunFolder(Path(spec))
    known = spec not in NAMES and folder.config_path.exists()
    config = read_config(folder) if known else preset(spec, preset_name)
    config.validate()
    if isinstance(config.problem, OwnSettings):
        raise from_file.no_code(config, "{file} in place of the folder")
    return _module(config.name).family(config)


def draw(
    config: RunConfig[Any], experiment: Experiment, learned: "Learned", folder: Path
) -> dict[str, Path]:
    """Figures that a problem alone has, by name; most have none."""
    if isinstance(config.problem, OwnSettings):
        return {}
    module = _module(config.name)
    if not hasattr(module, "draw"):
        return {}
    return {path.stem: path for path in module.draw(config, experiment, learned, folder)}


def read_config(folder: RunFolder) -> RunConfig[Any]:
    """The configuration of a run.

    **Arguments:**

    - `folder`: the run's folder.

    **Returns:** the configuration.

    **Raises:** `surestep.errors.RunFolderError` if the folder holds no run, or is damaged.

    **Example:**

    ```python
    import pathlib

    folder = ss.RunFolder(pathlib.Path("runs/mine"))
    learned = ss.learn(config, experiment, folder)
    print(ss.paper.read_config(folder).seed)
    ```
    """
    if not folder.kept(folder.config_path).exists():
        raise RunFolderError(f"{folder.path} holds no run (there is no config.json)")
    return config_of(folder.stored_config(), str(folder.config_path))


def config_of(plain: Any, where: str) -> RunConfig[Any]:
    """A configuration that was written as JSON."""
    if not isinstance(plain, dict) or not isinstance(plain.get("name"), str):
        raise RunFolderError(f"{where} is damaged: it names no problem")
    kept = plain.get("problem")
    mine = isinstance(kept, dict) and "file" in kept and plain["name"] not in NAMES
    return from_plain(Config if mine else _module(plain["name"]).Config, plain, "config")


def _module(name: str) -> ModuleType:
    if name not in NAMES:
        hint = "; a problem of your own is a file: my_problem.py:problem"
        raise ConfigurationError(unknown("problem", name, NAMES) + hint)
    return importlib.import_module(f"surestep.paper.{name}")
