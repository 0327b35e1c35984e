"""Device meshes with a data axis and a model axis that fit a model."""

import math

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import Weight, block, divided, sides
from keras_transformer.config.weight import spread_axis


def numbers_on_a_device(weights: list[Weight], model_parallel: int, fsdp: int = 1) -> int:
    """Return how many numbers of these weights one device holds in the `kt.distribution` layout."""
    total = 0
    for weight in weights:
        cut = weight.cut_axis(model_parallel)
        parts = 1 if cut is None else model_parallel
        parts *= 1 if spread_axis(weight.shape, cut, fsdp) is None else fsdp
        total += math.prod(weight.shape) // parts
    return total


def largest_block(config: TransformerConfig) -> list[Weight]:
    """Return the weights of the block of a model that has the most numbers."""
    found = (
        block(side.layer(i), side.source_dim) for side in sides(config) for i in range(side.groups)
    )
    return max(found, key=lambda weights: sum(math.prod(weight.shape) for weight in weights))


def fsdp_axes(devices: int, models: list[int], fsdp: int | None = None) -> list[tuple[int, int]]:
    """Return the possible sizes of the model axis and the fsdp axis, in ascending order.

    Args:
        devices: number of devices.
        models: the possible sizes of the model axis.
        fsdp: the only size of the fsdp axis. Without it all divisors are possible.

    Raises ValueError if `fsdp` does not divide the devices that see different rows.
    """
    each = ((model, devices // model) for model in models)
    found = [
        (model, shares)
        for model, rows in each
        for shares in (divisors(rows) if fsdp is None else [fsdp])
        if rows % shares == 0
    ]
    if not found:
        rows = devices // models[0]
        raise ValueError(
            f"{rows} devices that see different rows cannot be cut into groups of {fsdp} that "
            f"share the weights. Choose one of {_listed(divisors(rows))}."
        )
    return found


def cut_sizes(config: TransformerConfig) -> dict[str, int]:
    """Return the sizes that the model axis must divide.

    If a size differs between layers, it is the greatest common divisor of their sizes.
    """
    sizes: dict[str, int] = {}
    for layer in (side.layer(i) for side in sides(config) for i in range(side.groups)):
        for name, size in divided(layer).items():
            sizes[name] = math.gcd(sizes.get(name, 0), size)
    return {name: size for name, size in sizes.items() if size}


def model_axes(
    config: TransformerConfig, devices: int, batch_size: int, model_parallel: int | None = None
) -> list[int]:
    """Return the possible sizes of the model axis in ascending order, or only `model_parallel`.

    Raises ValueError if no size fits the heads and the batch.
    """
    sizes = cut_sizes(config)
    if model_parallel is not None:
        if model_parallel > devices or devices % model_parallel:
            raise ValueError(
                f"{devices} devices cannot be cut into models of {model_parallel} devices each. "
                f"Choose one of {_listed(divisors(devices))}."
            )
        for name, number in sizes.items():
            if number % model_parallel:
                raise ValueError(
                    f"A model axis of {model_parallel} does not divide {name}={number}. Choose "
                    f"one of {_listed(divisors(number))}."
                )
        fitting = [model_parallel]
    else:
        fitting = [m for m in divisors(devices) if all(n % m == 0 for n in sizes.values())]
    found = [m for m in fitting if batch_size % (devices // m) == 0]
    if not found:
        data = devices // fitting[-1]
        raise ValueError(
            f"A batch of {batch_size} rows cannot be spread over a data axis of {data} ({devices} "
            f"devices, {fitting[-1]} for each copy of the model, which divides the heads). "
            f"Choose a multiple of {data}, or another number of devices."
        )
    return found


def divisors(number: int) -> list[int]:
    """Return all divisors of a number in ascending order."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
