"""Conversion between text and token ids."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import tokenizers

from keras_transformer.support.checking import check_bool, check_path, is_int, shorten
from keras_transformer.support.columns import is_column
from keras_transformer.support.foreign_names import ForeignNames, hint_on_foreign_arguments
from keras_transformer.support.registry import bound
from keras_transformer.tokenizers import loading, training
from keras_transformer.tokenizers.backend import check_texts, copy_backend, refusing
from keras_transformer.tokenizers.beginnings import CHARACTERS, encode_beginnings
from keras_transformer.tokenizers.chats import Chats
from keras_transformer.tokenizers.folder import Folder
from keras_transformer.tokenizers.symbols import check_symbols
from keras_transformer.tokenizers.vocabulary import Vocabulary


class Tokenizer(ForeignNames, Chats, Vocabulary):
    """Map between text and token ids.

    The work is done by the Rust library `tokenizers`; no deep learning framework is needed. Load a
    tokenizer with `from_preset` or `from_files`, learn one with `train`, or wrap a
    `tokenizers.Tokenizer`. Padding, truncation and dropout that a published tokenizer was saved
    with are switched off: a text always gives all of its ids, and batches are padded later, by
    tasks. (Dropout of a `backend` that is given here stays, for training.)

    A special token that is written out in a text, such as `[MASK]`, is encoded as that token.

    Args:
        backend: a `tokenizers.Tokenizer`. It is not changed, and its vocabulary is shared.
        pad: the padding token, a string of the vocabulary, or `None`.
        start: the token that starts a sequence (`<s>`, `[CLS]`), or `None`.
        end: the token that ends a sequence (`</s>`, `[SEP]`), or `None`.
        mask: the token that hides a token in masked language modelling, or `None`.
        unknown: the token for text that the vocabulary cannot spell, or `None`.
        chat_template: template of a chat, in Jinja, or `None`; see `render_chat`.

    Raises:
        ValueError: if the vocabulary lacks a token that is given a role.

    Example:
    ```python
    from keras_transformer.tokenizers import Tokenizer

    tokenizer = Tokenizer.train(["a man rides a bike ."] * 2, vocabulary_size=300)
    ids = tokenizer.encode("a man rides")
    assert ids[-1] == tokenizer.end_id
    assert tokenizer.decode(ids) == "a man rides"
    ```
    """

    # True in a subclass that segments texts itself: the backend is given lists of pieces.
    _takes_pieces = False
    _crosses_words = False  # True in a subclass whose tokens may span words
    _ends_once = False  # whether no end is added to a text that ends with one
    _of_formats: ClassVar[dict[str, type["Tokenizer"]]] = {}  # subclasses by the format they read

    def __init_subclass__(cls, format: str | None = None, **options):
        """Register a subclass that reads files of a format, see `Folder.format`."""
        super().__init_subclass__(**options)
        if format is not None:
            Tokenizer._of_formats[format] = cls

    if not TYPE_CHECKING:

        def __call__(self, *args, **kwargs):
            raise TypeError(
                "A tokenizer cannot be called: `encode(text)` returns the ids of one text, "
                "`encode_batch(texts)` the ids of many, as unpadded lists. Tasks take "
                "texts directly."
            )

    # Construction

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        kind: str = "bpe",
        vocabulary_size: int = 8000,
        lowercase: bool = False,
        template: str | None = None,
        special_tokens: Sequence[str] = (),
        add_prefix_space: bool = True,
    ) -> "Tokenizer":
        """Learn a vocabulary from texts.

        `"bpe"` (Sennrich et al. 2016, section 3.2) and `"unigram"` (Kudo 2018, section 3.2) spell
        words in bytes (Radford et al. 2019, section 2.2), so that every text, in any script and
        with any spacing, is restored exactly by `decode(encode(text))`. `"wordpiece"` (Devlin et
        al. 2019) works on normalized words: decoding returns the normalized text (lowercased and
        without accents with `lowercase=True`), with one space around every word and punctuation
        mark, and `[UNK]` characters are lost.

        The same texts give the same BPE vocabulary. The other two kinds keep words in no fixed
        order, so two runs may differ in ids and in a few tokens.

        Args:
            texts: an iterable of strings, which is read once and not kept.
            kind: `"bpe"`, `"wordpiece"` or `"unigram"`.
            vocabulary_size: maximum number of tokens, including special ones. A small corpus gives
                fewer.
            lowercase: lowercase every text first. Then decoding gives lowercased text.
            template: special tokens that encoding adds to a text: `"end"` gives `a </s>`,
                `"start_end"` `<s> a </s>`, `"bert"` `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`
                with segment ids 0 and 1, `"none"` nothing. Defaults to `"bert"` for WordPiece, else
                `"end"`.
            special_tokens: further special tokens, such as `"<mask>"`. They follow the usual ones:
                `<pad>`, `<s>`, `</s>`, `<unk>` with ids 0 to 3, or for WordPiece `[PAD]`, `[UNK]`,
                `[CLS]`, `[SEP]`, `[MASK]` with ids 0 to 4.
            add_prefix_space: put a space before every text and remove it in decoding, so that a
                word has the same id at the start of a text as inside it. With `False` a decoded
                continuation keeps the space that it starts with. Has no effect on WordPiece.

        Raises:
            ValueError: if texts are missing or not strings, if the kind or the template is unknown,
                or if the vocabulary size is too small for the special tokens and the alphabet.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        texts = ["a man rides a bike .", "ein mann fährt fahrrad ."]
        tokenizer = Tokenizer.train(texts, kind="unigram", vocabulary_size=300)
        assert tokenizer.decode(tokenizer.encode(" Gänse 🙂")) == " Gänse 🙂"
        ```
        """
        backend, roles = training.train(
            texts, kind, vocabulary_size, lowercase, template, special_tokens, add_prefix_space
        )
        return cls(backend, **roles)

    @classmethod
    def from_files(cls, directory: str | os.PathLike) -> "Tokenizer":
        """Load a tokenizer from a folder that `save` wrote, or one in Hugging Face's format.

        Args:
            directory: a folder with `tokenizer.json`, or the older files of a published class:
                `vocab.txt` (WordPiece), `vocab.json` and `merges.txt` (BPE), a SentencePiece file
                (`spiece.model`, `sentencepiece.bpe.model`, `spm.model`, `sentencepiece.model`,
                `tokenizer.model`), Marian's `source.spm`, `target.spm` and `vocab.json`, the
                `vocab.json` of characters of wav2vec 2.0, or RWKV's `rwkv_vocab_v20230424.txt`.
                `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json` and
                `config.json`, if present, define the class, the added tokens and the role of each
                token. The chat template is read from `chat_template.jinja`, or else from
                `tokenizer_config.json`.

        Raises:
            FileNotFoundError: if the folder has none of these files.
            ValueError: if a file is broken; the message names the file and the fault.
        """
        folder = Folder(directory)
        if folder.format is not None:
            return cls._of_formats[folder.format].from_files(directory)
        backend = loading.read_folder(folder)
        roles, chat_template = folder.roles(backend), folder.chat_template()
        with refusing(f"The tokenizer in {str(directory)!r} is not usable"):
            tokenizer = cls(backend, chat_template=chat_template, **roles)
        tokenizer._name = f"The tokenizer of {str(directory)!r}"
        tokenizer._ends_once = folder.ends_once
        return tokenizer

    @classmethod
    def from_preset(cls, preset: str | os.PathLike) -> "Tokenizer":
        """Load the tokenizer of a preset.

        Args:
            preset: a bundled name, a local folder, or `"hf://org/name"`.
        """
        return bound("load_tokenizer")(preset, cls)

    def save(self, directory: str | os.PathLike) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`.

        `from_files` restores the identical tokenizer, and Transformers can read the folder. Each
        file is written under another name and then renamed, so it is never half-written.

        Args:
            directory: the folder; created if it does not exist.
        """
        check_path("directory", directory)
        loading.write_directory(
            directory, self._backend, self._roles, self.chat_template, self._ends_once
        )

    def save_to_preset(self, directory: str | os.PathLike) -> None:
        """Write the tokenizer's part of a preset.

        Args:
            directory: a new or empty folder, or the folder of a preset, whose tokenizer is
                replaced.
        """
        bound("save_preset")(directory, tokenizer=self)

    # Text to ids

    @hint_on_foreign_arguments
    def encode(self, text: str, pair: str | None = None, special_tokens: bool = True) -> list[int]:
        """Return the ids of one text, or of a pair of texts.

        Args:
            text: a string.
            pair: a second string, encoded after the first.
            special_tokens: add the special tokens of the template, such as `[CLS]` and `[SEP]`.

        Raises:
            ValueError: if a text is not a string.
        """
        if isinstance(text, (list, tuple, np.ndarray)) or is_column(text):
            raise ValueError("`text` must be one string. For many use `encode_batch`.")
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, special_tokens)[0]

    @hint_on_foreign_arguments
    def encode_batch(
        self,
        texts: Sequence[str] | np.ndarray,
        pairs: Sequence[str] | np.ndarray | None = None,
        special_tokens: bool = True,
        max_length: int | None = None,
    ) -> list[list[int]]:
        """Return the ids of many texts, or of many pairs, computed in parallel.

        Args:
            texts: a list, tuple or 1-D NumPy array of strings, or a column of a data frame.
            pairs: the second texts, one for each text, or `None`.
            special_tokens: add the special tokens of the template.
            max_length: maximum number of ids in a row. The end of a longer text is cut off (in a
                pair, of whichever text is longer); the special tokens stay.

        Returns:
            One list of ints for each text. They differ in length: nothing is padded.

        Raises:
            ValueError: if a value is not a string, with its position; if texts and pairs differ in
                number; or if `max_length` leaves no room beside the special tokens.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        tokenizer = Tokenizer.train(["one two three"] * 2, vocabulary_size=300)
        rows = tokenizer.encode_batch(["one two three", "one"], max_length=3)
        assert [row[-1] for row in rows] == [tokenizer.end_id] * 2
        assert len(rows[0]) == 3
        ```
        """
        return [e.ids for e in self._encode(texts, pairs, special_tokens, max_length)]

    def encode_batch_with_segments(
        self,
        texts: Sequence[str] | np.ndarray,
        pairs: Sequence[str] | np.ndarray | None = None,
        special_tokens: bool = True,
        max_length: int | None = None,
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Encode as `encode_batch` does, and also return segment ids, such as BERT's 0 and 1.

        Returns:
            The ids and the segment ids, two lists of lists of the same lengths.
        """
        encodings = self._encode(texts, pairs, special_tokens, max_length)
        return [e.ids for e in encodings], [e.type_ids for e in encodings]

    def encode_batch_with_offsets(
        self,
        texts: Sequence[str] | np.ndarray,
        pairs: Sequence[str] | np.ndarray | None = None,
    ) -> list[tokenizers.Encoding]:
        """Encode as `encode_batch` does, and return the position of each token in the text.

        The special tokens of the template are added; nothing is truncated.

        Returns:
            The library's encodings: beside `ids` and `type_ids`, they have for each token the
            character `offsets` in the original text (start and end), `word_ids`, and
            `sequence_ids` (0 in the text, 1 in its pair). The latter two are `None` at special
            tokens that were added.

        Example:
        ```python
        from keras_transformer.tokenizers import Tokenizer

        tokenizer = Tokenizer.train(["one two"] * 2, kind="wordpiece", vocabulary_size=300)
        (encoding,) = tokenizer.encode_batch_with_offsets(["one  two"])
        assert encoding.offsets[1:3] == [(0, 3), (5, 8)]
        ```
        """
        rows = self._rows(texts, pairs)
        with self._refusing("encode"):
            return self._known(self._backend, rows, self._backend.encode_batch(rows))

    def _known(self, backend, rows, encodings) -> list[tokenizers.Encoding]:
        """Return the encodings of rows, whose symbols an alphabet must cover."""
        if isinstance(backend.model, tokenizers.models.WordLevel):
            check_symbols(backend, rows, encodings)
        return encodings

    def _rows(self, texts, pairs) -> list:
        rows = check_texts(texts, "texts")
        if pairs is None:
            return rows
        pairs = check_texts(pairs, "pairs")
        if len(pairs) != len(rows):
            raise ValueError(
                "`texts` and `pairs` must have the same number of strings. "
                f"Received: {len(rows)} texts and {len(pairs)} pairs."
            )
        return list(zip(rows, pairs, strict=True))

    def _encode(self, texts, pairs, special_tokens, max_length) -> list[tokenizers.Encoding]:
        special_tokens = check_bool("special_tokens", special_tokens)
        rows = self._rows(texts, pairs)
        backend = self._backend
        if max_length is not None:
            added = backend.num_special_tokens_to_add(pairs is not None) if special_tokens else 0
            if not is_int(max_length) or not added < max_length < 2**31:
                raise ValueError(
                    f"`max_length` must be an integer greater than {added}, the number of "
                    f"special tokens. Received: max_length={shorten(max_length)}"
                )
            # Set on a copy: the setting would persist, and other threads would see it.
            backend = copy_backend(backend)
            backend.enable_truncation(int(max_length), strategy="longest_first")

        def encode(rows: list) -> list[tokenizers.Encoding]:
            encodings = backend.encode_batch_fast(
                rows, is_pretokenized=self._takes_pieces, add_special_tokens=special_tokens
            )
            return self._known(backend, rows, encodings)

        with self._refusing("encode"):
            whole = self._takes_pieces or self._crosses_words
            if max_length is None or pairs is not None or whole or not _any_long(rows, max_length):
                encodings = encode(rows)
            else:
                encodings = encode_beginnings(encode, rows, int(max_length))
        if self._ends_once and special_tokens:
            for encoding in encodings:
                # The mask tells an end token in the text from one that the template added: in a
                # pair with an empty second text the template's two end tokens are neighbours.
                written = encoding.special_tokens_mask[-2:] == [0, 1]
                if written and encoding.ids[-2:] == [self.end_id] * 2:
                    encoding.truncate(len(encoding.ids) - 1)
        return encodings

    def encode_targets(self, texts: Sequence[str] | np.ndarray) -> list[list[int]]:
        """Return the ids of the targets of a sequence-to-sequence model, without special tokens.

        Returns:
            One list of ints for each text: the ids of `encode_batch`, except for a tokenizer that
            segments sources and targets differently, as Marian's does.
        """
        return self.encode_batch(texts, special_tokens=False)

    # TensorFlow

    def to_tensorflow(self, sequence_length: int | None = None):
        """Return a Keras layer that does the same with TensorFlow ops, for SavedModels of strings.

        Args:
            sequence_length: the length that every row is cut or padded to. `None` returns ragged
                rows.

        Returns:
            A `TensorFlowTokenizer` layer, which maps strings `(batch,)` to int32 ids.

        Raises:
            ImportError: if TensorFlow or tensorflow-text is not installed.
            ValueError: if a part of the tokenizer is not supported, or if `sequence_length` is
                given and there is no padding token.
        """
        from keras_transformer.tokenizers.tensorflow import TensorFlowTokenizer

        return TensorFlowTokenizer(
            self._backend.to_str(),
            pad_id=self.pad_id,
            sequence_length=sequence_length,
            split_special_tokens=self._backend.encode_special_tokens,
        )


def _any_long(texts: list[str], max_length: int) -> bool:
    """Return whether a text is so long that its beginning may be enough."""
    return max(map(len, texts), default=0) > CHARACTERS * max_length
