"""`python -m benchmarks.strangers`, from the root of the source tree."""

import sys

import jax

from benchmarks.strangers.command import main

if __name__ == "__main__":
    # Small programs of all contenders run where they are called: waking another thread would take
    # longer than many of them do.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    sys.exit(main())
