"""Data parts and model parts: which meshes a model can lie on."""

from keras_transformer.checkpoints.shapes import Shapes
from keras_transformer.config import TransformerConfig
from keras_transformer.distribution.layout import MODEL, axes_of

# Sizes of a config that the model axis must divide: a device holds whole heads.
_CUT = ("num_heads", "num_key_value_heads", "intermediate_dim")


def numbers_on_a_device(shapes: Shapes, model_parallel: int) -> int:
    """Numbers that one device holds of variables, by the layout of `kt.distribution`.

    Args:
        shapes: dict of path and shape, as of `checkpoints.variable_shapes`.
        model_parallel: int, parts that the weights are cut into.

    Returns:
        Int.
    """
    total = 0
    for path, shape in shapes.items():
        size = 1
        for axis, length in zip(axes_of(path, shape, model_parallel), shape, strict=True):
            size *= length // model_parallel if axis == MODEL else length
        total += size
    return total


def model_axes(
    config: TransformerConfig, devices: int, batch_size: int, model_parallel: int | None = None
) -> list[int]:
    """Sizes that the model axis can have, small ones first.

    Args:
        config: `TransformerConfig`.
        devices: int.
        batch_size: int, rows that the data axis must divide.
        model_parallel: int, the only size wanted.

    Returns:
        A list of int, not empty.

    Raises:
        ValueError: if there is none, or `model_parallel` is none; says what it does not divide.
    """
    if model_parallel is not None:
        if model_parallel > devices or devices % model_parallel:
            raise ValueError(
                f"{devices} devices cannot be cut into models of {model_parallel} devices each. "
                f"Choose one of {_listed(_divisors(devices))}."
            )
        _check_sizes(config, model_parallel)
        _check_batch(batch_size, devices, model_parallel)
        return [model_parallel]
    fitting = [m for m in _divisors(devices) if all(getattr(config, n) % m == 0 for n in _CUT)]
    found = [m for m in fitting if batch_size % (devices // m) == 0]
    if not found:
        _check_batch(batch_size, devices, fitting[-1])
    return found


def _check_sizes(config: TransformerConfig, model_parallel: int) -> None:
    for name in _CUT:
        number = getattr(config, name)
        if number % model_parallel:
            raise ValueError(
                f"A model axis of {model_parallel} does not divide {name}={number}. Choose one of "
                f"{_listed(_divisors(number))}."
            )


def _check_batch(batch_size: int, devices: int, model_parallel: int) -> None:
    data = devices // model_parallel
    if batch_size % data:
        raise ValueError(
            f"A batch of {batch_size} rows cannot be spread over a data axis of {data} ({devices} "
            f"devices, {model_parallel} for each copy of the model, which divides the heads). "
            f"Choose a multiple of {data}, or other devices."
        )


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
