"""Models from SentencePiece's files: the order of the pieces and of the tokens around them.

The id of the unknown piece is that of the class.
"""

from collections.abc import Sequence

from tokenizers import AddedToken, models

from keras_transformer.tokenizers.folder import Folder
from keras_transformer.tokenizers.sentencepiece_file import SentencePieceModel


def fairseq_pieces(
    pieces: SentencePieceModel, folder: Folder, codes: Sequence[str] = ()
) -> models.Model:
    """The pieces behind Fairseq's four special tokens, then codes of languages and the mask."""
    names = ("bos_token", "pad_token", "eos_token", "unk_token", "mask_token")
    specials = [(folder.tokens[name] or f"<{name}>", 0.0) for name in names]
    behind = [*((code, 0.0) for code in codes), specials[4]]
    return models.Unigram([*specials[:4], *pieces.scored[3:], *behind], 3, False)


def sentinels(folder: Folder) -> list[AddedToken]:
    """`<extra_id_0>` and so on, which stand for what is to be filled in."""
    count = folder.size("extra_ids", 100, most=10_000)
    return [AddedToken(f"<extra_id_{i}>", special=True) for i in range(count)]


def t5_pieces(pieces: SentencePieceModel, folder: Folder) -> models.Model:
    """The pieces, then the sentinels, the last one first."""
    behind = [(token.content, 0.0) for token in reversed(sentinels(folder))]
    return models.Unigram(pieces.scored + behind, 2, False)


def pegasus_tokens(folder: Folder) -> list[AddedToken]:
    """What was learned with: the mask of sentences, and tokens of no meaning."""
    count = folder.size("offset", 103, most=10_000)
    names = ["<mask_1>", *(f"<unk_{i}>" for i in range(2, count))]
    return [AddedToken(name, special=True) for name in names]


def pegasus_pieces(pieces: SentencePieceModel, folder: Folder) -> models.Model:
    """The pieces behind these tokens, the padding and the end."""
    mask, *plain = (token.content for token in pegasus_tokens(folder))
    names = (folder.tokens["pad_token"], folder.tokens["eos_token"])
    named = [*names, mask, folder.tokens["mask_token"]]
    scored = [*((name, 0.0) for name in named), *((name, -100.0) for name in plain)]
    unknown = pieces.special_ids["unk"] + len(scored) - 2
    return models.Unigram([*scored, *pieces.scored[2:]], unknown, False)
