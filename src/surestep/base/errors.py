"""Every error surestep raises on purpose, each with the exit code the command line ends with."""

import difflib
from typing import ClassVar

__all__ = [
    "ConfigurationError",
    "EvaluationError",
    "HostError",
    "InfeasibleError",
    "ProblemError",
    "RunFolderError",
    "SolverFileError",
    "SurestepError",
    "VerificationError",
]


class SurestepError(Exception):
    """Base of the errors a user can act on; the message says what would be right.

    **Example:**

    ```python
    try:
        solver.solve(thetas, iterations=0)
    except ss.errors.SurestepError as error:
        print(error, error.exit_code)
    ```
    """

    exit_code: ClassVar[int] = 1
    """What the command line ends with."""


class ConfigurationError(SurestepError):
    """A setting, a name or an argument that cannot work.

    **Example:**

    ```python
    try:
        ss.open_problem("quadratic")
    except ss.errors.ConfigurationError as error:
        print(error)  # did you mean 'quadratics'?
    ```
    """

    exit_code = 2


class ProblemError(SurestepError):
    """A problem that breaks its contract: its loss, its start or its instances.

    **Example:**

    ```python
    try:
        broken = ss.make_problem(lambda x, theta: x, jnp.zeros(2), sample=lambda key: jnp.ones(2))
        ss.fit(broken)
    except ss.errors.ProblemError as error:
        print(error)  # the loss is not a single number
    ```
    """

    exit_code = 2


class InfeasibleError(SurestepError):
    """Training ended without a rule that meets the success constraint: nothing to certify.

    **Example:**

    ```python
    try:
        learned = ss.fit(problem, budget="10s")
    except ss.errors.InfeasibleError as error:
        print(error)  # a longer budget, more iterations or an easier goal
    ```
    """

    exit_code = 3


class VerificationError(SurestepError):
    """A certificate, a statement or a monitor that does not stand.

    **Example:**

    ```python
    monitor = solver.monitor().fed(np.zeros(100))
    if monitor.alarm:
        raise ss.errors.VerificationError(str(monitor))
    ```
    """

    exit_code = 5


class EvaluationError(SurestepError):
    """An evaluation that failed after the certificate was written; certificate and solver stand.

    **Example:**

    ```python
    try:
        print(learned.evaluation.solvers)
    except ss.errors.EvaluationError as error:
        print(error, learned.certificate)
    ```
    """


class RunFolderError(SurestepError):
    """A run folder that holds something else, is damaged, or is in use.

    **Example:**

    ```python
    import pathlib

    try:
        ss.paper.read_config(ss.RunFolder(pathlib.Path("nothing-here")))
    except ss.errors.RunFolderError as error:
        print(error)
    ```
    """

    exit_code = 4


class SolverFileError(RunFolderError):
    """A solver's file that is damaged, of another kind, or made for another problem.

    **Example:**

    ```python
    import pathlib

    pathlib.Path("solver.safetensors").write_text("something else")
    try:
        ss.load("solver.safetensors", problem)
    except ss.errors.SolverFileError as error:
        print(error)
    ```
    """


class HostError(SurestepError):
    """Another process of the run is lost, or cannot do its part.

    **Example:**

    ```python
    print(ss.errors.HostError.exit_code)  # 6: start the run again, and it goes on
    ```
    """

    exit_code = 6


def unknown(kind: str, name: str, known: tuple[str, ...]) -> str:
    """Say that there is no such name, and which ones are near."""
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"there is no {kind} called {name!r}: {hint}known are {', '.join(known)}"
