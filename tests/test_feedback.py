"""Progress bars are on a terminal only, and a warning is given once."""

import io
import logging
import sys

import pytest

from keras_transformer.support import progress as module
from keras_transformer.support.progress import progress
from keras_transformer.support.warned import forget_warnings, warn_once

pytestmark = pytest.mark.backend_independent


class Stream(io.StringIO):
    """A stream that is a terminal or not."""

    def __init__(self, terminal: bool):
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize(("terminal", "seconds"), [(True, 0.0), (True, 60.0), (False, 0.0)])
def test_a_bar_is_on_a_terminal_and_of_long_work(terminal, seconds, monkeypatch):
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "SECONDS_UNTIL_BAR", seconds)
    assert list(progress(["a", "b"], "Loading", "tensor")) == ["a", "b"]
    shown = terminal and not seconds
    assert ("Loading" in stream.getvalue()) == shown
    assert shown or not stream.getvalue()


def test_without_a_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert list(progress([1], "Loading", "tensor")) == [1]


def test_a_warning_is_given_once(caplog):
    logger = logging.getLogger("keras_transformer")
    for name in ("a", "a", "b", "a"):
        warn_once(logger, "The preset %r has 100%% of %s.", name, "it")
    assert [r.getMessage() for r in caplog.records] == [
        "The preset 'a' has 100% of it.",
        "The preset 'b' has 100% of it.",
    ]
    forget_warnings()
    warn_once(logger, "The preset %r has 100%% of %s.", "a", "it")
    assert len(caplog.records) == 3
