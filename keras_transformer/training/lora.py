"""Training a part of any Keras model: some of its blocks, or low-rank adapters of its kernels.

The methods of tasks call these functions with their backbone; their docstrings are for users.
"""

from collections.abc import Mapping, Sequence

import keras
import numpy as np
from keras import ops

from keras_transformer.config.structure import (
    block_of,
    is_before_blocks,
    is_frozen,
    without_numbers,
)
from keras_transformer.support.checking import check_bool, check_int, check_number, shorten

_PAIR = ("lora_kernel_a", "lora_kernel_b")


def freeze(model: keras.Model, layers: int, embeddings: bool = True) -> None:
    """Freeze the first `layers` blocks of each stack, found by their paths, and the embeddings."""
    if is_adapted(model):
        raise ValueError("The task has adapters, and its weights are frozen already.")
    blocks = {id(v): found[1] for v in model.weights if (found := block_of(v.path))}
    if not blocks:
        raise ValueError(
            "`freeze` found no blocks with paths like 'decoder/layer_0/...': set `trainable` of "
            "your own layers instead."
        )
    layers = check_int("layers", layers, at_least=0, at_most=max(blocks.values()) + 1)
    embeddings = check_bool("embeddings", embeddings)
    for variable in model.weights:
        if is_frozen(variable.path):
            continue
        before = embeddings and is_before_blocks(variable.path)
        variable.trainable = not before and blocks.get(id(variable), layers) >= layers
    forget_compiled(model)


def enable_lora(
    model: keras.Model,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] = ("query", "value"),
    layers: Sequence[str] | Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Freeze a model and add trainable adapters to its dense layers with these names.

    Args:
        model: the model.
        rank: int, the inner size of an adapter.
        alpha: float, see `Task.enable_lora`.
        targets: names of the dense layers to adapt.
        layers: paths of layers, used instead of `targets`; see `lora_values` and `adapters`. A
            mapping gives each path a `(rank, alpha)` of its own.
    """
    rank = check_int("rank", rank, at_least=1, at_most=2**15)
    alpha = check_number("alpha", alpha, above=0, none=True)
    if is_adapted(model):
        raise ValueError("The task is adapted already: call `merge_lora` first.")
    dense = _dense_layers(model)
    if layers is not None:
        known = {path: layer for layer, path in zip(dense, _paths(model, dense), strict=True)}
        targets, names = list(layers), set(known)
    else:
        names = {layer.name for layer in dense}
    several = isinstance(targets, (list, tuple, set, frozenset)) and len(targets) > 0
    if not several or not all(isinstance(t, str) and t in names for t in targets):
        raise ValueError(
            f"`targets` must be a list of dense layers of the backbone, "
            f"{', '.join(sorted(names))}; received {shorten(targets)}."
        )
    if any(layer.quantization_mode is not None for layer in dense):
        raise ValueError(
            "The model is quantized, and would not keep what it learns. Adapt and train it before "
            "`quantize`, and call `merge_lora` in between."
        )
    if layers is None:
        chosen = [(layer, rank, alpha) for layer in dense if layer.name in targets]
    elif isinstance(layers, Mapping):
        chosen = [(known[path], *_check_size(path, size)) for path, size in layers.items()]
    else:
        chosen = [(known[path], rank, alpha) for path in layers]
    model.trainable_before_lora = frozenset(v.path for v in model.trainable_variables)
    for variable in model.variables:
        variable.trainable = False
    for layer, its_rank, its_alpha in chosen:
        layer.enable_lora(its_rank, lora_alpha=its_alpha)
    forget_compiled(model)


def _check_size(path: str, size: Sequence[float]) -> tuple[int, float]:
    rank, alpha = size
    return (
        check_int(f"rank of {path}", rank, at_least=1, at_most=2**15),
        check_number(f"alpha of {path}", alpha, above=0),
    )


def is_adapted(model: keras.Model) -> bool:
    """Return whether a model has adapters."""
    return getattr(model, "trainable_before_lora", None) is not None


def adapted_layers(model: keras.Model) -> list[keras.layers.Dense]:
    """Return the layers that have adapters. Raises ValueError if the model has none."""
    if not is_adapted(model):
        raise ValueError("The task has no adapters: call `enable_lora` first.")
    return [layer for layer in _dense_layers(model) if layer.lora_enabled]


def merge_lora(model: keras.Model) -> None:
    """Add the adapters to the kernels and remove them; make frozen weights trainable again."""
    for layer in adapted_layers(model):
        merged = ops.convert_to_numpy(layer.kernel)  # this property of Keras includes the adapter
        for name in _PAIR:
            layer._untrack_variable(getattr(layer, name))
        layer.lora_enabled = False
        layer._kernel.assign(merged)
    for variable in model.variables:
        variable.trainable = variable.path in model.trainable_before_lora
    model.trainable_before_lora = None
    forget_compiled(model)


def adapters(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the matrices of the adapters by their paths within the model."""
    layers = adapted_layers(model)
    return {
        f"{path}/{name}": getattr(layer, name)
        for layer, path in zip(layers, _paths(model, layers), strict=True)
        for name in _PAIR
    }


