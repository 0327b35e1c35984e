"""Conversion of KerasHub models in memory to models of this package and back.

A model in memory may have settings for which its class has no argument: the activation of its
blocks, the epsilon of a head. They are stored beside the arguments.
"""

import inspect
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.keras_hub.families import KERAS_HUB, TASK_FILE
from keras_transformer.checkpoints.keras_hub.family import TASK_PREFIX, KerasHubFamily
from keras_transformer.checkpoints.keras_hub.hdf5 import TASK_WEIGHTS_FILE, WEIGHTS_FILE
from keras_transformer.checkpoints.keras_hub.images import make_images
from keras_transformer.checkpoints.keras_hub.others import what_else
from keras_transformer.checkpoints.keras_hub.writing import make_tokenizer
from keras_transformer.checkpoints.presets.assignment import backbone_variables
from keras_transformer.checkpoints.presets.building import load_backbone, load_task
from keras_transformer.checkpoints.presets.preset import CONFIG_FILE
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.checkpoints.weights.tables import export
from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import variable_shapes
from keras_transformer.models.runtime.quantized import refuse_quantized
from keras_transformer.support.checking import describe
from keras_transformer.support.files import read_json, write_json
from keras_transformer.support.warned import warn_once
from keras_transformer.tokenizers import Tokenizer

_LOGGER = logging.getLogger("keras_transformer")
Arrays = Mapping[str, np.ndarray]


def from_keras_hub(model: Any) -> Any:
    """Convert a KerasHub model in memory to this package, with the same weights and outputs.

    The weights are copied through a temporary folder of the same size.

    Args:
        model: a backbone, task or tokenizer of `keras_hub`, of a supported family.

    Returns:
        A `Backbone`, a task with its tokenizer, or a `Tokenizer`. A classifier returns logits, even
        if KerasHub's applies an activation to them.

    Raises:
        ImportError: if keras-hub is not installed.
        ValueError: if `model` is something else, is quantized, or if it or its tokenizer belongs to
            a family that is not supported.

    Example:
    ```python
    import keras_transformer as kt
    import keras_hub

    sizes = {"vocabulary_size": 9, "num_layers": 1, "num_heads": 2, "hidden_dim": 8}
    theirs = keras_hub.models.GPT2Backbone(**sizes, intermediate_dim=16)
    lm = kt.from_keras_hub(keras_hub.models.GPT2CausalLM(theirs))
    assert lm.generate([1, 2, 3], max_new_tokens=2)
    assert kt.to_keras_hub(lm).backbone.count_params() == theirs.count_params()
    ```
    """
    hub = _keras_hub()
    kinds = (hub.models.Backbone, hub.models.Task, hub.tokenizers.Tokenizer)
    if not isinstance(model, kinds):
        raise ValueError(
            f"`model` must be a backbone, a task or a tokenizer of KerasHub, received "
            f"{describe(model)}."
        )
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(model, hub.tokenizers.Tokenizer):
            model.save_to_preset(folder)
            return Tokenizer.from_preset(folder)
        backbone = model.backbone if isinstance(model, hub.models.Task) else model
        family = KERAS_HUB.get(type(backbone).__name__)
        classes = [name for task in family.heads for name in family.classes(task)] if family else []
        known = [name for name in classes if hasattr(hub.models, name)]
        if family is None:
            name = type(backbone).__name__
            raise ValueError(
                f"{name} belongs to no supported family. Supported are: "
                f"{', '.join(sorted(KERAS_HUB))}. {what_else(name)}".rstrip()
            )
        if backbone is not model and type(model).__name__ not in known:
            raise ValueError(
                f"{type(model).__name__} cannot be converted. Tasks of a {type(backbone).__name__} "
                f"that can: {', '.join(known) or 'none'}. Or convert its `backbone` alone."
            )
        model.save_to_preset(folder, max_shard_size=None)
        _add_live_values(Path(folder), backbone, model, family)
        if backbone is model:
            return load_backbone(folder, dtype=backbone.dtype_policy)
        return load_task(None, folder, dtype=backbone.dtype_policy)


