"""Models that are served in fewer bytes, or packed: answers are those of the task in that mode."""

import concurrent.futures

import keras
import pytest

import keras_transformer as kt
from keras_transformer.serving import make_api
from keras_transformer.serving.run import load_served
from tests.serving.conftest import ask, started
from tests.serving.test_api import writer

pytestmark = pytest.mark.each_backend
ON_TORCH = keras.backend.backend() == "torch"
PROMPTS = ["two dogs", "a man rides a bike .", "it is cold", "a"]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modes") / "writer"
    writer().save_to_preset(folder)
    return folder


def kernel_dtypes(task):
    """The dtype of the kernels."""
    kernels = [w for w in task.backbone.weights if w.path.endswith("query/kernel")]
    return {keras.backend.standardize_dtype(w.dtype) for w in kernels}


@pytest.mark.parametrize("mode", ["bfloat16", "int8", "float32-packed", "int8-packed"])
def test_texts_of_many_clients_are_those_of_the_task(preset, mode):
    if mode.endswith("packed") and not ON_TORCH:
        with pytest.raises(ValueError, match="packed weights are for PyTorch on a CPU"):
            load_served([str(preset)], mode)
        return
    served = load_served([str(preset)], mode)
    dtype, _, packed = mode.partition("-")
    task = served["writer"].task
    assert kernel_dtypes(task) == {dtype} and task.pack_weights == bool(packed)
    alone = kt.CausalLM.from_preset(preset, dtype="bfloat16" if dtype == "bfloat16" else "float32")
    if dtype == "int8":
        alone.quantize("int8")
    alone.compile(pack_weights=bool(packed))
    with started(make_api(served)) as port:

        def answer(prompt):
            asked = {"model": "writer", "prompt": prompt, "max_tokens": 12, "temperature": 0}
            status, _, given = ask(port, "/v1/completions", asked)
            assert status == 200
            return given["choices"][0]["text"]

        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            texts = list(pool.map(answer, PROMPTS))
    assert texts == [alone.generate(prompt, 12, sampler="greedy") for prompt in PROMPTS]


def test_a_mode_that_there_is_not(preset):
    with pytest.raises(ValueError, match="`mode` must be one of .*'int8'.*, received 'int7'"):
        load_served([str(preset)], "int7")
