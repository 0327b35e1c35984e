"""Parts of a `tokenizer.json` as TensorFlow ops.

This module imports TensorFlow at its top, so `tensorflow.py` imports it only when it is needed.
Everything except SentencePiece models consists of plain ops over constants, so there are no tables
to initialize.
"""

import base64
import functools
import re

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.tokenizers.backend import CHINESE, WORD_BREAK, byte_alphabet
from keras_transformer.tokenizers.sentencepiece import SPACE
from keras_transformer.tokenizers.sentencepiece_file import BYTE, NORMAL, UNKNOWN, field

# Unicode's White_Space, which the Rust library uses: RE2's \s is ASCII only.
_SPACE = r"\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
# Marks a place to split at. U+10FFFF is a noncharacter, reserved for such internal use.
_MARK = "\U0010ffff"
# GPT-2's pattern without its lookahead `\s+(?!\S)`, which RE2 lacks: `_split_bytes` inserts a mark
# before the last space of every run that is followed by something.
_GPT2_WORD = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+"
    rf"| ?[^{_SPACE}\p{{L}}\p{{N}}{_MARK}]+|[{_SPACE}]+"
)
_PUNCTUATION = r"[!-/:-@\[-`{-~\p{P}]"
_LONG, _MOST_BYTES = "\x1d", 100  # replaces a longer word, which KerasHub makes an unknown token
# TensorFlow Text ends a string at NUL, and the mark may occur in a text: both are temporarily
# replaced by noncharacters, which no pattern here distinguishes from their neighbours.
_ESCAPE = "\ufdd0"
_ESCAPES = {_ESCAPE: _ESCAPE + "\ufdd1", "\0": _ESCAPE + "\ufdd2", _MARK: _ESCAPE + "\ufdd3"}
_NEVER = np.iinfo(np.int32).max


