"""Conversion of a GGUF file's vocabulary to a tokenizer of this package, with the same ids."""

from collections.abc import Sequence

import numpy as np
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from keras_transformer.checkpoints.gguf.header import Header
from keras_transformer.checkpoints.gguf.words import WHOLE_WORDS, WORDS
from keras_transformer.tokenizers.backend import (
    MAX_TOKEN,
    InvalidTokenizer,
    byte_alphabet,
    check_ids,
    refusing,
    try_out,
)
from keras_transformer.tokenizers.chat import MAX_TEMPLATE
from keras_transformer.tokenizers.sentencepiece import (
    SPACE,
    sentencepiece_backend,
    space_decoder,
)
from keras_transformer.tokenizers.sentencepiece_file import SentencePieceModel
from keras_transformer.tokenizers.training import set_template

_TOKENS = "tokenizer.ggml.tokens"
# Types of tokens: found whole in a text, special or not; and of rows that no token has.
CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
UNUSED_NAME = "[PAD{}]"
ROLES = {
    "start": "bos_token_id",
    "end": "eos_token_id",
    "pad": "padding_token_id",
    "unknown": "unknown_token_id",
}
# Limit of the sum of squared lengths of tokens, in which splitting all of them takes time. The
# largest published vocabulary has 20 million.
_MOST_SPLITS = 500_000_000

Roles = dict[str, str | None]


def has_tokenizer(header: Header) -> bool:
    """Return whether a file has a vocabulary."""
    return _TOKENS in header.metadata


def read_tokenizer(header: Header) -> tuple[tokenizers.Tokenizer, Roles, str | None]:
    """Return the backend, the token of each role, and the chat template of a GGUF file."""
    kind = header.get("tokenizer.ggml.model", str, "")
    make = {"gpt2": _byte_pair, "llama": _pieces, "t5": _unigram}.get(kind)
    if make is None:
        raise ValueError(
            f"{header.path} has a tokenizer of kind {kind!r}; 'llama', 'gpt2' and 't5' are read. "
            "Load the tokenizer of the model that it was made from, or load the model by "
            "`Backbone.from_preset`, make the task from it, and give it token ids."
        )
    with refusing(f"The tokenizer of {header.path} is not usable"):
        tokens, types = _vocabulary(header)
        backend = make(header, tokens, types)
        spelled = _spelled(header, tokens)
        for special, wanted in ((True, CONTROL), (False, USER_DEFINED)):
            found = [spelled[i] for i in np.flatnonzero(types == wanted)]
            added = [AddedToken(token, normalized=False, special=special) for token in found]
            (backend.add_special_tokens if special else backend.add_tokens)(added)
        roles = {role: _token(header, spelled, name) for role, name in ROLES.items()}
        named = dict.fromkeys(token for token in roles.values() if token is not None)
        backend.add_special_tokens([AddedToken(token, normalized=False) for token in named])
        _add_around(header, backend, roles)
        check_ids(backend)
        try_out(backend)
    return backend, roles, _chat_template(header)


def _vocabulary(header: Header) -> tuple[list[str], np.ndarray]:
    """Return the tokens in the order of their ids, and their types."""
    tokens = header.texts(_TOKENS)
    if not tokens or not all(tokens):
        raise InvalidTokenizer("it has no tokens, or an empty one")
    longest = max(map(len, tokens))
    if longest > MAX_TOKEN:
        raise InvalidTokenizer(f"it has a token of {longest:,} characters, more than {MAX_TOKEN:,}")
    types = header.numbers("tokenizer.ggml.token_type")
    types = np.ones(len(tokens)) if types is None else types
    if len(types) != len(tokens):
        raise InvalidTokenizer(f"it has {len(tokens):,} tokens and {len(types):,} types of them")
    count = len(tokens)
    # Rows at the end of the embedding that are there for its shape.
    while (
        count > 1
        and types[count - 1] == UNUSED
        and tokens[count - 1] == UNUSED_NAME.format(count - 1)
    ):
        count -= 1
    return tokens[:count], types[:count]


def _spelled(header: Header, tokens: list[str]) -> list[str]:
    """Return the tokens as the backend's vocabulary spells them."""
    # Gemma's files write runs of spaces as they are.
    if not header.get("general.architecture", str, "").startswith("gemma"):
        return tokens
    return [SPACE * len(token) if not token.strip(" ") else token for token in tokens]


def _token(header: Header, tokens: list[str], name: str) -> str | None:
    index = header.whole(f"tokenizer.ggml.{name}")
    if index is None:
        return None
    if index >= len(tokens):
        raise InvalidTokenizer(f"{name!r} is {index:,}, but it has {len(tokens):,} tokens")
    return tokens[index]


def _add_around(header: Header, backend: tokenizers.Tokenizer, roles: Roles) -> None:
    """Add the start and the end token around a text, if the file says so."""
    pieces = header.get("tokenizer.ggml.model", str) == "llama"
    usual = pieces or header.get("tokenizer.ggml.pre", str) in WHOLE_WORDS
    starts = header.get("tokenizer.ggml.add_bos_token", bool, usual) and roles["start"] is not None
    unigram = header.get("tokenizer.ggml.model", str) == "t5"
    ends = header.get("tokenizer.ggml.add_eos_token", bool, unigram) and roles["end"] is not None
    single, pair = (
        " ".join(["{start}"] * starts + [text] + ["{end}"] * ends) for text in ("$A", "$B")
    )
    if starts or ends:
        start, end = roles["start"] or roles["end"], roles["end"] or roles["start"]
        set_template(backend, (single, f"{single} {pair}"), start, end)


