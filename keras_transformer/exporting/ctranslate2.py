"""Export to CTranslate2: its specification of a transformer is filled from a model."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.config import NORMALIZATIONS, TransformerConfig
from keras_transformer.config.structure import ModelSide, block_order, sides
from keras_transformer.exporting import ctranslate2_words as words
from keras_transformer.layers.position import SinusoidalPosition
from keras_transformer.support.checking import check_choice

QUANTIZATIONS = (
    "float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16",
    "int8_bfloat16",
)  # fmt: skip


def write(task: keras.Model, directory: Path, quantization: str | None = None) -> None:
    """Fill a folder with `model.bin`, `config.json` and the vocabulary, as CTranslate2 reads them.

    The config of the model determines what is written, whatever its family: a decoder for
    `ctranslate2.Generator`, an encoder for `ctranslate2.Encoder`, a seq2seq for
    `ctranslate2.Translator`. Terms that CTranslate2 does not have (scales of residuals, the 1 that
    some norms add to their weight, scaled rotary angles) are folded into its weights.

    Args:
        task: a task or a backbone.
        directory: the folder.
        quantization: str, the format of the stored weights, such as `"int8"` or `"float16"`, see
            `QUANTIZATIONS`. Defaults to float32.

    Raises:
        ValueError: if CTranslate2 does not know the quantization or has no equivalent for a value
            of the config; the message names the value and an alternative.
    """
    check_choice("quantization", quantization, QUANTIZATIONS, none=True)
    backbone = getattr(task, "backbone", task)
    words.check(backbone.config)
    spec = _specification(backbone)
    _say_tokens(spec, task, backbone.config)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(directory))


def _specification(backbone: keras.Model) -> Any:
    """Return the specification of the whole model, without its tokens."""
    from ctranslate2.specs import transformer_spec as theirs

    weights = Weights.from_backbone(backbone)
    stacks = sides(backbone.config)
    filled = [_FILL[side.config.kind](side, weights) for side in stacks]
    if len(filled) == 2:
        spec = theirs.TransformerSpec(*filled)
    elif backbone.config.kind == "decoder":
        spec = theirs.TransformerDecoderModelSpec(filled[0])
    else:
        spec = theirs.TransformerEncoderModelSpec(filled[0], backbone.config.pooler)
        if backbone.config.pooler:
            weights.linear(spec.pooler_dense, "pooler")
    spec.config.layer_norm_epsilon = stacks[0].config.normalization_epsilon
    return spec


@dataclasses.dataclass(frozen=True)
class Weights:
    """The weights of a backbone, keyed by path, to fill the layers of a specification."""

    arrays: Mapping[str, np.ndarray]

    @classmethod
    def from_backbone(cls, backbone: keras.Model) -> "Weights":
        """Return the backbone's weights as float32."""
        found = backbone_variables(backbone)
        convert = keras.ops.convert_to_numpy
        return cls({path: np.asarray(convert(v), "float32") for path, v in found.items()})

    def linear(self, spec: Any, *paths: str, scale: Any = 1.0) -> None:
        """Fill one dense layer with the dense layers at `paths`, side by side.

        `scale` multiplies the outputs: one number, or one for each output.
        """
        kernels = [self.arrays[f"{path}/kernel"] for path in paths]
        biases = [self.arrays.get(f"{path}/bias") for path in paths]
        spec.weight = _whole(np.concatenate(kernels, axis=1).T, scale, axis=0)
        if any(bias is not None for bias in biases):
            zeros = (np.zeros(kernel.shape[1], "float32") for kernel in kernels)
            filled = [z if bias is None else bias for z, bias in zip(zeros, biases, strict=True)]
            spec.bias = _whole(np.concatenate(filled), scale, axis=0)

    def norm(self, path: str, kind: str, scale: Any = 1.0) -> Any:
        """Return the normalization at `path`, with its output multiplied by `scale`."""
        from ctranslate2.specs.common_spec import LayerNormSpec

        spec = LayerNormSpec(rms_norm=kind.startswith("rms_norm"))
        factor = NORMALIZATIONS[kind][0]
        gamma = self.arrays[f"{path}/{factor}"] + kind.endswith("plus_one")
        spec.gamma = _whole(gamma, scale, axis=0)
        if not kind.startswith("rms_norm"):
            beta = self.arrays.get(f"{path}/beta", np.zeros_like(gamma))
            spec.beta = _whole(beta, scale, axis=0)
        return spec


