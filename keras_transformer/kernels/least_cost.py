"""The assignment of least total cost, by SciPy."""

import numpy as np


def least_cost(costs, real) -> np.ndarray:
    """Compute `assignment.assign` with NumPy and SciPy."""
    from scipy.optimize import linear_sum_assignment

    costs, real = np.asarray(costs), np.asarray(real)
    largest = np.finfo("float32").max
    costs = np.nan_to_num(costs, nan=largest, posinf=largest, neginf=largest)
    found = np.zeros(costs.shape[:2], "int32")
    for row, own in enumerate(real):
        found[row, own] = linear_sum_assignment(costs[row, own])[1]
    return found
