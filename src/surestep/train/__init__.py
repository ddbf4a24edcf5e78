"""From the prior and validation sets to a prior: imitate, population, locate, sample.

What other rooms use is listed here.
"""

from surestep.train.common_start import CommonStartSettings
from surestep.train.constraint import Constraint, SuccessEstimate, estimate_success
from surestep.train.experiment import Accuracies, Experiment, External
from surestep.train.imitate import Imitated, ImitateSettings
from surestep.train.langevin import constrained_chain, langevin_move
from surestep.train.locate import Located, LocateSettings
from surestep.train.metric import coordinate_steps, safe_steps
from surestep.train.population import Chosen, PopulationSettings, choose
from surestep.train.sample import Sampled, SampleSettings, mean_square, weighed_risks
from surestep.train.steps import Restarts, enrol_compiled, hyper_at, train_compiled
from surestep.train.task import Task
from surestep.train.trajectory import Material, TrainingSettings
from surestep.train.tuning import Family, TuningSettings, tuned

__all__ = [
    "Accuracies",
    "Chosen",
    "CommonStartSettings",
    "Constraint",
    "Experiment",
    "External",
    "Family",
    "ImitateSettings",
    "Imitated",
    "LocateSettings",
    "Located",
    "Material",
    "PopulationSettings",
    "Restarts",
    "SampleSettings",
    "Sampled",
    "SuccessEstimate",
    "Task",
    "TrainingSettings",
    "TuningSettings",
    "choose",
    "constrained_chain",
    "coordinate_steps",
    "enrol_compiled",
    "estimate_success",
    "hyper_at",
    "langevin_move",
    "mean_square",
    "safe_steps",
    "train_compiled",
    "tuned",
    "weighed_risks",
]