def _whole(array: np.ndarray, scale: Any, axis: int) -> np.ndarray:
    """Return a contiguous array, multiplied by one number or by one number per row."""
    if np.ndim(scale):
        scale = np.reshape(scale, (-1, *[1] * (array.ndim - 1)))
    return np.ascontiguousarray(array * np.float32(scale))


def _encoder(side: ModelSide, weights: Weights) -> Any:
    """Return the specification of an encoder's stack."""
    from ctranslate2.specs import common_spec
    from ctranslate2.specs import transformer_spec as theirs

    config = side.config
    segments = config.segment_vocabulary_size > 0
    spec = theirs.TransformerEncoderSpec(
        config.num_layers,
        config.num_heads,
        activation=words.activation(config),
        num_source_embeddings=1 + segments,
        embeddings_merge=common_spec.EmbeddingsMerge.ADD,
        **_of_stack(config),
    )
    spec.pre_norm = config.normalize_first
    table = weights.arrays.get("encoder_token_embedding/embeddings")
    table = weights.arrays["token_embedding/embeddings"] if table is None else table
    spec.embeddings[0].weight = table
    if segments:  # CTranslate2 scales the sum, while only the tokens are to be scaled.
        rows = weights.arrays[f"{side.name}/segment_embedding/embeddings"]
        spec.embeddings[1].weight = rows / np.float32(config.embedding_scale)
    _fill_stack(spec, side, weights)
    make = theirs.TransformerEncoderLayerSpec
    spec.layer = [_layer(make, side, i, weights) for i in block_order(config)]
    return spec


def _decoder(side: ModelSide, weights: Weights) -> Any:
    """Return the specification of a decoder's stack and of the layers that compute logits."""
    from ctranslate2.specs import transformer_spec as theirs

    config = side.config
    spec = theirs.TransformerDecoderSpec(
        config.num_layers,
        config.num_heads,
        activation=words.activation(config),
        with_encoder_attention=side.source_dim is not None,
        project_in_out=config.token_projection,
        alibi=config.position == "alibi",
        alibi_use_positive_positions=False,
        scale_alibi=config.alibi_scale != 1,
        sliding_window=words.window(config),
        **_of_stack(config),
    )
    spec.pre_norm = config.normalize_first
    arrays = weights.arrays
    spec.embeddings.weight = arrays["token_embedding/embeddings"]
    spec.projection.weight = spec.embeddings.weight
    if not config.tie_embeddings:
        output = arrays["token_embedding/reverse_embeddings"]
        spec.projection.weight = np.ascontiguousarray(output.T)
    if config.output_bias:
        spec.projection.bias = arrays["output_bias/bias"]
    if config.logit_scale != 1:
        spec.scale_outputs = np.float32(config.logit_scale)
    if config.logit_soft_cap is not None:
        spec.final_logit_softcapping = np.float32(config.logit_soft_cap)
    if config.token_projection:
        weights.linear(spec.project_in, f"{side.name}/token_projection")
        weights.linear(spec.project_out, "state_projection")
    _fill_stack(spec, side, weights)
    layer = functools.partial(
        theirs.TransformerDecoderLayerSpec,
        with_encoder_attention=side.source_dim is not None,
        external_pre_post_encoder_layers=config.normalize_output,
    )
    spec.layer = [_layer(layer, side, i, weights) for i in block_order(config)]
    return spec


_FILL = {"encoder": _encoder, "decoder": _decoder}


