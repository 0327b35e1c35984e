"""Training, evaluation or prediction step on PyTorch as one graph, compiled if that pays."""

import dataclasses
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import keras
import torch
import torch.utils._pytree as pytree
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import DataDependentOutputException

from keras_transformer.kernels.process import release_memory
from keras_transformer.kernels.programs import PROGRAMS, TRACING, Compiled
from keras_transformer.kernels.torch_tracing.recorder import record_operations
from keras_transformer.kernels.values import Questions, host_array

_aten = torch.ops.aten
_MADE_FROM_NOTHING = (
    _aten.arange.default,
    _aten.arange.start,
    _aten.arange.start_step,
    _aten.full.default,
    _aten.ones.default,
    _aten.scalar_tensor.default,
    _aten.zeros.default,
)
# Number of steps of a shape that run untraced first, by whether graphs are compiled.
PLAIN_STEPS = {True: 2, False: 10}
# Number of steps that a graph runs before it is compiled. Tracing a shape takes seconds, and
# Inductor up to a minute: on a GPU that soon pays if products take most of a step. Smaller steps
# are mostly Python overhead, which the uncompiled graph avoids too, and a short fit would end
# before the compilation pays.
STEPS_BEFORE = 10
STEPS_BEFORE_ON_GPU = {True: 0, False: 100}  # by whether the step is large
LARGE_STEP = 1e12  # floating point operations of its products


_MOST_SHAPES = 256  # the most shapes that are remembered


@dataclasses.dataclass
class _Seen:
    """Number of batches of the same shapes, and the questions that their step asks."""

    came: int = 0
    asked: list = dataclasses.field(default_factory=list)


class TracedStep:
    """Step of a Keras model, with one graph for each shape of its data.

    The step is called once for a shape, with tensors without values, and all operations on them are
    recorded: Keras's layers, the gradients of PyTorch's autograd, the optimizer and the metrics.
    The result is one graph without any Python, which changes the variables in place.
    `torch.compile` of the step itself would analyse the Python code of its layers instead: that
    took 192 seconds for two layers, in 15 graphs.

    The first steps of a shape run untraced. Then its graph runs uncompiled, which only saves the
    Python overhead, and it is compiled after a few more batches of its shape.

    Args:
        step: function of a batch to outputs, such as `model.train_step`.
        plain: the same function, for steps that are not traced.
        variables: function that returns the Keras variables that the step reads or changes.
        phase: function, called before each step, that returns a hashable Python value on which the
            step depends, such as whether this batch ends an accumulation of gradients.
        compile: function of a graph to a faster callable. None runs graphs uncompiled.
    """

    def __init__(
        self,
        step: Callable,
        plain: Callable,
        variables: Callable[[], list],
        phase: Callable[[], Any] = lambda: None,
        compile: Callable | None = None,
    ):
        self._step = step
        self._plain = plain
        self._variables = variables
        self._phase = phase
        self._compile = compile
        # Number and questions of batches, by their shapes. The latest shapes are at the end.
        self._seen: OrderedDict[tuple, _Seen] = OrderedDict()
        self._plain_always = False

    def ready(self, data) -> Callable[[], Any]:
        """Return the step of a batch, to be called once; tracing and compiling happen here.

        Warns if the step cannot be traced: it and all later ones then run untraced.
        """
        variables = self._variables()
        leaves, structure = pytree.tree_flatten(data)
        arrays = [None if x is None else host_array(x) for x in leaves]
        leaves = [None if x is None else keras.ops.convert_to_tensor(x) for x in leaves]
        shapes = (
            structure,
            tuple(None if x is None else (x.shape, x.dtype) for x in leaves),
            hash(tuple((id(v), v.trainable, v.shape, v.dtype) for v in variables)),
            self._phase(),
        )
        seen = self._note(shapes)
        first = seen.came <= PLAIN_STEPS[self._compile is not None]
        program = None
        if not first:
            program = self._program(shapes, seen.asked, arrays, variables, leaves, structure)
        if program is None:
            return lambda: self._plain(pytree.tree_unflatten(leaves, structure))
        given = [*(v.value for v in variables), *(x for x in leaves if x is not None)]
        program.prepare(given)

        def run():
            with torch.no_grad():
                return program(given)

        return run

    def _note(self, shapes: tuple) -> "_Seen":
        """Count a batch of these shapes, and forget the shapes that came longest ago."""
        seen = self._seen.setdefault(shapes, _Seen())
        self._seen.move_to_end(shapes)
        if len(self._seen) > _MOST_SHAPES:
            self._seen.popitem(last=False)
        seen.came += 1
        return seen

    def _program(self, shapes, asked, arrays, variables, leaves, structure) -> "_Graph | None":
        """Return the graph for a batch; None if the step cannot be traced."""
        if self._plain_always:
            return None
        questions = Questions(arrays)
        program = PROGRAMS.peek(self, (shapes, questions.answers(asked)))
        if program is None:
            given = [*(v.value for v in variables), *(x for x in leaves if x is not None)]
            described = (variables, leaves, structure, given, questions)
            try:
                with TRACING:
                    graph, result = written_down(self._step, *described)
            except Exception as error:  # a user's step may raise any error
                self._plain_always = True
                warnings.warn(
                    f"Steps run uncompiled, since they cannot be traced as one graph: {error}. "
                    "`compile(jit_compile=False)` turns tracing off.",
                    stacklevel=2,
                )
                return None
            program = _Graph(graph, result, self._compile, _steps_before(graph, given))
            asked += [each for each in questions.asked if each not in asked]
        return PROGRAMS.get(self, (shapes, questions.answers(asked)), lambda: program)


