"""Whatever is changed in a run's folder is found, by the command that the documentation names.

Each case tampers with a copy of one finished run. Cases that are marked as nasty are by somebody
who has read the code: whatever can be recomputed is made to fit. `docs/safety.md` prints the table.
"""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from support.forger import Forger, edit, rewrite
from support.session import ALL
from support.shared import small_run
from support.tiny import EXPERIMENT, PROBLEM, SMALL, changed, sealed
from surestep.base.errors import SurestepError
from surestep.certify.certificate import Certificate
from surestep.certify.gather import certify
from surestep.certify.planning import references_for
from surestep.certify.posterior import Certified
from surestep.cli.verify import Arguments, checks_for
from surestep.evaluate.test_set import Evaluated
from surestep.paper import build, read_config
from surestep.problem.datasets import TrainSet
from surestep.report import write_report
from surestep.report.draw import save_data
from surestep.report.files import run_figures
from surestep.report.page import write_page
from surestep.rules.base import hyper_of, solver_fingerprint, with_hyper
from surestep.run.charges import read_charges
from surestep.run.fresh import certify_again
from surestep.run.stored import read_learned
from surestep.solver.file import read_solver
from surestep.solver.solver import Solver
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder
from surestep.train.sample import Sampled, weighed_risks

TABLE = Path(__file__).parents[2] / "docs" / "safety.md"
VERIFY, RERUN, RETRAIN = "verify", "verify --rerun 2", "verify --retrain"


@dataclasses.dataclass(frozen=True)
class Case:
    """Something that is changed, and how it is found."""

    what: str
    tamper: Callable[[RunFolder], object]
    says: str
    """The beginning of the check that fails, or what the error says."""
    command: str = VERIFY
    nasty: bool = False
    quick: bool = False


CASES: list[Case] = []


def case(what, says, command=VERIFY, nasty=False, quick=False):
    """Enter a function into the table."""

    def enter(tamper):
        CASES.append(Case(what, tamper, says, command, nasty, quick))
        return tamper

    return enter


def by_hand(what, name, change, says, quick=False):
    """Enter a change of a JSON file that people see."""
    CASES.append(Case(what, lambda run: edit(run.path / name, change), says, quick=quick))


def last_digit(value):
    return float(np.nextafter(value, 10.0))


def first(plain):
    return plain["statements"][0]


# --- the certificate -------------------------------------------------------------------------

for what, change, says in (
    ("the last digit of a statement's number",
     lambda p: first(p).update(value=last_digit(first(p)["value"])), "statement: missing the goal"),
    ("the number for the posterior",
     lambda p: first(p).update(posterior_value=0.0), "statement: missing the goal"),
    ("a statement's sentence",
     lambda p: first(p).update(sentence="It never fails."), "statement: missing the goal"),
    ("a number in a statement's details",
     lambda p: p["statements"][1]["details"]["above"][0].__setitem__(0, 0.0),
     "statement: losses over iterations"),
    ("an assumption, left out", lambda p: first(p)["assumptions"].pop(), "statement: missing"),
    ("a statement, left out", lambda p: p["statements"].pop(0), "statement: missing the goal"),
    ("a statement, added",
     lambda p: p["statements"].append(first(p) | {"name": "always right"}),
     "statement: always right"),
    ("an estimate, said to be a guarantee",
     lambda p: p["statements"][-1].update(estimates=[]), "statement: paper"),
    ("epsilon", lambda p: p.update(epsilon=0.01), "epsilon"),
    ("the ledger", lambda p: p["ledger"][0].update(epsilon=1e-9), "the ledger"),
    ("the horizon", lambda p: p.update(horizon=5), "the horizon"),
    ("the goal", lambda p: p["subject"]["goal"].update(scale=1e-6), "the goal, the family's"),
    ("the family's parameters", lambda p: p["subject"]["family"].update(dimension=10_000),
     "the goal, the family's"),
    ("the number of train instances", lambda p: p["sizes"].update(train=6400), "the sizes"),
    ("the hash of the train set", lambda p: p["data_sha256"].update(train="0" * 64), "the data"),
    ("the hash of the rule", lambda p: p.update(solver_sha256="0" * 64), "the deployed rule's"),
    ("the hash of the posterior", lambda p: p.update(posterior_sha256="0" * 64), "the posterior"),
    ("a verifier's word that nobody gave",
     lambda p: p["opened"]["commitment"].update(word="trust me"), "what opened the train set"),
):  # fmt: skip
    by_hand(f"certificate: {what}", "certificate.json", change, says, quick=what == "the goal")