def _of_stack(config: TransformerConfig) -> dict[str, Any]:
    """Return the arguments that the specifications of encoders and decoders share."""
    return {
        "no_final_norm": not config.final_normalization,
        "layernorm_embedding": config.embedding_normalization,
        "relative_attention_bias": config.relative_bias,
    }


def _fill_stack(spec: Any, side: ModelSide, weights: Weights) -> None:
    """Fill in a stack's layers before and after its blocks."""
    config, name = side.config, side.name
    spec.scale_embeddings = np.float32(config.embedding_scale)
    if config.final_normalization:
        spec.layer_norm = weights.norm(f"{name}/final_norm", config.normalization)
    if config.embedding_normalization:
        spec.layernorm_embedding = weights.norm(f"{name}/embedding_norm", config.normalization)
    if config.position == "learned":
        rows = weights.arrays[f"{name}/position_embedding/embeddings"]
        spec.position_encodings.encodings = np.ascontiguousarray(rows[config.position_offset :])
    elif config.position == "sinusoidal":
        spec.position_encodings.encodings = _waves(config)
    elif config.layer(0).position == "none":  # otherwise CTranslate2 would add sinusoids
        shape = (config.max_sequence_length, config.hidden_dim)
        spec.position_encodings.encodings = np.zeros(shape, "float32")


def _waves(config: TransformerConfig) -> np.ndarray:
    """Return the table of sinusoidal positions, `(max_sequence_length, embedding_dim)`."""
    layer = SinusoidalPosition(
        interleaved=config.sinusoidal_interleaved,
        inclusive=config.sinusoidal_inclusive,
        offset=config.position_offset,
        dtype="float32",
    )
    inputs = np.zeros((1, config.max_sequence_length, config.hidden_dim), "float32")
    return np.array(keras.ops.convert_to_numpy(layer(inputs))[0])


def _layer(make: Any, side: ModelSide, i: int, weights: Weights) -> Any:
    """Return the specification of one block, from the flat config of its layer."""
    config, path = side.layer(i), f"{side.name}/layer_{i}"
    spec = make(
        ffn_glu=config.gated,
        relative_attention_bias=config.relative_bias,
        num_heads_kv=words.key_heads(config),
        head_dim=config.head_dim,
        qk_norm=config.query_key_norm,
        sliding_window=words.window(config),
        pre_post_layer_norm=config.normalize_output,
        **({} if side.name == "encoder" else _residuals(config)),
        **words.rotary(config),
    )
    _attention(spec.self_attention, config, f"{path}/self_attention", weights)
    words.fill_rotary(spec.self_attention, config)
    if config.relative_bias:
        table = weights.arrays[f"{side.name}/relative_bias/embeddings"]
        spec.self_attention.relative_attention_bias = table
        longest = np.int32(config.relative_max_distance)
        spec.self_attention.relative_attention_max_distance = longest
    if side.source_dim is not None:
        _attention(spec.attention, config, f"{path}/cross_attention", weights)
    scale = _residual_scale(config, f"{path}/feed_forward", weights)
    own = 1.0 if config.normalize_output else scale
    first = "gate" if config.gated else "intermediate"
    weights.linear(spec.ffn.linear_0, f"{path}/feed_forward/{first}")
    if config.gated:
        weights.linear(spec.ffn.linear_0_noact, f"{path}/feed_forward/intermediate")
    weights.linear(spec.ffn.linear_1, f"{path}/feed_forward/output", scale=own)
    _fill_norms(spec, side, config, path, weights)
    return spec


def _residuals(config: TransformerConfig) -> dict[str, bool]:
    return {
        "parallel_residual": config.parallel_residual,
        "shared_layer_norm": config.share_normalization,
    }


