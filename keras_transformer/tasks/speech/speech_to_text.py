"""Speech to text: transcription and translation of recordings."""

import dataclasses
from itertools import islice

import keras
import numpy as np

from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import (
    MOST_TOKENS,
    check_choice,
    check_flag,
    check_int,
    check_number,
    shorten,
)
from keras_transformer.tasks.media.source_to_text import (
    MediaSourceFormat,
    SourceTextHead,
    SourceToText,
)
from keras_transformer.tasks.media.sources import SpeechProcessor
from keras_transformer.tasks.media.speech_tokens import (
    Segment,
    SpeechTokens,
    TimeRules,
    segments_of,
)
from keras_transformer.tasks.speech.audio_classifier import arrays_of_sound
from keras_transformer.tasks.text.generating import GenerationCall
from keras_transformer.tokenizers import Tokenizer


class TranscriptHead(SourceTextHead):
    """The head of `SpeechToText`: logits of the next token of a transcript."""

    published_as = ("ForConditionalGeneration",)


class TranscriptFormat(MediaSourceFormat):
    """The format of prompts of the start id, or of Whisper's tokens of a language and a task."""

    @property
    def most_new_tokens(self) -> int:
        limited = self.task.tokens_per_second is not None
        return MOST_TOKENS if limited else super().most_new_tokens

    def decode(self, prompts, continuations):
        if self.task.speech_tokens is not None:  # Timestamps are not part of the text.
            end = self.task.speech_tokens.end
            continuations = [[i for i in row if i < end] for row in continuations]
        return super().decode(prompts, continuations)


