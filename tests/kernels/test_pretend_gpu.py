"""A training step on a GPU copies nothing and asks for no number, told without a GPU."""

import json
from pathlib import Path

import pytest

from tests.thorough import THOROUGH
from tests.training.kinds_of_steps import FEW, KINDS

pytestmark = pytest.mark.one_backend("torch")


def test_a_step_is_on_the_device_alone(forks):
    """No tensor is made on the host, and no number is asked for: each would be an error."""
    kinds = [*KINDS] if THOROUGH else FEW
    done = forks.run(Path(__file__).with_name("pretend_gpu.py"), *kinds)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {kind: step["copies"] for kind, step in found.items()} == dict.fromkeys(kinds, 0)
    # Called through Keras's layers, the classifier's step is 1,247 operations.
    assert found["classifier"]["operations"] < 500
