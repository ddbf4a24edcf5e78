"""The file of a choice: what was chosen is read again bit for bit, or not at all."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from surestep.auto.arena import Entry
from surestep.auto.choice import Choice
from surestep.auto.choice_file import KIND, NAME, read_choice, write_choice
from surestep.base.errors import RunFolderError
from surestep.problem.base import Problem
from surestep.problem.draw import working_precision
from surestep.rules import (
    LBFGS,
    Checked,
    FistaWithRestart,
    GradientDescent,
    LearnedFista,
    MetricQuasiNewton,
    Newton,
    Predicted,
    SharedADMM,
)
from surestep.rules.base import solver_fingerprint
from surestep.storage.arrays import read_arrays, write_arrays


def problem_of(precision):
    return Problem.of(
        lambda x, theta: jnp.sum((x - theta) ** 2),
        np.zeros(4),
        sample=lambda key: jax.random.normal(key, (4,)),
        precision=precision,
    )


def inner_rules():
    """What candidates are made of, in the working precision."""
    fista = FistaWithRestart(1 / 3)
    hessian = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))
    splitting = SharedADMM.of(hessian @ hessian.T, 0.1)
    newton = MetricQuasiNewton.of(hessian, 7.5)
    exponents = jnp.arange(4, dtype=jnp.int32)
    return {
        "tuned steps": FistaWithRestart(jnp.asarray(1 / 3)),
        "a schedule": LearnedFista.around(fista, 5),
        "a factor": splitting,
        "a metric": newton,
        "a start": Predicted(newton, jnp.ones(4), hessian, exponents, 0.7, 1 / 3),
        "nothing to learn": Newton(anew=False),
    }


def choice_of(rule, tolerance=1 / 3) -> Choice:
    fallback = FistaWithRestart(1 / 3)
    checked = Checked(rule, fallback, at=9, tolerance=tolerance, rescue=70, step_size=0.1)
    entries = (
        Entry("the best", True, 9.0, 1e-4, 1e-5),
        Entry("the second", False, 9.0, math.inf, 1e-5),
        Entry("the last", False, math.inf, math.inf, math.inf),
    )
    opponents = {"L-BFGS": LBFGS(), "gradient descent": GradientDescent(0.1)}
    return Choice(checked, opponents, "the best (trained), ééé", entries, 9, 3.3, 900, 4.25)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", inner_rules())
def test_a_choice_is_read_as_it_was_written(name, precision, tmp_path):
    problem = problem_of(precision)
    for tolerance in (1 / 3, math.inf):
        with working_precision(problem):
            choice = choice_of(inner_rules()[name], tolerance)
        write_choice(tmp_path / NAME, choice)
        found = read_choice(tmp_path / NAME, problem)
        assert solver_fingerprint(found.rule) == solver_fingerprint(choice.rule)
        assert list(found.baselines) == list(choice.baselines)
        assert solver_fingerprint(found.baselines) == solver_fingerprint(choice.baselines)
        assert found.entries == choice.entries
        assert (found.words, found.horizon, found.smoothness) == (choice.words, 9, 3.3)
        assert (found.seconds, found.trained) == (4.25, True)
        # The same choice is the same file.
        before = (tmp_path / NAME).read_bytes()
        write_choice(tmp_path / NAME, found)
        assert (tmp_path / NAME).read_bytes() == before


@pytest.fixture
def written(tmp_path):
    with working_precision(problem_of("float64")):
        choice = choice_of(inner_rules()["a start"])
    write_choice(tmp_path / NAME, choice)
    return tmp_path / NAME


def refused(path, message=None):
    with pytest.raises(RunFolderError, match=message):
        read_choice(path, problem_of("float64"))


def test_a_flipped_bit_is_noticed(written):
    whole = written.read_bytes()
    places = np.random.default_rng(0).integers(0, len(whole), 60)
    for place in (*places, 0, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(place) % 8
        if json_of(bytes(damaged)) == json_of(whole):
            continue  # a space that nobody reads
        written.write_bytes(damaged)
        refused(written)


def json_of(content: bytes):
    """What the header says, and what comes after it."""
    length = int.from_bytes(content[:8], "little")
    try:
        return json.loads(content[8 : 8 + length]), content[8 + length :]
    except ValueError:
        return None


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_half_a_file_is_no_file(share, written):
    whole = written.read_bytes()
    written.write_bytes(whole[: int(share * len(whole))])
    refused(written)


def test_a_missing_file_is_named(tmp_path):
    refused(tmp_path / NAME, NAME)
    (tmp_path / NAME).mkdir()
    refused(tmp_path / NAME, "not a plain file")


def rewritten(path, change):
    """The file with something else in it, and a checksum that fits."""
    arrays, metadata = read_arrays(path)
    facts = json.loads(metadata["facts"])
    change(arrays, facts)
    write_arrays(path, arrays, metadata | {"facts": json.dumps(facts)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, facts: arrays.popitem(), "other arrays than its rules name"),
        (lambda arrays, facts: arrays.update(more=np.ones(2)), "other arrays than its rules name"),
        (lambda arrays, facts: facts["names"].pop(), "one rule and an opponent for every name"),
        (lambda arrays, facts: facts.update(rules=[], names=[]), "one rule and an opponent"),
        (lambda arrays, facts: facts.pop("words"), "words is missing"),
        (lambda arrays, facts: facts.update(horizon="long"), "horizon should be of type int"),
        (lambda arrays, facts: facts["entries"][0].pop("batch"), "batch is missing"),
        (lambda arrays, facts: facts["rules"][1]["rule"].update({"class": "os.system"}),
         "names the class os.system"),
        (lambda arrays, facts: facts["rules"][0]["rule"]["fields"].update(at=0),
         "a time of at least 1"),
        (lambda arrays, facts: facts["rules"].__setitem__(1, 3), "holds no rule"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(change, message, written):
    rewritten(written, change)
    refused(written, message)


def test_another_kind_of_file_is_refused(written):
    arrays, metadata = read_arrays(written)
    write_arrays(written, arrays, metadata | {"kind": "surestep solver"})
    refused(written, "is no choice's file")
    write_arrays(written, arrays, {"kind": KIND})
    refused(written)
    write_arrays(written, arrays, {"kind": KIND, "facts": "{"})
    refused(written)
