"""Attention and states of every family against the Transformers library, which computes eagerly."""

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import load_backbone
from tests.checkpoints import families
from tests.checkpoints.test_families import _name, inputs_of, kind_of, saved, whole

torch = pytest.importorskip("torch")

TASKS = {"encoder": kt.TextEmbedder, "decoder": kt.CausalLM, "seq2seq": kt.Seq2SeqLM}
# What there is of blocks and attentions, on each backend.
EACH = [
    "bert", "modernbert", "deberta-v2", "gpt2", "llama", "gemma2", "bloom", "gpt_oss", "t5", "bart",
]  # fmt: skip


def cases():
    for case in families.cases():
        marks = [] if case[1] == 0 and case[0] in EACH else [pytest.mark.one_backend]
        yield pytest.param(*case, id=_name(case), marks=marks)


@pytest.mark.parametrize(("model_type", "number"), [*cases()])
def test_same_attention_and_states(tmp_path, model_type, number):
    reference = whole(model_type, number)
    reference.set_attn_implementation("eager")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs, _ = inputs_of(reference)
    with torch.no_grad():
        expected = reference(**theirs, output_attentions=True, output_hidden_states=True)
    found = TASKS[kind_of(model_type)](backbone).explain(ours)
    names = {"attention": "attentions", "states": "hidden_states"}
    if kind_of(model_type) == "seq2seq":
        names = {
            "encoder_attention": "encoder_attentions", "encoder_states": "encoder_hidden_states",
            "attention": "decoder_attentions", "states": "decoder_hidden_states",
            "cross_attention": "cross_attentions",
        }  # fmt: skip
    for ours_name, theirs_name in names.items():
        layers = [x.numpy() for x in expected[theirs_name]]
        for row, explanation in enumerate(found):
            own = getattr(explanation, ours_name)
            whole_row = np.stack([layer[row] for layer in layers])
            shape = own.shape
            whole_row = whole_row[:, : shape[1], : shape[2]] if own.ndim == 3 else whole_row
            if own.ndim == 4:
                whole_row = whole_row[:, :, : shape[2], : shape[3]]
            if own.ndim == 3:
                whole_row = np.stack([layer[row][: shape[1]] for layer in layers])
            assert own.shape == whole_row.shape
            bound = 1e-5 * max(1.0, np.abs(whole_row).max())
            assert np.abs(own - whole_row).max() <= bound, (ours_name, row)
