"""From the prior and validation sets to a prior: imitate, population, locate, sample."""