def _chat_template(header: Header) -> str | None:
    template = header.get("tokenizer.chat_template", str)
    if template is not None and len(template) > MAX_TEMPLATE:
        raise ValueError(
            f"The chat template of {header.path} has {len(template):,} characters; the maximum is "
            f"{MAX_TEMPLATE:,}."
        )
    return template


def _merges(header: Header) -> list[tuple[str, str]] | None:
    """Return the pairs that are merged, the first ones first; None if the file does not say."""
    lines = header.texts("tokenizer.ggml.merges")
    if lines is None:
        return None
    # A token has no space, but the second of a pair may begin with one in old files.
    pairs = [tuple(line.split(" ")) for line in lines]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise InvalidTokenizer(f"a merge must be two tokens, not {' '.join(wrong)[:80]!r}")
    return pairs


def _byte_pair(header: Header, tokens: list[str], types: np.ndarray) -> tokenizers.Tokenizer:
    """Return the backend of a vocabulary that spells words in bytes."""
    words = header.get("tokenizer.ggml.pre", str, "default")  # which splits as no model was trained
    if words not in WORDS:
        raise ValueError(
            f"{header.path} splits texts as {words!r}; known are {', '.join(WORDS)}. Load the "
            "tokenizer of the model that it was made from, or load the model by "
            "`Backbone.from_preset`, make the task from it, and give it token ids."
        )
    alphabet = byte_alphabet()
    known = set(alphabet)
    whole = np.isin(types, (CONTROL, USER_DEFINED))
    vocabulary = {
        token
        if whole[index] or known.issuperset(token)
        else "".join(alphabet[byte] for byte in token.encode()): index
        for index, token in enumerate(tokens)
    }
    merges = _merges(header)
    if merges is None:
        raise InvalidTokenizer("it has no merges")
    model = models.BPE(vocabulary, merges, ignore_merges=words in WHOLE_WORDS)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = WORDS[words]()
    backend.decoder = decoders.ByteLevel()
    return backend


def _pieces(header: Header, tokens: list[str], types: np.ndarray) -> tokenizers.Tokenizer:
    """Return the backend of a SentencePiece vocabulary, which merges by scores."""
    architecture = header.get("general.architecture", str, "")
    gemma = architecture.startswith("gemma")
    tokens = _spelled(header, tokens)
    merges = _merges(header)
    if merges is None:
        merges = _implied_merges(tokens, None if gemma else _scores(header, tokens))
    unknown = _token(header, tokens, "unknown_token_id") if gemma else None
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    prefix = header.get("tokenizer.ggml.add_space_prefix", bool, not gemma)
    spaces = normalizers.Replace(" ", SPACE)
    if gemma:
        backend.normalizer = spaces
    elif architecture == "phi3":
        first = [normalizers.Prepend(SPACE)] * prefix
        backend.normalizer = normalizers.Sequence([*first, spaces])
    else:
        scheme = "first" if prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    backend.decoder = space_decoder(strip=prefix and not gemma)
    return backend


def _unigram(header: Header, tokens: list[str], types: np.ndarray) -> tokenizers.Tokenizer:
    """Return the backend of a SentencePiece vocabulary that segments by log probabilities."""
    rules = header.numbers("tokenizer.ggml.precompiled_charsmap")
    scores = [float(score) for score in _scores(header, tokens)[: len(tokens)]]
    unknown = header.whole("tokenizer.ggml.unknown_token_id", 2)
    if unknown >= len(tokens):
        raise InvalidTokenizer(f"its unknown token is {unknown:,} of {len(tokens):,}")
    if not np.isfinite(scores).all():
        raise InvalidTokenizer("it has scores that are not finite")
    model = SentencePieceModel(
        kind="unigram",
        pieces=tokens,
        scores=scores,
        types=[int(each) for each in types],
        byte_fallback=False,
        special_ids={"unk": unknown, "bos": -1, "eos": -1},
        charsmap=b"" if rules is None else rules.astype("u1").tobytes(),
        add_dummy_prefix=header.get("tokenizer.ggml.add_space_prefix", bool, True),
        remove_extra_whitespaces=header.get("tokenizer.ggml.remove_extra_whitespaces", bool, False),
        data=b"",
    )
    return sentencepiece_backend(model, str(header.path))


def _scores(header: Header, tokens: list[str]) -> np.ndarray:
    scores = header.numbers("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        count = 0 if scores is None else len(scores)
        raise InvalidTokenizer(f"it has {len(tokens):,} tokens and {count:,} scores of them")
    return scores


def _implied_merges(tokens: Sequence[str], scores: np.ndarray | None) -> list[tuple[str, str]]:
    """Return every split of a token into two, those of the best token first.

    Without scores, the tokens are in this order already.
    """
    if sum(len(token) ** 2 for token in tokens) > _MOST_SPLITS:
        raise InvalidTokenizer("its tokens are too long to find their parts")
    ids = {token: index for index, token in enumerate(tokens)}
    rated = []
    for token, index in ids.items():
        score = -index if scores is None else float(scores[index])
        splits = ((token[:place], token[place:]) for place in range(1, len(token)))
        found = [(left, right) for left, right in splits if left in ids and right in ids]
        found.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        rated += [(score, len(left), len(right), left, right) for left, right in found]
    rated.sort(key=lambda entry: entry[:3], reverse=True)
    return [entry[3:] for entry in rated]
