"""Speech to text with an encoder alone (CTC): each state predicts a token or the blank."""

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import dense_of, shapes_of
from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors import AudioProcessor
from keras_transformer.support.checking import MOST_TOKENS, check_flag, check_int, check_number
from keras_transformer.support.sizes import pad_rows
from keras_transformer.tasks.base.head import PER_TOKEN, Head
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.data.text import check_equal, check_said, text_rows
from keras_transformer.tasks.media.sources import SourceProcessor
from keras_transformer.tasks.media.speech_tokens import Segment
from keras_transformer.tasks.speech.audio_classifier import arrays_of_sound
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import CTCLoss, FineTuningAdamW

_PIECES = 16  # pieces per second, the unit in which recordings are bucketed by length
_NEVER = -1e4  # the logit of an impossible token; fits half precision


class CTCProcessor(SourceProcessor):
    """An `AudioProcessor` and the tokenizer of the encoder's output."""

    source_class = AudioProcessor
    options = ()
    kind = "audio processor and tokenizer"
    raw = "recordings"
    files = AudioProcessor.files
    reads_arrays = ("samples", "frames")

    def check(self, config: TransformerConfig) -> None:
        self.source.check(config)


class CTCHead(Head):
    """The head of `CTCSpeechToText`: a linear layer on every state, to tokens and the blank.

    Args:
        task: as for `Head`.
        vocabulary_size, blank_id, dropout: as for `CTCSpeechToText`.
    """

    options = ("vocabulary_size", "blank_id", "dropout")
    published_as = ("ForCTC",)
    needs_labels = True
    learned = ("text", "sentence", "transcription", "transcript")
    takes_records = False
    predict_options: ClassVar = PER_TOKEN

    def __init__(
        self, task, vocabulary_size: int | None, blank_id: int | None, dropout: float | None
    ):
        super().__init__(task)
        own = task.tokenizer
        if own is not None:
            vocabulary_size = own.vocabulary_size if vocabulary_size is None else vocabulary_size
            blank_id = own.pad_id if blank_id is None else blank_id
            if blank_id is None:
                raise ValueError(
                    "The tokenizer has no padding token to serve as the blank: give `blank_id`."
                )
        size = check_int(
            "vocabulary_size", vocabulary_size, 2, MOST_TOKENS,
            hint="It is the number of tokens of the output: give it, or a `tokenizer`.",
        )  # fmt: skip
        if own is not None and own.vocabulary_size > size:
            raise ValueError(
                f"The tokenizer has {own.vocabulary_size} tokens, but the output only {size}: use "
                "the tokenizer of the model, or raise `vocabulary_size`."
            )
        self.vocabulary_size = size
        self.blank_id = check_int("blank_id", blank_id or 0, at_least=0, at_most=size - 1)
        dropout = check_number("dropout", dropout, at_least=0, below=1, none=True)
        self.dropout = task.backbone.config.dropout if dropout is None else dropout
        self.keep(dropout_layer=self.make_dropout(self.dropout))
        self.keep(output_dense=self.make_dense(size, "output"))

    @property
    def number_of_targets(self) -> int:
        return self.vocabulary_size

    def __call__(self, states, inputs, training: bool = False):
        logits = self.output_dense(self.dropout_layer(states, training=training))
        mask = inputs.get("padding_mask")
        if mask is None:
            return logits
        mask = self.task.backbone.stem.mask_of_states(mask, ops.shape(states)[1])
        silent = np.full(self.vocabulary_size, _NEVER, "float32")
        silent[self.blank_id] = 0
        return ops.where(mask[..., None], logits, ops.cast(silent, logits.dtype))

    def usual(self) -> dict[str, Any]:
        return {"optimizer": FineTuningAdamW(), "loss": CTCLoss(self.blank_id)}

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values.get(name) for name in ("vocabulary_size", "blank_id")}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        size = values.get("vocabulary_size")
        if not isinstance(size, int):
            raise ValueError(f"`vocabulary_size` must be an integer, received {size!r}.")
        return shapes_of(dense_of("output", "hidden_dim", "tokens"), config, tokens=size)