def adapter_sizes(model: keras.Model) -> dict[str, tuple[int, float]]:
    """Return rank and alpha of the adapters by the paths of their layers, as `adapters` orders."""
    layers = adapted_layers(model)
    sizes = [(layer.lora_rank, layer.lora_alpha) for layer in layers]
    return dict(zip(_paths(model, layers), sizes, strict=True))


def kernel_shapes(model: keras.Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the kernels that adapters may be added to, by the paths of layers."""
    dense = _dense_layers(model)
    shapes = [tuple(layer._kernel.shape) for layer in dense]
    return dict(zip(_paths(model, dense), shapes, strict=True))


def lora_values(model: keras.Model) -> dict | None:
    """Return the `enable_lora` arguments of an adapted model, or None if it is not adapted."""
    if not is_adapted(model):
        return None
    layers, sizes = adapted_layers(model), adapter_sizes(model)
    targets = {layer.name for layer in layers}
    # Names that Keras gives automatically differ in another process.
    named = all(p.endswith(f"/{each.name}") for p, each in zip(sizes, layers, strict=True))
    all_of_them = sum(layer.name in targets for layer in _dense_layers(model)) == len(layers)
    if len(set(sizes.values())) > 1:
        chosen = {"layers": {path: list(size) for path, size in sizes.items()}}
    else:
        chosen = {} if named and all_of_them else {"layers": list(sizes)}
    return {
        "rank": layers[0].lora_rank,
        "alpha": layers[0].lora_alpha,
        "targets": sorted(targets),
        **chosen,
    }


def load_apart(model: keras.Model, arrays: list[np.ndarray]) -> None:
    """Make the next load of merged kernels split them into kernels and adapters again.

    Args:
        model: an adapted model.
        arrays: the values of `adapters`, in their order.
    """
    pairs = zip(arrays[::2], arrays[1::2], strict=True)
    for layer, (a, b) in zip(adapted_layers(model), pairs, strict=True):

        def load(store, layer=layer, a=a, b=b):
            del layer.load_own_variables  # restores the method of the class
            layer.load_own_variables(store)
            merged = ops.convert_to_numpy(ops.cast(layer._kernel, "float32"))
            learned = np.matmul(a, b, dtype="float32") * (layer.lora_alpha / layer.lora_rank)
            layer._kernel.assign(merged - learned)
            layer.lora_kernel_a.assign(a)
            layer.lora_kernel_b.assign(b)

        layer.load_own_variables = load


def forget_compiled(model: keras.Model) -> None:
    """Drop compiled steps and optimizer states, which belong to other variables.

    The functions above call it for their model; their callers call it for enclosing models.
    """
    model.train_function = model.test_function = model.predict_function = None
    if model.compiled and model.optimizer is not None:
        config = keras.optimizers.serialize(model.optimizer)
        model.optimizer = keras.optimizers.deserialize(config)


def _paths(model: keras.Model, layers: list[keras.layers.Layer]) -> list[str]:
    """Return the paths of layers within a model, the same in any process."""
    own = f"{model.path}/"
    # Numbered among all variables, so that the paths do not depend on the chosen layers.
    names = without_numbers(v.path.removeprefix(own) for v in model.variables)
    kernels = [names[layer._kernel.path.removeprefix(own)] for layer in layers]
    return [kernel.rpartition("/")[0] for kernel in kernels]


def _dense_layers(model: keras.Model) -> list[keras.layers.Dense]:
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
