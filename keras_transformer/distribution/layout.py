"""Layout of the weights of all models on a mesh of devices, for `keras.distribution` on JAX."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import PARALLEL, SHARED, shared_weight, sides
from keras_transformer.config.weight import spread_axis
from keras_transformer.distribution.engines import ENGINE
from keras_transformer.distribution.spread import MESHES, shared_by
from keras_transformer.kernels.process import tune_once
from keras_transformer.planning.meshes import cut_sizes, divisors
from keras_transformer.support.checking import check_int, describe

BATCH, FSDP, SEQUENCE, MODEL = "batch", "fsdp", "sequence", "model"
# The `TokenExchange` of processes on PyTorch, within a step in which they share tokens.
EXCHANGES: list[Any] = []


def device_mesh(
    data: int | None = None,
    model: int = 1,
    devices: list | None = None,
    *,
    fsdp: int = 1,
    sequence: int = 1,
) -> keras.distribution.DeviceMesh:
    """Arrange devices as a `keras.distribution.DeviceMesh` with the axes batch and model.

    Args:
        data: int, parts into which a batch is cut, with a copy of all weights each. Defaults to
            the number of devices divided by the other sizes.
        model: int, parts into which the weights are cut. Neighbouring devices share one model, so
            that this axis should have the fast connections.
        devices: list of devices. Defaults to `keras.distribution.list_devices`.
        fsdp: int, parts into which a batch and also the weights and optimizer states are cut. The
            weights of a layer are gathered when it is computed. The axis exists above 1.
        sequence: int, parts into which the tokens of each row are cut. The axis exists above 1.

    Returns:
        The mesh, of shape `(data, model)`, or `(data, fsdp, sequence, model)` without the axes of
        `fsdp` and `sequence` that are 1.

    Raises:
        ValueError: if the backend is not JAX, a number is below 1, there are fewer devices than
            needed, or the mesh leaves out devices of several processes.

    Example: see `ModelParallel`.
    """
    ENGINE.check_lays_out()
    data = check_int("data", data, at_least=1, none=True)
    model = check_int("model", model, at_least=1)
    fsdp = check_int("fsdp", fsdp, at_least=1)
    sequence = check_int("sequence", sequence, at_least=1)
    if not isinstance(devices, list | tuple | None):
        raise ValueError(f"`devices` must be a list of devices, received {describe(devices)}.")
    tune_once()  # before JAX lists its devices
    devices = list(keras.distribution.list_devices() if devices is None else devices)
    if data is None:
        data = max(1, len(devices) // (model * fsdp * sequence))
    sizes = {BATCH: data, FSDP: fsdp, SEQUENCE: sequence, MODEL: model}
    sizes = {axis: size for axis, size in sizes.items() if axis in (BATCH, MODEL) or size > 1}
    wanted = math.prod(sizes.values())
    asked = " times ".join(f"{'data' if n == BATCH else n}={size}" for n, size in sizes.items())
    if wanted > len(devices):
        shown = ", ".join(map(str, devices[:8])) + (" and so on" if len(devices) > 8 else "")
        raise ValueError(
            f"A mesh of {asked} needs {wanted} devices, but there "
            f"{'is' if len(devices) == 1 else 'are'} {len(devices)}: {shown}. To try "
            "it on a CPU, set the environment variable "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={wanted} before Keras is imported."
        )
    import jax

    if wanted < len(devices) and jax.process_count() > 1:
        raise ValueError(
            f"A mesh of {asked} leaves out some of the {len(devices)} "
            f"devices of {jax.process_count()} processes. Choose a product of {len(devices)}."
        )
    return keras.distribution.DeviceMesh(tuple(sizes.values()), list(sizes), devices[:wanted])


def layout_map(
    mesh: keras.distribution.DeviceMesh, config: TransformerConfig | None = None
) -> keras.distribution.LayoutMap:
    """Return a layout map for the weights of all backbones and tasks of this library.

    The axis `"model"` splits the heads of attention, the width of the feed-forward layer or its
    experts, and the vocabulary, with the corresponding optimizer states. All other weights, also
    those of mixers other than attention, are replicated on each device. What an axis `"fsdp"`
    spreads depends on the shape of a weight: only `ModelParallel` does that.

    Args:
        mesh: a mesh with an axis `"model"`, such as `device_mesh` returns.
        config: `TransformerConfig`, which is checked against the mesh. None checks each model when
            it is made.

    Returns:
        `keras.distribution.LayoutMap`, for `keras.distribution.ModelParallel`. This module's
        `ModelParallel` already includes it.

    Raises:
        ValueError: if the backend is not JAX, the mesh has no axis `"model"`, or the axis does not
            divide `num_heads`, `num_key_value_heads`, `intermediate_dim` or `vocabulary_size`.

    Example:
    ```python
    import keras_transformer as kt
    import keras

    if keras.config.backend() == "jax":
        layout = kt.distribution.layout_map(kt.distribution.device_mesh(data=1, model=1))
        path = "encoder/encoder/layer_0/feed_forward/intermediate/kernel"
        assert layout[path].axes == (None, "model")
    ```

    Source: Shoeybi et al. 2019, "Megatron-LM", section 3.
    """
    ENGINE.check_lays_out()
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise ValueError(f"`mesh` must be a DeviceMesh, received {describe(mesh)}.")
    if not isinstance(config, TransformerConfig | None):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    _require_axis(mesh, MODEL)
    if config is not None:
        _check(config, _size(mesh, MODEL), vocabulary=True)
    layouts = _TransformerLayout(mesh)
    for path, weight in SHARED.items():
        axes = (MODEL if axis in PARALLEL else None for axis in weight.axes)
        layouts[f"(.*/)?{path}"] = tuple(axes)
    return layouts


class _TransformerLayout(keras.distribution.LayoutMap):
    """A layout map that `check_config` can tell apart from layouts of users."""


class ModelParallel(keras.distribution.ModelParallel):
    """`keras.distribution.ModelParallel` with the layout of every model of this library.

    A mesh with `model=1` is pure data parallelism, with `data=1` pure tensor parallelism. On a mesh
    with an axis `"fsdp"` (`device_mesh`) each weight matrix and its optimizer states are also cut
    along their longest axis that is not cut yet, and a layer is gathered when it is computed, in
    the forward and in the backward pass (Rajbhandari et al. 2020, "ZeRO", stage 3). Make the model
    within its scope, or after `keras.distribution.set_distribution`.

    Unlike with Keras's class and `layout_map`, a vocabulary that the axis `"model"` does not divide
    is cut along the width of its embedding, or replicated on each device; and a batch of one
    process may have any number of rows.

    Args:
        mesh: a mesh with the axes `"batch"` and `"model"`, such as `device_mesh` returns.

    Raises:
        ValueError: if the mesh lacks these axes or the backend is not JAX. When a model is made:
            if the mesh does not divide its heads or its feed-forward width.

    Example:
    ```python
    import keras_transformer as kt
    import keras

    if keras.config.backend() == "jax":
        mesh = kt.distribution.device_mesh()  # data parallel, on all devices
        with kt.distribution.ModelParallel(mesh).scope():
            classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
            classifier.fit(["a warm film", "dull"] * 8, [1, 0] * 8, verbose=0)
    ```
    """

    def __init__(self, mesh: keras.distribution.DeviceMesh):
        layouts = layout_map(mesh)
        _require_axis(mesh, BATCH)
        # A process already reads only its share, see `shard_of`.
        super().__init__(layout_map=layouts, batch_dim_name=BATCH, auto_shard_dataset=False)

    @property
    def spreads_weights(self) -> bool:
        """Whether devices that see different rows also share the weights."""
        return _size(self.device_mesh, FSDP) > 1

    @property
    def num_model_replicas(self):
        return _size(self.device_mesh, BATCH) * _size(self.device_mesh, FSDP)

    def get_variable_layout(self, variable):
        if getattr(variable, "_layout", None) is not None:
            return variable._layout
        model, fsdp = (_size(self.device_mesh, axis) for axis in (MODEL, FSDP))
        axes = axes_of(variable.path, tuple(variable.shape), model, fsdp)
        return keras.distribution.TensorLayout(axes, self.device_mesh)

    def get_data_layout(self, data_shape):
        if self._is_multi_process:
            return _RowLayout([None] * len(data_shape), self.device_mesh)
        # Keras would lay out all batches like the first one, and JAX cuts into equal parts only: a
        # smaller batch at the end of the data would fail. `spread_batch` takes any number of rows.
        return keras.distribution.TensorLayout([None] * len(data_shape), self.device_mesh)


class _RowLayout(keras.distribution.TensorLayout):
    """A layout of data whose rows are cut over all axes that see different rows."""

    @property
    def backend_layout(self):
        from jax.sharding import NamedSharding, PartitionSpec

        mesh = self.device_mesh
        return NamedSharding(mesh.backend_mesh, PartitionSpec(_row_axes(mesh)))


def axes_of(path: str, shape: tuple[int, ...], model: int, fsdp: int = 1) -> tuple[str | None, ...]:
    """Return for each axis of a variable the mesh axis over which it is split, or None."""
    weight = shared_weight(path, shape)
    cut = None if weight is None else weight.cut_axis(model)
    named = {cut: MODEL, spread_axis(shape, cut, fsdp): FSDP}
    return tuple(named.get(number) for number in range(len(shape)))


def check_config(config: TransformerConfig) -> None:
    """Raise ValueError if this library's layout cannot place a model on the current mesh."""
    if MESHES and (count := shared_by()) > 1:
        from keras_transformer.distribution.tensor_parallel import check_shared

        check_shared(config)
        _check(config, count, vocabulary=False)
    distribution = keras.distribution.distribution()
    layouts = getattr(distribution, "_layout_map", None)
    if isinstance(layouts, _TransformerLayout):
        strict, mesh = not isinstance(distribution, ModelParallel), distribution.device_mesh
        _check(config, _size(mesh, MODEL), vocabulary=strict)
        _check_tokens(config, _size(mesh, MODEL), _size(mesh, SEQUENCE))


