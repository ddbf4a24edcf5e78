"""Families as new users write them: one file each, with a `problem` that `surestep run` takes."""
