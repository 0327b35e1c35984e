"""The arrays of a model whose prompts are read by an encoder, and not gone on with by a decoder."""

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.generation.scoring import pad_for
from keras_transformer.models.backbone import Backbone


def refuse_source(task: type, backbone: Backbone) -> None:
    """ValueError for a task of texts whose encoder would read an image too."""
    if backbone.config.source is not None and backbone.id_inputs[0] not in task.reads_arrays:
        raise ValueError(
            f"{task.__name__} reads texts alone, and the encoder of this backbone attends to a "
            f"`source` too, {backbone.id_inputs[0]!r}. Its task is ImageToText."
        )


def engine_inputs(ids: np.ndarray, mask: np.ndarray, start_id: int) -> dict[str, np.ndarray]:
    """What generation begins with, of prompts as `(rows, length)`: a decoder at its start."""
    return {
        "encoder_token_ids": ids,
        "encoder_padding_mask": mask,
        "decoder_token_ids": np.full((len(ids), 1), start_id, "int32"),
    }


def scoring_inputs(
    config: TransformerConfig, prompts: list, continuations: list, start_id: int, pad_id: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Those of whole texts, and the place of each row from which on tokens are predicted."""
    reads, writes = config.sides[-2:]
    before = [[start_id, *row[:-1]] for row in continuations]
    inputs = {}
    for name, side, rows in (("encoder", reads, prompts), ("decoder", writes, before)):
        ids, mask = pad_for(side, rows, pad_id)
        inputs |= {f"{name}_token_ids": ids, f"{name}_padding_mask": mask}
    return inputs, np.zeros((len(prompts),), "int64")
