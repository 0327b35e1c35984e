"""Parts that several families share: task heads, constants of blocks, common values."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    ACTIVATIONS,
    Conversion,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.heads import END_IDS, START_ID
from keras_transformer.checkpoints.weights.tables import WeightLine, layers
from keras_transformer.config import MOST_LAYERS, ROTARY_SCALINGS, SIDES, TransformerConfig
from keras_transformer.support.checking import check_flag, shorten

# BERT's block, with learned positions.
ENCODER = {
    "kind": "encoder",
    "position": "learned",
    "normalization": "layer_norm",
    "embedding_normalization": True,
    "normalize_first": False,
}


def unread(*layers_: str) -> tuple[str, ...]:
    """Return the tensor names of layers that are not loaded, such as unsupported heads."""
    return tuple(f"{layer}.{end}" for layer in layers_ for end in ("weight", "bias"))


# The next sentence head of BERT's pre-training.
NEXT_SENTENCE = unread("cls.seq_relationship")


def masked_lm(prefix: str, transform: str, norm: str, *biases: str) -> tuple[WeightLine, ...]:
    """Return the head of a masked language model; its matrix is the token embedding.

    The first of several `biases` is added, and the others are tied to it.
    """
    bias, *ties = (prefix + name for name in biases)
    return (
        *layers({"transform": transform, "transform_norm": norm}, theirs=prefix),
        WeightLine("output_bias/bias", bias, copies=tuple(ties)),
    )


def encoder_heads(
    masked: tuple[WeightLine, ...],
    *,
    masked_classes: tuple[str, ...] = (),
    masked_activation: str | None = None,
    classifier: Mapping[str, str] = {"output": "classifier"},
    hidden_activation: str | None = None,
    hidden: Conversion | None = None,
    dropout: str = "classifier_dropout",
) -> dict[str, PublishedHead]:
    """Return an encoder's four tasks, given its classifier layers and the two activations.

    The activation of the classifier's hidden layer is constant, unless `hidden` reads it.
    """
    return {
        "MaskedLM": PublishedHead(
            architectures=masked_classes,
            weights=masked,
            values={"hidden_activation": masked_activation} if masked_activation else {},
        ),
        "TextClassifier": PublishedHead(
            weights=layers(classifier),
            values={"hidden_activation": hidden_activation} if hidden_activation else {},
            options=(hidden,) if hidden else (),
            dropout=dropout,
        ),
        "TokenClassifier": PublishedHead(weights=layers({"output": "classifier"}), dropout=dropout),
        "QuestionAnswerer": PublishedHead(weights=layers({"output": "qa_outputs"})),
    }


def decoder_heads(*lm_classes: str, tokens: str | None = None) -> dict[str, PublishedHead]:
    """Return a decoder's tasks, with the layer of its token classifier if it has that class."""
    score = WeightLine("output/kernel", "score.weight", transpose=True)
    # A language model's head belongs to the backbone.
    heads = {
        "CausalLM": PublishedHead(architectures=lm_classes),
        "TextClassifier": PublishedHead(weights=(score,)),
    }
    if tokens is not None:
        weights = layers({"output": tokens})
        heads["TokenClassifier"] = PublishedHead(weights=weights, dropout="classifier_dropout")
    return heads


def seq2seq_heads(
    start_id: int | None, end_id: int, answers_prefix: str | None = None
) -> dict[str, PublishedHead]:
    """Return the tasks of an encoder-decoder for one text, with the usual token ids.

    If `start_id` is None, decoding starts with the last token of the text. For `answers_prefix` see
    `PublishedHead.prefix`.
    """
    options = () if start_id is None else (START_ID,)
    start = {} if start_id is None else {"start_id": start_id}
    parts = {"hidden": "classification_head.dense", "output": "classification_head.out_proj"}
    return {
        "TextClassifier": PublishedHead(
            weights=layers(parts),
            values={"hidden_activation": "tanh", "end_ids": [end_id], **start},
            dropout="classifier_dropout",
            options=(END_IDS, *options),
        ),
        "QuestionAnswerer": PublishedHead(
            weights=layers({"output": "qa_outputs"}),
            values=start,
            options=options,
            prefix=answers_prefix,
        ),
    }


# Values without a one-to-one counterpart