@case("certificate: its hidden copy", "files of facts and their copies")
def hidden_copy(run):
    copy = run.kept(run.certificate_path).copy
    copy.write_bytes(copy.read_bytes().replace(b'"epsilon": 0.05', b'"epsilon": 0.01'))


# --- the plan and the configuration ----------------------------------------------------------

for what, change in (
    ("a claim's share of epsilon", lambda p: p["shares"][0].update(epsilon=0.9)),
    ("where losses are clipped",
     lambda p: next(c for c in p["claims"] if "largest" in c).update(largest=1.0)),
    ("the bet on the best sample", lambda p: p.update(log_prior=[0.0, -800.0, -800.0])),
    ("the prior's hash", lambda p: p["subject"].update(prior_sha256="0" * 64)),
):  # fmt: skip
    by_hand(f"plan: {what}", "plan.json", change, "the plan, and its budget")

by_hand("configuration: the goal, changed by hand", "config.json",
        lambda p: p["goal"].update(scale=2.0), "files of facts and their copies")  # fmt: skip


@case("configuration: another seed, with its copy", "the goal on every prior instance")
def another_seed(run):
    rewrite(run, run.config_path, lambda p: p.update(seed=1))


@case("configuration: a word, written in afterwards with its copy", "what opened the train set")
def late_word(run):
    rewrite(run, run.config_path, lambda p: p.update(word="afterwards"))


# --- the prior's samples ---------------------------------------------------------------------


def prior_with(run, **changes):
    run.save("sample", changed(run.load("sample", Sampled), **changes))


@case("prior: losses on the prior set", "losses of all 3 samples", quick=True)
def prior_losses(run):
    losses = run.load("sample", Sampled).prior_losses.copy()
    losses[1] *= 1 - 1e-12
    prior_with(run, prior_losses=losses)


@case("prior: goals on the prior set", "the goal on every prior instance")
def prior_goals(run):
    prior_with(run, prior_thresholds=run.load("sample", Sampled).prior_thresholds * 2)


@case("prior: a sample's weights", "losses of all 3 samples on the prior set")
def prior_hypers(run):
    hypers = run.load("sample", Sampled).hypers.copy()
    hypers[1] *= 1.01
    prior_with(run, hypers=hypers)


@case("prior: samples of another rule", "holds samples of")
def prior_of_another_rule(run):
    prior_with(run, hypers=run.load("sample", Sampled).hypers[:, :-1])


@case("prior: weights of samples", "the prior's weights")
def prior_weights(run):
    prior_with(run, log_prior=np.log([0.98, 0.01, 0.01]))


# --- the evidence ----------------------------------------------------------------------------


def evidence_with(run, **changes):
    found = run.load("certify", Certified)
    run.save("certify", changed(found, evidence=changed(found.evidence, **changes)))


@case("evidence: losses, with the file's checksum", "the evidence (train losses)")
def train_losses(run):
    evidence_with(run, losses=run.load("certify", Certified).evidence.losses / 2)


@case("evidence: goals on the train set", "the goal on every train instance")
def train_goals(run):
    evidence_with(run, thresholds=run.load("certify", Certified).evidence.thresholds * 2)


@case("evidence: a loss that is no number", "the evidence belongs to the plan")
def no_number(run):
    losses = run.load("certify", Certified).evidence.losses.copy()
    losses[0, 0, 0] = np.nan
    evidence_with(run, losses=losses)


@case("evidence: weights of the posterior", "posterior, deployed rule")
def posterior_weights(run):
    found = run.load("certify", Certified)
    run.save("certify", changed(found, log_posterior=found.log_posterior[::-1].copy()))


@case("evidence: another deployed sample", "posterior, deployed rule")
def other_deployed(run):
    found = run.load("certify", Certified)
    run.save("certify", changed(found, deployed_sample=(found.deployed_sample + 1) % 3))


