"""The library on families that it was not developed on, beside solvers that anyone could take.

    python -m benchmarks.strangers table --budget 1m --out FILE.json
    python -m benchmarks.strangers page FILE.json
    python -m benchmarks.strangers budgets --budgets 30s 1m 5m
    python -m benchmarks.strangers interrupt --family robust --tries 10

Every file in `problems` is what a new user would write, and `surestep run` accepts it as it is.
`opponents` holds loops and libraries, and imports nothing of surestep. celer, skglm, quadprog and
OSQP take part where they are installed.
"""
