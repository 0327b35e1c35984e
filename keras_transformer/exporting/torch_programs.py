"""Graphs as programs of PyTorch, from which ONNX, OpenVINO and `.pt2` are made."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from keras_transformer.exporting.graph import Graph

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
            return graph.function(*tensors)

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


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what the libraries say of their own insides."""
    named = [logging.getLogger(name) for name in ("torch", "torch.onnx", "nncf")]
    levels = [logger.level for logger in named]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in named:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(named, levels, strict=True):
                logger.setLevel(level)
