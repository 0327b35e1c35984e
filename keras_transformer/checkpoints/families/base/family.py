"""Class of a family of published checkpoints: tables of values, read in both directions.

"Ours" are values and paths of this package, "theirs" belong to the published checkpoint.
"""

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_transformer.checkpoints.heads import TASKS, Conversion, Values
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, Tensors
from keras_transformer.checkpoints.weights.tables import Names, WeightLine, expand
from keras_transformer.config import OPTIONS, SIDES, TransformerConfig
from keras_transformer.support.checking import check_flag, shorten

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
    "mish": "mish",
    "quick_gelu": "quick_gelu",
}


@dataclasses.dataclass(frozen=True)
class ConfigField:
    """One line of a config map: our name of a published value, and its default if it is missing."""

    ours: str
    default: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedHead:
    """Head of one task in a family's checkpoints: its classes, tensors and options."""

    architectures: tuple[str, ...] = ()  # published; the first is exported; default: usual
    weights: tuple[WeightLine, ...] = ()
    values: Values = dataclasses.field(default_factory=dict)  # fixed options of our task class
    dropout: str | None = None  # published name of the dropout before the output
    options: tuple[Conversion, ...] = ()  # options of our task class, read from any config
    shown_by: str | None = None  # a value that only configs of this head have
    prefix: str | None = None  # prefix of the backbone's tensors; default: the first of `names`
    # Constants that Transformers keeps among the weights, of the config and a task's values.
    computed: Callable[[TransformerConfig, Values], Mapping[str, np.ndarray]] | None = None


@dataclasses.dataclass(frozen=True)
class PartsWithoutKeywords:
    """Conversion of parts of a config that no keyword describes."""

    # The config with these parts, of the published values and of the config by keywords.
    read: Callable[[Values, TransformerConfig], TransformerConfig]
    # The config by keywords, without these parts, and the published values that state them.
    write: Callable[[TransformerConfig], tuple[TransformerConfig, dict[str, Any]]]


