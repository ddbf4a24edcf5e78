"""surestep beside other libraries: Optax, SciPy, xarray, pandas, parquet.

Each module stands by itself and is imported where it is used:

- `surestep.adapters.optax`: a rule as an Optax optimizer.
- `surestep.adapters.scipy`: a rule as a method of `scipy.optimize.minimize`.
- `surestep.adapters.optax_rule`: an Optax optimizer as a rule.
- `surestep.adapters.tables`: evaluations as data sets, data frames and parquet files.
"""
