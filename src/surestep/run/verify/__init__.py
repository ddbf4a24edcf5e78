"""Certificates computed again from what a run has stored."""
