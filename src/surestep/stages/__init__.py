"""The stages of a run, in the order of their use: imitate, locate, sample, certify, evaluate."""
