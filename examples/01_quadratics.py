"""Learn a solver for a family of quadratics and read its certificate.

python examples/01_quadratics.py
"""

import dataclasses

import surestep as ss

# A preset is a frozen dataclass: change what you like, by name.
config = dataclasses.replace(ss.paper.preset("quadratics", "tiny"), seed=1)
learned = ss.learn(config, ss.paper.build(config))

print(learned.certificate)
print()
print("losses on three new problems, start and end:")
fresh = ss.datasets.TestSet.draw(learned.problem, 3, seed=99)
solution = learned.solve(fresh.thetas)
for before, after in zip(solution.start_loss, solution.loss, strict=True):
    print(f"  {before:.3g} -> {after:.3g}")
print(solution.covered)
