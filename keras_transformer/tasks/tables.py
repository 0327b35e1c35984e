"""Data sets of images and sound as one argument: which columns are inputs, texts and labels."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_transformer.checking import shorten
from keras_transformer.columns import (
    TableColumn,
    class_names,
    is_frame,
    is_table,
    listed_column,
    undecoded,
)
from keras_transformer.data import Records
from keras_transformer.data.record_objects import column_names
from keras_transformer.tasks.class_labels import by_name
from keras_transformer.tasks.streams import TextBatches

_ROWS = 32  # of a batch, where a data set gives one row after the other


class TakesTables:
    """Mixin of a task whose inputs are images or sound.

    A data set of `datasets`, a data frame or what `data.read` makes has a column for each thing
    that the task learns from. That of the inputs is the one of images or sound, or has a usual
    name; `beside` are the usual names of what goes with an input, `learned` those of what is
    learned.
    """

    beside: ClassVar[tuple[str, ...]] = ()  # of texts that go with an input, such as questions
    learned: ClassVar[tuple[str, ...]] = ("label", "labels")
    needs_beside: ClassVar[bool] = False  # Whether there is nothing to learn without them.

    def held(self, data: Any, batch_size=None, steps=None, **options) -> Any:
        """Such data as batches to learn from or to score; anything else as it is."""
        self._refuse_several(data)
        if _is_stream(data):
            return self._streamed(data, batch_size, steps, **options)
        columns = self._columns(data)
        if columns is None:
            return data
        x, beside, y = columns
        self._check_there(data, beside, y)
        if options.get("seed", 0) is None:
            options["seed"] = int(np.random.randint(2**31))
        x = x if beside is None else (x, beside)
        return self.make_dataset(x, y, batch_size=batch_size, **options)

    def held_inputs(self, data: Any, options: dict[str, Any]) -> Any:
        """The inputs of such data; anything else as it is."""
        self._refuse_several(data)
        if _is_stream(data):
            name = self._names_of(data)[0]
            rows = iter(undecoded(data, name))
            if options.get("steps") is not None:
                rows = itertools.islice(rows, options.pop("steps") * _ROWS)
            return [row[name] for row in rows]
        columns = self._columns(data)
        return data if columns is None else columns[0]

    def _columns(self, data: Any) -> tuple | None:
        """The columns of inputs, of what goes with them and of what is learned, or None."""
        if isinstance(data, Records):
            columns = data.held()
            x, beside, *_ = (*columns[: len(data.x)], None)
            y = None if data.y is None else list(columns[-1])
            y = self._by_name(getattr(data.sources[0], "data", None), data.y, y)
            if beside is None and self.needs_beside and y is not None:
                beside, y = y, None
            return x, None if beside is None else list(beside), y
        table = is_table(data)
        if not table and (not is_frame(data) or ops.is_tensor(data)):
            return None
        name, beside, y = self._names_of(data)
        x = TableColumn(data, name) if table else listed_column(data[name])
        beside, labels = (None if n is None else listed_column(data[n]) for n in (beside, y))
        return x, beside, self._by_name(data, y, labels)

    def _names_of(self, data: Any) -> tuple[str, str | None, str | None]:
        names = column_names(data)
        names = list(next(iter(data), {})) if names is None else names  # of a stream
        kind = getattr(self.processor_class, "source_class", self.processor_class)
        features = getattr(data, "features", None) or {}
        typed = [n for n in names if type(features.get(n)).__name__ == kind.feature]
        usual = [n for n in kind.column_names if n in names]
        if len(typed) == 1 or usual:
            name = typed[0] if len(typed) == 1 else usual[0]
            return name, *(
                next((n for n in known if n in names and n != name), None)
                for known in (self.beside, self.learned)
            )
        raise ValueError(
            f"The {type(data).__name__} has the columns {shorten(names)}, none of which is that of "
            f"the {kind.raw}. Name it, data.read(data, x='...', y='...'), or rename it: "
            f"{kind.column_names[0]!r}."
        )

    def _by_name(self, data: Any, name: str | None, labels: list | None) -> list | None:
        """Numbers of classes by their names in the data set, if these are the task's."""
        return by_name(labels, class_names(data, name), getattr(self, "labels", None))

    def _streamed(self, data: Any, batch_size, steps, **options) -> TextBatches:
        """The batches of a data set that is gone through from its beginning."""
        names, size = self._names_of(data), batch_size or _ROWS
        self._check_there(data, *names[1:])

        def batches() -> Iterator[tuple]:
            rows = iter(undecoded(data, names[0]))
            while some := list(itertools.islice(rows, size)):
                x, beside, y = (
                    None if name is None else [row[name] for row in some] for name in names
                )
                y = self._by_name(data, names[2], y)
                yield x if beside is None else (x, beside), y, None

        count = steps if steps is not None else sum(1 for _ in batches())
        return TextBatches(self, batches, None if steps is not None else count, **options)

    def _check_there(self, data: Any, beside: Any, y: Any) -> None:
        """ValueError for data without what is learned."""
        texts, labels = self.needs_beside and beside is None, self.needs_labels and y is None
        if texts or labels:
            names = " or ".join(map(repr, self.beside if texts else self.learned))
            raise ValueError(
                f"{type(self).__name__} learns from {'texts' if texts else 'labels'}, and the "
                f"{type(data).__name__} has no column {names}. Name it: "
                "data.read(data, x=..., y=...)."
            )

    def _refuse_several(self, data: Any) -> None:
        if (
            isinstance(data, Mapping)
            and data
            and all(hasattr(part, "column_names") for part in data.values())
        ):
            raise ValueError(
                f"Received a {type(data).__name__} with {shorten(list(data))}: give one of its "
                f"data sets, as in data[{next(iter(data))!r}]."
            )


def _is_stream(data: Any) -> bool:
    """Whether it is an `IterableDataset` of `datasets`."""
    return hasattr(data, "select_columns") and hasattr(data, "iter") and not is_table(data)
