"""SentencePiece's models, by the library `tokenizers`.

Source: Kudo & Richardson 2018.
"""

import os
import re

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers

from keras_transformer.tokenizers.sentencepiece_file import (
    NORMAL,
    USER_DEFINED,
    Charsmap,
    SentencePieceModel,
    parse_sentencepiece,
)

SPACE = "▁"


def read_sentencepiece(path: str | os.PathLike) -> tokenizers.Tokenizer:
    """A SentencePiece file as a backend that segments as SentencePiece does.

    The ids are those of the file; nothing is put around a text. Two things are other than in
    SentencePiece, as they are in Transformers: a control symbol such as `</s>` that is written
    out in a text is that symbol, and the normalization rules are looked up for a character
    together with its marks, so that decomposed Korean or Japanese, or two marks on one letter,
    may come out differently.

    Args:
        path: a file of the unigram or BPE kind, usually named `*.model` or `*.spm`.

    Returns:
        A `tokenizers.Tokenizer`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not a usable SentencePiece file.
    """
    model = parse_sentencepiece(path)
    specials = [index for index in model.special_ids.values() if index >= 0]
    if model.kind == "unigram":
        backend = tokenizers.Tokenizer(
            models.Unigram(
                list(zip(model.pieces, segmentation_scores(model), strict=True)),
                model.special_ids["unk"],
                model.byte_fallback,
            )
        )
        added = [token for token in model.added_tokens() if token.special]
    else:
        backend = tokenizers.Tokenizer(_bpe(model, model.byte_fallback))
        added = model.added_tokens()
    steps = charsmap_normalizers(model.charsmap, repr(os.fspath(path)))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), "")]
        steps += [normalizers.Replace(Regex(" {2,}"), " ")]
    if model.add_dummy_prefix:
        steps += [normalizers.Prepend(SPACE)]
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])
    backend.decoder = space_decoder(strip=model.add_dummy_prefix)
    named = [AddedToken(model.pieces[i], normalized=False, special=True) for i in specials]
    backend.add_tokens(added + named)
    return backend


def segmentation_scores(model: SentencePieceModel) -> list[float]:
    """The scores of a unigram file as its segmentation uses them.

    User defined symbols are to be found whatever their score: SentencePiece gives them, in
    place of theirs, the best score once for each character.
    """
    best = max(
        (score for score, type in zip(model.scores, model.types, strict=True) if type == NORMAL),
        default=0.0,
    )
    return [
        len(piece) * best - 0.1 if type == USER_DEFINED else score
        for piece, score, type in zip(model.pieces, model.scores, model.types, strict=True)
    ]


class Segmenter:
    """Segments texts exactly as SentencePiece does, into the strings of the pieces.

    (Except that user defined symbols have no precedence in a file of the BPE kind.)

    Args:
        model: the content of a file.

    Call arguments:
        texts: strings.

    Returns:
        A list of pieces for each. An unknown piece is what stands in the text.
    """

    def __init__(self, model: SentencePieceModel):
        self.model = model
        self._charsmap = Charsmap(model.charsmap) if model.charsmap else None
        if model.kind == "unigram":
            # Control symbols and bytes are not to be found in texts, and no text has a space:
            # see `_normalize`.
            names = [
                piece if type in (NORMAL, USER_DEFINED) else f" {piece}"
                for piece, type in zip(model.pieces, model.types, strict=True)
            ]
            scored = list(zip(names, segmentation_scores(model), strict=True))
            segment = models.Unigram(scored, model.special_ids["unk"], False)
        else:
            segment = _bpe(model, byte_fallback=False)
        self._backend = tokenizers.Tokenizer(segment)

    def __call__(self, texts: list[str]) -> list[list[str]]:
        texts = [self._normalize(text) for text in texts]
        encodings = self._backend.encode_batch(texts)
        return [self._pieces(*row) for row in zip(texts, encodings, strict=True)]

    def _pieces(self, text: str, encoding: tokenizers.Encoding) -> list[str]:
        pieces = [text[start:end] for start, end in encoding.offsets]
        if not self.model.byte_fallback:
            return pieces
        unknown = self.model.special_ids["unk"]
        return [
            part
            for piece, index in zip(pieces, encoding.ids, strict=True)
            for part in (_in_bytes(piece) if index == unknown else [piece])
        ]

    def _normalize(self, text: str) -> str:
        """The text as the pieces spell it: by the rules, and with `▁` for spaces."""
        if self._charsmap is not None:
            text = self._charsmap.normalize(text)
        if self.model.remove_extra_whitespaces:
            text = re.sub(" {2,}", " ", text).lstrip(" ")
        if text and self.model.add_dummy_prefix:
            text = SPACE + text
        text = text.replace(" ", SPACE)
        return text.rstrip(SPACE) if self.model.remove_extra_whitespaces else text


def _in_bytes(piece: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in piece.encode()]


def _bpe(model: SentencePieceModel, byte_fallback: bool) -> models.BPE:
    return models.BPE(
        model.vocabulary,
        model.merges(),
        unk_token=model.pieces[model.special_ids["unk"]],
        fuse_unk=True,
        byte_fallback=byte_fallback,
    )


def charsmap_normalizers(charsmap: bytes, where: str) -> list[normalizers.Normalizer]:
    """The normalizer of compiled rules of a file, in a list that is empty if there are none."""
    if not charsmap:
        return []
    try:
        Charsmap(charsmap)
        return [normalizers.Precompiled(charsmap)]
    except Exception as error:
        raise ValueError(f"{where} has broken normalization rules: {error}") from None


def space_decoder(strip: bool) -> decoders.Decoder:
    """Pieces to text: spaces, bytes, and one space less at the start if one was put there."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
