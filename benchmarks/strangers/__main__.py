"""`python -m benchmarks.strangers`, from the root of the source tree."""

import sys

from benchmarks.strangers.command import main

if __name__ == "__main__":
    sys.exit(main())
