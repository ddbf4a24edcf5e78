"""The library on families that it was not developed on, beside solvers that anyone could take.

Every file in `problems` is what a new user would write, and `surestep run` accepts it as it is.
`opponents` holds loops and libraries, and imports nothing of surestep.
"""
