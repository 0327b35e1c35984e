"""Programs of `workers.py`, each in processes of its own."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKERS = Path(__file__).with_name("workers.py")


@pytest.fixture(scope="module")
def results(forks, tmp_path_factory):
    """Runs functions of workers.py at once, each with its arguments: what each printed last."""

    def results(*calls, devices=1, **environment):
        flags = f"--xla_force_host_platform_device_count={devices} "
        flags += os.environ.get("XLA_FLAGS", "")
        started, found = [], []
        for number, arguments in enumerate(calls):
            errors = tmp_path_factory.mktemp("errors") / str(number)
            options = {"cwd": ROOT, "stderr": errors, "XLA_FLAGS": flags, **environment}
            process = forks.start(WORKERS, *arguments, **options)
            started.append((process, errors))
        for process, errors in started:
            printed, _ = process.communicate()
            assert process.returncode == 0, errors.read_text()[-4000:]
            found.append(json.loads(printed.strip().splitlines()[-1]))
        return found

    return results


@pytest.fixture(scope="module")
def only(request):
    """Skips unless the backend is that of the test."""
    import keras

    wanted = request.param
    if keras.backend.backend() != wanted:
        pytest.skip(f"an engine of {wanted}")
    return wanted
