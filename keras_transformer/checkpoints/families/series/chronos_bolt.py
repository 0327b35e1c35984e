"""Chronos-Bolt: Ansari et al. 2024, https://arxiv.org/abs/2403.07815.

A T5 that reads patches of series instead of tokens, and forecasts quantiles from the state of the
decoder's single token. Its `config.json` says T5: only the class name in it tells the two apart.
"""

from typing import Any

from keras_transformer.checkpoints.families.base.family import (
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.families.base.shared import number
from keras_transformer.checkpoints.families.seq2seq.chronos import NAME
from keras_transformer.checkpoints.families.seq2seq.t5 import (
    DECODER,
    T5,
    read_feed_forward,
    stack,
    write_feed_forward,
)
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, layers
from keras_transformer.config import TransformerConfig

_CLASS = "ChronosBoltModelForForecasting"
# The published name, and the value in the published models.
_CONTEXT, _HORIZON, _PATCH = ("context_length", 2048), ("prediction_length", 64), 16
_LEVELS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def _given(values: Values) -> Values:
    given = values.get(NAME, {})
    if not isinstance(given, dict):
        raise ValueError(f"{NAME} must be an object, received {given!r}.")
    return given


def _read_stem(values: Values) -> dict[str, Any]:
    given = _given(values)
    stem = {
        "kind": "series",
        "context_length": number(given, *_CONTEXT),
        "patch_length": number(given, "input_patch_size", _PATCH),
        "stride": number(given, "input_patch_stride", given.get("input_patch_size", _PATCH)),
        "reads_observed": True,
        "residual": True,
        "end_token": bool(given.get("use_reg_token", False)),
    }
    return {"encoder": {"vocabulary_size": 0, "stem": stem}}


def _write_stem(config: TransformerConfig) -> dict[str, Any]:
    stem = config.side("encoder").stem if config.kind == "seq2seq" else None
    if stem is None or stem.kind != "series":
        raise ValueError("A checkpoint of this family needs an encoder with a stem for series.")
    own = {
        "context_length": stem.context_length,
        "input_patch_size": stem.patch_length,
        "input_patch_stride": stem.stride,
        "use_reg_token": stem.end_token,
    }
    # The decoder's single token, and the stem's token after the patches.
    ids = {"vocab_size": 1 + stem.end_token, "decoder_start_token_id": 0, "pad_token_id": 0}
    return {NAME: own, **ids, **({"reg_token_id": 1} if stem.end_token else {})}


def _read_head(values: Values) -> dict[str, Any]:
    given = _given(values)
    return {
        "horizon": number(given, *_HORIZON),
        "quantiles": given.get("quantiles", _LEVELS),
        "residual": True,
        "quantiles_first": True,
        "scale_epsilon": 0.0,
    }


def _write_head(task: Values) -> dict[str, Any]:
    if task.get("quantiles") is None:
        raise ValueError("A chronos_bolt checkpoint forecasts quantiles, but this model one value.")
    return {NAME: {"prediction_length": task["horizon"], "quantiles": task["quantiles"]}}


def _tokens(config: TransformerConfig) -> tuple[WeightLine, ...]:
    """Return the line of the decoder's token and the stem's token: one matrix in the checkpoint."""
    tensor, more = "shared.weight", ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
    ours = ("token_embedding/embeddings", "encoder/input_end_token")
    count = 1 + config.side("encoder").stem.end_token
    return tuple(
        WeightLine(path, tensor, rows=(index, count), row=index, also=more)
        for index, path in enumerate(ours[:count])
    )


_RESIDUAL = {
    "intermediate": "hidden_layer",
    "output": "output_layer",
    "residual": "residual_layer",
}

CHRONOS_BOLT = Family(
    model_type="chronos_bolt",
    published_type="t5",
    architecture=_CLASS,
    fields={name: field for name, field in T5.fields.items() if name != "vocab_size"},
    constants={
        **T5.constants,
        "vocabulary_size": 1,
        "share_embeddings": False,
    },
    conversions=(
        Conversion(read_feed_forward, write_feed_forward),
        Conversion(_read_stem, _write_stem),
    ),
    weights=(
        *layers(_RESIDUAL, "encoder/input_patches/", "input_patch_embedding."),
        *stack("encoder", feed_forward=1),
        *DECODER,
    ),
    of_config=_tokens,
    heads={
        "Forecaster": PublishedHead(
            architectures=(_CLASS,),
            weights=layers(_RESIDUAL, "output/", "output_patch_embedding."),
            options=(Conversion(_read_head, _write_head),),
        )
    },
    names=Names(ignored=("lm_head.weight",)),
)
