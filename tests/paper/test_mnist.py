"""The MNIST problem: its classifier, loss and instances, and the whole way to a certificate."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from support.tiny import opened
from surestep import paper
from surestep.base.errors import ConfigurationError, ProblemError, RunFolderError
from surestep.base.keys import named_key
from surestep.cli.main import main
from surestep.paper.digits import open_stock
from surestep.paper.mnist import PAPER, TINY, Mnist, MnistSettings
from surestep.problem.base import instance
from surestep.problem.contract import check_problem
from surestep.problem.datasets import SplitSizes, TestSet, TrainSet
from surestep.problem.draw import draw
from surestep.problem.instance_files import read_instances
from surestep.rollout.batched import rollouts
from surestep.rules import Adam
from surestep.run.pipeline import learn
from surestep.run.verify.run import verify
from surestep.storage.run_folder import RunFolder
from surestep.train.common_start import CommonStartSettings

STOCK = open_stock("digits")
PROBLEM = Mnist.create(MnistSettings(images=6), STOCK, 0)
THETA = np.array([3, 500, 1796, 0, 77, 500], np.int32)


def with_double():
    """The same problem with all numbers in double precision."""
    stock, first = (
        jax.tree.map(lambda leaf: leaf.astype(jnp.float64), part)
        for part in (PROBLEM.stock, PROBLEM.first)
    )
    return dataclasses.replace(PROBLEM, stock=stock, first=first)


@eqx.filter_jit
def value_and_gradient(problem, x, theta):
    return jax.value_and_grad(problem.loss)(x, theta)


@eqx.filter_jit
def seen(problem, x, theta):
    """Logits, loss and accuracy."""
    return problem.logits(x, theta), problem.loss(x, theta), problem.accuracy(x, theta)


def convolve(kernel, bias, image):
    """A 3 x 3 convolution without padding, pixel by pixel."""
    side = image.shape[1] - 2
    out = np.zeros((len(kernel), side, side))
    for c in range(len(kernel)):
        for i in range(side):
            for j in range(side):
                out[c, i, j] = np.sum(kernel[c] * image[:, i : i + 3, j : j + 3]) + bias[c]
    return out


def pool(image):
    half = image.shape[1] // 2
    out = np.zeros((len(image), half, half))
    for i in range(half):
        for j in range(half):
            out[:, i, j] = image[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max(axis=(1, 2))
    return out


def transcription(x, image):
    """The classifier, layer by layer, on one image."""
    x = SimpleNamespace(**{name: np.asarray(part) for name, part in x._asdict().items()})
    h = pool(np.maximum(convolve(x.conv1, x.conv1_bias, image[None]), 0))
    h = pool(np.maximum(convolve(x.conv2, x.conv2_bias, h), 0)).reshape(108)
    h = np.maximum(x.linear1 @ h + x.linear1_bias, 0)
    h = np.maximum(x.linear2 @ h + x.linear2_bias, 0)
    return x.linear3 @ h + x.linear3_bias


def test_the_classifier_is_that_of_the_paper():
    problem = with_double()
    assert ravel_pytree(problem.first)[0].shape == (13_090,)
    found, _, _ = seen(problem, problem.first, jnp.asarray(THETA))
    wanted = [transcription(problem.first, np.asarray(problem.stock)[i]) for i in THETA]
    np.testing.assert_allclose(found, np.transpose(wanted), rtol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 0.3, 0.05])
def test_the_loss_is_the_penalised_cross_entropy(scale):
    problem = with_double()
    x = jax.tree.map(lambda part: scale * part, problem.first)
    logits = np.array([transcription(x, np.asarray(problem.stock)[i]) for i in THETA])
    labels = STOCK.labels[THETA]
    shifted = logits - logits.max(axis=1, keepdims=True)
    entropies = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(6), labels]
    correct = (logits.argmax(axis=1) == labels).astype(float)
    wanted = entropies.mean() / np.mean(np.exp(-np.sqrt(1 - correct)))
    _, loss, accuracy = seen(problem, x, jnp.asarray(THETA))
    assert loss == pytest.approx(wanted, rel=1e-9)
    assert accuracy == correct.mean()


def test_tiny_losses_keep_their_digits_in_single_precision():
    """Log-sum-exp minus a logit would be 0 or a multiple of 1e-7 here."""
    with jax.enable_x64(False):
        bias = jnp.zeros(10).at[4].set(30.0)
        x = jax.tree.map(jnp.zeros_like, PROBLEM.first)._replace(linear3_bias=bias)
        four = int(np.argmax(STOCK.labels == 4))
        loss, gradient = value_and_gradient(PROBLEM, x, jnp.full(6, four))
        assert loss == pytest.approx(9 * np.exp(-30.0), rel=1e-5)
        assert gradient.linear3_bias[3] == pytest.approx(np.exp(-30.0), rel=1e-5)


def test_the_gradient_is_that_of_finite_differences():
    problem, theta = with_double(), jnp.asarray(THETA)
    x = jax.tree.map(lambda part: 0.3 * part, problem.first)
    flat, unravel = ravel_pytree(x)
    gradient = np.asarray(ravel_pytree(value_and_gradient(problem, x, theta)[1])[0])
    random = np.random.default_rng(0)
    for _ in range(4):
        along = random.normal(size=flat.shape) / 100
        ahead, behind = (
            float(value_and_gradient(problem, unravel(flat + sign * 1e-6 * along), theta)[0])
            for sign in (1, -1)
        )
        assert gradient @ along == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)


def test_a_tie_in_a_pooling_window_counts_once():
    """On an image of one grey every window is a tie."""
    flat = dataclasses.replace(with_double(), stock=jnp.full((1797, 20, 20), 0.7))
    x, theta = flat.first, jnp.asarray(THETA)
    gradient = value_and_gradient(flat, x, theta)[1]
    ahead, behind = (
        float(value_and_gradient(flat, x._replace(conv1=x.conv1.at[2].add(step)), theta)[0])
        for step in (1e-6, -1e-6)
    )
    slope = (ahead - behind) / 2e-6
    assert slope != 0
    assert float(gradient.conv1[2].sum()) == pytest.approx(slope, rel=1e-5)


def test_every_image_is_equally_likely_in_every_set():
    problem = dataclasses.replace(PROBLEM, images=250)
    split = opened(problem, SplitSizes(400, 400, 400, 400), 0)
    sets = [np.asarray(getattr(split, name).thetas) for name in ("prior", "validation", "train")]
    for drawn in (*sets, np.asarray(split.test.thetas)):
        assert drawn.shape == (400, 250)
        assert drawn.dtype == np.int32
        counts = np.bincount(drawn.ravel(), minlength=1797)
        assert counts.size == 1797
        expected = drawn.size / 1797
        # Chi-squared with 1796 degrees of freedom, within five standard deviations.
        assert abs(np.sum((counts - expected) ** 2) / expected - 1796) < 5 * np.sqrt(2 * 1796)
    shared = np.mean(sets[0] == sets[1])
    assert shared < 5 / 1797, "sets share their random numbers"


def test_the_start_is_standard_normal_and_the_familys():
    start = np.asarray(ravel_pytree(PROBLEM.first)[0])
    assert abs(start.mean()) < 4 / np.sqrt(start.size)
    assert abs(start.var() - 1) < 4 * np.sqrt(2 / start.size)
    same, other = (Mnist.create(MnistSettings(images=6), STOCK, seed) for seed in (0, 1))
    np.testing.assert_array_equal(same.first.linear1, PROBLEM.first.linear1)
    assert np.any(np.asarray(other.first.linear1) != np.asarray(PROBLEM.first.linear1))


def test_the_stock_is_an_argument_of_compiled_programs(compilations):
    """Other images of the same shape compile nothing new, so none are constants."""
    thetas = draw(PROBLEM, 3, named_key(0, "data"))
    with jax.enable_x64(False):
        measured = rollouts(Adam(0.01), PROBLEM, thetas, 2, 3, (PROBLEM.accuracy,))
        upside_down = dataclasses.replace(PROBLEM, stock=jnp.asarray(PROBLEM.stock[:, ::-1]))
        with compilations() as again:
            other = rollouts(Adam(0.01), upside_down, thetas, 2, 3, (upside_down.accuracy,))
    assert again.count == 0
    assert np.all(other.losses != measured.losses)
    assert measured.losses.dtype == np.float32


def test_settings_refuse_nonsense(tmp_path):
    with pytest.raises(ConfigurationError, match=r"problem\.images must be at least 1"):
        MnistSettings(images=0).validate()
    missing = dataclasses.replace(TINY, problem=MnistSettings(data=str(tmp_path / "no")))
    with pytest.raises(ConfigurationError, match="is not a folder"):
        paper.build(missing)
    PAPER.validate()


def test_data_is_chosen_on_the_command_line(tmp_path, capsys):
    arguments = ["run", "mnist", "--preset", "tiny", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--data", str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err


def saved(path: Path, numbers) -> Path:
    np.savez(path, theta=numbers)
    return path


def test_instances_from_a_file(tmp_path):
    fresh = draw(PROBLEM, 5, named_key(7, "fresh"))
    path = saved(tmp_path / "good.npz", np.asarray(fresh, np.int64))
    assert read_instances(PROBLEM, path).sha256 == TrainSet(fresh).sha256
    with pytest.raises(ConfigurationError, match="must hold whole numbers"):
        read_instances(PROBLEM, saved(tmp_path / "float.npz", np.asarray(fresh) + 0.5))
    with pytest.raises(ConfigurationError, match="must hold whole numbers"):
        read_instances(PROBLEM, saved(tmp_path / "huge.npz", np.asarray(fresh, np.int64) + 2**32))
    beyond = np.array(fresh)
    beyond[2, 1] = 1797
    with pytest.raises(ProblemError, match="not a number on 1 of 5 instances, first on instance 2"):
        read_instances(PROBLEM, saved(tmp_path / "beyond.npz", beyond))


def test_the_problem_keeps_its_contract():
    with jax.enable_x64(False):
        check_problem(PROBLEM, draw(PROBLEM, 4, named_key(0, "data")), 2)


@pytest.mark.slow
def test_tiny_runs_to_a_certificate_that_names_its_stock(tmp_path):
    folder = RunFolder(tmp_path / "run")
    experiment = paper.build(TINY)
    learned = learn(TINY, experiment, folder)
    assert f"this stock of data alone: {STOCK}" in str(learned.certificate)
    evaluation = learned.evaluation
    assert evaluation.measured == ["accuracy"]
    assert evaluation.measures.shape == (2, 1, 8, 21)
    assert np.all((evaluation.measures >= 0) & (evaluation.measures <= 1))
    assert all(
        check.stands
        for check in verify(folder, paper.read_config(folder), experiment, rerun=4, seed=0)
    )

    other = dataclasses.replace(experiment, pool=experiment.pool.replace("SHA-256 ", "SHA-256 0"))
    with pytest.raises(RunFolderError, match="begun with another experiment"):
        learn(TINY, other, folder)
    failed = [
        check for check in verify(folder, paper.read_config(folder), other) if not check.stands
    ]
    assert "the plan, and its budget" in [check.name for check in failed]


def test_an_instance_is_few_numbers():
    theta = instance(draw(PROBLEM, 2, named_key(0, "data")), 0)
    assert theta.nbytes == 6 * 4


def test_the_residual_rule_begins_at_a_common_start_and_so_do_its_informed_opponents():
    start = CommonStartSettings(instances=6, steps=150)
    config = dataclasses.replace(
        TINY, rule="residual", problem=dataclasses.replace(TINY.problem, start=start)
    )
    experiment = paper.build(config)
    thetas = TestSet.draw(experiment.problem, 6, 0).thetas
    with jax.enable_x64(False):
        rule = experiment.rule(0)
        assert experiment.informed is not None and experiment.teacher is None
        informed = experiment.informed(rule)
        assert set(informed) == {"Adam, common start", "L-BFGS, common start"}
        adam = rollouts(Adam(0.01), experiment.problem, thetas, 3, 6).losses
        same = rollouts(informed["Adam, common start"], experiment.problem, thetas, 3, 6).losses
        mine = rollouts(rule, experiment.problem, thetas, 3, 6).losses
    assert np.all(mine[:, 0] < adam[:, 0] / 100)
    # Untrained, the rule is Adam from there (and returns its best point).
    np.testing.assert_allclose(mine[:, 1:], np.minimum.accumulate(same, axis=1)[:, 1:], rtol=1e-4)
