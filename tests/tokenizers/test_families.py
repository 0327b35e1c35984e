"""Every published family: its files, older and newer, against Transformers on the same files."""

import json

import pytest

from keras_transformer.tokenizers import Tokenizer
from keras_transformer.tokenizers.languages import M2M100_CODES
from tests.thorough import many
from tests.tokenizers.folder_parts import REAL, write_json
from tests.tokenizers.folders import (
    FAMILIES,
    bert,
    bert_json,
    clip,
    esm,
    esm_named,
    gpt,
    gpt2,
    roberta,
    transformers,
)
from tests.tokenizers.nasty import NASTY
from tests.tokenizers.piece_folders import (
    albert,
    deberta,
    m2m100,
    marian,
    mbart,
    mbart50,
    nllb,
    nllb_pieces,
    rembert,
    rembert_pieces,
    siglip,
    t5,
    xglm,
    xlm_roberta,
)

pytestmark = pytest.mark.backend_independent

ROLES = ("pad", "start", "end", "mask", "unknown")
TEXTS = REAL[: many(100)] + NASTY


def assert_same(ours: Tokenizer, theirs, texts: list[str]) -> None:
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]
    plain = theirs(texts, add_special_tokens=False)["input_ids"]
    assert ours.encode_batch(texts, special_tokens=False) == plain
    pairs = texts[::-1]
    expected = theirs(texts, pairs, return_token_type_ids=True)
    ids, segments = ours.encode_batch_with_segments(texts, pairs)
    assert (ids, segments) == (expected["input_ids"], expected["token_type_ids"])
    assert ours.decode_batch(plain) == theirs.batch_decode(plain, skip_special_tokens=True)
    roles = {
        "pad": theirs.pad_token,
        "start": theirs.bos_token or theirs.cls_token,
        "end": theirs.eos_token or theirs.sep_token,
        "mask": theirs.mask_token,
        "unknown": theirs.unk_token,
    }
    assert {role: ours._roles[role] for role in ROLES} == roles
    assert ours.vocabulary_size == max(theirs.get_vocab().values()) + 1


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_ids_equal_transformers(make, tmp_path):
    make(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    assert_same(ours, theirs, TEXTS)
    # And what either saves of it, which has a tokenizer.json.
    theirs.save_pretrained(tmp_path / "theirs")
    ours.save(tmp_path / "ours")
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        (folder / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
        loaded = Tokenizer.from_files(folder)
        assert_same(loaded, transformers.AutoTokenizer.from_pretrained(folder), NASTY)
    # Theirs forgets Llama's "legacy".
    assert loaded.encode_batch(NASTY) == ours.encode_batch(NASTY)
    assert loaded._roles == ours._roles


def with_tokens(tokenizer) -> list[str]:
    """Texts in which the special tokens are written out."""
    forms = ("a {} b", "a{}b", "{}", " {}  {} c", "{} a", "B, {}")
    return [form.replace("{}", token) for token in tokenizer.all_special_tokens for form in forms]


@pytest.mark.parametrize("make", [deberta, mbart, mbart50, siglip, xlm_roberta])
@pytest.mark.parametrize("without", ["config.json", "tokenizer_config.json"])
def test_folders_without_a_config(make, without, tmp_path):
    """A class that one of the two files names has special tokens of its own."""
    make(tmp_path)
    names = {
        "deberta": "DebertaV2Tokenizer",
        "mbart": "MBartTokenizer",
        "mbart50": "MBart50Tokenizer",
        "siglip": "SiglipTokenizer",
        "xlm_roberta": "XLMRobertaTokenizer",
    }
    for file in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / file).unlink(missing_ok=True)
    other = {"config.json": "tokenizer_config.json", "tokenizer_config.json": "config.json"}[
        without
    ]
    kind = {"deberta": "deberta-v2", "mbart50": "mbart", "xlm_roberta": "xlm-roberta"}
    said = {"model_type": kind.get(make.__name__, make.__name__)} if other == "config.json" else {}
    write_json(tmp_path, other, {"tokenizer_class": names[make.__name__], **said})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == names[make.__name__]
    ours = Tokenizer.from_files(tmp_path)
    texts = [*REAL[:20], *with_tokens(theirs)]
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]
    assert ours.vocabulary_size == len(theirs)


