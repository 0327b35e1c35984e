"""A program: the tests on a GPU, with each backend that finds one. `make test-gpu` calls it.

python -m tests.gpu [--devices 2] [ARGUMENTS OF PYTEST]

Prints on which device each backend computes. Ends with 0 where no backend finds a GPU, after it has
said so and run nothing, and with 1 where a test failed. The backends are those of TEST_BACKENDS,
else PyTorch and JAX. TensorFlow need not be installed.
"""

import argparse
import importlib.util
import os
import subprocess
import sys

BACKENDS = os.environ.get("TEST_BACKENDS", "torch jax").split()
# With several devices these alone: the others are the same as with one.
OF_SEVERAL = ["tests/distribution"]
ASK = """
from keras_transformer.kernels.device import device
if device().backend == "torch":
    import torch
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
else:
    import jax
    names = [x.device_kind for x in jax.devices() if not device().is_cpu]
print(device().kind, len(names), *names[:1])
"""


def environment_of(backend: str) -> dict[str, str]:
    """Return what a process on a backend needs: it takes memory of the GPU as it needs it."""
    wanted = {
        "KERAS_BACKEND": backend,
        "TEST_BACKENDS": " ".join(BACKENDS),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return {**os.environ, **wanted}


def found_by(backend: str) -> tuple[str, int, str]:
    """Return the kind, the number and the name of the devices that a backend finds."""
    if importlib.util.find_spec(backend) is None:
        return "not installed", 0, ""
    asked = [sys.executable, "-c", ASK]
    done = subprocess.run(asked, env=environment_of(backend), capture_output=True, text=True)
    if done.returncode:
        return f"failed: {done.stderr.strip().splitlines()[-1]}", 0, ""
    kind, count, name = (done.stdout.strip().splitlines()[-1] + "  ").split(" ", 2)
    return kind, int(count), name.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1, help="how many GPUs the tests may take")
    options, given = parser.parse_known_args()
    failed, ran = [], False
    for backend in BACKENDS:
        kind, count, name = found_by(backend)
        if not count:
            print(f"{backend}: no GPU ({kind})", flush=True)
            continue
        print(f"{backend}: {count} {name} ({kind})", flush=True)
        if count < options.devices:
            print(f"{backend}: {options.devices} GPUs were asked for", flush=True)
            failed.append(backend)
            continue
        ran = True
        environment = {**environment_of(backend), "TEST_GPUS": str(options.devices)}
        tests = given or (OF_SEVERAL if options.devices > 1 else ["tests"])
        command = [sys.executable, "-m", "pytest", "-q", *tests]
        if subprocess.run(command, env=environment).returncode:
            failed.append(backend)
    if not ran and not failed:
        print("There is no GPU: nothing was run.")
    if failed:
        print("tests failed on:", *failed)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
