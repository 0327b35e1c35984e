"""Tokenizers of KerasHub presets, against KerasHub's own, called as a user calls them."""

import functools
import json
import random

import numpy as np
import pytest

from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.tokenizers import Tokenizer
from tests.tokenizers.nasty import NASTY
from tests.tokenizers.test_rwkv import LINES

pytestmark = pytest.mark.backend_independent

TEXTS = ["a man rides a bike .", "It wasn't bad; it's the BEST film since 1999!", "x", ""]


@pytest.fixture(scope="session")
def hub():
    return pytest.importorskip("keras_hub")


def random_texts(number=150):
    """Texts of characters whose case, width or composition is not simple."""
    rng = random.Random(0)
    blocks = [(9, 14), (32, 591), (0x300, 0x530), (0x1E00, 0x2070), (0x3000, 0x3100), (0x4E00,) * 2]
    characters = [chr(code) for first, last in blocks for code in range(first, last + 1)]
    characters += list("ꭰᎠᲀﬁﬀﷺ\ufe0f\u3164🙂👨‍👩‍👧①㎏")
    return ["".join(rng.choices(characters, k=rng.randrange(1, 20))) for _ in range(number)]


ALL_TEXTS = [*NASTY, *TEXTS, *random_texts()]
LONG = ["a" * 100, "a" * 101, "é" * 50, "é" * 51, "ไ" * 33, "ไ" * 34, "a" * 49 + "é" * 26]


@functools.cache
def word_pieces():
    """A vocabulary of BERT's kind: all characters of the texts, and some longer pieces."""
    texts = [*ALL_TEXTS, *LONG]
    tokenizer = Tokenizer.train(texts * 2, kind="wordpiece", vocabulary_size=6000)
    return sorted(tokenizer.get_vocabulary(), key=tokenizer.get_vocabulary().get)


@functools.cache
def byte_pairs():
    """A vocabulary and merges of GPT-2's and RoBERTa's kind."""
    special = ["<pad>", "<mask>", "<|endoftext|>"]
    tokenizer = Tokenizer.train(
        [*NASTY, *TEXTS] * 2, special_tokens=special, vocabulary_size=900, add_prefix_space=False
    )
    values = json.loads(tokenizer._backend.to_str())["model"]
    return {"vocabulary": values["vocab"], "merges": [" ".join(m) for m in values["merges"]]}


def assert_same_ids(mine, theirs, texts):
    rows = mine.encode_batch(texts, special_tokens=False)
    for text, row in zip(texts, rows, strict=True):
        assert row == [int(i) for i in np.ravel(theirs(text))], ascii(text)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": True},
        {"lowercase": True, "strip_accents": True, "special_tokens_in_strings": True},
        {"strip_accents": True, "suffix_indicator": "@@"},
    ],
    ids=str,
)
def test_ids_of_bert(tmp_path, hub, options):
    theirs = hub.models.BertTokenizer(vocabulary=word_pieces(), **options)
    theirs.save_to_preset(tmp_path)
    mine = Tokenizer.from_preset(tmp_path)
    assert_same_ids(mine, theirs, [*ALL_TEXTS, *LONG, "the [MASK] of [mask] [CLS]x[SEP]"])
    assert mine.get_vocabulary().keys() == set(theirs.get_vocabulary())
    pad, unknown, start, end, mask = (f"[{n}]" for n in ("PAD", "UNK", "CLS", "SEP", "MASK"))
    roles = (mine.pad_id, mine.unknown_id, mine.start_id, mine.end_id, mine.mask_id)
    assert roles == tuple(theirs.token_to_id(t) for t in (pad, unknown, start, end, mask))


@pytest.mark.parametrize(
    "name, options",
    [
        ("Roberta", {}),
        ("GPT2", {}),
        ("GPT2", {"add_prefix_space": True, "unsplittable_tokens": ["<|endoftext|>", "it"]}),
    ],
    ids=["roberta", "gpt2", "gpt2-options"],
)
def test_ids_of_byte_pairs(tmp_path, hub, name, options):
    theirs = getattr(hub.models, f"{name}Tokenizer")(**byte_pairs(), **options)
    theirs.save_to_preset(tmp_path)
    mine = Tokenizer.from_preset(tmp_path)
    assert_same_ids(mine, theirs, [*ALL_TEXTS, "a <mask> b</s>", "x<|endoftext|>y", "'save"])
    assert mine.decode(mine.encode(" Gänse 🙂")) == " Gänse 🙂"


