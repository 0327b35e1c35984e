"""Rotary positions in GGUF files: keys, and tensors of factors."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.shared import rotary_share
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.config import TransformerConfig

# Divisors of the frequencies: one set for Llama 3, and LongRoPE's sets for long and short texts.
_FREQUENCIES = "rope_freqs.weight"
_LONG, _SHORT = (f"rope_factors_{name}.weight" for name in ("long", "short"))
ROTARY_TENSORS = (_FREQUENCIES, _LONG, _SHORT)
_TYPE, _FACTOR, _ORIGINAL = (
    f"rope.scaling.{name}" for name in ("type", "factor", "original_context_length")
)
_ATTENTION = ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor")
# YaRN's bounds, with the published names and the usual values of both.
_BOUNDS = {
    "rope.scaling.yarn_beta_fast": ("beta_fast", 32.0),
    "rope.scaling.yarn_beta_slow": ("beta_slow", 1.0),
}
ROTARY_KEYS = (
    "rope.dimension_count", "rope.freq_base", _TYPE, _FACTOR, _ORIGINAL, *_ATTENTION, *_BOUNDS,
    "rope.scaling.yarn_ext_factor", "rope.scaling.finetuned",
)  # fmt: skip
# Llama 3.1 and later: the longest and the shortest wave that is stretched in part, and the length
# that the model was trained with. Every published one has these values.
_LOW, _HIGH, _TRAINED = 1.0, 4.0, 8192
_LOAD_THE_OTHER = "Load the model that it was made from."


def read_rotary(
    metadata: Metadata,
    floats: Callable[[str], np.ndarray],
    partial: bool,
    unstated: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the published values of rotary positions.

    `partial` says whether they may be on a part of a head; `unstated` are values of a scaling that
    no key states.

    Raises ValueError if a file states a scaling that is not supported, or half of one.
    """
    path, tensors = metadata.header.path, metadata.header.tensors
    base = metadata.real("rope.freq_base", 1e6 if metadata.architecture == "gemma3" else 1e4)
    values: dict[str, Any] = {"rope_theta": base, "rope_scaling": {"rope_type": "default"}}
    width = metadata.head_dim
    turned = metadata.whole("rope.dimension_count") or width
    if turned > width or (turned != width and not partial):
        raise ValueError(
            f"{path}: rotary positions of {turned} of {width} features are not supported in a "
            f"{metadata.architecture} GGUF file. {_LOAD_THE_OTHER}"
        )
    if partial:
        values["partial_rotary_factor"] = rotary_share(turned, width, turned / width)
    kind = metadata.text(_TYPE, "none") or "none"
    if {_LONG, _SHORT} & tensors.keys() and kind in ("none", "longrope"):
        kind = "longrope"
    elif _FREQUENCIES in tensors and kind == "none":
        kind = "llama3"
    elif {*ROTARY_TENSORS} & tensors.keys():
        raise ValueError(
            f"{path} has factors of rotary positions, {_named(tensors)!r}, beside the scaling "
            f"{kind!r}, which are not supported together. {_LOAD_THE_OTHER}"
        )
    if kind == "none":
        return values
    if kind not in _READ:
        raise ValueError(
            f"{path}: rotary positions scaled by {kind!r} are not supported in a GGUF file. "
            f"{_LOAD_THE_OTHER}"
        )
    options = _READ[kind](metadata, floats, turned, base)
    if options is not None:
        if "original_max_position_embeddings" in options:
            original = options["original_max_position_embeddings"]
            values["original_max_position_embeddings"] = original
        values["rope_scaling"] = {"rope_type": kind, **options, **unstated}
    return values


def _named(tensors: Mapping[str, Any]) -> str:
    return next(name for name in ROTARY_TENSORS if name in tensors)


Floats = Callable[[str], np.ndarray]
Options = dict[str, Any]


def _linear(metadata: Metadata, floats: Floats, turned: int, base: float) -> Options | None:
    factor = metadata.real(_FACTOR, 1.0) or 1.0
    return {"factor": factor}


def _yarn(metadata: Metadata, floats: Floats, turned: int, base: float) -> Options | None:
    return read_yarn(metadata)


def read_yarn(metadata: Metadata) -> Options:
    """Return the published values of YaRN. Raises ValueError if a file states half of it."""
    if metadata.real("rope.scaling.yarn_ext_factor", 1.0) != 1:
        raise ValueError(
            f"{metadata.header.path}: YaRN whose 'rope.scaling.yarn_ext_factor' is not 1 is not "
            f"supported. {_LOAD_THE_OTHER}"
        )
    factor = metadata.real(_FACTOR, 1.0) or 1.0
    options: Options = {
        "factor": factor,
        "original_max_position_embeddings": metadata.whole(_ORIGINAL)
        or metadata.needed("context_length"),
    }
    for key, (name, usual) in _BOUNDS.items():
        options[name] = metadata.real(key, usual)
    own = next((metadata.real(key, 1.0) for key in _ATTENTION if metadata.given(key)), 1.0)
    if own != 1:  # of YaRN's own factor
        options["attention_factor"] = round(own * _raised(factor), 6)
    return options


