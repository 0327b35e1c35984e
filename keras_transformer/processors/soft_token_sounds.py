"""`SoftTokenSoundProcessor`: recordings in conversations, states for every few milliseconds."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer.config import TransformerConfig
from keras_transformer.processors.audio import AudioProcessor
from keras_transformer.processors.audio_files import Sound, count_samples, read_audio
from keras_transformer.processors.image import ImageProcessor
from keras_transformer.processors.media import OF_ALL_PARTS
from keras_transformer.processors.mel import BAND, PREEMPHASIS
from keras_transformer.processors.tiling import Layout
from keras_transformer.processors.tiling.tiling import SEPARATOR
from keras_transformer.support.checking import check_choice, check_int, shorten
from keras_transformer.support.files import write_text

_EXTRACTOR = "AudioFeatureExtractor"
# What every published file states; another value would change the features.
_CONSTANTS = {
    "hop_length_ms": 10.0,
    "dither": 0.0,
    "input_scale_factor": 1.0,
    "per_bin_mean": None,
    "per_bin_stddev": None,
}


class _Published(NamedTuple):
    """How the models of a family hear.

    Fields:
        features: the features of `AudioProcessor`.
        token: what stands for a state in a text.
        around: what stands around the states of a recording.
        window: milliseconds of a frame.
        frames: frames of a state.
        states: the usual number of states of a recording, at most, or exactly if it is `padded`.
        padded: whether one further state of the model follows, until there are that many.
        most_samples: of a recording, or None if only the states bound them.
        constants: further values of published files.
    """

    features: str
    token: str
    around: tuple[str, str]
    window: float
    frames: int
    states: int
    padded: bool
    most_samples: int | None
    constants: Mapping[str, Any]


_FAMILIES = {
    "Gemma4": _Published(
        "magnitude_log_mel", "<|audio|>", ("<|audio>", "<audio|>"), 20.0, 4, 750, False, None,
        {"min_frequency": 0.0, "preemphasis": 0.0, "fft_overdrive": False, "mel_floor": 1e-3},
    ),
    "Gemma3n": _Published(
        "preemphasized_log_mel", "<audio_soft_token>",
        ("\n\n<start_of_audio>", "<end_of_audio>\n\n"), 32.0, 16, 188, True, 480_000,
        {"min_frequency": BAND[0], "max_frequency": BAND[1], "preemphasis": PREEMPHASIS,
         "preemphasis_htk_flavor": True, "fft_overdrive": True, "mel_floor": 1e-5},
    ),
}  # fmt: skip


class SoftTokenSoundProcessor(AudioProcessor):
    """Convert recordings in conversations to log-mel frames, as Gemma 4 and Gemma 3n hear them.

    The options are the values of the part `feature_extractor` of `processor_config.json`, and
    `save` writes the same file. It belongs to the `sounds` of an image processor.

    Args:
        max_soft_tokens: int, the most states of a recording: one for every 40 milliseconds, by
            default 750, for Gemma 4; or the states of every recording, one for every 160
            milliseconds and then one that says nothing, by default 188, for Gemma 3n. Longer
            recordings are refused.
        sampling_rate: int, samples per second; recordings with another rate are resampled.
        num_bins: int, frequency bands of a frame.
        family: `"Gemma4"` or `"Gemma3n"`, prefix of the Transformers class that the file names.

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

    Source: Google DeepMind 2025 and 2026, https://ai.google.dev/gemma/docs/gemma-3n and
    https://ai.google.dev/gemma/docs/core/model_card_4.
    """

    # Classes that files name, and that are read beside images of one size.
    beside_images: ClassVar[tuple[str, ...]] = (f"Gemma3n{_EXTRACTOR}",)
    files = (OF_ALL_PARTS,)

    def __init__(
        self,
        max_soft_tokens: int | None = None,
        sampling_rate: int = 16_000,
        num_bins: int = 128,
        family: str = "Gemma4",
    ):
        self.family = check_choice("family", family, tuple(_FAMILIES))
        self._published = own = _FAMILIES[family]
        most = own.states if max_soft_tokens is None else max_soft_tokens
        self.max_soft_tokens = check_int("max_soft_tokens", most, 1, 2**16)
        self.token, self.frames_of_state = own.token, own.frames
        check_int("sampling_rate", sampling_rate, 400, 1_000_000)
        super().__init__(
            own.features, sampling_rate, num_bins=num_bins,
            window_length=round(sampling_rate * own.window / 1000),
            hop_length=round(sampling_rate * 0.01),
        )  # fmt: skip

    def num_states(self, samples: int) -> int:
        """Return the number of states that the model makes of a number of samples."""
        return -(-self.count_frames(samples) // self.frames_of_state)

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
            fewest = next(n for n in range(self.window_length + 2) if self.count_frames(n))
            raise ValueError(
                f"`{place}` is too short: it has {len(samples):,} samples at "
                f"{self.sampling_rate:,} Hz, and needs {fewest:,}."
            )
        return samples

    def _check_longest(self, count: int, place: str) -> None:
        most = self._published.most_samples
        if self.num_states(count) > self.max_soft_tokens or (most is not None and count > most):
            room = self.max_soft_tokens * self.frames_of_state * self.hop_length
            seconds = min(room, most or room) / self.sampling_rate
            raise ValueError(
                f"`{place}` takes {count / self.sampling_rate:,.1f} seconds, and this model hears "
                f"at most {seconds:,.1f} at once: cut it into pieces."
            )

    def layout(self, sound: Sound, place: str = "sound") -> Layout:
        """Return what stands for a recording in a text. Raises ValueError as `samples`."""
        states = np.arange(self.num_states(len(self.samples(sound, place))))
        if self._published.padded:
            behind = self.max_soft_tokens - len(states)
            states = np.append(states, np.full(behind, SEPARATOR))
        before, after = self._published.around
        return Layout((0, 0), 1, (states,), f"{before}{{image}}{after}")

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
        own = config.of_sound
        super().check(own.side("encoder"))
        theirs = math.prod(own.encoder.input.strides)
        theirs *= 1 if own.projector is None else own.projector.stride
        if theirs != self.frames_of_state:
            raise ValueError(
                f"The model has a state for {theirs} frames, and the processor counts one for "
                f"{self.frames_of_state}."
            )
        pads = own.projector is not None and own.projector.hard_tokens > 0
        if self._published.padded and not pads:
            raise ValueError(
                f"A processor of the family {self.family!r} puts a further state behind those of a "
                "recording, and the model has none: its projector has no `hard_tokens`."
            )

    def values(self) -> dict[str, Any]:
        """Return the part `feature_extractor` of `processor_config.json`."""
        return super().values() | self._constants(self.sampling_rate)

    def _constants(self, rate: int) -> dict[str, Any]:
        own = {"frame_length_ms": self._published.window, "max_frequency": rate / 2}
        return _CONSTANTS | own | dict(self._published.constants)

    def save(self, directory: str) -> None:
        values = {
            "processor_class": f"{self.family}Processor",
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
        named = values.get("feature_extractor_type", f"Gemma4{_EXTRACTOR}")
        known = {f"{family}{_EXTRACTOR}": family for family in _FAMILIES}
        if not isinstance(named, str) or named not in known:
            raise ValueError(
                f"Sound for {shorten(named)} is not supported here, only for "
                f"{', '.join(map(repr, known))}."
            )
        made = cls(
            max_soft_tokens=values.get("audio_seq_length"),
            sampling_rate=values.get("sampling_rate", 16_000),
            num_bins=values.get("feature_size", 128),
            family=known[named],
        )
        names = (*made._constants(made.sampling_rate), "frame_length", "hop_length", "fft_length")
        for name, supported in made.values().items():
            if name in names and values.get(name, supported) != supported:
                raise ValueError(
                    f"{name}={shorten(values[name])} is not supported, only {supported!r}."
                )
        return made


ImageProcessor.sound_class = SoftTokenSoundProcessor