def hidden_activation(name: str, default: str) -> Conversion:
    """Return a conversion of the published activation `name` of a classifier's hidden layer."""

    def read(values: Values) -> dict[str, Any]:
        value = values.get(name, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            known = ", ".join(map(repr, ACTIVATIONS))
            raise ValueError(f"{name}={value!r} is not supported, only {known}.")
        return {"hidden_activation": ACTIVATIONS[value]}

    def write(task: Values) -> dict[str, Any]:
        own = task.get("hidden_activation")
        names = [theirs for theirs, ours in ACTIVATIONS.items() if ours == own]
        return {name: names[0]} if names else {}

    return Conversion(read, write)


def number(values: Values, name: str, default: Any, kind: type = int) -> Any:
    """Return a published value that must be a number. Raises ValueError if it is not."""
    value = values.get(name, default)
    allowed = (int, float) if kind is float else int
    if not isinstance(value, allowed) or isinstance(value, bool) or not abs(value) < 1e15:
        raise ValueError(f"{name} must be a number, received {value!r}.")
    return value


def flag(values: Values, name: str, default: bool = False) -> bool:
    """Return a published value that is true, false or null. Raises ValueError if it is not."""
    value = values.get(name, default)
    return value is not None and check_flag(name, value)


def square_side(values: Values, name: str, default: int) -> int:
    """Return the side of a square grid. Raises ValueError if the places form no square."""
    places = number(values, name, default)
    side = int(max(places, 0) ** 0.5 + 0.5)
    if side < 1 or side**2 != places:
        raise ValueError(f"{name}={places} must be the number of places of a square grid.")
    return side


def rotary(
    default_share: float = 1.0,
    default_head_dim: int | None = None,
    default_base: float = 10000.0,
    scalings: Sequence[str] = ROTARY_SCALINGS,
    longrope: Sequence[str] = (),
) -> Conversion:
    """Return a conversion of rotary positions in Transformers' current and older format.

    `longrope` lists the names that older configs use for `rope_type="longrope"`.
    """

    def read(values: Values) -> dict[str, Any]:
        options = values.get("rope_parameters") or values.get("rope_scaling") or {}
        if not isinstance(options, dict):
            raise ValueError(f"rope_parameters must be an object, received {options!r}.")
        older = {
            "rope_theta": values.get("rope_theta", values.get("rotary_emb_base", default_base)),
            "partial_rotary_factor": values.get(
                "partial_rotary_factor", values.get("rotary_pct", default_share)
            ),
        }
        options = older | {key: value for key, value in options.items() if value is not None}
        kind = options.get("rope_type", options.get("type", "default"))
        kind = "longrope" if kind in longrope else kind
        share = number(options, "partial_rotary_factor", None, float)
        ours = {
            "rotary_base": number(options, "rope_theta", None, float),
            "rotary_dim": None if share == 1 else int(head_dim(values, default_head_dim) * share),
        }
        if kind == "default":
            return ours
        if kind not in scalings:
            known = ", ".join(map(repr, ("default", *scalings)))
            raise ValueError(f"rope_type={kind!r} is not supported, only {known}.")
        return ours | _read_stretch(values, options, kind)

    def write(config: TransformerConfig) -> dict[str, Any]:
        options: dict[str, Any] = {
            "rope_type": config.rotary_scaling or "default",
            "rope_theta": config.rotary_base,
        }
        if config.rotary_dim is not None or default_share != 1:
            rotated = config.head_dim if config.rotary_dim is None else config.rotary_dim
            options["partial_rotary_factor"] = rotary_share(rotated, config.head_dim, default_share)
        if config.rotary_scaling is not None:
            options["factor"] = config.rotary_factor
        if config.rotary_scaling == "longrope":
            options["short_factor"] = list(config.rotary_short_factors)
            options["long_factor"] = list(config.rotary_long_factors)
            # Some published configs also have a top-level value of this name, which takes
            # precedence.
            original = {"original_max_position_embeddings": config.rotary_original_length}
            return {"rope_parameters": options | original, **original}
        if config.rotary_attention_factor is not None:
            options["attention_factor"] = config.rotary_attention_factor
        if config.rotary_scaling in _TURNS:
            low, high = _TURNS[config.rotary_scaling]
            options |= {low: config.rotary_min_turns, high: config.rotary_max_turns}
            options["original_max_position_embeddings"] = config.rotary_original_length
            options["truncate"] = config.rotary_truncate
        return {"rope_parameters": options}

    return Conversion(read, write)


def rotary_share(rotated: int, head_dim: int, usual: float) -> float:
    """Return a share of `head_dim` that rounds down to `rotated` features, if possible `usual`."""
    exact = rotated / head_dim
    shares = (usual, exact, math.nextafter(exact, 2.0))  # a product may be just below an integer
    return next((share for share in shares if int(head_dim * share) == rotated), exact)


# Published names of the minimum and maximum number of turns.
_TURNS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}