@case("evidence: a deployed sample that there is not", "names the sample 7, and the prior has 3")
def no_such_sample(run):
    found = run.load("certify", Certified)
    run.save("certify", changed(found, deployed_sample=7))


@case("evidence: a flipped bit", "certify.safetensors is damaged", quick=True)
def flipped_evidence(run):
    flip(run.path / "certify.safetensors")


# --- the solver's file -----------------------------------------------------------------------


def flip(path):
    content = bytearray(path.read_bytes())
    content[-9] ^= 16
    path.write_bytes(content)


def solver_with(run, **changes):
    """The solver's file with changes, saved as the library saves it."""
    stored = vars(read_solver(run.solver_path, PROBLEM))
    Solver(PROBLEM, **(stored | changes)).save(run.solver_path)


@case("solver: a flipped bit", "the solver's file can be used")
def flipped_solver(run):
    flip(run.solver_path)


@case("solver: the file is missing", "the solver's file can be used")
def missing_solver(run):
    run.solver_path.unlink()


@case("solver: another goal", "the solver's file: horizon, goal", quick=True)
def solver_goal(run):
    solver_with(run, goal=changed(SMALL.goal, scale=1e9))


@case("solver: its certificate says more", "the solver's file: the certificate in it")
def solver_certificate(run):
    document = Certificate.load(run.certificate_path)
    solver_with(run, certificate=changed(document, epsilon=1e-9))


@case("solver: weights of its posterior", "the solver's file: the posterior")
def solver_posterior(run):
    posterior = read_solver(run.solver_path, PROBLEM).posterior
    assert posterior is not None
    solver_with(run, posterior=changed(posterior, log_weights=np.log([0.5, 0.25, 0.25])))


@case("solver: the instances that it knows its problem by", "the solver's file: the instances")
def solver_probes(run):
    probes = read_solver(run.solver_path, PROBLEM).probes
    solver_with(run, probes=jax.tree.map(lambda leaf: leaf[::-1], probes))


def zeros(run):
    """The rule with weights of 0, and a posterior that holds it."""
    stored = read_solver(run.solver_path, PROBLEM)
    rule = with_hyper(stored.rule, 0 * hyper_of(stored.rule))
    assert stored.posterior is not None
    return rule, changed(stored.posterior, hypers=0 * stored.posterior.hypers)


@case("solver: a rule with weights of 0 and a certificate that names it",
      "the solver's file: the rule", nasty=True)  # fmt: skip
def solver_of_zeros(run):
    rule, posterior = zeros(run)
    document = Certificate.load(run.certificate_path)
    forged = changed(document, solver_sha256=solver_fingerprint(rule))
    solver_with(run, rule=rule, posterior=posterior, certificate=forged)


@case("solver: the same, and the run's certificate names it too", "the deployed rule's weights",
      nasty=True)  # fmt: skip
def everything_of_zeros(run):
    rule, posterior = zeros(run)
    forged = changed(Certificate.load(run.certificate_path), solver_sha256=solver_fingerprint(rule))
    run.kept(run.certificate_path).write(to_json(forged))
    solver_with(run, rule=rule, posterior=posterior, certificate=forged)


# --- charges and later certificates ----------------------------------------------------------


def charges_with(run, change):
    rewrite(run, run.charges_path, lambda plain: change(plain["charges"]))


@case("charges: what the run's own certificate cost", "the run's own certificate was charged")
def cheaper(run):
    charges_with(run, lambda charges: charges[0].update(epsilon=0.01))


@case("charges: a later certificate, left out", "certificate 2")
def uncharged(run):
    charges_with(run, lambda charges: charges.pop())


@case("later certificate: the joint confidence", "certificate 2: the certificates before it")
def joint(run):
    path = run.path / "certificates" / "2" / "certificate.json"
    rewrite(run, path, lambda plain: plain["standing"].update(joint_epsilon=0.05))


@case("later certificate: another seed, in charge and certificate",
      "certificate 2: the data sets")  # fmt: skip
def later_seed(run):
    charges_with(run, lambda charges: charges[2].update(seed=99))
    path = run.path / "certificates" / "2" / "certificate.json"
    rewrite(run, path, lambda plain: plain["opened"].update(seed=99))


