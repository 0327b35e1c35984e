"""Steps on PyTorch whose activations are recomputed: nothing of them stays in memory."""

import gc

import keras
import numpy as np
import pytest

from tests.tasks.common import language_model


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch alone ends them early")
def test_nothing_recomputed_stays_behind():
    """Frames of an exception refer to each other, and to the tensors of a recomputed block."""
    with keras.RematScope("full"):
        lm = language_model(num_layers=2)
    ids = np.array([lm.processor.tokenizer.encode("a man rides a bike .")])
    batch = {"token_ids": ids[:, :-1]}, ids[:, 1:]
    lm.compile("sgd", run_eagerly=True)
    lm.train_on_batch(*batch)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        lm.train_on_batch(*batch)
        gc.collect()
        kept = {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert "Tensor" in kept  # Keras's trees leave some, of single operations
    assert not kept & {"frame", "traceback"}
