"""GGUF files, against the Transformers library's own reading of them."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import resolve_preset
from keras_transformer.checkpoints.gguf import GGUFCheckpoint
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from tests.checkpoints import families

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
gguf_files = pytest.importorskip("tests.checkpoints.gguf_files")


def logits_of(model, ids, mask):
    with torch.no_grad():
        return model(
            input_ids=torch.tensor(ids).long(), attention_mask=torch.tensor(mask).long()
        ).logits.numpy()


def assert_same_logits(path, reference):
    ids, mask = families.batch(words=59)
    lm = kt.CausalLM.from_preset(path)
    found = to_numpy(lm.predict({"token_ids": ids, "padding_mask": mask}, verbose=0))
    assert np.abs(found - logits_of(reference, ids, mask))[mask].max() <= 1e-4
    return lm


def read_by_transformers(path, like):
    """A model with a file's tensors as Transformers reads them, and the config of another.

    Its reader knows neither Gemma's scale of scores nor Phi 3's window.
    """
    read = transformers.modeling_gguf_pytorch_utils.load_gguf_checkpoint
    model = transformers.AutoModelForCausalLM.from_config(like.config).eval()
    theirs = read(path, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(theirs["tensors"], strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}
    return model, theirs["config"]


@pytest.mark.parametrize("name", gguf_files.MODELS)
def test_models(tmp_path, name):
    reference, architecture = gguf_files.made(name)
    path = gguf_files.write(tmp_path / "model.gguf", reference, architecture)
    lm = assert_same_logits(path, reference)
    family = reference.config.model_type
    assert lm.backbone.family == ("llama" if family == "mistral" else family)
    assert lm.end_ids == [2] and lm.tokenizer is None
    kt.export_to_huggingface(lm, tmp_path / "again")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    ids, mask = families.batch(words=59)
    expected = logits_of(reference, ids, mask)
    assert np.abs(logits_of(again, ids, mask) - expected)[mask].max() <= 1e-5
