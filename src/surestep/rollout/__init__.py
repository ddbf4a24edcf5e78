"""The only loop over iterations, on one instance and on many."""
