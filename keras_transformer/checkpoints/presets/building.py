"""Building of backbones and tasks from presets."""

import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

import keras

from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.presets.assignment import check, fill
from keras_transformer.checkpoints.presets.listing import read_preset
from keras_transformer.checkpoints.presets.overrides import changed_config
from keras_transformer.checkpoints.presets.preset import GENERATION, Preset
from keras_transformer.checkpoints.presets.saved_head import SavedHead
from keras_transformer.config import OPTIONS, TransformerConfig
from keras_transformer.config.integer_dtype import IntegerDtype
from keras_transformer.generation.published import unsupported_generation_values
from keras_transformer.layers.arguments import HostZeros
from keras_transformer.models import BACKBONES
from keras_transformer.models.runtime.quantized import LayerByLayer, quantization_of
from keras_transformer.processors import ImageProcessor, VideoProcessor
from keras_transformer.support.checking import check_bool, shorten
from keras_transformer.support.foreign_names import check_options
from keras_transformer.tokenizers import Tokenizer


def load_backbone(
    preset: str | os.PathLike,
    backbone_class: type | None = None,
    load_weights: bool = True,
    dtype=None,
    **config_overrides: Any,
) -> keras.Model:
    """Build the backbone of a preset, see `Backbone.from_preset`.

    Args:
        preset: a preset, or the result of `resolve_preset`.
        backbone_class: the expected class. Defaults to None, which accepts every class.
        load_weights: True loads the weights, False keeps freshly initialized ones. Defaults to
            True.
        dtype: dtype or dtype policy of the model; `"int8"`, `"int4"`, `"int4/64"` (with groups of
            64) or such as `"int4_from_bfloat16"` quantize each layer of the backbone as soon as it
            is loaded. Defaults to Keras's global policy.
            Without one, quantized matrices that layers of int4 and int8 can hold stay
            as they are stored; with one, all are unpacked to it.
        **config_overrides: values of the config to change.

    Returns:
        A `Backbone` of the class that the preset's kind needs.

    Raises:
        ValueError: if the preset is unknown or damaged, is not of the class, or has weights that a
            changed value contradicts.
        FileNotFoundError: if the preset has no weights and `load_weights` is True.

    Example:
    ```python
    from keras_transformer.checkpoints import load_backbone

    assert load_backbone("minilm_l6_en", dropout=0.0).count_params() == 22_713_216
    ```
    """
    load_weights = check_bool("load_weights", load_weights)
    kind = getattr(backbone_class, "kind", None)

    def read(preset: Preset) -> keras.Model:
        preset = preset.for_kinds((kind,) if kind else None)
        side = _side(preset, backbone_class, (kind,) if kind else None)
        config, _, metadata = preset.describe(load_weights)
        config = config if side is None else config.tower(side)
        if config_overrides:
            config = changed_config(preset.name, config, config_overrides, load_weights)
        if load_weights:
            check(preset, config)
        backbone, quantized = _build(config, metadata, dtype, load_weights)
        if load_weights:
            layers = None if quantized is None else LayerByLayer(backbone, quantized)
            fill(preset, backbone, quantized=_quantized(dtype), layers=layers)
        elif quantized is not None:
            backbone.quantize(config=quantization_of(quantized))
        return backbone

    return read_preset(preset, read)


def load_tokenizer(
    preset: str | os.PathLike, tokenizer_class: type[Tokenizer] = Tokenizer
) -> Tokenizer:
    """Return the tokenizer of a preset, see `Tokenizer.from_preset`.

    Args:
        preset: a preset, or the result of `resolve_preset`.
        tokenizer_class: class of the result. Defaults to `Tokenizer`.

    Raises:
        FileNotFoundError: if the preset has no tokenizer; the message lists the possible files.
        ValueError: if the tokenizer's files are damaged or not supported.

    Example:
    ```python
    from keras_transformer.checkpoints import load_tokenizer

    assert load_tokenizer("minilm_l6_en").encode("hello")[0] == 101  # [CLS]
    ```
    """
    return read_preset(preset, lambda opened: opened.load_tokenizer(tokenizer_class))


