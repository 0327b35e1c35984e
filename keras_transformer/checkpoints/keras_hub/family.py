"""What a family is in KerasHub's form: the arguments of a backbone class, and its weight table."""

import dataclasses
from typing import Any

from keras_transformer.checkpoints.families.family import Conversion, Family, Field, Values
from keras_transformer.checkpoints.heads import TASKS
from keras_transformer.checkpoints.keras_hub.lines import NAMES
from keras_transformer.checkpoints.keras_hub.serialized import PACKAGES
from keras_transformer.checkpoints.weights import Names
from keras_transformer.config import CHANGEABLE, TransformerConfig

# Their arguments of a task, by our names. The `activation` of a classifier is not ours: we
# return logits. The epsilon is no argument of theirs, and may be that of a live model.
TASK_ARGUMENTS = {
    "TextClassifier": {"num_classes": "num_classes", "dropout": "dropout"},
    "MaskedLM": {"normalization_epsilon": "layer_norm_epsilon"},
    "TextEmbedder": {"normalize": "normalize"},
}
POOLINGS = {"mean": "mean", "cls": "first", "max": "max"}
ACTIVATIONS = {
    **{name: name for name in ("relu", "gelu", "silu", "tanh", "sigmoid", "mish")},
    **{f"{package}>gelu_approximate": "gelu_tanh" for package in PACKAGES},
}


def _read_head_width(values: Values) -> dict[str, Any]:
    # A remainder of the division is left out there.
    width, heads = values.get("hidden_dim"), values.get("num_heads", values.get("num_query_heads"))
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
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation={str(activation)[:200]!r} is not supported, only {known}.")
    return {"activation": ACTIVATIONS[activation]}


def _write_activation(config: TransformerConfig) -> dict[str, Any]:
    names = [theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation]
    return {"activation": names[0]} if names else {}


# What their configs leave out has nothing to write.
HEAD_WIDTH = Conversion(_read_head_width, lambda config: {})
DROPOUT = Conversion(_read_dropout, lambda config: {})
# An argument of T5 only. Of the other classes it is built in, and may be that of a live model.
USUAL = (HEAD_WIDTH, DROPOUT, Conversion(_read_activation, _write_activation))
FIELDS = {
    "vocabulary_size": Field("vocabulary_size", None),
    "num_layers": Field("num_layers", None),
    "num_heads": Field("num_heads", None),
    "hidden_dim": Field("hidden_dim", None),
    "intermediate_dim": Field("intermediate_dim", None),
    "dropout": Field("dropout", 0.1),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class KerasHubFamily(Family):
    """A family whose published values are the arguments of a KerasHub backbone.

    Args:
        more: The arguments that `conversions` read, beside those of `fields`.
    """

    conversions: tuple[Conversion, ...] = USUAL
    more: tuple[str, ...] = ("activation",)
    names: Names = NAMES

    @property
    def tokenizer(self) -> str:
        """The name of KerasHub's tokenizer class."""
        return self.architecture.removesuffix("Backbone") + "Tokenizer"

    @property
    def arguments(self) -> set[str]:
        """The names of the constructor's arguments."""
        return {*self.fields, *self.more, *self.required}

    @property
    def silent(self) -> frozenset[str]:
        return CHANGEABLE - {field.ours for field in self.fields.values()}

    def classes(self, task: str) -> tuple[str, ...]:
        """Their classes for a task of ours; a classifier has a second, older name."""
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
        theirs, task = saved["config"], {"name": name, **self.task_values(name)}
        for ours, argument in TASK_ARGUMENTS.get(name, {}).items():
            if argument in theirs:
                task[ours] = theirs[argument]
        if name == "TextEmbedder":
            mode = theirs.get("pooling_mode", "mean")
            if not isinstance(mode, str) or mode not in POOLINGS:
                known = ", ".join(map(repr, POOLINGS))
                raise ValueError(
                    f"pooling_mode={str(mode)[:200]!r} is not supported, only {known}."
                )
            task["pooling"] = POOLINGS[mode]
        return task

    def published_arguments(self, config: TransformerConfig) -> dict[str, Any]:
        """The arguments of the backbone for a config of ours. ValueError if it has none such."""
        theirs = self.published_config(config)
        return {name: theirs[name] for name in self.arguments if name in theirs}

    def published_task(
        self, config: TransformerConfig, task: Values, classes: Values
    ) -> dict[str, Any]:
        """The class and the arguments of a task: the reverse of `task`."""
        name = task["name"]
        known = self.classes(name) if name in self.heads else ()
        made = next((each for each in known if each in classes), None)
        if made is None:
            raise ValueError(f"KerasHub has no {name} for it. Convert its `backbone`.")
        theirs = {argument: task[o] for o, argument in TASK_ARGUMENTS.get(name, {}).items()}
        if name == "TextEmbedder":
            modes = [mode for mode, ours in POOLINGS.items() if ours == task["pooling"]]
            if not modes:
                raise ValueError(f"{made} cannot express pooling={task['pooling']!r}.")
            theirs["pooling_mode"] = modes[0]
        back = self.task({"task": {"class_name": made, "config": theirs}})
        mine, its = (TASKS[name].head_values(config, values) for values in (task, back))
        for value in {"hidden_activation", "pooling"} & set(mine):
            if mine[value] != its[value]:
                raise ValueError(
                    f"{made} cannot express {value}={mine[value]!r}, only {its[value]!r}."
                )
        theirs.pop("layer_norm_epsilon", None)
        return {"class_name": made, "config": theirs}
