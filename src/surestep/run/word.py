"""A verifier's word: it decides about the train set, and is given once the plan is fixed."""

import dataclasses
from typing import Any

from surestep.base.errors import ConfigurationError, RunFolderError
from surestep.problem import require_word
from surestep.run.charges import OWN, read_charges
from surestep.run.config import RunConfig
from surestep.storage.records import to_json
from surestep.storage.run_folder import RunFolder


def give_word(folder: RunFolder, config: RunConfig[Any], word: str) -> RunConfig[Any]:
    """The configuration with a verifier's word, written down; refused where it is too late."""
    require_word(word)
    if not word:
        raise ConfigurationError("a verifier's word must have at least one character")
    if config.word == word:
        return config
    with folder.locked():
        require_closed(folder)
        if not folder.kept(folder.plan_path).exists():
            raise RunFolderError(
                f"{folder.path} has no plan yet, and a word given before it would not show that no "
                f"other plan was tried: first surestep resume {folder.path} --until plan"
            )
        if config.word:
            raise RunFolderError(
                f"{folder.path} was given the word {config.word!r} already, and takes no other"
            )
        config = dataclasses.replace(config, word=word)
        folder.kept(folder.config_path).write(to_json(config))
    return config


def require_closed(folder: RunFolder) -> None:
    """Refuse a run whose train set was opened: no word can change that."""
    if any(charge.certificate == OWN for charge in read_charges(folder)):
        raise RunFolderError(
            f"the train set of {folder.path} was opened already: a word given now could not have "
            "decided which instances it holds"
        )
