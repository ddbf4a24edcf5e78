"""`ss.certify`: a certificate of anyone's solver, from what it did on instances."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from surestep.base.errors import ConfigurationError
from surestep.certify import Certificate
from surestep.certify.outcome_files import plain_arrays
from surestep.certify.outcome_plan import OutcomeSettings
from surestep.report.outcomes import write_outcomes_page
from surestep.run.outcomes import OutcomeFolder, certified, pilot_of, plan_for, plan_outcomes

Given = str | Path | Mapping[str, Any] | np.ndarray
"""A file of outcomes, arrays by name, or an array of losses or of hits."""


def certify(
    outcomes: Given,
    *,
    pilot: Given | None = None,
    claims: Sequence[str] = (),
    out: str | Path | None = None,
    solver: str = "the solver",
    problem: str = "outcomes",
    epsilon: float = 0.05,
    accuracies: Sequence[float] = (),
    signed: bool = False,
) -> Certificate:
    """Certify a solver of any library, in any language, by what it did on instances.

    The plan, which names all that is claimed, is made first: from the pilot or from the claims. Of
    the outcomes it knows only how many there are, and after which iterations. `plan_certificate`
    makes it before they are there.

    **Arguments:**

    - `outcomes`: a file (`.npz` or `.csv`), or arrays by name: `losses[instance, iteration]` (or
      `gaps`, losses above the minimum; or `hits`, 1 for a success). Beside losses, if
      they are known: `iterations` (after which they were recorded; 0, 1, 2, ... else), `minima`,
      `starts`, `thresholds` (the goal), `groups` (instances of a group count once) and losses
      `opponent_NAME` of others on the same instances. A single array is losses, or hits.
    - `pilot`: outcomes on other instances, from which the plan is made.
    - `claims`: what is claimed, in place of a pilot: `"within 1e-4 in 50 iterations: 0.95"`, as for
      `certify_until`. Without `in N iterations` the iterations are certified.
    - `out`: a folder for plan, outcomes, certificate and report; `surestep verify` computes all of
      it again. One that holds a plan already needs no pilot and no claims.
    - `solver`, `problem`: what the solver and its instances are called.
    - `epsilon`: the probability with which anything in the certificate may be false.
    - `accuracies`: how close to the minimum (without minima: which losses) the iterations are
      certified for, beside shares of what lies between start and minimum.
    - `signed`: whether losses may be negative.

    **Returns:** the `Certificate`.

    **Raises:** `surestep.errors.ConfigurationError` if outcomes, pilot and plan do not fit
    together, `surestep.errors.RunFolderError` if the folder holds something else.

    **Example:**

    ```python
    random = np.random.default_rng(0)


    def solved(number):  # your solver's losses, with a row for each instance
        speeds = random.uniform(0.2, 0.5, (number, 1))
        return {"gaps": np.exp(-speeds * np.arange(31))}


    certificate = ss.certify(solved(500), pilot=solved(200), solver="gradient descent")
    print(certificate)
    ```
    """
    settings = _settings(claims, solver, problem, epsilon, accuracies, signed)
    if out is None:
        arrays, before = plain_arrays(outcomes), pilot_of(pilot)
        return certified(plan_for(arrays, settings, before), arrays, before)
    folder = OutcomeFolder(Path(out))
    if pilot is not None or claims or not folder.is_one():
        arrays, before = plain_arrays(outcomes), pilot_of(pilot)
        folder.begin(plan_for(arrays, settings, before), before)
    else:
        arrays = plain_arrays(outcomes)
    document = folder.issue(arrays)
    write_outcomes_page(folder)
    return document


def plan_certificate(
    out: str | Path,
    size: int,
    *,
    pilot: Given | None = None,
    claims: Sequence[str] = (),
    iterations: Sequence[int] = (),
    solver: str = "the solver",
    problem: str = "outcomes",
    epsilon: float = 0.05,
    accuracies: Sequence[float] = (),
    signed: bool = False,
) -> str:
    """Fix what will be certified of a solver, before there are outcomes.

    **Arguments:**

    - `out`: the folder; `certify` with the same one uses the plan.
    - `size`: how many independent instances there are going to be.
    - `pilot`, `claims`: as for `certify`.
    - `iterations`: after which iterations losses are going to be recorded, for claims that leave
      that open.
    - `solver`, `problem`, `epsilon`, `accuracies`, `signed`: as for `certify`.

    **Returns:** the plan's hash, to be given to whoever shall be convinced.

    **Raises:** `surestep.errors.ConfigurationError` if nothing can be claimed,
    `surestep.errors.RunFolderError` if the folder holds something else.

    **Example:**

    ```python
    sha256 = ss.plan_certificate(
        "runs/osqp", 500, claims=["loss 1e-3 in 30 iterations: 0.99"], solver="OSQP"
    )
    ```
    """
    settings = _settings(claims, solver, problem, epsilon, accuracies, signed)
    before = pilot_of(pilot)
    plan = plan_outcomes(settings, before, size, tuple(int(i) for i in iterations))
    OutcomeFolder(Path(out)).begin(plan, before)
    return plan.sha256


def _settings(
    claims: Sequence[str],
    solver: str,
    problem: str,
    epsilon: float,
    accuracies: Sequence[float],
    signed: bool,
) -> OutcomeSettings:
    if isinstance(claims, str):
        raise ConfigurationError(f"claims are a list: [{claims!r}]")
    if not all(np.isfinite(value) for value in accuracies):
        raise ConfigurationError(f"accuracies are finite numbers, not {list(accuracies)}")
    return OutcomeSettings(
        solver=solver,
        problem=problem,
        epsilon=epsilon,
        claims=tuple(claims),
        accuracies=tuple(float(value) for value in accuracies),
        signed=signed,
    )
