import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.support.foreign_names import tables

pytestmark = pytest.mark.backend_independent


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("num_labels", "num_classes"),
        ("id2label", "labels"),
        ("problem_type", "multi_label"),
        ("torch_dtype", "dtype"),
        ("device_map", "distribution"),
    ],
)
def test_an_option_of_transformers_is_answered_with_our_name(option, ours):
    with pytest.raises(ValueError, match=f"no `{option}`, unlike Transformers.*{ours}"):
        kt.TextClassifier.from_preset("minilm_l6_en", **{option: 2})


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("do_sample", "sampler"),
        ("temperature", r"kt\.generation\.Random\(temperature"),
        ("num_beams", r"kt\.generation\.BeamSearch\(num_beams"),
        ("num_return_sequences", "num_samples"),
        ("repetition_penalty", r"kt\.generation\.Rules\(repetition_penalty"),
        ("min_length", r"kt\.generation\.Rules\(min_new_tokens"),
        ("num_beam_groups", r"kt\.generation\.BeamSearch\(num_groups"),
        ("return_dict_in_generate", "return_details"),
        ("generation_config", "arguments of `generate`"),
        ("max_tokens", "max_new_tokens"),
        ("frequency_penalty", r"kt\.generation\.Rules\(frequency_penalty"),
        ("guided_json", "constraint"),
    ],
)
def test_an_option_of_their_generate_is_answered_with_our_name(option, ours):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "intermediate_dim": 8}
    config = kt.TransformerConfig(kind="decoder", vocabulary_size=9, **sizes)
    lm = kt.CausalLM(kt.models.Decoder(config))
    with pytest.raises(ValueError, match=f"no `{option}`, unlike (Transformers|vLLM).*{ours}"):
        lm.generate([3, 4], **{option: 1})
    with pytest.raises(ValueError, match=r"no `input_ids`.*`generate\(prompts\)`"):
        lm.generate(input_ids=[3, 4], **{option: 1})
    with pytest.raises(TypeError, match=r"CausalLM.generate\(\) got an unexpected .* 'nothing'"):
        lm.generate([3, 4], nothing=1)


def test_the_options_that_are_promised_exist():
    kt.generation.Random(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1, typical_p=0.9)
    kt.generation.BeamSearch(
        num_beams=4, length_penalty=1.0, early_stopping=True, num_groups=2, diversity_penalty=0.5
    )
    kt.generation.Speculative()
    kt.generation.Contrastive(penalty_alpha=0.5)
    kt.generation.Rules(
        repetition_penalty=1.1, no_repeat_ngram_size=2, min_new_tokens=1, bad_words=[[3]],
        forced_prefix=[3], function=lambda logits, tokens, counts: logits,
    )  # fmt: skip
    for name in (*tables()["classes"], *tables()["generation"]):
        assert not hasattr(kt, name) and not hasattr(kt.generation, name)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("vocab_size", "vocabulary_size"),
        ("hidden_size", "hidden_dim"),
        ("hidden_dropout_prob", "dropout"),
        ("type_vocab_size", "segment_vocabulary_size"),
    ],
)
def test_a_value_of_their_configs_is_answered_with_our_name(name, ours):
    for take in (
        lambda: kt.TransformerConfig(kind="encoder", **{name: 8}),
        lambda: kt.TransformerConfig.from_dict({"kind": "encoder", name: 8}),
        lambda: kt.Backbone.from_preset("minilm_l6_en", **{name: 8}),
        lambda: kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2, **{name: 8}),
    ):
        with pytest.raises(ValueError, match=f"no `{name}`, unlike Transformers.* `{ours}` here"):
            take()


def test_what_no_backbone_has_is_no_option_of_from_preset():
    for weights in (True, False):
        with pytest.raises(ValueError, match="has an option 'num_layer'.* mean 'num_layers'"):
            kt.Backbone.from_preset("minilm_l6_en", load_weights=weights, num_layer=2)


