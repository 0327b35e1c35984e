"""Data parts and model parts: which meshes a model can lie on."""

import math

from keras_transformer.config import TransformerConfig
from keras_transformer.structure import Weight, divided, sides


def numbers_on_a_device(weights: list[Weight], model_parallel: int) -> int:
    """Numbers of these weights that one device holds, by the layout of `kt.distribution`."""
    total = 0
    for weight in weights:
        parts = 1 if weight.cut_axis(model_parallel) is None else model_parallel
        total += math.prod(weight.shape) // parts
    return total


def cut_sizes(config: TransformerConfig) -> dict[str, int]:
    """The sizes that the model axis must divide, of all layers the greatest common divisor."""
    sizes: dict[str, int] = {}
    for layer in (side.layer(i) for side in sides(config) for i in range(side.groups)):
        for name in divided(layer):
            sizes[name] = math.gcd(sizes.get(name, 0), getattr(layer, name))
    return {name: size for name, size in sizes.items() if size}


def model_axes(
    config: TransformerConfig, devices: int, batch_size: int, model_parallel: int | None = None
) -> list[int]:
    """Sizes that the model axis can have, small ones first; or the only one that is wanted."""
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
            f"Choose a multiple of {data}, or other devices."
        )
    return found


def divisors(number: int) -> list[int]:
    """All of them, small ones first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
