"""Plans: parameters, the choice of a layout, what is refused."""

import math

import pytest

import keras_transformer as kt
from keras_transformer.checkpoints import list_presets, load_config, resolve_preset
from keras_transformer.config.integer_dtype import IntegerDtype
from keras_transformer.generation import Cache
from keras_transformer.models.runtime.quantized import LayerByLayer
from keras_transformer.planning import count_parameters, flops_per_sequence, make_plan
from keras_transformer.training import lora
from tests.thorough import THOROUGH

pytestmark = pytest.mark.one_backend

SMALL = {
    "vocabulary_size": 100,
    "hidden_dim": 24,
    "num_layers": 2,
    "num_heads": 4,
    "intermediate_dim": 32,
}
VARIANTS = [
    {"kind": "encoder", "pooler": True, "embedding_dim": 12, "num_layer_groups": 1},
    {"kind": "encoder", "position": "learned", "segment_vocabulary_size": 2, "use_bias": False},
    {"kind": "decoder", "num_key_value_heads": 2, "gated": True, "query_key_norm": True},
    {"kind": "decoder", "tie_embeddings": False, "output_bias": True, "parallel_residual": True,
     "normalize_first": True},
    {"kind": "decoder", "share_normalization": True, "parallel_residual": True,
     "normalize_first": True},
    {"kind": "decoder", "score": "general", "normalization": "rms_norm", "head_dim": 10},
    {"kind": "seq2seq", "position": "relative", "num_decoder_layers": 3},
]  # fmt: skip


def config_of(name):
    return load_config(resolve_preset(name), load_weights=False)[0]


GPT3 = config_of("gpt3_175b_en")


def gpt3(**arguments):
    arguments = {"batch_size": 64, "length": 2048, "devices": 1024, **arguments}
    return make_plan(GPT3, **arguments)


@pytest.mark.parametrize("values", VARIANTS, ids=lambda values: values["kind"])
def test_parameters_are_those_of_the_backbone(values):
    config = kt.TransformerConfig(**SMALL, **values)
    assert count_parameters(config) == kt.models.build_backbone(config).count_params()


@pytest.mark.backend_independent
def test_parameters_of_the_presets():
    """Those that their cards give, which were counted in the published weights."""
    names = list_presets()
    assert len(names) > 80
    for number, name in enumerate(names):
        config, _, metadata = load_config(resolve_preset(name), load_weights=False)
        if config.kind == "dual":  # of which each side has rows of its own
            with pytest.raises(ValueError, match="give `config.side"):
                make_plan(config, batch_size=1, length=8)
            continue
        count = count_parameters(config)
        assert count <= metadata["parameters"] < count * 1.25 + 1e6
        if number % 20 == 0 or THOROUGH:
            assert make_plan(config, batch_size=1, length=8).parameters == count
    # Brown et al. 2020, table 2.1: 175.0 billion; Touvron et al. 2023, table 1: 6.7 billion.
    assert count_parameters(GPT3) == pytest.approx(175.0e9, rel=0.003)
    assert count_parameters(config_of("llama2_7b_en")) == 6_738_415_616


@pytest.mark.backend_independent
class TestLayout:
    def test_the_model_axis_is_the_shortest_that_fits(self):
        """For GPT-3 a weight and two states are 12 bytes of float32, twice its gradient 8 more."""
        plan = gpt3(device_memory=140e9)
        assert (plan.data_parallel, plan.model_parallel, plan.fits) == (32, 32, True)
        # Positions, biases of outputs and normalizations lie whole on each device.
        assert plan.memory.weights == pytest.approx(4 * 174.6e9 / 32, rel=0.01)
        assert plan.memory.optimizer == 2 * plan.memory.weights
        assert plan.peak_memory == 5 * plan.memory.weights
        assert plan.rematerialize
        half = gpt3(device_memory=140e9, dtype="bfloat16")
        assert half.model_parallel == 16 and half.fits

    def test_without_a_memory_the_batch_decides(self):
        assert gpt3(batch_size=1024).model_parallel == 1
        assert gpt3(batch_size=64).model_parallel == 16

    def test_nothing_fits(self):
        plan = gpt3(device_memory=16e9)
        assert plan.fits is False and plan.rematerialize
        assert "DOES NOT FIT in 16.00 GB" in str(plan)

    def test_one_device(self):
        plan = make_plan(config_of("bert_base_en"), batch_size=8, length=128)
        assert (plan.data_parallel, plan.model_parallel, plan.fits) == (1, 1, None)
        head = 768 * 768 + 3 * 768 + plan.config.vocabulary_size
        assert plan.memory.weights == 4 * (plan.parameters + head)

    def test_grouped_heads_are_whole(self):
        config = config_of("llama3_8b_en")  # 8 heads of keys and values
        plan = make_plan(config, batch_size=32, length=64, devices=32, device_memory=1e9)
        assert plan.model_parallel <= 8

    def test_devices_that_see_different_rows_share_the_weights(self):
        llama = config_of("llama3_8b_en")
        arguments = {"batch_size": 8, "length": 512, "devices": 8, "dtype": "bfloat16"}
        copies, shares = (make_plan(llama, fsdp=n, **arguments) for n in (1, 8))
        assert (shares.data_parallel, shares.fsdp, shares.model_parallel) == (1, 8, 1)
        # Norms are whole on each device, of 65 vectors of 4,096 numbers.
        numbers = (shares.parameters - 65 * 4096) // 8 + 65 * 4096
        assert shares.memory.weights == shares.memory.gradients == 2 * numbers
        assert shares.memory.optimizer == 2 * shares.memory.weights
        # What is gathered twice and summed once is sent one and a half times as often as a sum.
        assert shares.sent_bytes == pytest.approx(1.5 * copies.sent_bytes, rel=0.001)
        best = make_plan(llama, fsdp=None, device_memory=60e9, **arguments)
        assert (best.data_parallel, best.fsdp, best.fits) == (4, 2, True)
        with pytest.raises(ValueError, match="into groups of 3 .* Choose one of 1, 2, 4, 8"):
            make_plan(llama, fsdp=3, model_parallel=1, **arguments)


