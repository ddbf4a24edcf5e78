"""A run, from its configuration to its report: what `surestep run` and `surestep resume` share."""

import shlex
from pathlib import Path
from typing import Any, Literal

from surestep.cli.interruption import working_in
from surestep.cli.reporting import print_paths, reporter
from surestep.cli.workers import subject_of
from surestep.paper import registry
from surestep.problem import Commitment
from surestep.report import summary, write_report
from surestep.run.batch_size import settled
from surestep.run.config import RunConfig
from surestep.run.distributed import Leader
from surestep.run.learned import Learned
from surestep.run.pipeline import learn, plan_only
from surestep.storage.run_folder import RunFolder
from surestep.train import Experiment

Until = Literal["plan", "end"]
"""When a run stops: once its plan is fixed, or when everything is done."""


def learn_and_report(
    config: RunConfig[Any],
    folder: RunFolder,
    own_file: str = "",
    leader: Leader | None = None,
    until: Until = "end",
) -> None:
    """Learn, certify, evaluate and draw, and print the certificate and where everything is."""
    working_in(folder.path)
    config.validate()
    report = reporter()
    report.say(f"{config.name}, preset {config.preset}, seed {config.seed}, in {folder.path}")
    experiment = registry.build(config, own_file, folder)
    if until == "plan":
        _print_commitment(plan_only(config, experiment, folder, report), folder, own_file)
        return
    if leader is not None:
        # All processes go at the pace of this one.
        config = settled(config, experiment, folder, report)
        leader.introduce(subject_of(config, own_file=own_file, folder=folder))
    learned = learn(config, experiment, folder, report, leader)
    pictures = drawn(config, experiment, learned, folder)
    paths = write_report(learned, folder, pictures) | {"solver": folder.solver_path}
    print()
    print(learned.certificate)
    print()
    print(summary(learned))
    print()
    print_paths(paths)


def drawn(
    config: RunConfig[Any], experiment: Experiment, learned: Learned, folder: RunFolder
) -> dict[str, Path]:
    """The figures that the problem draws of itself, if there is an evaluation to draw."""
    if learned.evaluated is None:
        return {}
    return registry.draw(config, experiment, learned, folder.figures)


def _print_commitment(commitment: Commitment, folder: RunFolder, own_file: str) -> None:
    """What a verifier is told, and how the run goes on."""
    option = f" --problem {shlex.quote(own_file)}" if own_file else ""
    print("The plan is fixed, and nobody has seen the train set. Tell a verifier this hash:")
    print(f"  {commitment.told}")
    if commitment.word:
        print(f"The word {commitment.word!r} was given already. Go on with:")
        print(f"  surestep resume {folder.path}{option}")
    else:
        print("The word that you are told then decides about the train set, too. Go on with:")
        print(f"  surestep resume {folder.path}{option} --word WORD")
