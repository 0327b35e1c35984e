"""PyTorch: a whole training step, forward, backward and optimizer, as one compiled program."""

from collections.abc import Callable

import keras
import torch
import torch.utils._pytree as pytree
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from keras_transformer.kernels.programs import PROGRAMS, Compiled


class TracedStep:
    """A step of training of a Keras model, compiled for each shape of its data.

    The step is called once for a shape, with tensors that have no numbers, and what it does with
    them is written down: Keras's layers, the gradients of PyTorch's autograd, the optimizer and the
    metrics. That is one graph without any Python in it, which changes the variables in place, and
    which TorchInductor compiles. Where `torch.compile` reads the Python of layers instead, it takes
    minutes for a model, and gives up in between.

    Args:
        step: function of a batch to a dict of logs, such as `model.train_step`.
        variables: function to the Keras variables that the step reads or changes.
        phase: function to a hashable Python value on which the step depends, such as whether this
            batch ends an accumulation of gradients. It is asked before each step.
        compile: function of a graph to a callable. Defaults to TorchInductor's.
    """

    def __init__(
        self,
        step: Callable,
        variables: Callable[[], list],
        phase: Callable = lambda: None,
        compile: Callable | None = None,
    ):
        self._step = step
        self._variables = variables
        self._phase = phase
        self._compile = compile or _by_inductor

    def __call__(self, data):
        variables = self._variables()
        leaves, structure = pytree.tree_flatten(data)
        leaves = [None if x is None else keras.ops.convert_to_tensor(x) for x in leaves]
        key = (
            structure,
            tuple(None if x is None else (x.shape, x.dtype) for x in leaves),
            tuple((id(v), v.trainable, v.shape, v.dtype) for v in variables),
            self._phase(),
        )
        program = PROGRAMS.get(self, key, lambda: self._trace(variables, leaves, structure))
        with torch.no_grad():
            return program([v.value for v in variables], leaves)

    def _trace(self, variables: list, leaves: list, structure) -> Compiled:
        found = []
        present = [x for x in leaves if x is not None]

        def flat(*tensors):
            values, given = tensors[: len(variables)], iter(tensors[len(variables) :])
            batch = [None if x is None else next(given) for x in leaves]
            mapping = list(zip(variables, values, strict=True))
            with keras.StatelessScope(state_mapping=mapping) as scope:
                logs = self._step(pytree.tree_unflatten(batch, structure))
                with torch.no_grad():
                    for variable, value in mapping:
                        new = scope.get_current_value(variable)
                        if new is not value:
                            value.copy_(new)
            outputs, result = pytree.tree_flatten(logs)
            found.append(result)
            return [keras.ops.convert_to_tensor(x).detach() for x in outputs]

        given = [*(v.value for v in variables), *present]
        with tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True))):
            graph = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        run, result = self._compile(graph, given), found[-1]

        def program(values: list, leaves: list):
            outputs = run(*values, *(x for x in leaves if x is not None))
            return pytree.tree_unflatten(list(outputs), result)

        return Compiled(program, compiled=True)


def _by_inductor(graph: torch.fx.GraphModule, given: list) -> Callable:
    return torch.compile(graph, fullgraph=True, dynamic=False)
