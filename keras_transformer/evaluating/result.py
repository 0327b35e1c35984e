"""Scores of `evaluate`: one row for each metric of each task, with what made them."""

import dataclasses
from collections.abc import Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Score:
    """One metric of one task.

    Fields:
        task: str, the name of the task or group of tasks.
        metric: str, such as `"acc"` or `"word_perplexity"`; with the filter of the answers if it is
            not the only one, such as `"exact_match,strict"`.
        value: float, or another value that the harness gives.
        error: float, the standard error of the value, or None if it is not known.
        version: str, the version of the task.
        shots: int, the number of examples before each question. MTEB has no examples: None.
        higher_is_better: bool; None if the task does not say.
    """

    task: str
    metric: str
    value: Any
    error: float | None = None
    version: str = ""
    shots: int | None = None
    higher_is_better: bool | None = None


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of a model on tasks, and what is needed to repeat them. It prints as a table.

    Fields:
        model: str, the name of the model, and its backend.
        harness: str, the name and version of the program that computed the scores.
        rows: tuple of `Score`.
        settings: dict of the settings that scores depend on: seeds, limits, templates.
        results: dict, all that the harness returned, as values for JSON where it has such.
    """

    model: str
    harness: str
    rows: tuple[Score, ...]
    settings: dict[str, Any]
    results: dict[str, Any] = dataclasses.field(repr=False)

    @property
    def numbers(self) -> dict[str, dict[str, Any]]:
        """The values by task and metric: `scores.numbers["my_task"]["acc"]`."""
        found: dict[str, dict[str, Any]] = {}
        for row in self.rows:
            found.setdefault(row.task, {})[row.metric] = row.value
        return found

    def table(self) -> str:
        """Return the scores as lines of text."""
        shown = [_HEAD, *map(_cells, self.rows)]
        widths = [max(len(row[i]) for row in shown) for i in range(len(_HEAD))]
        lines = [self._title()]
        for cells in shown:
            left = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
            lines.append("  " + "  ".join([*left, *right]).rstrip())
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the scores as a table of Markdown, under a line that says how they were made."""
        rows = [_HEAD, ("---",) * 2 + ("---:",) * 4, *map(_cells, self.rows)]
        return "\n".join([self._title(), "", *map(_markdown_row, rows)])

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return self.table()

    def _title(self) -> str:
        given = ", ".join(f"{n}={v!r}" for n, v in self.settings.items() if v not in (None, False))
        return f"{self.model}; {self.harness}" + (f"; {given}" if given else "")


_HEAD = ("task", "metric", "value", "error", "shots", "version")


def _cells(row: Score) -> tuple[str, ...]:
    arrow = {True: " (higher is better)", False: " (lower is better)", None: ""}
    return (
        row.task,
        row.metric + arrow[row.higher_is_better],
        _number(row.value),
        "" if row.error is None else _number(row.error),
        "" if row.shots is None else str(row.shots),
        row.version,
    )


def _number(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
