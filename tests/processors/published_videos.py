"""Transformers' processors of videos, without the package that they resize with.

They call torchvision, which is not installed here. Of it they use the two functions below, which
for frames of bytes are one operation of PyTorch each.
"""

import builtins
import contextlib
import enum
import importlib
import importlib.machinery
import sys
import types

import torch


class InterpolationMode(enum.Enum):
    """Names of filters."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


# From the numbers of Pillow.
_OF_PILLOW = {2: InterpolationMode.BILINEAR, 3: InterpolationMode.BICUBIC}


def _resize(image, size, interpolation, antialias=True):
    interpolation = _OF_PILLOW.get(interpolation, interpolation)
    return torch.nn.functional.interpolate(
        image.flatten(0, -4), size=tuple(size), mode=interpolation.value, antialias=antialias
    ).unflatten(0, image.shape[:-3])


def _normalize(image, mean, std, inplace=False):
    mean, std = (torch.as_tensor(each)[:, None, None] for each in (mean, std))
    return (image - mean) / std


_FUNCTIONS = types.SimpleNamespace(
    resize=_resize,
    normalize=_normalize,
    grayscale_to_rgb=lambda image: image,
    InterpolationMode=InterpolationMode,
)


@contextlib.contextmanager
def _modules():
    names = ("", ".transforms", ".transforms.functional", ".transforms.v2")
    names = [f"torchvision{name}" for name in (*names, ".transforms.v2.functional", ".io")]
    for name in names:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        vars(module).update(vars(_FUNCTIONS))
        module.functional = _FUNCTIONS
        module.pil_to_tensor = None
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, module)
    sys.modules["torchvision.transforms.v2"].functional = _FUNCTIONS
    builtins.tvF = _FUNCTIONS  # annotations of Gemma 4's name it while the module is made
    try:
        yield
    finally:
        del builtins.tvF
        for name in names:
            del sys.modules[name]


def video_processor(family, **values):
    """A video processor of Transformers, such as of the family `"qwen2_vl"`."""
    with _modules():
        module = importlib.import_module(f"transformers.models.{family}.video_processing_{family}")
        shared = importlib.import_module("transformers.video_processing_utils")
        backend = importlib.import_module("transformers.image_processing_backends")
    for each in (module, shared, backend):
        each.tvF = _FUNCTIONS
    backend.pil_torch_interpolation_mapping = _OF_PILLOW
    name = {"qwen2_vl": "Qwen2VL", "qwen3_vl": "Qwen3VL", "gemma4": "Gemma4"}[family]
    return getattr(module, f"{name}VideoProcessor")(**values)