def _raised(factor: float) -> float:
    """Return YaRN's factor of queries and keys."""
    return 0.1 * math.log(factor) + 1 if factor > 1 else 1.0


def _longrope(metadata: Metadata, floats: Floats, turned: int, base: float) -> Options | None:
    header = metadata.header
    missing = next((name for name in (_LONG, _SHORT) if name not in header.tensors), None)
    if missing is not None:
        raise ValueError(f"{header.path} lacks {missing!r}, of rotary positions for long texts.")
    factors = {}
    for name in (_LONG, _SHORT):
        if header.tensors[name].shape != (turned // 2,):
            raise ValueError(
                f"{header.path}: {name!r} has the shape {header.tensors[name].shape}, not "
                f"{(turned // 2,)}: one factor for each pair of features."
            )
        found = floats(name)
        if not (np.isfinite(found).all() and (found > 0).all()):
            raise ValueError(f"{header.path}: {name!r} has factors that are not positive numbers.")
        factors[name] = [float(str(value)) for value in found]
    longest = metadata.needed("context_length")
    original = max(metadata.whole(_ORIGINAL) or longest, 2)
    usual = _longrope_scale(longest / original, original)
    stated = metadata.real(_ATTENTION[0], usual)
    if not math.isclose(stated, usual, rel_tol=1e-4):
        raise ValueError(
            f"{header.path}: queries and keys are multiplied by {stated}, where LongRoPE "
            f"multiplies them by {usual}. {_LOAD_THE_OTHER}"
        )
    return {
        "long_factor": factors[_LONG],
        "short_factor": factors[_SHORT],
        "original_max_position_embeddings": original,
    }


def _longrope_scale(stretch: float, original: int) -> float:
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0


def _llama3(metadata: Metadata, floats: Floats, turned: int, base: float) -> Options | None:
    """Return Llama 3's scaling, by whose factors the file divides the frequencies."""
    found = None
    if metadata.header.tensors[_FREQUENCIES].shape == (turned // 2,):
        found = floats(_FREQUENCIES)
    if found is not None and np.isfinite(found).all():
        factor = float(found.max())
        factor = round(factor) if math.isclose(factor, round(factor), rel_tol=1e-5) else factor
        if factor == 1 and np.all(found == 1):
            return None
        if factor > 1 and np.allclose(found, _factors(base, turned, factor), 1e-5, 0):
            return {
                "factor": float(factor),
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": _TRAINED,
            }
    raise ValueError(
        f"{metadata.header.path}: the factors of its rotary positions, 'rope_freqs.weight', are "
        f"not Llama 3.1's, the only ones that can be read. {_LOAD_THE_OTHER}"
    )


_READ = {"linear": _linear, "yarn": _yarn, "longrope": _longrope, "llama3": _llama3}


def _factors(base: float, turned: int, factor: float) -> np.ndarray:
    """Return what Llama 3's scaling divides each frequency by."""
    waves = 2 * np.pi * base ** (np.arange(0, turned, 2) / turned)
    smooth = np.clip((_TRAINED / waves - _LOW) / (_HIGH - _LOW), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)


def write_rotary(
    config: TransformerConfig,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the keys of a config's rotary positions, and the tensors of its factors.

    Raises ValueError if GGUF has no scaling of this kind.
    """
    # Layers with a window have their own in Gemma 3, which are written elsewhere.
    turned = config.head_dim if config.rotary_dim is None else config.rotary_dim
    values: dict[str, Any] = {
        "rope.freq_base": float(config.rotary_base),
        "rope.dimension_count": turned,
    }
    kind, factor = config.rotary_scaling, float(config.rotary_factor)
    if kind is None:
        return values, {}
    if kind == "llama3":
        found = _factors(config.rotary_base, turned, factor)
        return values, {_FREQUENCIES: found.astype("float32")}
    if kind == "dynamic":
        raise ValueError("GGUF has no rotary positions scaled by 'dynamic'.")
    values |= {_TYPE: kind, _FACTOR: factor}
    if kind == "linear":
        return values, {}
    values[_ORIGINAL] = config.rotary_original_length
    if kind == "yarn":
        own = (config.rotary_max_turns, config.rotary_min_turns)
        for (key, (_, usual)), value in zip(_BOUNDS.items(), own, strict=True):
            if value != usual:
                values[key] = float(value)
        if config.rotary_attention_factor is not None:
            values[_ATTENTION[0]] = config.rotary_attention_factor / _raised(factor)
        return values, {}
    stretch = config.max_sequence_length / config.rotary_original_length
    values[_ATTENTION[0]] = _longrope_scale(stretch, config.rotary_original_length)
    factors = {_LONG: config.rotary_long_factors, _SHORT: config.rotary_short_factors}
    return values, {name: np.array(each, "float32") for name, each in factors.items()}
