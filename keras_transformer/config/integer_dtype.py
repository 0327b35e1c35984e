"""Dtypes of integer weights by name: `"int8"`, `"int4"`, `"int4/64"`, `"int4_from_bfloat16"`."""

import dataclasses
import re
from typing import Any, Self

_NAME = re.compile(r"(int8|int4)(?:/(-1|[1-9]\d{0,5}))?(?:_from_(\w+))?")
# Numbers of a column that share a scale in int4, as in Keras.
_GROUP = 128


@dataclasses.dataclass(frozen=True)
class IntegerDtype:
    """A dtype of integer weights, named as Keras names its policies.

    Attributes:
        mode: str, `"int8"` or `"int4"`.
        group: int, numbers of a column that share a scale; None shares one among all.
        floats: str, the dtype policy of the other weights and of the computation; None is the
            default.
    """

    mode: str
    group: int | None = None
    floats: str | None = None

    @classmethod
    def parse(cls, name: Any) -> Self | None:
        """Return the dtype of a name, or None if it is not the name of such a dtype."""
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None or (found[1] == "int8" and found[2]):
            return None
        group = int(found[2] or _GROUP) if found[1] == "int4" else -1
        return cls(found[1], None if group == -1 else group, found[3])

    def bytes_of(self, inputs: int, outputs: int, scale: int = 4) -> int:
        """Return the bytes of a kernel `(inputs, outputs)`, with scales of `scale` bytes each."""
        if self.mode == "int8":
            return inputs * outputs + scale * outputs
        packed = inputs * -(-outputs // 2)
        if self.group is None:
            return packed + scale * outputs
        # A scale and a zero for each group, and the number of the group of each input in float32.
        return packed + (scale + 1) * -(-inputs // self.group) * outputs + 4 * inputs