class Inexpressible(ValueError):
    """A config that checkpoints of a family cannot express.

    Args:
        message: str, the error's text.
        reasons: int, number of values that the family cannot express. None if they were not
            compared, since the config is of another kind.
    """

    def __init__(self, message: str, reasons: int | None = None):
        super().__init__(message)
        self.reasons = reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One published architecture: how its config and its weights map to ours."""

    model_type: str  # the value in `config.json`
    # The value in `config.json`, if two families share it: then the class name tells them apart.
    published_type: str | None = None
    architecture: str  # name of the bare model in `architectures`
    bare: bool = True  # whether Transformers has a class of this name
    fields: Mapping[str, ConfigField]  # config values with a counterpart, by published name
    constants: Values  # our values that are the same for the whole family
    conversions: tuple[Conversion, ...] = ()  # all other values
    parts: PartsWithoutKeywords | None = None
    required: Values = dataclasses.field(default_factory=dict)  # published, with the supported one
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    weights: tuple[WeightLine, ...]
    # Converts tensors, which files may store in several layouts, to the layout of `weights`.
    arrange: Callable[[Tensors], Tensors] | None = None
    # Further lines, if the families of its sides are known only from the config.
    of_config: Callable[[TransformerConfig], tuple[WeightLine, ...]] | None = None
    # Tensors of the bare model that it computes and its checkpoints hold, for a config.
    computed: Callable[[TransformerConfig], Mapping[str, np.ndarray]] | None = None
    heads: Mapping[str, PublishedHead] = dataclasses.field(
        default_factory=dict
    )  # by the name of our task
    names: Names  # variations of the tensor names
    any_size: bool = False  # no output depends on the size of images that our config states
    pooler: str | None = None  # the tensor that shows that a checkpoint has a pooler
    output_bias: str | None = None  # the bias on the logits; all zeros count as missing

    @property
    def silent(self) -> frozenset[str]:
        """Our values that published configs do not contain and that no output depends on."""
        return frozenset()

    def config(self, values: Values, tensors: Checkpoint | None = None) -> TransformerConfig:
        """Return our config for a published one and, if given, the tensors of its checkpoint."""
        for name, supported in self.required.items():
            if values.get(name, supported) not in (supported, None):
                raise ValueError(
                    f"{name}={values[name]!r} is not supported for model_type "
                    f"{self.model_type!r}, only {supported!r}."
                )
        # Every published config may have this value, and where it is not read the weights show it.
        if (tied := values.get("tie_word_embeddings")) is not None:
            check_flag("tie_word_embeddings", tied)
        ours = dict(self.constants)
        if self.pooler:
            ours["pooler"] = True
        for name, field in self.fields.items():
            value = values.get(name, field.default)
            ours[field.ours] = self.activation(name, value) if field.ours == "activation" else value
        for conversion in self.conversions:
            ours |= conversion.read(values)
        config = TransformerConfig.from_dict(ours)
        config = config if self.parts is None else self.parts.read(values, config)
        seen = {} if tensors is None else self._seen_in(tensors, config, values)
        return config.replace(**seen) if seen else config

    def lines(self, config: TransformerConfig) -> list[WeightLine]:
        """Return the weight table of a config, a line for each tensor."""
        further = self.of_config(config) if self.of_config else ()
        return expand((*self.weights, *further), config)

    def activation(self, name: str, value: Any) -> str:
        """Return our name for the activation in the published value `name`, or raise ValueError."""
        if not isinstance(value, str) or value not in self.activations:
            known = ", ".join(map(repr, self.activations))
            raise ValueError(f"{name}={value!r} is not supported, only {known}.")
        return self.activations[value]

    def classes(self, task: str) -> tuple[str, ...]:
        """Return the class names published for our task: what its head states, or the usual one."""
        usual = self.architecture.removesuffix("Model") + "".join(
            TASKS[task].head_class.published_as[:1]
        )
        return self.heads[task].architectures or (usual,)

    def _is_language_model(self, values: Values) -> bool:
        """Return whether a config belongs to a whole language model, not a bare one."""
        named = values.get("architectures")
        known = {
            n
            for task in self.heads
            if TASKS[task].head_class.predicts_tokens
            for n in self.classes(task)
        }
        return isinstance(named, list) and any(n in known for n in named if isinstance(n, str))

    def _seen_in(
        self, tensors: Checkpoint, config: TransformerConfig, values: Values
    ) -> dict[str, Any]:
        """Return the config values that only the tensors show: pooler, output bias, tied output."""
        found = {self.names.canonical(name): name for name in tensors}
        seen = {}
        if self.pooler:
            seen["pooler"] = self.pooler in found
        if self.output_bias:
            bias = found.get(self.output_bias)
            seen["output_bias"] = bias is not None and bool(tensors.read(bias).any())
        # Without the lines of layers, since a config may declare any number.
        further = self.of_config(config) if self.of_config else ()
        once = [line for line in (*self.weights, *further) if "{i}" not in line.ours]
        table = {line.ours: line for line in expand(once, config)}
        output = table.get("token_embedding/reverse_embeddings")
        if output is not None:
            mine, shared = (
                next((found[name] for name in line.names if name in found), None)
                for line in (output, table["token_embedding/embeddings"])
            )
            # A bare model has no output matrix, so it uses the embedding. In an untied language
            # model a missing output matrix is an error. If there is one, the output is tied only if
            # the config says so and the matrix equals the embedding.
            tied = config.tie_embeddings
            if mine is None:
                tied = tied or not self._is_language_model(values)
            else:
                tied = tied and (shared is None or tensors.same(mine, shared))
            seen["tie_embeddings"] = bool(tied)
        return seen

    def published_config(
        self, config: TransformerConfig, task: Values | None = None
    ) -> dict[str, Any]:
        """Return the published config for one of ours: the reverse of `config` and `task`."""
        cannot = f"A {self.model_type} checkpoint cannot express"
        try:
            plain, stated = (config, {}) if self.parts is None else self.parts.write(config)
            if not plain.by_keywords:
                raise Inexpressible(f"{cannot} the parts of this config.")
            theirs = _merged(self._written(plain), stated)
            back = self.config(theirs)
        except Inexpressible:
            raise
        except ValueError as error:
            raise Inexpressible(f"{cannot} this config: {error}") from error
        headed = {name for own in self.heads for name in self.classes(own)}
        alone = task is None and config.kind != self.constants["kind"]
        if config.kind != back.kind:
            raise Inexpressible(f"{cannot} kind={config.kind!r}, only {back.kind!r}.")
        if alone and headed.intersection(theirs["architectures"]):
            raise Inexpressible(f"{cannot} kind={config.kind!r} without a head.")
        if (config.source is None) != (back.source is None):
            raise Inexpressible(
                f"{cannot} source={shorten(config.source)}, only {shorten(back.source)}."
            )
        free = [name for name in ("pooler", "output_bias") if getattr(self, name)]
        if self.any_size and config.stem is not None and back.stem is not None:
            back = _with_size(back, config.stem.image_size)
        reasons = differences(config, back, {*free, *_LEFT_OUT, *self.silent})
        if not reasons and self.parts is not None and not _same_parts(config, back):
            raise Inexpressible(f"{cannot} the parts of this config.")
        if reasons:
            raise Inexpressible(f"{cannot} {'; '.join(reasons)}.", len(reasons))
        return _merged(theirs, self._published_task(config, task, theirs)) if task else theirs

    def _written(self, config: TransformerConfig) -> dict[str, Any]:
        """Return the published config of a bare model, before it is compared with ours."""
        model_type = self.published_type or self.model_type
        theirs = {"model_type": model_type, "architectures": [self.architecture], **self.required}
        for name, field in self.fields.items():
            if field.ours not in config.flat:
                raise ValueError(f"a model without attention has no {field.ours}.")
            value = getattr(config, field.ours)
            if field.ours == "activation":
                names = [theirs for theirs, known in self.activations.items() if known == value]
                if not names:
                    raise ValueError(f"activation={value!r} is unknown there.")
                value = field.default if field.default in names else names[0]
            if value is not None or field.ours not in _LEFT_OUT:
                theirs[name] = value
        for conversion in self.conversions:
            theirs |= conversion.write(config)
        return theirs

    def task(self, values: Values) -> dict[str, Any] | None:
        """Return the task of a checkpoint's head, or `None` if the model is bare."""
        named = values.get("architectures") or [None]
        named = named[0] if isinstance(named, list) else None
        # Several heads may share a class name, so a value that only one head has is tried first.
        for name, head in sorted(self.heads.items(), key=lambda item: item[1].shown_by is None):
            shown = head.shown_by is None or values.get(head.shown_by) is not None
            if shown and named in self.classes(name):
                task = {"name": name}
                for option in TASKS[name].head_class.published_head:
                    task |= option.read(values)
                return task | self.task_values(name, values)
        return None

    def task_values(self, name: str, values: Values | None = None) -> dict[str, Any]:
        """Return the options that a task has in this family, with or without a saved head."""
        values = values or {}
        head = self.heads.get(name, PublishedHead())
        task = dict(head.values)
        if head.dropout is not None and values.get(head.dropout) is not None:
            task["dropout"] = values[head.dropout]
        usual = TASKS[name].head_class.published_options if name in TASKS else ()
        for option in (*usual, *head.options):
            task |= option.read(values)
        return self._within_vocabulary(task, values)

    def _within_vocabulary(self, task: dict[str, Any], values: Values) -> dict[str, Any]:
        """Remove token ids that are not in the vocabulary: small models keep the published ids."""
        if not {"end_ids", "start_id"} & set(task):
            return task
        sizes = (
            values.get(name, field.default)
            for name, field in self.fields.items()
            if field.ours == "vocabulary_size"
        )
        size = next(sizes, None)  # image models have no vocabulary
        if self.of_config is not None:
            size = self.config(values).sides[-1].vocabulary_size  # given in a nested config
        if not isinstance(size, int):
            return task
        ends = [i for i in task.pop("end_ids", ()) if i < size]
        if ends:
            task["end_ids"] = ends
        if task.get("start_id", 0) >= size:
            del task["start_id"]
        return task

    def _published_task(
        self, config: TransformerConfig, task: Values, base: Values
    ) -> dict[str, Any]:
        name = task["name"]
        if name not in self.heads:
            raise ValueError(f"A {self.model_type} checkpoint has no head for {name}.")
        head, task_class = self.heads[name], TASKS[name]
        kind = task_class.head_class
        if kind.reads_pooler and self.pooler and not head.values and not config.pooler:
            raise ValueError(
                f"A {self.model_type} checkpoint of a {name} has a pooler, but this model does not."
            )
        if config.token_projection and not kind.predicts_tokens:
            raise ValueError(
                f"A {self.model_type} checkpoint with `token_projection` has heads for states with "
                f"{config.embedding_dim} features, but the {name} has one for {config.hidden_dim}. "
                "Save it with `save_to_preset`."
            )
        # The class that the config names, if any; otherwise the first.
        said = [each for each in base["architectures"] if each in self.classes(name)]
        theirs: dict[str, Any] = {"architectures": said or [self.classes(name)[0]]}
        if head.dropout is not None and task.get("dropout") is not None:
            theirs[head.dropout] = task["dropout"]
        options = (*kind.published_head, *kind.published_options, *head.options)
        for option in options:
            theirs |= option.write(task)
        whole = _merged(base, theirs)
        read = self.config(whole)
        for value in ("kind", "activation"):  # the head determines these
            mine, only = getattr(config, value), getattr(read, value)
            if mine != only:
                raise ValueError(
                    f"A {self.model_type} checkpoint of a {name} cannot express {value}={mine!r}, "
                    f"only {only!r}."
                )
        back = task_class.head_values(config, self.task(whole))
        for value, mine in task_class.head_values(config, task).items():
            if mine != back[value]:
                raise ValueError(
                    f"A {self.model_type} checkpoint cannot express {value}={mine!r} for {name}, "
                    f"only {back[value]!r}."
                )
        return theirs


