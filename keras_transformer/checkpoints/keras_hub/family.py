"""A family in KerasHub's form: the arguments of a backbone class, and its weight table.

Weight paths are those in Keras's HDF5 files. Serialized Keras objects are read as values, and
nothing is created from them by name.
"""

import dataclasses
import functools
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.families.base.family import (
    ConfigField,
    Conversion,
    Family,
    PublishedHead,
    Values,
)
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.weights import tables as weights
from keras_transformer.checkpoints.weights.tables import Names, WeightLine
from keras_transformer.config import CHANGEABLE, TransformerConfig

# Keras registers a class under the package's name and its own; KerasHub also has an older name.
PACKAGES = ("keras_hub", "keras_nlp")
_FLOATS = ("float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16", "float64")
# Prefix of the tensors of a task's head, which KerasHub stores in another file.
TASK_PREFIX = "task/"
# KerasHub's task arguments, by this package's names. The `activation` of a classifier is not used,
# since classifiers here return logits. The epsilon is not an argument, but a model in memory may
# have another value than the default.
_TASK_ARGUMENTS = {
    "TextClassifier": {"num_classes": "num_classes", "dropout": "dropout"},
    "MaskedLM": {"normalization_epsilon": "layer_norm_epsilon"},
    "TextEmbedder": {"normalize": "normalize"},
    "ImageClassifier": {"num_classes": "num_classes", "dropout": "dropout"},
    "ImageSegmenter": {"num_classes": "num_classes"},
}
_POOLINGS = {"mean": "mean", "cls": "first", "max": "max"}
_ACTIVATIONS = {
    **{name: name for name in ("relu", "gelu", "silu", "tanh", "sigmoid", "mish")},
    **{f"{package}>gelu_approximate": "gelu_tanh" for package in PACKAGES},
}

# Serialized objects


def registered_class(values: Values) -> str:
    """Return the class that a serialized Keras object names, if it is one of KerasHub's own."""
    name, registered = values.get("class_name"), values.get("registered_name")
    module = values.get("module")
    package, _, known_as = registered.partition(">") if isinstance(registered, str) else ("",) * 3
    ours = module is None or (isinstance(module, str) and module.split(".")[0] in PACKAGES)
    if package not in PACKAGES or not known_as or name not in (None, known_as) or not ours:
        raise ValueError(
            "Only KerasHub objects are read, such as class_name='BertBackbone' with "
            f"registered_name='keras_hub>BertBackbone'. Received: class_name={_short(name)}, "
            f"registered_name={_short(registered)}, module={_short(module)}."
        )
    return known_as


def serialized_arguments(values: Values) -> dict[str, Any]:
    """Return the arguments of a serialized Keras object."""
    arguments = values.get("config")
    if not isinstance(arguments, dict):
        raise ValueError(
            f"'config' must be an object with arguments. Received: {_short(arguments)}."
        )
    return arguments


def check_dtype(policy: Any) -> None:
    """Refuse weights that are not floating point numbers of any precision."""
    value = policy
    if isinstance(policy, dict) and policy.get("class_name") in ("DTypePolicy", "FloatDTypePolicy"):
        value = policy.get("config")
        value = value.get("name") if isinstance(value, dict) else None
    if value is not None and value not in _FLOATS:
        raise ValueError(
            f"dtype={_short(policy)} is not supported, only {', '.join(map(repr, _FLOATS))}. "
            "Save a model that is not quantized."
        )


def _short(value: Any) -> str:
    return repr(value)[:200]


def _known(name: str, value: Any, known: Mapping[str, str]) -> str:
    """Return this package's name for a KerasHub value. Raises ValueError if it is unknown."""
    if not isinstance(value, str) or value not in known:
        names = ", ".join(map(repr, known))
        raise ValueError(f"{name}={str(value)[:200]!r} is not supported, only {names}.")
    return known[value]


