"""Models of parts that no keyword describes: convolutions, chunks, axial positions, mixers."""

import sys

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers import AttentionMask, MultiHeadAttention
from keras_transformer.layers.mixers.generalized_delta import GeneralizedDeltaRule
from keras_transformer.layers.mixers.short_convolution import GatedShortConvolution
from tests.layers.conftest import assert_close, numpy, randomize
from tests.thorough import a_part

IDS = np.array([[3, 4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 0, 0, 0, 0, 0]])
MASK = IDS > 0
ATTENTION = parts.Attention(num_heads=2, num_key_value_heads=1, position=parts.Rotary())


def model(*mixers, position=None, layer_inputs=None, **values):
    """A decoder whose layers have these mixers in turn, with random weights."""
    block = parts.Block(
        mixer=mixers[0],
        feed_forward=parts.Dense(dim=12, activation="silu", gated=True, bias=False),
        norm=parts.Norm(type="rms_norm"),
        residual=parts.Residual(order="pre"),
    ).replace(**values)
    side = parts.Side(
        input=parts.Tokens(vocabulary_size=20),
        hidden_dim=8,
        num_layers=3,
        block=block,
        layers=tuple(block.replace(mixer=mixer) for mixer in mixers) if len(mixers) > 1 else (),
        position=position,
        layer_inputs=layer_inputs,
        max_sequence_length=24,
    )
    backbone = kt.models.Decoder(kt.TransformerConfig(decoder=side))
    randomize(backbone)
    return backbone


LATENT = parts.LatentAttention(
    num_heads=2,
    kv_lora_rank=6,
    qk_nope_head_dim=4,
    qk_rope_head_dim=2,
    v_head_dim=3,
    position=parts.Rotary(),
)
CONVOLUTION = parts.ShortConvolution(size=3, bias=True)
STATES = parts.StateSpace(num_heads=4, head_dim=3, state_dim=5, num_groups=2, chunk_size=4)
DELTA = parts.GatedDelta(num_key_heads=2, num_value_heads=4, key_dim=5, value_dim=3, chunk_size=4)
LINEAR = parts.LinearRecurrence(state_dim=12, num_heads=3, chunk_size=4)
FIRST = parts.GeneralizedDelta(head_dim=4, decay_rank=3, rate_rank=2, gate_rank=5, chunk_size=4)
RWKV = (FIRST, parts.ShiftedFeedForward(dim=12), FIRST.replace(value_rank=2))
GATED = ATTENTION.replace(output_gate=True)
GROWTH = parts.QueryGrowth(rate=0.7, length=3)
NORMALIZED = ATTENTION.replace(
    query_key_norm="rotated", head_norm=parts.Norm(type="rms_norm_no_weight", epsilon=1e-4)
)
SHARING = ATTENTION.replace(pattern=parts.Window(size=4), value_norm=parts.Norm(type="rms_norm"))
SHARED = ATTENTION.replace(pattern=parts.Window(size=4), key_source="earlier")
VECTORS = {
    "layer_inputs": parts.LayerInputs(vocabulary_size=20, dim=3),
    "layer_input": parts.LayerInput(dim=3),
    "output_scale": True,
}
COPIES = {
    "altup": parts.AltUp(copies=3, limit=0.9),
    "laurel": parts.Laurel(rank=2),
    "feed_forward": parts.Dense(dim=12, activation="silu", gated=True, bias=False, sparsity=0.4),
    "layer_inputs": parts.LayerInputs(vocabulary_size=18, dim=3),
    "layer_input": parts.LayerInput(dim=3),
}
RECURRENT = ("states", "states_hybrid", "delta", "delta_hybrid", "linear_hybrid", "rwkv")
MODELS = {
    "convolutions": ((CONVOLUTION,), {}),
    "hybrid": ((CONVOLUTION, CONVOLUTION, ATTENTION), {}),
    "states": ((STATES.replace(bias=True, convolution_bias=False),), {"feed_forward": None}),
    "states_hybrid": ((STATES, ATTENTION, CONVOLUTION), {}),
    "delta": ((DELTA,), {}),
    "delta_hybrid": ((DELTA, DELTA, GATED), {}),
    "linear_hybrid": ((LINEAR, LINEAR, ATTENTION.replace(pattern=parts.Window(size=3))), {}),
    "rwkv": (RWKV, {"feed_forward": None}),
    "chunks": ((ATTENTION.replace(pattern=parts.Chunks(size=4)), ATTENTION), {}),
    "growing": ((ATTENTION.replace(position=GROWTH), NORMALIZED), {}),
    "shared": ((SHARING, ATTENTION.replace(value_source="keys"), SHARED), {}),
    "layer_inputs": ((ATTENTION.replace(position=parts.Rotary(pairs=1)),), VECTORS),
    "copies": ((ATTENTION, SHARING, SHARED), COPIES),
    "parallel": ((parts.Parallel(members=(ATTENTION, STATES), output_scales=(0.5, 2.0)),), {}),
    "latent": ((LATENT, ATTENTION), {}),
    "axial": ((ATTENTION.replace(position=None),), {"position": parts.Axial(rows=6, columns=4)}),
}
every = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def made():
    return {name: model(*mixers, **options) for name, (mixers, options) in MODELS.items()}