def test_an_option_of_their_fit_is_answered_with_our_name():
    classifier = kt.TextClassifier.from_preset(
        "minilm_l6_en", num_classes=2, load_weights=False, num_layers=1
    )
    for name, ours in (("learning_rate", "in the optimizer"), ("num_train_epochs", "`epochs`")):
        with pytest.raises(ValueError, match=f"fit has no `{name}`.*{ours}"):
            classifier.fit(["a", "b"], [0, 1], **{name: 1})


def test_arrays_by_name_are_one_dict():
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "intermediate_dim": 8}
    backbone = kt.models.Decoder(kt.TransformerConfig(kind="decoder", vocabulary_size=9, **sizes))
    for model, taker in ((backbone, "Decoder"), (kt.CausalLM(backbone), "CausalLM")):
        with pytest.raises(TypeError, match=f"{taker} takes one dict of arrays.*not `..inputs`"):
            model(input_ids=[[3, 4]], attention_mask=[[1, 1]])
        with pytest.raises(ValueError, match=f"{taker} has no `use_cache`"):
            model({"token_ids": np.array([[3, 4]])}, use_cache=True)


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        (kt, "AutoModelForCausalLM", r"Transformers.s \w+ is `kt.CausalLM`"),
        (kt, "AutoTokenizer", r"Transformers.s \w+ is `kt.Tokenizer`"),
        (kt, "pipeline", "classify"),
        (kt, "BertForSequenceClassification", r"Transformers.s \w+ is `kt.TextClassifier`"),
        (kt, "GPT2LMHeadModel", r"Transformers.s \w+ is `kt.CausalLM`"),
        (kt, "VisionEncoderDecoderModel", r"Transformers.s \w+ is `kt.ImageToText`"),
        (kt, "T5ForConditionalGeneration", r"Transformers.s \w+ is `kt.Seq2SeqLM`"),
        (kt, "BertModel", r"Transformers.s \w+ is `kt.Backbone`"),
        (kt, "BertConfig", "`kt.TransformerConfig`"),
        (kt, "TrainingArguments", "`compile` and `fit`"),
        (kt, "BertTextClassifier", r"KerasHub.s \w+ is `kt.TextClassifier`"),
        (kt.models, "ViTImageClassifier", r"KerasHub.s \w+ is `kt.ImageClassifier`"),
        (kt.layers, "WhisperAudioConverter", r"KerasHub.s \w+ is `kt.AudioProcessor`"),
        (kt.layers, "StartEndPacker", r"KerasHub.s \w+ is not needed: a `kt.Tokenizer`"),
        (kt, "upload_preset", r"KerasHub.s \w+ is `push_to_hub` of a task"),
        (kt.generation, "TopPSampler", r"KerasHub.s \w+ is `Random\(top_p=...\)`"),
        (kt.generation, "TopK", r"another library.* `kt\.generation\.Random\(top_k=...\)`"),
        (kt.generation, "TemperatureLogitsWarper", r"Random\(temperature=...\)"),
        (kt, "NoRepeatNGramLogitsProcessor", r"Rules\(no_repeat_ngram_size=...\)"),
        (kt, "StoppingCriteria", r"generate\(..., stop=...\)"),
        (kt, "SamplingParams", "arguments of `generate`"),
        (kt.generation, "GuidedDecodingParams", r"constraint=...\)"),
        (kt, "LLM", "`kt.CausalLM`"),
        (kt.generation, "BeamSerch", "'BeamSerch'. Did you mean 'BeamSearch'"),
        (kt, "CausalLm", "Did you mean 'CausalLM'"),
        (kt.layers, "EncoderBlok", "Did you mean 'EncoderBlock'"),
        (kt, "nothing_like_it", "has no attribute 'nothing_like_it'$"),
    ],
)
def test_a_class_of_theirs_is_answered_with_ours(module, name, ours):
    with pytest.raises(AttributeError, match=ours):
        getattr(module, name)


