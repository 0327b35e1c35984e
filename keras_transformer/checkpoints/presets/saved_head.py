"""Decision whether a task can use the head that a preset has, and with which options."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from keras_transformer.checkpoints.presets.assignment import LoadReport, head_name, matches
from keras_transformer.checkpoints.presets.preset import CONFIG_FILE, Preset
from keras_transformer.config import TransformerConfig
from keras_transformer.support.checking import check_int, shorten
from keras_transformer.support.warned import warn_once

_LOGGER = logging.getLogger("keras_transformer")


class SavedHead:
    """Comparison of the head that a preset has with the options that the caller gives."""

    def __init__(
        self,
        preset: Preset,
        task_class: type,
        saved: Mapping[str, Any] | None,
        given: Mapping[str, Any],
        parameters: set[str],
    ):
        name = head_name(task_class.__name__)
        same_task = saved is not None and head_name(saved["name"]) == name
        values = {k: v for k, v in preset.task_options(name).items() if k in parameters}
        values |= {k: v for k, v in saved.items() if k != "name"} if same_task else {}
        unknown = sorted(set(values) - parameters)
        if unknown:
            raise ValueError(
                f"{preset.file(CONFIG_FILE)}: the task has the unknown values {unknown}. {name} "
                f"takes {sorted(parameters)}."
            )
        self.preset, self.task_class, self.given = preset, task_class, given
        self.labels = values.get("labels")  # the classes of the preset's own head
        self.renamed = same_task and _other_names(self.labels, given.get("labels"))
        # Whether the preset's head, and so its weights, can be used.
        self.kept = same_task and _same_classes(values, given) and not self.renamed
        # Patterns of variables that are new for other classes, if the others can be used.
        self.fresh: tuple[str, ...] = ()
        self._of_classes = task_class.head_class.of_classes if same_task else ()
        if not self.kept:
            values = {k: v for k, v in values.items() if k not in ("num_classes", "labels")}
        self.values = values

    @property
    def options(self) -> dict[str, Any]:
        """All options of the task."""
        return {**self.values, **self.given}

    def options_of(self, config: TransformerConfig) -> dict[str, Any]:
        """Return the task's options, without preset values that do not apply to this config.

        The published config of an encoder alone (`T5EncoderModel`) contains the start token of the
        whole model's decoder.
        """
        used = self.task_class.head_values(config, self.options)
        unused = {
            name
            for name, value in self.values.items()
            if value not in (None, [], ()) and used.get(name, value) in (None, ())
        }
        return {**{k: v for k, v in self.values.items() if k not in unused}, **self.given}

    def shapes(self, config: TransformerConfig) -> dict[str, tuple[int, ...]] | None:
        """Return the shapes of the head's weights that are loaded; None if the head is new."""
        if self.kept:
            self._check(config)
        elif self._of_classes and not self._changed(config):
            self.fresh = self._of_classes
        else:
            return None
        options, labels = self.options, self.given.get("labels")
        if options.get("num_classes") is None and isinstance(labels, (list, tuple)):
            options["num_classes"] = len(labels)
        with self.naming_values():
            shapes = self.task_class.head_shapes(config, options)
        return self.without_fresh(shapes)

    def without_fresh(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Return the variables of a head that are loaded, by path."""
        return {path: each for path, each in head.items() if not matches(path, self.fresh)}

    @property
    def used(self) -> bool:
        """Whether weights of the preset's head are loaded; known after `shapes`."""
        return self.kept or bool(self.fresh)

    def tell(self, task: Any, report: LoadReport) -> None:
        """Log what a user must know about the head of a loaded task."""
        if self.fresh and report.head_loaded:
            warn_once(
                _LOGGER,
                "The head of the preset %r knows other classes: the layers that depend on them "
                "are newly initialized. Train them first.%s",
                self.preset.name,
                self._renaming,
            )
        elif task.head and not (self.kept and report.head_loaded):
            warn_once(
                _LOGGER,
                "The preset %r has no weights for this head of %s: it is newly initialized. "
                "Train it first.%s",
                self.preset.name,
                self.task_class.__name__,
                self._renaming,
            )
        elif self.kept and self.given.get("labels") and not _names(self.labels):
            warn_once(
                _LOGGER,
                "The classes of the head of %r have no names. They are assumed to be, in the order "
                "of their numbers, %s.",
                self.preset.name,
                shorten(list(self.given["labels"])),
            )

    @property
    def _renaming(self) -> str:
        """The end of a message for classes with other names, empty for others."""
        if not self.renamed:
            return ""
        return (
            f" Its own head knows the classes {shorten(self.labels)}. If these are other names for "
            "them, load it without `labels` and assign them: task.labels = [...]."
        )

    @contextlib.contextmanager
    def naming_values(self) -> Iterator[None]:
        """Extend errors raised inside the block by the preset's task values and their file."""
        try:
            yield
        except ValueError as error:
            if not self.values or str(self.preset.directory) in str(error):
                raise
            path = self.preset.file(CONFIG_FILE)
            said = f"{error} The values of the task in {path} are {self.values}."
            raise ValueError(said) from error

    def _changed(self, config: TransformerConfig) -> list[str]:
        """Return the values of the head's weights that the caller changes, as texts."""
        mine = self.task_class.head_values(config, self.values)
        asked = self.task_class.head_values(config, self.options)
        return [
            f"{n}={mine[n]!r}, received {repr(asked[n])[:80]}" for n in mine if asked[n] != mine[n]
        ]

    def _check(self, config: TransformerConfig) -> None:
        name, wrong = self.task_class.__name__, self._changed(config)
        labels = self.given.get("labels")
        moved = _moved(self.labels, labels)
        if moved:
            wrong.append(
                f"labels={self.labels}, received {repr(labels)[:80]} in which {moved} belongs to "
                "another class"
            )
        if wrong:
            raise ValueError(
                f"The preset {self.preset.name!r} was trained as {name} with {', '.join(wrong)}. "
                "Leave it out; or, to override it on purpose, load the backbone and the tokenizer "
                f"and build the task from them: `{name}(backbone, tokenizer, ...)`."
            )


def _same_classes(saved: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether the saved head has as many classes as the caller's options need."""
    if "num_classes" not in saved:
        return True
    labels = given.get("labels")
    number = check_int("num_classes", given.get("num_classes"), none=True)
    if number is None and isinstance(labels, (list, tuple)):
        number = len(labels)
    return number is None or number == saved["num_classes"]


def _other_names(saved: Any, given: Any) -> bool:
    """Return whether the given class names are other names, not just another order."""
    known = _names(saved)
    if not known or not isinstance(given, (list, tuple)):
        return False
    return {str(name).casefold() for name in given} != {name.casefold() for name in known}


def _names(labels: list[str] | None) -> list[str]:
    """Return the class names, or an empty list for the placeholders `LABEL_0`, `LABEL_1`, ..."""
    plain = [f"LABEL_{number}" for number in range(len(labels or ()))]
    return [] if labels is None or labels == plain else labels


def _moved(saved: Any, given: Any) -> str:
    """Return, quoted, a label that the saved head has at another position, or an empty string."""
    if not isinstance(saved, list) or not isinstance(given, Iterable):
        return ""
    pairs = enumerate(given)
    return next((repr(x) for i, x in pairs if x in saved and saved.index(x) != i), "")
