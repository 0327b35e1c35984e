"""What the libraries of formats say of their own insides, left out."""

import contextlib
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without what the libraries say of their own insides."""
    named = [
        logging.getLogger(name) for name in ("absl", "nncf", "tensorflow", "torch", "torch.onnx")
    ]
    levels = [logger.level for logger in named]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in named:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(named, levels, strict=True):
                logger.setLevel(level)