@pytest.mark.parametrize(
    ("preset", "said"),
    [
        ("https://huggingface.co/org/name", "write 'hf://org/name'"),
        ("https://huggingface.co/org/name/tree/main", "write 'hf://org/name'"),
        ("kaggle://keras/gpt2/keras/gpt2_base_en", "from_keras_hub"),
    ],
)
def test_an_address_is_answered_with_what_to_write(preset, said):
    with pytest.raises(ValueError, match=said):
        kt.Backbone.from_preset(preset)


def test_rows_with_names_are_sent_to_read():
    classifier = kt.TextClassifier.from_preset(
        "minilm_l6_en", num_classes=2, load_weights=False, num_layers=1
    )
    with pytest.raises(ValueError, match=r"data\.read\(rows, x=\.\.\., y=\.\.\.\)"):
        classifier.fit([{"text": "a", "label": 1}])


def test_adapters_are_merged_before_the_export(tmp_path):
    classifier = kt.TextClassifier.from_preset(
        "minilm_l6_en", num_classes=2, load_weights=False, num_layers=1
    )
    classifier.enable_lora(rank=2)
    with pytest.raises(ValueError, match=r"merge_lora\(\)"):
        kt.export_to_huggingface(classifier, tmp_path / "theirs")
    classifier.merge_lora()
    kt.export_to_huggingface(classifier, tmp_path / "theirs")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("tokenize", "`encode`"),
        ("detokenize", "`decode`"),
        ("batch_decode", "`decode_batch`"),
        ("vocab_size", "`vocabulary_size`"),
        ("eos_token_id", "`end_id`"),
        ("save_pretrained", "`save`, .* `save_to_preset`"),
        ("from_pretrained", r"`from_preset`"),
        ("pad_token", r"`id_to_token\(tokenizer.pad_id\)`"),
        ("push_to_hub", "upload_folder"),
    ],
)
def test_an_attribute_of_their_tokenizers_is_answered_with_ours(name, ours):
    tokenizer = kt.Tokenizer.train(["a cat"] * 2, vocabulary_size=300)
    assert not hasattr(tokenizer, name)
    with pytest.raises(AttributeError, match=ours):
        getattr(tokenizer, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'$"):
        tokenizer.nothing  # noqa: B018
    with pytest.raises(TypeError, match="`encode_batch"):
        tokenizer("a cat")
    with pytest.raises(ValueError, match="encode has no `add_special_tokens`.* `special_tokens`"):
        tokenizer.encode("a cat", add_special_tokens=False)
    with pytest.raises(ValueError, match="encode_batch has no `truncation`.* `max_length`"):
        tokenizer.encode_batch(["a cat"], truncation=True)
    with pytest.raises(ValueError, match="decode has no `skip_special_tokens`.*never include"):
        tokenizer.decode([3], skip_special_tokens=True)
    with pytest.raises(TypeError, match=r"encode\(\) got an unexpected keyword argument 'nothing'"):
        tokenizer.encode("a cat", nothing=1)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("encode", "`predict`"),
        ("enable_lora", "`enable_lora` of a task"),
        ("id2label", "`labels` of a classifier"),
        *(
            []
            if keras.backend.backend() == "torch"
            else [
                ("eval", "not needed: dropout"),
                ("state_dict", "`weights`"),
                ("parameters", "`weights`"),
            ]
        ),
        ("push_to_hub", "upload_folder"),
        ("save_pretrained", "export_to_huggingface"),
        ("from_pretrained", r"`from_preset`"),
        ("presets", r"`kt\.list_presets\(\)`"),
    ],
)
def test_an_attribute_of_their_models_is_answered_with_ours(name, ours):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "intermediate_dim": 8}
    config = kt.TransformerConfig(kind="encoder", vocabulary_size=9, **sizes)
    backbone = kt.models.Encoder(config)
    with pytest.raises(AttributeError, match=ours):
        getattr(backbone, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'$"):
        backbone.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="has no `from_pretrained`.*`CausalLM.from_preset"):
        kt.CausalLM.from_pretrained("gpt2")
    with pytest.raises(AttributeError, match=r"has no `presets`\. It is `kt\.list_presets"):
        kt.CausalLM.presets  # noqa: B018
