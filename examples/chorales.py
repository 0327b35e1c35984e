"""Chorales as symbols, one note per voice and sixteenth, and as files to hear and see.

A chorale is a list of steps of four MIDI pitches, soprano first, with -1 for silence. As a text it
is `. S74 A70 T65 B58 S74 ...`: the voice and the pitch of each note, `S-` for silence, and a dot
where a quarter note begins.
"""

import pathlib
import struct
import wave
from collections.abc import Sequence

import numpy as np

VOICES = "SATB"
NAMES = ("soprano", "alto", "tenor", "bass")
LOWEST, HIGHEST, SILENCE = 36, 81, -1
STEPS_PER_BEAT = 4
BEAT = "."
SYMBOLS = (
    BEAT,
    *(f"{voice}-" for voice in VOICES),
    *(f"{voice}{pitch}" for voice in VOICES for pitch in range(LOWEST, HIGHEST + 1)),
)
Chorale = list[list[int]]


def to_text(chorale: Chorale) -> str:
    """Return the symbols of a chorale, separated by spaces."""
    symbols = []
    for number, step in enumerate(chorale):
        if number % STEPS_PER_BEAT == 0:
            symbols.append(BEAT)
        symbols += [
            v + ("-" if p == SILENCE else str(p)) for v, p in zip(VOICES, step, strict=True)
        ]
    return " ".join(symbols)


def from_text(text: str) -> Chorale:
    """Read a chorale from symbols: a missing voice holds its note, an incomplete step is dropped.

    Raises:
        ValueError: if a symbol does not occur in chorales.
    """
    chorale: Chorale = []
    for symbol in text.split():
        if symbol not in SYMBOLS:
            raise ValueError(
                f"{symbol!r} must be a note such as 'S74', a rest such as 'S-', or '.'."
            )
        if symbol == BEAT:
            continue
        voice, pitch = VOICES.index(symbol[0]), symbol[1:]
        if voice == 0 or not chorale:
            chorale.append(list(chorale[-1]) if chorale else [SILENCE] * len(VOICES))
        chorale[-1][voice] = SILENCE if pitch == "-" else int(pitch)
    return chorale


def transpositions(chorale: Chorale, ranges: Sequence[tuple[int, int]]) -> list[Chorale]:
    """Return a chorale in all keys up to six semitones away in which its voices fit `ranges`."""
    steps = np.array(chorale)
    moved = []
    for shift in (0, *(s for s in range(-6, 7) if s)):
        pitches = np.where(steps == SILENCE, SILENCE, steps + shift)
        fits = all(
            low <= pitch <= high
            for voice, (low, high) in zip(pitches.T, ranges, strict=True)
            for pitch in set(voice.tolist()) - {SILENCE}
        )
        if fits or shift == 0:
            moved.append(pitches.tolist())
    return moved


def voice_ranges(chorales: list[Chorale]) -> list[tuple[int, int]]:
    """Return the lowest and the highest pitch of each voice."""
    steps = np.concatenate([np.array(chorale) for chorale in chorales])
    sung = [voice[voice != SILENCE] for voice in steps.T]
    return [(int(voice.min()), int(voice.max())) for voice in sung]


def statistics(chorales: list[Chorale]) -> dict[str, float]:
    """Count properties of chorales, as shares.

    They are the shares of notes that hold the previous one; of quarters whose notes form a seventh
    chord, or a major or minor triad or part of one; of steps where a voice is above the next higher
    one; of moves by at most two semitones; and, among moves of both outer voices, of parallel
    fifths and octaves.
    """
    held, known, crossed, near, parallel = [], [], [], [], []
    for chorale in chorales:
        steps = np.array(chorale)
        moved = steps[1:] != steps[:-1]
        held.append(~moved.ravel())
        size = np.abs(np.diff(steps, axis=0))[moved & (steps[1:] >= 0) & (steps[:-1] >= 0)]
        near.append(size <= 2)
        full = steps[(steps >= 0).all(axis=1)]
        crossed.append((np.diff(full, axis=1) > 0).any(axis=1))
        quarters = steps[::STEPS_PER_BEAT]
        known.append(np.array([is_chord(step) for step in quarters.tolist()]))
        outer = quarters[(quarters[:, [0, 3]] >= 0).all(axis=1)][:, [0, 3]]
        both = (np.diff(outer, axis=0) != 0).all(axis=1)
        gap = (outer[:, 0] - outer[:, 1]) % 12
        parallel.append(((gap[1:] == gap[:-1]) & np.isin(gap[1:], (0, 7)))[both])
    columns = {
        "held": held, "chords": known, "crossed": crossed, "small steps": near,
        "parallels": parallel,
    }  # fmt: skip
    return {name: float(np.concatenate(parts).mean()) for name, parts in columns.items()}


