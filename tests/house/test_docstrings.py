"""What users call says what it takes and what it returns, and its examples run.

Public are the names that `surestep` and its namespaces list, and the methods that `METHODS` names.
An example may use what `given` holds. A block that learns (`ss.fit`, `ss.learn`) would take
minutes: it is compiled, and so are the blocks after it.
"""

import dataclasses
import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import surestep as ss
from support import outcome, tiny
from support.production import THETAS, certified_solver

NAMESPACES = (
    ss.bounds,
    ss.datasets,
    ss.errors,
    ss.interop,
    ss.paper,
    ss.penalties,
    ss.report,
    ss.rules,
)
METHODS: tuple[Callable[..., Any], ...] = (
    ss.Solver.solve,
    ss.Solver.solve_one,
    ss.Solver.monitor,
    ss.Solver.save,
    ss.Solver.export,
    ss.Monitor.fed,
    ss.Monitor.save,
    ss.Monitor.load,
    ss.RunFolder.has,
    ss.RunFolder.load,
    ss.RunFolder.dataset,
    ss.RunFolder.status,
    ss.Experiment.chosen,
    ss.Constraint.assess,
    ss.datasets.PriorSet.draw,
    ss.datasets.TrainSet.draw,
    ss.datasets.TestSet.draw,
    ss.datasets.SealedSplit.draw,
    ss.datasets.SealedSplit.open,
)
"""They list arguments and have an example, as functions do."""

SHOWN_BY_THEIR_CLASS: tuple[Callable[..., Any], ...] = (
    ss.Problem.sample,
    ss.Problem.start,
    ss.Problem.loss,
    ss.CompositeProblem.prox,
    ss.penalties.Penalty.value,
    ss.penalties.Penalty.prox,
    ss.Goal.threshold,
    ss.Goal.require_fit,
    ss.Constraint.validate,
    ss.bounds.Family.minimise_on_set,
    ss.bounds.Family.minimise_on_interval,
    ss.bounds.Family.posterior_bound,
    ss.bounds.Family.point_bound,
)
"""They list arguments; the example of their class uses them or their like."""

BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ARGUMENTS = re.compile(r"^\*\*Arguments:\*\*\n\n(.*?)(?=\n\n\*\*|\Z)", re.DOTALL | re.MULTILINE)
ARGUMENT = re.compile(r"^- (`\w+`(?:, `\w+`)*):", re.MULTILINE)
LEARNS = re.compile(r"\bss\.(fit|learn)\(")


def name_of(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def document(value: Any) -> str:
    """The value's own docstring; what a class inherits does not speak of it."""
    own = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return inspect.cleandoc(own or "")


def public() -> dict[str, Any]:
    """Functions and classes that users call, by name."""
    values = [getattr(place, name) for place in (ss, *NAMESPACES) for name in place.__all__]
    return {name_of(v): v for v in values if inspect.isclass(v) or inspect.isfunction(v)}


PUBLIC = public()


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def listed(text: str) -> list[str]:
    """The arguments that a docstring lists."""
    sections = "\n".join(ARGUMENTS.findall(text))
    return [name for group in ARGUMENT.findall(sections) for name in re.findall(r"\w+", group)]


def faults(value: Any, example: bool = True) -> Iterator[str]:
    """What a docstring lacks."""
    text = document(value)
    if example and not BLOCK.search(text):
        yield "there is no example"
    if inspect.isclass(value):
        return
    if listed(text) != parameters(value):
        yield f"it lists {listed(text)}, the arguments are {parameters(value)}"
    returned = inspect.signature(value).return_annotation
    if ("**Returns:**" in text) == (returned in (None, "None")):
        yield f"what it returns is {returned}"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_takes_and_returns(name):
    assert list(faults(PUBLIC[name])) == []


@pytest.mark.parametrize("method", METHODS, ids=name_of)
def test_so_does_a_method_that_users_call(method):
    assert list(faults(method)) == []


@pytest.mark.parametrize("method", SHOWN_BY_THEIR_CLASS, ids=name_of)
def test_so_does_a_method_that_its_class_shows(method):
    assert list(faults(method, example=False)) == []


def test_a_docstring_that_is_wrong_is_noticed():
    def wrong(first: int, second: int) -> int:
        """Add.

        **Arguments:**

        - `first`: a number.
        - `third`: another.
        """
        return first + second

    assert list(faults(wrong)) == [
        "there is no example",
        "it lists ['first', 'third'], the arguments are ['first', 'second']",
        f"what it returns is {int}",
    ]


def methods(kind: type) -> list[Any]:
    """The methods and properties that a class itself defines."""
    found = [getattr(v, "__func__", getattr(v, "fget", v)) for v in vars(kind).values()]
    return [value for value in found if inspect.isfunction(value)]


def with_examples() -> dict[str, str]:
    """Every docstring with an example, by name: modules, public names and their methods."""
    texts = {place.__name__: inspect.cleandoc(place.__doc__ or "") for place in (ss, *NAMESPACES)}
    for name, value in PUBLIC.items():
        texts[name] = document(value)
        for method in methods(value) if inspect.isclass(value) else ():
            texts[name_of(method)] = document(method)
    return {name: text for name, text in texts.items() if BLOCK.search(text)}


EXAMPLES = with_examples()


@functools.cache
def learned() -> Any:
    """The quick solver as something learned: only its evaluation is made up."""
    solver, drawn = certified_solver(), outcome.outcome()
    return dataclasses.replace(
        drawn,
        task=tiny.TASK,
        deployed=solver.rule,
        certificate=solver.certificate,
        prior=dataclasses.replace(drawn.prior, hypers=solver.posterior.hypers),
        certified=dataclasses.replace(drawn.certified, log_posterior=solver.posterior.log_weights),
        probes=solver.probes,
        shifted=None,
    )


def given() -> dict[str, Any]:
    """What an example may use."""
    return {
        "__name__": "example",
        "ss": ss,
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "dataclasses": dataclasses,
        "problem": tiny.PROBLEM,
        "thetas": THETAS,
        "config": tiny.SMALL,
        "experiment": tiny.EXPERIMENT,
        "solver": certified_solver(),
        "learned": learned(),
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, learns = given(), False
    for text in BLOCK.findall(EXAMPLES[name]):
        code = compile(textwrap.dedent(text), f"the example of {name}", "exec")
        learns = learns or bool(LEARNS.search(text))
        if not learns:
            with jax.enable_x64(False):  # what JAX does unless told otherwise
                exec(code, names)


def test_most_examples_run():
    compiled = [name for name, text in EXAMPLES.items() if LEARNS.search(text)]
    assert len(compiled) < len(EXAMPLES) / 4
