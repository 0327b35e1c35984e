"""The published config of a GGUF file's family, made from the file's metadata."""

import math
from typing import Any

import numpy as np

from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.tensors import read_floats
from keras_transformer.checkpoints.other_formats import FAMILIES_PAGE

# `general.architecture` -> the published `model_type`, and the class of its language model.
ARCHITECTURES = {
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "phi3": ("phi3", "Phi3ForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
# Keys that a model may have, without the architecture before them. Any other one may say something
# about the model that nothing here reads.
_KNOWN = {
    "context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length",
    "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.dimension_count",
    "rope.freq_base", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.finetuned", "tensor_data_layout",
}  # fmt: skip
_OWN = {
    "gemma2": {
        "attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping",
    },
    "gemma3": {
        "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa",
        "final_logit_softcapping",
    },
    "phi3": {"attention.sliding_window"},
}  # fmt: skip
# Layers of the models of 27 billion parameters, by which llama.cpp recognizes them. Their scale of
# scores is another one, which no key states.
_LAYERS_OF_27B = {"gemma2": 46, "gemma3": 62}
# Llama 3.1 and later: the longest and the shortest wave that is stretched in part, and the length
# that the model was trained with. Every published one has these values.
_LOW, _HIGH, _TRAINED = 1.0, 4.0, 8192
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


def published_config(header: Header) -> dict[str, Any]:
    """Return the published config of a GGUF file.

    Raises ValueError, with what to do, if the architecture or a value of it is not supported.
    """
    architecture = header.get("general.architecture", str, "")
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"{header.path} has the architecture {architecture!r}. GGUF files are read of "
            f"{', '.join(ARCHITECTURES)}. Load the model that it was made from, named on its page "
            f"on the hub, if its family is supported: {FAMILIES_PAGE}"
        )
    if (header.whole("split.count") or 1) > 1:
        raise ValueError(
            f"{header.path} is one of {header.whole('split.count')} files of a model. Merge them "
            "first: `llama-gguf-split --merge FIRST_FILE NEW_FILE`, a program of llama.cpp."
        )
    _check_keys(header, architecture)
    return _Model(header, architecture).config()


def _check_keys(header: Header, architecture: str) -> None:
    prefix, known = f"{architecture}.", _KNOWN | _OWN.get(architecture, set())
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
            f"{header.path} has the values {sorted(unknown)[:8]} of a {architecture} model, which "
            "are not supported in a GGUF file. Load the model that it was made from, named on its "
            f"page on the hub, if its family is supported: {FAMILIES_PAGE}"
        )


