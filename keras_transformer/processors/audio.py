"""`AudioProcessor`: converts recordings to frames or samples, as published models expect them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.config import StemConfig, TransformerConfig
from keras_transformer.processors.audio_files import (
    count_samples,
    is_one_recording,
    read_audio,
)
from keras_transformer.processors.media import MediaProcessor
from keras_transformer.processors.mel import (
    PREEMPHASIS,
    UNIT,
    decibel_mel,
    filter_bank,
    log_mel,
    magnitude_log_mel,
    plain_log_mel,
    power_of_two,
    preemphasized_log_mel,
    shrunk,
)
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    shorten,
)

FEATURES = (
    "log_mel", "normalized_log_mel", "magnitude_log_mel", "preemphasized_log_mel", "decibel_mel",
    "filter_bank", "normalized_filter_bank", "waveform",
)  # fmt: skip
# Features of recordings of any length, whose padding is masked.
_MASKED = (
    "normalized_log_mel", "magnitude_log_mel", "preemphasized_log_mel", "normalized_filter_bank",
)  # fmt: skip
# Features of conversations: magnitudes, with a frame only where all of its samples are.
_OF_MAGNITUDES = ("magnitude_log_mel", "preemphasized_log_mel")
# How recordings that are shorter than `length` fill it, with the names of ClapFeatureExtractor.
PADDINGS = ("pad", "repeat", "repeatpad")
_CLASSES = {
    "WhisperFeatureExtractor": "log_mel",
    "ClapFeatureExtractor": "decibel_mel",
    "ParakeetFeatureExtractor": "normalized_log_mel",
    "Gemma4AudioFeatureExtractor": "magnitude_log_mel",
    "Gemma3nAudioFeatureExtractor": "preemphasized_log_mel",
    "ASTFeatureExtractor": "filter_bank",
    "SeamlessM4TFeatureExtractor": "normalized_filter_bank",
    "Wav2Vec2FeatureExtractor": "waveform",
}
_AST = (-4.2677393, 4.5689974)
# A waveform without a fixed length is padded to a multiple of this many samples.
_PIECE = 16_000
# What a file may ask for, so that the features of a recording take at most 64 times its memory.
_LONGEST_WINDOW = 2**15
_MOST_NUMBERS = 2**28  # of a recording, a gigabyte
_MOST_OVERLAP = 64


class AudioProcessor(MediaProcessor):
    """Convert recordings to float32 spectrogram frames or samples, mono and at one sampling rate.

    The options are the values of `preprocessor_config.json`, in which published models describe
    their inputs; `save` writes the same file.

    Args:
        features: `"log_mel"`, frames as for Whisper; `"normalized_log_mel"`, with mean 0 and
            variance 1 of each band over the recording, as for Parakeet; `"magnitude_log_mel"` and
            `"preemphasized_log_mel"`, as for Gemma 4 and Gemma 3n, see `SoftTokenSoundProcessor`;
            `"decibel_mel"`, as for CLAP;
            `"filter_bank"`, as for the Audio Spectrogram Transformer; `"normalized_filter_bank"`,
            normalized in the same way, as for w2v-BERT 2.0; `"waveform"`, samples, as for wav2vec
            2.0.
        sampling_rate: int, samples per second; recordings with another rate are resampled.
        length: int, number of frames, or of samples of a waveform, to which a recording is padded
            or cut, at the end. Defaults to the longest in a batch.
        num_bins: int, frequency bands of a window.
        window_length, hop_length: int, samples in a window, and from one window to the next.
        stack: int, for a normalized filter bank: number of windows whose bands are one frame. What
            is left over at the end of a recording is cut. Defaults to 1.
        normalize: bool, whether to normalize each waveform to mean 0 and variance 1.
        return_attention_mask: bool, for a waveform, a value in the saved file that tells
            Transformers whether to mask padding: False for models such as wav2vec 2.0 base, which
            were trained without a mask. In this library the outputs of a recording never depend on
            padding.
        mean, std: float, for a filter bank: its values become `(x - mean) / (2 * std)`. None
            disables this.
        padding: how a short recording fills the `length` of `"decibel_mel"`: `"repeatpad"`, as
            often as it fits as a whole, then silence; `"repeat"`, again and again up to the end; or
            `"pad"`, once, then silence. Defaults to `"repeatpad"`.
        frequency_min, frequency_max: float, hertz, where the bands of `"decibel_mel"` begin and
            end. Default to 0 and to half of the sampling rate.
        fusion: bool, for `"decibel_mel"`: a longer recording is not cut, but becomes a shrunk whole
            and three pieces of `length` frames, see `fused`; the bands are then those of HTK.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.AudioProcessor(length=100, num_bins=40)
    tone = np.sin(np.arange(8000) * 0.3)  # half a second
    assert processor([tone, (tone, 8000)]).shape == (2, 100, 40)
    ```

    Source: see `processors.mel` for the frames; for the waveform, Baevski et al. 2020, "wav2vec
    2.0", section 2.
    """

    kind = "audio processor"
    raw = "recordings"
    reads_arrays = ("frames", "images", "samples")
    part = "feature_extractor"
    unit = "recording"
    feature = "Audio"
    column_names = ("audio", "recording", "speech", "audio_path", "path", "file", "file_name")
    keys = frozenset({"bytes", "path", "array"})

    def __init__(
        self,
        features: str = "log_mel",
        sampling_rate: int = 16_000,
        length: int | None = None,
        num_bins: int = 80,
        window_length: int = 400,
        hop_length: int = 160,
        normalize: bool = True,
        mean: float | None = None,
        std: float | None = None,
        return_attention_mask: bool = False,
        stack: int = 1,
        padding: str | None = None,
        frequency_min: float = 0.0,
        frequency_max: float | None = None,
        fusion: bool = False,
    ):
        self.features = check_choice("features", features, FEATURES)
        self.sampling_rate = check_int("sampling_rate", sampling_rate, 100, 1_000_000)
        self.length = check_int("length", length, 1, _MOST_NUMBERS, none=True)
        self.num_bins = check_int("num_bins", num_bins, 1, 1024)
        self.window_length = check_int("window_length", window_length, 2, _LONGEST_WINDOW)
        self.hop_length = check_int("hop_length", hop_length, 1, 2**20)
        if self.features != "waveform":
            self._check_spectrum()
        self.fusion = check_bool("fusion", fusion)
        self._check_decibels(padding, frequency_min, frequency_max)
        self.normalize = check_bool("normalize", normalize)
        self.return_attention_mask = check_bool("return_attention_mask", return_attention_mask)
        self.stack = check_int("stack", stack, 1, 1024)
        if self.stack > 1 and self.features != "normalized_filter_bank":
            raise ValueError(
                f"`stack` is for features='normalized_filter_bank', received {self.features!r}."
            )
        if (mean is None) != (std is None):
            raise ValueError("`mean` and `std` go together: give both or neither.")
        self.mean = check_number("mean", mean, none=True)
        self.std = check_number("std", std, above=0, none=True)

    def _check_spectrum(self) -> None:
        """Raise ValueError if there are far more features than samples."""
        if self.num_bins > self.window_length:
            raise ValueError(
                f"`num_bins` must be at most `window_length`, {self.window_length}, received "
                f"{self.num_bins}."
            )
        if (self.length or 0) * self.num_bins > _MOST_NUMBERS:
            raise ValueError(
                f"`length` must be at most {_MOST_NUMBERS // self.num_bins:,} frames of "
                f"{self.num_bins} bands, received {self.length:,}."
            )
        if self.hop_length * _MOST_OVERLAP < self.window_length:
            raise ValueError(
                f"`hop_length` must be at least {math.ceil(self.window_length / _MOST_OVERLAP)}, "
                f"as windows have {self.window_length} samples, received {self.hop_length}."
            )

    def _check_decibels(self, padding, frequency_min, frequency_max) -> None:
        """Set the values of `"decibel_mel"`. Raises ValueError if one does not fit."""
        decibels = self.features == "decibel_mel"
        given = (padding, frequency_min, frequency_max, self.fusion)
        if not decibels and given != (None, 0, None, False):
            raise ValueError(
                "`padding`, `frequency_min`, `frequency_max` and `fusion` are for "
                f"features='decibel_mel', received {self.features!r}."
            )
        self.padding = check_choice(
            "padding", "repeatpad" if padding is None else padding, PADDINGS
        )
        most = self.sampling_rate / 2
        top = most if frequency_max is None else frequency_max
        self.frequency_max = check_number("frequency_max", top, above=0, at_most=most)
        self.frequency_min = check_number("frequency_min", frequency_min, at_least=0)
        if self.frequency_min >= self.frequency_max:
            raise ValueError(
                f"`frequency_min` must be below `frequency_max`, {self.frequency_max}, received "
                f"{self.frequency_min}."
            )
        if self.fusion and self.length is None:
            raise ValueError("`fusion` needs the `length` of a piece, received None.")
        if decibels and self.length and self._whole <= self.window_length // 2:
            least = self.window_length // 2 // self.hop_length + 2
            raise ValueError(
                f"features='decibel_mel' needs a `length` of at least {least} frames, to which "
                f"recordings are repeated or cut, received {self.length}."
            )

    @property
    def is_masked(self) -> bool:
        """Whether the features are frames that come with a mask of padding."""
        return self.features in _MASKED

    @staticmethod
    def is_one(x: Any) -> bool:
        """Return whether `x` is a single recording."""
        return is_one_recording(x)

    def read(self, recordings: Any, places: Sequence[int] | None = None) -> list[np.ndarray]:
        """Return the samples of recordings, float32, at the processor's rate.

        Args:
            recordings: a list, an array or a column of inputs of
                `processors.audio_files.read_audio`, or one such input.
            places: list of int, row numbers of the recordings for error messages. Defaults to 0, 1,
                2, ...
        """
        rows = [recordings] if is_one_recording(recordings) else self.rows(recordings)
        places = range(len(rows)) if places is None else places
        return [
            read_audio(row, self.sampling_rate, f"x[{i}]")
            for i, row in zip(places, rows, strict=True)
        ]

    def __call__(self, recordings: Any, places: Sequence[int] | None = None) -> np.ndarray:
        """Return the features of recordings as one array.

        Args:
            recordings: as for `read`.
            places: as for `read`.

        Returns:
            Float32 `(batch, frames, num_bins)`, or `(batch, samples)` for a waveform. Recordings
            longer than `length` are cut.

        Raises:
            ValueError: if an input is not a recording; the message has its row number.
        """
        return self.features_of(self.read(recordings, places))

    def counts(self, recordings: Sequence, places: Sequence[int] | None = None) -> list[int]:
        """Return the number of samples of each recording at the processor's rate.

        A number is at most `most_samples`. For a file it is read from the header.
        """
        places = range(len(recordings)) if places is None else places
        both = zip(places, recordings, strict=True)
        found = (count_samples(row, self.sampling_rate, f"x[{i}]") for i, row in both)
        return [min(count, self.most_samples or count) for count in found]

    def features_of(self, samples: Sequence[np.ndarray], size: int | None = None) -> np.ndarray:
        """Return the features of samples from `read`.

        Waveforms and normalized frames are padded to at least the length that `size` samples have.
        """
        longest = max(map(len, samples))
        if self.features == "waveform":
            made = [self._normalized(row[: self.length]) for row in samples]
            usual = _roomy(longest) if size is None else max(size, longest)
            return _padded(made, self.length or usual)
        options = (self.sampling_rate, self.num_bins, self.window_length, self.hop_length)
        if self.is_masked:
            made = [self._normalized_frames(row[: self.most_samples], options) for row in samples]
            usual = _roomy(longest) if size is None else max(size, longest)
            return _padded(made, self.length or self.count_frames(usual))
        if self.features == "decibel_mel":
            if self.fusion:
                return self.fused(samples)[0]
            most = self._whole or math.ceil(longest / self.hop_length) * self.hop_length
            return np.stack([self._decibels(self._filled(row, most)) for row in samples])
        if self.features == "log_mel":
            # Pad before the transform: silence after a recording changes its last frames, and with
            # them the loudest level, on which all levels depend.
            frames = self.length or math.ceil(longest / self.hop_length)
            size = frames * self.hop_length
            rows = (np.pad(row[:size], (0, max(size - len(row), 0))) for row in samples)
            return np.stack([log_mel(row, *options) for row in rows])
        array = _padded([filter_bank(row, *options)[: self.length] for row in samples], self.length)
        return array if self.mean is None else (array - np.float32(self.mean)) / (2 * self.std)

    def fused(self, samples: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what a model of fused spectrograms reads of samples from `read`.

        The three pieces of a recording of more than `length` frames are the middle ones of as many
        thirds of the places where a piece may begin. ClapFeatureExtractor draws their places, and
        in a batch without a longer recording it draws one that counts as longer.

        Returns:
            Float32 `(batch, length, num_bins)`, the recording, shrunk to `length` frames if it is
            longer; float32 `(batch, 3, length, num_bins)`, its pieces, or thrice the recording; and
            bool `(batch, 1)`, whether it is longer.

        Raises:
            ValueError: if `fusion` is False.

        Source: Wu et al. 2022, "Large-scale Contrastive Language-Audio Pretraining with Feature
        Fusion and Keyword-to-Caption Augmentation", section 3.3.
        """
        if not self.fusion:
            raise ValueError("An AudioProcessor without `fusion` makes one spectrogram of each.")
        wholes, pieces, longer = [], [], []
        for row in samples:
            whole = row if len(row) > self._whole else self._filled(row, self._whole)
            levels = self._decibels(whole)
            last = len(levels) - self.length
            places = [0, 0, 0]
            if last > 0:
                thirds = np.array_split(np.arange(last + 1), 3)
                places = [int(each[len(each) // 2]) if len(each) else 0 for each in thirds]
            wholes.append(shrunk(levels, self.length))
            pieces.append(np.stack([levels[i : i + self.length] for i in places]))
            longer.append([last > 0])
        return np.stack(wholes), np.stack(pieces), np.array(longer)

    def _decibels(self, row: np.ndarray) -> np.ndarray:
        sizes = (self.sampling_rate, self.num_bins, self.window_length, self.hop_length)
        bounds = (self.frequency_min, self.frequency_max)
        return decibel_mel(row, *sizes, *bounds, scale="htk" if self.fusion else "slaney")

    def _filled(self, row: np.ndarray, most: int) -> np.ndarray:
        """Return `most` samples of a recording: its first ones, or all repeated up to a length."""
        if self.length is None:  # of a batch, on which a recording's features must not depend
            pass
        elif self.padding == "repeat":
            row = np.resize(row, most) if len(row) < most else row
        elif self.padding == "repeatpad":
            row = np.tile(row, max(most // len(row), 1))
        return np.pad(row[:most], (0, max(most - len(row), 0)))

    def count_frames(self, samples: int) -> int:
        """Return how many frames the features have of a number of samples."""
        if self.features == "normalized_log_mel":
            return max(samples // self.hop_length, 2)
        if self.features in _OF_MAGNITUDES:  # none of a recording that is too short
            before = self.window_length // 2
            if self.features == "preemphasized_log_mel":
                before = -samples % UNIT
            behind = samples - self.window_length + before - 1
            return behind // self.hop_length + 1 if behind >= 0 else 0
        windows = max(samples - self.window_length, 0) // self.hop_length + 1
        return max(windows // self.stack, 1)

    def count_states(self, stem: StemConfig, samples: int) -> int:
        """Return how many states a model's stem, of samples or masked frames, makes of samples."""
        if stem.kind == "waveform":
            return max(stem.lengths(samples)[-1], 1)
        return stem.count_states(self.count_frames(samples))

    def samples_of_state(self, stem: StemConfig) -> int:
        """Return the number of samples from one state of a model's stem to the next."""
        if stem.kind == "waveform":
            return stem.samples_of_state
        return math.prod(stem.strides) * self.stack * self.hop_length

    def _normalized_frames(self, row: np.ndarray, options: tuple) -> np.ndarray:
        """Return the frames of a recording; of normalized ones each band has variance 1."""
        if self.features == "magnitude_log_mel":
            return magnitude_log_mel(row, *options)
        if self.features == "preemphasized_log_mel":
            return preemphasized_log_mel(row, *options)
        if self.features == "normalized_log_mel":
            row = np.pad(row, (0, max(2 * self.hop_length - len(row), 0)))  # for a variance
            bands = np.ascontiguousarray(plain_log_mel(row, *options).T)
            scale = bands.std(axis=1, ddof=1, keepdims=True) + np.float32(1e-5)
            return ((bands - bands.mean(axis=1, keepdims=True)) / scale).T
        # A variance needs two windows, and a frame `stack` of them.
        fewest = self.window_length + (max(self.stack, 2) - 1) * self.hop_length
        row = np.pad(row, (0, max(fewest - len(row), 0)))
        # Each band in a row of memory, which NumPy then adds in pairs: sums are more exact.
        bands = np.ascontiguousarray(filter_bank(row, *options, as_in_kaldi=True).T)
        scale = np.sqrt(bands.var(axis=1, ddof=1, keepdims=True) + np.float32(1e-7))
        levels = ((bands - bands.mean(axis=1, keepdims=True)) / scale).T
        levels = levels[: len(levels) // self.stack * self.stack]
        return levels.reshape(-1, self.stack * self.num_bins)

    def frames_of(self, row: np.ndarray) -> np.ndarray:
        """Return the frames `(frames, num_bins)` of a recording, at least `length` of them.

        Raises ValueError if the features are not `"log_mel"`.
        """
        if self.features != "log_mel":
            raise ValueError(f"Windows are cut from log-mel frames, not from {self.features!r}.")
        row = np.pad(row, (0, max((self.most_samples or 0) - len(row), 0)))
        options = (self.sampling_rate, self.num_bins, self.window_length, self.hop_length)
        return log_mel(row, *options)

    def _normalized(self, row: np.ndarray) -> np.ndarray:
        if not self.normalize:
            return row
        return (row - row.mean()) / np.sqrt(row.var() + np.float32(1e-7))

    @property
    def most_samples(self) -> int | None:
        """Number of samples at which a recording is cut; None if it is not cut."""
        if self.length is None or self.features == "waveform":
            return self.length
        if self.features == "decibel_mel":
            return None if self.fusion else self._whole
        return self.length * self.stack * self.hop_length

    @property
    def _whole(self) -> int | None:
        """Number of samples around whose first and last one `length` frames begin and end."""
        return None if self.length is None else (self.length - 1) * self.hop_length

    def check(self, config: TransformerConfig) -> None:
        stem = config.sides[0].stem
        if stem is not None and stem.kind == "waveform":
            if self.features != "waveform":
                raise ValueError(
                    f"The model reads a waveform, but the processor has features={self.features!r}."
                )
            return
        bins = getattr(stem, "num_bins", None)
        size = getattr(stem, "image_size", None)  # patches of a spectrogram
        if bins is None and size is not None and stem.num_channels == 1:
            bins = size[0]
        most = getattr(stem, "most_frames", None)
        if most is not None and not 1 <= (self.length or most + 1) <= most:
            raise ValueError(
                f"The model reads recordings of at most {most:,} frames: give the processor a "
                f"`length` of 1 to {most:,}, received {self.length}."
            )
        fuses = getattr(stem, "fusion", None) is not None
        if fuses != self.fusion and (fuses or most is not None):
            raise ValueError(
                f"The stem of the model has fusion={stem.fusion}, and the processor "
                f"fusion={self.fusion}: they go together."
            )
        if bins is None:
            raise ValueError("An AudioProcessor needs a model whose config has a `stem` for audio.")
        if self.features == "waveform":
            raise ValueError(
                f"The model reads frames, but the processor has features={self.features!r}."
            )
        if bins != self.num_bins * self.stack:
            raise ValueError(
                f"The model reads frames of {bins} bands, but the processor has "
                f"{self.num_bins * self.stack}."
            )
        masked = getattr(stem, "masked", False)
        if masked != self.is_masked:
            raise ValueError(
                f"Frames of the features {' and '.join(map(repr, _MASKED))} come with a mask, "
                "others do not: "
                f"the stem has masked={masked}, and the processor features={self.features!r}."
            )

    def values(self) -> dict[str, Any]:
        """Return the content of `preprocessor_config.json`."""
        named = {ours: theirs for theirs, ours in _CLASSES.items()}
        values: dict[str, Any] = {
            "feature_extractor_type": named[self.features],
            "sampling_rate": self.sampling_rate,
            "padding_value": 0.0,
            "return_attention_mask": False,
        }
        if self.features == "waveform":
            length = {} if self.length is None else {"length": self.length}
            return {
                **values,
                "feature_size": 1,
                "do_normalize": self.normalize,
                "return_attention_mask": self.return_attention_mask,
                **length,
            }
        if self.features == "normalized_filter_bank":
            length = {} if self.length is None else {"length": self.length}
            if (self.window_length, self.hop_length) != (400, 160):
                length |= {"n_fft": self.window_length, "hop_length": self.hop_length}
            return {
                **values,
                "feature_size": self.num_bins,
                "num_mel_bins": self.num_bins,
                "stride": self.stack,
                "return_attention_mask": True,
                **length,
            }
        if self.features == "decibel_mel":
            seconds = None if self.length is None else self._whole / self.sampling_rate
            whole = seconds is not None and seconds == int(seconds)
            return {
                **values,
                "feature_size": self.num_bins,
                "fft_window_size": self.window_length,
                "hop_length": self.hop_length,
                "max_length_s": int(seconds) if whole else seconds,
                "frequency_min": self.frequency_min,
                "frequency_max": self.frequency_max,
                "padding": self.padding,
                "truncation": "fusion" if self.fusion else "rand_trunc",
            }
        if self.features in _OF_MAGNITUDES:
            window = {"frame_length": self.window_length, "hop_length": self.hop_length}
            doubled = 2 if self.features == "preemphasized_log_mel" else 1
            window["fft_length"] = power_of_two(self.window_length) * doubled
            return {
                **values,
                **window,
                "feature_size": self.num_bins,
                "return_attention_mask": True,
            }
        if self.features == "normalized_log_mel":
            length = {} if self.length is None else {"length": self.length}
            return {
                **values,
                "feature_size": self.num_bins,
                "n_fft": power_of_two(self.window_length),
                "win_length": self.window_length,
                "hop_length": self.hop_length,
                "preemphasis": PREEMPHASIS,
                "return_attention_mask": True,
                **length,
            }
        sizes = {"n_fft": self.window_length, "hop_length": self.hop_length}
        if self.features == "log_mel":
            seconds = (self.length or 3000) * self.hop_length / self.sampling_rate
            seconds = int(seconds) if seconds == int(seconds) else seconds
            return {
                **values,
                **sizes,
                "feature_size": self.num_bins,
                "chunk_length": seconds,
                "nb_max_frames": self.length,  # even None: a missing value is 30 seconds
            }
        if sizes != {"n_fft": 400, "hop_length": 160}:
            values |= sizes
        values |= {"feature_size": 1, "num_mel_bins": self.num_bins, "max_length": self.length}
        normalized = self.mean is not None
        of_all = {"mean": self.mean, "std": self.std} if normalized else {}
        return {**values, "do_normalize": normalized, **of_all}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "AudioProcessor":
        """Return the processor described by a `preprocessor_config.json`.

        Raises:
            ValueError: if the class is unknown or a value is out of range.
        """
        named = values.get("feature_extractor_type")
        if named is None and values.get("feature_size") == 1:
            named = "Wav2Vec2FeatureExtractor"  # the oldest files do not name the class
        if named not in _CLASSES:
            raise ValueError(
                f"Audio for {shorten(named)} is not supported, only for "
                f"{', '.join(map(repr, _CLASSES))}."
            )
        features = _CLASSES[named]
        given: dict[str, Any] = {"sampling_rate": values.get("sampling_rate", 16_000)}
        if features == "waveform":
            length = values.get("length")
            given["normalize"] = values.get("do_normalize", True)
            given["return_attention_mask"] = values.get("return_attention_mask", False)
            return cls(features, length=length, **given)
        if features == "decibel_mel":
            return cls(features, **_values_of_clap(values))
        given["hop_length"] = values.get("hop_length", 160)
        if features in _OF_MAGNITUDES:
            usual = 320 if features == "magnitude_log_mel" else 512
            bins, window = values.get("feature_size", 128), values.get("frame_length", usual)
            return cls(features, num_bins=bins, window_length=window, **given)
        if features == "normalized_log_mel":
            window = check_int("win_length", values.get("win_length", 400), 2, _LONGEST_WINDOW)
            for name, supported in (
                ("n_fft", power_of_two(window)),
                ("preemphasis", PREEMPHASIS),
            ):
                if values.get(name, supported) != supported:
                    raise ValueError(
                        f"{name}={shorten(values[name])} is not supported with "
                        f"win_length={window}, only {supported}."
                    )
            bins, length = values.get("feature_size", 80), values.get("length")
            return cls(features, length=length, num_bins=bins, window_length=window, **given)
        given["window_length"] = values.get("n_fft", 400)
        if features == "normalized_filter_bank":
            bins, stack = values.get("num_mel_bins", 80), values.get("stride", 2)
            length = values.get("length")
            return cls(features, length=length, num_bins=bins, stack=stack, **given)
        if features == "log_mel":
            seconds = check_number("chunk_length", values.get("chunk_length", 30), above=0)
            rate, hop = given["sampling_rate"], given["hop_length"]
            check_int("hop_length", hop, 1)
            length = values.get("nb_max_frames", int(seconds * rate) // hop)
            return cls(features, length=length, num_bins=values.get("feature_size", 80), **given)
        mean, std = (values.get(n, usual) for n, usual in zip(("mean", "std"), _AST, strict=True))
        normalized = check_bool("do_normalize", values.get("do_normalize", True))
        of_all = {"mean": mean, "std": std} if normalized else {}
        bins, length = values.get("num_mel_bins", 128), values.get("max_length", 1024)
        return cls(features, length=length, num_bins=bins, **of_all, **given)


def _values_of_clap(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the file of a ClapFeatureExtractor states."""
    truncation = values.get("truncation", "fusion")
    if truncation not in ("fusion", "rand_trunc"):
        raise ValueError(
            f"truncation={shorten(truncation)} is not supported, only 'fusion' and 'rand_trunc'."
        )
    rate = check_int("sampling_rate", values.get("sampling_rate", 48_000), 100, 1_000_000)
    hop = check_int("hop_length", values.get("hop_length", 480), 1, 2**20)
    seconds = values.get("max_length_s", 10)
    check_number("max_length_s", seconds, above=0, at_most=1e6, none=True)
    samples = 0 if seconds is None else round(seconds * rate)
    if samples % hop:
        raise ValueError(
            f"max_length_s={seconds} must be a multiple of hop_length={hop} samples at "
            f"{rate:,} a second."
        )
    return {
        "sampling_rate": rate,
        "hop_length": hop,
        "length": None if seconds is None else samples // hop + 1,
        "fusion": truncation == "fusion",
        "num_bins": values.get("feature_size", 64),
        "window_length": values.get("fft_window_size", 1024),
        "padding": values.get("padding", "repeatpad"),
        "frequency_min": values.get("frequency_min", 0),
        "frequency_max": values.get("frequency_max", 14_000),
    }


def _roomy(samples: int) -> int:
    """Round a number of samples up to one of four per power of two, to compile few programs."""
    pieces = math.ceil(samples / _PIECE)
    step = 1 << max((pieces - 1).bit_length() - 3, 0)
    return math.ceil(pieces / step) * step * _PIECE


def _padded(rows: list[np.ndarray], length: int | None) -> np.ndarray:
    """Return rows of different lengths as one array, zero-padded to `length` or the longest."""
    length = max(map(len, rows)) if length is None else length
    array = np.zeros((len(rows), length, *rows[0].shape[1:]), "float32")
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    return array