def test_ids_of_t5(tmp_path, hub):
    pieces = pytest.importorskip("sentencepiece")
    path = tmp_path / "spm"
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter([t for t in [*NASTY, *TEXTS] if "\x00" not in t] * 3),
        model_prefix=str(path),
        vocab_size=600,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    theirs = hub.models.T5Tokenizer(proto=path.with_name("spm.model").read_bytes())
    theirs.save_to_preset(tmp_path / "preset")
    mine = Tokenizer.from_preset(tmp_path / "preset")
    assert_same_ids(mine, theirs, [*TEXTS, " naïve  café ½ 東京 🙂 "])
    assert mine.encode("a bike") == [*(int(i) for i in theirs("a bike")), 1]
    assert (mine.pad_id, mine.end_id, mine.start_id, mine.unknown_id) == (0, 1, None, 2)


def test_what_is_put_around_a_text(tmp_path, hub):
    models = hub.models
    first, second = ["It's a bike .", "x"], ["a man", "b b"]

    def compare(name, preprocessor, pairs=None):
        preprocessor.save_to_preset(tmp_path / name)
        mine = Tokenizer.from_preset(tmp_path / name)
        theirs = preprocessor(x=first if pairs is None else (first, pairs))
        rows, segments = mine.encode_batch_with_segments(first, pairs)
        for i, row in enumerate(rows):
            length = int(np.sum(to_numpy(theirs["padding_mask"])[i]))
            assert row == to_numpy(theirs["token_ids"])[i, :length].tolist()
            if "segment_ids" in theirs:
                assert segments[i] == to_numpy(theirs["segment_ids"])[i, :length].tolist()

    bert = models.BertTextClassifierPreprocessor(
        models.BertTokenizer(vocabulary=word_pieces()), sequence_length=40
    )
    compare("bert", bert)
    compare("bert_pairs", bert, second)
    roberta = models.RobertaTextClassifierPreprocessor(
        models.RobertaTokenizer(**byte_pairs()), sequence_length=40
    )
    compare("roberta_pairs", roberta, second)
    for starts in (True, False):
        gpt2 = models.GPT2CausalLMPreprocessor(
            models.GPT2Tokenizer(**byte_pairs()), sequence_length=40, add_start_token=starts
        )
        gpt2.save_to_preset(tmp_path / f"gpt2_{starts}")
        mine = Tokenizer.from_preset(tmp_path / f"gpt2_{starts}")
        added = [mine.start_id] if starts else []
        assert mine.encode("a man") == added + [int(i) for i in gpt2.tokenizer("a man")]


def test_saving_keeps_the_ids(tmp_path, hub):
    theirs = hub.models.BertTokenizer(vocabulary=word_pieces(), lowercase=True)
    theirs.save_to_preset(tmp_path / "theirs")
    mine = Tokenizer.from_preset(tmp_path / "theirs")
    mine.save(tmp_path / "ours")
    texts = [*ALL_TEXTS, *LONG, "the [MASK] of [CLS]"]
    assert Tokenizer.from_files(tmp_path / "ours").encode_batch(texts) == mine.encode_batch(texts)


def test_places_in_the_text(tmp_path, hub):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "strasse", "bike", ",", "fi"]
    hub.models.BertTokenizer(vocabulary=words, lowercase=True).save_to_preset(tmp_path)
    text = "Straße,  ﬁ BIKE"
    (encoding,) = Tokenizer.from_preset(tmp_path).encode_batch_with_offsets([text])
    parts = [text[start:end] for start, end in encoding.offsets[1:-1]]
    assert parts == ["Straße", ",", "ﬁ", "BIKE"]


VISION = [f"<|{name}|>" for name in ("vision_start", "vision_end", "image_pad", "video_pad")]
SPECIAL = ("<pad>", "<mask>", "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
SPECIAL += ("<|start_header_id|>", "<|end_header_id|>", "<|im_end|>", "<|im_start|>", *VISION)
FAIRSEQ = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1}
IN_BYTES = {**FAIRSEQ, "model_type": "bpe", "byte_fallback": True, "vocab_size": 640}
T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
ALBERT_IDS = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
ALBERT_IDS |= {"bos_piece": "[CLS]", "eos_piece": "[SEP]", "user_defined_symbols": "[MASK]"}