def _with_size(config: TransformerConfig, size: tuple[int, int]) -> TransformerConfig:
    """Return a config of an encoder of images for images of another size."""
    stem = config.encoder.input.replace(image_size=size)
    return config.replace(encoder=config.encoder.replace(input=stem))


def _same_parts(config: TransformerConfig, other: TransformerConfig) -> bool:
    """Return whether the layers of two configs are equal, and what the layers are given."""
    one, two = (
        [
            (tuple(side.blocks), side.layer_inputs, side.global_states)
            for side in (each.only_side for each in whole.sides)
        ]
        for whole in (config, other)
    )
    return one == two


def differences(
    config: TransformerConfig,
    back: TransformerConfig,
    skipped: Collection[str],
    alike: Callable[[Any, Any], bool] = operator.eq,
) -> list[str]:
    """Return the values in which a config differs from the one that was read back, as texts.

    Values whose names are `skipped` are not compared; `alike` says whether two values are the same.
    """
    both = [(config, back, {"model"})]
    parts = {"side", "layer", "overrides"}
    both += [(*side, parts) for side in zip(config.sides, back.sides, strict=True)]
    reasons = []
    for mine, read, compared in both:
        for name, known in OPTIONS.items():
            # A model without attention has no values of it.
            own, value = getattr(mine, name, None), getattr(read, name, None)
            if known["of"] in compared and name not in (*SIDES, *skipped) and not alike(own, value):
                reasons.append(f"{name}={shorten(own)}, only {shorten(value)}")
    return list(dict.fromkeys(reasons))


def _merged(values: Values, further: Values) -> dict[str, Any]:
    """Merge two dicts; nested configs are merged key by key."""
    return dict(values) | {
        name: {**values[name], **value}
        if isinstance(value, dict) and isinstance(values.get(name), dict)
        else value
        for name, value in further.items()
    }


# Published values that are not written if ours are None: they change no output.
_LEFT_OUT = ("initializer_range",)
