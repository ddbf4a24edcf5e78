"""`python -m surestep.cli`."""

import sys

from surestep.cli.main import main

sys.exit(main())
