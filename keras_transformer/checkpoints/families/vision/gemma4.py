"""Gemma4: Google DeepMind 2026, https://ai.google.dev/gemma/docs/core/model_card_4.

With images: a tower in the blocks of Gemma, which reads images of any aspect ratio as sequences of
patches, with a trained vector of each row and of each column and rotations by both. Its states are
averaged over squares of patches, normalized, projected by one layer, and put among the tokens of a
Gemma 4. The larger models let the states of an image see each other, in layers with a window. The
smaller models also read sound, by an encoder of its own.
"""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import (
    TEXT_END,
    nested,
    prefixed,
    read_text,
    write_text,
)
from keras_transformer.checkpoints.families.base.shared import flag, number, number_of_layers
from keras_transformer.checkpoints.families.base.towers import with_encoder
from keras_transformer.checkpoints.families.decoders.gemma4 import GEMMA4_TEXT, SHARED_KEYS
from keras_transformer.checkpoints.families.vision.gemma4_sound import (
    SOUND_WEIGHTS,
    read_sound,
    write_sound,
)
from keras_transformer.checkpoints.weights.tables import (
    Names,
    WeightLine,
    attention,
    layers,
    output_matrix,
)
from keras_transformer.config import Attention, Norm, Rotary, RotaryAxes, TransformerConfig
from keras_transformer.config.stems import PatchSequenceStemConfig
from keras_transformer.config.weight import BOUNDS

_VISION, _USUAL = "gemma4_vision", "gelu_pytorch_tanh"
# The text model by keywords: its other parts are added to the whole.
_BY_KEYWORDS = dataclasses.replace(GEMMA4_TEXT, parts=None)


def _tower(values: Values) -> TransformerConfig:
    """Return the image tower of a published `vision_config`. Raises ValueError if it is invalid."""
    kind = values.get("model_type", _VISION)
    if kind != _VISION:
        raise ValueError(f"The image tower {kind!r} is not supported, only {_VISION!r}.")
    activation = values.get("hidden_activation", _USUAL)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"hidden_activation={activation!r} of the image tower is not supported.")
    if values.get("attention_bias"):
        raise ValueError("attention_bias=True of the image tower is not supported.")
    width, heads = number(values, "head_dim", 64), number(values, "num_attention_heads", 12)
    if width < 4 or width % 4:
        raise ValueError(
            f"head_dim={width} of the image tower must be a multiple of 4: a head rotates as many "
            "pairs of features by rows as by columns."
        )
    options = nested(values, "rope_parameters")
    rope = options.get("rope_type", "axial")
    if rope not in ("axial", "default"):  # published configs name the only kind there is so
        raise ValueError(f"rope_type={rope!r} of the image tower is not supported, only 'axial'.")
    epsilon = number(values, "rms_norm_eps", 1e-6, float)
    mixer = Attention(
        num_heads=heads,
        num_key_value_heads=number(values, "num_key_value_heads", 12),
        head_dim=width,
        bias=False,
        query_key_norm="head",
        value_norm=Norm(type="rms_norm_no_weight", epsilon=epsilon),
        scale=1.0,
        clipped=flag(values, "use_clipped_linears"),
        dropout=values.get("attention_dropout") or 0.0,
        position=Rotary(
            base=number(options, "rope_theta", 100.0, float),
            position_axes=RotaryAxes(pairs=(width // 4,) * 2, order="apart"),
        ),
    )
    return TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=number(values, "hidden_size", 768),
        num_layers=number_of_layers(values, 16),
        num_heads=heads,
        head_dim=width,
        intermediate_dim=number(values, "intermediate_size", 3072),
        activation=ACTIVATIONS[activation],
        gated=True,
        use_bias=False,
        position="none",  # the stem and the mixer have the positions
        normalization="rms_norm",
        normalize_first=True,
        normalize_output=True,
        normalization_epsilon=epsilon,
        final_normalization=False,
        mixer=mixer,
        stem={
            "kind": "patch_sequence",
            "patch_size": number(values, "patch_size", 16),
            "num_frames": 1,
            "num_channels": 3,
            "axis_positions": number(values, "position_embedding_size", 10240),
        },
    )


def _written_tower(config: TransformerConfig) -> dict[str, Any]:
    """Return the published `vision_config`. Raises ValueError if the model has no such tower."""
    side = config.side("encoder")
    mixer = side.encoder.block.mixer
    alike = isinstance(side.stem, PatchSequenceStemConfig) and isinstance(mixer, Attention)
    if not alike or config.projector is None or config.projector.type != "merged_mean":
        raise ValueError("an image tower there reads patches of images of any aspect ratio.")
    names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
    names[ACTIVATIONS[_USUAL]] = _USUAL
    return {
        "model_type": _VISION,
        "hidden_size": side.hidden_dim,
        "intermediate_size": side.intermediate_dim,
        "num_hidden_layers": side.num_layers,
        "num_attention_heads": mixer.num_heads,
        "num_key_value_heads": mixer.num_key_value_heads,
        "head_dim": mixer.head_dim,
        "hidden_activation": names[side.activation],
        "rms_norm_eps": side.normalization_epsilon,
        "attention_dropout": mixer.dropout,
        "rope_parameters": {"rope_type": "axial", "rope_theta": getattr(mixer.position, "base", 0)},
        "pooling_kernel_size": config.projector.pool,
        "patch_size": side.stem.patch_size,
        "position_embedding_size": side.stem.axis_positions,
        "use_clipped_linears": mixer.clipped,
        "standardize": config.projector.standardized,
    }


def _read(values: Values) -> dict[str, Any]:
    vision, text = nested(values, "vision_config"), nested(values, "text_config")
    padding = text.get("pad_token_id", 0)
    if padding != 0:
        raise ValueError(
            f"pad_token_id={padding!r} is not supported, only 0: the places of images have its "
            "vectors for each layer."
        )
    seen = text.get("use_bidirectional_attention")
    if seen is not None and values.get("audio_config") is not None:
        raise ValueError(
            "An audio_config and use_bidirectional_attention are not supported together: the "
            "states of an image would see each other, but the states of sound would not."
        )
    return with_encoder(
        _tower(vision),
        read_text(values, _BY_KEYWORDS),
        placeholder_id=number(values, "image_token_id", 258880),
        placeholder_visibility="causal" if seen is None else "windows",
        projector="merged_mean",
        projector_pool=number(vision, "pooling_kernel_size", 3),
        projector_bias=False,
        tie_embeddings=flag(values, "tie_word_embeddings", True),
    )


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        "image_token_id": config.placeholder_id,
        **({"audio_config": None} if config.sound is None else {}),
        "tie_word_embeddings": config.tie_embeddings,
    }


