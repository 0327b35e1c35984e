"""The scheme that a config names, and tensors of schemes that it does not name."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.quantized.awq import AWQ
from keras_transformer.checkpoints.quantized.bitsandbytes import BitsAndBytes
from keras_transformer.checkpoints.quantized.compressed_tensors import CompressedTensors
from keras_transformer.checkpoints.quantized.gptq import GPTQ
from keras_transformer.checkpoints.quantized.scaled import Float8
from keras_transformer.checkpoints.quantized.scheme import Scheme
from keras_transformer.checkpoints.weights.safetensors_io import Tensors
from keras_transformer.support.checking import shorten

CONFIG = "quantization_config"
# Endings of tensors that are not weights themselves, and the schemes that have them.
_ENDS = {
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".scales": "GPTQ or AWQ",
    ".g_idx": "GPTQ",
    ".weight.absmax": "bitsandbytes",
    ".weight.quant_map": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".weight_packed": "compressed-tensors",
    ".weight_scale": "compressed-tensors or FP8",
    ".weight_scale_inv": "FP8",
}
_NUMBERS = ("U8", "I8", "I32", "F8_E4M3", "F8_E5M2")


@dataclasses.dataclass(frozen=True)
class MXFP4(Scheme):
    """GptOss's experts, whose blocks and scales a checkpoint gathers itself."""

    @classmethod
    def read(cls, values: Mapping[str, Any], skipped: tuple[str, ...]) -> "MXFP4":
        return cls(skipped)

    @property
    def name(self) -> str:
        return "MXFP4"

    def gather(self, tensors: Tensors) -> dict[str, Any]:
        return dict(tensors)

    def check_present(self, tensors: Mapping[str, Any]) -> None:
        if not any(name.endswith("_blocks") for name in tensors):
            super().check_present(tensors)


SCHEMES: Mapping[str, type[Scheme]] = {
    "awq": AWQ,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": Float8,
    "fp8": Float8,
    "gptq": GPTQ,
    "mxfp4": MXFP4,
}
_SKIPPED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "ignored_layers")


def find_scheme(config: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme that a published config names, or None if it names none.

    Raises ValueError, with what to do, if it is not read.
    """
    values = config.get(CONFIG)
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise ValueError(f"{CONFIG!r} must be an object, received {shorten(values)}.")
    method = values.get("quant_method")
    if method is None and ("load_in_4bit" in values or "load_in_8bit" in values):
        method = "bitsandbytes"  # configs of 2023 leave it out
    if not isinstance(method, str) or method not in SCHEMES:
        raise ValueError(
            f"{CONFIG!r} has the quant_method {shorten(method)}, which is not read. Read are "
            f"{', '.join(map(repr, sorted(SCHEMES)))}, and GGUF files. Take another checkpoint of "
            "the model, or one that is not quantized: its page on the hub names it."
        )
    skipped: list[str] = []
    for name in _SKIPPED:
        listed = values.get(name) or ()
        if not isinstance(listed, list | tuple) or not all(isinstance(n, str) for n in listed):
            raise ValueError(f"{name!r} must be a list of names, received {shorten(listed)}.")
        skipped += [n for n in listed if not n.startswith("re:")]
    try:
        return SCHEMES[method].read(values, tuple(skipped))
    except ValueError as error:
        raise ValueError(f"{CONFIG}: {error}") from None


def gather(tensors: Tensors, scheme: Scheme | None) -> dict[str, Any]:
    """Return the tensors of a file with those of each quantized matrix as one entry.

    Raises ValueError if they do not fit each other or the config, or belong to another scheme.
    """
    found = dict(tensors) if scheme is None else scheme.combine(tensors)
    said = "has no quantization_config" if scheme is None else f"says {scheme.name}"
    for name, info in found.items():
        end = next((end for end in _ENDS if name.endswith(end)), None)
        if end is not None:
            raise ValueError(
                f"{info.path} has the tensor {name!r} of a matrix quantized by {_ENDS[end]}, but "
                f"its config {said}. Use the config that belongs to this file."
            )
        if name.endswith(".weight") and info.dtype in _NUMBERS:
            raise ValueError(
                f"The tensor {name!r} of {info.path} is stored as {info.dtype}, and the config "
                f"{said}, which does not tell what its numbers stand for. Use the config that "
                "belongs to this file."
            )
    if scheme is not None:
        scheme.check_present(found)
    return found
