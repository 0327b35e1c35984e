"""Conversion of the collected values of a pass to the `Explanation` of one row, without padding."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer.config import WaveformStemConfig, structure
from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.tokens import readable_tokens, state_names
from keras_transformer.layers.stems import TokenStem

# Sides before and beside the encoder, by the prefix of their names: they are not explained.
BEFORE = ("source_", "queries_", "sound_")


class ExplainedSide(NamedTuple):
    """Tokens of one side of a model (encoder or decoder), for one row.

    Fields:
        tokens: the tokens of the real states.
        real: bool `(length,)`, True for states that are not padding.
    """

    tokens: tuple[str, ...]
    real: np.ndarray


def sides_of(
    task, inputs: Mapping[str, Any], found: Mapping[str, list]
) -> dict[str, ExplainedSide]:
    """Return the sides that have inputs, by the prefix of the names of their collected values."""
    kind, backbone, made = task.backbone.config.kind, task.backbone, {}
    if task.input_adapter is not None:
        inputs = {n: ops.convert_to_numpy(x) for n, x in task.input_adapter(dict(inputs)).items()}
    prefixes = {"seq2seq": ("encoder_", ""), "dual": ("encoder_", "")}.get(kind, ("",))
    sides = {name: side for name, side in backbone.sides.items() if name not in BEFORE}
    sides = sides or {"": (None, None)}
    for prefix, (name, (stem, stack)) in zip(prefixes, sides.items(), strict=True):
        states = found.get(f"{prefix}states")
        if not states:
            continue
        length, before = states[-1].shape[1], name if kind == "seq2seq" else ""
        is_text = stem is None or isinstance(stem, TokenStem)
        mask = inputs.get(f"{before}padding_mask")
        if kind == "dual" and not is_text:
            mask = None
        if mask is not None and not is_text:
            mask = stem.mask_of_states(ops.convert_to_tensor(mask), length)
        real = np.ones(length, "bool")
        if mask is not None:
            real = np.asarray(ops.convert_to_numpy(mask))[0].astype("bool")
        if is_text and f"{before}token_ids" in inputs:
            ids = np.asarray(inputs[f"{before}token_ids"])[0]
            tokens = readable_tokens(ids[real].tolist(), task.tokenizer)
        else:
            config = backbone.config if stack is None else stack.config
            names = state_names(config, length)
            tokens = tuple(n for n, keep in zip(names, real, strict=True) if keep)
        made[prefix] = ExplainedSide(tokens, real)
    return made


def check_attention(task, inputs: Mapping[str, Any], most: int) -> None:
    """Raise ValueError if a row would have more than `most` attention weights."""
    config, states, count = task.backbone.config, {}, 0
    for side in structure.sides(config):
        is_source = side.name == "encoder" and config.kind in ("seq2seq", "dual")
        prefix = "encoder_" if is_source else ""
        if not is_source and "decoder_token_ids" in inputs:
            prefix = "decoder_"
        length = side.fixed or _states(side.config, inputs, prefix)
        attended = 0 if side.source_dim is None else side.attended or states.get("encoder", 0)
        heads = sum(getattr(block.mixer, "num_heads", 0) for block in side.side.blocks)
        count += heads * length * (length + attended)
        states[side.name] = length
    if count > most:
        longest = max(states.values())
        raise ValueError(
            f"The attention of this input, of {longest:,} tokens or patches, has {count:,} weights "
            f"over all layers and heads, but at most {most:,} are kept. Their number grows with "
            "the square of its length: give a shorter input."
        )


def _states(config, inputs: Mapping[str, Any], prefix: str) -> int:
    """Return the number of states of a side for a row; 0 without inputs."""
    if config.stem is None:
        return np.shape(inputs.get(f"{prefix}token_ids", [[]]))[1]
    if isinstance(config.stem, WaveformStemConfig):
        samples = max(np.shape(x)[1] for n, x in inputs.items() if n.startswith(prefix))
        return config.stem.lengths(samples)[-1]
    if getattr(config.stem, "masked", False):
        return config.stem.count_states(np.shape(inputs[f"{prefix}frames"])[1])
    return config.stem.num_states or config.num_positions


def arrays_of(
    found: Mapping[str, list], sides: Mapping[str, ExplainedSide]
) -> dict[str, np.ndarray]:
    """Return all collected values of a row's real tokens, each as an array of all layers."""
    arrays = {}
    for name, layers in found.items():
        if not layers:
            continue
        prefix = next((p for p in ("encoder_", "cross_") if name.startswith(p)), "")
        what = name.removeprefix(prefix)
        rows = sides["" if prefix == "cross_" else prefix].real
        if what in ("queries", "keys") and len({each.shape[2:] for each in layers}) > 1:
            continue  # heads of different widths do not fit into one array
        whole = stacked([each[0] for each in layers])
        if what == "states":
            arrays[name] = whole[:, rows]
            continue
        columns = rows
        if prefix == "cross_":
            count = whole.shape[-1] if what == "attention" else whole.shape[2]
            columns = _of_source(sides["encoder_"].real, count if what != "queries" else None)
        if what == "attention":
            arrays[name] = whole[:, :, rows][..., columns]
        else:
            arrays[name] = whole[:, :, rows if what == "queries" else columns]
    return arrays