def load_task(
    task_class: type | None,
    preset: str | os.PathLike,
    load_weights: bool = True,
    dtype=None,
    **options: Any,
) -> keras.Model:
    """Build a task from a preset, see `from_preset` of a task class.

    A head that the preset lacks, or has for another number of classes, is initialized, with a
    warning; of an `ObjectDetector` only the layers that depend on the classes. Without tokenizer
    files the task takes only ids.

    Args:
        task_class: the class, e.g. `TextClassifier`; `Task` or None use the class that the preset
            names.
        preset: a preset, or the result of `resolve_preset`.
        load_weights: True loads the weights, False keeps freshly initialized ones. Defaults to
            True.
        dtype: dtype or dtype policy of the model; `"int8"`, `"int4"`, `"int4/64"` (with groups of
            64) or such as `"int4_from_bfloat16"` quantize each layer of the backbone as soon as it
            is loaded. Defaults to Keras's global policy.
            Without one, quantized matrices that layers of int4 and int8 can hold stay
            as they are stored; with one, all are unpacked to it.
        **options: arguments of the task's constructor, or values of the backbone's config to
            change. A name that is in both, such as `dropout`, sets both.

    Raises:
        ValueError: if an option is unknown, if the task does not support the preset's kind, if its
            files do not fit each other, or if its weights contradict an option.

    Example:
    ```python
    from keras_transformer import TextClassifier
    from keras_transformer.checkpoints import load_task

    classifier = load_task(TextClassifier, "minilm_l6_en", labels=["bad", "good"])
    assert classifier.num_classes == 2 and classifier.tokenizer is not None
    ```
    """
    load_weights = check_bool("load_weights", load_weights)
    if hasattr(task_class, "backbone_kinds"):
        known = {*inspect.signature(task_class.__init__).parameters, *OPTIONS}
        if unknown := options.keys() - known:
            check_options(f"{task_class.__name__}.from_preset", unknown, known)
    return read_preset(
        preset, lambda opened: _load_task(opened, task_class, load_weights, dtype, options)
    )


def _load_task(
    preset: Preset, task_class: type | None, load_weights: bool, dtype, options: dict[str, Any]
) -> keras.Model:
    if not hasattr(task_class, "backbone_kinds"):
        task_class = _saved_class(preset, task_class)
    name = task_class.__name__
    preset = preset.for_kinds(task_class.backbone_kinds, name)
    side = _side(preset, task_class, task_class.backbone_kinds)
    config, saved, metadata = preset.describe(load_weights)
    if config.kind == "encoder":
        _check_saved_task(preset, task_class, saved)
    config = config if side is None else config.tower(side)
    taken = {"self", "backbone", "tokenizer", "processor"}
    # Not of the class: before Python 3.11.4 that is the signature of Keras's `__new__`.
    parameters = set(inspect.signature(task_class.__init__).parameters) - taken
    overrides = {name: value for name, value in options.items() if name in OPTIONS}
    unknown = sorted(set(options) - set(overrides) - parameters)
    if unknown:
        raise ValueError(
            f"Unknown options {unknown}. {name} takes {sorted(parameters)}, and the values of "
            "TransformerConfig."
        )
    if overrides:
        config = changed_config(preset.name, config, overrides, load_weights, name)
    given = {name: value for name, value in options.items() if name in parameters}
    head = SavedHead(preset, task_class, saved, given, parameters)
    if load_weights:
        shapes = head.shapes(config)
        check(preset, config, shapes, name, head.fresh)
    processor = _processor(preset, task_class.processor_class, load_weights)
    backbone, quantized = _build(config, metadata, dtype, load_weights)
    _check_reads(preset, task_class, backbone)
    with head.naming_values():
        try:
            task = task_class(backbone, processor, **head.options_of(config))
        except TypeError as error:  # values of wrong types, from the file or from the caller
            raise ValueError(f"The values {head.options} do not fit {name}: {error}") from error
    if load_weights:
        values = head.without_fresh(task.head) if head.used else None
        layers = None if quantized is None else LayerByLayer(backbone, quantized, owner=task)
        dtype_of = _quantized(dtype)
        head.tell(task, fill(preset, backbone, values, name, dtype_of, layers, head.fresh))
    elif quantized is not None:
        backbone.quantize(config=quantization_of(quantized))
    if "generator" in vars(task):
        of_task = (task.generator.continues_prompts, task.generator.takes_guidance)
        _tell_not_done(preset, unsupported_generation_values(backbone.generation_config, *of_task))
    return task


def _check_saved_task(preset: Preset, task_class: type, saved: Mapping[str, Any] | None) -> None:
    """Raise ValueError if an encoder was saved as a task of inputs that the class does not read."""
    of_preset = TASKS.get(saved["name"]) if saved else None
    if of_preset is None or issubclass(of_preset, task_class):
        return
    saved_reads, reads = of_preset.processor_class, task_class.processor_class
    arrays = {*saved_reads.reads_arrays}, {*reads.reads_arrays}
    texts = "token_ids" in arrays[0] | arrays[1]
    # Spectrograms and images may be arrays of one name, so what is read decides too.
    if arrays[0].isdisjoint(arrays[1]) or (not texts and saved_reads.raw != reads.raw):
        raise ValueError(
            f"The preset {preset.name!r} is of the task {of_preset.__name__}, which reads "
            f"{saved_reads.raw}, but {task_class.__name__} reads {reads.raw}. Call "
            f"{of_preset.__name__}.from_preset."
        )


def _check_reads(preset: Preset, task_class: type, backbone: keras.Model) -> None:
    """Raise ValueError if a task of texts is given a model of images, videos, sound or series.

    An input of one's own, with a class outside of this package, is arrays for any task.
    """
    stem = backbone.config.sides[0].stem
    if stem is None or type(stem).__module__.split(".")[0] != "keras_transformer":
        return
    processor = task_class.processor_class
    if "token_ids" in processor.reads_arrays and not task_class.takes_backbone(backbone):
        raise ValueError(
            f"The model of the preset {preset.name!r} reads {backbone.id_inputs[0]!r}, but "
            f"{task_class.__name__} reads {processor.raw}."
        )