@keras.saving.register_keras_serializable(package="keras_transformer")
class CTCSpeechToText(Task):
    """An encoder that reads sound, with a linear layer to tokens on every state (CTC).

    Each state predicts one token, usually a character, or the blank, which is the padding token.
    Equal tokens in adjacent states are merged; a blank between two of them keeps them apart. Tokens
    are predicted independently of each other: the whole text is available after one pass, and no
    language model is learned.

    Trains on recordings and texts, `fit(recordings, texts)`, without an alignment of characters to
    the recording. Recordings are paths, bytes, arrays of samples, `(array, rate)`, or anything else
    that `processors.AudioProcessor` takes, of any length; batches hold recordings of similar
    length. The result for a recording does not depend on its batch.

    Compiled with AdamW (5e-5) and `training.CTCLoss`; `compile` changes this.

    Args:
        backbone: an `Encoder` whose config has a `stem` of the kind `"waveform"` or
            `"subsampled_frames"`, or of the kind `"frames"` with `masked`.
        processor: `processors.AudioProcessor` with `features="waveform"`, or for frames
            `"normalized_filter_bank"` or `"normalized_log_mel"`; None if the task only takes
            arrays.
        tokenizer: `Tokenizer`, such as `tokenizers.CTCTokenizer`, or None if the task only takes
            arrays.
        vocabulary_size: int, the number of output tokens. Defaults to the tokenizer's.
        blank_id: int, the id of the blank. Defaults to the tokenizer's padding id.
        dropout: float, rate before the last layer. Defaults to the backbone's.
        name: str.

    Call arguments:
        inputs: dict with `samples`, float `(batch, length)`, or `frames`, float `(batch, length,
            num_bins)`; and `padding_mask`, bool `(batch, length)`, True for the samples or frames
            of the recording.

    Returns:
        Logits, float `(batch, states, vocabulary_size)`. States of padding always predict blank.

    Raises:
        ValueError: if the backbone reads neither waveforms nor masked frames, the tokenizer has no
            padding token or is larger than `vocabulary_size`, or `vocabulary_size` is missing.

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

    alias = "ctc_speech_to_text"
    backbone_kinds = ("encoder",)
    head_class = CTCHead
    processor_class = CTCProcessor
    task_options = CTCHead.options

    vocabulary_size: int  # values of the head
    blank_id: int
    dropout: float

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
        stem = backbone.config.stem
        if getattr(stem, "kind", None) != "waveform" and not getattr(stem, "masked", False):
            raise ValueError(
                "CTCSpeechToText needs a backbone that reads waveforms, or masked frames: give the "
                "config a `stem`, such as {'kind': 'waveform'}."
            )
        self.set_head(vocabulary_size=vocabulary_size, blank_id=blank_id, dropout=dropout)

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Make batches of recordings of similar length, with texts; read when a batch is made.

        Args:
            x: recordings.
            y: texts, one for each recording.
            sample_weight: one number for each recording.
            **options: as for `Task.make_dataset`, with lengths in sixteenths of a second.
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

        # A column with one number for each piece of a recording, by which rows are bucketed.
        piece = max(source.sampling_rate // _PIECES, 1)
        columns = {"pieces": [np.zeros(-(-count // piece), "int32") for count in counts]}
        options = {"max_buckets": 4, "multiple": _PIECES, **options}
        return self._bucketed(columns, make_batch, values=values, **options)

    def _labels(self, y: Any, counts: list[int]) -> np.ndarray:
        """Return the token ids of texts, int32 `(texts, length)`, padded with blanks."""
        texts = text_rows(y, "y")
        check_equal(counts, texts, ("recordings", "texts"))
        rows = self.tokenizer.encode_targets(texts)
        check_said(texts, rows, self.tokenizer.encode_targets([""])[0], "`y[{}]`".format)
        stem = self.backbone.config.stem
        for place, (row, count) in enumerate(zip(rows, counts, strict=True)):
            if self.blank_id in row:
                blank = self.tokenizer.id_to_token(self.blank_id)
                raise ValueError(
                    f"`y[{place}]` has the token {blank!r}, which is the blank: remove it."
                )
            states = self.processor.source.count_states(stem, count)
            needed = len(row) + sum(a == b for a, b in pairwise(row))
            if needed > states:
                raise ValueError(
                    f"`y[{place}]` needs {needed} states, one for each token and one between equal "
                    f"neighbours, but `x[{place}]`, with {count:,} samples, has {states}. Does the "
                    "text belong to it?"
                )
        return pad_rows(rows, self.blank_id)[0]

    @reads
    def transcribe(
        self, recordings, timestamps: bool = False, batch_size: int = 8
    ) -> list[str] | str | list[list[Segment]] | list[Segment]:
        """Transcribe recordings greedily: the most likely token of each state.

        Args:
            recordings: a list of recordings that `AudioProcessor` can read, or one recording.
            timestamps: bool, return the words with their times.
            batch_size: int, the number of recordings computed together.

        Returns:
            A string for each recording, or with `timestamps` a list of `Segment`, one for each
            word. For a single recording, only its result. See the class for an example.

        Raises:
            ValueError: if an item is not a recording (names its index), or `timestamps` is set but
                the tokenizer has no word delimiter.
        """
        timestamps = check_flag("timestamps", timestamps)
        batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        processor = self._require_processor()
        alone = processor.source.is_one(recordings)
        between = getattr(self.tokenizer, "delimiter_id", None)
        if timestamps and between is None:
            raise ValueError(
                "`timestamps` are for words, but the tokenizer has no word delimiter: use a "
                "tokenizers.CTCTokenizer."
            )
        source = processor.source
        given = [recordings] if alone else source.rows(recordings)
        places = np.zeros((len(given), 2), "int64")  # the recording and start sample of each piece
        places[:, 0] = np.arange(len(given))
        most = source.most_samples
        if most is not None:  # Longer recordings are read piece by piece.
            samples = source.read(given)
            starts = [range(0, len(row), most) for row in samples]
            places = np.array([(i, start) for i, each in enumerate(starts) for start in each])
            given = [samples[i][start : start + most] for i, start in places]
        dataset = self.make_dataset(given, **self.to_predict(batch_size))
        rows = self._row_outputs(dataset, lambda logits: logits.argmax(axis=-1))
        found: list[list] = [[] for _ in range(places[-1, 0] + 1)]
        for (i, start), row in zip(places, rows, strict=True):
            found[i] += self._words(row, start) if timestamps else [self._text(row)]
        if not timestamps:
            found = [" ".join(filter(None, texts)) for texts in found]
        return found[0] if alone else found

    def _said(self, row: Sequence[int]) -> list[tuple[int, int, int]]:
        """Merge repeats and drop blanks; return each token with its first state and its end."""
        said, place = [], 0
        for token, group in groupby(np.asarray(row).tolist()):
            before, place = place, place + len(list(group))
            if token != self.blank_id:
                said.append((token, before, place))
        return said

    def _text(self, row: Sequence[int]) -> str:
        return self.tokenizer.decode([token for token, *_ in self._said(row)])

    def _words(self, row: Sequence[int], start: int) -> list[Segment]:
        """Return the words of a recording that begins at sample `start`."""
        source, stem = self.processor.source, self.backbone.config.stem
        rate = source.sampling_rate
        seconds, start = source.samples_of_state(stem) / rate, start / rate
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