class TextToIds(tf.Module):
    """Map from strings to ragged ids, as defined by a `tokenizer.json`.

    Args:
        description: the values of the `tokenizer.json`.
        template: the ids before and after one text, and the ids before, between and after a pair.
        segments: the segment ids of a pair's parts: before, first text, between, second text,
            after.
    """

    def __init__(
        self, description: dict, template: tuple[list[list[int]], ...], segments: list[list[int]]
    ):
        super().__init__()
        model, normalizer = description["model"], description["normalizer"]
        if model["type"] not in {kind for kind, _ in _KINDS}:
            raise _unsupported(f"the model {model['type']!r}")
        splitter = description["pre_tokenizer"] or {"type": None}
        build = _KINDS.get((model["type"], splitter["type"]))
        if build is None:
            raise _unsupported(f"the pre-tokenizer {splitter['type']!r} with {model['type']}")
        (self._prefix, self._suffix), self._around_pair = template
        self._segments = segments
        self._special = _SpecialTokens(description["added_tokens"], normalizer)
        self._normalize, self._split, self._model = build(model, normalizer, splitter)

    def __call__(self, texts, max_length: int | None = None) -> tf.RaggedTensor:
        """Map strings `(batch,)` to int32 ids `(batch, None)`, of at most `max_length`."""
        ids = self._ids(texts)
        if max_length is not None:
            ids = ids[:, : max_length - len(self._prefix) - len(self._suffix)]
        rows = tf.cast(ids.nrows(), "int32")
        parts = [_constant_rows(self._prefix, rows), ids, _constant_rows(self._suffix, rows)]
        return tf.concat([part for part in parts if part is not None], axis=1)

    def pairs(self, texts, others, max_length: int) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Map pairs of strings `(batch,)` to int32 ids and segment ids, both `(batch, None)`."""
        first, second = self._ids(texts), self._ids(others)
        room = max_length - sum(map(len, self._around_pair))
        first, second = (
            _beginning(ids, count)
            for ids, count in zip((first, second), _longest_first(first, second, room), strict=True)
        )
        rows = tf.cast(first.nrows(), "int32")
        before, between, after = (_constant_rows(ids, rows) for ids in self._around_pair)
        own = [self._segments[i] for i in (0, 2, 4)]
        of = [self._segments[i][0] if self._segments[i] else 0 for i in (1, 3)]
        given = [_constant_rows(each, rows) for each in own]
        parts = [before, first, between, second, after]
        segments = [given[0], _like(first, of[0]), given[1], _like(second, of[1]), given[2]]
        ids, segments = (
            tf.concat([part for part in all_parts if part is not None], axis=1)
            for all_parts in (parts, segments)
        )
        return ids, segments

    def _ids(self, texts) -> tf.RaggedTensor:
        """Return the ids of strings, without a template."""
        texts = tf.convert_to_tensor(texts)
        if texts.dtype != tf.string or texts.shape.rank != 1:
            raise ValueError(
                "Expected a string tensor of shape (batch,). "
                f"Received: dtype {texts.dtype.name}, shape {texts.shape}"
            )
        segments = self._special.split(texts)
        special_ids, bodies = self._special.lookup(segments.flat_values)
        words = self._split(self._normalize(bodies))
        ids = words.with_flat_values(self._model(words.flat_values)).merge_dims(1, 2)
        return segments.with_flat_values(tf.concat([special_ids, ids], axis=1)).merge_dims(1, 2)


def _unsupported(part: str) -> ValueError:
    return ValueError(
        f"to_tensorflow() does not support {part}. It supports WordPiece with BERT's "
        "normalizer or KerasHub's, byte-level BPE, byte-level unigram and SentencePiece's unigram "
        "and BPE in KerasHub's form; use encode_batch otherwise."
    )


def _longest_first(first, second, room: int) -> tuple:
    """Return how many ids of each text of a pair to keep; the longer is cut, as in `tokenizers`."""
    counts = [tf.cast(ids.row_lengths(), "int32") for ids in (first, second)]
    least = tf.minimum(*counts)
    cut = tf.where(least > room, least, tf.maximum(least, room - least))
    both = least + cut > room
    least = tf.where(both, room // 2, least)
    cut = tf.where(both, room // 2 + room % 2, cut)
    fits, swapped = tf.add(*counts) <= room, counts[0] > counts[1]
    kept = (tf.where(swapped, cut, least), tf.where(swapped, least, cut))
    return tuple(tf.where(fits, n, k) for n, k in zip(counts, kept, strict=True))


def _beginning(ids: tf.RaggedTensor, counts) -> tf.RaggedTensor:
    """Return the first `counts[i]` ids of each row `i`, for `counts` int `(batch,)`."""
    places = tf.ragged.range(tf.cast(ids.row_lengths(), "int32")).flat_values
    kept = places < tf.gather(counts, ids.value_rowids())
    return tf.ragged.boolean_mask(ids, ids.with_flat_values(kept))


def _like(ids: tf.RaggedTensor, value: int) -> tf.RaggedTensor:
    return ids.with_flat_values(tf.fill(tf.shape(ids.flat_values), value))


def _constant_rows(ids: list[int], rows) -> tf.RaggedTensor | None:
    if not ids:
        return None
    return tf.RaggedTensor.from_tensor(tf.tile(tf.constant([ids], tf.int32), [rows, 1]))


def _escaped(texts):
    for character, escape in _ESCAPES.items():
        texts = tf.strings.regex_replace(texts, rf"\x{{{ord(character):x}}}", escape)
    return texts


def _unescaped(texts):
    for character, escape in reversed(_ESCAPES.items()):
        texts = tf.strings.regex_replace(texts, escape, character)
    return texts


def _regex_split(texts, ends: str, kept: str = "") -> tf.RaggedTensor:
    """Split strings `(n,)` at a pattern, keeping matches of `kept`, ragged `(n, None)`."""
    parts = tf_text.regex_split(_escaped(texts), ends, kept)
    return parts.with_flat_values(_unescaped(parts.flat_values))


class _SpecialTokens:
    """Recognition of special tokens, such as `[MASK]`, that are written out in a text."""

    def __init__(self, added_tokens: list[dict], normalizer: dict | None):
        patterns = []
        # Longest first, since RE2 takes the first alternative that matches.
        for token in sorted(added_tokens, key=lambda token: -len(token["content"])):
            if token["single_word"] or (token["normalized"] and normalizer is not None):
                raise _unsupported(f"the options of the added token {token['content']!r}")
            space = f"[{_SPACE}]*"
            patterns.append(
                space * token["lstrip"] + re.escape(token["content"]) + space * token["rstrip"]
            )
        self._pattern = "|".join(patterns)
        self._tokens = [token["content"] for token in added_tokens]
        self._ids = [token["id"] for token in added_tokens]

    def split(self, texts) -> tf.RaggedTensor:
        """Split strings `(batch,)` into segments `(batch, None)`, each a special token or text."""
        if not self._tokens:
            return tf.RaggedTensor.from_tensor(texts[:, None])
        return _regex_split(texts, self._pattern, self._pattern)

    def lookup(self, segments):
        """Return each segment's special id, ragged `(n, 0 or 1)`, and the text left to encode."""
        if not self._tokens:
            none = tf.zeros((tf.size(segments), 0), tf.int32)
            return tf.RaggedTensor.from_tensor(none), segments
        match = tf.strings.strip(segments)[:, None] == tf.constant(self._tokens)[None, :]
        found = tf.reduce_any(match, axis=1)
        ids = tf.gather(tf.constant(self._ids, tf.int32), tf.argmax(match, axis=1))
        ids = tf.RaggedTensor.from_row_lengths(ids[found], tf.cast(found, tf.int64))
        return ids, tf.where(found, "", segments)