def _tell_not_done(preset: Preset, values: Mapping[str, Any]) -> None:
    if values:
        logging.getLogger("keras_transformer").warning(
            "The generation config of %r has values that `generate` ignores: %s.",
            preset.name,
            ", ".join(f"{name}={shorten(value)}" for name, value in values.items()),
        )


def _build(
    config: TransformerConfig, metadata: Mapping[str, Any], dtype, load_weights: bool
) -> tuple[keras.Model, IntegerDtype | None]:
    """Build a backbone without loading weights, and record on it where its weights come from.

    Also return the dtype to which it is to be quantized, if `dtype` names one.
    """
    zeros = HostZeros() if load_weights else None
    quantized = None if dtype is None else IntegerDtype.parse(dtype)
    dtype = dtype if quantized is None else quantized.floats
    backbone = BACKBONES[config.kind](config, dtype=dtype, initializer=zeros)
    backbone.family = metadata.get("family")
    backbone.generation_config = metadata.get(GENERATION)
    return backbone, quantized


def _quantized(dtype) -> Literal["kept", "unpacked"]:
    """Return what `fill` does with quantized matrices: a dtype, if given, is for all weights.

    Under a distribution all are unpacked.
    """
    whole = keras.distribution.distribution() is None
    return "kept" if dtype is None and whole else "unpacked"


def _processor(preset: Preset, kind: type, required: bool):
    """Return the preset's processor or None. Failed downloads raise only if it is `required`."""
    if not kind.has_tokenizer and not kind.files:
        return kind.from_files(preset.directory)
    if kind.files and preset.is_keras_hub:
        return _of_keras_hub(preset, kind)
    try:
        found = preset.folder_of(kind.files) if kind.files else preset.tokenizer
    except OSError as error:
        if required:
            raise
        made = kind.of_published()
        if made is not None:
            return made
        logging.getLogger("keras_transformer").warning(
            "The %s of %r is not on this machine, so the model takes %s only: %s",
            kind.kind,
            preset.name,
            kind.made,
            error,
        )
        return None
    if found is None:
        return kind.of_published() if preset.is_from_elsewhere else None
    return kind.from_files(found.directory) if kind.files else preset.load_tokenizer()


def _of_keras_hub(preset: Preset, kind: type):
    """Return the processor of a KerasHub folder's images, or of both images and texts, or None.

    The images may be the frames of videos.
    """
    from keras_transformer.checkpoints import keras_hub

    folder, source = preset.directory, getattr(kind, "source_class", kind)
    if not keras_hub.has_images(folder) or source not in (ImageProcessor, VideoProcessor):
        return None
    made = keras_hub.read_images(folder)
    if source is VideoProcessor:
        of_frames = ("size", "crop_size", "resample", "rescale_factor", "mean", "std")
        made = VideoProcessor(**{name: getattr(made, name) for name in of_frames})
    if kind is source:
        return made
    if not kind.has_tokenizer or not keras_hub.has_tokenizer(folder):
        return None
    return kind(made, preset.load_tokenizer())


def _saved_class(preset: Preset, wanted: type | None) -> type:
    """Return the task class that the preset names, which must be registered."""
    saved = preset.description[1]
    known = {n: t for n, t in TASKS.items() if wanted is None or issubclass(t, wanted)}
    name = None if saved is None else saved["name"]
    if name not in known:
        raise ValueError(
            f"The preset {preset.name!r} names the task {name!r}, but "
            f"{wanted.__name__ if wanted else 'a task'} may be one of {', '.join(known)}. Call "
            "from_preset on the class that you want."
        )
    return known[name]


# Arrays that the towers of a dual encoder read.
_OF_TOWERS = ("images", "frames", "token_ids")


def _side(preset: Preset, wanted: type | None, kinds: tuple[str, ...] | None) -> str | None:
    """Return which tower of a dual encoder the class can use; None if the config already fits.

    It is determined before the weights are fetched, since the config depends on their header.
    """
    config = preset.description[0]
    is_task = hasattr(wanted, "head_class")
    writes = is_task and wanted.head_class.predicts_tokens
    if writes and config.kind != "dual" and config.vector_pooling is not None:
        raise ValueError(
            f"The preset {preset.name!r} embeds texts, and was not trained to predict "
            f"tokens, as a {wanted.__name__} does. Its task is TextEmbedder."
        )
    if kinds is None or config.kind in kinds:
        return None
    if config.kind == "dual" and not writes:
        source, texts = config.sides
        reads = wanted.processor_class.reads_arrays if is_task else _OF_TOWERS
        array = "images" if getattr(source.stem, "num_bins", None) is None else "frames"
        if "encoder" in kinds and array in reads:
            return source.kind
        if "decoder" in kinds and "token_ids" in reads and not texts.bidirectional:
            return texts.kind
    raise ValueError(
        f"The preset {preset.name!r} is of kind {config.kind!r}, but {wanted.__name__} needs "
        f"{' or '.join(map(repr, kinds))}."
    )