def test_pieces_of_xglm_without_a_tokenizer_json(tmp_path):
    """The same ids: four special tokens, the pieces, and tokens without a meaning."""
    xglm(tmp_path)
    expected = Tokenizer.from_files(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    pieces = Tokenizer.from_files(tmp_path)
    assert pieces.encode_batch(TEXTS) == expected.encode_batch(TEXTS)
    assert pieces.vocabulary_size == expected.vocabulary_size
    write_json(tmp_path, "tokenizer_config.json", {"add_prefix_space": False})
    without = Tokenizer.from_files(tmp_path)
    assert without.encode("a b") != pieces.encode("a b")
    assert without.encode(" a b") == pieces.encode("a b")


def test_ids_equal_those_of_siglip(tmp_path):
    """Theirs is no file of rules, but a program, which never ends a text with its end twice."""
    siglip(tmp_path)
    theirs, ours = (
        load(tmp_path)
        for load in (transformers.AutoTokenizer.from_pretrained, Tokenizer.from_files)
    )
    # Nor is one of many marks on a letter, or a word behind a mark that is itself behind a special
    # token, as in a file of rules. The first of a pair may end twice.
    texts = [text for text in TEXTS if "a" + "\u0301" * 30 not in text and "<unk> <" not in text]
    assert len(texts) > len(TEXTS) - 4
    assert_same(ours, theirs, [text for text in texts if "</s>" not in text])
    written = [*texts, *with_tokens(theirs)]
    assert ours.encode_batch(written) == theirs(written)["input_ids"]
    assert ours.encode("A CAT, a dog!") == ours.encode(" a cat a dog ") != ours.encode("a cat")
    assert ours.pad_id == ours.end_id
    ours.save(tmp_path / "ours")
    back = Tokenizer.from_files(tmp_path / "ours")
    assert back.encode_batch(written) == ours.encode_batch(written)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    texts = [text for text in texts if not text.rstrip().endswith("</s>")]
    assert again(texts)["input_ids"] == theirs(texts)["input_ids"]
    write_json(tmp_path, "tokenizer_config.json", {"do_lower_case": False})
    cased = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same(Tokenizer.from_files(tmp_path), cased, texts)


@pytest.mark.parametrize(
    "make",
    [bert, roberta, gpt2, gpt, clip, albert, xlm_roberta, t5],
    ids=lambda make: make.__name__,
)
def test_files_that_nothing_is_said_about(make, tmp_path):
    make(tmp_path)
    texts = [text for text in NASTY if "<mask>" not in text]  # XLM-RoBERTa's has options
    expected = Tokenizer.from_files(tmp_path)
    for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / name).unlink(missing_ok=True)
    loaded = Tokenizer.from_files(tmp_path)
    assert loaded.encode_batch(texts, texts) == expected.encode_batch(texts, texts)
    assert loaded._roles == expected._roles


def test_a_token_without_an_embedding_is_not_added(tmp_path):
    gpt2(tmp_path)
    size = len(json.loads((tmp_path / "vocab.json").read_text()))
    write_json(tmp_path, "tokenizer_config.json", {"pad_token": "[PAD]", "mask_token": "<mask>"})
    for room, names in ((0, []), (1, ["[PAD]"]), (2, ["[PAD]", "<mask>"])):
        write_json(tmp_path, "config.json", {"model_type": "gpt2", "vocab_size": size + room})
        loaded = Tokenizer.from_files(tmp_path)
        assert loaded.vocabulary_size == size + room
        added = [token for token in (loaded._roles["pad"], loaded._roles["mask"]) if token]
        assert added == names


def test_special_tokens_with_spaces(tmp_path):
    t5(tmp_path)
    write_json(tmp_path, "config.json", {"model_type": "t5", "vocab_size": 2000})
    write_json(tmp_path, "tokenizer_config.json", {"eos_token": "the end"})
    loaded = Tokenizer.from_files(tmp_path)
    assert loaded.encode("a")[-1] == loaded.end_id == loaded.token_to_id("the end")


def test_files_that_contradict_each_other(tmp_path):
    gpt2(tmp_path)
    write_json(tmp_path, "added_tokens.json", {"<new>": 5})
    with pytest.raises(ValueError, match=r"'<new>' with the id 5, but in the vocabulary it has"):
        Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokenizer_config.json", {"do_lower_case": "yes"}),
        ("tokenizer_config.json", {"added_tokens_decoder": [1]}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "a"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"99999999999": "a"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"1": 5}}),
        ("tokenizer_config.json", {"additional_special_tokens": 5}),
        ("tokenizer_config.json", {"additional_special_tokens": [5]}),
        ("tokenizer_config.json", {"tokenizer_class": "T5Tokenizer", "extra_ids": 10**12}),
        ("added_tokens.json", {"a": "b"}),
        ("added_tokens.json", []),
        ("special_tokens_map.json", {"cls_token": "not there"}),
        ("config.json", "text"),
    ],
)
def test_values_of_a_wrong_kind(name, values, tmp_path):
    (t5 if "extra_ids" in values else bert)(tmp_path)
    write_json(tmp_path, name, values)
    with pytest.raises(ValueError, match=r"\.json|must be|not a WordPiece"):
        Tokenizer.from_files(tmp_path)


