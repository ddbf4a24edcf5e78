"""CVXPY as a front: a parametrised problem becomes a family of programmes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from surestep.base.errors import ProblemError
from surestep.base.machine import require
from surestep.interop.cvxpy_reduction import Coefficient, Reduction, reduced
from surestep.problem import (
    FunctionProgramme,
    Point,
    Programme,
    StockedFunctionProgramme,
    Theta,
    as_arrays,
    make_programme,
    stacked_instances,
    working_precision,
)

_LOOKED = 8
"""How many instances that are drawn are held against what parameters say they are."""


class _Reads(Programme):
    """How a point reads in the words of the CVXPY problem."""

    reduction: eqx.AbstractVar[Reduction]

    def named(self, point: Point) -> dict[str, np.ndarray]:
        """The variables' values by name, in their shapes; of many points, stacked likewise."""
        x = np.asarray(point["x"])
        found = {}
        for name, places in self.reduction.variables.items():
            found[name] = np.where(places >= 0, x[..., np.maximum(places, 0)], 0)
        return found

    def objective(self, point: Point, theta: Theta) -> Float[np.ndarray, "..."]:
        """What the CVXPY problem minimises or maximises, with its constants."""
        with working_precision(self):
            theta = as_arrays(theta, self.precision)
            return np.asarray(_objective(self, as_arrays(point["x"], self.precision), theta))

    def multipliers(self, point: Point) -> list[np.ndarray | None]:
        """Dual values in the order of the problem's constraints; None for second-order cones."""
        reduction, y = self.reduction, np.asarray(point["y"])
        side = reduction.side_of
        every = y[..., reduction.row_of] * np.where(side == 0, 1, side)
        every = np.where(side == 0, every, np.maximum(every, 0))
        return [None if rows is None else every[..., rows] for rows in reduction.multipliers]


class CvxpyProgramme(_Reads, FunctionProgramme):
    """A programme that CVXPY has written, of instances that are drawn."""

    reduction: Reduction


class StockedCvxpyProgramme(_Reads, StockedFunctionProgramme):
    """A programme that CVXPY has written, of recorded instances."""

    reduction: Reduction


@eqx.filter_jit
def _objective(programme: _Reads, x: Array, theta: Theta) -> Array:
    reduction = programme.reduction

    def one(x: Array, theta: Theta) -> Array:
        constant = _at(reduction.constant, theta)[0]
        value = programme.coefficients(theta).objective(x) + constant
        return -value if reduction.maximised else value

    return one(x, theta) if x.ndim == 1 else jax.vmap(one)(x, theta)


def _at(coefficient: Coefficient, theta: Theta) -> Any:
    return coefficient(theta) if callable(coefficient) else coefficient


def from_cvxpy(
    problem: Any,
    thetas: Theta | str | Path | None = None,
    sample: Callable[[Array], Theta] | None = None,
    shares: tuple[float, float, float, float] = (0.3, 0.2, 0.35, 0.15),
    groups: Any = None,
    ordered: bool = True,
    relative: float = 1.0,
    precision: Literal["float32", "float64"] = "float64",
    name: str = "programme",
) -> Programme:
    """A parametrised CVXPY problem as a family of programmes.

    An instance is a dictionary: a value for each `cvxpy.Parameter`, by its name. The problem must
    follow CVXPY's rules for parametrised problems (DPP) and come to linear constraints,
    second-order cones and a quadratic objective. CVXPY reduces it once; what parameters change is
    then computed by affine maps, without CVXPY. CVXPY is in the extra `surestep[programmes]`.

    **Arguments:**

    - `problem`: the `cvxpy.Problem`.
    - `thetas`: instances you have, arrays by parameter name stacked along their first axis, or an
      `.npz` file of them.
    - `sample`: or a function of a random key that returns one instance.
    - `shares`, `groups`, `ordered`: how recorded instances are divided, as for `make_problem`.
    - `relative`: the relative part of a tolerance, as for `make_programme`.
    - `precision`: what is computed in.
    - `name`: what messages and reports call it.

    **Returns:** a `Programme`, of which `named(point)` gives the variables by name,
    `objective(point, theta)` the value in the problem's own sense, and `multipliers(point)` the
    dual values in the order of the constraints.

    **Raises:** `surestep.errors.ProblemError` for a problem that is no such programme, and for
    instances that are not what the parameters say (non-negative, symmetric, ...).

    **Example:** the nearest point with non-negative coordinates that add up to 1.

    ```python
    import cvxpy as cp

    target, x = cp.Parameter(3, name="target"), cp.Variable(3, name="x", nonneg=True)
    nearest = cp.Problem(cp.Minimize(cp.sum_squares(x - target)), [cp.sum(x) == 1])
    problem = ss.interop.from_cvxpy(
        nearest, sample=lambda key: {"target": jax.random.normal(key, (3,))}
    )
    theta = problem.sample(jax.random.key(0))
    print(problem.named(problem.start(theta))["x"])
    ```
    """
    cp = require("cvxpy", "CVXPY", "a problem from CVXPY", "programmes")
    _require_programme(problem, cp)
    if thetas is not None and sample is None:
        thetas = stacked_instances(thetas, precision)
    elif sample is None or thetas is not None:
        raise ProblemError("say where instances come from: either thetas or sample")
    few = thetas if thetas is not None else _drawn(sample, precision)
    found = _reduced_on(problem, cp, few)
    cones = {"second_order": found.cones} if found.cones else None
    built = make_programme(
        *(found.hessian, found.linear, found.matrix, found.lower, found.upper), cones=cones,
        thetas=thetas, sample=sample, shares=shares, groups=groups, ordered=ordered,
        relative=relative, precision=precision, name=name,
    )  # fmt: skip
    stocked = isinstance(built, StockedFunctionProgramme)
    kind = StockedCvxpyProgramme if stocked else CvxpyProgramme
    assert isinstance(built, FunctionProgramme)
    fields = {field.name: getattr(built, field.name) for field in dataclasses.fields(built)}
    return kind(**fields, reduction=found)


