"""Latent attention: its absorbed form against heads of their own, and what its cache holds."""

import math

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.generation import Cache, Speculative
from keras_transformer.layers import AttentionMask, KeyValueCache
from keras_transformer.layers.mixers.latent_attention import MultiHeadLatentAttention
from tests.generation.common import make_backbone, make_prompts
from tests.layers.conftest import assert_close, differs, numpy, random, randomize

PART = parts.LatentAttention(
    num_heads=3,
    kv_lora_rank=6,
    q_lora_rank=5,
    qk_nope_head_dim=4,
    qk_rope_head_dim=2,
    v_head_dim=5,
    position=parts.Rotary(interleaved=True),
)
STRETCHED = parts.RotaryScaling(method="yarn", factor=4.0, original_length=4, attention_factor=0.9)
LATENT = PART.to_dict()
VARIANTS = {
    "narrow queries": PART,
    "wide values": PART.replace(q_lora_rank=None, v_head_dim=9, bias=True),
    "stretched": PART.replace(scale=0.5, position=parts.Rotary(scaling=STRETCHED)),
    "by length": PART.replace(
        position=parts.Rotary(scaling=parts.RotaryScaling(method="dynamic", original_length=3))
    ),
    "no positions": PART.replace(position=None),
    "wide keys": PART.replace(kv_lora_rank=2, qk_rope_head_dim=8),
}
MODEL = {
    "position": "none",
    "mixer": PART.replace(num_heads=4, q_lora_rank=7),
    "normalize_first": True,
    "normalization": "rms_norm",
    "num_layers": 2,
}


def made(part=PART, causal=True, **options):
    layer = MultiHeadLatentAttention(part, causal=causal, **options)
    layer.build((2, 7, 8))
    return randomize(layer)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_absorbed_form_equals_heads_of_their_own(name):
    layer, x = made(VARIANTS[name]), random(2, 7, 8)
    # With scaling by length, keys keep the angles from when their row was shorter.
    first = 6 if name == "by length" else 3
    whole = numpy(layer(x))
    heads, width, _ = layer.part.cached(8)
    cache = KeyValueCache.make(rows=2, heads=heads, slots=9, head_dim=width, dtype="float32")
    states, cache = layer(x[:, :first], cache=cache)
    if name != "by length":
        assert_close(states, whole[:, :first], atol=2e-5)
        several, _ = layer(x[:, first:], cache=cache)  # as speculative decoding does
        assert_close(several, whole[:, first:], atol=2e-5)
    for i in range(first, 7):
        found, weights, cache = layer(x[:, i : i + 1], cache=cache, return_attention_scores=True)
        assert weights.shape == (2, 3, 1, i + 1)
        assert_close(keras.ops.sum(weights, axis=-1), np.ones((2, 3, 1)), atol=1e-5)
        if name != "by length":
            assert_close(found, whole[:, i : i + 1], atol=2e-5)


