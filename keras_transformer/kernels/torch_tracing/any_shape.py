"""Forward pass on PyTorch as a flat list of tensor operations, for batches of any size."""

import warnings
from collections import Counter
from collections.abc import Callable, Hashable

import keras
import torch
import torch.utils._pytree as pytree
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled
from keras_transformer.kernels.torch_tracing.simplify import (
    eliminate_common_subexpressions,
    use_fast_calls,
)
from keras_transformer.kernels.torch_tracing.step import without_copies_to_device
from keras_transformer.kernels.values import Questions, host_array

# Number of batches of a kind that run without a trace first: tracing takes as long as ten or twenty
# batches.
PLAIN_BATCHES = 3
# Maximum lists for the same kind of batch. More would mean that the function branches on each size.
_MOST_LISTS = 8


class AnyShape:
    """Function of a batch without its Python code, traced once with symbolic sizes.

    The operations of a small encoder take a GPU 1 ms and Keras's layers take 30 ms to call (MiniLM
    on an H200), so the device waits. The trace keeps only the PyTorch calls. Batches of texts have
    many sizes, and a trace takes a second, so the sizes stay symbolic, and the decisions that the
    function based on them are checked for each batch. If a decision would differ, the function is
    traced again.

    The first batches of a kind run without a trace. The function must not branch on the values in
    its tensors; otherwise a warning says so, and no batch is traced.

    Args:
        function: function of a batch to outputs, nested structures of tensors, without side
            effects.
        *models: the models whose weights it reads.
    """

    def __init__(self, function: Callable, *models: keras.Model):
        self._function = function
        self._models = models
        self._asked: dict[Hashable, list] = {}  # by kind of batch, the questions about its arrays
        self._came: Counter = Counter()  # number of batches by kind and answers
        self._plain_always = False

    def ready(self, batch) -> Callable:
        """Return the pass of a batch, to be called once; tracing happens here."""
        leaves, structure = pytree.tree_flatten(batch)
        arrays = [None if x is None else host_array(x) for x in leaves]
        leaves = [None if x is None else keras.ops.convert_to_tensor(x) for x in leaves]
        # Made contiguous, so that a list does not depend on memory order.
        leaves = [None if x is None else x.contiguous() for x in leaves]
        operations = self._list_of(leaves, structure, Questions(arrays))

        def run():
            with torch.no_grad():
                if operations is not None and operations.works is not False:
                    return self._outputs(operations, leaves, structure)
                return self._function(pytree.tree_unflatten(leaves, structure))

        return run

    def _outputs(self, operations: "OpenList", leaves: list, structure):
        """Run a list. If PyTorch raises an error in its first run, no batch is traced any more."""
        tensors = [x for x in leaves if x is not None]
        if operations.works:
            return operations(tensors)
        try:
            outputs = operations(tensors)
            operations.works = True
            return outputs
        except Exception as error:
            operations.works = False
            self._stay_plain(error)
            return self._function(pytree.tree_unflatten(leaves, structure))

    def _list_of(self, leaves: list, structure, questions: Questions) -> "OpenList | None":
        """Return the list of operations for a batch; None if it runs without a trace."""
        if self._plain_always:
            return None
        kind = (
            structure,
            # PyTorch takes a size of 1 as a constant, and never as a symbol.
            tuple(
                None if x is None else (tuple(n == 1 for n in x.shape), x.dtype, x.device)
                for x in leaves
            ),
            # New values in the same tensors need no new list. A list keeps the tensors alive, so
            # that no other tensor can get the address of one.
            hash(tuple(map(id, self._weights()))),
        )
        asked = self._asked.setdefault(kind, [])
        answers = questions.answers(asked)
        if PROGRAMS.peek(self, (kind, answers, 0)) is None:
            self._came[kind, answers] += 1
            if self._came[kind, answers] <= PLAIN_BATCHES:
                return None
        tensors = [x for x in leaves if x is not None]
        for number in range(_MOST_LISTS):
            operations = PROGRAMS.peek(self, (kind, answers, number))
            if operations is None:
                operations = self._made(leaves, structure, questions)
                if operations is None:
                    return None
                asked += [each for each in questions.asked if each not in asked]
                return PROGRAMS.put(self, (kind, questions.answers(asked), number), operations)
            if operations.fits(tensors):
                return PROGRAMS.put(self, (kind, answers, number), operations)
        return None

    def _weights(self) -> list[torch.Tensor]:
        return [weight._value for model in self._models for weight in model.weights]

    def _made(self, leaves: list, structure, questions) -> "OpenList | None":
        try:
            with TRACING:
                made = OpenList(self._function, leaves, structure, questions)
        except Exception as error:  # a user's function may raise any error
            self._stay_plain(error)
            return None
        made.weights = self._weights()
        return made

    def _stay_plain(self, error: Exception) -> None:
        self._plain_always = True
        warnings.warn(
            "Batches run layer by layer, since their pass cannot be traced as one list of "
            f"operations: {_said(error)}. `compile(jit_compile=False)` turns tracing off.",
            stacklevel=2,
        )


class OpenList(Compiled):
    """Operations of a function, and the sizes that they are valid for.

    Attributes:
        graph: the operations.
        works: bool, whether the list ran successfully; None before its first run.
        weights: list of the weight tensors that the function reads.
    """

    works: bool | None = None
    weights: list | None = None

    def __init__(self, function: Callable, leaves: list, structure, questions: Questions):
        found: list = []

        def flat(*tensors):
            rest = iter(tensors)
            batch = [None if x is None else next(rest) for x in leaves]
            with questions.about(batch):
                outputs = function(pytree.tree_unflatten(batch, structure))
            outputs, result = pytree.tree_flatten(outputs)
            found.append(result)
            return [keras.ops.convert_to_tensor(x).detach() for x in outputs]

        # Each size has its own symbol: otherwise a list traced with 16 texts of 16 tokens would fit
        # only batches with equal sizes.
        self._sizes = ShapeEnv(duck_shape=False)
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self._sizes)
        with torch.no_grad(), tracing(TracingContext(mode)):
            graph = make_fx(flat, tracing_mode="symbolic", _allow_non_fake_inputs=True)(
                *(x for x in leaves if x is not None)
            )
        given = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        self._condition = self._sizes.produce_guards_expression(given)
        graph = use_fast_calls(eliminate_common_subexpressions(without_copies_to_device(graph)))
        graph.recompile()
        self.graph, result = graph, found[-1]
        super().__init__(
            lambda tensors: pytree.tree_unflatten(graph.forward(*tensors), result), compiled=True
        )

    def fits(self, tensors: list) -> bool:
        """Return True if the function does the same with tensors of these sizes."""
        if self._condition is None:
            return True
        return bool(self._sizes.evaluate_guards_expression(self._condition, tensors))


def _said(error: Exception) -> str:
    if isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode)):
        return "what it does depends on the numbers in its tensors"
    return str(error)
