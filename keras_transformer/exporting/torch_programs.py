"""Graphs as PyTorch programs, from which ONNX, OpenVINO and `.pt2` files are made."""

from collections.abc import Iterator
from typing import Any

from keras_transformer.exporting.graph import Graph
from keras_transformer.exporting.quiet import quietly

# Example sizes: distinct, and not 0 or 1, so that PyTorch treats none of them as a constant.
_SIZES = {
    "batch": 2,
    "length": 5,
    "past": 3,
    "total": 8,
    "source": 7,
    "prompts": 4,
    "points": 6,
}


def programs_of(graphs: list[Graph]) -> Iterator[tuple[Graph, Any]]:
    """Yield each graph with its `torch.export.ExportedProgram`, whose named axes have any size."""
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
    # Make sizes 0 and 1 (such as the length of an empty cache) work like any other size.
    with torch.no_grad(), quietly(), _config.patch(backed_size_oblivious=True):
        return torch.export.export(Module().eval(), example, dynamic_shapes=(shapes,), strict=False)
