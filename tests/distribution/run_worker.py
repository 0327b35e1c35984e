"""A process of a run that is saved and resumed: RANK COUNT ADDRESS FOLDER LOSSES NAMESPACE HOST.

It trains what `tests.training.test_resume` trains, without dropout, on its share of each batch, and
process 0 appends the epoch, the batch and the mean loss so far to a file.
"""

import contextlib
import json
import sys
import time

import keras

import keras_transformer as kt
from tests.distribution import hosts
from tests.training.test_resume import make_dataset, make_model

EPOCHS = 2
SECONDS = 0.05  # of a step, at least: time for kills


def connect(rank: int, count: int, address: str) -> None:
    """Connect the processes, which then share the weights."""
    if keras.backend.backend() == "torch":
        from torch import distributed

        distributed.init_process_group("gloo", f"tcp://{address}", rank=rank, world_size=count)
    elif count > 1:
        keras.distribution.initialize(address, count, rank)
    kt.distribution.setup()


def train(folder: str, losses: str, rank: int = 0, pause: float = 0.0, parallel: bool = True):
    """Train to the end of the last epoch."""
    keras.utils.set_random_seed(1)
    model, data = make_model(dropout=0.0), make_dataset()
    if parallel:
        data = kt.distribution.shard_of(data)

    class Losses(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if rank == 0:
                with open(losses, "a", encoding="utf-8") as file:
                    line = [self.epoch, data.first_batch + batch, float(logs["loss"])]
                    file.write(json.dumps(line) + "\n")
            time.sleep(pause)

    run = kt.training.ResumableRun(folder, data, every=2)
    with kt.distribution.ProcessWatch(folder) as watch:
        model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[watch, Losses(), run])
    return model


def main(rank: str, count: str, address: str, folder: str, losses: str, *host: str) -> None:
    hosts.enter(*host)
    scope = contextlib.nullcontext()
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_platforms", "cpu")
    else:
        scope = keras.device("cpu")
    with scope:
        connect(int(rank), int(count), address)
        train(folder, losses, int(rank), SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