# Normalizers


def _normalizer(description: dict | None):
    if description is None:
        return lambda texts: texts
    kind = description["type"]
    if kind == "Sequence":
        steps = [_normalizer(step) for step in description["normalizers"]]
        return lambda texts: functools.reduce(lambda texts, step: step(texts), steps, texts)
    if kind == "Prepend":
        return lambda texts: tf.where(texts == "", "", description["prepend"] + texts)
    if kind == "Lowercase":
        return _lowercase
    if kind == "BertNormalizer":
        return _bert_normalizer(description)
    raise _unsupported(f"the normalizer {kind!r}")


def _lowercase(texts):
    # At the end of a word TensorFlow would use the final form of sigma. Rust lowercases single
    # characters, so it does not.
    texts = _escaped(tf.strings.regex_replace(texts, "Σ", "σ"))
    return _unescaped(tf.strings.lower(texts, encoding="utf-8"))


def _bert_normalizer(description: dict):
    lowercase, strip_accents = description["lowercase"], description["strip_accents"]
    strip_accents = lowercase if strip_accents is None else strip_accents

    def normalize(texts):
        if description["clean_text"]:
            texts = tf.strings.regex_replace(texts, r"[\t\n\r]", " ")
            texts = tf.strings.regex_replace(texts, r"[\x{fffd}\p{Cc}\p{Cf}\p{Co}]", "")
            texts = tf.strings.regex_replace(texts, f"[{_SPACE}]", " ")
        if description["handle_chinese_chars"]:
            texts = tf.strings.regex_replace(texts, f"([{CHINESE}])", r" \1 ")
        if strip_accents:
            texts = tf_text.normalize_utf8(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
        return _lowercase(texts) if lowercase else texts

    return normalize


# KerasHub's BERT: words are split first and case-folded one by one. The steps of its normalizer,
# which `checkpoints.keras_hub.tokenizers` makes, show the options.


def _split_keras_hub(normalizer: dict):
    steps = [(step["type"], step.get("pattern", {})) for step in normalizer["normalizers"]]
    kinds = [kind for kind, _ in steps]
    found = [pattern["Regex"] for kind, pattern in steps if "Regex" in pattern]
    # The step after the one for spaces marks every character that is a word by itself.
    place = next((i for i, each in enumerate(found) if "(?!\\A)" in each), None)
    ends, alone = WORD_BREAK, ""
    if place is not None:
        ends, alone = found[place - 1], re.search(r"\(\?<=(\[.*\])\)$", found[place])[1]
        ends = f"{ends}|{alone}"

    def split(texts):
        if kinds[0] == "NFD":
            texts = tf_text.normalize_utf8(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
        texts = tf.strings.regex_replace(texts, r"\x{0}", "\x01") if place is not None else texts
        words = _regex_split(texts, ends, alone)
        flat = words.flat_values
        if "Lowercase" in kinds:
            flat = tf_text.case_fold_utf8(flat)
        return words.with_flat_values(tf.where(tf.strings.length(flat) > _MOST_BYTES, _LONG, flat))

    return split


# Pre-tokenizers: strings (n,) to words, ragged (n, None)


def _split_bert(description: dict):
    pattern = f"[{_SPACE}]+|{_PUNCTUATION}"
    return lambda texts: _regex_split(texts, pattern, _PUNCTUATION)


def _whole(texts):
    """Return each text as one word."""
    return tf.RaggedTensor.from_tensor(texts[:, None])


def _split_bytes(description: dict):
    def split(texts):
        if description["add_prefix_space"]:
            bare = tf.strings.regex_full_match(texts, r"[^ ](?s:.*)")
            texts = tf.where(bare, " " + texts, texts)
        if not description["use_regex"]:
            return _whole(texts)
        texts = tf.strings.regex_replace(
            _escaped(texts), f"([{_SPACE}][^{_SPACE}])", _MARK + r"\1", replace_global=True
        )
        words = tf_text.regex_split(texts, f"{_MARK}|{_GPT2_WORD}", _GPT2_WORD)
        return words.with_flat_values(_unescaped(words.flat_values))

    return split


# Models: words (n,) to int32 ids, ragged (n, None)


class _WordPiece(tf.Module):
    def __init__(self, description: dict):
        super().__init__()
        tokens = sorted(description["vocab"], key=description["vocab"].get)
        if [description["vocab"][token] for token in tokens] != list(range(len(tokens))):
            raise _unsupported("a WordPiece vocabulary whose ids have gaps")
        self._unknown = description["unk_token"]
        self._longest = description["max_input_chars_per_word"]
        self._tokenizer = tf_text.FastWordpieceTokenizer(
            tokens,
            suffix_indicator=description["continuing_subword_prefix"],
            # The limit is in characters, of at most 4 bytes, and `__call__` applies it.
            max_bytes_per_word=4 * self._longest,
            token_out_type=tf.int32,
            unknown_token=self._unknown,
            no_pretokenization=True,
        )

    def __call__(self, words):
        too_long = tf.strings.length(words, unit="UTF8_CHAR") > self._longest
        return self._tokenizer.tokenize(tf.where(too_long, self._unknown, words))


def _to_bytes(words):
    """Return the bytes of all words, 0 to 255 `(total,)`, and for each the index of its word."""
    split = tf.strings.bytes_split(words)
    values = tf.io.decode_raw(tf.strings.reduce_join(split.flat_values), tf.uint8)
    return tf.cast(values, tf.int32), split.value_rowids()


def _alphabet(vocabulary) -> list[str]:
    alphabet = byte_alphabet()
    missing = [char for char in alphabet if char not in vocabulary]
    if missing:
        raise _unsupported(f"a byte-level vocabulary that lacks {missing[0]!r}")
    return alphabet


def _check_plain_merging(description: dict) -> None:
    for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"):
        if description[option]:
            raise _unsupported(f"BPE with {option}={description[option]!r}")


class _BytePair(tf.Module):
    """BPE, which merges neighbouring pairs in the order of their ranks (Sennrich et al. 2016)."""

    def __init__(self, description: dict):
        super().__init__()
        _check_plain_merging(description)
        vocabulary = description["vocab"]
        alphabet = _alphabet(vocabulary)
        self._byte_ids = np.array([vocabulary[char] for char in alphabet], np.int32)
        # A pair is encoded as one number, so that a sorted array serves as the table of merges.
        self._base = max(vocabulary.values()) + 1
        table = {-1: (_NEVER, 0)}
        for rank, (left, right) in enumerate(description["merges"]):
            key = vocabulary[left] * self._base + vocabulary[right]
            table[key] = (rank, vocabulary[left + right])
        self._keys = np.array(sorted(table), np.int64)
        self._ranks = np.array([table[key][0] for key in self._keys], np.int32)
        self._merged = np.array([table[key][1] for key in self._keys], np.int32)

    def __call__(self, words):
        words, index = tf.unique(words)
        values, rows = _to_bytes(words)
        ids = tf.gather(self._byte_ids, values)
        count = tf.size(words, out_type=tf.int64)
        ids, rows, _ = tf.while_loop(
            lambda ids, rows, merging: merging,
            lambda ids, rows, merging: self._merge_round(ids, rows, count),
            (ids, rows, tf.constant(True)),
            shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None]), tf.TensorShape([])),
        )
        return tf.gather(tf.RaggedTensor.from_value_rowids(ids, rows, count), index)

    def _merge_round(self, ids, rows, count):
        key = tf.cast(ids[:-1], tf.int64) * self._base + tf.cast(ids[1:], tf.int64)
        at = tf.minimum(tf.searchsorted(self._keys, key), len(self._keys) - 1)
        known = (tf.gather(self._keys, at) == key) & (rows[:-1] == rows[1:])
        rank = tf.where(known, tf.gather(self._ranks, at), _NEVER)
        best = tf.gather(tf.math.unsorted_segment_min(rank, rows[:-1], count), rows[:-1])
        chosen = known & (rank == best)
        # In "aaaa" the pairs overlap: in a run of chosen pairs, only every other one merges.
        starts = chosen & ~tf.concat([[False], chosen], 0)[:-1]
        run = tf.cumsum(tf.cast(starts, tf.int32))
        place = tf.range(tf.size(run))
        first = tf.math.unsorted_segment_min(tf.where(starts, place, _NEVER), run, tf.size(run) + 1)
        chosen = chosen & ((place - tf.gather(first, run)) % 2 == 0)

        left = tf.concat([chosen, [False]], 0)[: tf.size(ids)]
        right = tf.concat([[False], chosen], 0)[: tf.size(ids)]
        merged = tf.concat([tf.gather(self._merged, at), [0]], 0)[: tf.size(ids)]
        ids = tf.where(left, merged, ids)
        return ids[~right], rows[~right], tf.reduce_any(chosen)


