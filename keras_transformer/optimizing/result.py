"""Results of `optimize`: the measurements, and the chosen mode."""

import dataclasses

from keras_transformer.planning.table import human, seconds, size
from keras_transformer.tasks import Task


@dataclasses.dataclass(frozen=True)
class Measured:
    """Measurement of one mode of a task.

    Fields:
        mode: str, a name in `MODES`.
        seconds: float, the median time of the work; None if the mode does not work here.
        rate: float, tokens read or generated per second; rows per second for inputs other than
            text.
        memory: int, bytes of the weights, including the second copy of packed ones. With PyTorch on
            a CPU, int8 and int4 keep an additional byte per number for their products.
        difference: float, the largest change of a probability from float32; for outputs other than
            classes or tokens, the largest change of a number.
        agreement: float, the share of rows or tokens whose most likely class or token is the same
            as in float32; for other outputs, the mean cosine similarity with float32.
        reason: str, why the mode does not work here; `""` if it does.
    """

    mode: str
    seconds: float | None = None
    rate: float | None = None
    memory: int | None = None
    difference: float | None = None
    agreement: float | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Optimized:
    """Choice of `optimize`, with its measurements. It prints as a table.

    Fields:
        task: the task in the chosen mode: the given task for `"float32"`, otherwise a copy, or for
            `"float32-packed"` a task with the same backbone.
        mode: str, a name in `MODES`.
        table: tuple of `Measured`, in the order of `MODES`.
        work: str, a description of the measured work.
    """

    task: Task
    mode: str
    table: tuple[Measured, ...]
    work: str

    def __str__(self):
        whole = next(row.seconds for row in self.table if row.mode == "float32")
        shown = [("", "time", "faster", "a second", "weights", "moved", "agrees")]
        for row in self.table:
            if row.seconds is None:
                continue
            taken = " <- taken" if row.mode == self.mode else ""
            shown.append(
                (
                    row.mode, seconds(row.seconds), f"{whole / row.seconds:.2f} x",
                    human(row.rate).strip(), size(row.memory), f"{row.difference:.2g}",
                    f"{row.agreement:.1%}{taken}",
                )
            )  # fmt: skip
        widths = [max(len(row[i]) for row in shown) for i in range(len(shown[0]) - 1)]
        lines = [self.work]
        for name, *cells, last in shown:
            padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
            lines.append("  ".join(["  " + name.ljust(widths[0]), *padded, last]).rstrip())
        lines += [f"  {row.mode}: {row.reason}" for row in self.table if row.reason]
        return "\n".join(lines)
