"""From a prior and the train set to a certificate."""