def _read_stretch(values: Values, options: Values, kind: str) -> dict[str, Any]:
    """Return our options for rotary positions that are scaled to longer texts."""
    longest = values.get("max_position_embeddings", 2048)
    if kind == "longrope":
        return _read_longrope(values, options, longest)
    ours = {"rotary_scaling": kind, "rotary_factor": number(options, "factor", None, float)}
    if kind == "linear":
        return ours
    if kind == "dynamic":
        return ours | {"rotary_original_length": longest}
    low, high = _TURNS[kind]
    if kind == "yarn":
        ours["rotary_attention_factor"] = _read_attention_factor(options, ours["rotary_factor"])
    for name in ("mscale", "mscale_all_dim", "attention_factor") if kind != "yarn" else ():
        if options.get(name):
            raise ValueError(f"{name}={options[name]!r} of rope_parameters is not supported.")
    return ours | {
        "rotary_min_turns": number(options, low, 1.0, float),
        "rotary_max_turns": number(options, high, 32.0 if kind == "yarn" else None, float),
        "rotary_original_length": _read_original_length(values, options, longest),
        "rotary_truncate": options.get("truncate", True),
    }


def _read_attention_factor(options: Values, factor: float) -> float | None:
    """Return YaRN's factor of queries and keys. None stands for the usual factor."""

    def raised(share: float) -> float:
        return 0.1 * share * math.log(factor) + 1 if factor > 1 else 1.0

    names = ("mscale", "mscale_all_dim")
    shares = [number(options, name, None, float) for name in names if options.get(name)]
    found = options.get("attention_factor")
    if found is not None:
        found = number(options, "attention_factor", None, float)
    elif len(shares) == 2:  # one alone has no effect
        found = raised(shares[0]) / raised(shares[1])
    return None if found == raised(1.0) else found


def _read_original_length(values: Values, options: Values, longest: Any) -> int:
    """Return the original length; a top-level value takes precedence over the position options."""
    name = "original_max_position_embeddings"
    return number({name: options.get(name, longest)} | values, name, None)


def _read_longrope(values: Values, options: Values, longest: Any) -> dict[str, Any]:
    original = _read_original_length(values, options, longest)
    stretch = number({"max_position_embeddings": longest}, "max_position_embeddings", 0)
    for other in ("attention_factor", "short_mscale", "long_mscale"):
        if options.get(other) is not None:
            raise ValueError(f"{other}={options[other]!r} of rope_parameters is not supported.")
    return {
        "rotary_scaling": "longrope",
        "rotary_factor": number(options, "factor", stretch / max(original, 1), float),
        "rotary_original_length": original,
        "rotary_short_factors": options.get("short_factor"),
        "rotary_long_factors": options.get("long_factor"),
    }


def head_dim(values: Values, default: int | None) -> int:
    """Return the width of a head: `head_dim`, or the share of each head in `hidden_size`."""
    if values.get("head_dim") is not None or "hidden_size" not in values:
        return number(values, "head_dim", default)
    width, heads = (number(values, name, None) for name in ("hidden_size", "num_attention_heads"))
    return width // max(heads, 1)


def head_norms(name: str) -> Conversion:
    """Return a conversion of per-head norms of queries and keys, if `name` enables them."""
    ours = ("query_key_norm", "query_key_norm_per_head")
    return Conversion(
        lambda values: dict.fromkeys(ours, flag(values, name, False)),
        lambda config: {name: config.query_key_norm},
    )


# The published default may be outside of the vocabulary, so export writes the tokenizer's id.
NO_PADDING = Conversion(lambda values: {}, lambda config: {"pad_token_id": None})


# Layers that alternate


SLIDING, FULL = "sliding_attention", "full_attention"


def number_of_layers(values: Values, default: int) -> int:
    """Return `num_hidden_layers`. Raises ValueError if it is not the depth of a model."""
    count = number(values, "num_hidden_layers", default)
    if not 0 < count <= MOST_LAYERS:
        raise ValueError(f"num_hidden_layers={count} is not from 1 to {MOST_LAYERS:,}.")
    return count


def listed_layers(values: Values, name: str) -> frozenset[int] | None:
    """Return the numbers of layers that a published value lists, or None without the value."""
    found = values.get(name)
    if found is None:
        return None
    if not isinstance(found, (list, tuple)) or not all(type(i) is int for i in found):
        raise ValueError(f"{name} must be a list of whole numbers, received {shorten(found)}.")
    return frozenset(found)


