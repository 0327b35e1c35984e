"""A decoder of one's own blocks: with a cache as without, in every task of decoders."""

import copy

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers import DecoderBlock, LearnedPosition
from tests.tasks.common import ENGLISH, config, randomized, tokenizer

PROMPTS_OF_TEXT = ENGLISH[:2]
PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [20, 21]]


@keras.saving.register_keras_serializable("tests")
def half_of_products(queries, keys):
    return keras.ops.einsum("bnth,bnsh->bnts", queries, keys) / 2


@keras.saving.register_keras_serializable("tests")
class Mixed(kt.models.DecoderBase):
    """Blocks of different heads, windows and scores, learned positions beside rotary ones."""

    def __init__(self, config, **kwargs):
        super().__init__(config, **kwargs)
        self.position = LearnedPosition(config.max_sequence_length, config.hidden_dim)
        common = {"activation": keras.ops.silu, "normalize_first": True, "dtype": self.dtype_policy}
        self.blocks = [
            DecoderBlock(2, 24, rotary={}, window=3, **common),
            DecoderBlock(4, 16, num_key_value_heads=2, score=half_of_products, **common),
        ]
        self.norm = keras.layers.RMSNormalization(dtype=self.dtype_policy)
        self.build()

    @property
    def cache_layers(self):
        return [(2, 8, 3), (2, 4)]

    def call(self, inputs, cache=None, training=False):
        x = self.token_embedding(inputs["token_ids"])
        run = kt.models.ForwardContext(x, inputs, cache)
        x = x + self.position(x, positions=run.positions)
        for block in self.blocks:
            x = run(block, x, training=training)
        return run.outputs(self.norm(x))


def make(**values):
    words = tokenizer("bpe", add_prefix_space=True)
    sizes = config("decoder", words, position="learned", max_sequence_length=64, **values)
    return randomized(kt.CausalLM(Mixed(sizes), words, end_ids=[]))


def by_whole_passes(task, ids, count):
    """The likeliest tokens, each by a pass over all before it and no cache."""
    ids = list(ids)
    for _ in range(count):
        # Of one shape: what follows is not seen by what stands before.
        padded = np.array([ids + [0] * (16 - len(ids))])
        logits = keras.ops.convert_to_numpy(task.predict_on_batch({"token_ids": padded}))
        ids.append(int(logits[0, len(ids) - 1].argmax()))
    return ids[-count:]


def test_generating_with_the_cache_is_generating_without():
    task = make()
    expected = [by_whole_passes(task, prompt, 6) for prompt in PROMPTS]
    assert task.generate(PROMPTS, max_new_tokens=6) == expected
    beams = task.generate(PROMPTS[:1], max_new_tokens=3, sampler="beam", return_details=True)
    found = beams[0]
    assert found.score == pytest.approx(float(found.log_probabilities.sum()) / 3, rel=1e-4)


