"""What a family of published checkpoints is: values only, read in both directions."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.checking import shorten
from keras_transformer.checkpoints.heads import TASKS, Conversion, Values
from keras_transformer.checkpoints.safetensors_io import Checkpoint
from keras_transformer.checkpoints.weights import Names, Weight, expand
from keras_transformer.config import OPTIONS, SIDES, TransformerConfig

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
class Field:
    """One line of a config map: our name for a value, and what it is when theirs is absent."""

    ours: str
    default: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """A task that a family's checkpoints serve."""

    architectures: tuple[str, ...] = ()  # their classes, the first to export; else the usual one
    weights: tuple[Weight, ...] = ()
    values: Values = dataclasses.field(default_factory=dict)  # options of our task class
    dropout: str | None = None  # their name for the dropout before the output
    options: tuple[Conversion, ...] = ()  # further ones of our task class, in any config
    shown_by: str | None = None  # a value that only configs of this head have
    prefix: str | None = None  # of the backbone's tensors beside it; else the first of the names


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One published architecture: how its config and its weights map to ours."""

    model_type: str  # as `config.json` says
    # What it says where another family has that too: the class then says which it is.
    published_type: str | None = None
    architecture: str  # the bare model in `architectures`
    fields: Mapping[str, Field]  # the config values that have a counterpart, by their name
    constants: Values  # values of ours that are the same for the whole family
    conversions: tuple[Conversion, ...] = ()  # what is neither of the two
    required: Values = dataclasses.field(default_factory=dict)  # theirs, with one that is supported
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    weights: tuple[Weight, ...]
    # Further lines, where the families of its sides are seen in the config alone.
    of_config: Callable[[TransformerConfig], tuple[Weight, ...]] | None = None
    heads: Mapping[str, Head] = dataclasses.field(default_factory=dict)  # by the name of our task
    names: Names  # how the tensor names may vary
    pooler: str | None = None  # the tensor that shows that a checkpoint has a pooler
    output_bias: str | None = None  # the bias on the logits, likewise; one of zeros is none

    @property
    def silent(self) -> frozenset[str]:
        """Values of ours that their configs do not have, and that no output depends on."""
        return frozenset()

    def config(self, values: Values, tensors: Checkpoint | None = None) -> TransformerConfig:
        """Our config for one of theirs."""
        for name, supported in self.required.items():
            if values.get(name, supported) not in (supported, None):
                raise ValueError(
                    f"{name}={values[name]!r} is not supported for model_type "
                    f"{self.model_type!r}, only {supported!r}."
                )
        ours = dict(self.constants)
        if self.pooler:
            ours["pooler"] = True
        for name, field in self.fields.items():
            value = values.get(name, field.default)
            ours[field.ours] = self.activation(name, value) if field.ours == "activation" else value
        for conversion in self.conversions:
            ours |= conversion.read(values)
        config = TransformerConfig.from_dict(ours)
        seen = {} if tensors is None else self._seen_in(tensors, config, values)
        return config.replace(**seen) if seen else config

    def lines(self, config: TransformerConfig) -> list[Weight]:
        """The weight table of a config, a line for each tensor."""
        further = self.of_config(config) if self.of_config else ()
        return expand((*self.weights, *further), config)

    def activation(self, name: str, value: Any) -> str:
        """Our name for the activation that their value `name` has. ValueError without one."""
        if not isinstance(value, str) or value not in self.activations:
            known = ", ".join(map(repr, self.activations))
            raise ValueError(f"{name}={value!r} is not supported, only {known}.")
        return self.activations[value]

    def classes(self, task: str) -> tuple[str, ...]:
        """Their classes for a task of ours: those of its head, or the usual one."""
        usual = self.architecture.removesuffix("Model") + "".join(TASKS[task].published_as[:1])
        return self.heads[task].architectures or (usual,)

    def _is_language_model(self, values: Values) -> bool:
        """Whether a config says that the checkpoint is a whole language model, not a bare one."""
        named = values.get("architectures")
        known = {
            n for task in self.heads if TASKS[task].predicts_tokens for n in self.classes(task)
        }
        return isinstance(named, list) and any(n in known for n in named if isinstance(n, str))

    def _seen_in(
        self, tensors: Checkpoint, config: TransformerConfig, values: Values
    ) -> dict[str, Any]:
        """The values that the checkpoint itself shows."""
        found = {self.names.canonical(name): name for name in tensors}
        seen = {}
        if self.pooler:
            seen["pooler"] = self.pooler in found
        if self.output_bias:
            bias = found.get(self.output_bias)
            seen["output_bias"] = bias is not None and bool(tensors.read(bias).any())
        # Without the lines of layers, of which a config may declare any number.
        further = self.of_config(config) if self.of_config else ()
        once = [line for line in (*self.weights, *further) if "{i}" not in line.ours]
        table = {line.ours: line for line in expand(once, config)}
        output = table.get("token_embedding/reverse_embeddings")
        if output is not None:
            mine, shared = (
                next((found[name] for name in line.names if name in found), None)
                for line in (output, table["token_embedding/embeddings"])
            )
            # A bare model has no matrix of its own for the output, which is the embedding then; in
            # a language model that is not tied it is missing. With one, a config that says "tied"
            # is right only if the two are the same.
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
        """Their config for one of ours: the reverse of `config` and `task`."""
        cannot = f"A {self.model_type} checkpoint cannot express"
        model_type = self.published_type or self.model_type
        theirs = {"model_type": model_type, "architectures": [self.architecture]}
        theirs |= self.required
        for name, field in self.fields.items():
            value = getattr(config, field.ours)
            if field.ours == "activation":
                names = [theirs for theirs, known in self.activations.items() if known == value]
                if not names:
                    raise ValueError(f"{cannot} activation={value!r}.")
                value = names[0]
            if value is not None or field.ours not in _LEFT_OUT:
                theirs[name] = value
        for conversion in self.conversions:
            theirs |= conversion.write(config)
        try:
            back = self.config(theirs)
        except ValueError as error:
            raise ValueError(f"{cannot} this config: {error}") from error
        headed = {name for own in self.heads for name in self.classes(own)}
        alone = task is None and config.kind != self.constants["kind"]
        if config.kind != back.kind:
            raise ValueError(f"{cannot} kind={config.kind!r}, only {back.kind!r}.")
        if alone and headed.intersection(theirs["architectures"]):
            raise ValueError(f"{cannot} kind={config.kind!r} without a head.")
        if (config.source is None) != (back.source is None):
            raise ValueError(
                f"{cannot} source={shorten(config.source)}, only {shorten(back.source)}."
            )
        free = [name for name in ("pooler", "output_bias") if getattr(self, name)]
        both = [(config, back, {"model"})]
        parts = {"side", "layer", "overrides"}
        both += [(*side, parts) for side in zip(config.sides, back.sides, strict=True)]
        for mine, read, compared in both:
            for name, known in OPTIONS.items():
                own, value = getattr(mine, name), getattr(read, name)
                skipped = known["of"] not in compared or name in (*free, *_LEFT_OUT, *self.silent)
                if not skipped and name not in SIDES and own != value:
                    raise ValueError(f"{cannot} {name}={own!r}, only {value!r}.")
        return _merged(theirs, self._published_task(config, task, theirs)) if task else theirs

    def task(self, values: Values) -> dict[str, Any] | None:
        """The task that a checkpoint's head serves, `None` for a bare model."""
        named = values.get("architectures") or [None]
        named = named[0] if isinstance(named, list) else None
        # A value that shows a head counts before the name of a class, which several may have.
        for name, head in sorted(self.heads.items(), key=lambda item: item[1].shown_by is None):
            shown = head.shown_by is None or values.get(head.shown_by) is not None
            if shown and named in self.classes(name):
                task = {"name": name}
                for option in TASKS[name].published_head:
                    task |= option.read(values)
                return task | self.task_values(name, values)
        return None

    def task_values(self, name: str, values: Values | None = None) -> dict[str, Any]:
        """The options that a task has in this family, with or without a saved head."""
        values = values or {}
        head = self.heads.get(name, Head())
        task = dict(head.values)
        if head.dropout is not None and values.get(head.dropout) is not None:
            task["dropout"] = values[head.dropout]
        usual = TASKS[name].published_options if name in TASKS else ()
        for option in (*usual, *head.options):
            task |= option.read(values)
        return self._within_vocabulary(task, values)

    def _within_vocabulary(self, task: dict[str, Any], values: Values) -> dict[str, Any]:
        """Without token ids that the vocabulary lacks: small models keep the published ones."""
        sizes = (
            values.get(name, field.default)
            for name, field in self.fields.items()
            if field.ours == "vocabulary_size"
        )
        size = next(sizes, None)  # A model of images has none.
        if self.of_config is not None:
            size = self.config(values).sides[-1].vocabulary_size  # A config within says it.
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
        if task_class.reads_pooler and self.pooler and not head.values and not config.pooler:
            raise ValueError(
                f"A {self.model_type} checkpoint of a {name} has a pooler, this one none."
            )
        if config.token_projection and not task_class.predicts_tokens:
            raise ValueError(
                f"A {self.model_type} checkpoint with `token_projection` has heads for states of "
                f"{config.embedding_dim} features, the {name} has one for {config.hidden_dim}. "
                "Save it with `save_to_preset`."
            )
        # Where the config says which of the classes it is, that one; else the first.
        said = [each for each in base["architectures"] if each in self.classes(name)]
        theirs: dict[str, Any] = {"architectures": said or [self.classes(name)[0]]}
        if head.dropout is not None and task.get("dropout") is not None:
            theirs[head.dropout] = task["dropout"]
        options = (*task_class.published_head, *task_class.published_options, *head.options)
        for option in options:
            theirs |= option.write(task)
        whole = _merged(base, theirs)
        read = self.config(whole)
        for value in ("kind", "activation"):  # on which the head has a say
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
                    f"A {self.model_type} checkpoint cannot express {value}={mine!r} of {name}, "
                    f"only {back[value]!r}."
                )
        return theirs


def _merged(values: Values, further: Values) -> dict[str, Any]:
    """Values and further ones; those of a config within are beside those that it has."""
    return dict(values) | {
        name: {**values[name], **value}
        if isinstance(value, dict) and isinstance(values.get(name), dict)
        else value
        for name, value in further.items()
    }


# Without a value of ours, theirs is not written: it changes no output.
_LEFT_OUT = ("initializer_range",)
