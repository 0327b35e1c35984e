"""From what a pass collected to an `Explanation`: one row, without its padding, with its tokens."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_transformer import structure
from keras_transformer.config_waveform import WaveformStemConfig
from keras_transformer.explanations.explanation import Explanation
from keras_transformer.explanations.tokens import readable_tokens, state_names
from keras_transformer.layers.stems import TokenStem


class Side(NamedTuple):
    """One side of a model, for one row.

    Fields:
        tokens: of those states that are real.
        real: bool `(length,)`, which of all are.
    """

    tokens: tuple[str, ...]
    real: np.ndarray


def sides_of(task, inputs: Mapping[str, Any], found: Mapping[str, list]) -> dict[str, Side]:
    """The sides that were given something, by the prefix of what was collected of them."""
    kind, backbone, made = task.backbone.config.kind, task.backbone, {}
    if task.one_input is not None:
        inputs = {n: ops.convert_to_numpy(x) for n, x in task.one_input(dict(inputs)).items()}
    prefixes = {"seq2seq": ("encoder_", ""), "dual": ("encoder_", "")}.get(kind, ("",))
    sides = backbone.sides or {"": (None, None)}
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
        made[prefix] = Side(tokens, real)
    return made


def check_attention(task, inputs: Mapping[str, Any], most: int) -> None:
    """ValueError for a row whose attention has more weights than `most`, before they are made."""
    config, states, count = task.backbone.config, {}, 0
    for side in structure.sides(config):
        is_source = side.name == "encoder" and config.kind in ("seq2seq", "dual")
        prefix = "encoder_" if is_source else ""
        if not is_source and "decoder_token_ids" in inputs:
            prefix = "decoder_"
        length = side.fixed or _states(side.config, inputs, prefix)
        attended = 0 if side.source_dim is None else side.attended or states.get("encoder", 0)
        heads = sum(side.layer(i).num_heads for i in range(side.depth))
        count += heads * length * (length + attended)
        states[side.name] = length
    if count > most:
        longest = max(states.values())
        raise ValueError(
            f"The attention of this input, of {longest:,} tokens or patches, has {count:,} weights "
            f"over all layers and heads, and at most {most:,} are kept. They grow with the square "
            "of its length: give a shorter one."
        )


def _states(config, inputs: Mapping[str, Any], prefix: str) -> int:
    """How many states a side has of a row; 0 if it is given nothing."""
    if config.stem is None:
        return np.shape(inputs.get(f"{prefix}token_ids", [[]]))[1]
    if isinstance(config.stem, WaveformStemConfig):
        samples = max(np.shape(x)[1] for n, x in inputs.items() if n.startswith(prefix))
        return config.stem.lengths(samples)[-1]
    return config.num_positions


def arrays_of(found: Mapping[str, list], sides: Mapping[str, Side]) -> dict[str, np.ndarray]:
    """All that was collected, of the real tokens of a row: arrays with an axis for the layers."""
    arrays = {}
    for name, layers in found.items():
        if not layers:
            continue
        prefix = next((p for p in ("encoder_", "cross_") if name.startswith(p)), "")
        what = name.removeprefix(prefix)
        rows = sides["" if prefix == "cross_" else prefix].real
        if what in ("queries", "keys") and len({each.shape[2:] for each in layers}) > 1:
            continue  # Heads of several widths.
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
    """Which states a decoder may attend to: of the encoder's, without tokens that are left out."""
    if count is None or count == len(real):
        return real
    return real[len(real) - count :] if count < len(real) else np.ones(count, "bool")


def stacked(layers: list[np.ndarray]) -> np.ndarray:
    """Arrays of layers as one, float32. A head that another layer has is NaN."""
    heads = max(each.shape[0] for each in layers)
    if any(each.shape[1:] != layers[0].shape[1:] for each in layers):
        raise ValueError(
            "The layers attend to different numbers of keys, of which no one array is made: "
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
    sides: Mapping[str, Side],
    **further: Any,
) -> Explanation:
    """The explanation of one row.

    Args:
        task: a `Task`.
        inputs: its arrays.
        outputs: what it gave, with the axis of the batch.
        found: what was collected.
        sides: see `sides_of`.
        **further: fields that are no part of the pass, such as `saliency`.
    """
    arrays = arrays_of(found, sides)
    vectors = {n: arrays.pop(n) for n in sorted(arrays) if n.endswith(("queries", "keys"))}
    tokens = {f"{prefix}tokens": side.tokens for prefix, side in sides.items()}
    if "tokens" not in tokens:  # of a model of two sides, one of which was given
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