class _Unigram(tf.Module):
    def __init__(self, description: dict):
        super().__init__()
        self._alphabet = _alphabet({token for token, _ in description["vocab"]})
        model = _sentencepiece_model(description, field(5, 0))
        self._tokenizer = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)

    def __call__(self, words):
        values, rows = _to_bytes(words)
        chars = tf.gather(tf.constant(self._alphabet), values)
        spelled = tf.RaggedTensor.from_value_rowids(chars, rows, tf.size(words, tf.int64))
        return self._tokenizer.tokenize(tf.strings.reduce_join(spelled, axis=-1))


class _Pieces(tf.Module):
    """SentencePiece model with the rules of a normalizer, over whole texts."""

    def __init__(self, description: dict, normalizer: dict):
        super().__init__()
        rules = field(5, 1)
        prefixed = trimmed = False
        for step in normalizer["normalizers"]:
            pattern = step.get("pattern", {}).get("Regex")
            if step["type"] == "Precompiled":
                rules += field(2, base64.b64decode(step["precompiled_charsmap"]))
            elif step == {"type": "Prepend", "prepend": SPACE}:
                prefixed = True
            elif pattern in (r"\A +| +\z", " {2,}"):
                trimmed = True
            elif step.get("pattern") != {"String": " "} or step.get("content") != SPACE:
                raise _unsupported(f"the normalizer {step['type']!r} of pieces")
        model = _sentencepiece_model(description, rules, prefixed, trimmed)
        self._tokenizer = tf_text.SentencepieceTokenizer(model, out_type=tf.int32)

    def __call__(self, texts):
        return self._tokenizer.tokenize(texts)


