"""Steps on a GPU copy nothing and ask for no number, and passes stay there, told without one."""

import json
from pathlib import Path

import pytest

from tests.thorough import THOROUGH
from tests.training.kinds_of_steps import FEW, KINDS

# The device takes the place of a GPU.
pytestmark = [pytest.mark.one_backend("torch"), pytest.mark.cpu]


def test_a_step_is_on_the_device_alone(forks):
    """No tensor is made on the host, and no number is asked for: each would be an error."""
    kinds = [*(KINDS if THOROUGH else FEW), "predict:classifier", "predict:images"]
    done = forks.run(Path(__file__).with_name("pretend_gpu.py"), *kinds)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {kind: step["copies"] for kind, step in found.items()} == dict.fromkeys(kinds, 0)
    # Called through Keras's layers, the classifier's step is 1,247 operations.
    assert found["classifier"]["operations"] < 500


def test_passes_are_on_the_device(forks):
    """Each kind of layer, with a cache, in int8 and int4, and a step of samplers and rules."""
    done = forks.run(Path(__file__).with_name("pretend_passes.py"))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["blocks"] == found["window"] == [[2, 12, 16]]
    assert found["int8"] == found["int4"] == found["decoder"] == [[2, 12, 24], [2, 1, 24]]
    assert found["greedy"] == found["random"] == [[2, 1, 24], [2, 1]]
    assert len(found) == 14 and all(shapes[0][0] == 2 for shapes in found.values())