PROTEINS = [
    "MKTAYIAKQRQISFVKSHFSRQ", "M K T\tLLA", "MQI<mask>TL <cls>K", "mkM", "<null_1><null_12><nul",
    "A.-(B)XLAL", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "<maskL>", "\x1cM\x85K\u3000",
]  # fmt: skip


@pytest.mark.parametrize("make", [esm, esm_named])
def test_proteins(make, tmp_path):
    make(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path), PROTEINS)
    ids = ours.encode("MKTA")
    assert [ours.id_to_token(i) for i in ids] == ["<cls>", "M", "K", "T", "A", "<eos>"]
    (tmp_path / "vocab.txt").write_text("\n".join(map(str, range(2_000))))
    with pytest.raises(ValueError, match="has 2,000 tokens, but an alphabet of proteins at most"):
        Tokenizer.from_files(tmp_path)


def test_older_files_of_rembert(tmp_path):
    """The same ids as of the tokenizer.json, with the tokens around a text."""
    for make in (rembert, rembert_pieces):
        (tmp_path / make.__name__).mkdir()
        make(tmp_path / make.__name__)
    newer, older = (Tokenizer.from_files(tmp_path / n) for n in ("rembert", "rembert_pieces"))
    assert older.encode_batch(TEXTS) == newer.encode_batch(TEXTS)
    (tmp_path / "rembert_pieces" / "config.json").unlink()
    unnamed = Tokenizer.from_files(tmp_path / "rembert_pieces")
    assert unnamed.encode("a dog") == newer.encode("a dog")


