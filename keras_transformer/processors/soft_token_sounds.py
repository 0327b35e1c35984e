"""`SoftTokenSoundProcessor`: recordings in conversations, a state for every 40 milliseconds."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.audio import AudioProcessor
from keras_transformer.processors.audio_files import Sound, count_samples, read_audio
from keras_transformer.processors.media import OF_ALL_PARTS
from keras_transformer.processors.mel import power_of_two
from keras_transformer.processors.soft_tokens import SoftTokenProcessor
from keras_transformer.processors.tiling import Layout
from keras_transformer.support.checking import check_int, shorten
from keras_transformer.support.files import write_text

_FRAMES_OF_STATE = 4  # two convolutions halve the frames
# What every published file states; another value would change the features.
_CONSTANTS = {
    "frame_length_ms": 20.0,
    "hop_length_ms": 10.0,
    "min_frequency": 0.0,
    "preemphasis": 0.0,
    "fft_overdrive": False,
    "dither": 0.0,
    "input_scale_factor": 1.0,
    "mel_floor": 1e-3,
    "per_bin_mean": None,
    "per_bin_stddev": None,
}


class SoftTokenSoundProcessor(AudioProcessor):
    """Convert recordings in conversations to log-mel frames, as Gemma 4 hears them.

    The options are the values of the part `feature_extractor` of `processor_config.json`, and
    `save` writes the same file. It belongs to the `sounds` of a `SoftTokenProcessor`.

    Args:
        max_soft_tokens: int, the most states of a recording, one for every 40 milliseconds. Longer
            recordings are refused.
        sampling_rate: int, samples per second; recordings with another rate are resampled.
        num_bins: int, frequency bands of a frame.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    processor = kt.processors.SoftTokenSoundProcessor(num_bins=16)
    tone = np.sin(np.arange(8000) * 0.3).astype("float32")  # half a second
    layout = processor.layout(kt.processors.Sound(tone))
    assert layout.text == "<|audio>{image}<audio|>" and len(layout.states) == 13
    assert processor.features_of([tone]).shape[2] == 16
    ```

    Source: Google DeepMind 2026, https://ai.google.dev/gemma/docs/core/model_card_4.
    """

    token: ClassVar[str] = "<|audio|>"
    # What stands around the states of a recording.
    around: ClassVar[tuple[str, str]] = ("<|audio>", "<audio|>")
    files = (OF_ALL_PARTS,)

    def __init__(
        self, max_soft_tokens: int = 750, sampling_rate: int = 16_000, num_bins: int = 128
    ):
        self.max_soft_tokens = check_int("max_soft_tokens", max_soft_tokens, 1, 2**16)
        check_int("sampling_rate", sampling_rate, 400, 1_000_000)
        super().__init__(
            "magnitude_log_mel", sampling_rate, num_bins=num_bins,
            window_length=round(sampling_rate * 0.02), hop_length=round(sampling_rate * 0.01),
        )  # fmt: skip

    def num_states(self, samples: int) -> int:
        """Return the number of states of a recording, given its number of samples."""
        return -(-self.count_frames(samples) // _FRAMES_OF_STATE)

    def samples(self, sound: Sound, place: str = "sound") -> np.ndarray:
        """Return the samples of a recording, float32 `(samples,)`, at the processor's rate.

        Args:
            sound: `Sound`.
            place: its name in errors.

        Raises:
            ValueError: if it is not a recording, is damaged, or has samples that are not finite;
                or if it is too long or too short, which is said before a file is decoded.
        """
        # By a header, which may be wrong by one sample if the recording is resampled.
        known = count_samples(sound.content, self.sampling_rate, place)
        self._check_longest(known - 1, place)
        samples = read_audio(sound.content, self.sampling_rate, place)
        self._check_longest(len(samples), place)
        if not self.num_states(len(samples)):
            raise ValueError(
                f"`{place}` is too short: it has {len(samples):,} samples at "
                f"{self.sampling_rate:,} Hz, and needs {self.window_length // 2 + 1:,}."
            )
        return samples

    def _check_longest(self, count: int, place: str) -> None:
        if self.num_states(count) > self.max_soft_tokens:
            seconds = self.max_soft_tokens * _FRAMES_OF_STATE * self.hop_length / self.sampling_rate
            raise ValueError(
                f"`{place}` takes {count / self.sampling_rate:,.1f} seconds, and this model hears "
                f"at most {seconds:,.1f} at once: cut it into pieces."
            )

    def layout(self, sound: Sound, place: str = "sound") -> Layout:
        """Return what stands for a recording in a text. Raises ValueError as `samples`."""
        count = self.num_states(len(self.samples(sound, place)))
        text = f"{self.around[0]}{{image}}{self.around[1]}"
        return Layout((0, 0), 1, (np.arange(count),), text)

    def arrays(self, samples: Sequence[np.ndarray], frames: int = 0) -> dict[str, np.ndarray]:
        """Return recordings as the arrays of a stem of frames.

        Args:
            samples: list of float32 `(samples,)`, from `samples`.
            frames: int, number of frames to which they are padded at least.

        Returns:
            Dict of `frames`, float32 `(recordings, frames, num_bins)`, and `padding_mask`, bool
            `(recordings, frames)`.
        """
        counts = np.array([self.count_frames(len(row)) for row in samples])
        made = np.zeros((len(samples), max(frames, *counts), self.num_bins), "float32")
        for i, (row, count) in enumerate(zip(samples, counts, strict=True)):
            made[i, :count] = self.features_of([row], size=1)[0]
        return {"frames": made, "padding_mask": np.arange(made.shape[1]) < counts[:, None]}

    def check(self, config: TransformerConfig) -> None:
        """Raise ValueError if the processor does not fit the `sound` of a model."""
        super().check(config.of_sound.side("encoder"))
        if math.prod(config.sound.input.strides) != _FRAMES_OF_STATE:
            raise ValueError(
                f"The model has a state for {math.prod(config.sound.input.strides)} frames, and "
                f"the processor counts one for {_FRAMES_OF_STATE}."
            )

    def values(self) -> dict[str, Any]:
        """Return the part `feature_extractor` of `processor_config.json`."""
        return super().values() | _CONSTANTS | {"max_frequency": self.sampling_rate / 2}

    def save(self, directory: str) -> None:
        values = {
            "processor_class": "Gemma4Processor",
            "audio_seq_length": self.max_soft_tokens,
            self.part: self.values(),
        }
        write_text(Path(directory, OF_ALL_PARTS), json.dumps(values, indent=2) + "\n")

    @classmethod
    def with_outer(cls, values: Mapping[str, Any], of_all: Mapping[str, Any]) -> Mapping[str, Any]:
        outer = "audio_seq_length"
        return {**values, **({outer: of_all[outer]} if outer in of_all else {})}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "SoftTokenSoundProcessor":
        """Return the processor described by the part `feature_extractor`.

        Raises:
            ValueError: if the class is unknown, or a value is out of range or not supported.
        """
        named = values.get("feature_extractor_type", "Gemma4AudioFeatureExtractor")
        if named != "Gemma4AudioFeatureExtractor":
            raise ValueError(
                f"Sound for {shorten(named)} is not supported here, only for "
                "'Gemma4AudioFeatureExtractor'."
            )
        rate = check_int("sampling_rate", values.get("sampling_rate", 16_000), 400, 1_000_000)
        window, hop = round(rate * 0.02), round(rate * 0.01)
        sizes = {"frame_length": window, "hop_length": hop, "fft_length": power_of_two(window)}
        for name, supported in (_CONSTANTS | {"max_frequency": rate / 2} | sizes).items():
            if values.get(name, supported) != supported:
                raise ValueError(
                    f"{name}={shorten(values[name])} is not supported, only {supported!r}."
                )
        return cls(
            max_soft_tokens=values.get("audio_seq_length", 750),
            sampling_rate=rate,
            num_bins=values.get("feature_size", 128),
        )


SoftTokenProcessor.sound_class = SoftTokenSoundProcessor