def devices_of_model() -> int:
    """Return the number of devices for which a step is compiled."""
    distribution = keras.distribution.distribution()
    return distribution.device_mesh.devices.size if isinstance(distribution, ModelParallel) else 1


def spread_batch(states):
    """Spread the rows of states `(batch, ...)` over the mesh's data axis, in a compiled step."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, ModelParallel):
        return states
    import jax

    if not isinstance(states, jax.core.Tracer):
        return states  # computed eagerly, where JAX cuts into equal parts only
    from jax.sharding import PartitionSpec

    mesh = distribution.device_mesh
    # States of tokens have an axis for them; a row of other data has none.
    tokens = SEQUENCE if SEQUENCE in mesh.axis_names and len(states.shape) > 2 else None
    return _constrained(states, PartitionSpec(_row_axes(mesh), tokens))


def over_heads(*projections):
    """Exchange split tokens for split heads, where devices or processes share the tokens of rows.

    On JAX these are the devices of a mesh with a sequence axis, in a compiled step. Then each
    attends over whole sequences with some of the heads (Jacobs et al. 2023, "DeepSpeed Ulysses").
    On JAX projections whose heads the devices do not divide are gathered.

    Args:
        *projections: `(batch, length, heads, head_dim)`, queries, keys and values.

    Returns:
        The projections.
    """
    if EXCHANGES:
        return EXCHANGES[0].over_heads(*projections)
    mesh = _mesh_of_tokens(projections[0])
    if mesh is None:
        return projections
    from jax.sharding import PartitionSpec

    devices = _size(mesh, MODEL) * _size(mesh, SEQUENCE)
    rows = _row_axes(mesh)
    specs = (
        PartitionSpec(rows, None, (MODEL, SEQUENCE) if x.shape[2] % devices == 0 else MODEL)
        for x in projections
    )
    return tuple(map(_constrained, projections, specs))


def seen_over_heads(visibility):
    """Return an `AttentionMask` as it is after `over_heads`."""
    return EXCHANGES[0].of_whole_rows(visibility) if EXCHANGES else visibility


def over_tokens(attended):
    """Exchange split heads for split tokens again, after `over_heads`."""
    if EXCHANGES:
        return EXCHANGES[0].over_tokens(attended)
    mesh = _mesh_of_tokens(attended)
    if mesh is None:
        return attended
    from jax.sharding import PartitionSpec

    return _constrained(attended, PartitionSpec(_row_axes(mesh), SEQUENCE, MODEL))


def _mesh_of_tokens(states):
    """Return the mesh if it has a sequence axis and a step is being compiled, otherwise None."""
    distribution = keras.distribution.distribution()
    if not isinstance(distribution, ModelParallel):
        return None
    mesh = distribution.device_mesh
    if SEQUENCE not in mesh.axis_names:
        return None
    import jax

    return mesh if isinstance(states, jax.core.Tracer) else None


def spreads_weights() -> bool:
    """Return whether devices that see different rows also share the weights."""
    distribution = keras.distribution.distribution()
    return isinstance(distribution, ModelParallel) and distribution.spreads_weights


def whole_weight(value, layout: keras.distribution.TensorLayout):
    """Gather a weight from the devices that see different rows, in a compiled step.

    Its gradient is summed over them and cut again at once, so that neither is kept whole.

    Args:
        value: the weight, or a copy in another dtype.
        layout: `TensorLayout` of the weight.
    """
    if FSDP not in layout.axes:
        return value
    import jax
    from jax.sharding import PartitionSpec

    cut = PartitionSpec(*layout.axes)
    whole = PartitionSpec(*(None if axis == FSDP else axis for axis in layout.axes))
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.floating):
        return _constrained(value, whole)

    @jax.custom_vjp
    def gather(value):
        return _constrained(value, whole)

    gather.defvjp(
        lambda value: (_constrained(value, whole), None),
        lambda _, gradient: (_constrained(gradient, cut),),
    )
    return gather(value)


def _constrained(value, spec):
    import jax

    mesh = keras.distribution.distribution().device_mesh.backend_mesh
    return jax.lax.with_sharding_constraint(value, jax.sharding.NamedSharding(mesh, spec))


def on_each_device(function: Callable, rows: tuple, shares: Mapping, sharing: Any = None):
    """Sum the results of `function(first, rows, shares)` over the devices that split weights.

    Args:
        function: function that is called once on each device of a mesh if a step is being compiled,
            with the shares of the device; otherwise once, with all shares. `first` is the number of
            the first of these shares.
        rows: tuple of tensors `(rows, ...)`.
        shares: nested tensors `(number, ...)`, which the axis `"model"` splits.
        sharing: `Sharing` of the processes on PyTorch that hold other shares each, or None.

    Returns:
        A tensor `(rows, ...)`.
    """
    if sharing is not None:
        held = next(iter(shares.values()))[0].shape[0]
        rows = tuple(map(sharing.enter, rows))
        return sharing.sum(function(sharing.index * held, rows, shares))
    distribution = keras.distribution.distribution()
    if devices_of_model() == 1:
        return function(0, rows, shares)
    import jax
    from jax.sharding import PartitionSpec

    if not isinstance(rows[0], jax.core.Tracer):
        return function(0, rows, shares)
    mesh = distribution.device_mesh
    of_devices = _row_axes(mesh)
    even = rows[0].shape[0] % math.prod(_size(mesh, axis) for axis in of_devices) == 0
    of_rows = PartitionSpec(of_devices if even else None)

    def share(rows, shares):
        held = jax.tree.leaves(shares)[0].shape[0]
        return jax.lax.psum(function(jax.lax.axis_index(MODEL) * held, rows, shares), MODEL)

    return jax.shard_map(
        share,
        mesh=mesh.backend_mesh,
        in_specs=(of_rows, PartitionSpec(MODEL)),
        out_specs=of_rows,
        check_vma=False,
    )(rows, shares)


def gathered(tensor):
    """Return a tensor that one process can read. All processes must call this together.

    The parts on devices of other processes are fetched.
    """
    if hasattr(tensor, "full_tensor"):  # of PyTorch
        return tensor.full_tensor()
    if getattr(tensor, "is_fully_addressable", True) or tensor.is_fully_replicated:
        return tensor
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tensor, tiled=True)


def _check(config: TransformerConfig, model: int, vocabulary: bool) -> None:
    sizes = cut_sizes(config)
    sizes |= {"vocabulary_size": config.vocabulary_size} if vocabulary else {}
    common = math.gcd(*sizes.values())
    for name, number in sizes.items():
        if number % model == 0:
            continue
        advice = (
            " Or use keras_transformer.distribution.ModelParallel, which then cuts the embedding "
            "along its width."
        )
        raise ValueError(
            f"The mesh cuts the weights into model={model} parts, which does not divide "
            f"{name}={number} of the model. Its sizes can be cut into "
            f"{', '.join(map(str, divisors(common)))} part{'' if common == 1 else 's'}."
            f"{advice if name == 'vocabulary_size' else ''}"
        )


def _check_tokens(config: TransformerConfig, model: int, sequence: int) -> None:
    if sequence == 1:
        return
    blocks = [block for each in sides(config) for block in each.side.every_block]
    heads = {block.mixer.num_heads for block in blocks if block.mixer.attends}
    for number in sorted(heads):
        if number % (model * sequence):
            raise ValueError(
                f"Devices that share the tokens of a row divide its heads while they attend: "
                f"model={model} times sequence={sequence} does not divide num_heads={number}. "
                f"Choose sizes whose product is one of {', '.join(map(str, divisors(number)))}."
            )


def _require_axis(mesh: keras.distribution.DeviceMesh, axis: str) -> None:
    if axis not in mesh.axis_names:
        raise ValueError(
            f"The mesh has the axes {list(mesh.axis_names)}, but the layout needs one named "
            f"{axis!r}. `keras_transformer.distribution.device_mesh` makes such a mesh."
        )


def _row_axes(mesh: keras.distribution.DeviceMesh) -> tuple[str, ...]:
    """Return the axes whose devices see different rows of a batch."""
    return tuple(axis for axis in (BATCH, FSDP) if axis in mesh.axis_names)


def _size(mesh: keras.distribution.DeviceMesh, axis: str) -> int:
    return dict(zip(mesh.axis_names, mesh.shape, strict=True)).get(axis, 1)
