"""A user's own problem: from functions and data to an experiment that fits it."""
