"""T5Gemma2: Zhang et al. 2025, https://arxiv.org/abs/2512.14856.

An encoder and a decoder of Gemma 3's blocks with one embedding. The decoder attends to its own
tokens and to the encoder's states in one softmax (merged attention). With images: Gemma 3's image
tower, whose states are put among the tokens of the encoder. Published models have the tower; tasks
of texts leave it out.
"""

from collections.abc import Callable
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PartsWithoutKeywords,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.placed import nested
from keras_transformer.checkpoints.families.base.shared import flag, number, unread
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA3
from keras_transformer.checkpoints.families.seq2seq.t5gemma import joined, stack, with_windows
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers, output_matrix
from keras_transformer.config import SIDES, Block, Side, Tokens, TransformerConfig, Window

_WINDOW = 4096  # where no layer has a window, the published config has one all the same
# The smallest image tower that Transformers takes, for models without one.
_NO_IMAGES = {
    "model_type": "siglip_vision_model", "hidden_size": 1, "intermediate_size": 1,
    "num_hidden_layers": 0, "num_attention_heads": 1, "image_size": 16, "patch_size": 1,
    "vision_use_head": False,
}  # fmt: skip


def _of_side(values: Values, name: str) -> dict[str, Any]:
    """Return the published config of one side, with the dropout of the whole model."""
    given = nested(values, name)
    given = nested(given, "text_config") if name == "encoder" else given
    if flag(given, "use_bidirectional_attention", False):
        raise ValueError("use_bidirectional_attention=True is not supported, only False.")
    return {**given, "attention_dropout": values.get("attention_dropout", 0.0)}


def read_sides(values: Values) -> dict[str, Any]:
    """Return the values of both sides, from the published config of each."""
    encoder, decoder = (GEMMA3.config(_of_side(values, name)) for name in SIDES)
    # A window of the encoder has half of its tokens, and itself, before a token.
    return joined(with_windows(encoder, lambda size: (size + 1) // 2), decoder)


def _with_blocks(side: Side, change: Callable[[Block], Block], replaced: int | None) -> Side:
    """Return a side with all its blocks changed, and with the token that has a vector apart."""
    return side.replace(
        block=change(side.block),
        layers=tuple(map(change, side.layers)),
        input=side.input.replace(replaced_id=replaced),
    )


def _with_behind(block: Block, behind: int | None) -> Block:
    """Return a block whose window, if it has one, has this many tokens behind a token."""
    pattern = getattr(block.mixer, "pattern", None)
    if not isinstance(pattern, Window):
        return block
    return block.replace(mixer=block.mixer.replace(pattern=pattern.replace(behind=behind)))


def read_parts(values: Values, config: TransformerConfig) -> TransformerConfig:
    """Return the config of `read_sides` with the parts that its keywords lack."""
    size = number(_of_side(values, "encoder"), "sliding_window", _WINDOW)
    own = number(nested(values, "encoder"), "eoi_token_index", 256000)
    return merged(config, size, own)


def merged(config: TransformerConfig, window: int, own: int | None) -> TransformerConfig:
    """Return the config of `read_sides` with merged attention.

    Args:
        config: what `read_sides` says.
        window: published size of the encoder's windows.
        own: id of the token that has a vector beside the table, or None.
    """
    behind = None if window % 2 else window // 2  # one more than before it
    return config.replace(
        encoder=_with_blocks(config.encoder, lambda block: _with_behind(block, behind), own),
        decoder=_with_blocks(
            config.decoder, lambda block: block.replace(merged_attention=True), own
        ),
    )


def _published_window(side: Side) -> int:
    """Return the published size of the encoder's windows."""
    windows = {getattr(block.mixer, "pattern", None) for block in side.every_block} - {None}
    if not windows:
        return _WINDOW
    window = windows.pop()
    behind = getattr(window, "behind", None)
    behind = window.size - 1 if behind is None else behind
    if windows or behind - window.size not in (-1, 0):
        raise ValueError("the windows there have as many tokens before as behind, or one fewer.")
    return window.size + behind


def write_parts(config: TransformerConfig) -> tuple[TransformerConfig, dict[str, Any]]:
    """Return the config by keywords, and the published values of its other parts."""
    if config.kind != "seq2seq" or not all(
        isinstance(s.only_side.input, Tokens) for s in config.sides
    ):
        return config, {}
    own = config.decoder.input.replaced_id
    if own is None:
        raise ValueError("one token there has a vector beside the table, a `replaced_id`.")
    plain, (encoder, decoder) = written_sides(config)
    return plain, {
        "encoder": {
            "model_type": "t5gemma2_encoder",
            "text_config": encoder,
            "vision_config": _NO_IMAGES,
            "mm_tokens_per_image": 1,
            "eoi_token_index": own,
        },
        "decoder": decoder,
        "is_encoder_decoder": True,
    }


def written_sides(
    config: TransformerConfig,
) -> tuple[TransformerConfig, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the config without merged attention, and the published configs of both sides."""
    window = _published_window(config.encoder)
    plain = config.replace(
        encoder=_with_blocks(config.encoder, lambda block: _with_behind(block, None), None),
        decoder=_with_blocks(
            config.decoder, lambda block: block.replace(merged_attention=False), None
        ),
    )
    encoder, decoder = (
        GEMMA3.published_config(side.replace(kind="decoder", dropout=0.0, tie_embeddings=True))
        for side in plain.sides
    )
    for side, name in ((encoder, "text"), (decoder, "decoder")):
        side["model_type"] = f"t5gemma2_{name}"
        del side["architectures"], side["use_bidirectional_attention"]
    encoder["sliding_window"] = window
    decoder["sliding_window"] = decoder["sliding_window"] or _WINDOW
    return plain, (encoder, decoder)


_NORMS = {f"self_attention/{name}_norm": f"self_attn.{name[0]}_norm" for name in ("query", "key")}

T5GEMMA2 = Family(
    model_type="t5gemma2",
    architecture="T5Gemma2Model",
    fields={
        "vocab_size": ConfigField("vocabulary_size", 262208),
        "dropout_rate": ConfigField("dropout", 0.0),
        "attention_dropout": ConfigField("attention_dropout", 0.0),
    },
    constants={**GEMMA3.constants, "kind": "seq2seq", "share_embeddings": True},
    conversions=(Conversion(read_sides, lambda config: {}),),
    parts=PartsWithoutKeywords(read_parts, write_parts),
    required={"tie_word_embeddings": True, "is_encoder_decoder": True},
    weights=(
        *(
            WeightLine(
                f"token_embedding/{ours}",
                f"encoder.embed_tokens.{theirs}",
                also=(f"decoder.embed_tokens.{theirs}",),
            )
            for ours, theirs in (("embeddings", "weight"), ("replaced", "eoi_embedding"))
        ),
        output_matrix("lm_head.out_proj.weight"),
        *stack("encoder", "self"),
        *stack("decoder", "self"),
        *(
            line
            for name in SIDES
            for line in layers(_NORMS, f"{name}/layer_{{i}}/", f"{name}.layers.{{i}}.")
        ),
    ),
    heads={"Seq2SeqLM": PublishedHead(values={"start_id": 2})},
    names=Names(
        prefixes=("model.",),
        ignored=(
            "encoder.vision_tower.*", "encoder.multi_modal_projector.*", *unread("score.out_proj"),
        ),
    ),
)  # fmt: skip
