"""A trained rule in use."""