def inner_arguments(
    values: Values, name: str, made: str, needed: Collection[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return the arguments of the model within a model that the argument `name` holds.

    Raises ValueError if it is not of the class `made`, or has other arguments than these.
    """
    given = values.get(name)
    found = registered_class(given) if isinstance(given, dict) else None
    if found != made:
        raise ValueError(f"{name} must be a {made}, not {_short(found)}.")
    own = dict(serialized_arguments(given))
    check_dtype(own.pop("dtype", None))
    order = own.pop("data_format", None)
    if order not in (None, "channels_last"):
        raise ValueError(
            f"data_format={_short(order)} of {name} is not supported, only 'channels_last'."
        )
    unknown = sorted(own.keys() - {*needed, *optional, "name", "trainable"})
    if unknown:
        raise ValueError(f"{name} has unknown arguments, {unknown}.")
    if missing := sorted({*needed} - own.keys()):
        raise ValueError(f"{name} lacks the arguments {missing}.")
    return own


def inner_model(made: str, arguments: Values) -> dict[str, Any]:
    """Return the argument that holds a model, the reverse of `inner_arguments`."""
    named = {"class_name": made, "registered_name": f"{PACKAGES[0]}>{made}"}
    return {**named, "config": dict(arguments)}


# Weights


def numbered(i: int) -> str:
    """Return the end of the name of the layer number `i` of a class, counted from 0."""
    return f"_{i}" if i else ""


@dataclasses.dataclass(frozen=True)
class Line(WeightLine):
    """One line of a weight table of KerasHub."""

    # Keras numbers the layers of a class in the order of the model; the first has no number:
    # `dense`, `dense_1`. In `theirs`, `{i}` stands for this ending.
    apart: bool = True  # dense layers of attention have a separate axis of heads
    behind: bool = False  # the decoder's blocks are numbered after the encoder's, of the same class
    first: int = 0  # number of the stack's first layer; set by `of`
    heads_first: bool = False  # the axis of heads of queries, keys and values precedes the inputs
    more: int = 0  # by which theirs is more than ours, in the weights of norms

    def for_config(self, config: TransformerConfig) -> "Line":
        """Return the line for a config, with its number of heads, or of key and value heads."""
        first = config.num_layers if self.behind else 0
        if "attention/" not in self.ours:
            groups = config.expert_dim if self.interleaved else self.groups
            line = dataclasses.replace(self, first=first, groups=groups)
            if self.of_patches:
                side, stem = config.stem.patch_size, config.stem
                shape = (stem.tube_frames, side, side, stem.num_channels)
                line = dataclasses.replace(line, of_patches=shape)
            return line if "{i}" in self.ours else line.at(0)
        shared = self.part is None and self.ours.split("/")[-2] in ("key", "value")
        groups = config.num_key_value_heads if shared else config.num_heads
        groups = groups if self.apart else 1
        line = dataclasses.replace(self, groups=groups, first=first)
        return line if "{i}" in self.ours else line.at(0)

    def at(self, i: int, each: int = 1) -> "Line":
        theirs = self.theirs.replace("{i}", numbered(self.first + i))
        return dataclasses.replace(self, ours=self.ours.replace("{i}", str(i)), theirs=theirs)

    @property
    def heads(self) -> int | None:
        """Axis of the variable that KerasHub splits into heads and head width, or None."""
        if not self.apart or "attention/" not in self.ours:
            return None
        *_, layer, name = self.ours.split("/")
        if name not in ("kernel", "bias"):
            return None
        if layer == "output":
            return 0 if name == "kernel" else None
        return 1 if name == "kernel" else 0

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        apart = self._apart(super().shape(ours))
        return (apart[1], apart[0], *apart[2:]) if self._moved else apart

    def _apart(self, flat: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape with an axis of heads, behind the axes that precede them here."""
        if self.heads is None:
            return flat
        before, width, after = flat[: self.heads], flat[self.heads], flat[self.heads + 1 :]
        return (*before, self.groups, width // self.groups, *after)

    @property
    def _added(self) -> int:
        return self.more if self.ours.endswith("/gamma") else 0

    @property
    def _moved(self) -> bool:
        return self.heads_first and self.heads == 1

    def split(self, array: np.ndarray) -> np.ndarray:
        array = np.swapaxes(array, 0, 1) if self._moved else array
        if self.heads is not None:
            before, after = array.shape[: self.heads], array.shape[self.heads + 2 :]
            array = array.reshape(*before, -1, *after)
        return super().split(array) - self._added if self._added else super().split(array)

    def join(self, arrays: list[np.ndarray]) -> np.ndarray:
        joined = super().join(arrays)
        joined = joined + self._added if self._added else joined
        apart = joined.reshape(self._apart(joined.shape))
        return np.swapaxes(apart, 0, 1) if self._moved else apart


# `checkpoints.weights.tables.layers`, with the defaults of Keras's files.
layers = functools.partial(weights.layers, line=Line, ends=("/vars/0", "/vars/1"), transpose=False)


def attention(kind: str, dense: str = "{}_dense", norm: str = "_norm") -> dict[str, str]:
    """Return the layers of a block's `"self"` or `"cross"` attention, and its normalization."""
    ours, theirs = f"{kind}_attention", f"_{kind}_attention_layer"
    parts = ("query", "key", "value", "output")
    table = weights.attention(f"{theirs}/{dense}", *parts, ours=ours)
    return {**table, f"{ours}_norm": f"{theirs}{norm}"}


def feed_forward(*parts: str, norm: str = "_feedforward_layer_norm") -> dict[str, str]:
    """Return the layers of a block's feed-forward part, and its normalization."""
    table = {f"feed_forward/{part}": f"_feedforward_{part}_dense" for part in parts}
    return {**table, "feed_forward_norm": norm}


def blocks(stack: str, *kinds: str) -> tuple[WeightLine, ...]:
    """Return the blocks of `TransformerEncoder` or `TransformerDecoder`, by kind of attention."""
    table = feed_forward("intermediate", "output")
    for kind in kinds or ("self",):
        table |= attention(kind)
    return layers(table, f"{stack}/layer_{{i}}/", f"layers/transformer_{stack}{{i}}/")


REVERSIBLE = (
    Line("token_embedding/embeddings", "layers/reversible_embedding/vars/0"),
    Line("token_embedding/reverse_embeddings", "layers/reversible_embedding/vars/1"),
)

# Configs


def _read_head_width(values: Values) -> dict[str, Any]:
    # KerasHub discards the remainder of this division.
    names = ("num_heads", "num_query_heads", "num_attention_heads")
    width = values.get("hidden_dim")
    heads = next((values[name] for name in names if name in values), None)
    if not isinstance(width, int) or not isinstance(heads, int) or not 1 <= heads <= width:
        raise ValueError(
            f"num_heads and hidden_dim must be integers, from 1 to the width, not {heads!r} and "
            f"{width!r}."
        )
    return {"head_dim": width // heads}


def _read_dropout(values: Values) -> dict[str, Any]:
    return {"attention_dropout": values["dropout"]} if "dropout" in values else {}


def _read_activation(values: Values) -> dict[str, Any]:
    activation = values.get("activation")
    if activation is None:
        return {}
    if isinstance(activation, dict) and activation.get("class_name") == "function":
        activation = activation.get("config")
    return {"activation": _known("activation", activation, _ACTIVATIONS)}


def _write_activation(config: TransformerConfig) -> dict[str, Any]:
    names = [theirs for theirs, ours in _ACTIVATIONS.items() if ours == config.activation]
    return {"activation": names[0]} if names else {}


# KerasHub's configs do not contain the head width, so nothing is written.
HEAD_WIDTH = Conversion(_read_head_width, lambda config: {})
DROPOUT = Conversion(_read_dropout, lambda config: {})
# Only T5 and RoFormer v2 have an argument for their activation. Other classes have a constant, and
# a model in memory may have another value.
ACTIVATION = Conversion(_read_activation, _write_activation)
USUAL = (HEAD_WIDTH, DROPOUT, ACTIVATION)
FIELDS = {
    "vocabulary_size": ConfigField("vocabulary_size", None),
    "num_layers": ConfigField("num_layers", None),
    "num_heads": ConfigField("num_heads", None),
    "hidden_dim": ConfigField("hidden_dim", None),
    "intermediate_dim": ConfigField("intermediate_dim", None),
    "dropout": ConfigField("dropout", 0.1),
}
# Projections of attention layers had private names in older releases of Keras.
_NAMES = Names(
    suffixes={
        f"/_{name}_dense/vars/{i}": f"/{name}_dense/vars/{i}"
        for name in ("query", "key", "value", "output")
        for i in (0, 1)
    },
    ignored=(f"{TASK_PREFIX}*",),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasHubFamily(Family):
    """A family whose published values are the arguments of a KerasHub backbone."""

    conversions: tuple[Conversion, ...] = USUAL
    more: tuple[str, ...] = ("activation",)  # the arguments that `conversions` read
    needed: tuple[str, ...] = ()  # of the further ones, which every config has
    names: Names = _NAMES
    # The `model_type` of configs without an argument, and this argument, if the class has two.
    older: tuple[str, str] | None = None
    # The family of configs without an argument, and this argument, if the class has two kinds.
    other: "tuple[KerasHubFamily, str] | None" = None

    def of(self, values: Values) -> "KerasHubFamily":
        """Return the family with the `model_type` of these arguments."""
        if self.other is not None and not values.get(self.other[1]):
            return self.other[0]
        if self.older is None or values.get(self.older[1]):
            return self
        return dataclasses.replace(self, model_type=self.older[0], older=None)

    @property
    def model_types(self) -> tuple[str, ...]:
        """The names of its architectures in published configs."""
        older = () if self.older is None else (self.older[0],)
        return (*older, *(() if self.other is None else self.other[0].model_types), self.model_type)

    @property
    def every(self) -> "tuple[KerasHubFamily, ...]":
        """The families of both kinds of a class."""
        return (self,) if self.other is None else (self, self.other[0])

    @property
    def tokenizer(self) -> str:
        """Name of KerasHub's tokenizer class."""
        name = self.architecture.removesuffix("Backbone")
        return ("RWKV" if name == "RWKV7" else name) + "Tokenizer"

    @property
    def arguments(self) -> set[str]:
        """Names of the constructor's arguments."""
        return {*self.fields, *self.more, *self.needed, *self.required}

    @property
    def silent(self) -> frozenset[str]:
        return CHANGEABLE - {field.ours for field in self.fields.values()}

    def classes(self, task: str) -> tuple[str, ...]:
        """Return KerasHub's class names for a task; a classifier has a second, older name."""
        if own := self.heads[task].architectures:
            return own
        prefix = self.architecture.removesuffix("Backbone")
        older = (f"{prefix}Classifier",) if task == "TextClassifier" else ()
        return (f"{prefix}{task}", *older)

    def task(self, values: Values) -> dict[str, Any] | None:
        saved = values.get("task")
        name = saved and next(
            (n for n in self.heads if saved["class_name"] in self.classes(n)), None
        )
        if not name:
            return None
        theirs, task = saved["config"], {"name": name, **self.task_values(name, values)}
        for ours, argument in _TASK_ARGUMENTS.get(name, {}).items():
            if argument in theirs:
                task[ours] = theirs[argument]
        if name == "TextEmbedder":
            mode = theirs.get("pooling_mode", "mean")
            task["pooling"] = _known("pooling_mode", mode, _POOLINGS)
        return task

    def published_arguments(self, config: TransformerConfig) -> dict[str, Any]:
        """Return KerasHub's backbone arguments for a config. Raises ValueError if it has none."""
        theirs = self.published_config(config)
        return {name: theirs[name] for name in self.arguments if name in theirs}

    def published_task(
        self, config: TransformerConfig, task: Values, classes: Values
    ) -> dict[str, Any]:
        """Return KerasHub's class name and arguments for a task, the reverse of `task`.

        The arguments of a part of the head that KerasHub has in the backbone are in `"inner"`.
        """
        name = task["name"]
        known = self.classes(name) if name in self.heads else ()
        made = next((each for each in known if each in classes), None)
        if made is None:
            raise ValueError(f"KerasHub has no {name} for it. Convert its `backbone`.")
        theirs = {argument: task[o] for o, argument in _TASK_ARGUMENTS.get(name, {}).items()}
        if name == "TextEmbedder":
            modes = [mode for mode, ours in _POOLINGS.items() if ours == task["pooling"]]
            if not modes:
                raise ValueError(f"{made} cannot express pooling={task['pooling']!r}.")
            theirs["pooling_mode"] = modes[0]
        for option in self.heads[name].options:
            theirs |= option.write(task)
        inner = {name: theirs.pop(name) for name in [*theirs] if name in self.arguments}
        saved = {"task": {"class_name": made, "config": theirs}}
        back = self.task({**self.published_arguments(config), **inner, **saved})
        mine, its = (TASKS[name].head_values(config, values) for values in (task, back))
        compared = {"hidden_activation", "hidden_bias", "block_norm", "pooling", "dense"}
        compared |= {"projection", "output_dim", "distilled"}
        for value in compared & set(mine):
            if mine[value] != its[value]:
                raise ValueError(
                    f"{made} cannot express {value}={mine[value]!r}, only {its[value]!r}."
                )
        theirs.pop("layer_norm_epsilon", None)
        return {"class_name": made, "config": theirs, "inner": inner}


def make_family(
    model_type: str,
    name: str,
    fields: Mapping[str, ConfigField],
    constants: Values,
    lines: tuple[WeightLine, ...],
    heads: Mapping[str, PublishedHead],
    **values: Any,
) -> KerasHubFamily:
    """Return the family of KerasHub's class `<name>Backbone`."""
    return KerasHubFamily(
        model_type=model_type,
        architecture=f"{name}Backbone",
        fields=fields,
        constants=constants,
        weights=lines,
        heads=heads,
        **values,
    )
