"""Each format takes each kind of model, or says why not: what docs/export.md has as a table."""

import functools

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.exporting import FORMATS
from tests.exporting.kinds import GRAPHS, KINDS, REFUSED, WRITERS, arrays_of, made
from tests.exporting.runtimes import reference

PROMPTS = [[5, 9, 2, 17], [3], [8, 8, 30, 4, 11, 25, 6]]


# OpenVINO reads the graphs of ONNX: one with a loop and one with numbers say that it does.
OF_OPENVINO = ("classifier", "decoder")
# Kinds whose graph differs only by what is read before the blocks.
ALIKE = ("embedder", "image", "audio")


def formats_and_kinds():
    """Each format with each kind, on the backend that converts."""
    for name in GRAPHS:
        for kind in KINDS:
            marks = [pytest.mark.one_backend(FORMATS[name].backend or "torch")]
            alike = kind in ALIKE and (name, kind) != ("onnx", "image")
            if alike or (name == "openvino" and kind not in OF_OPENVINO):
                marks.append(pytest.mark.thorough)
            yield pytest.param(name, kind, marks=marks)


@pytest.fixture(scope="module")
def loop():
    return reference()


@pytest.fixture(scope="module")
def task_of():
    """The model of a kind, the same for each format."""
    return functools.cache(made)


@pytest.mark.parametrize(("format", "kind"), [*formats_and_kinds()])
def test_graphs(format, kind, loop, task_of, tmp_path):
    """Numbers as here, or token for token, of numbers of rows and lengths that were not traced."""
    task, folder = task_of(kind), tmp_path / "out"
    kt.export(task, folder, format=format)
    if kind in WRITERS:
        ours = task.generate(PROMPTS, max_new_tokens=9, sampler="greedy")
        assert loop.Model(folder).greedy(PROMPTS, 9) == [list(row) for row in ours]
        return
    run = loop.RUNTIMES[format](folder)
    for batch, length in ((1, 1), (3, 11)):
        given, own = arrays_of(task, batch, length)
        ours = keras.ops.convert_to_numpy(task(own))
        (found,) = run("model", given).values()
        real = own["padding_mask"] if kind == "encoder" else slice(None)
        np.testing.assert_allclose(found[real], ours[real], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.one_backend
def test_ctranslate2(kind, task_of, tmp_path):
    """Check that it loads; test_ctranslate2.py compares its outputs."""
    import ctranslate2

    task = task_of(kind)
    if refused := REFUSED.get(("ctranslate2", kind)):
        with pytest.raises(ValueError, match=refused):
            kt.export(task, tmp_path / "out", format="ctranslate2")
        return
    kt.export(task, tmp_path / "out", format="ctranslate2")
    engine = {"decoder": ctranslate2.Generator, "seq2seq": ctranslate2.Translator}
    engine.get(kind, ctranslate2.Encoder)(str(tmp_path / "out"))