def cycle_of_layers(kinds: Sequence[Any], values: Mapping[Any, Values]) -> dict[str, Any]:
    """Return our config values for a repeating pattern of layer kinds."""
    count = len(kinds)
    period = next(n for n in range(1, count + 1) if kinds[n:] == kinds[: count - n])
    base = next(own for kind, own in values.items() if kind in kinds)
    own = [{k: v for k, v in values[kind].items() if v != base.get(k)} for kind in kinds[:period]]
    return {**base, **({"layer_pattern": tuple(own)} if any(own) else {})}


def layer_kinds(values: Values, default_layers: int, is_sliding: Callable[[int], bool]) -> list:
    """Return the kind of each layer: its `layer_types`, or in older configs by `is_sliding(i)`."""
    count, kinds = number_of_layers(values, default_layers), values.get("layer_types")
    if kinds is None:
        return [SLIDING if is_sliding(i) else FULL for i in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        raise ValueError(f"layer_types must be a list of {count} names, one a layer.")
    unknown = next((kind for kind in kinds if kind not in (SLIDING, FULL)), None)
    if unknown is not None:
        raise ValueError(
            f"layer_types has {unknown!r}, which is not supported, only {SLIDING!r} and {FULL!r}."
        )
    return kinds


def windows(
    default_layers: int, default_window: int | None, is_sliding: Callable[[Values, int], bool]
) -> Conversion:
    """Return a conversion of layers with and without a window.

    Older configs do not list the layers: `is_sliding(values, i)` says which ones have a window.
    """

    def read(values: Values) -> dict[str, Any]:
        if values.get("sliding_window", default_window) is None:
            return {"window": None}
        kinds = layer_kinds(values, default_layers, lambda i: is_sliding(values, i))
        window = number(values, "sliding_window", default_window)
        return cycle_of_layers(kinds, {FULL: {"window": None}, SLIDING: {"window": window}})

    return Conversion(read, write_windows)


def write_windows(config: TransformerConfig) -> dict[str, Any]:
    """Return the published values for the windows of layers."""
    found = [layer.window for layer in config.layers]
    return {
        "sliding_window": next((window for window in found if window is not None), None),
        "layer_types": [FULL if window is None else SLIDING for window in found],
    }


_ROTARY = rotary()


def rotary_of_kinds(values: Values, older: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    """Return rotary options by layer kind; `older` has the values of configs that do not say."""
    given = values.get("rope_parameters") or {}
    if not isinstance(given, dict) or not {*given} <= {FULL, SLIDING}:
        raise ValueError(f"rope_parameters must have {FULL!r} and {SLIDING!r}, received {given!r}.")
    plain = {"rotary_scaling": None, "rotary_factor": 1.0}
    return {
        kind: plain | _ROTARY.read({**own, "rope_parameters": given.get(kind)})
        for kind, own in older.items()
    }


def write_kinds(config: TransformerConfig) -> dict[str, Any]:
    """Return the published values for the windows and rotary positions of layers."""
    theirs = write_windows(config)
    found = dict(zip(theirs["layer_types"], config.layers, strict=True))
    rope = {kind: _ROTARY.write(layer)["rope_parameters"] for kind, layer in found.items()}
    return {**theirs, "rope_parameters": rope}


_QWEN = windows(32, 4096, lambda values, i: i >= number(values, "max_window_layers", 28))


def _write_switched(config: TransformerConfig) -> dict[str, Any]:
    theirs = write_windows(config)
    kinds = theirs["layer_types"]
    used = SLIDING in kinds
    first = kinds.index(SLIDING) if used else len(kinds)
    return {**theirs, "use_sliding_window": used, "max_window_layers": first}


# Qwen's window, which another value enables.
SWITCHED_WINDOW = Conversion(
    lambda values: _QWEN.read(values) if values.get("use_sliding_window") else {"window": None},
    _write_switched,
)


def sides(**names: tuple[str, Any]) -> Conversion:
    """Return a conversion of values that have a name for each side, such as `encoder_layers`."""

    def read(values: Values) -> dict[str, Any]:
        encoder, decoder = (
            {ours: values.get(f"{side}_{name}", default) for name, (ours, default) in names.items()}
            for side in SIDES
        )
        own = {ours: value for ours, value in decoder.items() if value != encoder[ours]}
        return {**encoder, **({"decoder": own} if own else {})}

    def write(config: TransformerConfig) -> dict[str, Any]:
        return {
            f"{side}_{name}": getattr(config.side(side), ours)
            for side in SIDES
            for name, (ours, _) in names.items()
        }

    return Conversion(read, write)