@pytest.mark.one_backend
@pytest.mark.parametrize("name", a_part(MODELS, 2))
def test_weights_and_files(name, made, tmp_path):
    backbone = made[name]
    config = backbone.config
    assert {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.weights} == variable_shapes(
        config
    )
    assert config.by_keywords == (name not in ("axial", "layer_inputs", "copies"))
    assert kt.TransformerConfig.from_json(config.to_json()) == config
    plan = kt.planning.make_plan(config, batch_size=2, length=8)
    assert plan.parameters == backbone.count_params()
    lm = kt.CausalLM(backbone)
    lm.save_to_preset(tmp_path / "preset")
    lm.save(tmp_path / "file.keras")
    expected = numpy(backbone({"token_ids": IDS}))
    for again in (
        kt.CausalLM.from_preset(tmp_path / "preset", dropout=0.1),
        keras.models.load_model(tmp_path / "file.keras"),
    ):
        assert_close(again.backbone({"token_ids": IDS}), expected, atol=1e-5)
    assert kt.CausalLM.from_preset(tmp_path / "preset", dropout=0.1).backbone.config.dropout == 0.1
    theirs = "cannot express" if config.by_keywords else "cannot express the parts of this config"
    with pytest.raises(ValueError, match=theirs):
        kt.export_to_huggingface(lm, tmp_path / "theirs", family="llama")
    if name in ("axial", "chunks", "growing", "shared", "layer_inputs", "copies", "parallel"):
        with pytest.raises(ValueError, match="`window` cannot be changed by keyword"):
            config.replace(window=3)
    elif name in ("convolutions", "states", "delta", "rwkv"):
        with pytest.raises(ValueError, match="`window`=3 needs attention"):
            config.replace(window=3)


@every
def test_rows_are_as_alone_with_a_cache_and_without(name, made):
    backbone = made[name]
    lm = kt.CausalLM(backbone)
    whole = backbone({"token_ids": IDS, "padding_mask": MASK})
    for row, length in ((0, 9), (1, 4)):
        alone = backbone({"token_ids": IDS[row : row + 1, :length]})
        assert_close(whole[row : row + 1, :length], alone, atol=1e-5)
    prompts = [IDS[0, :7].tolist(), IDS[1, :2].tolist(), IDS[0, :1].tolist()]
    together = lm.generate(prompts, max_new_tokens=6)
    # One pass over all texts, of one length: other lengths would be compiled anew.
    written = [[*prompt, *tokens[:-1]] for prompt, tokens in zip(prompts, together, strict=True)]
    ids = np.array([row + [0] * (12 - len(row)) for row in written])
    mask = np.array([[True] * len(row) + [False] * (12 - len(row)) for row in written])
    all_logits = numpy(backbone.logits(backbone({"token_ids": ids, "padding_mask": mask})))
    for logits, prompt, row, tokens in zip(all_logits, prompts, written, together, strict=True):
        logits = logits[len(prompt) - 1 : len(row)]
        chosen = np.take_along_axis(logits, np.array(tokens)[:, None], axis=-1)[:, 0]
        assert np.all(chosen >= logits.max(axis=-1) - 1e-5)
    assert lm.generate(prompts[0], max_new_tokens=6) == together[0]