@case("later certificate: the first one goes, the second takes its place and number",
      "certificate 1: its instances are those it was charged for", nasty=True)  # fmt: skip
def renumbered(run):
    place = run.path / "certificates"
    shutil.rmtree(place / "1")
    (place / "2").rename(place / "1")
    own, _, second = read_charges(run)
    charges = [own, changed(second, certificate="1")]
    run.kept(run.charges_path).write(to_json({"charges": charges}))
    folder = place / "1"
    rewrite(run, folder / "plan.json", lambda plain: plain["subject"].update(number=1))
    rewrite(run, folder / "certificate.json", lambda plain: plain["subject"].update(number=1))


# --- the report ------------------------------------------------------------------------------


@case("report: a number on the page", "the report and its figures", quick=True)
def number_on_the_page(run):
    path = run.path / "report.html"
    text = path.read_text()
    assert "95%" in text
    path.write_text(text.replace("95%", "99%"))


@case("report: a number in a figure's data", "the report and its figures")
def figure_data(run):
    path = run.figures / "certified.json"
    path.write_text(path.read_text().replace("certified", "proved", 1))


@case("report: a picture", "the report and its figures", RERUN)
def a_picture(run):
    path = run.figures / "overview.png"
    path.write_bytes((run.figures / "profile.png").read_bytes())


@case("report: the test set's losses, and a report that shows them", "made again: evaluate",
      RETRAIN, nasty=True)  # fmt: skip
def losses_on_the_test_set(run):
    evaluated = run.load("evaluate", Evaluated)
    losses = evaluated.losses.copy()
    losses[0] /= 10
    run.save("evaluate", changed(evaluated, losses=losses))
    write_report(read_learned(read_config(run), EXPERIMENT, run), run)


# --- forgeries in which everything fits ------------------------------------------------------


@case("all losses of the deployed rule a fifth smaller", "the deployed rule on", RERUN, nasty=True,
      quick=True)  # fmt: skip
def better_losses(run):
    forger = Forger.of(run)
    losses = forger.evidence.losses.copy()
    losses[forger.deployed, :, 1:] *= 0.8
    forger.observed(losses=losses)
    forger.write()


@case("3 of 64 losses of the deployed rule a little smaller", "the deployed rule on", RERUN,
      nasty=True)  # fmt: skip
def three_losses(run):
    forger = Forger.of(run)
    losses = forger.evidence.losses.copy()
    worst = np.argsort(losses[forger.deployed, :, -1])[-3:]
    losses[forger.deployed, worst, 1:] *= 0.999
    forger.observed(losses=losses)
    forger.write()


@case("losses of a sample that is not deployed", "2 other samples rolled out again", RERUN,
      nasty=True)  # fmt: skip
def other_losses(run):
    forger = Forger.of(run)
    losses = forger.evidence.losses.copy()
    losses[(forger.deployed + 1) % 3, :5, 1:] *= 0.99
    forger.observed(losses=losses)
    forger.write()


@case("the opponent's losses, larger", "the opponent heavy ball on", RERUN, nasty=True)
def worse_opponent(run):
    forger = Forger.of(run)
    forger.observed(opponent_losses=forger.evidence.opponent_losses * 1.01)
    forger.write()


@case("when targets were reached, sooner", "the deployed rule on", RERUN, nasty=True)
def sooner(run):
    forger = Forger.of(run)
    reach = forger.evidence.reach.copy()
    reach[forger.deployed] = np.where(np.isinf(reach[forger.deployed]), 3.0, reach[forger.deployed])
    forger.observed(reach=reach)
    forger.write()


@case("losses a fifth smaller, on a machine that is said to be of another kind",
      "the deployed rule on", nasty=True)  # fmt: skip
def better_elsewhere(run):
    better_losses(run)
    facts = json.loads((run.path / "status.json").read_text())["made_with"]["environments"]
    run.mark("made_with", environments=[{**facts[0], "jax": "0.0.1"}])


@case("bets, chosen after the train set was seen", "the goal on every train instance", nasty=True,
      quick=True)  # fmt: skip
def later_bets(run):
    forger = Forger.of(run)
    certify_settings = changed(forger.config.certify, stake=0.999)
    forger.config = changed(forger.config, certify=certify_settings)
    forger.replan()
    forger.pretend_train_set(forger.train)
    forger.write()


