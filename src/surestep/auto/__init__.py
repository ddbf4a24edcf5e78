"""What is done for a user's own problem: a survey of it, a rule that fits, a run."""
