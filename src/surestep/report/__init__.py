"""Figures: data first, then drawing."""