def to_keras_hub(model: Any) -> Any:
    """Convert a model to KerasHub, with the same weights and outputs.

    KerasHub pads on the right, and its `generate` puts the start token before a prompt. It does not
    store names of labels.

    Args:
        model: a backbone, or a task, whose head and tokenizer are converted too.

    Returns:
        A backbone or a task of `keras_hub`.

    Raises:
        ImportError: if keras-hub is not installed.
        ValueError: if no class of KerasHub computes the same, or its tokenizer gives other ids. The
            message lists the reasons.

    Example: see `from_keras_hub`.
    """
    hub = _keras_hub()
    backbone = getattr(model, "backbone", model)
    if not isinstance(getattr(backbone, "config", None), TransformerConfig):
        raise ValueError(f"`model` must be a backbone or a task, received {describe(model)}.")
    refuse_quantized(model, "convert it before `quantize`")
    task = None if backbone is model else {"name": type(model).__name__, **model.task_values()}
    tokenizer = getattr(model, "tokenizer", None)
    kind, known = backbone.config.kind, getattr(backbone, "family", None)
    both = (each for family in KERAS_HUB.values() for each in family.every)
    families = [each for each in both if each.constants["kind"] == kind]
    reasons = []
    for family in [each for each in families if known in each.model_types] or families:
        try:
            config = _in_their_form(family, backbone.config)
            arguments = family.published_arguments(config)
            head = None if task is None else family.published_task(config, task, vars(hub.models))
            theirs = make_tokenizer(hub, family.tokenizer, tokenizer) if tokenizer else None
        except ValueError as error:
            reasons.append(f"\n  {family.architecture}: {error}")
            continue
        inner, outer = {}, {}
        if head is not None and model.head:
            tensors = export(family.heads[type(model).__name__].weights, _float32(model.head))
            for name, array in tensors.items():
                part = outer if name.startswith(TASK_PREFIX) else inner
                part[name.removeprefix(TASK_PREFIX)] = array
        arguments |= {} if head is None else head["inner"]
        made = _make_backbone(hub, family, arguments, config, backbone, inner)
        return made if head is None else _make_task(hub, made, model, head, theirs, outer)
    raise ValueError(f"No class of KerasHub fits this model:{''.join(reasons)}")


def _keras_hub():
    try:
        import keras_hub
    except ImportError as error:
        raise ImportError(
            "This needs KerasHub, which needs TensorFlow with any backend. "
            'Install them with: pip install "keras_transformer[tensorflow]"'
        ) from error
    return keras_hub


def _add_live_values(folder: Path, backbone: Any, model: Any, family: KerasHubFamily) -> None:
    """Write settings without a class argument into the folder of a model."""
    values = read_json(folder / CONFIG_FILE)
    block = next(_blocks(backbone), None)
    if block is not None and "activation" in family.more:
        activation = block._feedforward_intermediate_dense.activation
        values["config"]["activation"] = keras.activations.serialize(activation)
        write_json(folder / CONFIG_FILE, values)
    if hasattr(model, "masked_lm_head"):
        values = read_json(folder / TASK_FILE)
        norm = model.masked_lm_head._intermediate_layer_norm
        values["config"]["layer_norm_epsilon"] = norm.epsilon
        write_json(folder / TASK_FILE, values)
    activation = getattr(model, "activation", None) if hasattr(model, "num_classes") else None
    if activation not in (None, keras.activations.linear):
        warn_once(
            _LOGGER,
            "The classifier is converted without its activation: its outputs are logits, and "
            "`classify` gives probabilities.",
        )


def _blocks(backbone: Any):
    """Return the blocks whose activation is not an argument of the backbone."""
    return (x for x in backbone.layers if hasattr(x, "_feedforward_intermediate_dense"))


def _in_their_form(family: KerasHubFamily, config: TransformerConfig) -> TransformerConfig:
    """Return an equivalent config in the form that KerasHub's family uses."""
    # In KerasHub learned positions start at row 0, a single token type has no embedding, and the
    # class determines whether there is a pooler.
    values: dict[str, Any] = {}
    if config.share_embeddings and family.constants.get("share_embeddings") is False:
        values["share_embeddings"] = False  # each side gets the table
    if config.kind == "encoder":
        values["pooler"] = bool(family.constants.get("pooler"))
    if config.position == "learned":
        if (config.position_offset, config.position_padding_id) != (0, None):
            values |= {"position_offset": 0, "position_padding_id": None}
        segments = any(each.ours == "segment_vocabulary_size" for each in family.fields.values())
        if config.segment_vocabulary_size == 1 and not segments:
            values["segment_vocabulary_size"] = 0
    if family.model_type == "clip" and config.vector_end_id == config.vocabulary_size - 1:
        values["vector_end_id"] = None  # the highest id
    same = all(getattr(config, name) == value for name, value in values.items())
    return config if same else config.replace(**values)


def _float32(variables: Mapping[str, keras.Variable]) -> dict[str, np.ndarray]:
    return {path: to_numpy(variable).astype("float32") for path, variable in variables.items()}


