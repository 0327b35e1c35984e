"""How close numbers are to be, by the dtype that they are computed in.

A GPU has the same bounds as a CPU: products of float32 are exact there in tests (`conftest.py`),
not TF32, whose 10 bits would need those of float16.
"""

# Absolute, of states near 1 behind a layer or two.
_ATOL = {"float32": 1e-5, "float16": 0.02, "bfloat16": 0.12}


def atol_of(policy: str) -> float:
    """Return the bound for a dtype or a policy, such as `"mixed_bfloat16"`."""
    return _ATOL[policy.removeprefix("mixed_")]
