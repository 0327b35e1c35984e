"""A program that uses the public surface, for `make lint`: mypy checks it, and nothing runs it."""

from collections.abc import Sequence
from typing import assert_type

import numpy as np

import keras_transformer as kt
from keras_transformer.generation import BeamSearch, Random, Rules, Sampler
from keras_transformer.layers import DecoderBlock, EncoderBlock, SinusoidalPosition, TokenEmbedding


class Stars(kt.TextClassifier):
    """A task of the user's own keeps its class through `from_preset`."""

    def stars(self, texts: Sequence[str]) -> list[int]:
        return [int(label) for label, _ in self.classify(list(texts))]


def fine_tune(texts: list[str], labels: list[str]) -> kt.TextClassifier:
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["bad", "good"])
    assert_type(classifier, kt.TextClassifier)
    classifier.freeze(2)
    classifier.enable_lora(rank=4)
    data = kt.data.read("reviews.csv", x="text", y="label")
    assert_type(data, kt.data.Records)
    dataset = classifier.make_dataset(texts, labels, batch_size=16, shuffle=True)
    assert_type(dataset, kt.data.BucketedDataset)
    rate = kt.training.LinearDecay(1e-4, len(dataset), warmup_steps=10)
    classifier.compile(kt.training.FineTuningAdamW(rate), classifier.loss, metrics=["accuracy"])
    classifier.fit(dataset, epochs=3, callbacks=[kt.training.StopAtNaN()])
    classifier.fit(texts, labels, batch_size=8, validation_data=(texts, labels), verbose=0)
    classifier.fit(texts, labels, shuffle="yes")  # type: ignore[arg-type]
    print(classifier.evaluate(data), classifier.evaluate(texts, labels, batch_size=8))
    assert_type(classifier.predict(texts, batch_size=8), np.ndarray)
    classifier.save_to_preset("my_classifier", dtype="float16")
    kt.export_to_huggingface(classifier, "for_transformers")
    assert_type(Stars.from_preset("my_classifier"), Stars)
    return classifier


def ask(text: str) -> None:
    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    assert_type(translator, kt.Seq2SeqLM)
    sampler: Sampler = BeamSearch(num_beams=5)
    print(translator.generate([text], sampler=sampler, return_details=True))
    print(translator.score([text], [text]))
    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare", dtype="bfloat16")
    for piece in lm.generate(text, sampler=Random(top_p=0.9), seed=1, stream=True):
        print(piece, end="", flush=True)
    rules = Rules(min_new_tokens=4, repetition_penalty=1.2, bad_words=[[3, 4]], forced_prefix=[5])
    print(lm.generate(text, max_new_tokens=8, rules=rules, stop=["\n"]), lm.score(text))
    lm.generate(text, max_new_tokens="8")  # type: ignore[arg-type]
    print(kt.TokenClassifier.from_preset("bert_base_en_ner").recognize(text))
    print(kt.MaskedLM.from_preset("roberta_base_en").fill_mask(text, top_k=3))
    print(kt.QuestionAnswerer.from_preset("my_answerer").answer("Who?", text))
    print(kt.TextEmbedder.from_preset("minilm_l6_en").predict([text]) @ np.eye(384))


def tokenize(texts: list[str]) -> None:
    tokenizer = kt.Tokenizer.train(texts, kind="wordpiece", vocabulary_size=300)
    assert_type(tokenizer, kt.Tokenizer)
    assert_type(kt.Tokenizer.from_preset("minilm_l6_en"), kt.Tokenizer)
    assert_type(tokenizer.encode("one", pair="two"), list[int])
    assert_type(tokenizer.decode_batch(tokenizer.encode_batch(texts, max_length=8)), list[str])
    assert_type(tokenizer.pad_id, int | None)
    tokenizer.encode(texts)  # type: ignore[arg-type]


def build() -> None:
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=1000,
        hidden_dim=64,
        num_layers=2,
        num_heads=4,
        intermediate_dim=128,
        decoder={"layer_pattern": [{"window": 8}, {}]},
    )
    kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=1000,
        hidden_dim=64,
        num_layers=2,
        num_heads=4,
        intermediate_dim=128,
        layer_pattern=[{"window": 8}, {}],
    )
    assert_type(config.hidden_dim, int)
    backbone = kt.models.Seq2Seq(config)
    backbone({"encoder_token_ids": np.ones((1, 3)), "decoder_token_ids": np.ones((1, 2))})
    assert_type(kt.Backbone.from_preset("minilm_l6_en", dropout=0.0), kt.Backbone)
    assert_type(kt.models.Encoder.from_preset("minilm_l6_en"), kt.models.Encoder)
    ids = np.ones((2, 5), "int32")
    states = SinusoidalPosition()(TokenEmbedding(1000, 64, mask_zero=True)(ids))
    states = EncoderBlock(num_heads=4, intermediate_dim=128, dropout=0.1)(states)
    print(DecoderBlock(num_heads=4, intermediate_dim=128)(states))
    plan = kt.planning.make_plan(config, batch_size=8, length=128)
    assert_type(plan, kt.planning.Plan)


def names() -> list[str]:
    assert_type(kt.__version__, str)
    return kt.list_presets(task="causal_lm")


def misspelt() -> object:
    # Unused, which is an error, where a wrong name passes.
    return kt.TextClasifier, kt.layers.EncoderBlok  # type: ignore[attr-defined]
