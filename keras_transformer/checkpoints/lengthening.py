"""Encoders for longer texts than they were trained on."""

import numpy as np

from keras_transformer.checkpoints.assignment import backbone_variables
from keras_transformer.checkpoints.safetensors_io import to_numpy
from keras_transformer.models import Encoder

_OF_ALL = "_global/"


def lengthen(
    backbone: Encoder,
    max_sequence_length: int,
    window: int | None = None,
    global_projection: bool = False,
) -> Encoder:
    """An encoder with learned positions, such as a BERT or a RoBERTa, for longer texts.

    The table of positions is repeated until it is long enough, all other weights are kept, and with
    a window the cost grows with the length and not with its square. Texts that the window reaches
    over, and no longer than before, give the states that they gave. Train it further on long texts.

    Args:
        backbone: `Encoder` with learned positions.
        max_sequence_length: int, the longest text, in tokens.
        window: int, a token sees those less than this many places away. None for all.
        global_projection: bool, with a window: projections for tokens that see all, which start as
            those that there are. Classifiers then let the first token see all, as in Longformer.

    Returns:
        A new `Encoder`; the given one is unchanged.

    Raises:
        ValueError: for other positions than learned ones, and a length that is not longer.

    Example:
    ```python
    import keras_transformer as kt

    short = kt.models.Backbone.from_preset("minilm_l6_en")
    long = kt.checkpoints.lengthen(short, 4096, window=257, global_projection=True)
    assert long.config.max_sequence_length == 4096
    ```

    Source: Beltagy et al. 2020, "Longformer", section 5.
    """
    config = backbone.config
    if config.kind != "encoder" or config.position != "learned":
        raise ValueError(
            "`lengthen` repeats the learned positions of an encoder, received kind="
            f"{config.kind!r} and position={config.position!r}. Models of other positions take "
            "longer texts as they are: give `max_sequence_length` to `from_preset`."
        )
    if max_sequence_length <= config.max_sequence_length:
        raise ValueError(
            f"`max_sequence_length` must be more than that of the backbone, "
            f"{config.max_sequence_length}, received {max_sequence_length}."
        )
    values = {"max_sequence_length": max_sequence_length, "window": window}
    longer = Encoder(
        config.replace(**values, global_projection=global_projection),
        dtype=backbone.dtype_policy,
        name=backbone.name,
    )
    given = backbone_variables(backbone)
    for path, variable in backbone_variables(longer).items():
        value = to_numpy(given[path.replace(_OF_ALL, "/")])
        if path == "encoder/position_embedding/embeddings":
            before, rows = np.split(value, [config.position_offset])
            times = -(-max_sequence_length // len(rows))
            value = np.concatenate([before, np.tile(rows, (times, 1))[:max_sequence_length]])
        variable.assign(value)
    return longer