@case("the goal, chosen after the train set was seen", "the goal on every train instance",
      nasty=True)  # fmt: skip
def later_goal(run):
    forger = Forger.of(run)
    forger.config = changed(forger.config, goal=changed(forger.config.goal, scale=2.0))
    task = forger.config.task(EXPERIMENT)
    goals = task.thresholds(forger.sealed.prior)
    prior = changed(forger.prior, prior_thresholds=goals)
    forger.prior = _weighed(prior)
    forger.replan()
    forger.observed(thresholds=task.thresholds(forger.train))
    forger.pretend_train_set(forger.train)
    forger.write()


@case("shares of epsilon, chosen after the train set was seen", "the goal on every train instance",
      nasty=True)  # fmt: skip
def later_shares(run):
    forger = Forger.of(run)
    settings = changed(forger.config.certify, weights=((forger.plan.claims[0].kind, 100.0),))
    forger.config = changed(forger.config, certify=settings)
    forger.replan()
    forger.pretend_train_set(forger.train)
    forger.write()


@case("the worst quarter of the train set, left out", "the goal on every train instance",
      nasty=True)  # fmt: skip
def smaller_train_set(run):
    forger = Forger.of(run)
    kept = np.sort(np.argsort(forger.evidence.losses[forger.deployed, :, -1])[:48])
    sizes = changed(forger.config.sizes, train=48)
    forger.config = changed(forger.config, sizes=sizes)
    forger.replan()
    forger.evidence = forger.evidence.on(kept)
    thetas = jax.tree.map(lambda leaf: leaf[kept], forger.train.thetas)
    forger.pretend_train_set(TrainSet(thetas))
    forger.write()


@case("a train set of another seed, with all that was seen on it", "the goal on every train",
      nasty=True)  # fmt: skip
def chosen_train_set(run):
    forger = Forger.of(run)
    _honest_on(forger, sealed(64, 17).open(forger.config.commitment(forger.plan.sha256)))
    forger.pretend_train_set(forger.train)
    forger.write()


@case("losses on the prior set, so that another sample is bet on", "losses of all 3 samples",
      nasty=True)  # fmt: skip
def other_favourite(run):
    forger = Forger.of(run)
    losses = forger.prior.prior_losses.copy()
    losses[2] /= 1000
    forger.prior = _weighed(changed(forger.prior, prior_losses=losses))
    forger.replan()
    _honest_on(forger, forger.sealed.train.open(forger.config.commitment(forger.plan.sha256)))
    forger.write()


@case("how often samples succeeded on the validation set, all else honest", "made again: sample",
      RETRAIN, nasty=True)  # fmt: skip
def more_successes(run):
    forger = Forger.of(run)
    trials = forger.prior.trials
    constraint = forger.config.constraint
    estimates = [constraint.assess(int(n), int(n)).probability for n in trials]
    better = changed(
        forger.prior, successes=trials.copy(), trials=trials + 5, probabilities=np.array(estimates)
    )
    estimates = [
        constraint.assess(int(good), int(tried)).probability
        for good, tried in zip(better.successes, better.trials, strict=True)
    ]
    forger.prior = _weighed(changed(better, probabilities=np.array(estimates)))
    forger.replan()
    _honest_on(forger, forger.sealed.train.open(forger.config.commitment(forger.plan.sha256)))
    forger.write()


@case("samples that were trained otherwise, all else honest", "made again: sample", RETRAIN,
      nasty=True)  # fmt: skip
def other_training(run):
    forger = Forger.of(run)
    hypers = forger.prior.hypers * 1.0001
    task = forger.config.task(EXPERIMENT)
    rules = [EXPERIMENT.rule_at(forger.config.seed, hyper) for hyper in hypers]
    losses = np.stack([task.losses(rule, forger.sealed.prior)[:, 0] for rule in rules])
    forger.prior = _weighed(changed(forger.prior, hypers=hypers, prior_losses=losses))
    forger.replan()
    _honest_on(forger, forger.sealed.train.open(forger.config.commitment(forger.plan.sha256)))
    forger.write()