@keras.saving.register_keras_serializable(package="keras_transformer")
class SpeechToText(SourceToText):
    """An encoder-decoder that transcribes audio.

    Trains on recordings and texts, `fit(recordings, texts)`. Compiled with Adam (1e-4), token
    cross-entropy, perplexity and accuracy; `compile` changes this, and takes the default `sampler`.

    If the vocabulary has Whisper's tokens, such as `<|startoftranscript|>`, the model accepts a
    language and a task, detects the language if none is given, and returns timestamps. A model of
    waveforms (Moonshine) reads recordings without padding them to a fixed length.

    Args:
        backbone: a `Seq2Seq` whose encoder has an audio `stem`.
        processor: `processors.AudioProcessor`, or None if the task only takes arrays and ids.
        tokenizer: `Tokenizer`, or None if the task only takes arrays and ids.
        start_id: int, the id that the decoder starts from. Defaults to the tokenizer's start id,
            else to its padding id.
        end_ids: list of int, ids that each end a text. Defaults to the tokenizer's end id.
        name: str.
        tokens_per_second: float, the maximum number of tokens for each second of a recording, for
            calls without another limit. It stops endless repetitions. Defaults to no such limit.
        window_seconds: float, the longest window that `transcribe` reads at a time; longer
            recordings are split into equal windows. Defaults to the processor's `length`; without a
            `length` the whole recording is read.

    Call arguments:
        inputs: dict with the encoder's arrays, such as `encoder_frames`, float `(batch, length,
            num_bins)`, or `encoder_samples`, float `(batch, length)`, and `encoder_padding_mask`,
            bool `(batch, length)`, True for the samples of the recording; `decoder_token_ids` and
            `decoder_padding_mask`, as for `Seq2Seq`.

    Returns:
        Logits, float `(batch, target_length, vocabulary_size)`.

    Raises:
        ValueError: if the backbone's encoder does not read audio.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    tokenizer = kt.Tokenizer.train(["low", "high"] * 4, vocabulary_size=270)
    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
        num_heads=2, intermediate_dim=64, position="learned", max_sequence_length=16,
        encoder={"vocabulary_size": 0, "stem": {"kind": "frames", "num_frames": 50}},
    )
    task = kt.SpeechToText(kt.models.Seq2Seq(config), kt.AudioProcessor(length=50), tokenizer)
    tones = [np.sin(np.arange(8000) * pitch) for pitch in (0.1, 0.8)]
    task.fit(tones, ["low", "high"], epochs=1, verbose=0)
    assert isinstance(task.transcribe(tones[0], max_new_tokens=5), str)
    ```

    Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision"; for
    waveforms: Jeffries et al. 2024, "Moonshine: Speech Recognition for Live Transcription and Voice
    Commands".
    """

    alias = "speech_to_text"
    head_class = TranscriptHead
    format_class = TranscriptFormat
    processor_class = SpeechProcessor
    stem_example = "{'kind': 'frames', 'num_bins': 80, 'num_frames': 3000}"
    task_options = (*SourceToText.task_options, "tokens_per_second", "window_seconds")

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        tokenizer: Tokenizer | None = None,
        start_id: int | None = None,
        end_ids: list[int] | None = None,
        name: str | None = None,
        tokens_per_second: float | None = None,
        window_seconds: float | None = None,
    ):
        super().__init__(backbone, processor, tokenizer, start_id, end_ids, name=name)
        self.tokens_per_second = check_number(
            "tokens_per_second", tokens_per_second, above=0, none=True
        )
        self.window_seconds = check_number("window_seconds", window_seconds, above=0, none=True)

    @classmethod
    def takes_backbone(cls, backbone) -> bool:
        return super().takes_backbone(backbone) and backbone.config.hearing_side is None

    @property
    def speech_tokens(self) -> SpeechTokens | None:
        """Whisper's tokens of languages, tasks and times, or None if the vocabulary lacks them."""
        return None if self.processor is None else self.processor.speech_tokens

    def arrays_of(self, sources, places=None, learns=False) -> dict:
        source = self._require_processor().source
        return arrays_of_sound(self.backbone, source, sources, places, spoken=learns)

    def prompt_rows(
        self, prompts, count, language=None, task: str | None = None, timestamps: bool = False
    ):
        tokens = self.speech_tokens
        if tokens is None:
            if language is not None or task is not None or timestamps:
                raise ValueError(
                    "`language`, `task` and `timestamps` are for models with Whisper's tokens, and "
                    f"the tokenizer has no {'<|startoftranscript|>'!r}."
                )
            return super().prompt_rows(prompts, count)
        if prompts is not None:
            raise ValueError("A model with Whisper's tokens takes no `prompts`: give a `language`.")
        languages = [language] * count if isinstance(language, str | None) else list(language)
        if len(languages) != count:
            raise ValueError(
                f"Received {count} recordings and {len(languages)} languages: give one for each "
                "recording, or one for all."
            )
        rows = []
        for named in languages:
            row = [self.start_id]
            if self.is_multilingual:
                check_choice("language", named, tokens.languages, none=True)
                check_choice("task", task, tokens.tasks, none=True)
                row.append(tokens.languages[named or "en"])
                row.append(tokens.tasks[task or "transcribe"])
            elif named not in (None, "en") or task not in (None, "transcribe"):
                raise ValueError(
                    f"This model transcribes only English, received language={shorten(named)} and "
                    f"task={shorten(task)}."
                )
            rows.append(row if timestamps else [*row, tokens.no_times])
        return rows

    @property
    def is_multilingual(self) -> bool:
        """True if the model takes a language token; English-only Whisper models do not."""
        said = (self.backbone.generation_config or {}).get("is_multilingual")
        if said is not None:
            return bool(said)
        # English-only vocabularies begin one id earlier: 50,256 is the end id of GPT-2.
        tokens = self.speech_tokens
        return tokens is not None and bool(tokens.languages) and tokens.end != 50_256

    @reads
    def transcribe(
        self,
        recordings,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        batch_size: int = 8,
        **options,
    ):
        """Transcribe recordings of any length.

        A recording that is longer than the model's window, 30 seconds for Whisper and 64 for
        Moonshine, is read in windows. With Whisper's tokens each window begins at the end of the
        last complete segment of the one before; otherwise windows do not overlap.

        Args:
            recordings: a list of recordings that `AudioProcessor` can read, or one recording.
            language: str, a language code such as `"en"`. Defaults to the most likely language at
                the beginning of each recording.
            task: `"transcribe"`, the default, or `"translate"`, into English.
            timestamps: bool, return segments with their times.
            batch_size: int, the number of windows decoded together.
            **options: options of `generate`, such as `sampler` or `max_new_tokens`.

        Returns:
            For each recording a string, or with `timestamps` a list of `Segment`. For a single
            recording, only its result.

        Raises:
            ValueError: if an item is not a recording (names its index), or the model does not know
                the language or task.
        """
        timestamps = check_flag("timestamps", timestamps)
        source, recordings = self._require_processor().source, self.held_inputs(recordings, {})
        alone = source.is_one(recordings)
        samples = source.read([recordings] if alone else recordings)
        window = self._window
        long = window is not None and any(len(row) > window for row in samples)
        tokens = self.speech_tokens
        batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        options = {**options, "batch_size": batch_size}
        if tokens is None:
            self.prompt_rows(None, 1, language, task, timestamps)  # raises for unsupported options
            texts = self._piece_by_piece(samples, window if long else None, options)
            return texts[0] if alone else texts
        languages = [language] * len(samples)
        if language is None and self.is_multilingual:
            languages = self.detect_language([row[:window] for row in samples], batch_size)
        if not (timestamps or long):
            rows = self.prompt_rows(None, len(samples), languages, task)
            texts = [text.strip() for text in self.written(samples, rows, options)]
            return texts[0] if alone else texts
        if window is None:
            raise ValueError("`timestamps` need a fixed window: give the processor a `length`.")
        found = self._in_windows(samples, languages, task, options)
        if not timestamps:
            found = [" ".join(segment.text for segment in segments) for segments in found]
        return found[0] if alone else found

    @reads
    def detect_language(self, recordings, batch_size: int = 8) -> list[str] | str:
        """Return the most likely language of each recording, judged by its first window.

        Args:
            recordings: as for `transcribe`.
            batch_size: int, the number of recordings computed together.

        Returns:
            A language code for each recording; a single string if one recording is given.

        Raises:
            ValueError: if the model knows only one language.
        """
        tokens, source = self.speech_tokens, self._require_processor().source
        if tokens is None or not self.is_multilingual:
            raise ValueError("This model knows only one language: there is nothing to detect.")
        batch_size = check_int("batch_size", batch_size, 1, MOST_TOKENS)
        alone = source.is_one(recordings)
        samples = source.read([recordings] if alone else recordings)
        codes, ids = list(tokens.languages), list(tokens.languages.values())
        found = []
        for first in range(0, len(samples), batch_size):
            rows = samples[first : first + batch_size]
            inputs = self.arrays_of(rows)
            inputs["decoder_token_ids"] = np.full((len(rows), 1), self.start_id, "int32")
            logits = np.asarray(self.predict_on_batch(inputs))[:, -1]
            found += [codes[i] for i in logits[:, ids].argmax(axis=-1)]
        return found[0] if alone else found

    @property
    def _window(self) -> int | None:
        """The number of samples read at a time, or None if recordings are read whole."""
        source = self.processor.source
        if source.most_samples is not None or self.window_seconds is None:
            return source.most_samples
        return max(round(self.window_seconds * source.sampling_rate), 1)

    def written(self, sources, rows, options, *args, **how):
        limited = any(options.get(name) is not None for name in ("max_new_tokens", "max_length"))
        if self.tokens_per_second is not None and not limited:
            source = self.processor.source
            each = self.tokens_per_second / source.sampling_rate  # tokens per sample
            most = [max(int(count * each), 1) for count in source.counts(sources)]
            options = {**options, "most": most}
        return super().written(sources, rows, options, *args, **how)

    def _pieces(self, row: np.ndarray, window: int | None) -> list[np.ndarray]:
        """Split a recording into windows, of equal length unless the model has a fixed one."""
        count = 1 if window is None else -(-len(row) // window)
        if self.processor.source.most_samples is None:
            return np.array_split(row, count)
        return np.split(row, range(window, len(row), window)) if count > 1 else [row]

    def _piece_by_piece(self, samples, window: int | None, options: dict) -> list[str]:
        """Transcribe consecutive windows and join their texts."""
        pieces = [self._pieces(row, window) for row in samples]
        count = sum(map(len, pieces))
        rows = self.prompt_rows(None, count)
        texts = iter(self.written([piece for each in pieces for piece in each], rows, options))
        return [" ".join(filter(None, islice(texts, len(each)))) for each in pieces]

    def _in_windows(self, samples, languages, task, options) -> list[list[Segment]]:
        """Return the segments of recordings, read in windows.

        Each window starts where the last complete segment of the previous window ended.

        Up to `batch_size` recordings are decoded in parallel, each one window at a time.
        """
        source, name = self.processor.source, self.backbone.id_inputs[0]
        rules = options.pop("rules", None) or self.published_rules()
        said = (self.backbone.generation_config or {}).get("max_initial_timestamp_index", 50)
        times = TimeRules(self.speech_tokens.no_times, self.speech_tokens.end, said)
        options = {**options, "rules": dataclasses.replace(rules, function=times)}
        found: list[list[Segment]] = [[] for _ in samples]
        waiting, frames, places = list(range(len(samples)))[::-1], {}, {}
        while waiting or places:
            while waiting and len(places) < options["batch_size"]:
                i = waiting.pop()
                frames[i], places[i] = source.frames_of(samples[i]), 0
            windows = np.zeros((len(places), source.length, source.num_bins), "float32")
            for window, (i, place) in zip(windows, places.items(), strict=True):
                piece = frames[i][place : place + source.length]
                window[: len(piece)] = piece
            rows = self.prompt_rows(None, len(places), [languages[i] for i in places], task, True)
            call = GenerationCall(self, rows, further={name: windows}, **options)
            written = [first.token_ids for first, *_ in call.completions()]
            for i, ids in zip(list(places), written, strict=True):
                places[i] += self._add_segments(found[i], ids, places[i], len(frames[i]))
                if places[i] >= len(frames[i]):
                    del places[i], frames[i]
        return found

    def _add_segments(self, found: list[Segment], ids: list[int], place: int, count: int) -> int:
        """Append the segments of a window that begins at frame `place` of `count`.

        Returns the number of frames that are done.
        """
        source = self.processor.source
        second = source.sampling_rate / source.hop_length  # frames per second
        seconds = min(source.length, count - place) / second
        tokens, offset = self.speech_tokens, place / second
        new, done = segments_of(ids, tokens, self.tokenizer, offset, seconds)
        found += new
        return max(round(done * second), 1)
