"""Tasks in Keras's own formats: `.keras` files, configs, clones, copies, pickles."""

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_transformer.checkpoints.safetensors_io import save_tensors
from keras_transformer.files import SafetensorsFile
from keras_transformer.models.quantized import refuse_quantized
from keras_transformer.structure import without_numbers
from keras_transformer.training import lora

# Of the values that the task has in a file, beside those of its layers.
_ADAPTER = "adapter_"
_SAMPLER = "sampler.json"


class Serializable:
    """Mixin of a task: Keras's serialization, of all that `task_values` does not say.

    So `save("m.keras")`, `keras.models.load_model`, `ModelCheckpoint`, `clone_model`, deep copies
    and pickle work. A processor goes along as its files. With adapters the files have the weights
    as after `merge_lora`, which a task without adapters takes, and the adapters beside them.
    """

    def compile_values(self) -> dict[str, Any]:
        """What `compile` was told beside Keras's arguments."""
        return {"pack_weights": self.pack_weights}

    def get_config(self) -> dict[str, Any]:
        refuse_quantized(self)
        # What adapters freeze is trained again once they are merged.
        later = getattr(self.backbone, "trainable_before_lora", None) or ()
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "tokenizer": None if self.processor is None else self.processor.packed(),
            **self.task_values(),
            "name": self.name,
            "frozen": [
                path for v, path in _stable_paths(self) if not v.trainable and v.path not in later
            ],
            "adapters": lora.lora_values(self.backbone),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None):
        values = dict(config)
        frozen, adapters = values.pop("frozen", ()), values.pop("adapters", None)
        backbone = keras.saving.deserialize_keras_object(
            values.pop("backbone"), custom_objects=custom_objects
        )
        files = values.pop("tokenizer")
        processor = None if files is None else cls.processor_class.unpacked(files)
        task = cls(backbone, None if processor is None else processor.argument, **values)
        for variable, path in _stable_paths(task):
            if path in frozen or variable.path in frozen:  # as older files have them
                variable.trainable = False
        if not any(variable.trainable for variable in backbone.weights):
            backbone.trainable = False
        if adapters is not None:
            lora.enable_lora(backbone, **adapters)
        return task

    def save_own_variables(self, store) -> None:
        super().save_own_variables(store)
        if lora.is_adapted(self.backbone):
            for number, variable in enumerate(lora.adapters(self.backbone).values()):
                store[f"{_ADAPTER}{number}"] = keras.ops.convert_to_numpy(variable)

    def load_own_variables(self, store) -> None:
        names = list(store.keys())
        super().load_own_variables({n: store[n] for n in names if not n.startswith(_ADAPTER)})
        count = sum(name.startswith(_ADAPTER) for name in names)
        if count and lora.is_adapted(self.backbone):
            arrays = [np.asarray(store[f"{_ADAPTER}{number}"]) for number in range(count)]
            lora.load_apart(self.backbone, arrays)

    def get_compile_config(self) -> dict[str, Any]:
        values = self.compile_values()
        if _models_of(values.get("sampler")):
            del values["sampler"]  # Models are in the file as assets, with their weights.
        config = super().get_compile_config()
        if config:
            config |= keras.saving.serialize_keras_object(values)
            config["optimizer_built"] = self.optimizer is not None and self.optimizer.built
        return config

    def compile_from_config(self, config: dict[str, Any]) -> None:
        values = keras.saving.deserialize_keras_object(config)
        built = values.pop("optimizer_built")
        self.compile(**values)
        if built:  # Its state is in the file.
            self.optimizer.build(self.trainable_variables)

    def save_assets(self, directory: str) -> None:
        sampler = self.compile_values().get("sampler")
        for place, model in enumerate(_models_of(sampler)):
            save_tensors(Path(directory, f"model_{place}.safetensors"), _by_place(model))
        if _models_of(sampler):
            config = keras.saving.serialize_keras_object(sampler)
            Path(directory, _SAMPLER).write_text(json.dumps(config))

    def load_assets(self, directory: str | None) -> None:
        file = Path(directory or "", _SAMPLER)
        if directory is None or not file.is_file():
            return
        config = json.loads(file.read_text())
        for name, value in config["config"].items():
            if isinstance(value, dict):
                config["config"][name] = keras.saving.deserialize_keras_object(value)
        sampler = keras.saving.deserialize_keras_object(config)
        for place, model in enumerate(_models_of(sampler)):
            tensors = SafetensorsFile(Path(directory, f"model_{place}.safetensors"))
            for name, variable in _by_place(model).items():
                variable.assign(tensors[name])
        self.sampler = sampler


def _stable_paths(task) -> list[tuple[keras.Variable, str]]:
    """The weights with paths that are the same in any process."""
    names = without_numbers(v.path for v in task.weights)
    return [(v, names[v.path]) for v in task.weights]


def _models_of(sampler) -> tuple:
    """The models that a sampler reads beside the task's."""
    return getattr(sampler, "models", ())


def _by_place(model) -> dict[str, keras.Variable]:
    return {str(place): variable for place, variable in enumerate(model.weights)}