def is_chord(step: Sequence[int]) -> bool:
    """Return whether the sounding notes belong to one common triad or seventh chord."""
    classes = {pitch % 12 for pitch in step if pitch != SILENCE}
    kinds = ((0, 4, 7), (0, 3, 7), (0, 3, 6), (0, 4, 7, 10), (0, 3, 7, 10), (0, 4, 7, 11),
             (0, 3, 6, 10), (0, 3, 6, 9))  # fmt: skip
    return any(classes <= {(root + x) % 12 for x in kind} for kind in kinds for root in range(12))


def notes(chorale: Chorale) -> list[tuple[int, int, int, int]]:
    """Return each note as `(voice, pitch, first step, steps)`: repeated steps are one note."""
    found = []
    for voice in range(len(VOICES)):
        pitches = [step[voice] for step in chorale]
        start = 0
        for step in range(1, len(pitches) + 1):
            if step == len(pitches) or pitches[step] != pitches[start]:
                if pitches[start] != SILENCE:
                    found.append((voice, pitches[start], start, step - start))
                start = step
    return found


def write_midi(chorale: Chorale, path: str | pathlib.Path, beats_per_minute: float = 80) -> None:
    """Write a Standard MIDI File of format 1: the tempo, then an organ track for each voice."""
    tempo = round(60e6 / beats_per_minute).to_bytes(3, "big")
    tracks = [b"\x00\xff\x51\x03" + tempo]
    for voice, name in enumerate(NAMES):
        # At the same time, the end of a note is sorted before the beginning of another.
        events = []
        for of, pitch, start, steps in notes(chorale):
            if of == voice:
                events += [(start, 1, pitch), (start + steps, 0, pitch)]
        data = b"\x00\xff\x03" + bytes([len(name)]) + name.encode() + bytes([0, 0xC0 | voice, 19])
        before = 0
        for step, on, pitch in sorted(events):
            data += _variable(step - before) + bytes([(0x90 if on else 0x80) | voice, pitch, 80])
            before = step
        tracks.append(data)
    header = b"MThd" + struct.pack(">IHHH", 6, 1, len(tracks), STEPS_PER_BEAT)
    chunks = [track + b"\x00\xff\x2f\x00" for track in tracks]
    whole = header + b"".join(b"MTrk" + struct.pack(">I", len(x)) + x for x in chunks)
    pathlib.Path(path).write_bytes(whole)


def _variable(number: int) -> bytes:
    """Encode a variable-length number of MIDI: seven bits per byte, the last with high bit 0."""
    parts = [number & 0x7F]
    while number := number >> 7:
        parts.append(0x80 | number & 0x7F)
    return bytes(reversed(parts))


def write_wav(
    chorale: Chorale, path: str | pathlib.Path, beats_per_minute: float = 80, rate: int = 22_050
) -> None:
    """Write a recording in which each note is a sum of six partials with soft onset and release."""
    step = 60 / beats_per_minute / STEPS_PER_BEAT
    sound = np.zeros(round(rate * (len(chorale) * step + 0.5)))
    for _, pitch, start, steps in notes(chorale):
        times = np.arange(round(rate * steps * step)) / rate
        frequency = 440 * 2 ** ((pitch - 69) / 12)
        tone = sum(np.sin(2 * np.pi * frequency * k * times) / k**1.6 for k in range(1, 7))
        edge = np.minimum(times, times[-1] - times) / 0.03
        begin = round(rate * start * step)
        sound[begin : begin + len(times)] += tone * np.clip(edge, 0, 1)
    loudest = max(float(np.abs(sound).max()), 1e-9)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((sound / loudest * 0.9 * 32767).astype("<i2").tobytes())


def draw(chorale: Chorale, path: str | pathlib.Path, given: int = 0) -> None:
    """Draw a piano roll: a bar per note in the colour of its voice; `given` steps are shaded."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(13, 4.5), layout="constrained")
    for voice, (name, color) in enumerate(zip(NAMES, ("C3", "C1", "C2", "C0"), strict=True)):
        bars = [(pitch, start, steps) for of, pitch, start, steps in notes(chorale) if of == voice]
        axis.barh(
            [pitch for pitch, *_ in bars], [(steps - 0.15) / 4 for *_, steps in bars],
            left=[start / 4 for _, start, _ in bars], height=0.8, color=color, label=name,
        )  # fmt: skip
    if given:
        axis.axvspan(0, given / STEPS_PER_BEAT, color="black", alpha=0.08, label="given")
    octaves = range(LOWEST, HIGHEST + 1, 12)
    axis.set_yticks(octaves, [f"C{octave // 12 - 1}" for octave in octaves])
    axis.set_xticks(range(0, len(chorale) // STEPS_PER_BEAT + 1, 4))
    axis.grid(alpha=0.3)
    axis.set_xlabel("quarters")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, 1.12), ncols=5, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
