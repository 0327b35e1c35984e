"""Conversion of a training run to a preset, a tensor at a time."""

import os
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.distribution.processes import process_count
from keras_transformer.kernels.models_without_values import made_without_values
from keras_transformer.support.checking import describe
from keras_transformer.training.resume import open_run


def convert_run(
    make_model: Callable[[], keras.Model],
    directory: str | os.PathLike,
    preset: str | os.PathLike,
    **options: Any,
) -> None:
    """Write the weights of a run to a preset, without ever holding the model.

    One process reads what many wrote and writes it on, one tensor at a time: it needs memory for
    the largest tensor, whatever the size of the model. The model is made without weights, for
    their names and shapes.

    Args:
        make_model: function that makes the task as in the run, untrained, such as
            `lambda: kt.CausalLM(kt.models.build_backbone(config), tokenizer)`. It cannot read or
            load weights.
        directory: the directory of a `ResumableRun`.
        preset: the folder to write.
        **options: options of the task's `save_to_preset`, such as `dtype`.

    Raises:
        FileNotFoundError: if there is no state of a run.
        ValueError: if the state is that of another model, `make_model` returns no model, there are
            several processes, or the backend is TensorFlow. Nothing is written then.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt
    import keras

    def make_model():
        return kt.TextClassifier(kt.models.build_backbone(config), tokenizer, num_classes=2)

    if keras.config.backend() != "tensorflow":
        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        config, tokenizer = classifier.backbone.config, classifier.tokenizer
        folder = tempfile.mkdtemp()
        run = kt.training.ResumableRun(folder)
        classifier.fit(["a warm film", "dull"], [1, 0], verbose=0, callbacks=[run])
        kt.training.convert_run(make_model, folder, f"{folder}/preset")
        assert kt.TextClassifier.from_preset(f"{folder}/preset").num_classes == 2
    ```
    """
    if process_count() > 1:
        raise ValueError("`convert_run` is for a program of one process, after the run.")
    model = made_without_values(make_model)
    if not isinstance(model, keras.Model) or not hasattr(model, "save_to_preset"):
        raise ValueError(
            f"`make_model` must return a task or backbone, returned {describe(model)}."
        )
    with open_run(model, directory) as (state, variables):
        for place, variable in variables.items():
            # Keras asks a variable without a value for its initial one each time.
            variable._value = None
            variable._initializer = _reader(state, place)
        model.save_to_preset(preset, **options)


def _reader(state, place: str) -> Callable:
    return lambda shape, dtype: keras.ops.convert_to_tensor(state.read(place), dtype)
