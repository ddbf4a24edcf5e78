"""Malformed problems: each gets a message of its own, from `check` and `run`, no stack trace."""

import dataclasses

import pytest

from support.types import unchecked
from surestep.cli.main import main

HEAD = """\
import jax, jax.numpy as jnp, numpy as np
import surestep
from surestep.problem.penalties import L1, Box
def sample(key):
    return jax.random.normal(key, (3,))
def loss(x, theta):
    return jnp.sum((x - theta) ** 2)
"""
OF = "problem = surestep.Problem.of(loss, x0=np.zeros(3), sample=sample"


@dataclasses.dataclass(frozen=True)
class Malformed:
    code: str
    message: str
    head: str = HEAD


CASES = {
    # The file
    "no problem": Malformed("", "defines no `problem`: add `problem = ...`"),
    "another name": Malformed(OF.replace("problem", "mine", 1) + ")", "did you mean bad.py:mine?"),
    "a syntax error": Malformed("problem = (", "bad.py, line 8: '(' was never closed"),
    "a missing module": Malformed("import no_such_module", "No module named 'no_such_module'"),
    "an error on the way": Malformed("1 / 0", "bad.py, line 8: ZeroDivisionError"),
    "a class": Malformed(
        "class P(surestep.Problem):\n    def sample(self, key): return 0.\n"
        "    def start(self, theta): return 0.\n    def loss(self, x, theta): return x\n"
        "problem = P",
        "is a class: make an instance of it, `problem = P()`",
    ),
    "a missing method": Malformed(
        "class P(surestep.Problem):\n    def sample(self, key): return 0.\nproblem = P()",
        "abstract",
    ),
    "no problem at all": Malformed("problem = 3", "must be a Problem"),
    # Where instances come from
    "no instances": Malformed(
        "problem = surestep.Problem.of(loss, x0=np.zeros(3))", "say where instances come from"
    ),
    "both ways": Malformed(OF + ", thetas=np.zeros((99, 3)))", "say where instances come from"),
    "ragged data": Malformed(
        "problem = surestep.Problem.of(loss, np.zeros(3), thetas=(np.ones(70), np.ones(9)))",
        "have equally many rows, not [9, 70]",
    ),
    "few data": Malformed(
        "problem = surestep.Problem.of(loss, np.zeros(3), thetas=np.eye(3))",
        "the data hold 3 instances: at least 60",
    ),
    "data that are not numbers": Malformed(
        "problem = surestep.Problem.of(loss, np.zeros(3), thetas=np.array(['a', 'b']))",
        "thetas must hold numbers",
    ),
    "data that are not finite": Malformed(
        "problem = surestep.Problem.of(loss, np.zeros(3), thetas=np.full((90, 3), np.nan))",
        "thetas holds numbers that are not finite",
    ),
    "no file of data": Malformed(
        "problem = surestep.Problem.of(loss, np.zeros(3), thetas='nowhere.npz')",
        "nowhere.npz cannot be read as an .npz file",
    ),
    "always the same instance": Malformed(
        "def sample(key):\n    return jnp.ones(3)\n" + OF + ")",
        "sample returns the same instance for every key",
    ),
    "a sample that is no array": Malformed(
        "def sample(key):\n    return 'text'\n" + OF + ")",
        "sample returns a str, where arrays of numbers are needed",
    ),
    "NumPy in sample": Malformed(
        "def sample(key):\n    return np.sin(jax.random.normal(key, (3,)))\n" + OF + ")",
        "sample fails (bad.py, line 9): it gives a traced value to NumPy",
    ),
    # The loss
    "a loss of one argument": Malformed(
        "def loss(x):\n    return jnp.sum(x**2)\n" + OF + ")",
        "loss must be a function of x and theta",
    ),
    "a vector": Malformed(
        "def loss(x, theta):\n    return (x - theta) ** 2\n" + OF + ")",
        "must return a single number (shape ()), not shape (3,)",
    ),
    "two results": Malformed(
        "def loss(x, theta):\n    return jnp.sum(x), 0.0\n" + OF + ")", "loss returns a tuple"
    ),
    "nothing returned": Malformed(
        "def loss(x, theta):\n    jnp.sum((x - theta) ** 2)\n" + OF + ")", "loss returns a NoneType"
    ),
    "a negative loss": Malformed(
        "def loss(x, theta):\n    return jnp.sum((x - theta) ** 2) - 50.0\n" + OF + ")",
        "is negative, and losses must be at least 0",
    ),
    "a bound that does not hold": Malformed(
        "def loss(x, theta):\n    return jnp.sum(x * theta)\n" + OF + ", lower=-1e-3)",
        "below its lower bound",
    ),
    "not a number": Malformed(
        "def loss(x, theta):\n    return jnp.sum(jnp.log(x - 1.0)) + 9\n" + OF + ")",
        "is not a number on 16 of 16 instances",
    ),
    "a gradient that is not finite": Malformed(
        "def loss(x, theta):\n    return jnp.sum(jnp.sqrt(jnp.abs(x))) + 0 * theta[0]\n" + OF + ")",
        "has a gradient that is not finite",
    ),
    "no dependence on x": Malformed(
        "def loss(x, theta):\n    return jnp.sum(theta**2)\n" + OF + ")", "does not change with x"
    ),
    "Python's if": Malformed(
        "def loss(x, theta):\n    return jnp.sum(x**2) if theta[0] > 0 else jnp.sum((x - 1) ** 2)\n"
        + OF + ")",
        "it decides with Python (if, while, int(), float(), range())",
    ),
    "NumPy in the loss": Malformed(
        "def loss(x, theta):\n    return np.linalg.norm(x - theta) ** 2\n" + OF + ")",
        "use jax.numpy in place of numpy",
    ),
    "shapes that do not fit": Malformed(
        "def loss(x, theta):\n    return jnp.sum((x[:2] - theta) ** 2)\n" + OF + ")",
        "loss fails (bad.py, line 9): TypeError",
    ),
    "a random loss": Malformed(
        "def loss(x, theta):\n    return jnp.sum((x - theta) ** 2) + np.random.rand()\n" + OF + ")",
        "returns another number when it is called again",
    ),
    # What would be compiled again and again, or for hours
    "a sample that remembers": Malformed(
        "made = []\ndef sample(key):\n    made.append(1)\n"
        "    return jax.random.normal(key, (2 + len(made) % 2,))\n" + OF + ")",
        "another instance (or one of another shape or type) when it is called again",
    ),
    "a loss that remembers": Malformed(
        "seen = []\ndef loss(x, theta):\n    seen.append(1)\n"
        "    return jnp.sum((x - theta) ** 2) + len(seen) * (x[0] - x[0])\n" + OF + ")",
        "loss becomes another program each time it is traced",
    ),
    "a shape that depends on the instance": Malformed(
        OF.replace("np.zeros(3)", "lambda theta: jnp.zeros(3 + int(theta[0] > 9))") + ")",
        "start fails (bad.py, line 8): it decides with Python",
    ),
    "a callback": Malformed(
        "def loss(x, theta):\n    out = jax.ShapeDtypeStruct((), x.dtype)\n"
        "    return jax.pure_callback(lambda a: np.sum(np.asarray(a) ** 2), out, x - theta)\n"
        + OF + ")",
        "it calls back into Python (jax.pure_callback), which cannot be differentiated",
    ),
    "a loop of ten thousand turns": Malformed(
        "def loss(x, theta):\n    total = jnp.sum((x - theta) ** 2)\n"
        "    for _ in range(10001):\n        total = total * 0.999\n    return total\n" + OF + ")",
        "of them from bad.py, line 11: Python loops are laid out turn by turn",
    ),
    # The start
    "whole numbers": Malformed(
        OF.replace("np.zeros(3)", "np.zeros(3, int)") + ")", "must hold floating-point numbers"
    ),
    "an empty start": Malformed(
        OF.replace("np.zeros(3)", "[]") + ")", "x0 holds no numbers"
    ),
    "a start that is not finite": Malformed(
        OF.replace("np.zeros(3)", "np.full(3, np.inf)") + ")", "x0 holds numbers that are"
    ),
    # What is not smooth
    "no penalty": Malformed(OF + ", penalty=0.1)", "penalty must be one of surestep.penalties"),
    "an empty box": Malformed(OF + ", penalty=Box(1.0, 0.0))", "a lower bound below its upper one"),
    "a start outside": Malformed(
        OF + ", penalty=Box(1.0, 2.0))", "is infinite on 16 of 16 instances"
    ),
    "a wrong prox": Malformed(
        "class P(surestep.CompositeProblem):\n"
        "    def sample(self, key): return jax.random.normal(key, (3,))\n"
        "    def start(self, theta): return jnp.zeros(3)\n"
        "    def smooth(self, x, theta): return jnp.sum((x - theta) ** 2)\n"
        "    def nonsmooth(self, x, theta): return jnp.sum(jnp.abs(x))\n"
        "    def prox(self, x, step, theta): return x\n"
        "problem = P()",
        "prox is not the proximal map of nonsmooth",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@unchecked()
def test_a_malformed_problem_is_told_what_is_wrong(name, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    case = CASES[name]
    (tmp_path / "bad.py").write_text(case.head + case.code + "\n")
    messages = []
    for command in (["check", "bad.py"], ["run", "bad.py", "--out", "run"]):
        assert main(command) == 2
        said = capfd.readouterr()
        assert "Traceback" not in said.err + said.out
        (last,) = [line for line in said.err.splitlines() if line.startswith("surestep: ")]
        messages.append(last)
    assert case.message in messages[0]
    assert messages[1] == messages[0]
    assert not (tmp_path / "run").exists()


def test_there_are_thirty_of_them():
    assert len(CASES) >= 30
    assert len({case.message for case in CASES.values()}) >= 30
