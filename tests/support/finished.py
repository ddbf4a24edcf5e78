"""A folder as a run leaves it, of a prior that nobody had to learn."""

from support.tiny import CONFIG, EXPERIMENT, OPPONENTS, PROBLEM, RULE, TASK, planned, references
from surestep.certify.gather import certify
from surestep.certify.statements import issue
from surestep.problem.datasets import SealedSplit
from surestep.run.charges import OWN, charge
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder


def finished(prior, place):
    """The folder, and the train set of its certificate."""
    folder, sealed = RunFolder(place), SealedSplit.draw(PROBLEM, CONFIG.sizes, 0)
    plan = planned(prior, sealed.train)
    split = sealed.open(CONFIG.commitment(plan.sha256))
    found = certify(plan, TASK, RULE, prior, OPPONENTS, references(split.train), split.train)
    deployed = EXPERIMENT.rule_at(CONFIG.seed, prior.hypers[found.deployed_sample])
    document = issue("tiny", plan, deployed, found, prior, sealed, split.train)
    folder.save("sample", prior)
    folder.kept(folder.config_path).write(to_json(CONFIG))
    folder.kept(folder.plan_path).write(to_json(plan))
    folder.kept(folder.certificate_path).write(to_json(document))
    charge(folder, OWN, plan.epsilon, split.train)
    return folder, split.train
