"""Compiled functions and loops of a model's weights, on each backend."""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from keras_transformer.programs import PROGRAMS, Program


class CompiledFunction:
    """A function that is compiled for each set of shapes, see `compile_function`.

    The programs are in `PROGRAMS`, which drops those that were not used for long, and all of them
    with this object.
    """

    def __init__(self, make: Callable[[], Program], models: Sequence[keras.Model], with_values):
        self._make = make
        self._models = models
        self._with_values = with_values

    def __call__(self, *args):
        weights = weights_of(self._models)
        shapes = tuple(
            None if x is None else (tuple(x.shape), x.dtype) for x in keras.tree.flatten(args)
        )
        # A trace keeps the variables that it was made with: others, as of LoRA, need a new one.
        key = (shapes, hash(tuple(map(id, weights))))
        program = PROGRAMS.get(self, key, self._make)
        if self._with_values:
            return program([variable.value for variable in weights], *args)
        return program(*args)


def compile_function(
    function: Callable, *models: keras.Model, donate: tuple[int, ...] = (), loops: bool = False
):
    """`function` compiled, with the present weights of `models` at each call.

    Args:
        function: takes and returns nested structures of tensors; reads weights of `models`, does
            not change them.
        *models: built Keras models.
        donate: places of arguments that the caller does not use again: their memory is reused for
            the results where the backend can (JAX).
        loops: bool, whether most of its time is in a loop of steps: then TensorFlow gives it to
            XLA, for as long as there is room for programs that can never be given back.

    Returns:
        A callable of the same signature. On PyTorch it runs as it is, without gradients.

    Raises:
        RuntimeError: on a backend that is none of the three.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        def make():
            # Of a function of its own: dropped with it is all that JAX keeps of it.
            def pure(values, *args):
                mapping = list(zip(weights_of(models), values, strict=True))
                with keras.StatelessScope(state_mapping=mapping):
                    return function(*args)

            return Program(jax.jit(pure, donate_argnums=tuple(1 + place for place in donate)))

        return CompiledFunction(make, models, with_values=True)
    if backend == "tensorflow":
        import tensorflow as tf

        def make():
            # TensorFlow never gives back a program of XLA; a graph, it does.
            lasting = loops and PROGRAMS.may_last()
            traced = tf.function(
                lambda *args: function(*args), jit_compile=lasting or None, autograph=False
            )
            return Program(traced, lasting=lasting)

        return CompiledFunction(make, models, with_values=False)
    if backend == "torch":
        import torch

        return torch.inference_mode()(function)
    raise RuntimeError(
        f"Generation runs on the backends jax, tensorflow and torch, not on {backend!r}. Set "
        "KERAS_BACKEND to one of them."
    )


def compile_loop(
    condition: Callable, body: Callable, then: Callable, *models: keras.Model, pack: bool = False
):
    """`while condition(state, *args): state = body(state, *args)`, compiled.

    On JAX and TensorFlow the loop is one program. On PyTorch the body is traced once for each
    shape into a flat list of operations (see `torch_graph`), and Python runs the loop.

    Args:
        condition: to a bool scalar tensor.
        body: to the next state, of the same structure and shapes.
        then: what is returned of the last state and `*args`.
        *models: built Keras models.
        pack: PyTorch on a CPU: keep a second copy of the weights in the order that the products
            read them in. Faster, and takes the memory of the weights once more.

    Returns:
        A callable of `(state, *args)`. The state given is not to be used again.
    """
    if keras.backend.backend() == "torch":
        import torch

        from keras_transformer.generation.torch_graph import TracedFunction

        step = TracedFunction(body, *models, pack=pack)

        @torch.inference_mode()
        def run(state, *args):
            weights = step.weights_key()
            while bool(condition(state, *args)):
                state = step(weights, state, *args)
            return then(state, *args)

        return run

    def loop(state, *args):
        shapes = [x.shape for x in keras.tree.flatten(state)]

        def narrow(state):
            # XLA copies the whole cache of a single row several times in each step, if the axis of
            # the rows is carried through the loop.
            return [
                ops.reshape(x, shape[1:]) if _of_one_row(shape) else x
                for x, shape in zip(keras.tree.flatten(state), shapes, strict=True)
            ]

        def widen(carried):
            tensors = [ops.reshape(x, shape) for x, shape in zip(carried, shapes, strict=True)]
            return keras.tree.pack_sequence_as(state, tensors)

        last = ops.while_loop(
            lambda *carried: condition(widen(carried), *args),
            lambda *carried: narrow(body(widen(carried), *args)),
            narrow(state),
        )
        return then(widen(last), *args)

    return compile_function(loop, *models, donate=(0,), loops=True)


def to_tensor(array):
    """A NumPy array as a tensor. On JAX `ops.convert_to_tensor` compiles a program for each shape.

    The array is not to be changed as long as the tensor is used.
    """
    if keras.backend.backend() == "jax":
        import jax

        return jax.device_put(array)
    return ops.convert_to_tensor(array)


def weights_of(models: Sequence[keras.Model]) -> list:
    """The weights of all the models."""
    return [variable for model in models for variable in model.weights]


def _of_one_row(shape) -> bool:
    return len(shape) == 4 and shape[0] == 1
