"""`python -m benchmarks`, from the root of the source tree."""

import sys

from surestep.base.compilation_cache import keep_compiled_programs

if __name__ == "__main__":
    # JAX, which the rest imports, reads from the environment where compiled programs are kept.
    keep_compiled_programs()

    from benchmarks.command import main

    sys.exit(main())
