"""What an option of a `TransformerConfig` is, and what values it accepts, alone and together."""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from keras_transformer.checking import describe, is_int, is_number, nearest, printable, shorten
from keras_transformer.kerashub_names import check_options

if TYPE_CHECKING:
    from keras_transformer.config import TransformerConfig


def option(
    doc: str,
    default: Any = dataclasses.MISSING,
    *,
    of: str = "layer",
    least: int | None = None,
    most: int = 2**31 - 1,
    positive: bool = False,
    rate: bool = False,
    choices: tuple | None = None,
    changeable: bool = False,
) -> Any:
    """One value of the config: all that is known of it.

    Args:
        doc: what it is, for the docstring.
        default: its value when none is given. Without one it must be given.
        of: `"model"`, `"side"` or `"layer"`: the smallest part that may have a value of its own.
        least: the smallest integer that it may be.
        most: the largest.
        positive: whether it is a number above 0.
        rate: whether it is a number in [0, 1).
        choices: the values that it may have.
        changeable: whether it may be changed of a model whose weights are loaded, since no number
            that they give depends on it but for dropout in training. Every other value is a part
            of the weights, even where it changes no shape. (The rows of learned positions do: a
            wrong `max_sequence_length` does not fit them.)
    """
    known = {key: value for key, value in locals().items() if key != "default"}
    return dataclasses.field(default=default, metadata=known, hash=of != "overrides")


def documented(options: Mapping[str, Any]) -> str:
    """What the docstring of the config says of its options, a line for each."""
    lines = [f"{name}: {known['doc']}" for name, known in options.items()]
    wrapped = (
        textwrap.wrap(
            line, 92, initial_indent=" " * 8, subsequent_indent=" " * 12, break_on_hyphens=False
        )
        for line in lines
    )
    return "\n".join(["Args:", *(line for option in wrapped for line in option)])


