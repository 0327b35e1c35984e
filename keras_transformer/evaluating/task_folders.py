"""Folders of tasks for lm-eval, which run code only if the caller trusts them."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lm_eval.api.metrics  # noqa: F401 (it registers the metrics)
import yaml
from jinja2.sandbox import SandboxedEnvironment
from lm_eval import utils
from lm_eval.api import registry
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from keras_transformer.support.checking import shorten
from keras_transformer.support.files import read_file

_MOST_BYTES = 2**20  # of one file of tasks
# Formats of data files that hold values only: datasets also reads pickles under "pandas".
_FORMATS = ("csv", "json", "parquet", "text")
_ON_HUB = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_DATA_OPTIONS = ("data_files", "delimiter", "encoding", "field", "sep")
# Fields by which a task names code, or asks for it to be run.
_OF_CODE = ("class", "custom_dataset", "unsafe_code", "use_prompt")
_HOW = "Read it, and pass trust_tasks=True if you trust what it runs"


def task_manager(folders: Sequence[Path], names: Sequence[str], trusted: bool) -> TaskManager:
    """Return a `TaskManager` of the tasks of folders, and of the harness's own if they are named.

    A relative path of a data file starts at the folder of its task; if nothing is there and the
    task is trusted, at the current folder, as in the harness.

    Raises:
        ValueError: if a task of a folder can run code and is not `trusted`.
    """
    if not trusted:
        for folder in folders:
            check_folder(folder)
    paths = [str(folder) for folder in folders]
    manager = TaskManager(include_path=paths, include_defaults=False) if paths else None
    if manager is None or not set(names) <= set(manager.task_index):
        manager = TaskManager(include_path=paths or None)
    for entry in manager.task_index.values():
        if entry.yaml_path is not None:
            for folder in filter(entry.yaml_path.is_relative_to, folders):
                _find_data(entry, folder, trusted)
                break
    return manager


def check_folder(folder: Path) -> None:
    """Raise ValueError, with the file and the reason, if a task of a folder can run code."""
    seen: set[Path] = set()
    waiting = sorted(folder.rglob("*.yaml"))
    while waiting:
        path = waiting.pop().resolve()
        if path in seen:
            continue
        seen.add(path)
        for included in _check_file(path, folder.resolve()):
            waiting.append(included)


@contextlib.contextmanager
def sandboxed_templates() -> Iterator[None]:
    """Render the templates of tasks in jinja2's sandbox, where they cannot reach Python.

    The harness renders them with all of Python within reach.
    """
    known = utils.env
    sandbox = SandboxedEnvironment(
        loader=known.loader, undefined=known.undefined,
        keep_trailing_newline=known.keep_trailing_newline,
    )  # fmt: skip
    sandbox.filters.update(known.filters)
    utils.env = sandbox
    try:
        yield
    finally:
        utils.env = known


class _Values(yaml.SafeLoader):
    """Loader of YAML that has values only: a tag such as `!function` is an error.

    So is an alias: a few lines of them stand for more values than fit in memory.
    """

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "write the value out, not an alias", mark)
        return super().compose_node(parent, index)


def _check_file(path: Path, folder: Path) -> list[Path]:
    """Check one file of tasks, and return the files that it includes."""
    if not path.is_relative_to(folder):
        raise _distrusted(path, f"is outside of {folder}")
    try:
        config = yaml.load(read_file(path, _MOST_BYTES), Loader=_Values)
    except yaml.constructor.ConstructorError as error:
        raise _distrusted(path, f"{error.problem}, which can run code") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not usable: its YAML nests too deeply.") from None
    if not isinstance(config, Mapping):
        raise ValueError(f"{path} must be a task, fields and values, received {shorten(config)}.")
    _check_config(config, path, folder)
    includes = config.get("include", [])
    includes = includes if isinstance(includes, list) else [includes]
    return [path.parent / str(included) for included in includes]


def _check_config(config: Mapping[str, Any], path: Path, folder: Path) -> None:
    for name in _OF_CODE:
        if config.get(name):
            raise _distrusted(path, f"has the field {name!r}, which can run code")
    for metric in config.get("metric_list") or ():
        name = metric.get("metric") if isinstance(metric, Mapping) else metric
        if name not in registry.metric_registry or metric.get("hf_evaluate"):
            raise _distrusted(path, f"has the metric {shorten(name)}, which is loaded as code")
    _check_data(config, path, folder)
    for member in _members(config):
        _check_config(member, path, folder)


def _check_data(config: Mapping[str, Any], path: Path, folder: Path) -> None:
    source, options = config.get("dataset_path"), config.get("dataset_kwargs") or {}
    if source is None and not options:
        return
    if not isinstance(options, Mapping):
        raise ValueError(f"{path}: dataset_kwargs must be names with values, received "
                         f"{shorten(options)}.")  # fmt: skip
    if source is not None and source not in _FORMATS and not _is_on_hub(source):
        raise _distrusted(path, f"reads data as {shorten(source)}, which can run code")
    for name in options:
        if name not in _DATA_OPTIONS:
            raise _distrusted(path, f"reads data with the option {shorten(name)}")
    for file in _data_files(options.get("data_files")):
        # An address, also of a file, or a chain of file systems is no path.
        inside = "://" not in file and "::" not in file
        if not (inside and (path.parent / file).resolve().is_relative_to(folder)):
            raise _distrusted(path, f"reads {shorten(file)}, which is outside of {folder}")


def _is_on_hub(source: Any) -> bool:
    """Return whether data is read by a name of the hub, and not from a folder of this name."""
    return bool(_ON_HUB.fullmatch(str(source))) and not os.path.exists(str(source))


def _data_files(given: Any) -> Iterator[str]:
    if isinstance(given, Mapping):
        for each in given.values():
            yield from _data_files(each)
    elif isinstance(given, (list, tuple)):
        for each in given:
            yield from _data_files(each)
    elif given is not None:
        yield str(given)


def _find_data(entry: Any, folder: Path, trusted: bool) -> None:
    """Replace relative paths of data files by those of files beside the task."""
    path = entry.yaml_path
    config = load_yaml(path, resolve_func=trusted)
    if not trusted:  # together with what it includes, which may be in another folder
        _check_read(config, path, folder)
    found = _with_data(config, path.parent, trusted)
    if found != config:
        entry.cfg, entry.yaml_path = found, None


def _check_read(config: Mapping[str, Any], path: Path, folder: Path) -> None:
    """Raise ValueError if a task, or a member of a group, reads files outside of a folder."""
    _check_data(config, path, folder)
    source, options = config.get("dataset_path"), config.get("dataset_kwargs")
    reads_files = source in _FORMATS or (source is None and "dataset_kwargs" in config)
    if reads_files and not any(_data_files((options or {}).get("data_files"))):
        raise _distrusted(path, "names no data files, so that those of the current folder are read")
    for member in _members(config):
        _check_read(member, path, folder)


def _with_data(config: Mapping[str, Any], folder: Path, trusted: bool) -> dict[str, Any]:
    """Return the config of a task or group with the paths of data files beside it."""
    found, options = dict(config), config.get("dataset_kwargs")
    if isinstance(options, Mapping) and "data_files" in options:
        files = _beside(options["data_files"], folder, trusted)
        found["dataset_kwargs"] = {**options, "data_files": files}
    if isinstance(config.get("task"), list):
        found["task"] = [
            _with_data(member, folder, trusted) if isinstance(member, Mapping) else member
            for member in config["task"]
        ]
    return found


def _members(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the members of a group that are written out."""
    members = config.get("task")
    members = members if isinstance(members, list) else []
    return [member for member in members if isinstance(member, Mapping)]


def _beside(given: Any, folder: Path, trusted: bool) -> Any:
    if isinstance(given, Mapping):
        return {name: _beside(each, folder, trusted) for name, each in given.items()}
    if isinstance(given, (list, tuple)):
        return [_beside(each, folder, trusted) for each in given]
    path = folder / str(given)
    return given if given is None or (trusted and not path.exists()) else str(path)


def _distrusted(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} {reason}. {_HOW}.")
