"""Files of facts are kept twice: what people see is what was written."""

from surestep.run.verify.finished import Check, check
from surestep.storage.run_folder import RunFolder


def verify_copies(folder: RunFolder) -> list[Check]:
    """Every file of facts is the same as its copy, where the copy was not left behind."""
    wrong = [
        str(file.relative_to(folder.path))
        for copy in sorted(folder.path.rglob(".*.copy"))
        if not folder.kept(file := copy.with_name(copy.name[1 : -len(".copy")])).agrees()
    ]
    reason = f"{', '.join(wrong)}: not what was written, or another copy"
    return [check("files of facts and their copies", not wrong, reason)]
