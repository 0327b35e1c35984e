"""The published config of a GGUF file's family, and the metadata of a config: both directions."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.gguf.architectures import (
    ARCHITECTURES,
    NAMES,
    Architecture,
)
from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.metadata import Metadata
from keras_transformer.checkpoints.gguf.rotary import ROTARY_KEYS, read_rotary, write_rotary
from keras_transformer.checkpoints.other_formats import FAMILIES_PAGE
from keras_transformer.config import TransformerConfig

# Keys of every architecture that say nothing more about a model.
_SAID_ELSEWHERE = {
    "vocab_size", "attention.key_length", "attention.value_length", "attention.head_count_kv",
    "tensor_data_layout",
}  # fmt: skip
_DEFAULTS = {"attention.layer_norm_rms_epsilon": 1e-6, "attention.layer_norm_epsilon": 1e-5}
# Widths that older files leave out, by a tensor whose last axis shows them.
_WIDTHS = {
    "expert_feed_forward_length": "ffn_down_exps.weight",
    "expert_shared_feed_forward_length": "ffn_down_shexp.weight",
    "feed_forward_length": "ffn_down_exps.weight",
}
# Keys of the tokens that end a text, in the order in which a task has them.
END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def find_architecture(header: Header) -> Architecture:
    """Return the architecture of a file. Raises ValueError, with what to do, if it is not read."""
    name = header.get("general.architecture", str, "")
    found = [each for each in ARCHITECTURES if each.name == name and each.takes(header)]
    if not found:
        raise ValueError(
            f"{header.path} has the architecture {name!r}. GGUF files are read of "
            f"{', '.join(NAMES)}. Load the model that it was made from, named on its page "
            f"on the hub, if its family is supported: {FAMILIES_PAGE}"
        )
    sparse = bool(header.whole(f"{name}.expert_count"))
    return next((each for each in found if each.has_experts == sparse), found[0])


def published_config(header: Header, floats: Callable[[str], np.ndarray]) -> dict[str, Any]:
    """Return the published config of a GGUF file.

    Args:
        header: the file's header.
        floats: returns a small tensor of the file by its name.

    Raises:
        ValueError: with what to do, if the architecture or a value of it is not supported.
    """
    architecture = find_architecture(header)
    _check_keys(header, architecture)
    metadata = Metadata(header, architecture.name)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ValueError(
            f"{header.path} has no tensor 'token_embd.weight': it is not a whole language model. "
            "Download or convert it again."
        )
    values = {
        "model_type": architecture.model_type,
        "architectures": [architecture.language_model],
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        **_read_keys(metadata, architecture),
        **architecture.said,
        **{name: metadata.has(end) for name, end in architecture.flags.items()},
    }
    if architecture.rotary is not None:
        values["head_dim"] = metadata.head_dim
        values |= read_rotary(metadata, floats, architecture.partial, architecture.rotary)
    for further in architecture.further:
        values |= further.read(metadata)
    return values | _special_ids(header)


def _read_keys(metadata: Metadata, architecture: Architecture) -> dict[str, Any]:
    values = {}
    for key, ours in architecture.keys.items():
        if key == "attention.head_count_kv":
            value = metadata.whole(key) or metadata.heads
            if architecture.published_names[ours] is None and value != metadata.heads:
                raise ValueError(
                    f"{metadata.header.path}: {value} heads of keys and values for "
                    f"{metadata.heads} of queries are not supported in a {architecture.name} model."
                )
        elif key in _DEFAULTS:
            value = metadata.real(key, _DEFAULTS[key])
        elif key in _WIDTHS and not metadata.whole(key) and metadata.has(_WIDTHS[key]):
            tensors = metadata.header.tensors
            shown = next(t for n, t in tensors.items() if n.endswith(f".{_WIDTHS[key]}"))
            value = shown.shape[-1]
        else:
            value = metadata.needed(key)
        values[architecture.published_names[ours]] = value
    values.pop(None, None)  # implied by others
    return values


def _check_keys(header: Header, architecture: Architecture) -> None:
    prefix = f"{architecture.name}."
    known = {*_SAID_ELSEWHERE, *architecture.keys}
    known |= {key for further in architecture.further for key in further.keys}
    known |= set() if architecture.rotary is None else set(ROTARY_KEYS)
    unknown = []
    for key, value in header.metadata.items():
        name = key.removeprefix(prefix)
        # A model without experts may say so.
        none = (
            name in ("expert_count", "expert_used_count") and isinstance(value, int) and not value
        )
        if key.startswith(prefix) and name not in known and not none:
            unknown.append(name)
    if unknown:
        raise ValueError(
            f"{header.path} has the values {sorted(unknown)[:8]} of a {architecture.name} model, "
            "which are not supported in a GGUF file. Load the model that it was made from, named "
            f"on its page on the hub, if its family is supported: {FAMILIES_PAGE}"
        )


def _special_ids(header: Header) -> dict[str, Any]:
    of = {name: header.whole(f"tokenizer.ggml.{name}") for name in END_IDS}
    ends = list(dict.fromkeys(index for index in of.values() if index is not None))
    return {
        "bos_token_id": header.whole("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": header.whole("tokenizer.ggml.padding_token_id"),
    }


def write_keys(
    config: TransformerConfig, architecture: Architecture
) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
    """Return the metadata of a config by key, and the tensors that belong to it.

    Raises ValueError if a GGUF file of the architecture cannot state a value.
    """
    values: dict[str, Any] = {}
    for key, ours in architecture.keys.items():
        value = getattr(config, ours)
        if value is not None:
            values[key] = value
    values["vocab_size"] = config.vocabulary_size
    tensors: Mapping[str, np.ndarray] = {}
    if architecture.rotary is not None:
        values |= {f"attention.{name}_length": config.head_dim for name in ("key", "value")}
        rotary, tensors = write_rotary(config)
        values |= rotary
    for further in architecture.further:
        values |= further.write(config)
    return {f"{architecture.name}.{name}": value for name, value in values.items()}, tensors
