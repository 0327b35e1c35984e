"""Languages of translation models, given by name: against Transformers, on random weights."""

import pytest

import keras_transformer as kt
from keras_transformer.tokenizers import Tokenizer, set_source_language
from tests.checkpoints.test_text_in_text_out import PROMPTS, folder_of
from tests.tokenizers import piece_folders

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.one_backend

# The model, the files of its tokenizer, two languages, and the token of the second.
KINDS = {
    "m2m100": ("m2m_100", piece_folders.m2m100, "de", "fr", "__fr__"),
    "nllb": ("m2m_100", piece_folders.nllb, "deu_Latn", "fra_Latn", "fra_Latn"),
    "nllb_legacy": ("m2m_100", piece_folders.nllb_legacy, "fra_Latn", "ace_Arab", "ace_Arab"),
    "mbart": ("mbart", piece_folders.mbart, "de_DE", "fr_XX", "fr_XX"),
    "mbart50": ("mbart", piece_folders.mbart50, "fr_XX", "de_DE", "de_DE"),
    "madlad": ("t5", piece_folders.madlad, None, "de", "<2de>"),
    "marian": ("marian", piece_folders.marian, None, "fra", ">>fra<<"),
}


class Both:
    """Their tokenizer and model, and our task of the same files."""

    def __init__(self, kind, folder):
        model_type, make, self.source, self.target, self.token = KINDS[kind]
        self.kind = kind
        self.words, self.model = folder_of(model_type, make, folder)
        said = self.model.generation_config
        said.eos_token_id = self.model.config.eos_token_id = self.words.eos_token_id
        said.forced_eos_token_id = None
        if model_type != "marian":
            said.decoder_start_token_id = {"t5": self.words.pad_token_id}.get(model_type, 2)
        self.model.save_pretrained(folder)
        self.task = kt.Seq2SeqLM.from_preset(folder)

    def sources(self, text):
        if self.source is None:
            return self.words(f"{self.token} {text}", return_tensors="pt")
        self.words.src_lang = self.source
        return self.words(text, return_tensors="pt")

    def translation(self, text, **options):
        """Their ids, with neither the decoder's start nor the end."""
        index = self.words.convert_tokens_to_ids(self.token)
        if self.kind == "mbart":
            options["decoder_start_token_id"] = index
        elif self.source is not None:
            options["forced_bos_token_id"] = index
        with torch.no_grad():
            found = self.model.generate(**self.sources(text), do_sample=False, **options)
        found = found[0, 1:].tolist()
        return [token for token in found if token != self.words.eos_token_id]

    def starts(self):
        """The ids from which the decoder starts, with the language if it begins a target."""
        index, start = self.words.convert_tokens_to_ids(self.token), self.task.start_id
        return {"mbart": [index]}.get(self.kind, [start, index][: 1 + (self.source is not None)])

    def scores(self, starts, ids, source):
        """Log-probabilities of ids that follow the decoder's start, for the first prompt."""
        tokenizer = self.task.tokenizer
        rows = tokenizer.languages.encode(tokenizer, PROMPTS[:1], source, self.target)
        written = torch.tensor([[*starts, *ids]])
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor(rows), decoder_input_ids=written).logits
        scores = logits[0, len(starts) - 1 : -1].log_softmax(-1)
        return [float(row[token]) for row, token in zip(scores, ids, strict=True)]


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    return Both(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize(
    "both, beams",
    [*((kind, 1) for kind in KINDS), *((kind, 3) for kind in ("m2m100", "mbart", "mbart50"))],
    indirect=["both"],
)
def test_translations_equal_transformers(both, beams):
    sampler = kt.generation.BeamSearch(beams) if beams > 1 else "greedy"
    languages = {"source": both.source, "target": both.target}
    options = {"max_new_tokens": 7, "sampler": sampler, "return_details": True, **languages}
    found = both.task.generate(PROMPTS, **options)
    expected = [both.translation(text, max_new_tokens=7, num_beams=beams) for text in PROMPTS]
    assert [each.token_ids for each in found] == expected
    assert [each.text for each in found] == both.words.batch_decode(
        expected, skip_special_tokens=True
    )


def test_sources_equal_transformers(both):
    inner = both.task.tokenizer.languages
    rows = inner.encode(both.task.tokenizer, PROMPTS, both.source, both.target)
    assert rows == [both.sources(text)["input_ids"][0].tolist() for text in PROMPTS]
    assert inner.ids[both.target] == both.words.convert_tokens_to_ids(both.token)
    assert both.target in both.task.languages and len(both.task.languages) == len(inner)


@pytest.mark.parametrize("both", ["m2m100", "mbart", "marian"], indirect=True)
def test_scores_of_targets(both):
    languages = {"source": both.source, "target": both.target}
    score = both.task.score(PROMPTS[0], "a man", per_token=True, **languages)
    starts, (ids,) = both.starts(), both.task.tokenizer.encode_targets(["a man"])
    ids = [*starts[1:], *ids, both.words.eos_token_id]
    assert score.tolist() == pytest.approx(both.scores(starts[:1], ids, both.source), rel=1e-4)


def test_unknown_languages_are_refused(both):
    for name in ("source", "target"):
        with pytest.raises(ValueError, match=f"`{name}` is 'klingon'|leave out `source`"):
            both.task.generate(PROMPTS, **{name: "klingon"})
    with pytest.raises(ValueError, match="`target` is 3, which is not a language"):
        both.task.generate(PROMPTS, target=3)
    if both.source is None:
        with pytest.raises(ValueError, match="finds out that of the source: leave out `source`"):
            both.task.generate(PROMPTS, source=both.target)


def test_ids_have_their_source_already(both):
    rows = [both.sources(text)["input_ids"][0].tolist() for text in PROMPTS]
    if both.source is None:
        with pytest.raises(ValueError, match="`prompts` must be texts here"):
            both.task.generate(rows, target=both.target)
        return
    languages = {"source": both.source, "target": both.target}
    with pytest.raises(ValueError, match="`prompts` must be texts here"):
        both.task.generate(rows, **languages)
    with pytest.raises(ValueError, match="`prompts` must be texts here"):
        both.task.generate(rows[0], **languages)
    texts = both.task.generate(PROMPTS, max_new_tokens=5, return_details=True, **languages)
    found = both.task.generate(rows, max_new_tokens=5, target=both.target)
    assert found == [each.token_ids for each in texts]


@pytest.mark.parametrize("both", ["m2m100", "mbart", "madlad"], indirect=True)
def test_a_constraint_begins_after_the_language(both):
    """Its scores are those of their model, whose decoder starts from the language."""
    options = {"constraint": both.task.constraint(choices=["a man"]), "return_details": True}
    found = both.task.generate(PROMPTS[0], target=both.target, **options)
    assert found.text == "a man"
    expected = both.scores(both.starts(), found.token_ids, None)
    assert found.log_probabilities.tolist() == pytest.approx(expected, rel=1e-4)


def test_rules_of_the_caller(both):
    rules = kt.generation.Rules(forced_prefix=[5])
    if both.task.tokenizer.languages.target == "forced":
        with pytest.raises(ValueError, match="give either `target` or rules"):
            both.task.generate(PROMPTS, target=both.target, rules=rules)
    elif both.kind == "mbart":
        options = {"max_new_tokens": 3, "return_details": True}
        found = both.task.generate(PROMPTS, target=both.target, rules=rules, **options)
        assert {each.token_ids[0] for each in found} == {5}


def test_source_language_of_the_tokenizer(both, tmp_path):
    both.task.tokenizer.save(tmp_path)
    tokenizer = Tokenizer.from_files(tmp_path)
    if both.source is None:
        with pytest.raises(ValueError, match="adds no language to a text"):
            set_source_language(tokenizer, both.target)
        return
    set_source_language(tokenizer, both.source)
    assert tokenizer.encode(PROMPTS[0]) == both.sources(PROMPTS[0])["input_ids"][0].tolist()
    tokenizer.save(tmp_path)
    again = Tokenizer.from_files(tmp_path)
    assert again.encode_batch(PROMPTS) == tokenizer.encode_batch(PROMPTS)
    assert again.languages == tokenizer.languages
    with pytest.raises(ValueError, match="`source` is 'xx', which is not a language"):
        set_source_language(tokenizer, "xx")


def test_names_that_may_be_meant(both):
    known = both.task.tokenizer.languages
    for given, meant in (("de", both.target), ("fr", both.target), ("FR", both.target)):
        if both.target.startswith(given.casefold()[:2]) and given != both.target:
            with pytest.raises(ValueError, match=f"Did you mean .*'{meant}'"):
                known.check(None, given)
    with pytest.raises(ValueError, match="It knows "):
        known.check(None, "?")


def test_models_without_languages():
    words = Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)
    sizes = {"vocabulary_size": words.vocabulary_size, "hidden_dim": 8, "num_heads": 2}
    sizes |= {"num_layers": 1, "intermediate_dim": 8}
    config = kt.TransformerConfig(kind="seq2seq", **sizes)
    task = kt.Seq2SeqLM(kt.models.Seq2Seq(config), words)
    assert task.languages == () and words.languages is None
    with pytest.raises(ValueError, match="This model has no tokens for languages"):
        task.generate("a man", target="de")
    lm = kt.CausalLM(kt.models.Decoder(kt.TransformerConfig(kind="decoder", **sizes)), words)
    with pytest.raises(ValueError, match="are the languages of a translation model"):
        lm.generate("a man", source="de")
