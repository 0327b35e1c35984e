"""Tasks in Keras's own formats: `.keras` files, configs, clones, copies, pickles."""

import base64
import tempfile
import warnings
from pathlib import Path
from typing import Any

import keras

from keras_transformer.generation.samplers import Sampler
from keras_transformer.tokenizers import Tokenizer


class Serializable:
    """What of a task goes through Keras's serialization: all but what `task_values` says.

    So `save("m.keras")`, `keras.models.load_model`, `ModelCheckpoint`, `clone_model`,
    `copy.deepcopy` and pickle work. A tokenizer goes along as its files, and is read by the same
    checks as those of a preset. What is made of a task with adapters has none, and their product
    added to its weights, as after `merge_lora`.
    """

    def task_values(self) -> dict[str, Any]:
        """The values beside the backbone's that make the task again."""
        return {}

    def compile_values(self) -> dict[str, Any]:
        """What `compile` was told beside Keras's arguments."""
        return {}

    def get_config(self) -> dict[str, Any]:
        if any(getattr(layer, "quantization_mode", None) for layer in self._flatten_layers()):
            raise ValueError("The task is quantized: save or copy it before `quantize`.")
        plain = self._frozen is None  # without adapters
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "tokenizer": None if self.tokenizer is None else _files_of(self.tokenizer),
            **self.task_values(),
            "name": self.name,
            "frozen": [v.path for v in self.weights if not v.trainable] if plain else [],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects=None):
        values = dict(config)
        frozen = set(values.pop("frozen", ()))
        backbone = keras.saving.deserialize_keras_object(
            values.pop("backbone"), custom_objects=custom_objects
        )
        files = values.pop("tokenizer")
        tokenizer = None if files is None else _tokenizer_of(files)
        task = cls(backbone, tokenizer, **values)
        for variable in task.weights:
            if variable.path in frozen:
                variable.trainable = False
        if not any(variable.trainable for variable in backbone.weights):
            backbone.trainable = False
        return task

    def get_compile_config(self) -> dict[str, Any]:
        values = self.compile_values()
        sampler = values.get("sampler")
        if isinstance(sampler, Sampler) and sampler.models:
            warnings.warn(
                f"The draft model of {type(sampler).__name__} is not saved with the task: give "
                "the sampler to `compile` again after loading.",
                stacklevel=2,
            )
            del values["sampler"]
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


def _files_of(tokenizer: Tokenizer) -> dict[str, str]:
    """The files that `Tokenizer.save` writes, by name, in base64."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        files = sorted(path for path in Path(folder).iterdir() if path.is_file())
        return {path.name: base64.b64encode(path.read_bytes()).decode() for path in files}


def _tokenizer_of(files: dict[str, str]) -> Tokenizer:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            if Path(name).name != name:
                raise ValueError(f"The config of the task has a tokenizer's file {name!r}.")
            Path(folder, name).write_bytes(base64.b64decode(content))
        tokenizer = Tokenizer.from_files(folder)
    tokenizer._name = type(tokenizer)._name  # The folder is gone.
    return tokenizer
