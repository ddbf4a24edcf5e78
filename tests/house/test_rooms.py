"""The house keeps its measures: rooms alone at the top, short files, few doors, no hidden imports.

`make lint` holds the floors (import-linter); these are the measures it does not take.
"""

import ast
from pathlib import Path

import pytest

import surestep

PACKAGE = Path(surestep.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_DOORS = 12
"""Modules of other rooms that a module may import from."""
ENTRANCES = {"__init__.py", "run/pipeline.py"}
"""The list of public names, and the pipeline, which knows every stage; and the command line."""


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def imports(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_only_names_and_version_stand_at_the_top():
    found = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert found == {"__init__.py", "__about__.py", "py.typed"}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_can_be_held_in_the_head(path):
    text = path.read_text()
    assert len(text.splitlines()) < 400
    tree = ast.parse(text)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    hidden = [ast.unparse(found) for function in functions for found in imports(function)]
    assert hidden == [], "imports stand at the top; base/lazy.py has what is slow to import"
    room = name(path).partition("/")[0]
    doors = {
        node.module
        for node in imports(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith("surestep.")
        and (node.module or "").split(".")[1] != room
    }
    if name(path) not in ENTRANCES and room != "cli":
        assert len(doors) <= MOST_DOORS, sorted(filter(None, doors))


def test_every_room_has_its_tests_beside_it():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    beside = {path.name for path in Path(__file__).parents[1].iterdir() if path.is_dir()}
    assert rooms <= beside