@pytest.mark.parametrize("make", [bert, bert_json])
def test_a_class_whose_rules_no_file_contains(make, tmp_path):
    """RoFormer's words are jieba's, in whose place its files name BERT's."""
    make(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink(missing_ok=True)
    write_json(tmp_path, "config.json", {"model_type": "roformer"})
    with pytest.raises(ValueError, match="jieba.*by `Backbone.from_preset`.*give it token ids"):
        Tokenizer.from_files(tmp_path)


def test_a_class_with_other_rules(tmp_path):
    bert(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(ValueError, match="is a 'BertJapaneseTokenizer', which has rules"):
        Tokenizer.from_files(tmp_path)
    # Its tokenizer.json tells them.
    trained = Tokenizer.train(REAL, vocabulary_size=400)
    trained._backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_files(tmp_path).encode_batch(NASTY) == trained.encode_batch(NASTY)


def test_a_deeply_nested_file(tmp_path):
    bert(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"a":' * 100_000)
    with pytest.raises(ValueError, match=r"tokenizer_config.json' is not valid JSON"):
        Tokenizer.from_files(tmp_path)


# M2M100 and Marian, whose tokenizers are Python code over the SentencePiece library


@pytest.mark.parametrize(
    "options", [{}, {"language_codes": "wmt21", "src_lang": "de"}], ids=["usual", "wmt"]
)
@pytest.mark.filterwarnings("ignore:Recommended")
def test_m2m100_equals_transformers(options, tmp_path):
    m2m100(tmp_path, M2M100_CODES[options.get("language_codes", "m2m100")], **options)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    texts = [*TEXTS, "__en__ a", "a __de__ b", "a__zh__", "__xx__ c", "äöüß", "<unk> b <pad></s>"]
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]
    plain = theirs(texts, add_special_tokens=False)["input_ids"]
    assert ours.encode_batch(texts, special_tokens=False) == ours.encode_targets(texts) == plain
    pairs = texts[::-1]
    assert ours.encode_batch(texts, pairs) == theirs(texts, pairs)["input_ids"]
    assert ours.decode_batch(plain) == theirs.batch_decode(plain, skip_special_tokens=True)
    assert (ours.pad_id, ours.start_id, ours.end_id, ours.unknown_id) == (1, 0, 2, 3)
    assert ours.vocabulary_size == len(theirs)

    ours.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    loaded = Tokenizer.from_files(tmp_path / "saved")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(again) is type(theirs)
    assert loaded.encode_batch(texts) == ours.encode_batch(texts) == again(texts)["input_ids"]
    assert loaded._roles == ours._roles
    assert loaded.languages == ours.languages


def test_m2m100_files(tmp_path):
    m2m100(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    with pytest.raises(ValueError, match="does not support M2M100"):
        ours.to_tensorflow()
    # Languages that no file lists are known all the same.
    (tmp_path / "special_tokens_map.json").unlink()
    assert Tokenizer.from_files(tmp_path).encode_batch(NASTY) == ours.encode_batch(NASTY)
    write_json(tmp_path, "tokenizer_config.json", {"src_lang": "xx"})
    with pytest.raises(ValueError, match="'src_lang' is 'xx' in .*not in the vocabulary"):
        Tokenizer.from_files(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", {"language_codes": "x"})
    with pytest.raises(ValueError, match="'language_codes' must be one of 'm2m100', 'wmt21'"):
        Tokenizer.from_files(tmp_path)
    (tmp_path / "vocab.json").unlink()
    with pytest.raises(ValueError, match="is a 'M2M100Tokenizer', which has rules"):
        Tokenizer.from_files(tmp_path)


def test_nllb_of_older_files(tmp_path):
    (tmp_path / "json").mkdir()
    nllb(tmp_path / "json")
    expected = Tokenizer.from_files(tmp_path / "json")
    nllb_pieces(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    assert ours.encode_batch(TEXTS) == expected.encode_batch(TEXTS)
    assert ours.get_vocabulary() == expected.get_vocabulary()
    (tmp_path / "special_tokens_map.json").unlink()
    with pytest.raises(ValueError, match="'src_lang' is 'eng_Latn' in .*not in the vocabulary"):
        Tokenizer.from_files(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
        {"user_defined_symbols": ["(", "–", "&amp;"], "model_type": "unigram"},
        {"model_type": "bpe", "byte_fallback": True},
    ],
    ids=["usual", "identity", "user defined", "bpe"],
)
@pytest.mark.filterwarnings("ignore:Recommended")
def test_marian_equals_transformers(options, tmp_path):
    marian(tmp_path, **options)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    texts = [
        *TEXTS,
        *(f">>fra<< {text}" for text in TEXTS),
        *(">>fra<<", ">>fra<<a", " >>fra<< a", ">>xxx<< a", ">>a b", "a</s>>>deu<< b", ">><<x"),
        *("äöüß ÄÖÜ ẞ", "日äöß本ß", "<unk>>>fra<< b <pad></s>", "＜／ｓ＞ ＜pad＞"),
    ]
    assert ours.encode_batch(texts) == theirs(texts)["input_ids"]
    plain = theirs(texts, add_special_tokens=False)["input_ids"]
    assert ours.encode_batch(texts, special_tokens=False) == plain
    pairs = texts[::-1]
    assert ours.encode_batch(texts, pairs) == theirs(texts, pairs)["input_ids"]
    targets = theirs(text_target=texts, add_special_tokens=False)["input_ids"]
    assert ours.encode_targets(texts) == targets
    assert targets != plain
    for ids in (plain, targets):
        assert ours.decode_batch(ids) == theirs.batch_decode(ids, skip_special_tokens=True)
    assert (ours.pad_id, ours.end_id, ours.unknown_id) == (len(theirs) - 1, 0, 1)
    assert ours.start_id is ours.mask_id is None
    assert ours.vocabulary_size == len(theirs)

    ours.save(tmp_path / "saved")
    loaded = Tokenizer.from_files(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_bytes((tmp_path / "config.json").read_bytes())
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(again) is type(theirs)
    assert loaded.encode_batch(texts) == ours.encode_batch(texts) == again(texts)["input_ids"]
    assert loaded.encode_targets(texts) == targets
    assert loaded._roles == ours._roles


def test_marian_alone(tmp_path):
    marian(tmp_path)
    ours = Tokenizer.from_files(tmp_path)
    rows = ours.encode_batch(["a man rides a bike"] * 2, max_length=3)
    assert rows == [[*ours.encode("a man rides a bike")[:2], ours.end_id]] * 2
    assert ours.encode_batch([]) == ours.encode_targets([]) == []
    with pytest.raises(ValueError, match="no offsets in the original text"):
        ours.encode_batch_with_offsets(["a"])
    with pytest.raises(ValueError, match="does not support Marian"):
        ours.to_tensorflow()
    with pytest.raises(ValueError, match=r"`texts\[1\]` must be a string"):
        ours.encode_targets(["a", 1])
    # Without its config it is the files that tell.
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).unlink()
    assert Tokenizer.from_files(tmp_path).encode_batch(NASTY) == ours.encode_batch(NASTY)
    write_json(tmp_path, "tokenizer_config.json", {"separate_vocabs": True})
    with pytest.raises(ValueError, match="a vocabulary for each side"):
        Tokenizer.from_files(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", {})
    (tmp_path / "target.spm").write_bytes(b"\x0b")
    with pytest.raises(ValueError, match=r"target.spm' is not a usable"):
        Tokenizer.from_files(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": -1}')
    with pytest.raises(ValueError, match=r"vocab.json' is not a usable"):
        Tokenizer.from_files(tmp_path)