@pytest.mark.one_backend
def test_it_trains_packs_and_is_copied():
    task = make()
    task.optimizer.learning_rate = 1e-2
    losses = task.fit(ENGLISH * 2, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    alone = task.evaluate(task.make_dataset(ENGLISH, max_buckets=1), verbose=0)[0]
    packed = task.evaluate(task.make_dataset(ENGLISH, pack_length=64), verbose=0)[0]
    assert packed == pytest.approx(alone, rel=1e-3)
    again = copy.deepcopy(task)
    assert type(again.backbone) is Mixed
    np.testing.assert_allclose(again.score(ENGLISH), task.score(ENGLISH), rtol=1e-4)


@pytest.mark.one_backend
def test_files_do_not_depend_on_the_numbers_of_its_layers(tmp_path):
    """Keras numbers its blocks, which have no names of their own, within a process."""
    first, second = make(), make()
    names = [task.backbone.blocks[0].name for task in (first, second)]
    assert names[0] != names[1]
    frozen = first.backbone.blocks[1].feed_forward
    frozen.trainable = False
    expected = first.predict(PROMPTS_OF_TEXT, verbose=0)
    first.save(tmp_path / "task.keras")
    loaded = keras.models.load_model(tmp_path / "task.keras")
    assert not loaded.backbone.blocks[1].feed_forward.trainable_weights
    assert len(loaded.trainable_weights) == len(first.trainable_weights)
    np.testing.assert_allclose(loaded.predict(PROMPTS_OF_TEXT, verbose=0), expected, atol=1e-5)
    frozen.trainable = True

    first.enable_lora(2, targets=["query"])
    for variable in first.trainable_weights:
        variable.assign(keras.ops.ones_like(variable) / 8)
    adapted = first.predict(PROMPTS_OF_TEXT, verbose=0)
    first.save_adapter(tmp_path / "adapter.safetensors")
    second.load_adapter(tmp_path / "adapter.safetensors")
    np.testing.assert_allclose(second.predict(PROMPTS_OF_TEXT, verbose=0), adapted, atol=1e-5)
    first.save(tmp_path / "adapted.keras")
    loaded = keras.models.load_model(tmp_path / "adapted.keras")
    assert "layers" not in loaded.get_config()["adapters"]  # these have names
    assert len(loaded.trainable_weights) == len(first.trainable_weights)
    np.testing.assert_allclose(loaded.predict(PROMPTS_OF_TEXT, verbose=0), adapted, atol=1e-5)


def test_a_classifier_on_it():
    task = make()
    classifier = kt.TextClassifier(task.backbone, task.tokenizer, num_classes=2)
    together = classifier.predict(ENGLISH, verbose=0)
    alone = [classifier.predict([text], verbose=0)[0] for text in ENGLISH]
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_a_head_of_ones_own_is_used_in_training():
    class Doubled(Mixed):
        def logits(self, hidden_states):
            return 2 * super().logits(hidden_states)

    plain = make()
    task = kt.CausalLM(Doubled(plain.backbone.config), plain.tokenizer, end_ids=[])
    task.set_weights(plain.get_weights())
    plain.set_weights([2 * w if "token_embedding" in v.path else w for v, w in zip(
        plain.weights, plain.get_weights(), strict=True)])  # fmt: skip
    assert task.training_loss() is None
    logits = task.predict(ENGLISH, verbose=0)
    assert np.abs(logits).max() > 0
    inputs, targets, weights = task.make_dataset(ENGLISH, max_buckets=1)[0]
    expected = kt.training.TokenCrossEntropy()(
        targets, task.predict_on_batch(inputs), sample_weight=weights
    )
    found = task.evaluate(ENGLISH, verbose=0)[0]
    assert found == pytest.approx(float(expected), rel=1e-4)


def test_what_it_cannot_do_is_said(tmp_path):
    task = make()
    for act, said in (
        (lambda: task.save_to_preset(tmp_path / "p"), "class of your own"),
        (lambda: kt.export_to_huggingface(task, tmp_path / "h"), "class of your own"),
        (lambda: task.freeze(1), "set `trainable`"),
        (lambda: kt.training.smaller(task, 1), "make the student yourself"),
        (lambda: kt.CausalLM(keras.Sequential()), "DecoderBase"),
    ):
        with pytest.raises(ValueError, match=said):
            act()
    assert not list(tmp_path.iterdir())


@pytest.mark.one_backend
def test_a_decoder_that_forgets_the_cache_is_told_so():
    class NoCache(Mixed):
        def call(self, inputs, training=False):
            return super().call(inputs, training=training)

    class NoOutputs(Mixed):
        def call(self, inputs, cache=None, training=False):
            return super().call(inputs, training=training)

    values = config("decoder", tokenizer("bpe", add_prefix_space=True), max_sequence_length=64)
    for cls, said in ((NoCache, "its `call` takes no `cache`"), (NoOutputs, r"run\.outputs")):
        lm = kt.CausalLM(cls(values))
        with pytest.raises(ValueError, match=f"{cls.__name__} cannot generate: .*{said}"):
            lm.generate([5, 6], max_new_tokens=2)


def test_a_decoder_that_forgets_to_build():
    class NotBuilt(kt.models.DecoderBase):
        def __init__(self, config, **kwargs):
            super().__init__(config, **kwargs)
            self.block = DecoderBlock(2, 8)

        def call(self, inputs, cache=None, training=False):
            x = self.token_embedding(inputs["token_ids"])
            run = kt.models.ForwardContext(x, inputs, cache)
            return run.outputs(run(self.block, x, training=training))

    values = config("decoder", tokenizer("bpe", add_prefix_space=True))
    assert len(kt.CausalLM(NotBuilt(values)).generate([5, 6], max_new_tokens=2)) == 2
