"""Problems of users' own: functions, data, and what is said of them before they are run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import surestep
from support.quadratic import QUADRATIC, RANDOM, quadratic, sample
from support.tiny import opened
from surestep.auto import programs
from surestep.auto.configure import sizes_for
from surestep.auto.doctor import examine
from surestep.base.errors import ConfigurationError
from surestep.cli.main import main
from surestep.cli.starter import write_starter
from surestep.problem.base import Problem, StockedProblem
from surestep.problem.datasets import (
    Commitment,
    SealedSplit,
    SplitSizes,
    TestSet,
    TrainSet,
)
from surestep.problem.instance_files import fresh_instances
from surestep.problem.penalties import L1


def test_data_are_split_without_repetition():
    numbers = np.arange(100.0)
    problem = Problem.of(lambda x, t: (x - t) ** 2, 0.0, thetas={"a": numbers})
    assert isinstance(problem, StockedProblem)
    split = opened(problem, SplitSizes(30, 20, 35, 15), 7)
    sets = [np.asarray(one.thetas["a"]) for one in vars(split).values()]
    assert sorted(np.concatenate(sets)) == numbers.tolist()
    # A smaller set is the beginning of a larger one, another seed shuffles again.
    fewer = opened(problem, SplitSizes(3, 2, 3, 1), 7)
    np.testing.assert_array_equal(fewer.train.thetas["a"], sets[2][:3])
    other = opened(problem, SplitSizes(30, 20, 35, 15), 8)
    assert not np.array_equal(other.train.thetas["a"], sets[2])
    with pytest.raises(ConfigurationError, match="of which 35 are for the train set, not 36"):
        SealedSplit.draw(problem, SplitSizes(30, 20, 36, 15), 7)


def test_data_are_dealt_to_train_and_test_by_what_opens_them():
    problem = Problem.of(lambda x, t: (x - t) ** 2, 0.0, thetas=np.arange(100.0))
    sealed = SealedSplit.draw(problem, SplitSizes(30, 20, 35, 15), 7)
    one, two = (sealed.open(Commitment("configuration", plan)) for plan in "ab")
    assert one.prior.hashes == two.prior.hashes and one.validation.hashes == two.validation.hashes
    assert one.train.hashes != two.train.hashes and one.test.hashes != two.test.hashes
    for split in (one, two):
        rows = np.concatenate([np.asarray(one.thetas) for one in vars(split).values()])
        assert sorted(rows) == np.arange(100.0).tolist()
    with pytest.raises(ConfigurationError, match="before there is a commitment"):
        TestSet.draw(problem, 3, 7)


def test_data_from_a_file_are_the_same_problem(tmp_path):
    arrays = {"a": RANDOM.normal(size=(80, 3)), "b": RANDOM.normal(size=80)}
    np.savez(tmp_path / "data.npz", a=arrays["a"], b=arrays["b"])

    def loss(x, theta):
        return (theta["a"] @ x - theta["b"]) ** 2

    one = Problem.of(loss, np.zeros(3), thetas=arrays)
    other = Problem.of(loss, np.zeros(3), thetas=tmp_path / "data.npz")
    sizes = SplitSizes(5, 5, 5, 5)
    assert opened(one, sizes, 0).fingerprints() == opened(other, sizes, 0).fingerprints()
    assert sizes_for(one) == SplitSizes(24, 16, 28, 12)


def test_fresh_instances_of_data_are_not_drawn_by_a_seed(tmp_path):
    problem = Problem.of(lambda x, t: (x - t["a"]) ** 2, 0.0, thetas={"a": np.arange(100.0)})
    with pytest.raises(ConfigurationError, match="instead of a seed"):
        fresh_instances(problem, "777", 10)
    np.savez(tmp_path / "new.npz", a=np.linspace(0.5, 2.5, 9))
    found = fresh_instances(problem, str(tmp_path / "new.npz"), 0)
    assert isinstance(found, TrainSet)
    assert np.asarray(found.thetas["a"]).tolist() == np.linspace(0.5, 2.5, 9).tolist()


def test_losses_are_counted_from_their_bound():
    problem = Problem.of(lambda x, t: x**2 - t, 1.0, sample=jax.random.uniform,
                         lower=lambda t: -t)  # fmt: skip
    with jax.enable_x64(True):
        assert float(problem.loss(jnp.asarray(3.0), jnp.asarray(0.25))) == 9.0
        assert problem.start(0.0).dtype == jnp.float64


def test_a_penalty_makes_a_composite_problem():
    problem = Problem.of(quadratic, np.ones(5), sample=sample, penalty=L1(0.3))
    assert isinstance(problem, surestep.CompositeProblem)
    with jax.enable_x64(True):
        x, theta = jnp.arange(5.0), jnp.ones(5)
        assert float(problem.loss(x, theta)) == pytest.approx(float(quadratic(x, theta)) + 3.0)
        assert problem.prox(x, jnp.asarray(1.0), theta).tolist() == [0, 0.7, 1.7, 2.7, 3.7]


class Untyped(Problem):
    """Its instances hold a number without a type of its own."""

    def sample(self, key):
        return {"a": jax.random.normal(key, (2,)), "b": jnp.asarray(0.5)}

    def start(self, theta):
        return jnp.zeros(2)

    def loss(self, x, theta):
        jax.debug.callback(lambda: None)
        return jnp.sum((theta["b"] * x - theta["a"]) ** 2)


def test_what_is_slow_is_said_in_words():
    notes = " ".join(examine(Untyped()))
    assert "compiled again for instances that do not come from sample: a number in theta" in notes
    assert "loss prints or calls back while it runs (jax.debug)" in notes
    plain = " ".join(examine(QUADRATIC))
    assert "compiled again" not in plain and "operations" not in plain


def test_a_long_program_is_found_before_it_is_compiled():
    def turns(x, number):
        for _ in range(number):
            x = 0.5 * x + 1.0
        return jnp.sum(x)

    (note,) = programs.notes("loss", programs.program(lambda x: turns(x, 600), jnp.ones(2)))
    assert (
        "loss is a program of 1201 operations, 1200 of them from test_own_problems.py, line" in note
    )
    looped = programs.program(
        lambda x: jax.lax.fori_loop(0, 600, lambda _, y: 0.5 * y + 1.0, x), jnp.ones(2)
    )
    assert programs.notes("loss", looped) == []
    assert {"mul", "add"} <= {one.primitive.name for one in programs.operations(looped)}


def test_what_is_found_is_said(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text(
        "import jax, jax.numpy as jnp, numpy as np\n"
        "import surestep as ss\n"
        "problem = ss.make_problem(\n"
        "    lambda x, theta: jnp.sum((np.ones((2, 5)) @ x - theta) ** 2), np.zeros(5),\n"
        "    sample=lambda key: jax.random.normal(key, (2,)), penalty=ss.penalties.L1(0.1),\n"
        ")\n"
    )
    assert main(["check", str(path)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-5:] == [
        "- the smooth part is quadratic in x, with the same Hessian on every instance: it can be "
        "factored once",
        "- its gradient is affine in theta",
        "- the Hessian has rank 1 of 5",
        "- prox acts coordinate by coordinate",
        "nothing is wrong with it",
    ]


def test_a_starting_file_is_written_once(tmp_path, capsys):
    path = tmp_path / "mine.py"
    assert main(["new", str(path)]) == 0
    assert "surestep check" in capsys.readouterr().out
    assert main(["check", str(path)]) == 0
    assert "nothing is wrong with it" in capsys.readouterr().out
    before = path.read_text()
    for wrong, message in [
        (path, "exists already"),
        (tmp_path / "mine.txt", "must be a Python file"),
        (tmp_path / "none" / "mine.py", "there is no folder"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            write_starter(wrong)
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere.py"], "there is no file nowhere.py in "),
        (["check", "nowhere.py:1x"], "must be a file and a name in it"),
        (["run", "nothing"], "a problem of your own is a file"),
        (["run", "x.py", "--budget", "soon"], "a budget is a time like"),
        (["run", "x.py", "--seed", "-1"], "--seed must be"),
        (["new"], "the following arguments are required: file"),
    ],
)
def test_wrong_commands_are_told_so(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
