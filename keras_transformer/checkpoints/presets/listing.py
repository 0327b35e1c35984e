"""Listing of presets, and opening one: found, downloaded, and read consistently."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_transformer.checkpoints.other_formats import what_it_is
from keras_transformer.checkpoints.presets.hub import DESCRIPTION_FILES, SCHEME, HubName
from keras_transformer.checkpoints.presets.preset import CONFIG_FILE, Preset
from keras_transformer.checkpoints.presets.publishing import Stamp, current_folder, stamp
from keras_transformer.checkpoints.presets.selecting import languages, select
from keras_transformer.support.checking import check_path, shorten
from keras_transformer.support.files import has_file
from keras_transformer.support.foreign_names import tables
from keras_transformer.support.notebook import KINDS, html_grid
from keras_transformer.tokenizers.folder import FURTHER_FILES, TOKENIZER_FILES

_FILES = (CONFIG_FILE, *TOKENIZER_FILES, *FURTHER_FILES)
_TRIES = 10  # to read a preset that is being saved


class PresetNames(list[str]):
    """List of preset names, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [("name", "what", "task", "languages", "parameters", "license", "weights")]
        for name in self:
            preset = resolve_preset(name)
            config, task, metadata = preset.description
            what = metadata.get("description") or f"{KINDS[config.kind]} transformer"
            loader = task["name"] if task else "none: a backbone"
            spoken = ", ".join(languages(preset.config))
            terms = metadata.get("license", "")
            rows.append(
                (name, what, loader, spoken, metadata["parameters"], terms, preset.whereabouts)
            )
        return html_grid(f"{len(self)} presets", rows)


def presets_folder() -> Path:
    """Return the folder of the bundled presets: in the installed package, or in the checkout."""
    package = Path(__file__).parents[2]
    installed = package / "_presets"
    return installed if installed.is_dir() else package.parent / "presets"


def list_presets(
    task: str | None = None,
    modality: str | None = None,
    language: str | None = None,
    parameters: str | None = None,
    license: str | None = None,
) -> list[str]:
    """Return the names of the bundled presets that fit all values given.

    Args:
        task: the task whose head the preset has: a class name, such as `"Seq2SeqLM"`, or its alias,
            such as `"causal_lm"`, `"masked_lm"`, `"question_answering"`, `"seq2seq_lm"`,
            `"text_classification"`, `"text_embedding"`, `"token_classification"`.
        modality: what the model reads: `"text"`, `"images"`, `"videos"`, `"sound"` or
            `"series"`.
        language: a code of ISO 639-1, such as `"de"`, which multilingual models fit too; or
            `"multilingual"`, or `"code"` for programming languages.
        parameters: one or two bounds of the number of parameters, such as `"<1B"` or
            `">=100M, <1B"`.
        license: the licence of the weights, such as `"apache-2.0"`.

    Returns:
        The sorted names, a list. A notebook shows it as a table with descriptions.

    Raises:
        ValueError: if the task or modality is unknown, if no preset has the language or licence, or
            if the bounds cannot be read.

    Example:
    ```python
    import keras_transformer as kt

    assert "minilm_l6_en" in kt.list_presets()
    small = kt.list_presets(task="causal_lm", language="de", parameters="<1B", license="apache-2.0")
    assert "qwen3_0_6b" in small and "llama3_8b_en" not in small
    ```
    """
    names = sorted(path.parent.name for path in presets_folder().glob(f"*/{CONFIG_FILE}"))
    wanted = {
        "task": task, "modality": modality, "language": language, "parameters": parameters,
        "license": license,
    }  # fmt: skip
    if all(value is None for value in wanted.values()):  # no config has to be read
        return PresetNames(names)
    folder = presets_folder()
    configs = {name: Preset(name, folder / name, bundled=True).config for name in names}
    return PresetNames(select(configs, **wanted))


def resolve_preset(preset: str | os.PathLike) -> Preset:
    """Open a preset; if it is on the hub, download its description, but not yet its weights.

    Args:
        preset: a bundled name, or KerasHub's name of a preset with the same weights; a directory;
            a GGUF file; or `"hf://org/name[@revision]"`. A name takes precedence over a directory
            of the same name; `"./name"` is the directory. An open `Preset` is returned unchanged.

    Returns:
        A `Preset`, which is `os.PathLike` of the preset's folder or GGUF file.

    Raises:
        ValueError: if the name is unknown (similar names are suggested), or the directory is not a
            preset.
        FileNotFoundError: if there is no such directory, or no such repository on the hub.
        ConnectionError, PermissionError: if the download from the hub fails.

    Example:
    ```python
    from pathlib import Path
    from keras_transformer.checkpoints import resolve_preset

    assert Path(resolve_preset("minilm_l6_en"), "config.json").exists()
    ```
    """
    if isinstance(preset, Preset):
        return preset
    found = _find(preset)
    # Links are checked here, since not every reader of these files does; the package has none.
    for name in () if found.bundled else _FILES:
        found.file(name)
    return found