@pytest.mark.backend_independent
class TestMemory:
    def test_rows_and_weights_are_shared(self):
        """On a model axis of 2 the parts of heads and of inner features are halved, not others."""
        one, two = (gpt3(devices=m, model_parallel=m, batch_size=1).memory for m in (1, 2))
        assert one.weights / 2 < two.weights < one.weights / 1.99
        assert one.activations / 2 < two.activations < one.activations
        rows = (gpt3(devices=n, batch_size=n, model_parallel=1).memory for n in (1, 64))
        assert len({memory.weights for memory in rows}) == 1

    def test_activations_grow_with_layers_rows_and_the_square_of_the_length(self):
        def activations(**values):
            arguments = {"batch_size": 16, "length": 512}
            changed = {k: values.pop(k) for k in list(values) if k in arguments}
            config = config_of("gpt2_base_en").replace(**values)
            return make_plan(config, **arguments | changed).memory.activations

        thin, thick = activations(num_layers=12), activations(num_layers=24)
        assert activations(num_layers=36) - thick == thick - thin
        # A part in proportion to the length, and one to its square, which gains on it.
        short, middle, long = (activations(length=length) for length in (256, 512, 1024))
        assert 2 < middle / short < long / middle < 4
        assert long / middle > 2.5
        assert 1.9 < activations(batch_size=32) / activations() < 2.1

    def test_mixed_precision_halves_what_is_computed(self):
        whole, mixed = (gpt3(dtype=dtype).memory for dtype in ("float32", "mixed_bfloat16"))
        assert mixed.weights == whole.weights and mixed.copies == whole.weights // 2
        assert mixed.activations < 0.75 * whole.activations
        assert gpt3(dtype="bfloat16").memory.optimizer == whole.optimizer // 2

    def test_the_cache(self):
        config = config_of("llama3_8b_en")
        plan = make_plan(config, batch_size=16, length=8192, dtype="bfloat16", generating=True)
        # 32 layers, keys and values, 8 heads of 128 numbers of 2 bytes.
        assert plan.memory.cache == 16 * 8192 * 32 * 2 * 8 * 128 * 2
        assert plan.memory.cache == Cache.count_bytes(config, 16, 8192, itemsize=2)
        assert plan.peak_memory == plan.memory.weights + plan.memory.cache
        assert plan.memory.weights == 2 * plan.parameters


