import pytest

import keras_transformer as kt

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
    with pytest.raises(ValueError, match=f"no `{option}`, as Transformers has it.*{ours}"):
        kt.TextClassifier.from_preset("minilm_l6_en", **{option: 2})


@pytest.mark.parametrize(
    ("option", "ours"),
    [
        ("do_sample", "sampler"),
        ("temperature", r"kt\.generation\.Random\(temperature"),
        ("num_beams", r"kt\.generation\.BeamSearch\(num_beams"),
        ("num_return_sequences", "num_samples"),
        ("repetition_penalty", r"kt\.generation\.Rules\(repetition_penalty"),
    ],
)
def test_an_option_of_their_generate_is_answered_with_our_name(option, ours):
    sizes = {"hidden_dim": 8, "num_layers": 1, "num_heads": 1, "intermediate_dim": 8}
    config = kt.TransformerConfig(kind="decoder", vocabulary_size=9, **sizes)
    lm = kt.CausalLM(kt.models.Decoder(config))
    with pytest.raises(ValueError, match=f"no `{option}`, as Transformers has it.*{ours}"):
        lm.generate([3, 4], **{option: 1})


def test_the_options_that_are_promised_exist():
    kt.generation.Random(temperature=0.8, top_k=5, top_p=0.9, min_p=0.1, typical_p=0.9)
    kt.generation.BeamSearch(num_beams=2, length_penalty=1.0)
    kt.generation.Contrastive(penalty_alpha=0.5)
    kt.generation.Rules(
        repetition_penalty=1.1, no_repeat_ngram_size=2, min_new_tokens=1, bad_words=[[3]]
    )


@pytest.mark.parametrize(
    ("module", "name", "ours"),
    [
        (kt, "AutoModelForCausalLM", "Transformers calls so is `kt.CausalLM`"),
        (kt, "AutoTokenizer", "Transformers calls so is `kt.Tokenizer`"),
        (kt, "pipeline", "classify"),
        (kt, "BertTextClassifier", "KerasHub calls so is `kt.TextClassifier`"),
        (kt.generation, "TopPSampler", r"`Random\(top_p=...\)`"),
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
        ("save_pretrained", "`save_to_preset`"),
        ("from_pretrained", r"`from_preset`"),
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


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("encode", "`predict`"),
        ("enable_lora", "`enable_lora` of a task"),
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
