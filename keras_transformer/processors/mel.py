"""Audio frames of frequency bands, as published models expect them."""

import functools
from collections.abc import Callable

import numpy as np

# Least power, which keeps the logarithm finite: the machine epsilon of float32, as in Kaldi.
_LEAST_POWER = 1.192092955078125e-07
# Share of the sample before that pre-emphasis subtracts from a sample.
PREEMPHASIS = 0.97
# Of Gemma 3n: samples of which recordings have a multiple, and the lowest and highest frequency.
UNIT, BAND = 128, (125.0, 7600.0)
# Samples of frames transformed at once (five minutes for Whisper), so that hours of audio need
# little more memory than their samples.
_BLOCK = 2**15 * 400


def log_mel(
    samples: np.ndarray, sampling_rate: int, num_bins: int, window_length: int, hop_length: int
) -> np.ndarray:
    """Return Whisper's log-mel spectrogram.

    Args:
        samples: float32 `(samples,)`.
        sampling_rate: int, samples per second.
        num_bins: int, frequency bands, from 0 Hz to half of the rate.
        window_length: int, samples in a frame.
        hop_length: int, samples from one frame to the next.

    Returns:
        Float32 `(max(1, samples // hop_length), num_bins)`: the base-10 logarithm of the power,
        cut off at 8 below its maximum, plus 4, divided by 4.

    Source: Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision",
    section 2.2.
    """
    count = max(len(samples) // hop_length, 1)
    frames = _centered(samples, window_length, hop_length)[:count]
    window = np.hanning(window_length + 1)[:-1].astype("float32")
    filters = mel_filters(sampling_rate, num_bins, window_length, "slaney")

    def levels_of(frames: np.ndarray) -> np.ndarray:
        power = _power(frames * window)
        return np.log10(np.maximum(power @ filters.astype(power.dtype), 1e-10))

    levels = _by_blocks(levels_of, frames)
    return ((np.maximum(levels, levels.max() - 8) + 4) / 4).astype("float32")


def decibel_mel(
    samples: np.ndarray,
    sampling_rate: int,
    num_bins: int,
    window_length: int,
    hop_length: int,
    frequency_min: float = 0.0,
    frequency_max: float | None = None,
    scale: str = "slaney",
) -> np.ndarray:
    """Return a mel spectrogram in decibels, as in CLAP.

    Args:
        samples: float32 `(samples,)`.
        sampling_rate: int, samples per second.
        num_bins: int, frequency bands.
        window_length: int, samples in a frame.
        hop_length: int, samples from one frame to the next; the first is around the first sample.
        frequency_min: float, hertz, where the lowest band begins.
        frequency_max: float, hertz, where the highest band ends. Defaults to half of the rate.
        scale: as for `mel_filters`.

    Returns:
        Float32 `(samples // hop_length + 1, num_bins)`, ten times the base-10 logarithm of the
        power, at least -100.

    Source: Wu et al. 2022, "Large-scale Contrastive Language-Audio Pretraining with Feature Fusion
    and Keyword-to-Caption Augmentation", section 4.1.
    """
    frames = _centered(samples, window_length, hop_length)
    window = np.hanning(window_length + 1)[:-1]
    bounds = (frequency_min, frequency_max)
    filters = mel_filters(sampling_rate, num_bins, window_length, scale, *bounds)

    def levels_of(frames: np.ndarray) -> np.ndarray:
        # Rounded as in Transformers.
        spectrum = np.fft.rfft(frames.astype("float64") * window).astype("complex64")
        power = np.square(np.abs(spectrum.astype("complex128")))
        return (10 * np.log10(np.maximum(power @ filters, 1e-10))).astype("float32")

    return _by_blocks(levels_of, frames)


def shrunk(levels: np.ndarray, length: int) -> np.ndarray:
    """Return frames `(frames, num_bins)` as `length` ones, each between the two nearest places.

    In float32, as PyTorch's `interpolate` computes places.
    """
    if len(levels) == length:
        return levels
    step = np.float64(np.float32(len(levels)) / np.float32(length))
    # Rounded once, as by a fused multiplication and addition.
    places = np.maximum(step * (np.arange(length) + 0.5) - 0.5, 0).astype("float32")
    first = places.astype("int64")
    second = np.minimum(first + 1, len(levels) - 1)
    share = (places - first.astype("float32"))[:, None]
    return levels[first] * (1 - share) + levels[second] * share


def _power(frames: np.ndarray) -> np.ndarray:
    """Return the power of each frequency of windowed frames `(frames, samples)`."""
    spectrum = np.fft.rfft(frames)
    return np.square(spectrum.real) + np.square(spectrum.imag)


def _centered(samples: np.ndarray, window_length: int, hop_length: int) -> np.ndarray:
    """Return windows around each `hop_length`-th sample, with reflected samples at the ends."""
    half = window_length // 2
    if len(samples) <= half:
        samples = np.pad(samples, (0, half + 1 - len(samples)))
    padded = np.pad(samples, half, mode="reflect")
    return np.lib.stride_tricks.sliding_window_view(padded, window_length)[::hop_length]


def plain_log_mel(
    samples: np.ndarray, sampling_rate: int, num_bins: int, window_length: int, hop_length: int
) -> np.ndarray:
    """Return the logarithm of a mel spectrogram with pre-emphasis, as in NVIDIA's NeMo.

    Args:
        samples: float32 `(samples,)`.
        sampling_rate: int, samples per second.
        num_bins: int, frequency bands, from 0 Hz to half of the rate.
        window_length: int, samples in a frame.
        hop_length: int, samples from one frame to the next.

    Returns:
        Float32 `(samples // hop_length, num_bins)`, the natural logarithm of the power plus 2^-24.

    Source: Rekesh et al. 2023, "Fast Conformer with Linearly Scalable Attention for Efficient
    Speech Recognition", section 4.1, whose features are NeMo's.
    """
    count, size = len(samples) // hop_length, power_of_two(window_length)
    samples = samples.astype("float64")
    samples = np.concatenate([samples[:1], samples[1:] - PREEMPHASIS * samples[:-1]])
    padded = np.pad(samples, size // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop_length][:count]
    window, before = np.zeros(size), (size - window_length) // 2
    window[before : before + window_length] = np.hanning(window_length)
    filters = mel_filters(sampling_rate, num_bins, size, "slaney")

    def levels_of(frames: np.ndarray) -> np.ndarray:
        power = _power(frames * window)
        return np.log(power @ filters + 2**-24).astype("float32")

    return _by_blocks(levels_of, frames)


def magnitude_log_mel(
    samples: np.ndarray, sampling_rate: int, num_bins: int, window_length: int, hop_length: int
) -> np.ndarray:
    """Return the logarithm of a mel spectrogram of magnitudes, as in Gemma 4.

    A frame is there if all of its samples, and the one behind it, are; half a window of zeros comes
    before the first sample.

    Args:
        samples: float32 `(samples,)`.
        sampling_rate: int, samples per second.
        num_bins: int, frequency bands, from 0 Hz to half of the rate.
        window_length: int, samples in a frame, an even number.
        hop_length: int, samples from one frame to the next.

    Returns:
        Float32 `(frames, num_bins)`, the natural logarithm of the magnitude plus 0.001.

    Source: Google DeepMind 2026, the published code of Gemma 4.
    """
    size = power_of_two(window_length)
    padded = np.pad(samples, (window_length // 2, 0))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window_length)[:-1:hop_length]
    window = np.hanning(window_length + 1)[:-1].astype("float32")
    filters = mel_filters(sampling_rate, num_bins, size, "htk")

    def levels_of(frames: np.ndarray) -> np.ndarray:
        magnitudes = np.abs(np.fft.rfft(frames * window, n=size))
        return np.log(magnitudes @ filters + 1e-3).astype("float32")

    return _by_blocks(levels_of, frames)


def preemphasized_log_mel(
    samples: np.ndarray, sampling_rate: int, num_bins: int, window_length: int, hop_length: int
) -> np.ndarray:
    """Return the logarithm of a mel spectrogram of magnitudes with pre-emphasis, as in Gemma 3n.

    A frame is there if all of its samples, and the one behind it, are; zeros behind the last sample
    make their number a multiple of 128.

    Args:
        samples: float32 `(samples,)`.
        sampling_rate: int, samples per second.
        num_bins: int, frequency bands, from 125 Hz to 7,600 Hz.
        window_length: int, samples in a frame.
        hop_length: int, samples from one frame to the next.

    Returns:
        Float32 `(frames, num_bins)`, the natural logarithm of the magnitude, at least that of
        0.00001.

    Source: Google DeepMind 2025, the published code of Gemma 3n.
    """
    size = 2 * power_of_two(window_length)
    padded = np.pad(samples, (0, -len(samples) % UNIT))
    frames = np.lib.stride_tricks.sliding_window_view(padded, window_length)[:-1:hop_length]
    # Hann's window in float32, as there: the logarithm of a quiet band shows each digit.
    angles = 2 * np.pi * np.arange(window_length, dtype="float32") / window_length
    window = 0.5 * (1 - np.cos(angles))
    filters = mel_filters(sampling_rate, num_bins, size, "htk", *BAND)

    def levels_of(frames: np.ndarray) -> np.ndarray:
        frames = np.concatenate(
            [frames[:, :1] * (1 - PREEMPHASIS), frames[:, 1:] - PREEMPHASIS * frames[:, :-1]],
            axis=1,
        )
        magnitudes = np.abs(np.fft.rfft(frames * window, n=size))
        return np.log(np.maximum(magnitudes @ filters, 1e-5)).astype("float32")

    return _by_blocks(levels_of, frames)


def filter_bank(
    samples: np.ndarray,
    sampling_rate: int,
    num_bins: int,
    window_length: int,
    hop_length: int,
    as_in_kaldi: bool = False,
) -> np.ndarray:
    """Return Kaldi's filter bank, as in the Audio Spectrogram Transformer.

    Args:
        samples: float32 `(samples,)`.
        sampling_rate: int, samples per second.
        num_bins: int, frequency bands, from 20 Hz to half of the rate.
        window_length: int, samples in a frame.
        hop_length: int, samples from one frame to the next.
        as_in_kaldi: bool, with the window and the range of samples that Kaldi itself has: Povey's
            window, and whole numbers of 16 bits. Defaults to Hann's window, and -1 to 1.

    Returns:
        Float32 `(1 + (samples - window_length) // hop_length, num_bins)`, the natural logarithm of
        the power.

    Source: Gong et al. 2021, "AST: Audio Spectrogram Transformer", section 2.1; Povey et al. 2011,
    "The Kaldi Speech Recognition Toolkit", section III.
    """
    if len(samples) < window_length:
        samples = np.pad(samples, (0, window_length - len(samples)))
    frames = np.lib.stride_tricks.sliding_window_view(samples, window_length)[::hop_length]
    size = power_of_two(window_length)
    window, filters = np.hanning(window_length), mel_filters(sampling_rate, num_bins, size, "kaldi")
    scale = 1.0
    if as_in_kaldi:
        window, scale = window**0.85, 2.0**15

    def levels_of(frames: np.ndarray) -> np.ndarray:
        frames = frames.astype("float64") * scale
        frames -= frames.mean(axis=1, keepdims=True)
        frames = np.concatenate(
            [frames[:, :1] * (1 - PREEMPHASIS), frames[:, 1:] - PREEMPHASIS * frames[:, :-1]],
            axis=1,
        )
        spectrum = np.fft.rfft(frames * window, n=size)
        if as_in_kaldi:  # rounded as in Transformers: what is normalized depends on each digit
            spectrum = spectrum.astype("complex64").astype("complex128")
        power = np.abs(spectrum) ** 2
        return np.log(np.maximum(power @ filters, _LEAST_POWER)).astype("float32")

    return _by_blocks(levels_of, frames)


def _by_blocks(function: Callable[[np.ndarray], np.ndarray], frames: np.ndarray) -> np.ndarray:
    count = max(_BLOCK // frames.shape[1], 1)
    blocks = [function(frames[i : i + count]) for i in range(0, len(frames), count)]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def power_of_two(count: int) -> int:
    """Return the least power of two of at least `count`."""
    return 1 << (count - 1).bit_length()


@functools.lru_cache(maxsize=8)
def mel_filters(
    sampling_rate: int,
    num_bins: int,
    size: int,
    scale: str,
    frequency_min: float = 0.0,
    frequency_max: float | None = None,
) -> np.ndarray:
    """Return triangular filters over the frequencies of a Fourier transform, one for each band.

    Args:
        sampling_rate: int, samples per second.
        num_bins: int, number of bands.
        size: int, samples in the transform.
        scale: `"slaney"`, linear below 1 kHz, with triangles of equal area; `"htk"`, triangles of
            height 1; or `"kaldi"`, of height 1 in the mel scale, from 20 Hz.
        frequency_min: float, hertz, where the first band begins, except in `"kaldi"`.
        frequency_max: float, hertz, where the last band ends, except in `"kaldi"`. Defaults to half
            of the rate.

    Returns:
        Float64 `(size // 2 + 1, num_bins)`.

    Source: Slaney 1998, "Auditory Toolbox", function mfcc; O'Shaughnessy 1987 for the other mel
    scales.
    """
    frequencies = np.arange(size // 2 + 1) * (sampling_rate / size)
    top = sampling_rate / 2 if frequency_max is None else frequency_max
    if scale == "kaldi":
        low, high = (1127 * np.log1p(hertz / 700) for hertz in (20, sampling_rate // 2))
        places, edges = 1127 * np.log1p(frequencies / 700), np.linspace(low, high, num_bins + 2)
    elif scale == "htk":
        first, last = (2595 * np.log10(1 + hertz / 700) for hertz in (frequency_min, top))
        edges = 700 * (10 ** (np.linspace(first, last, num_bins + 2) / 2595) - 1)
        places = frequencies
    else:
        step, above = 200 / 3, np.log(6.4) / 27
        first, last = (
            hertz / step if hertz < 1000 else 15 + np.log(hertz / 1000) / above
            for hertz in (frequency_min, top)
        )
        mels = np.linspace(first, last, num_bins + 2)
        edges = np.where(mels < 15, mels * step, 1000 * np.exp(above * (mels - 15)))
        places = frequencies
    widths = np.diff(edges)
    slopes = edges[None] - places[:, None]
    triangles = np.maximum(0, np.minimum(-slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]))
    return triangles if scale in ("kaldi", "htk") else triangles * (2 / (edges[2:] - edges[:-2]))
