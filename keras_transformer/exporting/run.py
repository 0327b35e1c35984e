"""Export of a model to a folder for a runtime that does not need this package."""

import os
from collections.abc import Mapping
from typing import Any

import keras

from keras_transformer.exporting.child import convert_in_child
from keras_transformer.exporting.description import describe_export
from keras_transformer.exporting.folder import check_place, exported_folder
from keras_transformer.exporting.formats import FORMATS, Format, format_named
from keras_transformer.kernels.device import makes_portable_programs
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.quantized import refuse_quantized
from keras_transformer.support.checking import check_path, describe, nearest
from keras_transformer.training import lora


def export(
    task: keras.Model, directory: str | os.PathLike, format: str = "onnx", **options: Any
) -> None:
    """Export a model for a runtime that needs neither this package nor Keras.

    The folder appears complete or not at all, and replaces an earlier export. If the format needs
    another backend, a child process on that backend converts the model. A child process also
    converts to the formats of PyTorch if PyTorch computes on a GPU here.

    Args:
        task: a task, with or without a tokenizer, or a backbone.
        directory: str or path, a folder that is new, is empty, or has an earlier export.
        format: str, a name in `exporting.FORMATS`, such as `"onnx"`.
        **options: options of the format, see docs/export.md.

    Raises:
        ValueError: if the format or an option is unknown, the format does not support the model
            (the message says which does), or the folder has other files.
        ImportError: if a package of the format is missing; the message names the extra.

    Example:
    ```python
    import json
    import tempfile
    from pathlib import Path

    import keras_transformer as kt

    sizes = {"num_layers": 1, "hidden_dim": 8, "num_heads": 2, "intermediate_dim": 16}
    decoder = kt.Backbone.from_preset("gpt2_base_en", load_weights=False, **sizes)
    folder = Path(tempfile.mkdtemp(), "decoder")
    kt.export(decoder, folder, format="huggingface")
    assert json.loads((folder / "config.json").read_text())["n_embd"] == 8
    ```
    """
    check_path("directory", directory)
    chosen = format_named(format)
    _check_model(task, chosen)
    write = chosen.write
    _check_options(chosen, options)
    chosen.check_packages(options.get("quantization") is not None)
    if chosen.name == "huggingface":  # checks and replaces folders by its own rules
        write(task, directory, **options)
        return
    target = check_place(directory)
    with exported_folder(target, describe_export(task, chosen.name, options)) as folder:
        processor = getattr(task, "processor", None)
        if processor is not None:
            processor.save(folder)
        if makes_portable_programs(chosen.backend):
            write(task, folder, **options)
        else:
            convert_in_child(task, folder, chosen, options)


def _check_model(task: Any, chosen: Format) -> None:
    """Raise ValueError if the format does not support the model, or the model is unfinished.

    Quantized models and models with LoRA adapters are refused.
    """
    backbone = getattr(task, "backbone", task)
    if not isinstance(backbone, Backbone):
        raise ValueError(f"`task` must be a task or a backbone, received {describe(task)}.")
    able = [name for name, each in FORMATS.items() if "quantization" in each.options]
    refuse_quantized(
        task,
        "export it before `quantize`: formats quantize with their own tools, as export(..., "
        f"quantization=...) does for {', '.join(map(repr, able))}",
    )
    if lora.is_adapted(backbone):
        raise ValueError(
            "The model has adapters beside its weights. Call `merge_lora` before `export`, or "
            "`save_adapter` to keep them apart."
        )
    if backbone.config.kind not in chosen.kinds:
        raise ValueError(
            f"The format {chosen.name!r} takes models of kind "
            f"{', '.join(map(repr, chosen.kinds))}, received one of kind {backbone.config.kind!r}."
        )
    name = type(task).__name__
    if task is not backbone and chosen.tasks is not None and name not in chosen.tasks:
        raise ValueError(
            f"The format {chosen.name!r} takes {', '.join(chosen.tasks)}, received a {name}. "
            "Export its backbone alone: task.backbone."
        )


def _check_options(chosen: Format, options: Mapping[str, Any]) -> None:
    known = chosen.options
    for name in options:
        if name not in known:
            raise ValueError(
                f"The format {chosen.name!r} has no option {name!r}.{nearest(name, known)} Its "
                f"options are: {', '.join(known) or 'none'}."
            )