@pytest.mark.one_backend
@pytest.mark.parametrize("name", a_part(MODELS, 2))
def test_beams_packs_and_training(name, made):
    backbone = made[name]
    lm = kt.CausalLM(backbone)
    beams = kt.generation.BeamSearch(num_beams=3)
    prompts = [IDS[0, :5].tolist(), IDS[1, :2].tolist()]
    together = lm.generate(prompts, sampler=beams, max_new_tokens=5)
    assert together == [lm.generate(prompt, sampler=beams, max_new_tokens=5) for prompt in prompts]
    packed = np.array([[0] * 5 + [1] * 4])
    inputs = {"token_ids": IDS[:1], "pack_ids": packed}
    # Chunks and added positions count from the row's start.
    if name in ("convolutions", "hybrid", "latent", "shared", "parallel", *RECURRENT):
        positions = np.array([[*range(5), *range(4)]])
        states = backbone({**inputs, "position_ids": positions})
        assert_close(states[:, 5:], backbone({"token_ids": IDS[:1, 5:]}), atol=1e-5)
    fresh = kt.CausalLM(kt.models.Decoder(backbone.config))
    before = fresh.evaluate({"token_ids": IDS[:1, :-1]}, IDS[:1, 1:], verbose=0)
    fresh.compile(keras.optimizers.Adam(0.01), fresh.loss)
    fresh.fit({"token_ids": IDS[:1, :-1]}, IDS[:1, 1:], epochs=3, verbose=0)
    after = fresh.evaluate({"token_ids": IDS[:1, :-1]}, IDS[:1, 1:], verbose=0)
    assert np.ravel(after)[0] < np.ravel(before)[0]


@pytest.mark.one_backend
@pytest.mark.parametrize("name", ["states_hybrid", "delta"])
def test_adapters_of_recurrent_mixers(name, made):
    lm = kt.CausalLM(kt.models.Decoder(made[name].config))
    lm.backbone.set_weights(made[name].get_weights())
    before = numpy(lm.backbone({"token_ids": IDS}))
    targets = {"states_hybrid": ["input", "output"], "delta": ["query", "value", "strength"]}
    lm.enable_lora(rank=2, targets=targets[name])
    lm.compile(keras.optimizers.Adam(0.01), lm.loss)
    lm.fit({"token_ids": IDS[:1, :-1]}, IDS[:1, 1:], epochs=2, verbose=0)
    adapted = numpy(lm.backbone({"token_ids": IDS}))
    assert np.abs(adapted - before).max() > 1e-4
    lm.merge_lora()
    assert_close(lm.backbone({"token_ids": IDS}), adapted, atol=2e-5)


@pytest.mark.one_backend
def test_recurrent_mixers_have_no_graph_with_a_cache(made, tmp_path):
    with pytest.raises(ValueError, match="recurrent mixers has no graph with a cache"):
        kt.export(kt.CausalLM(made["states_hybrid"]), tmp_path / "graph", format="pt2")


@pytest.mark.one_backend
def test_values_of_no_layer_are_refused():
    """A mixer that takes the values of the first one must be behind it."""
    with pytest.raises(ValueError, match="Layer 0 takes results of an earlier layer"):
        model(RWKV[2], RWKV[1], RWKV[0], feed_forward=None)
    with pytest.raises(ValueError, match="head_dim=3 of a generalized delta rule must divide"):
        model(FIRST.replace(head_dim=3))
    with pytest.raises(ValueError, match="needs `earlier`"):
        GeneralizedDeltaRule(RWKV[2])(np.ones((1, 2, 8), "float32"))