def _of_source(real: np.ndarray, count: int | None) -> np.ndarray:
    """Return which encoder states are real, of those that the decoder attends to.

    `count` is their number, smaller than `real` if the tokens of the stem are left out. None means
    all.
    """
    if count is None or count == len(real):
        return real
    return real[len(real) - count :] if count < len(real) else np.ones(count, "bool")


def stacked(layers: list[np.ndarray]) -> np.ndarray:
    """Stack the arrays of layers as float32. A head that a layer lacks is NaN there."""
    heads = max(each.shape[0] for each in layers)
    if any(each.shape[1:] != layers[0].shape[1:] for each in layers):
        raise ValueError(
            "The layers attend to different numbers of keys, which do not fit into one array: "
            f"{sorted({each.shape[1:] for each in layers})}."
        )
    if all(len(each) == heads for each in layers):
        return np.stack(layers).astype("float32")
    padding = [((0, heads - len(each)), *[(0, 0)] * (each.ndim - 1)) for each in layers]
    filled = [
        np.pad(each.astype("float32"), pad, constant_values=np.nan)
        for each, pad in zip(layers, padding, strict=True)
    ]
    return np.stack(filled)


def explanation_of(
    task,
    inputs: Mapping[str, Any],
    outputs: np.ndarray,
    found: Mapping[str, list],
    sides: Mapping[str, ExplainedSide],
    **further: Any,
) -> Explanation:
    """Return the explanation of one row.

    Args:
        task: a `Task`.
        inputs: the arrays of the task.
        outputs: the outputs of the task, with the axis of the batch.
        found: the collected values.
        sides: see `sides_of`.
        **further: fields that are not part of the pass, such as `saliency`.
    """
    arrays = arrays_of(found, sides)
    vectors = {n: arrays.pop(n) for n in sorted(arrays) if n.endswith(("queries", "keys"))}
    tokens = {f"{prefix}tokens": side.tokens for prefix, side in sides.items()}
    if "tokens" not in tokens:  # a model of two sides, with inputs for the encoder alone
        parts = (arrays, vectors, tokens, further)
        arrays, vectors, tokens, further = (
            {name.removeprefix("encoder_"): each for name, each in part.items()} for part in parts
        )
    outputs, last = outputs[0], sides.get("", next(iter(sides.values())))
    if outputs.ndim == 2 and len(outputs) == len(last.real):
        outputs = outputs[last.real]
    return Explanation(
        model=type(task).__name__,
        outputs=np.asarray(outputs, "float32"),
        vectors=vectors,
        **tokens,
        **arrays,
        **further,
    )
