"""A whole published folder, weights and tokenizer: the text that the Transformers library gives."""

import numpy as np
import pytest

import keras_transformer as kt
from tests.checkpoints import families
from tests.tokenizers import folders, piece_folders

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.one_backend

PROMPTS = ["Two dogs run on the grass.", "A man"]


def folder_of(model_type, make_tokenizer, tmp_path):
    """Their tokenizer and a language model with its vocabulary, saved side by side."""
    make_tokenizer(tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    size = max(words.get_vocab().values()) + 1
    values = {"vocab_size": size, "eos_token_id": words.eos_token_id}
    if words.pad_token_id is not None:
        values["pad_token_id"] = words.pad_token_id
    if model_type == "marian":
        values |= {"decoder_vocab_size": size, "decoder_start_token_id": words.pad_token_id}
        values["forced_eos_token_id"] = None
    prefix, configs = families.CONFIGS[model_type]
    config = getattr(transformers, f"{prefix}Config")(**{**configs[0], **values})
    torch.manual_seed(0)
    name = families.class_name(model_type, "LanguageModel")
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            constant = model_type == "marian" and "embed_positions" in path  # sines and cosines
            if parameter.dim() > 1 and not constant:
                parameter.mul_(8.0)  # so that one token is the best
    model.save_pretrained(tmp_path)
    return words, model


@pytest.mark.parametrize(
    ("model_type", "make_tokenizer"),
    [("gpt2", folders.gpt2), ("llama", piece_folders.llama), ("qwen2", folders.qwen2)],
)
def test_continuations(tmp_path, model_type, make_tokenizer):
    words, model = folder_of(model_type, make_tokenizer, tmp_path)
    lm = kt.CausalLM.from_preset(tmp_path)
    for prompt, found in zip(PROMPTS, lm.generate(PROMPTS, max_new_tokens=8), strict=True):
        ids = words(prompt, return_tensors="pt")
        with torch.no_grad():
            whole = model.generate(**ids, max_new_tokens=8, do_sample=False)[0]
        start = ids["input_ids"].shape[1]
        prompt_ids = lm.tokenizer.encode(prompt)
        assert prompt_ids == ids["input_ids"][0].tolist()
        # The text of the whole, less that of the prompt.
        expected = words.decode(whole, skip_special_tokens=True)
        expected = expected[len(words.decode(whole[:start], skip_special_tokens=True)) :]
        assert found == expected


@pytest.mark.parametrize(
    ("model_type", "make_tokenizer"), [("t5", piece_folders.t5), ("marian", piece_folders.marian)]
)
def test_translations(tmp_path, model_type, make_tokenizer):
    words, model = folder_of(model_type, make_tokenizer, tmp_path)
    if model_type == "t5":
        model.generation_config.decoder_start_token_id = words.pad_token_id
    lm = kt.Seq2SeqLM.from_preset(tmp_path)
    for prompt, found in zip(PROMPTS, lm.generate(PROMPTS, max_new_tokens=8), strict=True):
        ids = words(prompt, return_tensors="pt")
        with torch.no_grad():
            target = model.generate(**ids, max_new_tokens=8, do_sample=False, num_beams=1)[0]
        assert found == words.decode(target, skip_special_tokens=True)


def test_proteins(tmp_path):
    """Letters of proteins become vectors, and a mask its likeliest letter; a classifier learns."""
    folders.esm_named(tmp_path)
    words = transformers.AutoTokenizer.from_pretrained(tmp_path)
    values = {"vocab_size": len(words), "mask_token_id": words.mask_token_id}
    model = families.make("esm", 0, "ForMaskedLM", **values)
    model.save_pretrained(tmp_path)
    proteins = ["MKTAYIAK", "GSHM"]
    ids = words(proteins, return_tensors="pt", padding=True)
    with torch.no_grad():
        states = model.esm(**ids).last_hidden_state
        mask = ids["attention_mask"][..., None]
        expected = (states * mask).sum(dim=1) / mask.sum(dim=1)
        masked = words("MKT<mask>YIAK", return_tensors="pt")
        best = model(**masked).logits[0, 4].argmax().item()
    embedder = kt.TextEmbedder.from_preset(tmp_path, pooling="mean", normalize=False)
    np.testing.assert_allclose(embedder.encode(proteins), expected.numpy(), atol=2e-5)
    filling = kt.MaskedLM.from_preset(tmp_path).fill_mask("MKT<mask>YIAK", top_k=1)[0]
    assert filling.token_id == best
    assert filling.text == f"MKT{words.convert_ids_to_tokens(best)}YIAK"
    classifier = kt.TextClassifier.from_preset(tmp_path, labels=["short", "long"])
    classifier.fit(proteins, ["long", "short"], verbose=0)
    assert len(classifier.classify(proteins)) == 2
