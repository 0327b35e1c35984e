"""A program: what a training step and a pass of `predict` do on a pretended device of PyTorch.

The device has no memory and computes nothing: its tensors are fake. But PyTorch takes it for one of
its own, so that a tensor which is made on the host and meets one of the device is an error, as on a
GPU, and so is a number that the host asks for. Prints JSON: for each kind the operations of a step,
and how many of them copy from the host; `predict:` before a kind asks for its pass.
"""

import json
import sys
import types

import keras
import numpy as np
import torch
import torch._subclasses.fake_tensor
import torch.fx.experimental.proxy_tensor
import torch.utils._pytree as pytree
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from keras_transformer.generation import (
    BeamSearch,
    Contrastive,
    Engine,
    Greedy,
    Random,
    Settings,
    Speculative,
)
from keras_transformer.generation.engine import Decoding
from keras_transformer.generation.program import Program
from keras_transformer.kernels.torch_steps import variables_of
from keras_transformer.kernels.torch_tracing.any_shape import OpenList
from keras_transformer.kernels.torch_tracing.simplify import eliminate_common_subexpressions
from keras_transformer.kernels.torch_tracing.step import without_copies_to_device, written_down
from keras_transformer.kernels.values import Questions
from keras_transformer.training import FineTuningAdamW
from tests.generation.common import END, PAD, engine_inputs, make_backbone, make_prompts
from tests.training.kinds_of_steps import KINDS

DEVICE = "pretend:0"
DECODING = {
    "greedy": ("decoder", Greedy()),
    "rotary": ("decoder", Greedy(), {"position": "rotary", "num_key_value_heads": 2}),
    "random": ("decoder", Random(temperature=2.0, top_p=0.9)),
    "beams": ("seq2seq", BeamSearch(3)),
    "contrastive": ("decoder", Contrastive()),
    "speculative": ("decoder", Speculative(num_draft_tokens=2)),
}
_accelerator = torch._C._acc


class Hooks(_accelerator.PrivateUse1Hooks):
    def is_available(self):
        return True

    def has_primary_context(self, device):
        return True

    def is_built(self):
        return True


class Guard(_accelerator.DeviceGuard):
    def type_(self):
        return torch._C._autograd.DeviceType.PrivateUse1


def pretend() -> torch.library.Library:
    """Make the device known. What is returned keeps its operations."""
    torch.utils.rename_privateuse1_backend("pretend")
    _accelerator.register_python_privateuseone_hook(Hooks())
    _accelerator.register_python_privateuseone_device_guard(Guard())
    module = types.ModuleType("torch.pretend")
    module.is_available = lambda: True
    module.current_device = lambda: 0
    module.device_count = lambda: 1
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    torch._register_device_module("pretend", module)
    library = torch.library.Library("aten", "IMPL")

    def empty(size, *_, dtype=None, **__):
        return _accelerator.create_empty_tensor(list(size), dtype or torch.float32)

    for name in ("empty_strided", "empty.memory_format"):
        library.impl(name, empty, "PrivateUse1")
    library.impl("_copy_from", lambda source, target, non_blocking=False: target, "PrivateUse1")
    # Else PyTorch computes with constants of one number.
    for part in (torch._subclasses.fake_tensor, torch.fx.experimental.proxy_tensor):
        part.CONSTANT_NUMEL_LIMIT = 0
    return library


def batch_of(task, data, options):
    """A batch as `fit` gives it to the step."""
    batches = []

    def take(batch):
        batches.append(batch)
        raise StopIteration

    task.train_step = take
    try:
        task.fit(*data, batch_size=4, verbose=0, shuffle=False, **options)
    except StopIteration:
        del task.train_step
        task.train_function = None
    return batches[0]


