"""What a family of published checkpoints is: values only, read in both directions."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from keras_transformer.checkpoints.weights import Names, Weight
from keras_transformer.config import TransformerConfig

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@dataclasses.dataclass(frozen=True)
class Field:
    """One line of a config map: our name for a value, and what it is when theirs is absent."""

    ours: str
    default: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """One published architecture: how its config and its weights map to ours.

    Args:
        model_type: What `config.json` of such a checkpoint says in `model_type`.
        architecture: The name of the bare model in `architectures`.
        fields: The config values that have a counterpart, by their name.
        constants: Config values of ours that are the same for the whole family.
        required: Values of theirs with only one that our blocks compute.
        weights: The weight table of the backbone.
        heads: The weight table of each task's head, by the name of our task class.
        tasks: Our task class for each of their head architectures.
        names: How the tensor names may vary.
        pooler: The tensor that shows that a checkpoint has a pooler, `None` without one.
    """

    model_type: str
    architecture: str
    fields: Mapping[str, Field]
    constants: Mapping[str, Any]
    required: Mapping[str, Any]
    weights: tuple[Weight, ...]
    heads: Mapping[str, tuple[Weight, ...]]
    tasks: Mapping[str, str]
    names: Names
    pooler: str | None = None

    def config(
        self, values: Mapping[str, Any], tensors: Collection[str] | None = None
    ) -> TransformerConfig:
        """Our config for one of theirs.

        Args:
            values: The content of their `config.json`.
            tensors: The names in the checkpoint, if known: some parts, like BERT's pooler, are
                in the weights or not without the config saying so.

        Returns:
            The config of the backbone.

        Raises:
            ValueError: If a value is of a kind that our blocks do not compute.
        """
        for name, supported in self.required.items():
            if values.get(name, supported) != supported:
                raise ValueError(
                    f"{name}={values[name]!r} is not supported for model_type "
                    f"{self.model_type!r}, only {supported!r}."
                )
        ours = dict(self.constants)
        for name, field in self.fields.items():
            value = values.get(name, field.default)
            if field.ours == "activation":
                if not isinstance(value, str) or value not in ACTIVATIONS:
                    known = ", ".join(map(repr, ACTIVATIONS))
                    raise ValueError(f"{name}={value!r} is not supported, only {known}.")
                value = ACTIVATIONS[value]
            ours[field.ours] = value
        if self.pooler and tensors is not None:
            ours["pooler"] = self.pooler in map(self.names.canonical, tensors)
        return TransformerConfig.from_dict(ours)

    def published_config(
        self, config: TransformerConfig, task: Mapping[str, Any] | None = None
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
        ours = config.to_dict()
        free = {field.ours for field in self.fields.values()} | {"head_dim", "num_key_value_heads"}
        free |= {"pooler"} if self.pooler else set()
        for name, value in self.config({}).to_dict().items():
            if name not in free and ours[name] != value:
                raise ValueError(
                    f"A {self.model_type} checkpoint cannot express {name}={ours[name]!r}, only "
                    f"{value!r}."
                )
        if config != config.replace(head_dim=None, num_key_value_heads=None):
            raise ValueError(
                f"A {self.model_type} checkpoint needs head_dim = hidden_dim / num_heads and as "
                f"many key/value heads as query heads. Received: {config}."
            )
        theirs = {"model_type": self.model_type, "architectures": [self.architecture]}
        theirs |= self.required
        theirs |= self._published_task(task) if task else {}
        for name, field in self.fields.items():
            value = ours[field.ours]
            if field.ours == "activation":
                value = next(theirs for theirs, known in ACTIVATIONS.items() if known == value)
            if value is not None:  # their configs leave out what they do not say
                theirs[name] = value
        return theirs

    def task(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The task that a checkpoint's head serves, `None` for a bare model.

        Args:
            values: The content of their `config.json`.

        Returns:
            The name of our task class, its labels and the dropout before them.

        Raises:
            ValueError: If `id2label` is not a list of labels.
        """
        architectures = values.get("architectures") or [None]
        known = isinstance(architectures, list) and isinstance(architectures[0], str)
        name = self.tasks.get(architectures[0]) if known else None
        if name is None:
            return None
        labels = values.get("id2label", {"0": "LABEL_0", "1": "LABEL_1"})
        numbers = [str(i) for i in range(len(labels))] if isinstance(labels, dict) else None
        named = numbers and set(labels) == set(numbers)
        if not named or not all(isinstance(label, str) for label in labels.values()):
            raise ValueError(
                f"id2label must name the labels '0', '1', ... in turn. Received: {labels!r}."
            )
        task = {"name": name, "num_classes": len(labels), "labels": [labels[n] for n in numbers]}
        dropout = values.get("classifier_dropout")
        return task if dropout is None else {**task, "dropout": dropout}

    def _published_task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        architectures = [theirs for theirs, ours in self.tasks.items() if ours == task["name"]]
        if not architectures:
            raise ValueError(f"A {self.model_type} checkpoint has no head for {task['name']}.")
        labels = task["labels"] or [f"LABEL_{i}" for i in range(task["num_classes"])]
        return {
            "architectures": architectures,
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
            "classifier_dropout": task["dropout"],
        }
