"""Values and weights of the decoder that makes one map of the states of all stages."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.config.fusion import convolution
from keras_transformer.support.checking import check_int, shorten


@dataclasses.dataclass(frozen=True)
class StageFusion:
    """Values of `layers.StageFusionDecoder`.

    Args:
        features: int, the features of the map of each stage. Defaults to 256.

    Raises:
        ValueError: if the value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    values = kt.layers.StageFusion(features=64)
    assert values.shapes(widths=(32, 160))["project_1/kernel"] == (160, 64)
    ```

    Source: Xie et al. 2021, "SegFormer", section 3.2.
    """

    features: int = 256

    def __post_init__(self):
        check_int("features", self.features, 1, 2**16)

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> "StageFusion":
        """Return the values of a mapping. Raises ValueError if a value is unknown."""
        if given is not None and (not isinstance(given, Mapping) or set(given) - {"features"}):
            raise ValueError(
                "`decoder` of a backbone with stages must be a dict with the key 'features', "
                f"received {shorten(given)}."
            )
        return cls(**(given or {}))

    def values(self) -> dict[str, Any]:
        """Return the values as a dict for files."""
        return dataclasses.asdict(self)

    def shapes(self, widths: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the decoder's variables for stages of these widths."""
        made: dict[str, tuple[int, ...]] = {}
        for i, width in enumerate(widths):
            made |= convolution(f"project_{i}", 0, width, self.features)
        return made
