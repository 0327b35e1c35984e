"""What was measured, and what was taken."""

import dataclasses

from keras_transformer.planning.table import human, seconds, size
from keras_transformer.tasks import Task


@dataclasses.dataclass(frozen=True)
class Measured:
    """A mode of a task, measured.

    Fields:
        mode: str, of `MODES`.
        seconds: float, the median time of the work; None if the mode does not work here.
        rate: float, tokens a second, of rows that were read or of new tokens; rows a second of
            what is no text.
        memory: int, bytes of the weights, with the second copy of packed ones. What int8 and int4
            multiply on PyTorch and a CPU is kept beside them, a byte for each number.
        difference: float, the most that a probability moved from float32; of outputs that are no
            classes or tokens, the most that a number did.
        agreement: float, the share of the same likeliest classes or tokens as in float32; of other
            outputs the mean cosine with those in float32.
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
    """What `optimize` took, and why. It prints as a table.

    Fields:
        task: the task in the mode that was taken: the one given for `"float32"`, else a copy, or
            for `"float32-packed"` a task of the same backbone.
        mode: str, of `MODES`.
        table: tuple of `Measured`, in the order of `MODES`.
        work: str, what was measured.
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