class _Model:
    """Values of the metadata as the published config of their architecture."""

    def __init__(self, header: Header, architecture: str):
        self.header, self.architecture = header, architecture
        self.width = self._needed("embedding_length")
        self.heads = self._needed("attention.head_count")
        self.layers = self._needed("block_count")
        self.head_dim = self._whole("attention.key_length") or self.width // self.heads
        values = self._whole("attention.value_length") or self.head_dim
        if values != self.head_dim:
            raise ValueError(
                f"{header.path}: heads of {self.head_dim} features for keys and {values} for "
                "values are not supported. Load the model that it was made from."
            )

    def config(self) -> dict[str, Any]:
        model_type, language_model = ARCHITECTURES[self.architecture]
        embedding = self.header.tensors.get("token_embd.weight")
        if embedding is None:
            raise ValueError(
                f"{self.header.path} has no tensor 'token_embd.weight': it is not a whole language "
                "model. Download or convert it again."
            )
        names = self.header.tensors.keys()
        values = {
            "model_type": model_type,
            "architectures": [language_model],
            "vocab_size": embedding.shape[0],
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self._whole("attention.head_count_kv") or self.heads,
            "head_dim": self.head_dim,
            "intermediate_size": self._needed("feed_forward_length"),
            "max_position_embeddings": self._needed("context_length"),
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon", 1e-6),
            "tie_word_embeddings": "output.weight" not in names,
            **self._positions(),
            **self._special_ids(),
        }
        if self.architecture in ("llama", "qwen3"):
            values["attention_bias"] = "blk.0.attn_q.bias" in names
        if self.architecture == "llama":
            values["mlp_bias"] = "blk.0.ffn_gate.bias" in names
        if self.architecture == "phi3":
            values["sliding_window"] = self._whole("attention.sliding_window") or None
        if self.architecture.startswith("gemma"):
            values |= self._gemma()
        return values

    def _gemma(self) -> dict[str, Any]:
        wide = _LAYERS_OF_27B[self.architecture] == self.layers
        values = {
            "query_pre_attn_scalar": self.width // self.heads if wide else self.head_dim,
            "sliding_window": self._whole("attention.sliding_window", 4096) or None,
        }
        if self.architecture == "gemma2":
            caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
            return values | {name: self._real(name, usual) or None for name, usual in caps.items()}
        return values | {
            "final_logit_softcapping": self._real("final_logit_softcapping", 0.0) or None,
            "sliding_window_pattern": self._whole("attention.sliding_window_pattern", 6),
            "rope_local_base_freq": self._real("rope.freq_base_swa", 10_000.0),
        }

    def _positions(self) -> dict[str, Any]:
        base = self._real("rope.freq_base", 1e6 if self.architecture == "gemma3" else 10_000.0)
        values: dict[str, Any] = {"rope_theta": base}
        turned = self._whole("rope.dimension_count") or self.head_dim
        if turned != self.head_dim:
            if self.architecture != "phi3" or turned > self.head_dim:
                raise ValueError(
                    f"{self.header.path}: rotary positions of {turned} of {self.head_dim} features "
                    f"are not supported in a {self.architecture} GGUF file. Load the model that it "
                    "was made from."
                )
            values["partial_rotary_factor"] = turned / self.head_dim
        kind = self.header.get(f"{self.architecture}.rope.scaling.type", str, "none")
        if kind == "linear":
            factor = self._real("rope.scaling.factor", 1.0)
            values["rope_scaling"] = {"rope_type": "linear", "factor": factor}
        elif kind not in ("none", ""):
            raise ValueError(
                f"{self.header.path}: rotary positions scaled by {kind!r} are not supported in a "
                "GGUF file. Load the model that it was made from."
            )
        if "rope_freqs.weight" in self.header.tensors:
            values["rope_scaling"] = self._llama3(base, turned, scaled="rope_scaling" in values)
        for name in ("rope_factors_long.weight", "rope_factors_short.weight"):
            if name in self.header.tensors:
                raise ValueError(
                    f"{self.header.path} has the tensor {name!r}, of rotary positions for long "
                    "texts, which are not supported in a GGUF file. Load the model that it was "
                    "made from."
                )
        return values

    def _llama3(self, base: float, turned: int, scaled: bool) -> dict[str, Any] | None:
        """Return Llama 3's scaling, by whose factors the file divides the frequencies."""
        stored = self.header.tensors["rope_freqs.weight"]
        found = None
        if stored.shape == (turned // 2,) and self.architecture == "llama" and not scaled:
            found = read_floats(self.header.path, stored, "rope_freqs.weight")
        if found is not None and np.isfinite(found).all():
            factor = float(found.max())
            factor = round(factor) if math.isclose(factor, round(factor), rel_tol=1e-5) else factor
            if factor == 1 and np.all(found == 1):
                return None
            if factor > 1 and np.allclose(found, _factors(base, turned, factor), 1e-5, 0):
                return {
                    "rope_type": "llama3",
                    "factor": float(factor),
                    "low_freq_factor": _LOW,
                    "high_freq_factor": _HIGH,
                    "original_max_position_embeddings": _TRAINED,
                }
        raise ValueError(
            f"{self.header.path}: the factors of its rotary positions, 'rope_freqs.weight', are "
            "not those of Llama 3.1, which alone are read. Load the model that it was made from."
        )

    def _special_ids(self) -> dict[str, Any]:
        of = {name: self.header.whole(f"tokenizer.ggml.{name}") for name in _END_IDS}
        ends = list(dict.fromkeys(index for index in of.values() if index is not None))
        return {
            "bos_token_id": self.header.whole("tokenizer.ggml.bos_token_id"),
            "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
            "pad_token_id": self.header.whole("tokenizer.ggml.padding_token_id"),
        }

    def _needed(self, name: str) -> int:
        return self.header.needed(f"{self.architecture}.{name}")

    def _whole(self, name: str, default: int | None = None) -> int | None:
        return self.header.whole(f"{self.architecture}.{name}", default)

    def _real(self, name: str, default: float) -> float:
        value = self.header.get(f"{self.architecture}.{name}", (float, int), default)
        if not 0 <= value < math.inf:
            raise ValueError(
                f"{self.header.path}: '{self.architecture}.{name}' must be a finite number of at "
                f"least 0, received {value!r}."
            )
        return float(value)


def _factors(base: float, turned: int, factor: float) -> np.ndarray:
    """Return what Llama 3's scaling divides each frequency by."""
    waves = 2 * np.pi * base ** (np.arange(0, turned, 2) / turned)
    smooth = np.clip((_TRAINED / waves - _LOW) / (_HIGH - _LOW), 0, 1)
    return 1 / ((1 - smooth) / factor + smooth)
