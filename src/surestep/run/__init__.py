"""A run from the first stage to the last, on disk and on several hosts, and its verification."""