def written_down(
    step: Callable,
    variables: list,
    leaves: list,
    structure,
    given: list,
    questions: Questions | None = None,
) -> tuple[torch.fx.GraphModule, Any]:
    """Trace a step as a graph that changes the variables in place.

    Args:
        step: function of a batch to outputs.
        variables: Keras variables that it reads or changes.
        leaves: tensors of the batch; a missing one is None.
        structure: nesting of the leaves.
        given: tensors, the values of the variables and of the leaves that are not None. They may
            be fake, on any device.
        questions: records the questions of the step about the arrays of the batch.

    Returns:
        The graph, and the structure of the step's outputs.

    Raises:
        ValueError: if what the step does depends on the values of its tensors.
    """
    found, questions = [], questions or Questions([None] * len(leaves))

    def flat(*tensors):
        values, rest = tensors[: len(variables)], iter(tensors[len(variables) :])
        batch = [None if x is None else next(rest) for x in leaves]
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope, questions.about(batch):
            outputs = step(pytree.tree_unflatten(batch, structure))
            with torch.no_grad():
                for variable, value in mapping:
                    new = scope.get_current_value(variable)
                    if new is not value:
                        value.copy_(new)
        outputs, result = pytree.tree_flatten(outputs)
        found.append(result)
        return [keras.ops.convert_to_tensor(x).detach() for x in outputs]

    try:
        graph = record_operations(flat, given, detect_fake_mode(given))
    except DataDependentOutputException as error:
        raise ValueError(
            "a step must do the same whatever the numbers in its tensors are, but this one reads "
            "them"
        ) from error
    return without_copies_to_device(graph), found[-1]


def without_copies_to_device(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Create tensors that do not depend on the inputs on the device, instead of copying them.

    Keras creates ranges and numbers on the host, which each step would copy to the device.
    """
    for node in list(graph.graph.nodes):
        copies = [user for user in node.users if user.target is _aten._to_copy.default]
        devices = {user.kwargs.get("device") for user in copies} - {None}
        if len(devices) != 1 or len(copies) < len(node.users) or _device_of(node) != "cpu":
            continue
        (device,) = devices
        if device.type == "cpu":
            continue
        if node.target in _MADE_FROM_NOTHING:
            node.update_kwarg("device", device)
        elif node.target is _aten.lift_fresh_copy.default and node.args[0].op == "get_attr":
            constant = getattr(graph, node.args[0].target)
            name = f"{node.args[0].target}_on_device_{len(graph._buffers)}"
            graph.register_buffer(name, constant.to(device), persistent=False)
            with graph.graph.inserting_before(node):
                node.replace_input_with(node.args[0], graph.graph.get_attr(name))
        else:
            continue
        node.meta["val"] = copies[0].meta["val"]
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _device_of(node: torch.fx.Node) -> str | None:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else None


class _Graph(Compiled):
    """Graph of tensors to tensors, and its compiled form once it has run a few times."""

    def __init__(self, graph: torch.fx.GraphModule, result, compile: Callable | None, before: int):
        super().__init__(graph.forward, compiled=True)
        self._graph: torch.fx.GraphModule | None = graph
        self._result = result
        self._compile = compile
        self._steps, self._before = 0, before

    def prepare(self, given: list) -> None:
        """Compile the graph if it has run often enough. This may take long, and be interrupted."""
        if self._compile is None or self._steps < self._before or self._graph is None:
            return
        # Gradients are computed inside the graph, so PyTorch need not record any, although weights
        # require gradients.
        with TRACING, torch.no_grad():
            self._function = self._compile(self._graph, given)
        self._graph = None
        release_memory()

    def __call__(self, given: list):
        self._steps += 1
        return pytree.tree_unflatten(list(self._function(*given)), self._result)


def _steps_before(graph: torch.fx.GraphModule, given: list) -> int:
    """Return the number of steps that a graph runs before it is compiled."""
    if all(x.device.type == "cpu" for x in given):
        return STEPS_BEFORE
    return STEPS_BEFORE_ON_GPU[flops_of(graph) >= LARGE_STEP]


def flops_of(graph: torch.fx.GraphModule) -> int:
    """Count the floating point operations of the products in a graph, except in attention."""
    total = 0
    for node in graph.graph.nodes:
        if node.target in (_aten.mm.default, _aten.addmm.default, _aten.bmm.default):
            rows = node.args[-2].meta["val"]
            total += 2 * rows.numel() * node.meta["val"].shape[-1]
    return int(total)
