"""Graphs as programs of PyTorch, from which ONNX, OpenVINO and `.pt2` are made."""

from collections.abc import Iterator
from typing import Any

from keras_transformer.exporting.graph import Graph
from keras_transformer.exporting.quiet import quietly

# Sizes of the example, no two alike and none 0 or 1, so that nothing is taken for a constant.
_SIZES = {"batch": 2, "length": 5, "past": 3, "total": 8, "source": 7}


def programs_of(graphs: list[Graph]) -> Iterator[tuple[Graph, Any]]:
    """Each graph and the `torch.export.ExportedProgram` of it, for any sizes of its axes."""
    for graph in graphs:
        yield graph, _program(graph)


def _program(graph: Graph):
    import torch
    from torch.fx.experimental import _config

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = graph.model

        def forward(self, *tensors):
            return dict(zip(graph.outputs, graph.function(*tensors), strict=True))

    example = tuple(
        torch.ones(array.shape(_SIZES), dtype=getattr(torch, array.dtype)) for array in graph.inputs
    )
    shapes = tuple(
        {i: torch.export.Dim.DYNAMIC for i, axis in enumerate(array.axes) if isinstance(axis, str)}
        for array in graph.inputs
    )
    # A size of 0 or 1, such as that of an empty cache, is no other case than any size.
    with torch.no_grad(), quietly(), _config.patch(backed_size_oblivious=True):
        return torch.export.export(Module().eval(), example, dynamic_shapes=(shapes,), strict=False)
