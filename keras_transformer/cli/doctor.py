"""The sub-command doctor, which says what is installed here and what is wrong with it."""

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from keras_transformer.cli.command import command, say

_PACKAGE = "keras_transformer"
_BACKENDS = {"jax": "jax", "tensorflow": "tensorflow", "torch": "torch"}
# What an extra of the package adds, for those who use it; the others are for its developers.
_EXTRAS = {
    "jax": "the backend JAX",
    "tensorflow": "the backend TensorFlow, its tokenizers, and KerasHub",
    "torch": "the backend PyTorch",
    "minilm": "the weights of the preset minilm_l6_en",
    "data": "large files and tables in `fit`",
    "generation": "chat templates, answers by a JSON Schema",
    "gguf": "files of llama.cpp",
    "images": "files of images",
    "video": "files of videos",
    "audio": "files of sound",
    "detection": "training and scores of an ObjectDetector",
    "metrics": "ROUGE, edit distance, word error rate",
    "bleu": "BLEU and chrF",
    "plots": "pictures",
    "serve": "the page and the API",
    "scores": "`evaluate` of models that continue texts",
    "mteb": "`evaluate` of models of text vectors",
    "onnx": "export to ONNX",
    "openvino": "export to OpenVINO",
    "ctranslate2": "export to CTranslate2",
}
_PATIENCE = 30  # seconds, for NVIDIA's driver
_ROOM = 5 * 10**9  # bytes: the weights of a model of some billion parameters


@command(
    "doctor",
    """\
say what is installed, and what to do about what is wrong

Prints the versions, the backend, its devices, threads and memory, the folders of caches, what
each extra of the package would add, and a line with a cure for each problem. The exit code is 1
if there is one.

examples:
  keras-transformer doctor
  KERAS_BACKEND=torch keras-transformer doctor
""",
)
def _doctor(options: argparse.Namespace) -> None:
    requirements = _requirements()
    for title, rows in (
        ("versions", list(_versions())),
        ("here", list(_machine())),
        ("caches", list(_caches())),
        ("extras", list(_extras(requirements))),
    ):
        say(title)
        width = max(len(name) for name, _ in rows)
        for name, text in rows:
            say(f"  {name:{width}}  {text}")
        say()
    problems = list(_problems(requirements))
    say("\n".join(f"problem: {text}" for text in problems) or "no problem was found")
    if problems:
        raise SystemExit(1)


def _requirements() -> list[Requirement]:
    try:
        return list(map(Requirement, importlib.metadata.requires(_PACKAGE) or ()))
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return []


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed(name: str) -> str | None:
    """Return the version of a package; builds of TensorFlow have names of their own."""
    names = (name, "tensorflow-cpu", "tf-nightly") if name == "tensorflow" else (name,)
    return next(filter(None, map(_version, names)), None)


def _versions() -> Iterator[tuple[str, str]]:
    yield "python", f"{platform.python_version()} on {platform.platform(terse=True)}"
    for name in (_PACKAGE, "keras", *_BACKENDS, "numpy", "tokenizers", "safetensors"):
        yield name, _installed(name) or "not installed"


def _machine() -> Iterator[tuple[str, str]]:
    import keras

    from keras_transformer.kernels.device import device, device_names

    named = os.environ.get("KERAS_BACKEND")
    why = "by KERAS_BACKEND" if named else "by keras.json, or Keras's own choice"
    yield "backend", f"{device().backend}, {why}"
    yield "devices", ", ".join(device_names())
    if device().memory:
        yield "its memory", f"{device().memory / 2**30:.1f} GiB"
    yield "processors", f"{_processors()} of {os.cpu_count()} may be used"
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "XLA_FLAGS", "TF_XLA_FLAGS"):
        if name in os.environ:
            yield name, os.environ[name]
    yield "numbers", keras.config.dtype_policy().name


def _caches() -> Iterator[tuple[str, str]]:
    for name, path in _folders():
        free = shutil.disk_usage(next(p for p in (path, *path.parents) if p.is_dir())).free
        held = "" if path.is_dir() else ", not there yet"
        yield name, f"{path}, {free / 1e9:.1f} GB free{held}"


def _folders() -> Iterator[tuple[str, Path]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from keras_transformer.checkpoints.presets.listing import presets_folder

    yield "presets", presets_folder()
    yield "models of the hub", Path(HF_HUB_CACHE)
    yield "Keras", Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if compiled:
        yield "programs of JAX", Path(compiled)


def _extras(requirements: list[Requirement]) -> Iterator[tuple[str, str]]:
    for extra, adds in _EXTRAS.items():
        missing = [one.name for one in _of_extra(requirements, extra) if not _installed(one.name)]
        if missing:
            adds += f': pip install "{_PACKAGE}[{extra}]" for {", ".join(missing)}'
        yield f"[{' ' if missing else 'x'}] {extra}", adds


def _of_extra(requirements: list[Requirement], extra: str) -> list[Requirement]:
    return [
        one
        for one in requirements
        if one.marker is not None
        and one.marker.evaluate({"extra": extra})
        and not one.marker.evaluate({"extra": ""})
    ]


def _problems(requirements: list[Requirement]) -> Iterator[str]:
    from keras_transformer.kernels.device import device

    if not requirements:
        yield f"{_PACKAGE} is not installed, only on the path: run `pip install -e .` there."
    for one in requirements:
        version = _installed(one.name)
        needed = one.marker is None or any(
            one.marker.evaluate({"extra": extra}) for extra in ("", *_EXTRAS)
        )
        if version and needed and not one.specifier.contains(version, prereleases=True):
            yield (
                f"{one.name} is {version}, but {one.specifier} is needed: run "
                f'`pip install "{one.name}{one.specifier}"`.'
            )
    try:
        unused = device().is_cpu and _has_gpu()
    except subprocess.TimeoutExpired:
        yield "nvidia-smi does not answer, so the driver of the GPU hangs: restart the machine."
        unused = False
    if unused:
        backend = device().backend
        yield (
            f"there is a GPU, but {backend} computes on the CPU: run "
            f'`pip install "{_PACKAGE}[{backend}-cuda]"`, and look at CUDA_VISIBLE_DEVICES.'
        )
    for name, path in _folders():
        there = next(p for p in (path, *path.parents) if p.is_dir())
        if name == "models of the hub" and not os.access(there, os.W_OK):
            yield f"{there} cannot be written: set HF_HOME to a folder for downloaded models."
        elif name == "models of the hub" and shutil.disk_usage(there).free < _ROOM:
            yield f"{there} has less than {_ROOM / 1e9:.0f} GB free: set HF_HOME to a larger disk."
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > _processors():
        yield (
            f"OMP_NUM_THREADS is {threads} with {_processors()} processors, so threads wait for "
            f"each other: unset it, or set it to {_processors()}."
        )
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        yield "HF_HUB_OFFLINE is set, so no preset is downloaded: unset it."


def _processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _has_gpu() -> bool:
    """Return whether NVIDIA's driver lists a GPU. Raises TimeoutExpired if it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    try:
        asked = subprocess.Popen(
            [program, "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )  # fmt: skip
    except OSError:  # a program for other machines
        return False
    try:
        listed, _ = asked.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        asked.kill()  # but do not wait for its end, which a driver that hangs prevents
        raise
    return asked.returncode == 0 and b"GPU" in listed


COMMANDS = (_doctor,)