@pytest.mark.one_backend
@pytest.mark.parametrize("bias", [True, False])
def test_the_convolution_equals_that_of_transformers(bias):
    torch = pytest.importorskip("torch")
    from transformers.models.lfm2 import modeling_lfm2

    config = modeling_lfm2.Lfm2Config(
        hidden_size=8, conv_L_cache=3, conv_bias=bias, num_hidden_layers=1, layer_types=["conv"]
    )
    theirs = modeling_lfm2.Lfm2ShortConv(config, 0)
    layer = GatedShortConvolution(parts.ShortConvolution(size=3, bias=bias))
    layer.build((2, 6, 8))
    for ours, module in (
        (layer.input_dense, theirs.in_proj),
        (layer.output_dense, theirs.out_proj),
    ):
        ours.kernel.assign(module.weight.detach().numpy().T)
        if bias:
            ours.bias.assign(module.bias.detach().numpy())
    layer.convolution.kernel.assign(theirs.conv.weight.detach().numpy()[:, 0].T)
    if bias:
        layer.convolution.bias.assign(theirs.conv.bias.detach().numpy())
    x = np.random.default_rng(0).normal(size=(2, 6, 8)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.tensor(x)).numpy()
    assert_close(layer(x), expected, atol=1e-5)


@pytest.mark.one_backend
@pytest.mark.parametrize("length", [3, 8, 11])
def test_chunks_equal_a_dense_mask(length):
    part = parts.Attention(num_heads=2, head_dim=4)
    chunks = MultiHeadAttention(part.replace(pattern=parts.Chunks(size=4)), causal=True)
    dense = MultiHeadAttention(part)
    x = np.random.default_rng(0).normal(size=(2, length, 8)).astype("float32")
    for layer in (chunks, dense):
        layer.build(x.shape)
    randomize(chunks)
    dense.set_weights(chunks.get_weights())
    places = np.arange(length)
    seen = (places[:, None] // 4 == places // 4) & (places[:, None] >= places)
    padding = np.ones((2, length), "bool")
    padding[1, -1] = False
    expected = dense(
        x, visibility=AttentionMask(explicit=np.broadcast_to(seen, (2, length, length)))
    )
    assert_close(chunks(x), expected, atol=1e-5)
    assert_close(chunks(x, mask=padding)[0], expected[0], atol=1e-5)


GLOBAL = parts.Attention(num_heads=2, pattern=parts.Chunks(size=4, global_tokens=3))


def encoder(block=None, count=3, **values):
    """An encoder with states before those of its tokens, whose chunks alternate."""
    block = block or parts.Block(
        mixer=GLOBAL,
        feed_forward=parts.Dense(dim=12),
        global_norm=True,
        residual=parts.Residual(order="pre"),
    )
    moved = block.mixer.pattern.replace(shift=1)
    side = parts.Side(
        input=parts.Tokens(vocabulary_size=20),
        hidden_dim=8,
        num_layers=2,
        block=block,
        layers=(block, block.replace(mixer=block.mixer.replace(pattern=moved))),
        global_states=count,
        position=parts.Sinusoidal(),
        max_sequence_length=24,
        **values,
    )
    backbone = kt.models.Encoder(kt.TransformerConfig(encoder=side))
    randomize(backbone)
    return backbone


def test_global_states(tmp_path):
    """States before those of the tokens, which see all and are seen by all, and are left out."""
    backbone = encoder()
    shapes = variable_shapes(backbone.config)
    assert shapes["encoder/global_states/embeddings"] == (3, 8)
    assert shapes["encoder/layer_1/global_norm/gamma"] == (8,)
    assert {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.variables} == shapes
    inputs = {"token_ids": IDS, "padding_mask": MASK}
    whole = numpy(backbone(inputs))
    assert whole.shape == (2, 9, 8)
    assert_close(backbone({"token_ids": IDS[1:, :4]}), whole[1:, :4], atol=1e-5)
    assert_close(backbone(inputs, first_only=True), whole[:, :1], atol=1e-5)
    # A call that returns the weights computes all pairs of tokens.
    _, found = backbone(inputs, collect=("states", "attention", "queries", "keys"))
    assert_close(found["states"][-1][MASK], whole[MASK], atol=1e-5)
    assert [x.shape[1] for x in found["states"]] == [9, 9, 9]
    assert found["attention"][1].shape == (2, 2, 9, 9)
    assert found["queries"][0].shape[2] == found["keys"][0].shape[2] == 9
    seen = numpy(found["attention"][1])[0, 0] > 0
    chunks = (np.arange(9) + 1) // 4
    assert (seen == (chunks[:, None] == chunks)).all()
    # The last token is in another chunk than the first in all layers: they meet in global states.
    other = IDS.copy()
    other[0, -1] = 3
    changed = numpy(backbone({"token_ids": other, "padding_mask": MASK}))
    assert np.abs(changed[0, 0] - whole[0, 0]).max() > 1e-4
    backbone.save_to_preset(tmp_path)
    assert_close(kt.Backbone.from_preset(tmp_path)(inputs), whole, atol=1e-5)


@pytest.mark.one_backend
def test_global_states_and_what_they_need():
    block = encoder().config.encoder.block
    with pytest.raises(ValueError, match="2 `global_states` need attention with the pattern"):
        encoder(count=2)
    with pytest.raises(ValueError, match="would be seen by packed documents"):
        encoder()({"token_ids": IDS, "pack_ids": np.array([[0] * 4 + [1] * 5] * 2)})
    with pytest.raises(ValueError, match="`global_norm` needs a mixer whose pattern has"):
        block.replace(mixer=parts.Attention(num_heads=2))
    with pytest.raises(ValueError, match="`shift` must be less than size=4, received 4"):
        parts.Chunks(size=4, shift=4)
    with pytest.raises(ValueError, match="needs an encoder"):
        kt.TransformerConfig(decoder=encoder().config.encoder.replace(global_states=0))


@pytest.mark.one_backend
def test_axial_positions_by_hand():
    backbone = model(ATTENTION.replace(position=None), position=parts.Axial(rows=6, columns=4))
    ((stem, _),) = backbone.sides.values()
    layer = stem.position_embedding
    rows, columns = map(numpy, (layer.rows, layer.columns))
    added = numpy(layer(np.zeros((1, 9, 8), "float32")))[0]
    for p in range(9):
        assert_close(added[p], np.concatenate([rows[p // 4], columns[p % 4]]))
    with pytest.raises(ValueError, match="axial positions for 24 only"):
        layer(np.zeros((1, 25, 8), "float32"))


@pytest.mark.one_backend
def test_a_pass_enters_no_file_of_a_part_that_the_model_does_not_have():
    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=20, hidden_dim=8, num_layers=2, num_heads=2,
        intermediate_dim=12, position="learned", pooler=True,
    )  # fmt: skip
    encoder = kt.models.Encoder(config)
    inputs = {"token_ids": IDS, "padding_mask": MASK}
    encoder(inputs)
    entered = set()

    def profile(frame, event, argument):
        entered.add(frame.f_code.co_filename.rpartition("/")[2])

    sys.setprofile(profile)
    try:
        encoder(inputs)
    finally:
        sys.setprofile(None)
    assert "attention.py" in entered and "block.py" in entered
    foreign = {"sparse.py", "chunks.py", "disentangled.py", "position_bias.py", "grid.py"}
    foreign |= {
        "experts.py",
        "neighbours.py",
        "short_convolution.py",
        "rotary.py",
        "key_value_cache.py",
    }
    assert not foreign & entered