def _arrays(backbone: Any, config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the weights by variable path, rearranged for a config of `_in_their_form`."""
    mine = backbone.config
    arrays = _float32(backbone_variables(backbone))
    for stack in ("encoder", "decoder"):
        place, segments = (
            f"{stack}/{name}_embedding/embeddings" for name in ("position", "segment")
        )
        if place in arrays and mine.position == "learned":
            arrays[place] = arrays[place][mine.position_offset :]
            if segments in arrays and not config.segment_vocabulary_size:
                arrays[place] = arrays[place] + arrays[segments]
    shapes = variable_shapes(config)
    if "encoder_token_embedding/embeddings" in shapes:
        arrays.setdefault(
            "encoder_token_embedding/embeddings", arrays["token_embedding/embeddings"]
        )
    further = arrays.keys() - shapes.keys() - variable_shapes(mine).keys()
    if further:
        raise ValueError(
            f"The backbone has weights that its config does not define: {sorted(further)[:4]}. "
            "Call `merge_lora` first."
        )
    # A pooler that the model lacks is filled with zeros.
    return {
        path: arrays[path] if path in arrays else np.zeros(shape, "float32")
        for path, shape in shapes.items()
    }


def _make_backbone(
    hub, family, arguments: dict, config: TransformerConfig, backbone: Any, inner: Arrays
) -> Any:
    """Return KerasHub's backbone; `inner` are tensors of our head that it contains."""
    tensors = {**export(family.lines(config), _arrays(backbone, config)), **inner}
    tensors |= {} if family.computed is None else family.computed(config)
    made_class = getattr(hub.models, family.architecture)
    for name, value in arguments.items():
        if isinstance(value, Mapping) and "class_name" in value:  # a model within the model
            arguments[name] = getattr(hub.models, value["class_name"])(
                **value["config"], dtype=backbone.dtype_policy
            )
    activation = arguments.get("activation")
    if activation is not None:
        function = keras.saving.get_registered_object(activation) or activation
        arguments["activation"] = keras.activations.get(function)
        if "activation" not in inspect.signature(made_class.__init__).parameters:
            del arguments["activation"]
    made = made_class(**arguments, dtype=backbone.dtype_policy)
    _load(made.load_weights, WEIGHTS_FILE, tensors)
    built_in = family.constants.get("activation")
    if activation is not None and config.activation != built_in and "activation" not in arguments:
        for block in _blocks(made):
            block.activation = keras.activations.get(function)
            block._feedforward_intermediate_dense.activation = block.activation
        warn_once(
            _LOGGER,
            "KerasHub's %s is built with activation=%r. This model's, %r, is set on its blocks, so "
            "that outputs are equal. Its own `save_to_preset` does not store it.",
            family.architecture,
            built_in,
            config.activation,
        )
    return made


def _make_task(
    hub, backbone: Any, model: Any, head: Mapping[str, Any], tokenizer, tensors: Arrays
) -> Any:
    """Return KerasHub's task over its backbone, with the tensors of its head."""
    made_class = getattr(hub.models, head["class_name"])
    preprocessor = None
    if tokenizer is not None or getattr(model, "processor", None) is not None:
        preprocessor = _make_preprocessor(made_class.preprocessor_cls, tokenizer, model)
    options = {"preprocessor": preprocessor, "compile": False, **head["config"]}
    made = made_class(backbone=backbone, **options)
    if tensors:
        _load(made.load_task_weights, TASK_WEIGHTS_FILE, tensors)
    if hasattr(made, "masked_lm_head"):
        made.masked_lm_head._intermediate_layer_norm.epsilon = model.transform_norm.epsilon
    made.compile()  # avoids Keras's warning that the file has no optimizer
    return made


def _make_preprocessor(made_class, tokenizer, model: Any) -> Any:
    """Return KerasHub's preprocessor; its maximum length is cut to the model's."""
    longest = getattr(model, "max_length", None) or model.backbone.config.max_sequence_length
    parameters = inspect.signature(made_class.__init__).parameters
    options: dict[str, Any] = {
        name: min(parameter.default, longest)
        for name, parameter in parameters.items()
        if name.endswith("sequence_length")
    }
    if tokenizer is not None:
        options["tokenizer"] = tokenizer
    if "add_start_token" in parameters:
        ours = model.tokenizer
        options["add_start_token"] = ours.encode("a")[:1] == [ours.start_id]
    if "image_converter" in parameters:
        source = getattr(model.processor, "source", model.processor)  # beside texts, or alone
        options["image_converter"] = make_images(made_class.image_converter_cls, source)
    return made_class(**options)


def _load(load, name: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Load tensors into a KerasHub model through a file in its format."""
    import h5py  # a dependency of Keras, which imports it only for saving

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        with h5py.File(path, "w") as file:
            for name, array in tensors.items():
                file[name] = array
        load(str(path))
