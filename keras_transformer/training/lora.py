"""Training a part of any Keras model: some of its blocks, or low-rank adapters of its kernels.

The methods of tasks call these functions with their backbone; their docstrings are for users.

Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"; Kalajdzievski 2023, "A
Rank Stabilization Scaling Factor for Fine-Tuning with LoRA"; Liu et al. 2024, "DoRA".
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

from keras_transformer.config.structure import (
    block_of,
    is_before_blocks,
    is_frozen,
    without_numbers,
)
from keras_transformer.kernels.process import save_memory
from keras_transformer.kernels.quantized_matrix import MODES
from keras_transformer.layers.dense import MAGNITUDE, Dense, adapter_of, merge_adapter
from keras_transformer.models.runtime.quantized import keep_float_states
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    shorten,
)

METHODS = ("lora", "rslora", "dora")


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


def set_trainable(model: keras.Model, variables: Sequence, trainable: bool) -> bool:
    """Freeze or thaw variables of a model without adapters; return whether any changed."""
    changed = [v for v in variables if v.trainable != trainable and not is_frozen(v.path)]
    for variable in changed:
        variable.trainable = trainable
    if changed:
        forget_compiled(model)
    return bool(changed)


def enable_lora(
    model: keras.Model,
    rank: int,
    alpha: float | None = None,
    targets: Sequence[str] = ("query", "value"),
    layers: Sequence[str] | Mapping[str, Sequence[float]] | None = None,
    method: str = "lora",
) -> None:
    """Freeze a model and add trainable adapters to its dense layers with these names.

    A kernel may be quantized. The products of the model then no longer round their states.

    Args:
        model: the model.
        rank: int, the inner size of an adapter.
        alpha: float, see `Task.enable_lora`.
        targets: names of the dense layers to adapt, see `Task.enable_lora`.
        layers: paths of layers, used instead of `targets`; see `lora_values` and `adapters`. A
            mapping gives each path a `(rank, alpha)` of its own, with the alpha of plain LoRA.
        method: str, see `Task.enable_lora`.
    """
    check_choice("method", method, METHODS)
    rank = check_int("rank", rank, at_least=1, at_most=2**15)
    alpha = check_number("alpha", alpha, above=0, none=True)
    if is_adapted(model):
        raise ValueError("The task is adapted already: call `merge_lora` first.")
    dense = _dense_layers(model)
    if layers is not None:
        known = {path: layer for layer, path in zip(dense, _paths(model, dense), strict=True)}
        targets, names = list(layers), set(known)
    else:
        names = {name for names in _target_names(model, dense) for name in names}
    several = isinstance(targets, (list, tuple, set, frozenset)) and len(targets) > 0
    if not several or not all(isinstance(t, str) and t in names for t in targets):
        raise ValueError(
            f"`targets` must be a list of dense layers of the backbone, "
            f"{', '.join(sorted(names))}; received {shorten(targets)}."
        )
    scaled = _plain_alpha(rank if alpha is None else alpha, rank, method)
    if layers is None:
        each = zip(dense, _target_names(model, dense), strict=True)
        chosen = [(layer, rank, scaled) for layer, own in each if not own.isdisjoint(targets)]
    elif isinstance(layers, Mapping):
        chosen = [(known[path], *_check_size(path, size)) for path, size in layers.items()]
    else:
        chosen = [(known[path], rank, scaled) for path in layers]
    further = {"magnitude": True} if method == "dora" else {}
    for layer, *_ in chosen:
        if further and not isinstance(layer, Dense):
            raise ValueError(
                f"{layer.path} is a {type(layer).__name__} of Keras. DoRA takes the dense layers "
                "of this library's models: use method='lora' or 'rslora'."
            )
        if layer.quantization_mode not in (None, *MODES):
            raise ValueError(
                f"{layer.path} is quantized to {layer.quantization_mode}, which gives its inputs "
                f"no gradient. Adapters train over floats, {' and '.join(MODES)}."
            )
    model.trainable_before_lora = frozenset(v.path for v in model.trainable_variables)
    model.lora_method = method
    for variable in model.variables:
        variable.trainable = False
    for layer, its_rank, its_alpha in chosen:
        layer.enable_lora(its_rank, lora_alpha=its_alpha, **further)
    if any(layer.quantization_mode for layer, *_ in chosen):
        save_memory()
    keep_float_states(model, True)
    forget_compiled(model)


def _plain_alpha(alpha: float, rank: int, method: str, invert: bool = False) -> float:
    """Return the alpha with which plain LoRA has the same scale `alpha / rank`, or the inverse."""
    if method != "rslora":
        return alpha
    return alpha / math.sqrt(rank) if invert else alpha * math.sqrt(rank)


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


@contextlib.contextmanager
def without_adapters(model: keras.Model) -> Iterator[None]:
    """Compute with the frozen kernels alone within the scope, as before `enable_lora`.

    In a compiled step it applies to what is traced within the scope. The caller holds the model's
    `weights_lock`: other threads would compute without the adapters too.
    """
    layers = adapted_layers(model)
    for layer in layers:
        layer.lora_enabled = False
    try:
        yield
    finally:
        for layer in layers:
            layer.lora_enabled = True


def merge_lora(model: keras.Model) -> None:
    """Merge the adapters into the kernels and remove them; make frozen weights trainable again."""
    for layer in adapted_layers(model):
        merge_adapter(layer)
    keep_float_states(model, False)
    for variable in model.variables:
        variable.trainable = variable.path in model.trainable_before_lora
    model.trainable_before_lora = None
    forget_compiled(model)


def adapters(model: keras.Model) -> dict[str, keras.Variable]:
    """Return the variables of the adapters by their paths within the model."""
    layers = adapted_layers(model)
    return {
        f"{path}/{name}": variable
        for layer, path in zip(layers, _paths(model, layers), strict=True)
        for name, variable in adapter_of(layer).items()
    }


def adapter_sizes(model: keras.Model) -> dict[str, tuple[int, float]]:
    """Return rank and alpha of the adapters by the paths of their layers, as `adapters` orders.

    The alpha is that of plain LoRA: the low-rank product is multiplied by `alpha / rank`.
    """
    layers = adapted_layers(model)
    sizes = [(layer.lora_rank, layer.lora_alpha) for layer in layers]
    return dict(zip(_paths(model, layers), sizes, strict=True))


def kernel_shapes(model: keras.Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the kernels that adapters may be added to, by the paths of layers."""
    dense = _dense_layers(model)
    shapes = [(layer._kernel.shape[0], layer.units) for layer in dense]
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
    rank, alpha, method = layers[0].lora_rank, layers[0].lora_alpha, model.lora_method
    return {
        "rank": rank,
        "alpha": _plain_alpha(alpha, rank, method, invert=True),
        "targets": sorted(targets),
        "method": method,
        **chosen,
    }


