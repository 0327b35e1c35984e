"""A choice is measured once, is kept for later processes, and a broken file changes nothing."""

import json
import os

import pytest

from keras_transformer.kernels import fastest as module
from keras_transformer.kernels.fastest import fastest


class Clock:
    """A clock that calls move by their own seconds, in place of the processor's."""

    def __init__(self):
        self.now = 0.0
        self.calls: list[str] = []

    def perf_counter(self) -> float:
        return self.now

    def way(self, name: str, *seconds: float):
        """Return a way whose calls take these seconds."""

        def call(amount):
            self.calls.append(name)
            self.now += amount

        return lambda: [lambda amount=amount: call(amount) for amount in seconds]


@pytest.fixture
def clock(monkeypatch, tmp_path):
    found = Clock()
    monkeypatch.setattr(module, "time", found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    start_process(monkeypatch)
    return found


def start_process(monkeypatch):
    monkeypatch.setattr(module, "_CHOSEN", {})


def file(tmp_path):
    return tmp_path / "keras_transformer" / "fastest.json"


def test_the_least_time_wins_and_is_kept(clock, monkeypatch, tmp_path):
    ways = {"a": clock.way("a", 0.002), "b": clock.way("b", 0.001)}
    assert fastest("key", ways) == "b"
    # Once to warm up, and then in turns.
    assert clock.calls == ["a", "b"] * 18  # 17 times 0.003 seconds are over 0.05
    (key, chosen), *others = json.loads(file(tmp_path).read_text()).items()
    assert key.endswith(", key") and chosen == "b" and not others
    clock.calls.clear()
    assert fastest("key", ways) == "b"
    start_process(monkeypatch)
    assert fastest("key", ways) == "b" and not clock.calls
    assert fastest("another key", ways) == "b" and clock.calls
    assert len(json.loads(file(tmp_path).read_text())) == 2


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        ((1.0,), (0.96,), "a"),  # nearly equal: the first stays
        ((1.0,), (0.94,), "b"),
        ((1.0, 0.001), (1.1, 0.0005), "b"),  # half of the time weighs more than a tenth more
        ((1.0, 0.001), (0.9, 0.002), "a"),
    ],
)
def test_calls_are_compared_by_their_ratios(clock, first, second, chosen):
    assert fastest("key", {"a": clock.way("a", *first), "b": clock.way("b", *second)}) == chosen


def test_quick_calls_are_repeated_often(clock):
    fastest("key", {"a": clock.way("a", 1e-6), "b": clock.way("b", 1e-6)})
    assert clock.calls == ["a", "b"] * 51


def test_slow_calls_are_not_repeated_often(clock):
    fastest("key", {"a": clock.way("a", 1.0), "b": clock.way("b", 1.0)})
    assert clock.calls == ["a", "b"] * 4  # once to warm up


def test_a_choice_of_another_process_is_taken(clock, tmp_path, monkeypatch):
    """Not the own one: two processes of one run would round differently."""
    ways = {"a": clock.way("a", 1.0), "b": clock.way("b", 2.0)}
    assert fastest("key", ways) == "a"
    path = file(tmp_path)
    path.write_text(path.read_text().replace('"a"', '"b"'))
    start_process(monkeypatch)
    assert fastest("key", ways) == "b"


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"x": NaN}', "\x00" * 9, "{}" * 2**22])
def test_a_broken_file_is_replaced(clock, tmp_path, content):
    file(tmp_path).parent.mkdir()
    file(tmp_path).write_text(content)
    assert fastest("key", {"a": clock.way("a", 2.0), "b": clock.way("b", 1.0)}) == "b"
    assert list(json.loads(file(tmp_path).read_text()).values()) == ["b"]


def test_a_way_that_is_unknown_is_measured_anew(clock, tmp_path, monkeypatch):
    assert fastest("key", {"old": clock.way("old", 1.0)}) == "old"
    start_process(monkeypatch)
    assert fastest("key", {"a": clock.way("a", 2.0), "b": clock.way("b", 1.0)}) == "b"


@pytest.mark.parametrize("value", [["b"], {"b": 1}, 1, None])
def test_a_value_that_is_no_name_is_measured_anew(clock, tmp_path, monkeypatch, value):
    ways = {"a": clock.way("a", 2.0), "b": clock.way("b", 1.0)}
    assert fastest("key", ways) == "b"
    (key,) = json.loads(file(tmp_path).read_text())
    file(tmp_path).write_text(json.dumps({key: value}))
    start_process(monkeypatch)
    assert fastest("key", ways) == "b"
    assert json.loads(file(tmp_path).read_text()) == {key: "b"}


def test_without_a_place_to_write(clock, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "a file"))
    (tmp_path / "a file").write_text("")
    ways = {"a": clock.way("a", 2.0), "b": clock.way("b", 1.0)}
    assert fastest("key", ways) == "b"
    clock.calls.clear()
    assert fastest("key", ways) == "b" and not clock.calls


def test_settings_of_the_libraries_are_another_processor(monkeypatch):
    before = module._processor()
    module._processor.cache_clear()
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    try:
        assert module._processor() != before
    finally:
        module._processor.cache_clear()
