"""Quantization of a preset's weights, read from its config and the headers of its files."""

import dataclasses
import math
import os

from keras_transformer.checkpoints.presets.assignment import planned
from keras_transformer.checkpoints.presets.listing import read_preset
from keras_transformer.checkpoints.presets.preset import Preset
from keras_transformer.checkpoints.quantized.kept import bytes_of_layer, keeps
from keras_transformer.config import LatentAttention

_FLOAT = 4  # bytes of a weight that is unpacked, in float32


@dataclasses.dataclass(frozen=True)
class Quantization:
    """How the weights of a preset are quantized.

    Args:
        scheme: name of the scheme, e.g. `"GPTQ, 4 bits"`.
        stored: bytes of the weight files; None if they are not on this machine.
        memory: bytes of the backbone's weights as `from_preset` loads them without a `dtype`: the
            matrices that layers of int4 and int8 can hold as they are stored, and the other weights
            in float32. None if the files are not on this machine.
    """

    scheme: str
    stored: int | None
    memory: int | None


def read_quantization(source: str | os.PathLike) -> Quantization | None:
    """Return how the weights of a preset are quantized, or None if they are not.

    Reads the config, and the headers of the weights if they are on this machine.

    Args:
        source: a preset, or the result of `resolve_preset`.

    Raises:
        ValueError: if the config names a scheme that is not read, or does not fit the weights.

    Example:
    ```python
    from keras_transformer.checkpoints import read_quantization

    assert read_quantization("minilm_l6_en") is None
    ```
    """
    return read_preset(source, _read)


def _read(preset: Preset) -> Quantization | None:
    if preset.scheme is None:
        return None
    files = preset.local_weights
    if not files:
        return Quantization(preset.scheme.name, None, None)
    config = preset.describe(True)[0]
    shapes, plan = planned(preset)
    mixers = [layer.only_side.block.mixer for side in config.sides for layer in side.layers]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    floats = ("/key/kernel", "/value/kernel") if latent else ()
    memory = 0
    for path, shape in shapes.items():
        name, line = plan[path]
        info = preset.checkpoint[name]
        if path.endswith("/kernel") and not path.endswith(floats) and keeps(info, line):
            memory += bytes_of_layer(info, shape)
        else:
            memory += math.prod(shape) * _FLOAT
    stored = sum(path.stat().st_size for path in files)
    return Quantization(preset.scheme.name, stored, memory)