def _fill_norms(
    spec: Any, side: ModelSide, config: TransformerConfig, path: str, weights: Weights
) -> None:
    """Fill in the normalizations of a block, whose places depend on the kind of block."""
    sublayers = {"self_attention": spec.self_attention, "feed_forward": spec.ffn}
    if side.source_dim is not None:
        sublayers["cross_attention"] = spec.attention
    if config.share_normalization:
        places = {"self_attention_norm": (spec, "shared_layer_norm")}
    elif config.parallel_residual:
        places = {
            "self_attention_norm": (spec, "input_layer_norm"),
            "feed_forward_norm": (spec, "post_attention_layer_norm"),
        }
    elif config.normalize_output:
        before, behind = _AROUND
        places = {f"{name}_norm": (spec, before[name]) for name in sublayers}
        places |= {f"{name}_output_norm": (spec, behind[name]) for name in sublayers}
    else:
        places = {f"{name}_norm": (layer, "layer_norm") for name, layer in sublayers.items()}
    for name, (layer, attribute) in places.items():
        scale = 1.0
        if name.endswith("_output_norm"):
            sublayer = f"{path}/{name.removesuffix('_output_norm')}"
            scale = _residual_scale(config, sublayer, weights)
        norm = weights.norm(f"{path}/{name}", config.normalization, scale)
        setattr(layer, attribute, norm)


_AROUND = (
    {
        "self_attention": "input_layer_norm",
        "cross_attention": "external_pre_encoder_attention_layer_norm",
        "feed_forward": "pre_feedforward_layer_norm",
    },
    {
        "self_attention": "post_attention_layer_norm",
        "cross_attention": "external_post_encoder_attention_layer_norm",
        "feed_forward": "post_feedforward_layer_norm",
    },
)


def _residual_scale(config: TransformerConfig, sublayer: str, weights: Weights) -> Any:
    """Return the factor of a sub-layer's output, applied before the residual is added."""
    scale = config.residual_scale
    if config.trained_residual_scale:
        scale = scale * weights.arrays[f"{sublayer}_scale"]
    return scale


def _attention(spec: Any, config: TransformerConfig, path: str, weights: Weights) -> None:
    """Fill in the projections of an attention layer."""
    *first, last = spec.linear
    joined = [("query", "key", "value")] if len(first) == 1 else [("query",), ("key", "value")]
    for layer, names in zip(first, joined, strict=True):
        weights.linear(layer, *(f"{path}/{name}" for name in names))
    scale = 1.0 if config.normalize_output else _residual_scale(config, path, weights)
    weights.linear(last, f"{path}/output", scale=scale)
    spec.queries_scale = np.float32(words.score_scale(config, path.endswith("self_attention")))
    if config.query_key_norm:
        spec.q_norm = weights.norm(f"{path}/query_norm", config.normalization)
        spec.k_norm = weights.norm(f"{path}/key_norm", config.normalization)


def _say_tokens(spec: Any, task: keras.Model, config: TransformerConfig) -> None:
    """Write the vocabulary and the special tokens (unknown, start, end) to a specification."""
    tokenizer = getattr(task, "tokenizer", None)
    size = config.sides[-1].vocabulary_size
    tokens = _tokens(tokenizer, size)
    roles = ("unknown", "start", "end")
    ids = [None if tokenizer is None else getattr(tokenizer, f"{role}_id") for role in roles]
    unknown, start, end = (tokens[0] if i is None else tokens[i] for i in ids)
    ends = getattr(task, "end_ids", None)
    spec.config.unk_token, spec.config.bos_token = unknown, start
    spec.config.eos_token = tokens[ends[0]] if ends else end
    if config.kind != "seq2seq":
        spec.register_vocabulary(tokens)
        return
    first = getattr(task, "start_id", None)
    spec.config.decoder_start_token = None if first is None else tokens[first]
    spec.register_source_vocabulary(_tokens(tokenizer, config.side("encoder").vocabulary_size))
    spec.register_target_vocabulary(tokens)


def _tokens(tokenizer: Any, size: int) -> list[str]:
    """Return the token of each id; ids without a token get a name such as `<id_7>`."""
    known = {} if tokenizer is None else {i: t for t, i in tokenizer.get_vocabulary().items()}
    return [known.get(i, f"<id_{i}>") for i in range(size)]