def sentencepieces(folder, options):
    pieces = pytest.importorskip("sentencepiece")
    options = {"vocab_size": 600, "hard_vocab_limit": False, "minloglevel": 2, **options}
    texts = [text for text in [*NASTY, *TEXTS] if "\x00" not in text] * 3
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "spm"), **options
    )
    return {"proto": (folder / "spm.model").read_bytes()}


@functools.cache
def byte_pairs_of_decoders():
    tokenizer = Tokenizer.train(
        [*NASTY, *TEXTS] * 2, special_tokens=SPECIAL, vocabulary_size=900, add_prefix_space=False
    )
    values = json.loads(tokenizer._backend.to_str())["model"]
    return {"vocabulary": values["vocab"], "merges": [" ".join(m) for m in values["merges"]]}


@pytest.mark.parametrize(
    "name, options",
    [
        ("Electra", None),
        ("Roberta", None),
        ("Bart", None),
        ("GPTNeoX", None),
        ("Llama3", None),
        ("Qwen", None),
        ("Qwen3", None),
        ("Qwen3_5", None),
        ("RoformerV2", None),
        ("FNet", ALBERT_IDS),
        ("T5", T5_IDS),
        ("XLMRoberta", FAIRSEQ),
        ("Albert", ALBERT_IDS),
        ("Llama", {**IN_BYTES, "normalization_rule_name": "identity"}),
        ("Mistral", {**IN_BYTES, "remove_extra_whitespaces": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_there_and_back(tmp_path, hub, name, options):
    """A tokenizer in memory as ours, and ours as KerasHub's: the ids are the same."""
    from keras_transformer import from_keras_hub
    from keras_transformer.checkpoints.keras_hub.writing import make_tokenizer

    if options is not None:
        arguments = sentencepieces(tmp_path, options)
    else:
        word = name in ("Electra", "RoformerV2")
        arguments = {"vocabulary": word_pieces()} if word else byte_pairs_of_decoders()
    theirs = getattr(hub.models, f"{name}Tokenizer")(**arguments)
    mine = from_keras_hub(theirs)
    texts = [*TEXTS, "naïve café ½ 東京 🙂", " two  spaces "]
    assert_same_ids(mine, theirs, texts)
    assert (mine.end_id, mine.start_id) == (
        theirs.end_token_id,
        None if name == "T5" else theirs.start_token_id,
    )
    back = make_tokenizer(hub, f"{name}Tokenizer", mine)
    assert_same_ids(mine, back, texts)
    other = "T5Tokenizer" if name != "T5" else "Qwen3Tokenizer"
    if name not in ("XLMRoberta", "Albert", "FNet"):  # which are of the same kind
        with pytest.raises(ValueError, match="it has the kind"):
            make_tokenizer(hub, other, mine)


def test_ids_of_rwkv(tmp_path, hub):
    """Bytes, also parts of characters: ids, the bytes of any ids, roles, and the way back."""
    from keras_transformer.checkpoints.keras_hub.writing import make_tokenizer

    theirs = hub.models.RWKVTokenizer([f"{line}\n" for line in LINES])
    theirs.save_to_preset(tmp_path)
    mine = Tokenizer.from_preset(tmp_path)
    texts = [text for text in [*ALL_TEXTS[::3], *LONG, "日本🙂" * 9, " " * 300, "\n\n\n"] if text]
    assert_same_ids(mine, theirs, texts)
    assert (mine.pad_id, mine.start_id, mine.end_id) == (0, None, theirs.end_token_id)
    rng = random.Random(0)
    for _ in range(100):
        ids = rng.choices(range(100, len(LINES) + 1), k=rng.choice([1, 3, 9]))
        expected = theirs._tokenizer.decodeBytes(ids).decode("utf-8", "replace")
        assert mine.decode(ids) == expected
    mine.save(tmp_path / "ours")
    again = Tokenizer.from_files(tmp_path / "ours")
    assert again.encode_batch(texts) == mine.encode_batch(texts)
    back = make_tokenizer(hub, "RWKVTokenizer", mine)
    assert_same_ids(mine, back, texts[-9:])
    assert back.end_token_id == theirs.end_token_id
    for name, other in (("Qwen3Tokenizer", mine), ("RWKVTokenizer", Tokenizer.of_symbols("a"))):
        with pytest.raises(ValueError, match="it has the kind"):
            make_tokenizer(hub, name, other)