def _weighed(prior):
    """The weights that follow from what is said of the samples."""
    known = (prior.prior_losses, prior.prior_thresholds, prior.probabilities)
    risks = weighed_risks(*known, nonnegative=True)
    logs = -risks - np.logaddexp.reduce(-risks)
    return changed(prior, prior_risks=risks, log_prior=logs)


def _honest_on(forger, train):
    """What is really seen on a train set."""
    config, plan = forger.config, forger.plan
    task, rule = config.task(EXPERIMENT), EXPERIMENT.rule(config.seed)
    opponents = EXPERIMENT.chosen(plan.opponents)
    references = references_for(config.certify, EXPERIMENT, train)
    found = certify(plan, task, rule, forger.prior, opponents, references, train)
    forger.evidence, forger.train = found.evidence, train


# --- finding them ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished run with a report and two later certificates."""
    folder = small_run(tmp_path_factory.mktemp("tampering") / "run")
    config = read_config(folder)
    assert config == SMALL
    learned = read_learned(config, EXPERIMENT, folder)
    if ALL:
        write_report(learned, folder)
    else:
        # Pictures take long, and quick cases do not look at them.
        figures = run_figures(learned, folder)
        write_page(learned, folder, figures, {})
        for one in figures.values():
            save_data(one, folder.figures)
    for seed in (5, 6):
        certify_again(folder, config, EXPERIMENT, sealed(20, seed), 0.02)
    return folder


@functools.cache
def experiment_of(problem, family_seed):
    config = changed(SMALL, problem=problem, family_seed=family_seed)
    return EXPERIMENT if config == SMALL else build(config)


def found_by(command, run):
    """The checks that fail, or the error, when the command is given."""
    words = command.split()
    asked = int(words[words.index("--rerun") + 1]) if "--rerun" in words else 0
    given = Arguments(folder=run.path, rerun=asked, retrain="--retrain" in words)
    try:
        config = read_config(run)
        experiment = experiment_of(config.problem, config.family_seed)
        return [
            str(check).removeprefix("FAILS   ")
            for check in checks_for(run, config, experiment, given)
            if not check.stands
        ]
    except SurestepError as error:
        return [str(error)]


@pytest.fixture
def run(original, tmp_path):
    shutil.copytree(original.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def require_found(one, run):
    one.tamper(run)
    found = found_by(one.command, run)
    assert any(one.says in line for line in found), found


@pytest.mark.parametrize("one", [c for c in CASES if c.quick], ids=lambda c: c.tamper.__name__)
def test_what_is_changed_is_found(one, run):
    require_found(one, run)


@pytest.mark.slow
@pytest.mark.parametrize("one", CASES, ids=lambda c: c.what)
def test_every_change_in_the_table_is_found(one, run):
    require_found(one, run)


@pytest.mark.slow
@pytest.mark.parametrize("command", [VERIFY, RERUN, RETRAIN])
def test_a_run_that_nobody_has_touched_stands(command, run):
    assert found_by(command, run) == []


def test_verification_changes_nothing_in_the_folder(run):
    edit(run.certificate_path, lambda plain: first(plain).update(value=0.0))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert found_by(VERIFY, run) == found_by(VERIFY, run) != []
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_run_from_elsewhere_is_not_made_again(run):
    run.mark("made_with", environments=[{"device": "of another kind"}])
    assert "--retrain compares bits" in found_by(RETRAIN, run)[0]


def test_an_untouched_run_with_later_certificates_and_a_report_stands(run):
    assert found_by(VERIFY, run) == []


def table():
    """The table of the documentation."""
    rows = ["| what is changed | found by | what it says |", "| --- | --- | --- |"]
    for one in CASES:
        what = f"**{one.what}**" if one.nasty else one.what
        rows.append(f"| {what} | `surestep {one.command}` | {one.says} |")
    return "\n".join(rows)


def test_the_table_is_the_documentations():
    assert len(CASES) >= 40 and sum(one.nasty for one in CASES) >= 9
    assert len({one.what for one in CASES}) == len(CASES)
    assert table() in TABLE.read_text()


if __name__ == "__main__":  # PYTHONPATH=src:tests python -m house.test_tampering
    page = TABLE.read_text()
    begin = page.index("| what is changed |")
    end = page.index("\n\n", begin)
    TABLE.write_text(page[:begin] + table() + page[end:])
