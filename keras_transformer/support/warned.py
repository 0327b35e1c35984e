"""Warnings that are given once in a process."""

import logging

_warned: set[str] = set()


def warn_once(logger: logging.Logger, message: str, *values: object) -> None:
    """Log a warning, unless the same text was logged before in this process.

    A loop that loads one preset again and again, such as a cross-validation, is told once.
    """
    text = message % values if values else message
    if text not in _warned:
        _warned.add(text)
        logger.warning("%s", text)


def forget_warnings() -> None:
    """Give all warnings again, in tests."""
    _warned.clear()
