"""A process of a run in which the last one fails: RANK COUNT PORT FOLDER FAULT."""

import logging
import os
import signal
import sys
import time
from datetime import timedelta

import keras
from torch import distributed

import keras_transformer as kt
from tests.training.test_resume import make_dataset, make_model

SECONDS = 5.0  # until a process is named


def main(rank: str, count: str, port: str, folder: str, fault: str) -> None:
    logging.basicConfig(format="%(message)s")
    address, last = f"tcp://127.0.0.1:{port}", int(rank) == int(count) - 1
    distributed.init_process_group(
        "gloo", address, rank=int(rank), world_size=int(count), timeout=timedelta(seconds=25)
    )
    keras.utils.set_random_seed(1)
    model = kt.distribution.data_parallel(make_model(dropout=0.0))
    fewer = fault == "fewer" and last
    data = kt.distribution.shard_of(make_dataset(batch_size=12 if fewer else 6))

    class Fault(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.1)
            if not last:
                return
            if fault == "slow":
                time.sleep(1.0)
            elif batch == 4 and fault == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif batch == 4 and fault == "hangs":
                time.sleep(3 * SECONDS)
            elif batch == 4 and fault == "raises":
                raise ValueError("a row without a label")
            elif batch == 4 and fault == "memory":
                raise RuntimeError("not enough memory")

    with kt.distribution.ProcessWatch(folder, SECONDS) as watch:
        run = kt.training.ResumableRun(folder, data)
        model.fit(data, verbose=0, callbacks=[watch, Fault(), run])


if __name__ == "__main__":
    with keras.device("cpu"):
        main(*sys.argv[1:])