def _drawn(sample: Any, precision: str) -> Theta:
    """Some instances."""
    if not callable(sample):
        raise ProblemError(f"sample must be a function of a key, not {type(sample).__name__}")
    keys = jax.random.split(jax.random.key(0), _LOOKED)
    with jax.enable_x64(precision == "float64"):
        # One program: compiling operation by operation takes seconds.
        return jax.jit(jax.vmap(lambda key: as_arrays(sample(key), precision, "sample returns")))(
            keys
        )


def _reduced_on(problem: Any, cp: Any, thetas: Theta) -> Reduction:
    """Reduce the problem while its parameters have instances' values, then give back its own."""
    parameters = {parameter.name(): parameter for parameter in problem.parameters()}
    if not isinstance(thetas, dict) or set(thetas) != set(parameters):
        given = sorted(thetas) if isinstance(thetas, dict) else type(thetas).__name__
        raise ProblemError(
            "an instance is a dictionary with a value for each parameter of the CVXPY problem: "
            f"{sorted(parameters)}, not {given}"
        )
    before = {name: parameter.value for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            _set_each(parameter, np.asarray(thetas[name], np.float64))
        return reduced(problem, cp)
    finally:
        for name, value in before.items():
            parameters[name].value = value


def _set_each(parameter: Any, values: Float[np.ndarray, "instance ..."]) -> None:
    """CVXPY checks a value's shape and all that the parameter says of it when it is set."""
    plain = not any(
        value is not None and value is not False for value in parameter.attributes.values()
    )
    for i, value in enumerate(values[:1] if plain else values):
        try:
            parameter.value = value
        except ValueError as error:
            raise ProblemError(
                f"parameter {parameter.name()} cannot be what instance {i} says: {error}"
            ) from error


def _require_programme(problem: Any, cp: Any) -> None:
    """Refuse what is no parametrised convex problem, before any work."""
    if not isinstance(problem, cp.Problem):
        raise ProblemError(f"problem must be a cvxpy.Problem, not {type(problem).__name__}")
    parameters, variables = problem.parameters(), problem.variables()
    if not parameters:
        raise ProblemError("the CVXPY problem has no cvxpy.Parameter: all instances would be equal")
    for kind, leaves in (("parameters", parameters), ("variables", variables)):
        names = [leaf.name() for leaf in leaves]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ProblemError(f"two {kind} are called {twice[0]}: give each its own name")
        if any(leaf.is_complex() for leaf in leaves):
            raise ProblemError(f"complex {kind} are not taken: write real and imaginary parts")
    if problem.is_mixed_integer():
        raise ProblemError("the CVXPY problem has integer variables: programmes are continuous")
    sparse = [leaf.name() for leaf in parameters if leaf.attributes.get("sparsity")]
    if sparse:
        raise ProblemError(
            f"parameter {sparse[0]} has a sparsity: make a parameter of its entries, and the "
            "matrix from them"
        )
    if not problem.is_dcp():
        raise ProblemError(f"the CVXPY problem is not convex by its rules (DCP): {_why(problem)}")
    if not problem.is_dcp(dpp=True):
        raise ProblemError(
            "the CVXPY problem does not follow the rules for parametrised problems (DPP): "
            f"{_why(problem, dpp=True)}. Numbers must be affine in the parameters: make a product "
            "of parameters a parameter of its own"
        )


def _why(problem: Any, **rules: bool) -> str:
    """The first part that breaks the rules."""
    if not problem.objective.is_dcp(**rules):
        return f"its objective, {problem.objective}"
    wrong = [c for c in problem.constraints if not c.is_dcp(**rules)]
    return f"its constraint {wrong[0]}" if wrong else "the problem as a whole"
