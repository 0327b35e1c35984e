"""What a family of published checkpoints is: values only, read in both directions."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from keras_transformer.checkpoints.safetensors_io import Checkpoint
from keras_transformer.checkpoints.weights import Names, Weight
from keras_transformer.config import TransformerConfig

Values = Mapping[str, Any]

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


@dataclasses.dataclass(frozen=True)
class Conversion:
    """Values that do not correspond one to one.

    Args:
        read: Makes values of our config from theirs. May raise ValueError.
        write: Makes values of theirs from our config.
    """

    read: Callable[[Values], dict[str, Any]]
    write: Callable[[TransformerConfig], dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Head:
    """A task that a family's checkpoints serve.

    Args:
        architectures: Their classes that have this head; the first is the one to export.
        weights: The weight table of the head.
        values: Options of our task class that are the same for the whole family.
        dropout: Their name for the dropout before the output, `None` without one.
    """

    architectures: tuple[str, ...]
    weights: tuple[Weight, ...] = ()
    values: Values = dataclasses.field(default_factory=dict)
    dropout: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One published architecture: how its config and its weights map to ours.

    Args:
        model_type: What `config.json` of such a checkpoint says in `model_type`.
        architecture: The name of the bare model in `architectures`.
        fields: The config values that have a counterpart, by their name.
        constants: Config values of ours that are the same for the whole family.
        conversions: What is neither of the two.
        required: Values of theirs with only one that our blocks compute.
        activations: Our name for each of theirs.
        weights: The weight table of the backbone.
        heads: The tasks beside the bare model, by the name of our task class.
        names: How the tensor names may vary.
        pooler: The tensor that shows that a checkpoint has a pooler, `None` without one.
        output_bias: The bias on the logits, likewise. One of zeros is none.
    """

    model_type: str
    architecture: str
    fields: Mapping[str, Field]
    constants: Values
    conversions: tuple[Conversion, ...] = ()
    required: Values = dataclasses.field(default_factory=dict)
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    weights: tuple[Weight, ...]
    heads: Mapping[str, Head] = dataclasses.field(default_factory=dict)
    names: Names
    pooler: str | None = None
    output_bias: str | None = None

    @property
    def silent(self) -> frozenset[str]:
        """Values of ours that their configs do not have, and that no output depends on."""
        return frozenset()

    def config(self, values: Values, tensors: Checkpoint | None = None) -> TransformerConfig:
        """Our config for one of theirs.

        Args:
            values: The content of their `config.json`.
            tensors: The checkpoint, if there is one: some parts, like BERT's pooler, are in the
                weights or not without the config saying so.

        Returns:
            The config of the backbone.

        Raises:
            ValueError: If a value is of a kind that our blocks do not compute.
        """
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
        return (
            config if tensors is None else config.replace(**self._seen_in(tensors, config, values))
        )

    def activation(self, name: str, value: Any) -> str:
        """Our name for the activation that their value `name` has. ValueError without one."""
        if not isinstance(value, str) or value not in self.activations:
            known = ", ".join(map(repr, self.activations))
            raise ValueError(f"{name}={value!r} is not supported, only {known}.")
        return self.activations[value]

    def _is_language_model(self, values: Values) -> bool:
        """Whether a config says that the checkpoint is a whole language model, not a bare one."""
        named = values.get("architectures")
        heads = [self.heads[task] for task in (*_GENERATING, "MaskedLM") if task in self.heads]
        return isinstance(named, list) and any(n in h.architectures for n in named for h in heads)

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
        table = {line.ours: line for line in self.weights}
        output = table.get("token_embedding/reverse_embeddings")
        if output is not None:
            mine = next((found[name] for name in output.names if name in found), None)
            embedding = table["token_embedding/embeddings"]
            shared = next((found[name] for name in embedding.names if name in found), None)
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
        """Their config for one of ours: the reverse of `config` and `task`.

        Args:
            config: The config of a backbone.
            task: The values of the task whose head goes along, `None` for the bare model.

        Returns:
            The content of a `config.json`.

        Raises:
            ValueError: If this architecture cannot express a value of the config, or the task.
        """
        cannot = f"A {self.model_type} checkpoint cannot express"
        ours = config.to_dict()
        theirs = {"model_type": self.model_type, "architectures": [self.architecture]}
        theirs |= self.required
        for name, field in self.fields.items():
            value = ours[field.ours]
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
            back = self.config(theirs).to_dict()
        except ValueError as error:
            raise ValueError(f"{cannot} this config: {error}") from error
        free = [name for name in ("pooler", "output_bias") if getattr(self, name)]
        for name, value in back.items():
            if name not in (*free, *_LEFT_OUT, *self.silent) and ours[name] != value:
                raise ValueError(f"{cannot} {name}={ours[name]!r}, only {value!r}.")
        return theirs | (self._published_task(config, task) if task else {})

    def task(self, values: Values) -> dict[str, Any] | None:
        """The task that a checkpoint's head serves, `None` for a bare model.

        Args:
            values: The content of their `config.json`.

        Returns:
            The name of our task class, and its values, such as labels.

        Raises:
            ValueError: If a value of the task is not usable, such as `id2label`.
        """
        architectures = values.get("architectures") or [None]
        known = isinstance(architectures, list) and isinstance(architectures[0], str)
        for name, head in self.heads.items():
            if known and architectures[0] in head.architectures:
                labels = _labels(values) if name in _WITH_LABELS else {}
                if name == "TextClassifier" and values.get("problem_type") == _MULTI_LABEL:
                    labels["multi_label"] = True
                return {"name": name, **labels, **self.task_values(name, values)}
        return None

    def task_values(self, name: str, values: Values | None = None) -> dict[str, Any]:
        """The options that a task of ours has in this family, with or without a saved head.

        Args:
            name: The name of our task class.
            values: The content of their `config.json`, `{}` for the published defaults.
        """
        values = values or {}
        head = self.heads.get(name, Head(architectures=()))
        task = dict(head.values)
        if head.dropout is not None and values.get(head.dropout) is not None:
            task["dropout"] = values[head.dropout]
        if name in _GENERATING and values.get("eos_token_id") is not None:
            ends = values["eos_token_id"]
            task["end_ids"] = _token_ids("eos_token_id", ends if isinstance(ends, list) else [ends])
        if name == "Seq2SeqLM" and values.get("decoder_start_token_id") is not None:
            start = values["decoder_start_token_id"]
            (task["start_id"],) = _token_ids("decoder_start_token_id", [start])
        return self._within_vocabulary(task, values)

    def _within_vocabulary(self, task: dict[str, Any], values: Values) -> dict[str, Any]:
        """Without token ids that the vocabulary lacks: small models keep the published ones."""
        theirs, field = next(
            (name, field) for name, field in self.fields.items() if field.ours == "vocabulary_size"
        )
        size = values.get(theirs, field.default)
        if not isinstance(size, int):
            return task
        if "end_ids" in task:
            task["end_ids"] = [i for i in task["end_ids"] if i < size]
            if not task["end_ids"]:
                del task["end_ids"]
        if task.get("start_id", 0) >= size:
            del task["start_id"]
        return task

    def _published_task(self, config: TransformerConfig, task: Values) -> dict[str, Any]:
        name = task["name"]
        if name not in self.heads:
            raise ValueError(f"A {self.model_type} checkpoint has no head for {name}.")
        head = self.heads[name]
        # A masked language model's default is the activation of the blocks.
        default = config.activation if name == "MaskedLM" else None
        mine, its = (source.get("hidden_activation") or default for source in (task, head.values))
        if mine != its:
            raise ValueError(
                f"A {self.model_type} checkpoint cannot express hidden_activation={mine!r} of "
                f"{name}, only {its!r}."
            )
        pooling = "last" if config.kind == "decoder" else "first"
        if name == "TextClassifier" and task.get("pooling", pooling) != pooling:
            raise ValueError(
                f"A {self.model_type} checkpoint cannot express pooling={task['pooling']!r} of "
                f"{name}, only {pooling!r}."
            )
        epsilon = task.get("normalization_epsilon") or config.normalization_epsilon
        if epsilon != config.normalization_epsilon:
            raise ValueError(
                f"A {self.model_type} checkpoint cannot express normalization_epsilon={epsilon} of "
                f"{name}, only {config.normalization_epsilon}."
            )
        if name == "TextClassifier" and self.pooler and not its and not config.pooler:
            raise ValueError(
                f"A {self.model_type} checkpoint of a TextClassifier has a pooler, this one none."
            )
        theirs: dict[str, Any] = {"architectures": [head.architectures[0]]}
        if name in _WITH_LABELS:
            labels = task["labels"] or [f"LABEL_{i}" for i in range(task["num_classes"])]
            theirs["id2label"] = {str(i): label for i, label in enumerate(labels)}
            theirs["label2id"] = {label: i for i, label in enumerate(labels)}
        if name == "TextClassifier" and (task.get("multi_label") or task["num_classes"] == 1):
            theirs["problem_type"] = _MULTI_LABEL if task.get("multi_label") else "regression"
        if head.dropout is not None and task.get("dropout") is not None:
            theirs[head.dropout] = task["dropout"]
        if task.get("end_ids"):
            ends = list(task["end_ids"])
            theirs["eos_token_id"] = ends[0] if len(ends) == 1 else ends
        if task.get("start_id") is not None:
            theirs["decoder_start_token_id"] = task["start_id"]
        return theirs


# Without a value of ours, theirs is not written: it changes no output.
_LEFT_OUT = ("initializer_range",)
_WITH_LABELS = ("TextClassifier", "TokenClassifier")
_GENERATING = ("CausalLM", "Seq2SeqLM")
_MULTI_LABEL = "multi_label_classification"


def _labels(values: Values) -> dict[str, Any]:
    labels = values.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
    numbers = [str(i) for i in range(len(labels))] if isinstance(labels, dict) else None
    named = numbers and set(labels) == set(numbers)
    if not named or not all(isinstance(label, str) for label in labels.values()):
        raise ValueError(
            f"id2label must name the labels '0', '1', ... in turn. Received: {labels!r}."
        )
    return {"num_classes": len(labels), "labels": [labels[number] for number in numbers]}


def _token_ids(name: str, ids: list) -> list[int]:
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ValueError(f"{name} must be a token id. Received: {ids!r}.")
    return list(ids)
