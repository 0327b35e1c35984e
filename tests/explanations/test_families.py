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
BANDS = {"longformer": "attention", "led": "encoder_attention"}  # of a window
OF_ONE_SIDE = {"attention": "attentions", "states": "hidden_states"}
OF_TWO = {
    "encoder_attention": "encoder_attentions", "encoder_states": "encoder_hidden_states",
    "attention": "decoder_attentions", "states": "decoder_hidden_states",
    "cross_attention": "cross_attentions",
}  # fmt: skip


def cases():
    for place, case in enumerate(families.cases()):
        # What attention and states are made of is held for all configs by test_same_outputs.
        of_first = pytest.mark.each_backend if case[0] in EACH else pytest.mark.one_backend
        left_out = case[1] or (place % 2 and case[0] not in EACH)
        marks = pytest.mark.thorough if left_out else of_first
        yield pytest.param(*case, id=_name(case), marks=marks)


def _tokens(given):
    """Return what is given of the tokens. Pegasus-X gives more, of its global states."""
    given = given["local"] if isinstance(given, dict) else given
    return given[0] if isinstance(given, tuple) else given


def of_a_band(layer, length):
    """Longformer's weights of a window, `(heads, length, window + 1)`, as those of all pairs."""
    reach = layer.shape[-1] // 2
    whole = np.zeros((layer.shape[0], length, length), "float32")
    for query in range(length):
        for key in range(max(0, query - reach), min(length, query + reach + 1)):
            whole[:, query, key] = layer[:, query, key - query + reach]
    return whole


def of_blocks(layer, length):
    """LongT5's, of each block and its neighbours, `(blocks, heads, size, 3 * size)`."""
    blocks, heads, size, width = layer.shape
    whole = np.zeros((heads, blocks * size, (blocks + 2) * size), "float32")
    for block in range(blocks):
        queries, keys = block * size, block * size
        whole[:, queries : queries + size, keys : keys + width] = layer[block]
    return whole[:, :length, size : size + length]


def of_chunks(layer, usual):
    """Pegasus-X's, of each chunk to the global states and itself, `(heads, chunks, size, all)`."""
    heads, chunks, size, _ = layer.shape
    whole = np.zeros((heads, chunks * size, chunks * size), "float32")
    for chunk in range(chunks):
        places = slice(chunk * size, (chunk + 1) * size)
        whole[:, places, places] = layer[:, chunk, :, -size:]
    # A layer that is moved has one chunk more: half of it is before the first token.
    before = (chunks - usual) * size // 2
    return whole[:, before:, before:]


def expected_rows(model_type, name, layers, row, shape):
    """Theirs of a row, of its real tokens, as `(layers, ...)`."""
    rows = [layer[row] for layer in layers]
    if len(shape) == 3:
        return np.stack([each[: shape[1]] for each in rows])
    if BANDS.get(model_type) == name:
        rows = [of_a_band(each, shape[2]) for each in rows]
    if model_type == "longt5" and name == "encoder_attention":
        rows = [of_blocks(each, shape[2]) for each in rows]
    if model_type == "pegasus_x" and name == "encoder_attention":
        rows = [of_chunks(each, rows[0].shape[1]) for each in rows]
    return np.stack([each[:, : shape[2], : shape[3]] for each in rows])


@pytest.mark.parametrize(("model_type", "number"), [*cases()])
def test_same_attention_and_states(tmp_path, model_type, number):
    reference = whole(model_type, number)
    # Falcon's eager attention adds the biases of ALiBi twice, and its logits are others then.
    gives_attention = not getattr(reference.config, "alibi", False)
    if gives_attention and model_type == "falcon":  # It takes no other attention later on.
        reference = whole(model_type, number, attn_implementation="eager")
    elif gives_attention:
        reference.set_attn_implementation("eager")
    backbone = load_backbone(saved(reference, tmp_path))
    ours, theirs, _ = inputs_of(reference)
    with torch.no_grad():
        wanted = {"output_attentions": gives_attention, "output_hidden_states": True}
        expected = reference(**theirs, **wanted)
    found = TASKS[kind_of(model_type)](backbone).explain(ours)
    sides = backbone.config.sides
    compared = set()
    for name, theirs_name in (OF_TWO if len(sides) == 2 else OF_ONE_SIDE).items():
        layers = [_tokens(x).numpy() for x in getattr(expected, theirs_name, None) or ()]
        if model_type == "opt" and layers[-1].shape != layers[0].shape:
            layers.pop()  # Theirs is projected to the width of the embeddings.
        if model_type == "mamba2" and layers:
            # Theirs begin behind the first block, and have the last block's without its norm too.
            embedded = reference.get_input_embeddings()(theirs["input_ids"])
            layers = [embedded.detach().numpy(), *layers[:-2], layers[-1]]
        if model_type == "gemma3n_text" and name == "states":
            # Of copies of the states ours are the first. In the end theirs are not joined yet.
            layers = [x[0] for x in layers[:-1]]
        if model_type == "nemotron_h":
            layers = layers[::2]  # Theirs has a layer for each sub-layer.
        if "attention" in name and not layers:  # BigBird's blocks give none
            attends = backbone.config.last_side.attention is not None
            assert not (attends and gives_attention and sides[0].block_size is None)
            continue
        for row, explanation in enumerate(found):
            given = getattr(explanation, name)
            if given is None:
                assert sides[0].global_block_size is not None and name == "encoder_attention"
                continue
            given = given[: len(layers)]
            wanted = expected_rows(model_type, name, layers, row, given.shape)
            assert given.shape == wanted.shape
            bound = 1e-5 * max(1.0, np.abs(wanted).max())
            assert np.abs(given - wanted).max() <= bound, (name, row)
            compared.add(name)
    assert "states" in compared
