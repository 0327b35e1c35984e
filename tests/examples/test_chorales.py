"""Chorales as symbols: there and back, keys, and files that say what was written."""

import importlib.util
import struct
import wave
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.backend_independent

FILE = Path(__file__).parents[2] / "examples" / "chorales.py"
PIECE = [[72, 67, 64, 48]] * 4 + [[72, 67, 65, 53]] * 2 + [[-1, 67, 62, 43]] * 3


@pytest.fixture(scope="module")
def chorales():
    spec = importlib.util.spec_from_file_location("chorales_of_examples", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_to_text_and_back(chorales):
    text = chorales.to_text(PIECE)
    assert text.startswith(". S72 A67 T64 B48 S72") and text.count(".") == 3
    assert chorales.from_text(text) == PIECE
    assert chorales.from_text(". S72 A67 T64 B48 S74") == [[72, 67, 64, 48], [74, 67, 64, 48]]
    with pytest.raises(ValueError, match="'S99' must be a note"):
        chorales.from_text(". S99")


def test_keys_stay_in_the_ranges(chorales):
    ranges = [(71, 74), (60, 70), (55, 70), (40, 60)]
    moved = chorales.transpositions(PIECE, ranges)
    assert [piece[0][0] for piece in moved] == [72, 71, 73, 74]
    assert all(piece[-1][0] == -1 for piece in moved)


def test_notes_of_a_midi_file(chorales, tmp_path):
    chorales.write_midi(PIECE, tmp_path / "piece.mid")
    data = (tmp_path / "piece.mid").read_bytes()
    assert struct.unpack(">4sIHHH", data[:14]) == (b"MThd", 6, 1, 5, 4)
    found, place = [], 14
    while place < len(data):
        kind, size = struct.unpack(">4sI", data[place : place + 8])
        assert kind == b"MTrk"
        found += played(data[place + 8 : place + 8 + size])
        place += 8 + size
    assert sorted(found) == sorted(chorales.notes(PIECE))


def played(track):
    """The notes of a track: voice, pitch, begin, length."""
    place = time = 0
    sounding, notes = {}, []
    while place < len(track):
        delta = 0
        while True:
            delta, place = delta << 7 | track[place] & 0x7F, place + 1
            if track[place - 1] < 0x80:
                break
        time += delta
        status = track[place]
        if status == 0xFF:
            place += 3 + track[place + 2]
        elif status >> 4 == 0xC:
            place += 2
        else:
            voice, pitch = status & 15, track[place + 1]
            if status >> 4 == 9:
                sounding[pitch] = time
            else:
                begin = sounding.pop(pitch)
                notes.append((voice, pitch, begin, time - begin))
            place += 3
    assert not sounding
    return notes


def test_a_recording_has_the_pitch(chorales, tmp_path):
    chorales.write_wav([[69, -1, -1, -1]] * 16, tmp_path / "a.wav", rate=8000)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getframerate() == 8000
        sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    assert np.abs(np.fft.rfft(sound)).argmax() * 8000 / len(sound) == pytest.approx(440, abs=1)


def test_statistics(chorales):
    found = chorales.statistics([[[72, 67, 64, 48]] * 4 + [[74, 69, 65, 50]] * 4])
    assert found["held"] == 6 / 7 and found["chords"] == 1 and found["parallels"] == 1
    assert not chorales.is_chord([60, 61, 62, 63]) and chorales.is_chord([67, 65, 62, 59])