@pytest.mark.backend_independent
class TestTime:
    def test_products_and_transfers(self):
        plan = gpt3(model_parallel=32, flops=1e14, bandwidth=1e11)
        assert plan.flops_per_step == 64 * flops_per_sequence(GPT3, 2048)
        assert plan.compute_seconds == plan.flops_per_step / 1024 / 1e14
        # All gradients in a ring of 32; the states of 2 rows, 4 times a layer, in another.
        ring = 2 * 31 / 32
        states = 2 * 2048 * 12_288 * 4 * 96 * 4
        sent = ring * (plan.memory.gradients + states)
        assert plan.transfer_seconds == pytest.approx(sent / 1e11)
        assert plan.step_seconds == plan.compute_seconds + plan.transfer_seconds
        assert "tokens/s" in str(plan)

    def test_rematerialized_blocks_take_a_third_more(self):
        plain, again = (gpt3(flops=1e14, device_memory=m) for m in (1e15, 140e9))
        assert not plain.rematerialize and again.rematerialize
        assert again.compute_seconds / plain.compute_seconds == pytest.approx(4 / 3, rel=0.01)
        assert again.flops_per_step == plain.flops_per_step

    def test_one_token_with_a_cache_is_the_difference_of_two_passes(self):
        config = kt.TransformerConfig(**SMALL, kind="decoder", num_key_value_heads=2)
        plan = make_plan(config, batch_size=3, length=9, generating=True)
        longer, shorter = (flops_per_sequence(config, n, training=False) for n in (9, 8))
        # In a pass the 8 earlier tokens count their pair with the ninth too.
        assert plan.flops_per_token == longer - shorter - 8 * 4 * 24 * 2
        assert plan.flops_per_step == 3 * plan.flops_per_token


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"devices": 0}, "`devices` must be an integer of at least 1"),
        ({"devices": 10**9}, "batch of 64 rows cannot be spread over a data axis"),
        ({"batch_size": 0}, "`batch_size` must be an integer of at least 1"),
        ({"length": 2049}, "learned positions for 2048 only"),
        ({"target_length": 5}, "needs a model of kind 'seq2seq'"),
        ({"devices": 100}, "batch of 64 rows cannot be spread over a data axis of 25"),
        ({"devices": 10, "model_parallel": 5}, "model axis of 5 does not divide num_heads=96"),
        ({"model_parallel": 3}, "1024 devices cannot be cut into models of 3 devices"),
        ({"model_parallel": 8}, "64 rows cannot be spread over a data axis of 128"),
        ({"dtype": "int8"}, "Weights in int8 do not learn: give `lora_rank`"),
        ({"optimizer": "adamax"}, "`optimizer` must be one of 'adamw'"),
        ({"device_memory": 0}, "`device_memory` must be a number above 0"),
        ({"flops": -1.0}, "`flops` must be a number above 0"),
    ],
)
def test_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        gpt3(**arguments)


@pytest.mark.backend_independent
def test_an_encoder_does_not_generate():
    with pytest.raises(ValueError, match="does not generate"):
        make_plan(config_of("bert_base_en"), batch_size=1, length=8, generating=True)


LLAMA = kt.TransformerConfig(
    kind="decoder", vocabulary_size=1000, hidden_dim=64, num_layers=2, num_heads=4,
    num_key_value_heads=2, intermediate_dim=128, position="rotary", gated=True,
    normalization="rms_norm", use_bias=False, max_sequence_length=64,
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "int4", "int4/32", "int4_from_bfloat16"])
def test_integer_weights_are_those_of_the_model(dtype):
    """Bytes of the weights, and of the adapters that alone are trained."""
    options = {"batch_size": 1, "length": 16, "lora_rank": 4, "lora_targets": ["query", "gate"]}
    plan = make_plan(LLAMA, dtype=dtype, **options)
    floats = dtype.partition("_from_")[2] or "float32"
    backbone = kt.models.Decoder(LLAMA, dtype=floats)
    layers = LayerByLayer(backbone, IntegerDtype.parse(dtype))
    for variable in backbone.weights:
        layers.assigned(variable)
    held = sum(math.prod(v.shape) * ITEMSIZES[v.dtype] for v in backbone.variables)
    assert plan.memory.weights == pytest.approx(held, rel=0.01)
    lora.enable_lora(backbone, 4, targets=["query", "gate"])
    trained = 4 * sum(math.prod(v.shape) for v in backbone.trainable_variables)
    assert plan.memory.adapters == trained and plan.memory.optimizer == 2 * trained
    assert plan.memory.embedding_gradients == 0


ITEMSIZES = {"float32": 4, "bfloat16": 2, "int8": 1}


@pytest.mark.backend_independent
def test_adapters_are_planned_for_training_only():
    options = {"batch_size": 1, "length": 16}
    for given, message in (
        ({"dtype": "int4"}, "do not learn: give `lora_rank`"),
        ({"dtype": "int3", "lora_rank": 2}, "`dtype` must be"),
        ({"dtype": "int4_from_int8", "lora_rank": 2}, "`dtype` must be"),
        ({"lora_rank": 0}, "`lora_rank` must be"),
        ({"lora_rank": 2, "lora_targets": ["querry"]}, "`lora_targets` must be a list"),
        ({"lora_rank": 2, "generating": True}, "`lora_rank` is for training"),
    ):
        with pytest.raises(ValueError, match=message):
            make_plan(LLAMA, **options, **given)
    assert make_plan(LLAMA, dtype="int4", generating=True, **options).memory.weights > 0
    text = str(make_plan(LLAMA, dtype="int4", lora_rank=2, **options))
    assert "of rank 2, which alone are trained" in text