def _sentencepiece_model(
    description: dict, rules: bytes, prefixed: bool = False, trimmed: bool = False
) -> bytes:
    """Return a SentencePiece file with the tokens of a unigram model, or of BPE over characters.

    Args:
        description: the model of a `tokenizer.json`.
        rules: fields of the text normalization.
        prefixed: whether a space is put before a text.
        trimmed: whether spaces at the ends are removed, and runs of spaces become one.
    """
    unigram = description["type"] == "Unigram"
    if unigram:
        scored, unknown_id = description["vocab"], description["unk_id"]
    else:
        scored = _scored_by_rank(description)
        unknown_id = description["vocab"].get(description["unk_token"])
        if unknown_id is None or not description["fuse_unk"]:
            raise _unsupported("BPE over characters without one token for a run of unknown ones")
    data, spells = b"", bool(description.get("byte_fallback"))
    for index, (token, score) in enumerate(scored):
        kind = UNKNOWN if index == unknown_id else NORMAL
        kind = BYTE if spells and re.fullmatch("<0x[0-9A-F]{2}>", token) else kind
        data += field(1, field(1, token.encode()) + field(2, float(score)) + field(3, kind))
    trainer = field(3, 1 if unigram else 2) + field(35, int(spells)) + field(40, unknown_id)
    data += field(2, trainer)
    rules = field(1, b"identity") + field(3, int(prefixed)) + field(4, int(trimmed)) + rules
    return data + field(3, rules)