def step_of(kind: str) -> dict[str, int]:
    make, data, options = KINDS[kind]
    task = make()
    task.compile(FineTuningAdamW(1e-3), task.loss, jit_compile=False)
    options = {name: value for name, value in options.items() if name != "steps"}
    leaves, structure = pytree.tree_flatten(batch_of(task, data, options))
    variables = variables_of(task, "train")
    with FakeTensorMode(allow_non_fake_inputs=True), keras.device(DEVICE):
        values = [
            torch.empty(tuple(v.shape), dtype=v._value.dtype, device=DEVICE).requires_grad_(
                v._value.requires_grad
            )
            for v in variables
        ]
        arrays = [torch.as_tensor(np.asarray(x)) for x in leaves if x is not None]
        given = [torch.empty(tuple(x.shape), dtype=x.dtype, device=DEVICE) for x in arrays]
    with keras.device(DEVICE):
        graph, _ = written_down(task.train_step, variables, leaves, structure, [*values, *given])
    return counted(graph)


def pass_of(kind: str) -> dict[str, int]:
    """Return the pass of `predict` for a batch, with symbolic sizes."""
    make, data, options = KINDS[kind]
    task = make()
    options = {name: value for name, value in options.items() if name != "steps"}
    x = keras.utils.unpack_x_y_sample_weight(batch_of(task, data, options))[0]
    leaves, structure = pytree.tree_flatten(x)
    leaves = [np.asarray(each) for each in leaves]
    with keras.device(DEVICE):
        values = [(v, torch.empty_like(v._value, device=DEVICE)) for v in task.variables]
        given = [torch.empty_like(torch.as_tensor(each), device=DEVICE) for each in leaves]

        def predict(x):
            with keras.StatelessScope(state_mapping=values):
                return task.predict_step((x,))

        return counted(OpenList(predict, given, structure, Questions(leaves)).graph)


def counted(graph) -> dict[str, int]:
    calls = [node for node in graph.graph.nodes if node.op in ("call_function", "call_method")]
    return {"operations": len(calls), "copies": sum(map(is_copy, calls))}


def decoding_step_of(kind: str, sampler, config: dict | None = None) -> dict[str, int]:
    """A decoding step with a cache, as it is captured."""
    backbone = make_backbone(kind, **(config or {}))
    engine, settings = Engine(backbone), Settings(sampler, None, (END,), PAD)
    inputs = engine_inputs(backbone, make_prompts([3, 5]))

    def draw(samples, width):
        return np.zeros((len(samples), width), "float32")

    batch = engine.prefill(inputs, settings, np.full((2,), 20, "int32"), draw)
    decoding = Decoding(Program(backbone, *sampler.models), settings)
    leaves, structure = pytree.tree_flatten((batch.state, engine._decode_inputs(batch, batch.size)))
    variables = [v for model in decoding.program.models for v in model.weights]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        values, given = (
            [
                x if x is None else torch.empty(tuple(x.shape), dtype=x.dtype, device=DEVICE)
                for x in each
            ]
            for each in ([v.value for v in variables], leaves)
        )

    def step(*tensors):
        values, given = tensors[: len(variables)], tensors[len(variables) :]
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return pytree.tree_leaves(decoding.step(*pytree.tree_unflatten(given, structure)))

    with keras.device(DEVICE), torch.inference_mode(), tracing(TracingContext(mode)):
        graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*values, *given)
    graph = eliminate_common_subexpressions(without_copies_to_device(graph))
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    return {"operations": len(calls), "copies": sum(map(is_copy, calls))}


def is_copy(node) -> bool:
    """Whether a node takes a tensor of the host and gives one of the device."""
    on_host = [device(x) == "cpu" for x in node.all_input_nodes]
    return any(on_host) and device(node) == "pretend"


def device(node) -> str | None:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else None


if __name__ == "__main__":
    library = pretend()
    if sys.argv[1:] == ["--decode"]:
        found = {name: decoding_step_of(*case) for name, case in DECODING.items()}
    else:
        of = {False: step_of, True: lambda kind: pass_of(kind.removeprefix("predict:"))}
        found = {kind: of["predict:" in kind](kind) for kind in sys.argv[1:]}
    print(json.dumps(found))