def read_preset(preset: str | os.PathLike, read: Callable[[Preset], Any]) -> Any:
    """Open a preset and return `read(preset)`, never mixing files from before and after a save."""
    # If the preset is saved while it is read, it is read again, unless it was given open.
    given = isinstance(preset, Preset)
    for _ in range(1 if given else _TRIES):
        before = _stamp(preset)
        opened = None
        try:
            opened = resolve_preset(preset)
            result = read(opened)
        except Exception:
            if opened.is_current if opened is not None else before == _stamp(preset):
                raise
        else:
            if opened.is_current:
                return result
    raise OSError(
        f"The preset {preset.name if given else preset!r} was saved again while it was read"
        + (
            ". Load it again."
            if given
            else f", {_TRIES} times. Load it when it is not being saved."
        )
    )


def _stamp(preset: str | os.PathLike) -> Stamp | None:
    """Return the stamp of a local folder, or None."""
    try:
        return stamp(current_folder(Path(preset).expanduser()))
    except (OSError, RuntimeError, TypeError, ValueError):  # not a folder's name
        return None


def _find(preset: str | os.PathLike) -> Preset:
    named = check_path("preset", preset)
    if not isinstance(preset, str):
        return _local(named)
    if preset.startswith(SCHEME):
        hub = HubName.parse(preset)
        folder = hub.download(DESCRIPTION_FILES)
        # The weights come from the same commit as the description.
        return Preset(preset, folder, hub=HubName(hub.repository, folder.name))
    name = tables()["presets"].get(preset, preset)  # a KerasHub name
    bundled = name.replace("_", "").isalnum() and presets_folder() / name / CONFIG_FILE
    if bundled and bundled.is_file():
        return Preset(name, presets_folder() / name, bundled=True)
    if Path(preset).expanduser().is_dir() or _is_gguf(preset):
        return _local(preset)
    raise _unknown(preset)


def _is_gguf(path: str) -> bool:
    """Return whether a path is that of a GGUF file, which is a preset of its own."""
    found = Path(path).expanduser()
    return path.lower().endswith(".gguf") and not found.is_dir() and has_file(found)


def _local(directory: str) -> Preset:
    folder = Path(directory).expanduser()
    if _is_gguf(directory):
        from keras_transformer.checkpoints.presets.gguf_file import GGUFPreset

        return GGUFPreset(directory, folder)
    if not folder.is_dir():
        kind = "file" if directory.lower().endswith(".gguf") else "directory"
        raise FileNotFoundError(f"There is no {kind} {shorten(directory)}.")
    folder = current_folder(folder)
    if not any(has_file(folder / name) for name in (CONFIG_FILE, *TOKENIZER_FILES)):
        raise ValueError(
            f"The directory {shorten(directory)} is not a preset. A preset has {CONFIG_FILE} and "
            "model.safetensors (or model.safetensors.index.json and its shards), and tokenizer "
            f"files: {', '.join(TOKENIZER_FILES)} with merges.txt." + what_it_is(os.listdir(folder))
        )
    return Preset(directory, folder)


def _unknown(preset: str) -> Exception:
    """Return the error for a name that is neither bundled nor a directory."""
    names = list_presets()
    close = difflib.get_close_matches(preset[:200], names, n=3, cutoff=0.4)
    suggestion = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    hint = ""
    if preset.count("/") == 1 and not preset.startswith((".", "/", "~")):
        hint = f" For a model on the hub, write {shorten(SCHEME + preset)}."
    elif preset.startswith("https://huggingface.co/"):
        name = "/".join(preset.split("/")[3:5])
        hint = f" For a model on the hub, write {shorten(SCHEME + name)}."
    elif preset.startswith("kaggle://"):
        hint = (
            " Kaggle is not supported: load it with KerasHub, and convert it by `from_keras_hub`."
        )
    if Path(preset).expanduser().is_file():
        return ValueError(
            f"{shorten(preset)} is a file. A preset is a folder or a GGUF file."
            f"{what_it_is([preset])}"
        )
    message = (
        f"There is no preset {shorten(preset)}. {suggestion}It is not one of the {len(names)} "
        "bundled presets (`keras-transformer presets` lists them; they are in "
        f"{presets_folder()}), and "
        f"there is no such directory in {Path.cwd()}.{hint}"
    )
    looks_like_path = os.sep in preset and not hint
    return FileNotFoundError(message) if looks_like_path else ValueError(message)
