"""Every rule keeps the fingerprint that version 0.1 gave it.

Certificates and plans name the rules they speak of by `solver_fingerprint`, and solver files store
a rule as its class name and its fields. Both are read by later versions. So a rule's class name,
its fields and their order may not change, nor which of them are static: a fingerprint that differs
here means that files of earlier versions would be refused.

The values were computed with version 0.1, from rules with fixed numbers: random weights may change
with JAX.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from surestep import rules
from surestep.rules.base import Rule, solver_fingerprint
from surestep.rules.blocks import ConvolutionChain, LinearChain, Perceptron
from surestep.solver.rule_data import pack, unpack


def numbers(*shape: int) -> Array:
    return jnp.asarray(np.arange(1, 1 + int(np.prod(shape))).reshape(shape) / 8, jnp.float64)


def chain(inputs: int, outputs: int) -> LinearChain:
    return LinearChain(((numbers(2, inputs),), (numbers(outputs, 2),)))


def perceptron(inputs: int, outputs: int) -> Perceptron:
    return Perceptron((numbers(2, inputs), numbers(outputs, 2)), (numbers(2), numbers(outputs)))


def one_of_every_class() -> dict[str, Rule]:
    heavy_ball = rules.HeavyBall(0.1, 0.9)
    coordinatewise = rules.Coordinatewise(chain(3, 1), chain(4, 1))
    found = [
        rules.ADMM(0.5, 1.5),
        rules.LBFGS(5, 10),
        rules.Adam(0.01),
        rules.Blended(chain(4, 7), chain(7, 1), numbers(2, 3), numbers(2, 3)),
        rules.ConjugateGradients(),
        rules.Convolutional(ConvolutionChain((numbers(3, 3, 3, 1),)), chain(2, 1), 4, 5),
        coordinatewise,
        rules.CosineQuasiNewton(numbers(8), numbers(), (8,)),
        rules.Fista(0.25),
        rules.FistaWithRestart(0.25),
        rules.GradientDescent(0.25),
        heavy_ball,
        rules.LearnedFista(numbers(4), numbers(4), 0.25),
        rules.LearnedPrimalDual(numbers(2, 4, 5), 0.5),
        rules.LearnedSplitting(numbers(4), numbers(4)),
        rules.MetricConjugateGradients(numbers(3)),
        rules.MetricQuasiNewton(numbers(3, 3), numbers()),
        rules.Nesterov(0.25),
        rules.NesterovPerInstance(),
        rules.Preconditioned(perceptron(5, 4), perceptron(6, 1), numbers(3), numbers(3)),
        rules.PreconditionedConjugateGradients(numbers(3)),
        rules.Predicted(heavy_ball, numbers(3), numbers(3, 2), jnp.asarray([0, 1], jnp.int32)),
        rules.PrimalDual(0.5),
        rules.Proximal(chain(12, 8), chain(8, 2), 0.25),
        rules.ProximalGradient(0.25),
        rules.QuasiNewton(),
        rules.Residual(heavy_ball, numbers(3), perceptron(5, 3)),
        rules.Safeguarded(coordinatewise, rules.GradientDescent(0.25)),
        rules.Scaled(heavy_ball, numbers(3)),
        rules.ScaledFista(numbers(3)),
        rules.Started(heavy_ball, numbers(3)),
        rules.Checked(coordinatewise, rules.GradientDescent(0.25), at=4, tolerance=0.5),
        rules.Newton(anew=False),
        rules.NewtonCG(4),
        rules.LearnedHeavyBall(numbers(3), numbers(3)),
        rules.Frozen(heavy_ball),
        rules.GaussNewton(),
        rules.BarzilaiBorwein(0.1, rules.Fixed(numbers(3))),
        rules.NetworkStart(
            heavy_ball,
            rules.Fixed(numbers(3)),
            rules.Fixed(numbers(3, 2)),
            rules.Fixed(numbers(4, 2)),
            rules.Fixed(numbers(4)),
            rules.Fixed(numbers(3, 4)),
        ),
        rules.SinglePrecisionQuasiNewton(numbers(3, 3), numbers()),
        rules.SharedADMM(rules.Fixed(numbers(3, 3)), numbers(3), numbers()),
        rules.FrontADMM(
            rules.Fixed(numbers(3, 2)),
            rules.Fixed(numbers(1, 2)),
            rules.Fixed(numbers(4)),
            numbers(3),
            numbers(),
            jnp.asarray([0, 1, 3, 4], jnp.int32),
            jnp.asarray([0, 1, 1, 2, 3], jnp.int32),
            rules.Fixed(numbers(5)),
        ),
        rules.ProgrammeADMM(
            numbers(2),
            numbers(3),
            (0, 2),
            (1,),
            (),
            rules.Fixed(numbers(3, 3)),
            rules.Fixed(numbers(3, 3)),
        ),
    ]
    return {type(rule).__name__: rule for rule in found}


PINNED = {
    "FrontADMM": (
        "565d36c9df217cbe97e4a290508376f17905c73f9892d345cd7a4936c8bb404d",
        "matrix quadratics curvature log_penalty relaxation first places scales newton guarded "
        "single penalty inverse pull push",
    ),
    "Checked": (
        "2168976a288b9ff48fd74772cf2e3428830b00c4fe37cc97e186f0ce0ae6bc34",
        "rule fallback at tolerance rescue step_size compared",
    ),
    "Frozen": ("12bda5c8f30d94061bae905eeb7bee3365cd51a885473d68041367471b2b187b", "rule"),
    "LearnedHeavyBall": (
        "4336965697fa3a70bd6c7cf6f272ca86a4ad281a0c335177ef1627596f31e29d",
        "log_steps momenta",
    ),
    "NewtonCG": (
        "c9c8be0c4a450dae4698507d40475dcfaefe4fef71ba80c082b51186d67ca508",
        "inner metric squares",
    ),
    "BarzilaiBorwein": (
        "7ff3175b2625acc5df3f358afc52087d3cc1e67dae22fa8e2608947c07c57190",
        "step_size metric longest",
    ),
    "NetworkStart": (
        "920be02af170062d32e03458bb38fcdeaf90a79aa318b6e30fce8c0c8058c607",
        "rule bias weights inner thresholds outer prox_step",
    ),
    "GaussNewton": ("274acb2e423b9f6926b14e20726f86af32ffec5accad6a4702ed5bed0516a004", "damping"),
    "SinglePrecisionQuasiNewton": (
        "41808ac7e67bd399cf56d4977fea3600f82b03815cd15ef2cdd7c9683b3d37c9",
        "root log_size first longest memory_size",
    ),
    "Newton": (
        "efdc9192c4d7da46cc3f39957275a6641aee333220d6b9f9f80bdcf008a4d1bb",
        "anew pairs",
    ),
    "SharedADMM": (
        "142e1b034e25c8e1d46c30167d61774bd682850e16329d201b9b478d2d5b4c50",
        "hessian log_penalty relaxation total single steps resolvent down up offset",
    ),
    "ADMM": (
        "bd0814ed1c350b74984f81f55e153605a5ddc79c6328ebd351a7e56776f373f5",
        "penalty relaxation",
    ),
    "LBFGS": (
        "99e784b2a10fa852b7d8d5c44b478f58bd787aa922ecbbcb0853d3ec4106665d",
        "memory_size line_search_steps",
    ),
    "Adam": (
        "75e012d25212ac8218bce5b730b5d8da8249464cb8e485e81f96dc0fbefce13a",
        "learning_rate decay_mean decay_square epsilon",
    ),
    "Blended": (
        "81341f345cbe1ae4fab8e8f1adbdd35a4b413edae49190267e76cd5086929c4f",
        "weights direction gradient_scales momentum_scales near_end",
    ),
    "ConjugateGradients": (
        "ea9f461272f32d930cf08f66534710710a824cd2a3bbf280206e59d9b185214b",
        "",
    ),
    "Convolutional": (
        "e28cd9c363f3324f3d39be97934741a8244a726f0b3d1b0506c6467ed9ca1435",
        "direction scale height width",
    ),
    "Coordinatewise": (
        "e5f9d02cc74e327ca0869a3261a9bc5196df53881347aaf767d941cdb2e4213e",
        "direction scale",
    ),
    "CosineQuasiNewton": (
        "b2edf42d53676f3c722be929d5c66308cdbea723ea387a9a7e28a217aa00705a",
        "root log_size shape first longest memory_size",
    ),
    "Fista": (
        "5b639cf9972f56a4ee5ea06f1431836cc46d29e16fb0906a89bae48b41a09073",
        "step_size",
    ),
    "FistaWithRestart": (
        "26f291332924b0c8737671a848756de1c8bd9b31127ceb2e84577efb7f9c0c49",
        "step_size",
    ),
    "GradientDescent": (
        "c145040268d740d71d344ebb01d2134e99ddd5000776a62a16f78dcd781be51a",
        "step_size",
    ),
    "HeavyBall": (
        "994cf44f5894ffb90f1f212a198de1bd3c7984b2a8f4f06d05c1782c647f61de",
        "step_size momentum",
    ),
    "LearnedFista": (
        "dacc17c2c240db6fd44cb72ed70b8022009441e9c4b1628f8e4d1f498bc9ac60",
        "log_steps log_gains step_size",
    ),
    "LearnedPrimalDual": (
        "c809194b6266bd68e3ea7e268e00ac7ff81a897ef77822b5b7f1f313b6889ee9",
        "numbers dual_step",
    ),
    "LearnedSplitting": (
        "772a921a8b3587b567f74f56cb786770077db8476bb71a4bcc57240d212effc1",
        "log_penalties relaxations",
    ),
    "MetricConjugateGradients": (
        "566219b02d842533d9444c17b41484c51aa4f12d5fc007057dd4e3c1a30523ee",
        "log_metric",
    ),
    "MetricQuasiNewton": (
        "9a77583a70f829fe07e283cefd97c5f359f0ab16c1a4a8c3597f7383ccd2cace",
        "root log_size first longest memory_size",
    ),
    "Nesterov": (
        "68ab05e60097d3d61189dddf092be4afa40790b7fa06444819099233638a872e",
        "step_size",
    ),
    "NesterovPerInstance": (
        "eeb15faefbc132dde9348626e381e2078afd894f31c307ffc64c94f83ae6c738",
        "",
    ),
    "Preconditioned": (
        "165a59ba4e6ead99999ef42a27675f133183e9e44efeb70f40eca834032a08ab",
        "weighting direction gradient_scaling momentum_scaling loss_scale",
    ),
    "PreconditionedConjugateGradients": (
        "46b188e22977cf9d6a74520255a1c652220da81fe54337be3f5a6ebbe61bcae4",
        "metric",
    ),
    "Predicted": (
        "9cd0e3ddb29d83963104b61d220bd24f04a972695ffae8305988de279ab64eff",
        "rule bias weights exponents unit prox_step",
    ),
    "ProgrammeADMM": (
        "cb90e024fa3647d0641d705b4860fa5d1005a7f0d3d93889174fb95c40fe054e",
        "log_penalty relaxation split equal cones hessian matrix single matrices",
    ),
    "PrimalDual": (
        "ec424a0153f40023e38a1701fe39eef263837219dd5147b3130e2d13f9fa4730",
        "dual_step",
    ),
    "Proximal": (
        "1b59d7d2530d747232c33c83222e453d352da4dc3b5b10b70eaae1e7f17eb626",
        "weights corrections step_size loss_changes third_norm first_acts_on gradient_of",
    ),
    "ProximalGradient": (
        "29b71a7efd777caed957b4f61a43c250c7c2cad632112cc1c0df6c1d58774280",
        "step_size",
    ),
    "QuasiNewton": (
        "daca4e5de320d63a5c08e0b180d52042e90b18c5da41302d3d1b264fa57bf157",
        "first longest memory_size",
    ),
    "Residual": (
        "545248c2f6584599c31e67887acd40089e42f0e62843ad06ca9574a8230ba476",
        "base log_gains gate",
    ),
    "Safeguarded": (
        "2a3846e58ae4cab6538fb115e5b5199fc9292cd2f2758d7ea0cfe67c3b85c0be",
        "rule fallback factor patience decrease",
    ),
    "Scaled": (
        "d6d130afccf208ee5005bb5a308e0a77ea6c4eb51210647f873813c38e1decd5",
        "rule log_scales",
    ),
    "ScaledFista": (
        "68caefb72a8ec2421494b567c0d4d658b19daec9d1d8d2fb75d7efe58763c65f",
        "step_sizes",
    ),
    "Started": (
        "e2286eb5a677693108c49e8bf3aa5c0a659c3b82e51653d634e65cd21c024887",
        "rule shift",
    ),
}
"""The fingerprint and the fields of every rule, as they were in version 0.1."""


def test_every_rule_is_pinned():
    assert set(PINNED) == set(rules.__all__) - {"SafeguardSettings", "Fixed"}


@pytest.mark.parametrize("name", PINNED)
def test_a_rule_keeps_its_fingerprint_and_its_fields(name):
    rule, (fingerprint, fields) = one_of_every_class()[name], PINNED[name]
    assert solver_fingerprint(rule) == fingerprint
    assert [field.name for field in dataclasses.fields(rule)] == fields.split()


@pytest.mark.parametrize("name", PINNED)
def test_a_rule_is_read_back_from_the_data_of_a_solver_file(name):
    packed = pack(one_of_every_class()[name])
    assert set(packed.data["rule"]["fields"]) == set(PINNED[name][1].split())
    read = unpack(packed.data, packed.arrays, "a file")
    assert solver_fingerprint(read) == PINNED[name][0]
