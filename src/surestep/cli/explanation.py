"""What a user is told of an error, and which exit code it means."""

import os
import sys
import traceback

from surestep.base.errors import SurestepError
from surestep.cli.interruption import exit_code, farewell


def explain(error: BaseException) -> int:
    """Tell the user of an error, and say which exit code it means."""
    if isinstance(error, SurestepError):
        print(f"surestep: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        # Whoever read the output has seen enough; Python would complain again while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if isinstance(error, KeyboardInterrupt):
        print(farewell(), file=sys.stderr)
        return exit_code(error)
    traceback.print_exception(error)
    return 1