def derived_values(config: "TransformerConfig") -> dict[str, Any]:
    """The values that follow from others when they are not given."""
    seq2seq = config.kind == "seq2seq"
    encoder, decoder = config.encoder or {}, config.decoder or {}

    def embedding(own):
        width = own.get("hidden_dim", config.hidden_dim)
        width = own.get("embedding_dim", config.embedding_dim or width)
        return own.get("vocabulary_size", config.vocabulary_size), width

    scale = math.sqrt(config.embedding_dim or config.hidden_dim)
    attention_bias = config.use_bias if config.attention_bias is None else config.attention_bias
    return {
        "head_dim": (
            None if config.hidden_dim % config.num_heads else config.hidden_dim // config.num_heads
        ),
        "num_key_value_heads": config.num_heads,
        "num_decoder_layers": decoder.get("num_layers", config.num_layers) if seq2seq else None,
        "num_layer_groups": max(config.num_layers // config.layers_per_group, 1),
        "embedding_dim": config.hidden_dim,
        "embedding_projection": (
            not config.token_projection and config.embedding_dim not in (None, config.hidden_dim)
        ),
        "share_embeddings": embedding(encoder) == embedding(decoder) if seq2seq else None,
        "attention_bias": config.use_bias,
        "key_bias": attention_bias,
        "attention_output_bias": attention_bias,
        "embedding_scale": scale if config.scale_embedding else 1.0,
        "logit_scale": config.hidden_dim**-0.5 if config.scale_logits else 1.0,
        "expert_dim": config.intermediate_dim,
        "final_normalization": config.normalize_first,
        "relative_bias": config.position == "relative",
        "rotary_original_length": (
            None if config.rotary_scaling in (None, "linear") else config.max_sequence_length
        ),
    }


def check_given(values: Any, fields: Iterable[dataclasses.Field]) -> None:
    """ValueError if what a config is to be made of lacks names, or has others."""
    if not isinstance(values, dict):
        raise ValueError(f"A config must be a dictionary, received {type(values).__name__}.")
    known = {field.name: field for field in fields}
    unknown = sorted(map(str, set(values) - set(known)))
    if unknown:
        check_options("TransformerConfig", unknown, known)
        unknown = [printable(name, one_line=True) for name in unknown]
        raise ValueError(
            f"Unknown config values: {', '.join(unknown)}. Known are: "
            f"{', '.join(sorted(known))}.{nearest(unknown[0], known)}"
        )
    required = [n for n, f in known.items() if f.default is dataclasses.MISSING]
    missing = [name for name in required if name not in values]
    if missing:
        raise ValueError(f"The config lacks the values: {', '.join(missing)}.")


def check_values(config: "TransformerConfig") -> None:
    """ValueError for a value that no config may have. NumPy's numbers become Python's."""
    check_fields(config)
    if config.head_dim is None and config.hidden_dim % config.num_heads:
        raise ValueError(
            f"`hidden_dim` must be divisible by `num_heads`, received hidden_dim="
            f"{config.hidden_dim} and num_heads={config.num_heads}. Change one of them, or give "
            "`head_dim`."
        )


def check_fields(config: Any) -> None:
    """ValueError for a value that is not as its `option` says. NumPy's numbers become Python's."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value is None and field.default is None:
            continue
        checked = check_option(field.name, value, field)
        if checked is not value:
            object.__setattr__(config, field.name, checked)


def check_option(name: str, value: Any, field: dataclasses.Field, any_choice: bool = False) -> Any:
    """Return a value as a config holds it: NumPy's numbers as Python's, and tuples for lists.

    Args:
        name: name of the value in messages.
        value: the value.
        field: the option of a config whose type and range it must have.
        any_choice: bool, leave the choices of the option to the caller.

    Raises:
        ValueError: if the value has another type or is out of range.
    """
    if is_number(value) and type(value) not in (int, float):  # of NumPy
        value = value.item()
    if field.type in (dict | None, tuple | list, tuple | list | None):
        value = _with_tuples(value)
    _check_type(name, value, field.type)
    _check_range(name, value, {**field.metadata, **({"choices": None} if any_choice else {})})
    return value


def _with_tuples(value: Any) -> Any:
    """A value with tuples for the lists of JSON."""
    if isinstance(value, dict):
        return {key: _with_tuples(each) for key, each in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, (list, tuple)) else value


def _check_type(name: str, value: Any, known: Any) -> None:
    kinds = (int, float, bool, str, dict, tuple | list)
    kind = next((k for k in kinds if known in (k, k | None)), None)
    if kind is None:  # of a class of its own, which was made of what was given
        return
    wrong = not isinstance(value, (int, float) if kind is float else kind)
    if wrong or (isinstance(value, bool) and kind is not bool):
        hint = " Functions are for the layers, see `models.DecoderBase`." if callable(value) else ""
        kind_name = getattr(kind, "__name__", kind)
        raise ValueError(f"`{name}` must be of type {kind_name}, received {describe(value)}.{hint}")


def _check_range(name: str, value: Any, known: Any) -> None:
    if is_int(value) and abs(value) > known["most"]:
        raise ValueError(f"`{name}` must be at most {known['most']:,}, received {shorten(value)}.")
    if known["least"] is not None and value < known["least"]:
        raise ValueError(f"`{name}` must be at least {known['least']}, received {value}.")
    if known["rate"] and not 0 <= value < 1:
        raise ValueError(f"`{name}` is a rate and must be in [0, 1), received {value}.")
    if known["positive"] and not 1e-30 <= value <= 1e30:  # float32 counts no further
        raise ValueError(
            f"`{name}` must be a positive number, received {value}. It may be from 1e-30 to 1e30."
        )
    if known["choices"] and value not in known["choices"]:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, known['choices']))}, received "
            f"{shorten(value)}."
        )


PATTERN = (
    "window", "window_dilation", "global_tokens", "global_projection", "block_size",
    "random_blocks", "global_block_size",
)  # fmt: skip


def check_pattern(options: Any, causal: bool, rotary: bool) -> None:
    """ValueError for options of these names that say of no attention which places are seen."""
    given = {name: getattr(options, name) for name in PATTERN}
    needed = {"random_blocks": "block_size", "window_dilation": "window"}
    needed |= dict.fromkeys(("global_tokens", "global_projection"), "window")
    if given["global_block_size"] is not None and given["window"] is None:
        raise ValueError(f"`global_block_size`={given['global_block_size']} needs a `window`.")
    for name, other in needed.items():
        if given[name] > (name == "window_dilation") and given[other] is None:
            raise ValueError(f"`{name}`={given[name]} needs a `{other}`.")
    if given["window"] is not None and given["block_size"] is not None:
        raise ValueError(
            f"window={given['window']} and block_size={given['block_size']} are two patterns. Give "
            "one of them."
        )
    for name, is_given in (
        ("block_size", given["block_size"] is not None),
        ("global_projection", given["global_projection"]),
        ("global_block_size", given["global_block_size"] is not None),
    ):
        if is_given and causal:
            raise ValueError(f"`{name}` is of encoders, whose tokens see what is behind them.")
    if given["global_projection"] and rotary:
        raise ValueError("`global_projection` and rotary positions do not go together.")


def check_head_norm(normalization: str | bool | None) -> None:
    """ValueError for a normalization of queries and keys that heads cannot have of their own."""
    if normalization not in ("layer_norm", "layer_norm_no_bias"):
        raise ValueError(
            "`query_key_norm_per_head` needs `query_key_norm` and a LayerNorm, 'layer_norm' or "
            f"'layer_norm_no_bias', received {normalization!r}."
        )


def check_query_key_norm(options: Any, normalization: str | bool | None) -> None:
    """Raise ValueError if the normalization of queries and keys contradicts itself.

    Args:
        options: an object with the options `query_key_norm_across_heads` and
            `query_key_norm_per_head`.
        normalization: name of the normalization; None or False without one.
    """
    if options.query_key_norm_across_heads and not normalization:
        raise ValueError("`query_key_norm_across_heads` needs `query_key_norm`.")
    if options.query_key_norm_per_head:
        check_head_norm(normalization)
        if options.query_key_norm_across_heads:
            raise ValueError(
                "`query_key_norm_per_head` and `query_key_norm_across_heads` are two norms. Give "
                "one of them."
            )


def check_gate(gated: bool, gate_limit: float | None) -> None:
    """Raise ValueError if there is a limit of a gate and no gate."""
    if gate_limit is not None and not gated:
        raise ValueError("`gate_limit` needs `gated`.")


def check_overrides(config: "TransformerConfig") -> None:
    """ValueError for sides and layers that differ in what they cannot differ in."""
    fields = {field.name: field.metadata["of"] for field in dataclasses.fields(config)}
    for name in ("source", "encoder", "decoder"):
        own = getattr(config, name)
        if own is not None:
            kinds = ("seq2seq", "dual")[: 1 if name == "source" else 2]
            if config.kind not in kinds:
                raise ValueError(
                    f"`{name}` needs kind={' or '.join(map(repr, kinds))}, received "
                    f"kind={config.kind!r}. Give the values themselves."
                )
            allowed = [n for n, of in fields.items() if of in ("side", "layer")]
            _check_names(name, own, (*allowed, "layer_pattern"))
    if config.kind == "seq2seq":
        _check_sides(config)
    elif config.kind == "dual":
        config.sides  # noqa: B018 - each is checked when it is made
    elif config.layer_pattern is not None:
        _check_layers(config, [n for n, of in fields.items() if of == "layer"])


def _check_names(name: str, own: Any, allowed: Any) -> None:
    if not isinstance(own, dict) or not own:
        raise ValueError(
            f"`{name}` must hold values by name, such as {{'num_heads': 4}}, received "
            f"{describe(own)}."
        )
    wrong = [each for each in own if each not in allowed]
    if wrong:
        raise ValueError(
            f"`{name}` cannot have its own {shorten(wrong[0])}, only: {', '.join(allowed)}."
        )


def _check_sides(config: "TransformerConfig") -> None:
    encoder, decoder = config.sides[-2:]
    if config.num_decoder_layers != decoder.num_layers:
        raise ValueError(
            f"num_decoder_layers={config.num_decoder_layers} and decoder="
            f"{{'num_layers': {decoder.num_layers}}} contradict each other. Give one of them."
        )
    if decoder.parallel_residual and config.placeholder_id is None:
        raise ValueError(
            "`parallel_residual` has no place for the cross-attention of kind='seq2seq'."
        )
    sizes = [(side.vocabulary_size, side.embedding_dim) for side in (encoder, decoder)]
    if config.share_embeddings and sizes[0] != sizes[1]:
        raise ValueError(
            "`share_embeddings` needs sides of one `vocabulary_size` and one width, received "
            f"{sizes[0]} and {sizes[1]}."
        )


def _check_layers(config: "TransformerConfig", allowed: list[str]) -> None:
    if not config.layer_pattern:
        raise ValueError("`layer_pattern` must have a dict for each layer, received ().")
    if len(config.layer_pattern) > config.num_layers:
        raise ValueError(
            f"`layer_pattern` has {len(config.layer_pattern):,} layers, the model only "
            f"{config.num_layers:,}. Leave out those that are of no layer."
        )
    for i, own in enumerate(config.layer_pattern):
        if own != {}:
            _check_names(f"layer_pattern[{i}]", own, allowed)
        layer = config.layer(i)
        kinds = {config.position, layer.position}
        if len(kinds) > 1 and not kinds <= {"rotary", "none"}:
            raise ValueError(
                f"layer_pattern[{i}] has position={layer.position!r}, and the stack "
                f"{config.position!r}: only 'rotary' and 'none' are of a layer alone."
            )
        shared = config.relative_bias or config.position == "alibi"
        if shared and layer.num_heads != config.num_heads:
            raise ValueError(
                f"layer_pattern[{i}] has num_heads={layer.num_heads}, but the bias of position="
                f"{config.position!r} is one for all layers, of {config.num_heads} heads."
            )
    if config.num_layer_groups * config.layers_per_group != config.num_layers:
        raise ValueError("`layer_pattern` and `num_layer_groups` do not go together.")


def check_agreement(config: "TransformerConfig") -> None:
    """ValueError for values that contradict each other."""
    if config.num_heads % config.num_key_value_heads:
        raise ValueError(
            "`num_heads` must be a multiple of `num_key_value_heads`, received "
            f"{config.num_heads} and {config.num_key_value_heads}."
        )
    for given, options, kind in (
        (config.pooler, "`pooler` needs", "encoder"),
        (config.mean_pooler, "`mean_pooler` needs", "encoder"),
        (config.num_decoder_layers is not None, "`num_decoder_layers` needs", "seq2seq"),
        (config.embedding_projection, "`embedding_dim` and `embedding_projection` need", "encoder"),
        (config.token_projection, "`token_projection` needs", "decoder"),
        (config.convolution_size, "`convolution_size` needs", "encoder"),
        (config.share_embeddings is not None, "`share_embeddings` needs", "seq2seq"),
        (config.disentangled, "`disentangled` needs", "encoder"),
    ):
        if given and config.kind != kind:
            raise ValueError(f"{options} kind={kind!r}, received kind={config.kind!r}.")
    if config.stem is not None and (config.kind != "encoder" or config.vocabulary_size):
        raise ValueError(
            "`stem` is of an encoder with vocabulary_size=0, or of that of kind='seq2seq' or "
            f"'dual' by `encoder={{'stem': ...}}`; received kind={config.kind!r} and "
            f"vocabulary_size={config.vocabulary_size}."
        )
    if config.stem is not None:
        config.stem.check_width(config.embedding_dim)
    projected = config.embedding_projection or config.token_projection
    if config.embedding_dim != config.hidden_dim and not projected:
        raise ValueError(
            f"embedding_dim={config.embedding_dim} and hidden_dim={config.hidden_dim} need the "
            "`embedding_projection` between them."
        )
    _check_block(config)


def _check_block(config: "TransformerConfig") -> None:
    if config.parallel_residual and not config.normalize_first:
        raise ValueError("`parallel_residual` needs `normalize_first`.")
    if config.normalization == "batch_norm" and config.stem is None and config.kind != "seq2seq":
        raise ValueError(
            "normalization='batch_norm' needs a `stem`: the statistics of a batch would count the "
            "padding of texts, and what comes behind a token."
        )
    check_pattern(config, config.kind == "decoder", config.position == "rotary")
    alone = not (config.parallel_residual and config.attention_normalization)
    if config.share_normalization and alone:
        raise ValueError(
            "`share_normalization` needs `parallel_residual` and `attention_normalization`."
        )
    if config.score_scale is not None and config.score != "scaled_dot":
        raise ValueError(
            f"`score_scale` is of score='scaled_dot', received score={config.score!r}."
        )
    check_query_key_norm(config, config.query_key_norm and config.normalization)
    if config.convolution_size and config.convolution_size % 2 == 0:
        raise ValueError(
            f"`convolution_size` must be odd, received {config.convolution_size}: a token stands "
            "in the middle of its neighbours."
        )
    if 0 < config.num_experts < config.experts_per_token:
        raise ValueError(
            f"experts_per_token={config.experts_per_token} is more than num_experts="
            f"{config.num_experts}."
        )
    check_gate(config.gated, config.gate_limit)
    if config.num_layer_groups > config.num_layers:
        raise ValueError(
            f"num_layer_groups={config.num_layer_groups} is more than num_layers="
            f"{config.num_layers}."
        )
    each = config.layers_per_group
    if config.num_layers % each or config.num_layer_groups * each > config.num_layers:
        raise ValueError(
            f"num_layers={config.num_layers} cannot be num_layer_groups={config.num_layer_groups} "
            f"groups of layers_per_group={each} blocks, used again: it must be a multiple of "
            f"{each}, and at least {config.num_layer_groups * each}."
        )
