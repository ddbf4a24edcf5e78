"""A problem: a family of losses, how its instances are drawn, and where to start."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree, Scalar

from surestep.base.errors import ConfigurationError

Theta = PyTree[Any]
"""What makes one instance of a family: any pytree of arrays."""

Point = PyTree[Any]
"""An optimization variable: an array of any shape or a pytree of arrays."""


class Problem(eqx.Module):
    """A family of problems `minimise loss(x, theta) over x`, with `theta` drawn at random.

    Subclass it and write three methods. `loss` must be a non-negative scalar, differentiable
    almost everywhere; it is compiled, batched and differentiated by JAX. What is drawn once for
    the whole family belongs into the fields, what varies from instance to instance into `theta`.

    A loss that may be negative and has no known lower bound says `nonnegative = False`. It gets
    the certificates that need no bound, and no others.

    **Example:**

    ```python
    class Valley(ss.Problem):
        def sample(self, key):
            return jax.random.normal(key, (4,))

        def start(self, theta):
            return jnp.zeros(4)

        def loss(self, x, theta):
            return jnp.sum((x - theta) ** 2)


    valley = Valley()
    theta = valley.sample(jax.random.key(0))
    print(valley.loss(valley.start(theta), theta))
    ```
    """

    precision: ClassVar[Literal["float32", "float64"]] = "float64"
    """In which floating-point numbers everything is computed."""
    nonnegative: ClassVar[bool] = True
    """Whether the loss is never below 0."""
    summary: ClassVar[str] = ""
    """What the family is, in a line, for the report."""

    of: ClassVar[Callable[..., "Problem"]]
    """The same as `surestep.make_problem`, which see; set there."""

    @abc.abstractmethod
    def sample(self, key: Array) -> Theta:
        """Draw one instance. All instances, in all data sets, come from here.

        **Arguments:**

        - `key`: a key of `jax.random`, which decides the draw.

        **Returns:** the instance, a pytree of arrays. All instances have the same shapes.
        """

    @abc.abstractmethod
    def start(self, theta: Theta) -> Point:
        """The point every rule starts from.

        **Arguments:**

        - `theta`: the instance.

        **Returns:** the point, in the form that `loss` takes.
        """

    @abc.abstractmethod
    def loss(self, x: Point, theta: Theta) -> Scalar:
        """The value to be made small, at least 0 (unless the problem says it is not).

        **Arguments:**

        - `x`: a point.
        - `theta`: the instance.

        **Returns:** a single number.
        """


ROLES = ("PriorSet", "ValidationSet", "TrainSet", "TestSet")
"""The data sets that given instances are divided among, in this order."""


class StockedProblem(Problem):
    """A problem whose instances are data: so many, and no more.

    Instances that belong together form a group. Groups are shuffled and cut into four parts, one
    for each kind of data set; no group is in two of them, and one instance of a group is taken. Who
    is in the train set is decided when it is opened. A
    certificate takes the groups for independent draws from the distribution that future instances
    come from.
    """

    @property
    @abc.abstractmethod
    def stock(self) -> Theta:
        """The instances, stacked along their first axis."""

    @property
    @abc.abstractmethod
    def shares(self) -> tuple[float, float, float, float]:
        """Which share of them serves for the prior, validation, train and test set."""

    @property
    @abc.abstractmethod
    def groups(self) -> np.ndarray | Array:
        """The number of the group that each instance is in: 0, 1, ..., as groups begin."""

    @property
    def about_data(self) -> str:
        """What certificates say about the instances."""
        return ""

    def require_steady(self) -> None:
        """Refuse instances of which it is known that they drift."""

    @property
    def drawable(self) -> int:
        """How many independent draws the instances are: the number of groups."""
        return int(np.max(np.asarray(self.groups))) + 1

    def sample(self, key: Array) -> Theta:
        """Any one of them."""
        return instance(self.stock, jax.random.randint(key, (), 0, count(self.stock)))

    def available(self, role: str) -> int:
        """How many groups there are for a kind of data set."""
        first, last = self._bounds(role)
        return last - first

    def require_available(self, role: str, size: int) -> None:
        """Refuse a set that is larger than what there is for it."""
        most = self.available(role)
        if size > most:
            raise ConfigurationError(
                f"the data hold {count(self.stock)} instances{self._in_groups()}, of which "
                f"{most} are for the {role.removesuffix('Set').lower()} set, not {size}: "
                "ask for fewer (sizes), or change the shares of surestep.make_problem"
            )

    def part(self, role: str, size: int, key: Array, later: Array | None = None) -> Theta:
        """An instance of each of a set's first groups, after a shuffle that the key decides.

        What prior and validation set leave is shuffled once more, by the later key: who is in the
        train set is open as long as that key is.
        """
        self.require_available(role, size)
        first, _ = self._bounds(role)
        order = np.asarray(jax.random.permutation(key, self.drawable))
        if role in ROLES[2:]:
            if later is None:
                raise ConfigurationError(
                    f"nobody can know the {role} before there is a commitment that opens it"
                )
            learned = self._bounds(ROLES[2])[0]
            rest = np.asarray(jax.random.permutation(later, order[learned:]))
            order, key = np.concatenate([order[:learned], rest]), later
        return instance(self.stock, self._drawn(key)[order[first : first + size]])

    def _drawn(self, key: Array) -> np.ndarray:
        """One instance of every group, drawn by the key."""
        size = count(self.stock)
        if self.drawable == size:
            return np.arange(size)
        shuffled = np.asarray(jax.random.permutation(jax.random.fold_in(key, 1), size))
        return shuffled[np.unique(np.asarray(self.groups)[shuffled], return_index=True)[1]]

    def _in_groups(self) -> str:
        size = self.drawable
        return "" if size == count(self.stock) else f" in {size} groups"

    def _bounds(self, role: str) -> tuple[int, int]:
        place = ROLES.index(role)
        ends = [int(sum(self.shares[:i]) * self.drawable + 1e-9) for i in range(5)]
        return ends[place], ends[place + 1]


def name_of(problem: Problem) -> str:
    """What messages call a problem."""
    return str(getattr(problem, "name", type(problem).__name__))


def instance(thetas: Theta, index: int | slice | np.ndarray | Array) -> Theta:
    """One instance (or several, for a slice or an array of indices) out of a stacked set."""
    if isinstance(thetas, np.ndarray):  # the shorter way
        return thetas[index]
    return jax.tree.map(lambda leaf: _taken(leaf, index), thetas)


def concatenated(parts: Sequence[Theta]) -> Theta:
    """Several stacked sets as one."""

    def together(*leaves: Any) -> Any:
        if all(_on_host(leaf) for leaf in leaves):
            return _as_it_is(np.concatenate([np.asarray(leaf) for leaf in leaves]))
        return jnp.concatenate(leaves)

    return parts[0] if len(parts) == 1 else jax.tree.map(together, *parts)


def _taken(leaf: Any, index: Any) -> Any:
    """Rows of an array; those in the host's memory are taken there, where nothing is compiled."""
    if isinstance(index, Tracer) or not _on_host(leaf):
        return leaf[index]
    if isinstance(index, slice) and index.indices(leaf.shape[0]) == (0, leaf.shape[0], 1):
        return leaf
    rows = index if isinstance(index, int | slice) else np.asarray(index)
    return _as_it_is(np.asarray(np.asarray(leaf)[rows]))


def _as_it_is(rows: np.ndarray) -> jax.Array:
    """An array for JAX, of the same type, whatever precision is set."""
    if rows.dtype.itemsize < 8:
        return jax.device_put(rows)
    with jax.enable_x64(True):
        return jax.device_put(rows)


def _on_host(leaf: Any) -> bool:
    if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array) or leaf.weak_type:
        return False
    devices = leaf.devices()
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def count(thetas: Theta) -> int:
    """How many instances a stacked set holds."""
    return jax.tree.leaves(thetas)[0].shape[0]
