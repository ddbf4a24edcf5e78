"""Documentation and examples use public names only, and the API page lists each of them once.

Public is what `surestep` lists in `__all__`, and what its namespaces list in theirs.
"""

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import surestep

ROOT = Path(__file__).parents[2]
# The design page is about the inside.
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name != "design.md"]
PAGES.append(ROOT / "README.md")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
BLOCK = re.compile(r"^```python.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE_IN_TEXT = re.compile(r"`((?:surestep|ss)\.[A-Za-z_][\w.]*)")
NAMESPACES = {
    name: getattr(surestep, name)
    for name in surestep.__all__
    if isinstance(getattr(surestep, name), ModuleType)
}
PUBLIC = set(surestep.__all__) | {
    f"{name}.{member}" for name, module in NAMESPACES.items() for member in module.__all__
}


def private(chain: str) -> bool:
    """Whether a dotted name below surestep, like `rules.Adam.create`, is not public."""
    first, *rest = chain.split(".")
    if first not in surestep.__all__:
        return True
    if first not in NAMESPACES:
        # Attributes of a class: whatever does not begin with an underscore.
        return any(part.startswith("_") for part in rest)
    if not rest:
        return False
    return f"{first}.{rest[0]}" not in PUBLIC or any(part.startswith("_") for part in rest[1:])


def complaints(code: str) -> list[str]:
    """What a piece of Python takes from surestep that is not public, and other ways to import."""
    tree = ast.parse(code)
    found = [word for node in ast.walk(tree) for word in _imports(node)]
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in nodes}
    for node in nodes:
        root, _, chain = _dotted(node).partition(".")
        if id(node) not in inner and root in ("surestep", "ss") and private(chain):
            found.append(f"{root}.{chain}")
    return found


def _dotted(node: ast.expr) -> str:
    """A chain of attributes as text; empty if it begins with anything but a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for name in node.names:
            if name.name.split(".")[0] == "surestep" and (name.name, name.asname) != (
                "surestep",
                "ss",
            ):
                yield f"{ast.unparse(node)}: write import surestep as ss"
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "surestep":
        prefix = (node.module or "").removeprefix("surestep").removeprefix(".")
        for name in node.names:
            chain = f"{prefix}.{name.name}".removeprefix(".")
            if private(chain):
                yield f"{ast.unparse(node)}: {chain}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_uses_public_names_only(page):
    text = page.read_text()
    found = [word for code in BLOCK.findall(text) for word in complaints(code)]
    for chain in CODE_IN_TEXT.findall(text):
        root, _, rest = chain.rstrip(".").partition(".")
        if private(rest):
            found.append(f"{root}.{rest}")
    assert found == []


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_uses_public_names_only(example):
    assert complaints(example.read_text()) == []


def test_there_is_something_to_check():
    code = "\n".join(block for page in PAGES for block in BLOCK.findall(page.read_text()))
    assert len(re.findall(r"\bss\.\w+", code)) > 40
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("from surestep.auto.fit import configure", "auto.fit.configure"),
        ("from surestep.rules import secret", "rules.secret"),
        ("from surestep.interop.optax import as_optax", "interop.optax.as_optax"),
        ("from surestep import auto", "auto"),
        ("import surestep", "write import surestep as ss"),
        ("import surestep.rollout as r", "write import surestep as ss"),
        ("ss.rollout.loop.run(1)", "ss.rollout.loop.run"),
        ("x = ss.rules.optax_rule.OptaxRule(2).update", "ss.rules.optax_rule.OptaxRule"),
        ("surestep.Problem._hidden", "surestep.Problem._hidden"),
        ("def f():\n    return [ss.penalties._weight]", "ss.penalties._weight"),
    ],
)
def test_a_private_name_is_found(code, wrong):
    [found] = complaints(code)
    assert wrong in found


@pytest.mark.parametrize(
    "code",
    [
        "import surestep as ss\nss.fit(p).certificate",
        "from surestep.rules import Adam",
        "from surestep import penalties",
        "ss.rules.HeavyBall.for_constants(smoothness=1.0, convexity=1.0)",
        "ss.datasets.TestSet.draw(problem, 3, seed=7).thetas",
        "import scipy.optimize",
    ],
)
def test_a_public_name_is_allowed(code):
    assert complaints(code) == []


def test_the_api_page_lists_every_public_name_once():
    page = (ROOT / "docs" / "api.md").read_text()
    listed: list[str] = []
    for entry in re.split(r"^::: surestep\.", page, flags=re.MULTILINE)[1:]:
        # There is a room that is called like this function, and mkdocstrings would show the room.
        name = entry.split()[0].replace("auto.outcomes.certify", "certify")
        listed.append(name)
        members = re.search(r"^      members: \[(.*)\]$", entry, re.MULTILINE)
        assert (members is not None) == (name in NAMESPACES), name
        if members:
            listed += [f"{name}.{member}" for member in members[1].split(", ")]
    assert [name for name, times in Counter(listed).items() if times > 1] == []
    assert sorted(listed) == sorted(PUBLIC)


def test_what_is_listed_as_public_exists():
    for name in PUBLIC:
        namespace, _, member = name.rpartition(".")
        home = NAMESPACES[namespace] if namespace else importlib.import_module("surestep")
        assert hasattr(home, member), name
