"""`python -m surestep.cli`."""

from surestep.cli.main import start

start()
