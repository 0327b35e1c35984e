"""What the libraries of formats say of their own insides, left out."""

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without warnings and log lines of libraries, errors excepted."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(max(before, logging.WARNING))
        try:
            yield
        finally:
            logging.disable(before)
