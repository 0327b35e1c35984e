"""Text to token ids and back."""

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tokenizers

from keras_transformer.checking import check_bool, check_path, is_int, shorten
from keras_transformer.columns import is_column
from keras_transformer.kerashub_names import ForeignNames, answers_theirs
from keras_transformer.registry import bound
from keras_transformer.tokenizers import loading, training
from keras_transformer.tokenizers.backend import check_texts, copy_backend, refusing
from keras_transformer.tokenizers.beginnings import encode_beginnings
from keras_transformer.tokenizers.chats import Chats
from keras_transformer.tokenizers.folder import Folder
from keras_transformer.tokenizers.symbols import known
from keras_transformer.tokenizers.vocabulary import Vocabulary


class Tokenizer(ForeignNames, Chats, Vocabulary):
    """Maps text to token ids and back.

    The work is done by the Rust library `tokenizers`; no deep learning framework is needed.
    Load one with `from_preset` or `from_files`, learn one with `train`, or wrap a
    `tokenizers.Tokenizer`. Padding, truncation and dropout that a published tokenizer was saved
    with are switched off: a text gives all of its ids, the same in every call, and batches are
    padded where they are made. (Dropout of a `backend` that is given here stays, for training.)

    A special token written out in a text, such as `[MASK]`, is that token.

    Args:
        backend: a `tokenizers.Tokenizer`. It is not changed, and its vocabulary is shared.
        pad: the padding token, a string of the vocabulary, or `None` if there is none.
        start: the token that starts a sequence (`<s>`, `[CLS]`), or `None`.
        end: the token that ends a sequence (`</s>`, `[SEP]`), or `None`.
        mask: the token that hides a token in masked language modelling, or `None`.
        unknown: the token for what the vocabulary cannot spell, or `None`.
        chat_template: how a chat is written, in Jinja, or `None`; see `render_chat`.

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

    # Whether the backend gets lists of pieces, not texts: so for a subclass that segments itself.
    _takes_pieces = False
    _ends_once = False  # Whether no end is put behind a text that ends with it.

    if not TYPE_CHECKING:

        def __call__(self, *args, **kwargs):
            raise TypeError(
                "A tokenizer is not called: `encode(text)` gives the ids of one text, "
                "`encode_batch(texts)` those of many, as lists that are not padded. Tasks take "
                "texts as they are."
            )

    # Making one

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
        """Learns a vocabulary from texts.

        `"bpe"` (Sennrich et al. 2016, section 3.2) and `"unigram"` (Kudo 2018, section 3.2)
        spell words in bytes (Radford et al. 2019, section 2.2), so that every text, in any
        script and with any spacing, comes back exactly from `decode(encode(text))`.
        `"wordpiece"` (Devlin et al. 2019) works on normalized words: what comes back is the
        normalized text (lowercased and without accents with `lowercase=True`), with one space
        around every word and punctuation mark, and `[UNK]` characters are lost.

        The same texts give the same BPE vocabulary; of the other two, in which words have no fixed
        order, two runs may differ in ids and in a few tokens.

        Args:
            texts: an iterable of strings, which is read once and not kept.
            kind: `"bpe"`, `"wordpiece"` or `"unigram"`.
            vocabulary_size: the most tokens, special ones included. Little text gives fewer.
            lowercase: lowercase every text first. Then decoding gives lowercased text.
            template: what encoding adds to a text: `"end"` gives `a </s>`, `"start_end"`
                `<s> a </s>`, `"bert"` `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]` with segment
                ids 0 and 1, `"none"` nothing. Defaults to `"bert"` for WordPiece, else `"end"`.
            special_tokens: further special tokens, such as `"<mask>"`. They follow the usual
                ones: `<pad>`, `<s>`, `</s>`, `<unk>` with ids 0 to 3, or for WordPiece
                `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]`, `[MASK]` with ids 0 to 4.
            add_prefix_space: put a space before every text and take it away in decoding, so that
                a word has the same id at the start of a text as inside. No difference to WordPiece.
                With `False` a decoded continuation keeps the space that it starts with.

        Raises:
            ValueError: for texts that are not strings or are missing, an unknown kind or
                template, or a vocabulary size below the special tokens and the alphabet.

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
        """Loads a folder: ours, or one in the format of Hugging Face.

        Args:
            directory: a folder with `tokenizer.json`, or the older files of a published class:
                `vocab.txt` (WordPiece), `vocab.json` and `merges.txt` (BPE), a SentencePiece
                file (`spiece.model`, `sentencepiece.bpe.model`, `spm.model`, `tokenizer.model`),
                or Marian's `source.spm`, `target.spm` and `vocab.json`, or the `vocab.json` of
                characters of wav2vec 2.0. `tokenizer_config.json`,
                `special_tokens_map.json`, `added_tokens.json` and `config.json`, if there, say
                which class it is, which tokens are added, and which has which role. The template
                of chats is that of `chat_template.jinja`, else of `tokenizer_config.json`.

        Raises:
            FileNotFoundError: if the folder has none of these files.
            ValueError: if a file is broken, naming the file and what is wrong.
        """
        folder = Folder(directory)
        if folder.is_marian or folder.is_ctc:
            from keras_transformer.tokenizers import ctc, marian  # of subclasses

            kind = marian.MarianTokenizer if folder.is_marian else ctc.CTCTokenizer
            return kind.from_files(directory)
        backend = loading.read_folder(folder)
        roles, chat_template = folder.roles(backend), folder.chat_template()
        with refusing(f"The tokenizer in {str(directory)!r} is not usable"):
            tokenizer = cls(backend, chat_template=chat_template, **roles)
        tokenizer._name = f"The tokenizer of {str(directory)!r}"
        tokenizer._ends_once = folder.ends_once
        return tokenizer

    @classmethod
    def from_preset(cls, preset: str | os.PathLike) -> "Tokenizer":
        """Loads the tokenizer of a preset.

        Args:
            preset: a bundled name, a local folder, or `"hf://org/name"`.
        """
        return bound("load_tokenizer")(preset, cls)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`.

        `from_files` gives the identical tokenizer back, and Transformers reads the folder.
        Each file is written beside its target and renamed.

        Args:
            directory: the folder; made if it does not exist.
        """
        check_path("directory", directory)
        loading.write_directory(
            directory, self._backend, self._roles, self.chat_template, self._ends_once
        )

    def save_to_preset(self, directory: str | os.PathLike) -> None:
        """Writes the tokenizer's part of a preset, all of it at one instant.

        Args:
            directory: the folder: new, empty, or that of a preset, whose tokenizer is replaced.
        """
        bound("save_preset")(directory, tokenizer=self)

    # Text to ids

    @answers_theirs
    def encode(self, text: str, pair: str | None = None, special_tokens: bool = True) -> list[int]:
        """The ids of one text, or of a pair of texts.

        Args:
            text: a string.
            pair: a second string, encoded behind the first.
            special_tokens: add the special tokens of the template, such as `[CLS]` and `[SEP]`.

        Raises:
            ValueError: if a text is not a string.
        """
        if isinstance(text, (list, tuple, np.ndarray)) or is_column(text):
            raise ValueError("`text` must be one string. Many are for `encode_batch`.")
        pairs = None if pair is None else [pair]
        return self.encode_batch([text], pairs, special_tokens)[0]

    @answers_theirs
    def encode_batch(
        self,
        texts: Sequence[str] | np.ndarray,
        pairs: Sequence[str] | np.ndarray | None = None,
        special_tokens: bool = True,
        max_length: int | None = None,
    ) -> list[list[int]]:
        """The ids of many texts, or of many pairs, in parallel.

        Args:
            texts: a list, tuple or 1-D NumPy array of strings, or a column of a data frame.
            pairs: as many second texts, or `None`.
            special_tokens: add the special tokens of the template.
            max_length: the largest number of ids of a row. The end of a longer text is cut
                off, of a pair the end of the longer of the two; the special tokens stay.

        Returns:
            One list of ints for each text. They differ in length: nothing is padded.

        Raises:
            ValueError: for what is not a string, with its position; for texts and pairs that
                differ in number; for a `max_length` with no room beside the special tokens.

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
        """`encode_batch`, with its arguments, and the segment of every id: 0 or 1 for BERT's.

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
        """`encode_batch`, with its arguments, and where in the text each token stands.

        The special tokens of the template are added, nothing is truncated.

        Returns:
            What the library gives: beside `ids` and `type_ids`, for each token the characters
            `offsets` of the original text (start and end), `word_ids` (`None` for an added
            special token) and `sequence_ids` (0 for a token of the text, 1 of its pair, `None`).

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
            return known(self._backend, rows, self._backend.encode_batch(rows))

    def _rows(self, texts, pairs) -> list:
        rows = check_texts(texts, "texts")
        if pairs is None:
            return rows
        pairs = check_texts(pairs, "pairs")
        if len(pairs) != len(rows):
            raise ValueError(
                "`texts` and `pairs` must have as many strings. "
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
            # On a copy: the setting would last, and other threads would see it.
            backend = copy_backend(backend)
            backend.enable_truncation(int(max_length), strategy="longest_first")

        def encode(rows: list) -> list[tokenizers.Encoding]:
            encodings = backend.encode_batch_fast(
                rows, is_pretokenized=self._takes_pieces, add_special_tokens=special_tokens
            )
            return known(backend, rows, encodings)

        with self._refusing("encode"):
            if max_length is None or pairs is not None or self._takes_pieces:
                encodings = encode(rows)
            else:
                encodings = encode_beginnings(encode, rows, int(max_length))
        if self._ends_once and special_tokens:
            for encoding in encodings:
                # The one before may be that of the first of a pair, whose second is empty.
                written = encoding.special_tokens_mask[-2:] == [0, 1]
                if written and encoding.ids[-2:] == [self.end_id] * 2:
                    encoding.truncate(len(encoding.ids) - 1)
        return encodings

    def encode_targets(self, texts: Sequence[str] | np.ndarray) -> list[list[int]]:
        """The ids of the targets of a sequence-to-sequence model, without special tokens.

        Returns:
            One list of ints for each text: those of `encode_batch`, except in a tokenizer that
            segments sources and targets differently, as Marian's does.
        """
        return self.encode_batch(texts, special_tokens=False)

    # TensorFlow

    def to_tensorflow(self, sequence_length: int | None = None):
        """The same mapping as a Keras layer over TensorFlow ops, for string-in SavedModels.

        Args:
            sequence_length: cut and pad every row to this length. `None` gives ragged rows.

        Returns:
            A `TensorFlowTokenizer` layer: strings `(batch,)` to int32 ids.

        Raises:
            ImportError: if TensorFlow or tensorflow-text is not installed.
            ValueError: if the tokenizer has a part that has no TensorFlow counterpart here, or
                `sequence_length` is given and there is no padding token.
        """
        from keras_transformer.tokenizers.tensorflow import TensorFlowTokenizer

        return TensorFlowTokenizer(
            self._backend.to_str(),
            pad_id=self.pad_id,
            sequence_length=sequence_length,
            split_special_tokens=self._backend.encode_special_tokens,
        )
