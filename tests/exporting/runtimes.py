"""Runtimes of exported graphs: arrays by name in and out, and the loop that decodes."""

import ast
import importlib.util
from pathlib import Path

from tests.environments import ROOT


def reference():
    """`examples/decode_exported.py`, which imports nothing of this package."""
    path = ROOT / "examples" / "decode_exported.py"
    nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names == {
        "ai_edge_litert.interpreter", "argparse", "functools", "json", "numpy", "onnxruntime",
        "openvino", "pathlib", "tokenizers",
    }  # fmt: skip
    spec = importlib.util.spec_from_file_location("decode_exported", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.RUNTIMES |= {"pt2": Pt2, "saved_model": SavedModel}
    return module


class Pt2:
    """Programs of PyTorch, which take arrays by place."""

    def __init__(self, folder):
        import torch

        programs = {path.stem: torch.export.load(path) for path in Path(folder).glob("*.pt2")}
        self.programs = {name: p.module(check_guards=False) for name, p in programs.items()}

    def __call__(self, graph, arrays):
        import torch

        outputs = self.programs[graph](*(torch.tensor(x) for x in arrays.values()))
        return {name: x.detach().numpy() for name, x in outputs.items()}


class SavedModel:
    """The signatures of a SavedModel."""

    def __init__(self, folder):
        import tensorflow as tf

        self.model = tf.saved_model.load(str(folder))

    def __call__(self, graph, arrays):
        import tensorflow as tf

        outputs = self.model.signatures[graph](**{n: tf.constant(x) for n, x in arrays.items()})
        return {name: x.numpy() for name, x in outputs.items()}
