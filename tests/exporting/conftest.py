"""Shared fixtures of export tests: work that PyTorch repeats for each graph is done once."""

import functools
import traceback
import types
import typing

import keras
import pytest


@pytest.fixture(scope="session", autouse=True)
def _quick_exports():
    """Read the table of ONNX's operators and the types of a saved program once; keep no stacks.

    They are a third of the time of a small export.
    """
    if keras.backend.backend() == "torch":
        from torch._export.serde import serialize
        from torch.onnx._internal.exporter import _registration
        from torch.utils._traceback import CapturedTraceback

        registry = _registration.ONNXRegistry
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))
        CapturedTraceback.summary = lambda self: traceback.StackSummary()
        known = {}

        def hints(cls, globalns):
            if cls not in known:
                known[cls] = typing.get_type_hints(cls, globalns=globalns)
            return known[cls]

        serialize.typing = types.SimpleNamespace(**vars(typing) | {"get_type_hints": hints})


@pytest.fixture(scope="module", autouse=True)
def _each_graph_once():
    """Trace a graph of a model once for all formats, and make its ONNX once for OpenVINO too.

    Models of a file that are exported twice are the same then, with the same weights.
    """
    if keras.backend.backend() != "torch":
        yield
        return
    import torch

    from keras_transformer.exporting import torch_programs

    programs, converted = {}, {}
    trace, convert = torch_programs._program, torch.onnx.export

    def traced(graph):
        key = id(graph.model), graph.name  # the program keeps the model
        if key not in programs:
            programs[key] = trace(graph)
        return programs[key]

    def onnx_of(program, **options):
        key = id(program), str(options)
        if key not in converted:
            converted[key] = convert(program, **options)
        return converted[key]

    torch_programs._program, torch.onnx.export = traced, onnx_of
    yield
    torch_programs._program, torch.onnx.export = trace, convert