@pytest.mark.one_backend
def test_weights_by_hand():
    """The weights and the output from the queries and keys that the layer returns."""
    layer, x = made(), random(2, 7, 8)
    output, weights, projections = layer(x, return_attention_scores=True, return_projections=True)
    queries, keys = (numpy(projections[name]) for name in ("queries", "keys"))
    assert queries.shape == keys.shape == (2, 3, 7, 6)
    assert_close(keys[:, 0, :, 4:], keys[:, 2, :, 4:])  # shared by the heads
    scores = queries @ keys.swapaxes(2, 3) / math.sqrt(6)
    scores = np.where(np.tri(7, dtype=bool), scores, -np.inf)
    expected = np.exp(scores - scores.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    assert_close(weights, expected, atol=1e-5)
    latent = numpy(layer.latent_norm(layer.latent_dense(x)[..., :6]))
    values = (latent @ numpy(layer.value_dense.kernel)).reshape(2, 7, 3, 5).swapaxes(1, 2)
    mixed = (expected @ values).swapaxes(1, 2).reshape(2, 7, 15)
    assert_close(output, mixed @ numpy(layer.output_dense.kernel), atol=1e-5)


@pytest.mark.one_backend
def test_padding_packs_and_both_directions():
    layer, x = made(), random(2, 7, 8)
    mask = np.array([[True] * 7, [True] * 4 + [False] * 3])
    alone = layer(x[1:, :4])
    assert_close(layer(x, mask=mask)[1:, :4], alone, atol=1e-5)
    packs = AttentionMask(
        query_pack=np.array([[0] * 3 + [1] * 4] * 2),
        query_positions=np.array([[*range(3), *range(4)]] * 2),
    )
    packed = layer(x, visibility=packs)
    assert_close(packed[:, 3:], layer(x[:, 3:]), atol=1e-5)
    encoder = made(causal=False)
    assert differs(encoder(x)[:, :1], encoder(x[:, :1]))


@pytest.mark.one_backend
def test_a_cache_keeps_the_latent_vector_and_the_rotated_key_alone():
    backbone = make_backbone("decoder", **MODEL)
    cache = Cache.create(backbone, rows=1, slots=10)
    numbers = sum(math.prod(x.shape) for layer in cache.layers for x in layer["self"])
    rank, rotated = PART.kv_lora_rank, PART.qk_rope_head_dim
    assert numbers == 2 * 10 * (rank + rotated)
    assert Cache.count_bytes(backbone.config, rows=1, slots=10) == 4 * numbers
    plan = kt.planning.make_plan(backbone.config, batch_size=3, length=10, generating=True)
    assert plan.memory.cache == 3 * 4 * numbers
    _, cache = backbone({"token_ids": np.array([[3, 4, 5]])}, cache=cache)
    heads = numpy(keras.ops.concatenate(cache.layers[0]["self"], axis=-1))[0, 0]
    assert heads.shape == (10, rank + rotated)
    assert (heads[:3] != 0).all() and not heads[3:].any()


@pytest.mark.one_backend
def test_generation_of_each_kind_writes_what_a_whole_pass_says():
    """In a running batch of rows of unlike length, by speculation, and by beams."""
    lm = kt.CausalLM(make_backbone("decoder", **MODEL))
    prompts = make_prompts([3, 7, 1, 5])
    expected = []
    for prompt in prompts:
        row = list(prompt)
        for _ in range(6):
            ids = np.array([row])
            logits = numpy(lm.backbone.logits(lm.backbone({"token_ids": ids})))
            row.append(int(logits[0, -1].argmax()))
        expected.append(row[len(prompt) :])
    assert lm.generate(prompts, max_new_tokens=6) == expected
    assert lm.generate(prompts, max_new_tokens=6, batch_size=2) == expected
    assert lm.generate(prompts, max_new_tokens=6, sampler=Speculative()) == expected
    beams = kt.generation.BeamSearch(num_beams=3)
    together = lm.generate(prompts[:2], sampler=beams, max_new_tokens=4)
    assert together == [lm.generate(p, sampler=beams, max_new_tokens=4) for p in prompts[:2]]


@pytest.mark.one_backend
def test_adapters_and_quantized_weights():
    lm = kt.CausalLM(make_backbone("decoder", **MODEL))
    prompts = make_prompts([3, 7])
    before = lm.generate(prompts, max_new_tokens=6)
    lm.enable_lora(rank=2, targets=["query", "key", "value", "latent"])
    draw = np.random.default_rng(0)
    for variable in lm.trainable_variables:
        variable.assign(0.5 * draw.normal(size=variable.shape))
    adapted = lm.generate(prompts, max_new_tokens=6)
    lm.merge_lora()
    assert adapted != before and adapted == lm.generate(prompts, max_new_tokens=6)
    lm.quantize("int8")
    modes = {
        layer.name: layer.quantization_mode
        for layer in lm.backbone._flatten_layers()
        if isinstance(layer, keras.layers.Dense)
    }
    assert modes["latent"] == modes["query"] == "int8" and modes["key"] is modes["value"] is None
    assert lm.generate(prompts, max_new_tokens=6) == [
        lm.generate(prompt, max_new_tokens=6) for prompt in prompts
    ]


@pytest.mark.one_backend
def test_dropout_and_explanations():
    x = random(1, 7, 8)
    layer = made(PART.replace(dropout=0.5), seed=1)
    assert differs(layer(x, training=True), layer(x))
    lm = kt.CausalLM(make_backbone("decoder", **MODEL))
    assert lm.explain([3, 4, 5]).attention.shape == (2, 4, 3, 3)


@pytest.mark.one_backend
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 3}, "`window`=3 needs attention"),
        ({"num_heads": 4}, "`num_heads`=4 needs attention"),
        ({"position": "rotary"}, "`position`='rotary' needs attention"),
        ({"attention_sinks": True}, "`attention_sinks`=True needs attention"),
        ({"mixer": {**LATENT, "kv_lora_rank": 5}}, "`kv_lora_rank` must be even, received 5"),
        ({"mixer": {"kind": "latent_attention"}}, "LatentAttention lacks the values: num_heads"),
        ({"mixer": {**LATENT, "window": 3}}, "LatentAttention has no value 'window'"),
        ({"kind": "seq2seq"}, "needs a block with an `Attention` as its mixer"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values, message):
    with pytest.raises(ValueError, match=message):
        make_backbone(**{"kind": "decoder", **MODEL, **values})


@pytest.mark.one_backend
def test_a_cache_of_another_width_is_refused():
    cache = KeyValueCache.make(rows=2, heads=3, slots=9, head_dim=6, dtype="float32")
    with pytest.raises(ValueError, match="must be of shape"):
        made()(random(2, 7, 8), cache=cache)
