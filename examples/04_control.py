"""A controller's box-constrained quadratic programme, solved again for every state.

    surestep run examples/04_control.py --budget 1m

A chain of masses is pushed by bounded forces at every third mass; each state of the system asks for
the best forces over the next steps. Only the state differs from instance to instance.
"""

import jax
import numpy as np

import surestep as ss

MASSES, STEPS, DT = 6, 20, 0.3
stiff = 2 * np.eye(MASSES) - np.eye(MASSES, k=1) - np.eye(MASSES, k=-1)
pushed = np.eye(MASSES)[:, ::3]
A = np.eye(2 * MASSES) + DT * np.block(
    [[np.zeros((MASSES, MASSES)), np.eye(MASSES)], [-stiff, -0.1 * np.eye(MASSES)]]
)
B = DT * np.vstack([np.zeros_like(pushed), pushed])
# All later states are affine in the first state and in the forces.
powers = [np.linalg.matrix_power(A, k) for k in range(STEPS + 1)]
free = np.vstack(powers[1:])
driven = np.block(
    [[powers[i - j] @ B if j <= i else 0 * B for j in range(STEPS)] for i in range(STEPS)]
)


def sample(key):
    return 2.0 * jax.random.normal(key, (2 * MASSES,))


def cost(forces, state):
    states = free @ state + driven @ forces
    return (0.5 * states @ states + 0.05 * forces @ forces) / STEPS


problem = ss.make_problem(
    cost,
    x0=np.zeros(driven.shape[1]),
    sample=sample,
    penalty=ss.penalties.Box(-0.5, 0.5),
    name="control",
)

if __name__ == "__main__":
    learned = ss.fit(problem, budget="1m")
    print(learned.certificate)
    print(ss.report.summary(learned))
