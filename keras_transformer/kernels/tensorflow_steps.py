"""Steps on TensorFlow: what is made before a trace, and how many of them XLA compiles.

TensorFlow never frees XLA programs, so their number in a process is limited: beyond it a slower
graph serves all shapes.
"""

import functools
from collections.abc import Callable

import keras

from keras_transformer.kernels.batches import shapes_of_batch
from keras_transformer.kernels.programs import PROGRAMS

# Assumed number of shapes if they are unknown: whole batches and the last one.
_UNKNOWN_SHAPES = 2
# Largest number of functions that a step keeps, one for each size, tens of megabytes each. Further
# sizes are computed operation by operation, which is slower.
MOST_SIZES = 30


def symbolic_build(model: keras.Model, build: Callable, iterator=None, data_batch=None) -> None:
    """Create the variables of optimizer and metrics on TensorFlow before a step is traced.

    A variable that is created during a trace has no value if the trace is stopped. `build` is
    Keras's `_maybe_symbolic_build`.
    """
    strategy = model._distribute_strategy
    if strategy is not None:
        # Keras 3.15 infers shapes from the mean of the replicas' batches, but boolean masks have no
        # mean. The batch of one replica serves as well. Read outside of an epoch, it does not count
        # as a pass over a dataset of few batches.
        if iterator is not None:
            data_batch = keras.tree.map_structure(
                lambda value: strategy.experimental_local_results(value)[0],
                next(iter(iterator._get_iterator())),
            )
        build(None, data_batch)
        return
    if iterator is not None:
        # The shapes are known, so no batch is taken from a generator.
        data_batch = keras.tree.map_structure(
            lambda spec: spec if hasattr(spec, "dtype") else None,  # an Optional, here None
            iterator._distributed_dataset.element_spec,
        )
    model._symbolic_build(data_batch=data_batch)


def behind_its_data(step: Callable) -> Callable:
    """Wrap a TensorFlow `step` so that no operation runs before its batch is available.

    Operations that need no data, such as counting the step and drawing random numbers, would else
    run while the batch is fetched, and take effect even if fetching fails or finds no more data.
    """
    import tensorflow as tf

    @functools.wraps(step)
    def whole(data):
        leaves = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]):
            return step(data)

    return whole


class StepsOfSizes:
    """Function of steps that Keras makes anew for each size of the images, videos or series.

    The one that Keras makes is traced again with an open height once it meets a second one, and
    stems compute grids and positions from sizes that are known.

    Args:
        model: the model.
        name: attribute of the model that Keras sets to the function it makes.
        make: Keras's method that makes it.
        rank: inputs of at least this number of dimensions have known sizes, but for the rows.
    """

    def __init__(self, model: keras.Model, name: str, make: Callable, rank: int):
        self._model, self._name, self._make, self._rank = model, name, make, rank
        self._compiles = model.jit_compile
        self._functions: dict[tuple | None, Callable] = {}

    def __call__(self, data):
        """Run the next steps of an iterator, or `predict` a list of batches."""
        import tensorflow as tf

        if isinstance(data, (list, tuple)):
            return self._of(data)(data)
        if isinstance(data, tf.distribute.DistributedIterator):
            return self._of(())(data)
        outputs = None
        for _ in range(self._model.steps_per_execution):
            batch = next(data, None)
            if batch is None and outputs is None:
                raise StopIteration
            if batch is not None:
                outputs = self._of(batch)(iter([batch]))
        return outputs

    def _of(self, data) -> Callable:
        shapes = [array.shape for array in keras.tree.flatten(data) if hasattr(array, "shape")]
        key = tuple(tuple(shape[1:]) for shape in shapes if len(shape) >= self._rank)
        if key not in self._functions and len(self._functions) >= MOST_SIZES:
            key = None
        if key not in self._functions:
            model = self._model
            before = model.jit_compile, model.run_eagerly
            model.jit_compile, model.run_eagerly = self._compiles and key is not None, key is None
            try:
                self._make(force=True)
                self._functions[key] = getattr(model, self._name)
            finally:
                model.jit_compile, model.run_eagerly = before
                setattr(model, self._name, self)
        return self._functions[key]


def reserve(model: keras.Model, name: str, data, is_batch: bool) -> None:
    """Reserve programs for the coming shapes, or switch off XLA if the limit is reached."""
    if name not in model._functions_without_xla:
        shapes = {(name, shape) for shape in _shapes(data, is_batch)}
        new = shapes - model._shapes_of_xla
        if PROGRAMS.may_last(len(new) if shapes else _UNKNOWN_SHAPES):
            model._shapes_of_xla |= new
            return
        model._functions_without_xla |= {name}
        setattr(model, name, None)
    if getattr(model, name) is None:
        model.jit_compile = False
        try:
            getattr(model, f"make_{name}")()
        finally:
            model.jit_compile = True


def _shapes(data, is_batch: bool) -> set:
    """Return the shapes of the batches of `data`, an empty set if they are unknown."""
    if hasattr(data, "examples_of_shapes"):
        return {shapes_of_batch(batch) for batch in data.examples_of_shapes()}
    arrays = keras.tree.flatten(data)
    if arrays and all(hasattr(array, "shape") for array in arrays):
        # Arrays are split into batches of a size unknown here, and a last one.
        signature = shapes_of_batch(data)
        return {signature} if is_batch else {(signature, "whole"), (signature, "last")}
    return set()
