"""surestep beside other libraries.

- `as_optax`: a rule as an Optax optimizer.
- `from_cvxpy`: a parametrised CVXPY problem as a family of programmes.
- `optax_rule`: an Optax optimizer as a rule.
- `scipy_method`: a rule as a method of `scipy.optimize.minimize`.
"""

from surestep.interop.cvxpy import from_cvxpy
from surestep.interop.optax import as_optax
from surestep.interop.scipy import scipy_method
from surestep.rules.optax_rule import optax_rule

__all__ = ["as_optax", "from_cvxpy", "optax_rule", "scipy_method"]