def _read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Add the parts of the text model, the ranges of clipped layers, and the shift of the means."""
    decoder = GEMMA4_TEXT.parts.read(nested(values, "text_config"), config.side("decoder"))
    standard = flag(nested(values, "vision_config"), "standardize")
    config = _with(config, decoder, config.encoder.block.mixer.clipped, standard)
    if values.get("audio_config") is None:
        return config
    side, projector = read_sound(nested(values, "audio_config"))
    return config.replace(sound=side, sound_projector=projector)


def _write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    if config.kind != "seq2seq" or config.placeholders is None:
        return config, {}
    text = write_text(config, GEMMA4_TEXT)
    if config.placeholder_visibility == "windows":
        text["use_bidirectional_attention"] = "vision"
    decoder, _ = GEMMA4_TEXT.parts.write(config.side("decoder"))
    theirs = {"vision_config": _written_tower(config), "text_config": text}
    if config.sound is not None:
        theirs["audio_config"] = write_sound(config)
        config = config.replace(sound=None, sound_projector=None)
    return _with(config, decoder, False, False), theirs


def _with(
    config: TransformerConfig, decoder: TransformerConfig, clipped: bool, standardized: bool
) -> TransformerConfig:
    """Return a config with values that have no keywords."""
    side = config.encoder
    block = side.block.replace(feed_forward=side.block.feed_forward.replace(clipped=clipped))
    return config.replace(
        decoder=decoder.decoder,
        encoder=side.replace(block=block),
        projector=config.projector.replace(standardized=standardized),
    )


_DENSE = {
    **attention("self_attn.{}_proj", "q", "k", "v", "o"),
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/intermediate": "mlp.up_proj",
    "feed_forward/output": "mlp.down_proj",
}
_NORMS = {
    "self_attention/query_norm": "self_attn.q_norm",
    "self_attention/key_norm": "self_attn.k_norm",
    "self_attention_norm": "input_layernorm",
    "self_attention_output_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_output_norm": "post_feedforward_layernorm",
}
_OURS, _THEIRS = "encoder/layer_{i}/", "vision_tower.encoder.layers.{i}."
_EMBEDDER = "vision_tower.patch_embedder."
_TOWER = (
    WeightLine("encoder/input_patches/kernel", f"{_EMBEDDER}input_proj.weight", of_patches=True),
    WeightLine("encoder/input_axis_positions", f"{_EMBEDDER}position_embedding_table"),
    *layers({ours: f"{theirs}.linear" for ours, theirs in _DENSE.items()}, _OURS, _THEIRS),
    *layers(_NORMS, _OURS, _THEIRS),
    *(
        WeightLine(f"{_OURS}{ours}/{bound}", f"{_THEIRS}{theirs}.{bound}")
        for ours, theirs in _DENSE.items()
        for bound in BOUNDS
    ),
    WeightLine("projector/standard_mean", "vision_tower.std_bias"),
    WeightLine("projector/standard_scale", "vision_tower.std_scale"),
    *layers({"projector/output": "embed_vision.embedding_projection"}),
)

GEMMA4 = Family(
    model_type="gemma4",
    architecture="Gemma4Model",
    fields={},
    constants={"kind": "seq2seq"},
    conversions=(Conversion(_read, _write),),
    parts=PartsWithoutKeywords(_read_parts, _write_parts),
    weights=(
        *_TOWER,
        *SOUND_WEIGHTS,
        *prefixed(GEMMA4_TEXT.weights, "language_model."),
        output_matrix("lm_head.weight"),
    ),
    heads={
        "ImageToText": PublishedHead(
            architectures=("Gemma4ForConditionalGeneration",),
            values={
                "template": "<|turn>user\n\n\n<|image><|image|><image|>\n\n{prompt}<turn|>\n"
                "<|turn>model\n",
                "image_text": "<|image>{image}<image|>",
            },
            options=(TEXT_END,),
        )
    },
    names=Names(
        prefixes=("model.",),
        ignored=tuple(f"language_model.{each}" for each in SHARED_KEYS),
    ),
)
