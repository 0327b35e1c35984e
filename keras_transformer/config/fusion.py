"""Values and weights of the decoder that makes one map of the states of four blocks."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.config.options import check_values
from keras_transformer.support.checking import check_bool, check_choice, check_int, shorten

# The size of each map, relative to the grid of patches, before they are fused.
SCALES = (4, 2, 1, 0.5)
READOUTS = ("ignore", "project")


@dataclasses.dataclass(frozen=True)
class Fusion:
    """Values of `layers.FusionDecoder`.

    Args:
        layers: four numbers of blocks, ascending: the states behind each of them are read.
        channels: four ints, the features of each map before fusion.
        features: int, the features of the fused map.
        readout: `"ignore"`, or `"project"`: the state of the class token is concatenated to that of
            each patch, and both are projected.
        final_norm: bool, whether the states pass the backbone's final norm.
        batch_norm: bool, whether the residual convolutions have batch norms in place of biases.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    values = kt.layers.Fusion(layers=(3, 6, 9, 12), channels=(48, 96, 192, 384), features=64)
    assert values.shapes(width=384)["feature_0/kernel"] == (3, 3, 48, 64)
    ```

    Source: Ranftl et al. 2021, "Vision Transformers for Dense Prediction", section 3.
    """

    layers: tuple[int, ...]
    channels: tuple[int, ...]
    features: int
    readout: str = "ignore"
    final_norm: bool = True
    batch_norm: bool = False

    def __post_init__(self):
        for name in ("layers", "channels"):
            given = getattr(self, name)
            if not isinstance(given, Sequence) or len(given) != len(SCALES):
                raise ValueError(f"`{name}` must be four integers, received {shorten(given)}.")
            checked = tuple(check_int(f"{name}[{i}]", n, 1, 2**16) for i, n in enumerate(given))
            object.__setattr__(self, name, checked)
        if list(self.layers) != sorted(self.layers):
            raise ValueError(f"`layers` must ascend, received {list(self.layers)}.")
        check_int("features", self.features, 2, 2**16)
        check_choice("readout", self.readout, READOUTS)
        for name in ("final_norm", "batch_norm"):
            check_bool(name, getattr(self, name))

    @classmethod
    def of(cls, given: Mapping[str, Any] | None, num_layers: int, width: int, norm: bool):
        """Return the values of a mapping; those that are missing follow from the backbone.

        Raises:
            ValueError: if a value is unknown or out of range, or the backbone has fewer blocks.
        """
        values = {
            "layers": [-(-i * num_layers // 4) for i in range(1, 5)],
            "channels": [max(4, width // part) for part in (8, 4, 2, 1)],
            "features": max(4, width // 6),
            "final_norm": norm,
            **check_values("`decoder`", given, cls),
        }
        made = cls(**values)
        if made.layers[-1] > num_layers:
            raise ValueError(
                f"`layers` of the decoder are {list(made.layers)}, but the backbone has "
                f"{num_layers} blocks."
            )
        return made

    def values(self) -> dict[str, Any]:
        """Return the values as a dict for files."""
        found = dataclasses.asdict(self)
        return {n: list(v) if isinstance(v, tuple) else v for n, v in found.items()}

    def shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the decoder's variables for states of `width` features."""
        made: dict[str, tuple[int, ...]] = {}
        for i, channels in enumerate(self.channels):
            if self.readout == "project":
                made |= convolution(f"readout_{i}", 0, 2 * width, width)
            made |= convolution(f"project_{i}", 1, width, channels)
            if SCALES[i] != 1:
                made |= convolution(f"resize_{i}", int(SCALES[i]) or 3, channels, channels)
            made |= convolution(f"feature_{i}", 3, channels, self.features, bias=False)
        for i in range(len(SCALES)):
            for unit in ("skip", "residual") if i else ("residual",):
                for part in (1, 2):
                    name, size = f"fuse_{i}/{unit}/", self.features
                    made |= convolution(
                        f"{name}convolution_{part}", 3, size, size, bias=not self.batch_norm
                    )
                    made |= batch_norm(f"{name}norm_{part}", size) if self.batch_norm else {}
            made |= convolution(f"fuse_{i}/output", 1, self.features, self.features)
        return made


def convolution(
    name: str, size: int, inputs: int, outputs: int, bias: bool = True
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a convolution's variables; of a linear layer's if `size` is 0."""
    kernel = (size, size, inputs, outputs) if size else (inputs, outputs)
    return {f"{name}/kernel": kernel} | ({f"{name}/bias": (outputs,)} if bias else {})


def batch_norm(name: str, features: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a batch norm's variables."""
    parts = ("gamma", "beta", "moving_mean", "moving_variance")
    return {f"{name}/{part}": (features,) for part in parts}
