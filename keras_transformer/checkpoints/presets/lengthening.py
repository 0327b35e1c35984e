"""Extension of encoders to longer texts than they were trained on."""

import numpy as np

from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.models import Encoder

_OF_ALL = "_global/"


def lengthen(
    backbone: Encoder,
    max_sequence_length: int,
    window: int | None = None,
    global_projection: bool = False,
) -> Encoder:
    """Extend an encoder with learned positions, such as BERT or RoBERTa, to longer texts.

    The position table is repeated until it is long enough; all other weights are kept. With a
    window, the cost grows linearly with the length instead of quadratically. Texts that fit into
    the window and the previous length give the same states as before. Train the result further on
    long texts.

    Args:
        backbone: `Encoder` with learned positions.
        max_sequence_length: int, the new maximum length in tokens.
        window: int; each token attends to tokens less than this many positions away. Defaults to
            None, full attention.
        global_projection: bool; adds separate projections for global tokens, initialized from the
            existing ones. Needs `window`. Classifiers then make the first token global, as in
            Longformer. Defaults to False.

    Returns:
        A new `Encoder`; the given one is unchanged.

    Raises:
        ValueError: if positions are not learned, or if the length is not larger.

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
            f"{config.kind!r} and position={config.position!r}. Models with other positions take "
            "longer texts already: give `max_sequence_length` to `from_preset`."
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
