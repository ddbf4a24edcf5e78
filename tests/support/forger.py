"""Somebody who has read the code and wants to cheat: everything that can be recomputed is.

Checksums, mirrored copies, the certificate, the solver's file and the charges are written as an
honest run would write them for what was invented.
"""

import dataclasses
import json
import shutil
from typing import Any

import numpy as np

from support.tiny import EXPERIMENT, PROBLEM
from surestep.base.progress import Silence
from surestep.certify.evidence import Evidence
from surestep.certify.plan import Plan
from surestep.certify.planning import pilot_run, plan_run
from surestep.certify.posterior import Certified, find_posterior
from surestep.certify.statements import issue
from surestep.paper import read_config
from surestep.problem.datasets import SealedSplit, TrainSet
from surestep.run.afterwards import familiar_with
from surestep.run.begun import probes_of
from surestep.run.charges import OWN, Charge, read_charges
from surestep.run.config import RunConfig
from surestep.run.delivered import solver_of
from surestep.run.stored import read_plan
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder
from surestep.train.sample import Sampled


@dataclasses.dataclass
class Forger:
    """A run's parts, to be changed and written back."""

    run: RunFolder
    config: RunConfig[Any]
    prior: Sampled
    plan: Plan
    evidence: Evidence
    train: TrainSet
    """The instances that were seen."""

    @classmethod
    def of(cls, run: RunFolder) -> "Forger":
        config, plan = read_config(run), read_plan(run.plan_path)
        sealed = SealedSplit.draw(PROBLEM, config.sizes, config.seed)
        train = sealed.train.open(config.commitment(plan.sha256))
        evidence = run.load("certify", Certified).evidence
        return cls(run, config, run.load("sample", Sampled), plan, evidence, train)

    @property
    def sealed(self) -> SealedSplit:
        return SealedSplit.draw(PROBLEM, self.config.sizes, self.config.seed)

    @property
    def deployed(self) -> int:
        return find_posterior(self.plan, self.prior, self.evidence).deployed_sample

    def replan(self) -> None:
        """The plan that configuration and prior give now."""
        config, size = self.config, self.config.sizes.train
        task, rule = config.task(EXPERIMENT), EXPERIMENT.rule(config.seed)
        settings, prior_set = config.certify, self.sealed.prior
        pilot = pilot_run(settings, task, EXPERIMENT, rule, self.prior, prior_set, size)
        self.plan = plan_run(settings, task, EXPERIMENT, self.prior, pilot, size)

    def observed(self, **tables: np.ndarray) -> None:
        self.evidence = dataclasses.replace(self.evidence, **tables)

    def pretend_train_set(self, train: TrainSet) -> None:
        """As if this had been what the plan opens."""
        commitment = self.config.commitment(self.plan.sha256)
        self.train = dataclasses.replace(train, seed=self.config.seed, commitment=commitment)

    def write(self) -> None:
        """Everything as an honest run would leave it; the report goes, nobody misses it."""
        run, config = self.run, self.config
        found = find_posterior(self.plan, self.prior, self.evidence)
        rule = EXPERIMENT.rule_at(config.seed, self.prior.hypers[found.deployed_sample])
        sealed, task = self.sealed, config.task(EXPERIMENT)
        document = issue(config.name, self.plan, rule, found, self.prior, sealed, self.train)
        run.save("sample", self.prior)
        run.save("certify", found)
        run.kept(run.config_path).write(to_json(config))
        run.kept(run.plan_path).write(to_json(self.plan))
        run.kept(run.certificate_path).write(to_json(document))
        probes = probes_of(PROBLEM, sealed)
        familiar = familiar_with(task, sealed.prior, self.train, Silence())
        solver = solver_of(task, rule, document, self.prior, found, probes, familiar)
        solver.save(run.solver_path)
        own = Charge(OWN, self.plan.epsilon, self.train.hashes, config.seed)
        charges = [own, *read_charges(run)[1:]]
        run.kept(run.charges_path).write(to_json({"charges": charges}))
        shutil.rmtree(run.figures, ignore_errors=True)
        (run.path / "report.html").unlink(missing_ok=True)


def edit(path, change) -> None:
    """Change a JSON file by hand: its copy stays."""
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(json.dumps(plain))


def rewrite(run: RunFolder, path, change) -> None:
    """Change a JSON file with its checksum and its copy."""
    plain = json.loads(path.read_text())
    change(plain)
    run.kept(path).write(to_json(plain))
