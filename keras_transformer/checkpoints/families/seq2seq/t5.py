"""T5: Raffel et al. 2019, https://arxiv.org/abs/1910.10683; 1.1 and Flan: gated feed-forward.

Relative positions, no biases, root-mean-square pre-norm, and unscaled scores.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import flag, seq2seq_heads
from keras_transformer.checkpoints.families.seq2seq import chronos
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import TransformerConfig


def read_feed_forward(values: Values) -> dict[str, Any]:
    """Return our activation and gate for the published `feed_forward_proj`."""
    name = values.get("feed_forward_proj", "relu")
    parts = name.split("-") if isinstance(name, str) else [None]
    if parts[-1] not in ACTIVATIONS or parts[:-1] not in ([], ["gated"]):
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(
            f"feed_forward_proj={name!r} is not supported, only {known}, each also with 'gated-'."
        )
    activation = "gelu_tanh" if name == "gated-gelu" else ACTIVATIONS[parts[-1]]
    return {"activation": activation, "gated": len(parts) == 2}


def write_feed_forward(config: TransformerConfig) -> dict[str, Any]:
    """Return the published `feed_forward_proj` for our activation and gate."""
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    name = names[config.activation]
    if config.gated:  # "gated-gelu" means the tanh approximation
        name = {"gelu_tanh": "gelu", "gelu": "gelu_python"}.get(config.activation, name)
    return {"feed_forward_proj": f"gated-{name}" if config.gated else name}


_TIED = "tie_word_embeddings"


def is_tied(values: Values) -> bool:
    """Return whether the embedding is shared with the output: unless the config denies it."""
    return values.get(_TIED) is None or flag(values, _TIED)


def _read_scale(values: Values) -> dict[str, Any]:
    # In old models the states before the output are scaled if the embedding is shared, which this
    # value says.
    tied = is_tied(values)
    return {"scale_logits": values.get("scale_decoder_outputs", tied), "tie_embeddings": tied}


def _write_scale(config: TransformerConfig) -> dict[str, Any]:
    return {
        "scale_decoder_outputs": config.scale_logits,
        "tie_word_embeddings": config.tie_embeddings,
    }


def encoder_alone(*classes: str) -> Conversion:
    """Return a conversion for the class names of encoders alone, the bare model's first."""

    def read(values: Values) -> dict[str, Any]:
        named = values.get("architectures")
        alone = isinstance(named, list) and named[:1] and named[0] in classes
        return {"kind": "encoder", "num_decoder_layers": None, "decoder": None} if alone else {}

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {"architectures": [classes[0]]} if config.kind == "encoder" else {}

    return Conversion(read, write)


ONE_TEXT_HEADS = seq2seq_heads(0, 1, answers_prefix="") | {
    "TokenClassifier": PublishedHead(
        weights=layers({"output": "classifier"}), dropout="classifier_dropout"
    )
}

_ATTENTION = attention("Attention.{}", "q", "k", "v", "o", ours="attention")


def stack(name: str, feed_forward: int, attention_name: str = "Self") -> tuple[WeightLine, ...]:
    """Return the lines of a stack; `feed_forward` is the index of that sub-layer in a block."""
    ours, theirs = f"{name}/layer_{{i}}/", f"{name}.block.{{i}}.layer."
    first = f"{name}.block.0.layer.0.{attention_name}Attention.relative_attention_bias"
    last = f"{theirs}{feed_forward}."
    gated = {"feed_forward/gate": "wi_0", "feed_forward/intermediate": "wi_1"}
    plain = {"feed_forward/intermediate": "wi"}
    inner = f"{last}DenseReluDense."
    return (
        *layers({f"{name}/relative_bias": first, f"{name}/final_norm": f"{name}.final_layer_norm"}),
        *layers(_ATTENTION, f"{ours}self_", f"{theirs}0.{attention_name}"),
        *layers({"self_attention_norm": "0.layer_norm"}, ours, theirs),
        *layers(gated, ours, inner, when=("gated", True)),
        *layers(plain, ours, inner, when=("gated", False)),
        *layers({"feed_forward/output": "wo"}, ours, inner),
        *layers({"feed_forward_norm": "layer_norm"}, ours, last),
    )


DECODER = (
    *stack("decoder", feed_forward=2),
    *layers(_ATTENTION, "decoder/layer_{i}/cross_", "decoder.block.{i}.layer.1.EncDec"),
    *layers({"decoder/layer_{i}/cross_attention_norm": "decoder.block.{i}.layer.1.layer_norm"}),
)

T5 = Family(
    model_type="t5",
    architecture="T5Model",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 32128),
        "d_model": ConfigField("hidden_dim", 512),
        "d_kv": ConfigField("head_dim", 64),
        "d_ff": ConfigField("intermediate_dim", 2048),
        "num_layers": ConfigField("num_layers", 6),
        "num_decoder_layers": ConfigField("num_decoder_layers", None),
        "num_heads": ConfigField("num_heads", 8),
        "relative_attention_num_buckets": ConfigField("relative_num_buckets", 32),
        "relative_attention_max_distance": ConfigField("relative_max_distance", 128),
        "dropout_rate": ConfigField("dropout", 0.1),
        "layer_norm_epsilon": ConfigField("normalization_epsilon", 1e-6),
        "n_positions": ConfigField("max_sequence_length", 512),
    },
    constants={
        "kind": "seq2seq",
        "position": "relative",
        "score": "dot",
        "use_bias": False,
        "normalization": "rms_norm",
        "normalize_first": True,
    },
    conversions=(
        Conversion(read_feed_forward, write_feed_forward),
        Conversion(_read_scale, _write_scale),
        encoder_alone("T5EncoderModel", "T5ForTokenClassification"),
    ),
    weights=(
        WeightLine(
            "token_embedding/embeddings",
            "shared.weight",
            also=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
        ),
        output_matrix("lm_head.weight"),
        *stack("encoder", feed_forward=1),
        *DECODER,
    ),
    heads={
        "Seq2SeqLM": PublishedHead(
            architectures=("T5ForConditionalGeneration", "T5WithLMHeadModel"),
            values={"start_id": 0},
            prefix="",
        ),
        "SampledForecaster": chronos.HEAD,
        **ONE_TEXT_HEADS,
    },
    names=Names(
        prefixes=("transformer.",),
        ignored=(
            # A bias in early checkpoints that was never used.
            "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
        ),
    ),
)
