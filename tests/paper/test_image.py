"""Deblurring: the loss, its constants and its instances against independent references."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import ndimage, optimize, sparse
from scipy.sparse.linalg import eigsh
from skimage.metrics import peak_signal_noise_ratio

from surestep import paper
from surestep.base.errors import ConfigurationError
from surestep.base.keys import named_key
from surestep.cli.main import main
from surestep.evaluate.evaluated import Evaluated
from surestep.paper import deblurring, image, photographs
from surestep.paper.deblurring import (
    Blurred,
    Deblurring,
    ImageSettings,
    peak_signal_to_noise,
)
from surestep.paper.photographs import Photographs
from surestep.problem.draw import draw, working_precision
from surestep.problem.goal import Goal
from surestep.problem.oracle import Oracle
from surestep.rollout.batched import losses_at
from surestep.rollout.loop import rollout
from surestep.rules import LBFGS, Nesterov, NesterovPerInstance, PrimalDual
from surestep.rules.base import require_fit
from surestep.storage.run_folder import RunFolder

KERNEL = (
    np.array(
        [
            [1, 4, 7, 4, 1],
            [4, 16, 26, 16, 4],
            [7, 26, 41, 26, 7],
            [4, 16, 26, 16, 4],
            [1, 4, 7, 4, 1],
        ]
    )
    / 273
)
DOWN = np.array([[0, 0, 0], [0, -1, 0], [0, 1, 0]])
RIGHT = np.array([[0, 0, 0], [0, -1, 1], [0, 0, 0]])

# SciPy's "mirror" is the reflection that does not repeat the edge.
correlate = functools.partial(ndimage.correlate, mode="mirror")

HEIGHT, WIDTH = 9, 7
SMALL = ImageSettings(height=HEIGHT, width=WIDTH, shorter_side=20)
# Two pictures whose grey values say where they come from.
POOL = Photographs(
    "made for a test",
    ("low", "high"),
    (
        np.arange(100, dtype=np.uint8).reshape(10, 10),
        (100 + np.arange(12 * 9) % 156).astype(np.uint8).reshape(12, 9),
    ),
)
PROBLEM = Deblurring.create(SMALL, POOL)


def an_instance(seed=0, weight=0.3):
    random = np.random.default_rng(seed)
    observed, original, x = random.uniform(size=(3, HEIGHT, WIDTH))
    return Blurred(jnp.asarray(observed), jnp.asarray(weight), jnp.asarray(original)), x


def reference_loss(x, theta):
    residual = correlate(x, KERNEL) - np.asarray(theta.observed)
    down, right = correlate(x, DOWN), correlate(x, RIGHT)
    variation = np.sum(np.sqrt(down**2 + right**2 + 0.01**2))
    return 0.5 * np.sum(residual**2) + float(theta.weight) * variation


@pytest.mark.parametrize("shape", [(9, 7), (3, 3), (20, 31)])
def test_blur_and_differences_are_the_papers_convolutions(shape):
    x = np.random.default_rng(1).normal(size=shape)
    np.testing.assert_allclose(deblurring.blur(jnp.asarray(x)), correlate(x, KERNEL), atol=1e-12)
    down, right = deblurring.differences(jnp.asarray(x))
    np.testing.assert_allclose(down, correlate(x, DOWN), atol=1e-12)
    np.testing.assert_allclose(right, correlate(x, RIGHT), atol=1e-12)


def test_the_loss_is_that_of_the_paper():
    theta, x = an_instance()
    assert PROBLEM.loss(jnp.asarray(x), theta) == pytest.approx(reference_loss(x, theta), rel=1e-12)
    np.testing.assert_array_equal(PROBLEM.start(theta), np.zeros((HEIGHT, WIDTH)))


def test_the_gradient_is_the_losses_slope():
    theta, x = an_instance()
    oracle = Oracle(PROBLEM, theta)
    gradient = np.asarray(oracle.value_and_gradient(jnp.asarray(x.ravel()))[1])
    for place in range(HEIGHT * WIDTH):
        nudge = np.zeros(HEIGHT * WIDTH)
        nudge[place] = 1e-6
        nudge = nudge.reshape(HEIGHT, WIDTH)
        slope = (reference_loss(x + nudge, theta) - reference_loss(x - nudge, theta)) / 2e-6
        assert gradient[place] == pytest.approx(slope, abs=1e-6)


def test_nothing_that_rules_see_looks_at_the_original():
    theta, x = an_instance()
    other = theta._replace(original=1 - theta.original)
    assert PROBLEM.loss(jnp.asarray(x), theta) == PROBLEM.loss(jnp.asarray(x), other)
    np.testing.assert_array_equal(PROBLEM.start(theta), PROBLEM.start(other))
    assert PROBLEM.smoothness(theta) == PROBLEM.smoothness(other)


def matrix_of(kernel):
    columns = []
    for place in range(HEIGHT * WIDTH):
        basis = np.zeros(HEIGHT * WIDTH)
        basis[place] = 1
        columns.append(correlate(basis.reshape(HEIGHT, WIDTH), kernel).ravel())
    return sparse.csr_matrix(np.stack(columns, axis=1))


def exact_smoothness(weight):
    blur, down, right = matrix_of(KERNEL), matrix_of(DOWN), matrix_of(RIGHT)
    whole = blur.T @ blur + weight / 0.01 * (down.T @ down + right.T @ right)
    return float(eigsh(whole, k=1, which="LA", return_eigenvectors=False)[0])


def test_the_smoothness_is_a_sparse_eigenvalue_solvers():
    assert PROBLEM.curvature == pytest.approx(exact_smoothness(0.5), rel=1e-9)
    assert PROBLEM.blur_curvature == pytest.approx(exact_smoothness(0.0), rel=1e-6)
    for weight in (0.0, 0.05, 0.2, 0.5, 0.9):
        theta, _ = an_instance(weight=weight)
        exact = exact_smoothness(weight)
        assert exact * (1 - 1e-6) <= float(PROBLEM.smoothness(theta)) <= 1.025 * exact


def test_nesterov_with_its_own_step_is_nesterov_with_that_step():
    theta, _ = an_instance(weight=0.1)
    own = rollout(NesterovPerInstance(), PROBLEM, theta, 20).losses
    same = rollout(Nesterov(1 / float(PROBLEM.smoothness(theta))), PROBLEM, theta, 20).losses
    worst = rollout(Nesterov(1 / PROBLEM.curvature), PROBLEM, theta, 20).losses
    np.testing.assert_allclose(own, same, rtol=1e-12)
    assert own[-1] < 0.99 * worst[-1]


def test_a_problem_that_does_not_know_its_smoothness_is_refused():
    quadratics = paper.build(paper.preset("quadratics", "tiny")).problem
    with pytest.raises(ConfigurationError, match=r"NesterovPerInstance .* needs .*`smoothness`"):
        require_fit(NesterovPerInstance(), quadratics)
    require_fit(NesterovPerInstance(), PROBLEM)


def test_the_two_parts_make_the_loss():
    theta, x = an_instance()
    down, right = PROBLEM.transform(jnp.asarray(x))
    rough = float(theta.weight) * np.sum(np.sqrt(down**2 + right**2 + 0.01**2))
    whole = PROBLEM.fidelity(jnp.asarray(x), theta) + rough
    assert PROBLEM.loss(jnp.asarray(x), theta) == pytest.approx(float(whole), rel=1e-12)


@pytest.mark.parametrize("weight", [0.005, 0.1, 1.7])
def test_shrunk_lengths_are_minimisers(weight):
    lengths = np.geomspace(1e-4, 10, 40)

    def slope(r, length):
        return r + weight * r / np.sqrt(r**2 + 0.01**2) - length

    expected: Any = [optimize.brentq(slope, 0, s, args=(s,), xtol=1e-15) for s in lengths]
    found = deblurring.shrink(jnp.asarray(lengths), jnp.asarray(weight), 0.01)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_the_dual_proximal_map_is_a_minimiser():
    """The conjugate of `w sqrt(r^2 + e^2)` is `-e sqrt(w^2 - r^2)` up to the length `w`."""
    theta, step = an_instance(weight=0.3)[0], 2.0
    y = np.random.default_rng(2).normal(size=(2, HEIGHT, WIDTH))
    y[:, 0, 0] = 0.0
    found = np.stack(PROBLEM.dual_prox((y[0], y[1]), jnp.asarray(step), theta))
    for row, column in ((0, 0), (0, 1), (4, 4), (8, 6)):
        point, value = y[:, row, column], found[:, row, column]
        size = np.linalg.norm(point)

        def objective(length, size=size):
            inner = -0.01 * np.sqrt(max(0.3**2 - length**2, 0))
            return inner + (length - size) ** 2 / (2 * step)

        options: Any = {"bounds": (0, 0.3), "options": {"xatol": 1e-12}}
        least: Any = optimize.minimize_scalar(objective, **options)
        assert np.linalg.norm(value) == pytest.approx(least.x, abs=1e-5)
        assert value @ point == pytest.approx(np.linalg.norm(value) * size)
    assert np.all(found[:, 0, 0] == 0)


@pytest.mark.parametrize("dual_step", [0.1, 0.3, 3.0, 100.0])
def test_primal_steps_are_as_small_as_convergence_asks_and_hardly_smaller(dual_step):
    basis = np.eye(HEIGHT * WIDTH).reshape(-1, HEIGHT, WIDTH)
    steps = jax.vmap(lambda s: PROBLEM.primal_step(s, jnp.asarray(dual_step)))(jnp.asarray(basis))
    M = np.asarray(steps, np.float64).reshape(HEIGHT * WIDTH, -1)
    np.testing.assert_allclose(M, M.T, atol=1e-5)
    blur, down, right = (np.asarray(matrix_of(k).todense()) for k in (KERNEL, DOWN, RIGHT))
    needed = blur.T @ blur / 2 + dual_step * (down.T @ down + right.T @ right)
    root = np.linalg.cholesky(needed)
    used = np.linalg.eigvalsh(root.T @ M @ root)
    assert 0.9 < used[-1] <= 1 + 1e-4
    assert np.median(used) > 0.3


def test_primal_dual_ends_where_l_bfgs_ends():
    settings = ImageSettings(height=24, width=18, shorter_side=60)
    pool = photographs.load("", 24, 18, 60)
    problem = Deblurring.create(settings, pool)
    thetas = draw(problem, 4, named_key(0, "data"))
    with working_precision(problem):
        minima = np.asarray(losses_at(LBFGS(), problem, thetas, (400,), 4))[:, 0]
        for dual_step in (5.0, 20.0):
            rule = PrimalDual(dual_step)
            found = np.asarray(losses_at(rule, problem, thetas, (10, 1000), 4))
            np.testing.assert_allclose(found[:, 1], minima, rtol=3e-6)
        assert np.all(found[:, 0] < 1.02 * minima), "ten iterations come within two percent"


def test_the_multiplier_becomes_the_slope_of_the_variation():
    theta, _ = an_instance(weight=0.2)
    rule, oracle = PrimalDual(10.0), Oracle(PROBLEM, theta)
    state = rule.init(oracle, oracle.start)
    state = jax.lax.fori_loop(0, 3000, lambda _, s: rule.step(Oracle(PROBLEM, theta), s), state)
    down, right = PROBLEM.transform(state.x.reshape(HEIGHT, WIDTH))
    length = np.sqrt(down**2 + right**2 + 0.01**2)
    expected = 0.2 * np.concatenate([(down / length).ravel(), (right / length).ravel()])
    np.testing.assert_allclose(state.dual, expected, atol=1e-5)


def test_a_primal_dual_iteration_is_counted_as_one_gradient():
    theta, _ = an_instance()
    gradients = rollout(PrimalDual(1.0), PROBLEM, theta, 4).gradients
    np.testing.assert_array_equal(gradients, np.arange(5))
    quadratics = paper.build(paper.preset("quadratics", "tiny")).problem
    with pytest.raises(ConfigurationError, match=r"PrimalDual .* needs .* DualisedProblem"):
        require_fit(PrimalDual(1.0), quadratics)


def test_a_relocated_primal_dual_keeps_its_multiplier():
    theta, x = an_instance()
    rule, oracle = PrimalDual(1.0), Oracle(PROBLEM, theta)
    state = rule.step(oracle, rule.init(oracle, oracle.start))
    moved = rule.relocate(oracle, state, jnp.asarray(x.ravel()))
    assert rule.loss(oracle, moved) == pytest.approx(reference_loss(x, theta))
    np.testing.assert_array_equal(moved.dual, state.dual)


def test_crops_come_from_all_photographs_at_all_places_and_mirrored():
    thetas = draw(PROBLEM, 3000, named_key(0, "data"))
    assert thetas.original.dtype == thetas.observed.dtype == jnp.float32
    original = np.asarray(thetas.original, np.float64) * 255
    grey = original.round().astype(int)
    np.testing.assert_allclose(original, grey, atol=1e-3)
    seen = {}
    for crop in grey:
        found = [
            (name, top, left, mirrored)
            for name, picture in zip(POOL.names, POOL.pictures, strict=True)
            for top in range(picture.shape[0] - HEIGHT + 1)
            for left in range(picture.shape[1] - WIDTH + 1)
            for mirrored in (False, True)
            if np.array_equal(
                crop[:, ::-1] if mirrored else crop,
                picture[top : top + HEIGHT, left : left + WIDTH],
            )
        ]
        assert len(found) == 1
        seen[found[0]] = seen.get(found[0], 0) + 1
    # "low" has 2 x 4 places, "high" 4 x 3; each twice, mirrored or not.
    assert len(seen) == 2 * (2 * 4 + 4 * 3)
    counts = {name: [n for key, n in seen.items() if key[0] == name] for name in POOL.names}
    for numbers in counts.values():
        expected = 1500 / len(numbers)
        assert sum(numbers) == pytest.approx(1500, abs=5 * np.sqrt(750))
        assert np.abs(np.array(numbers) - expected).max() < 5 * np.sqrt(expected)


def test_noise_and_weight_follow_the_paper():
    # A grey photograph: neither blurring nor cropping changes it, and clipping hardly matters.
    grey = Photographs("", ("grey",), (np.full((20, 20), 128, np.uint8),))
    thetas = draw(Deblurring.create(SMALL, grey), 2000, named_key(0, "data"))
    noise = np.asarray(thetas.observed, np.float64) - 128 / 255
    assert noise.std() == pytest.approx(25 / 256, rel=0.01)
    assert abs(noise.mean()) < 5 * 25 / 256 / np.sqrt(noise.size)
    weight = np.asarray(thetas.weight)
    assert 0.05 <= weight.min() < 0.052 and 0.498 < weight.max() <= 0.5
    assert weight.mean() == pytest.approx(0.275, abs=5 * 0.45 / np.sqrt(12 * 2000))
    white = Photographs("", ("white",), (np.full((20, 20), 255, np.uint8),))
    observed = np.asarray(draw(Deblurring.create(SMALL, white), 50, named_key(0, "d")).observed)
    assert observed.max() == 1.0 and 0.4 < np.mean(observed == 1.0) < 0.6


def test_no_start_is_worse_than_the_bound_says():
    thetas = draw(PROBLEM, 50, named_key(0, "data"))
    bound = PROBLEM.largest_start_loss()
    white = thetas._replace(
        observed=jnp.ones_like(thetas.observed), weight=jnp.full_like(thetas.weight, 0.5)
    )
    losses = jax.vmap(lambda t: PROBLEM.loss(PROBLEM.start(t), t))
    assert np.all(np.asarray(losses(thetas)) < bound)
    np.testing.assert_allclose(losses(white), bound, rtol=1e-5)
    config = dataclasses.replace(image.TINY, goal=Goal(scale=0.5, exponent=1.0))
    experiment = image.build(config)
    largest = 16 * 12 * (0.5 + 0.5 * 0.01)
    assert experiment.goal_second_moment == pytest.approx((0.5 * largest) ** 2)


def test_the_measure_is_scikit_images():
    theta, x = an_instance()
    expected = peak_signal_noise_ratio(np.asarray(theta.original), x, data_range=1.0)
    assert peak_signal_to_noise(jnp.asarray(x), theta) == pytest.approx(expected, rel=1e-10)
    # Blacker than black is black.
    below = jnp.where(theta.original < 0.5, -5.0, theta.original)
    shown = jnp.where(theta.original < 0.5, 0.0, theta.original)
    assert peak_signal_to_noise(below, theta) == peak_signal_to_noise(shown, theta)
    assert np.isfinite(peak_signal_to_noise(theta.original, theta))


@pytest.mark.parametrize(
    "settings",
    [
        ImageSettings(height=2),
        ImageSettings(shorter_side=100),
        ImageSettings(weight=(0.5, 0.05)),
        ImageSettings(weight=(0.0, 0.5)),
        ImageSettings(rounding=0.0),
        ImageSettings(noise=-1.0),
    ],
)
def test_impossible_families_are_refused(settings):
    with pytest.raises(ConfigurationError, match=r"problem\."):
        Deblurring.create(settings, POOL)


def test_the_paper_preset_has_the_papers_numbers():
    paper, settings = image.PAPER, image.PAPER.problem
    assert (settings.height, settings.width) == (250, 187)
    assert settings.height * settings.width == 46_750
    assert (paper.goal.scale, paper.goal.exponent, paper.horizon) == (0.2, 1.0, 25)
    assert settings.accuracies == (10.0, 5.0, 1.0) and paper.evaluate.limit == 1000
    assert paper.locate.steps == 200_000 and paper.sample.samples == 100


def test_references_are_nesterovs_last_losses():
    experiment = image.build(image.TINY)
    thetas = draw(experiment.problem, 3, named_key(0, "data"))
    found = experiment.accuracies.references(thetas, 3)
    with working_precision(experiment.problem):
        one = jax.tree.map(lambda leaf: leaf[1], thetas)
        last = rollout(experiment.baselines["Nesterov"], experiment.problem, one, 50).losses[-1]
    assert found[1] == pytest.approx(float(last), rel=1e-5)
    assert experiment.accuracies.above == "Nesterov's loss after 50 iterations"


def test_the_tiny_preset_runs_from_the_command_line_with_ones_own_photographs(tmp_path, capfd):
    """One run: folder of one's own, certificate with its pool, pictures among the figures."""
    from PIL import Image  # noqa: PLC0415

    pool = photographs.load("", 16, 12, 40)
    (tmp_path / "mine").mkdir()
    for name, picture in zip(pool.names, pool.pictures, strict=True):
        Image.fromarray(picture).save(tmp_path / "mine" / f"{name}.png")
    folder = tmp_path / "run"
    command = ["run", "image", "--preset", "tiny", "--images", str(tmp_path / "mine")]
    assert main([*command, "--out", str(folder)]) == 0, capfd.readouterr().err
    output = capfd.readouterr().out
    assert f"12 photographs of the folder {tmp_path / 'mine'}" in output.replace("\n", " ")
    assert pool.sha256 in output
    assert str(folder / "figures" / "pictures.png") in output
    assert (folder / "figures" / "pictures.png").read_bytes()[1:4] == b"PNG"
    evaluation = RunFolder(folder).load("evaluate", Evaluated)
    assert evaluation.measured == ["PSNR in dB"]
    # The learned rule (first) is ahead of Nesterov after the horizon's 10 iterations.
    assert evaluation.losses[0, :, 10].mean() < 0.9 * evaluation.losses[1, :, 10].mean()