def arrays_apart(model: keras.Model) -> list[np.ndarray]:
    """Return what `load_apart` needs beside merged kernels, of each adapted layer in turn.

    These are the arrays of its adapter, and for DoRA the lengths that its columns had before.
    """
    arrays = []
    for layer in adapted_layers(model):
        found = adapter_of(layer)
        variables = [*found.values(), *([layer.column_norms()] if MAGNITUDE in found else ())]
        arrays += [keras.ops.convert_to_numpy(variable) for variable in variables]
    return arrays


def load_apart(model: keras.Model, arrays: list[np.ndarray]) -> None:
    """Make the next load of merged kernels split them into kernels and adapters again.

    Args:
        model: an adapted model.
        arrays: the result of `arrays_apart`.
    """
    rest = iter(arrays)
    for layer in adapted_layers(model):
        values = {name: next(rest) for name in adapter_of(layer)}
        norms = next(rest) if MAGNITUDE in values else None

        def load(store, layer=layer, values=values, norms=norms):
            del layer.load_own_variables  # restores the method of the class
            layer.load_own_variables(store)
            merged = keras.ops.convert_to_numpy(keras.ops.cast(layer._kernel, "float32"))
            a, b, *magnitude = values.values()
            if magnitude:
                merged = merged * (norms / magnitude[0])
            learned = np.matmul(a, b, dtype="float32") * (layer.lora_alpha / layer.lora_rank)
            layer._kernel.assign(merged - learned)
            for name, array in values.items():
                getattr(layer, name).assign(array)

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


def _target_names(model: keras.Model, layers: list[keras.layers.Layer]) -> list[set[str]]:
    """Return the targets that mean each layer: its name, also behind that of its side."""
    sides = (path.partition("/")[0] for path in _paths(model, layers))
    pairs = zip(layers, sides, strict=True)
    return [{layer.name, f"{side}/{layer.name}"} for layer, side in pairs]


def _dense_layers(model: keras.Model) -> list[keras.layers.Dense]:
    layers = model._flatten_layers(include_self=False)
    return [layer for layer in layers if isinstance(layer, keras.layers.Dense)]
