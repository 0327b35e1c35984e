"""Speech to text by an encoder alone: a token, or none, for each of its states."""

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import MOST_TOKENS, check_flag, check_int, check_number
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.generation.scoring import pad_rows
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.processors import AudioProcessor
from keras_transformer.structure import dense_of, shapes_of
from keras_transformer.tasks.audio_classifier import arrays_of_sound
from keras_transformer.tasks.labels import check_weights
from keras_transformer.tasks.sources import SourceProcessor
from keras_transformer.tasks.speech_tokens import Segment
from keras_transformer.tasks.task import Task
from keras_transformer.tasks.text import check_equal, check_said, text_rows
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import CTCLoss, FineTuningAdamW

_PIECES = 16  # of a second, by which lengths are told apart
_NEVER = -1e4  # the logit of what is impossible, in half precision too


class CTCProcessor(SourceProcessor):
    """An `AudioProcessor` and the tokenizer of an encoder's output."""

    source_class = AudioProcessor
    options = ()
    kind = "audio processor and tokenizer"
    raw = "recordings"
    files = AudioProcessor.files

    def check(self, config: TransformerConfig) -> None:
        self.source.check(config)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CTCSpeechToText(Task):
    """An encoder that reads a waveform, with a linear layer to tokens on every state.

    A state says one token, mostly a character, or nothing, which is the token of padding, called
    blank. What is said twice running is one token; a blank between two makes them two. A state has
    no say in what others say, so a text is there at once, and no language is learned.

    Trains on recordings and texts, `fit(recordings, texts)`, which need not say which part of a
    recording is which character. Recordings are paths, bytes, arrays of samples, `(array, rate)`,
    or what else `processors.AudioProcessor` takes, of any lengths; those of a batch are of like
    length. Each gives what it gives alone.

    Compiled with AdamW (5e-5) and `training.CTCLoss`; `compile` changes that.

    Args:
        backbone: an `Encoder` whose config has a `stem` of the kind `"waveform"`.
        processor: `processors.AudioProcessor` with `features="waveform"`; None for a task that
            takes arrays only.
        tokenizer: `Tokenizer`, such as `tokenizers.CTCTokenizer`; likewise.
        vocabulary_size: int, tokens of the output. Defaults to those of the tokenizer.
        blank_id: int, the token of nothing. Defaults to the tokenizer's padding.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        name: str.

    Call arguments:
        inputs: dict of `samples`, float `(batch, length)`, and `padding_mask`, bool likewise, True
            for the samples of the recording.

    Returns:
        Logits, float `(batch, states, vocabulary_size)`. States of padding say blank for certain.

    Raises:
        ValueError: for a backbone that reads no waveforms, a tokenizer without padding or larger
            than `vocabulary_size`, or no `vocabulary_size`.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    config = kt.TransformerConfig(
        kind="encoder", vocabulary_size=0, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32, position="none",
        stem={
            "kind": "waveform", "filters": [8, 8], "kernel_sizes": [20, 10],
            "strides": [20, 10], "position_size": 4, "position_groups": 2,
        },
    )
    tokenizer = kt.tokenizers.CTCTokenizer.of_characters("highlow")
    processor = kt.AudioProcessor("waveform")
    task = kt.CTCSpeechToText(kt.models.Encoder(config), processor, tokenizer)
    tones = [np.sin(np.arange(4000) * pitch) for pitch in (0.1, 0.8)]
    task.fit(tones, ["low", "high"], epochs=1, verbose=0)
    assert isinstance(task.transcribe(tones[0]), str)
    ```

    Source: Graves et al. 2006, "Connectionist Temporal Classification", sections 3 and 4.
    """

    backbone_kinds = ("encoder",)
    alias = "ctc_speech_to_text"
    published_as = ("ForCTC",)
    processor_class = CTCProcessor
    reads_arrays = ("samples",)
    task_options = ("vocabulary_size", "blank_id", "dropout")
    needs_labels = True
    takes_records = False
    predict_options: ClassVar[dict[str, Any]] = {"max_buckets": 1, "sizes": None}

    def __init__(
        self,
        backbone: Backbone,
        processor: AudioProcessor | None = None,
        tokenizer: Tokenizer | None = None,
        vocabulary_size: int | None = None,
        blank_id: int | None = None,
        dropout: float | None = None,
        name: str | None = None,
    ):
        joined = self.processor_class.joined(processor, tokenizer)
        super().__init__(backbone, joined, name=name)
        if backbone.id_inputs[0] not in self.reads_arrays:
            raise ValueError(
                "CTCSpeechToText needs a backbone that reads waveforms: give the config a `stem`, "
                "such as {'kind': 'waveform'}."
            )
        own = self.tokenizer
        if own is not None:
            vocabulary_size = own.vocabulary_size if vocabulary_size is None else vocabulary_size
            blank_id = own.pad_id if blank_id is None else blank_id
            if blank_id is None:
                raise ValueError("The tokenizer has no padding token, which stands for nothing.")
        size = check_int(
            "vocabulary_size", vocabulary_size, 2, MOST_TOKENS,
            hint="Give it, or a `tokenizer`: how many tokens the output tells apart.",
        )  # fmt: skip
        if own is not None and own.vocabulary_size > size:
            raise ValueError(
                f"The tokenizer has {own.vocabulary_size} tokens, but the output only {size}. Do "
                "they belong together?"
            )
        self.vocabulary_size = size
        self.blank_id = check_int("blank_id", blank_id or 0, at_least=0, at_most=size - 1)
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = backbone.config.dropout if dropout is None else dropout
        self.dropout_layer = self._dropout(self.dropout)
        self.output_dense = self._dense(size, "output")
        self.built = True
        self.compile(FineTuningAdamW(), CTCLoss(self.blank_id))

    @property
    def number_of_targets(self) -> int:
        return self.vocabulary_size

    def head_outputs(self, states, inputs, training: bool):
        logits = self.output_dense(self.dropout_layer(states, training=training))
        mask = inputs.get("padding_mask")
        if mask is None:
            return logits
        mask = self.backbone.stem.mask_of_states(mask, ops.shape(states)[1])
        silent = np.full(self.vocabulary_size, _NEVER, "float32")
        silent[self.blank_id] = 0
        return ops.where(mask[..., None], logits, ops.cast(silent, logits.dtype))

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Recordings, and their texts, as batches of like lengths, which are read when asked for.

        Args:
            x: recordings.
            y: texts, one for each recording.
            sample_weight: one number a recording.
            **options: as for `Task.make_dataset`, lengths in sixteenths of a second.
        """
        processor = self._require_processor()
        source = processor.source
        recordings = source.rows(x)
        counts = source.counts(recordings)
        values = {}
        if y is not None:
            values["labels"] = self._labels(y, counts)
            weights = check_weights("sample_weight", sample_weight, len(counts), unit="recording")
            if weights is not None:
                values["sample_weight"] = weights

        def make_batch(arrays, masks):
            rows, size = arrays["row"], arrays["pieces"].shape[1] * piece
            given = [recordings[i] for i in rows]
            spoken = y is not None
            inputs = arrays_of_sound(self.backbone, source, given, rows, size, spoken)
            return inputs, *(arrays[name] for name in values)

        # A column of as many numbers as a recording has pieces, by which it is put in a batch.
        piece = max(source.sampling_rate // _PIECES, 1)
        columns = {"pieces": [np.zeros(-(-count // piece), "int32") for count in counts]}
        options = {"max_buckets": 4, "multiple": _PIECES, **options}
        return self._bucketed(columns, make_batch, values=values, **options)

    def _labels(self, y: Any, counts: list[int]) -> np.ndarray:
        """The ids of texts, int32 `(texts, length)`, blank behind them."""
        texts = text_rows(y, "y")
        check_equal(counts, texts, ("recordings", "texts"))
        rows = self.tokenizer.encode_targets(texts)
        check_said(texts, rows, self.tokenizer.encode_targets([""])[0], "`y[{}]`".format)
        stem = self.backbone.config.stem
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            if self.blank_id in row:
                blank = self.tokenizer.id_to_token(self.blank_id)
                raise ValueError(f"`y[{place}]` has the token {blank!r}, which stands for nothing.")
            states = max(stem.lengths(count)[-1], 1)
            needed = len(row) + sum(a == b for a, b in pairwise(row))
            if needed > states:
                raise ValueError(
                    f"`y[{place}]` needs {needed} states, one a token and one more between two of "
                    f"a kind, and `x[{place}]`, of {count:,} samples, has only {states}. Does the "
                    "text belong to it?"
                )
        return pad_rows(rows, self.blank_id)[0]

    @reads
    def transcribe(
        self, recordings, timestamps: bool = False, batch_size: int = 8
    ) -> list[str] | str | list[list[Segment]] | list[Segment]:
        """What was said in recordings: of each state what is likeliest.

        Args:
            recordings: a list of what `AudioProcessor` takes, or one recording.
            timestamps: bool, give the words with their times.
            batch_size: int, recordings that are computed together.

        Returns:
            For each recording a string, or with `timestamps` a list of `Segment`, one for each
            word; for one recording its result alone. Example: see the class.

        Raises:
            ValueError: for what is no recording, with its place, and for `timestamps` where the
                tokenizer has no token between words.
        """
        timestamps = check_flag("timestamps", timestamps)
        batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        processor = self._require_processor()
        alone = processor.source.is_one(recordings)
        between = getattr(self.tokenizer, "delimiter_id", None)
        if timestamps and between is None:
            raise ValueError(
                "`timestamps` are of words, and the tokenizer has no token between words: take a "
                "tokenizers.CTCTokenizer."
            )
        source = processor.source
        given = [recordings] if alone else source.rows(recordings)
        places = np.zeros((len(given), 2), "int64")  # of each piece, its recording and its start
        places[:, 0] = np.arange(len(given))
        if source.length is not None:  # What is longer is read piece by piece.
            samples = source.read(given)
            starts = [range(0, len(row), source.length) for row in samples]
            places = np.array([(i, start) for i, each in enumerate(starts) for start in each])
            given = [samples[i][start : start + source.length] for i, start in places]
        dataset = self.make_dataset(given, batch_size=batch_size, sizes=self._sizes)
        rows = self._row_outputs(dataset, lambda logits: logits.argmax(axis=-1))
        found: list[list] = [[] for _ in range(places[-1, 0] + 1)]
        for (i, start), row in zip(places, rows, strict=True):
            found[i] += self._words(row, start) if timestamps else [self._text(row)]
        if not timestamps:
            found = [" ".join(filter(None, texts)) for texts in found]
        return found[0] if alone else found

    def _said(self, row: Sequence[int]) -> list[tuple[int, int, int]]:
        """What the states of a recording say: each token, and the states it begins and ends at."""
        said, place = [], 0
        for token, group in groupby(np.asarray(row).tolist()):
            before, place = place, place + len(list(group))
            if token != self.blank_id:
                said.append((token, before, place))
        return said

    def _text(self, row: Sequence[int]) -> str:
        return self.tokenizer.decode([token for token, *_ in self._said(row)])

    def _words(self, row: Sequence[int], start: int) -> list[Segment]:
        """The words of a recording that begins at sample `start`."""
        rate = self.processor.source.sampling_rate
        seconds, start = self.backbone.config.stem.samples_of_state / rate, start / rate
        words = []
        for is_between, group in groupby(
            self._said(row), lambda each: each[0] == self.tokenizer.delimiter_id
        ):
            if not is_between:
                tokens, starts, ends = zip(*group, strict=True)
                text = self.tokenizer.decode(list(tokens))
                first, last = (start + states * seconds for states in (starts[0], ends[-1]))
                words.append(Segment(first, last, text))
        return words

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {name: values.get(name) for name in ("vocabulary_size", "blank_id")}

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        size = values.get("vocabulary_size")
        if not isinstance(size, int):
            raise ValueError(f"`vocabulary_size` must be an integer, received {size!r}.")
        return shapes_of(dense_of("output", "hidden_dim", "tokens"), config, tokens=size)