def _scored_by_rank(description: dict) -> list[tuple[str, float]]:
    """Return BPE's tokens in the order of their ids; a score is minus the first merge's rank."""
    _check_plain_merging(description)
    vocabulary = description["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.get)
    if [vocabulary[token] for token in tokens] != list(range(len(tokens))):
        raise _unsupported("a BPE vocabulary whose ids have gaps")
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(description["merges"]):
        ranks.setdefault(left + right, rank)
    return [(token, -float(ranks.get(token, len(description["merges"])))) for token in tokens]


def _build_bert(model: dict, normalizer: dict | None, splitter: dict) -> tuple:
    return _normalizer(normalizer), _split_bert(splitter), _WordPiece(model)


def _build_keras_hub_bert(model: dict, normalizer: dict | None, splitter: dict) -> tuple:
    if splitter["pattern"] != {"String": WORD_BREAK}:
        raise _unsupported("the pre-tokenizer 'Split' with WordPiece")
    return _normalizer(None), _split_keras_hub(normalizer), _WordPiece(model)


def _build_byte_pairs(model: dict, normalizer: dict | None, splitter: dict) -> tuple:
    return _normalizer(normalizer), _split_bytes(splitter), _BytePair(model)


def _build_byte_unigram(model: dict, normalizer: dict | None, splitter: dict) -> tuple:
    return _normalizer(normalizer), _split_bytes(splitter), _Unigram(model)


def _build_pieces(model: dict, normalizer: dict | None, splitter: dict) -> tuple:
    if normalizer is None or normalizer["type"] != "Sequence":
        raise _unsupported(f"{model['type']} over whole texts without SentencePiece's normalizer")
    return _normalizer(None), _whole, _Pieces(model, normalizer)


# Builders of the normalizer, the splitter and the model, by the types of model and pre-tokenizer.
_KINDS = {
    ("WordPiece", "BertPreTokenizer"): _build_bert,
    ("WordPiece", "Split"): _build_keras_hub_bert,
    ("BPE", "ByteLevel"): _build_byte_pairs,
    ("Unigram", "ByteLevel"): _build_byte_unigram,
    ("BPE", None): _build_pieces,
    ("Unigram", None): _build_pieces,
}
