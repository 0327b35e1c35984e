"""Train on PyTorch with Ray Train, which starts the processes, and starts them again if one dies.

    KERAS_BACKEND=torch python examples/clusters/ray_train.py --run /shared/run --workers 2

On one machine Ray runs in local mode. `--die_once` kills a worker in the middle of the run, to show
that the run goes on from its last checkpoint.
"""

import os
import pathlib

import ray
from absl import app, flags
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

FLAGS = flags.FLAGS
flags.DEFINE_string("run", None, "Folder that all machines see.", required=True)
flags.DEFINE_integer("workers", 2, "Processes.", lower_bound=1)
flags.DEFINE_integer("epochs", 2, "Passes over the data.", lower_bound=1)
flags.DEFINE_boolean("gpu", False, "Give each process a GPU.")
flags.DEFINE_boolean("die_once", False, "Kill the last process at its fifth step, once.")

TEXTS = ["a warm film", "dull", "bright and short", "slow, but kind"] * 16
LABELS = ["good", "bad", "good", "good"] * 16


def train(settings: dict) -> None:
    """Train in one process; Ray has connected them."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras_transformer as kt

    import keras

    context = ray.train.get_context()
    rank, count = context.get_world_rank(), context.get_world_size()
    keras.utils.set_random_seed(0)
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["bad", "good"])
    kt.distribution.data_parallel(classifier)
    dataset = classifier.make_dataset(TEXTS, LABELS, batch_size=8, shuffle=True)
    share = kt.distribution.shard_of(dataset)
    died = pathlib.Path(settings["run"], "died")

    class Report(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if settings["die_once"] and rank == count - 1 and batch == 4 and not died.exists():
                died.touch()
                os._exit(1)

        def on_epoch_end(self, epoch, logs=None):
            ray.train.report({"epoch": epoch, "loss": float(logs["loss"])})

    run = kt.training.ResumableRun(settings["run"], share, every=2)
    with kt.distribution.ProcessWatch(settings["run"]) as watch:
        options = {"verbose": 0, "callbacks": [watch, Report(), run]}
        history = classifier.fit(share, epochs=settings["epochs"], **options)
    if rank == 0:
        print("epochs of the last start:", history.epoch, "losses:", history.history["loss"])


def main(_) -> None:
    settings = {"run": os.path.abspath(FLAGS.run), "epochs": FLAGS.epochs}
    os.makedirs(settings["run"], exist_ok=True)
    trainer = TorchTrainer(
        train,
        train_loop_config={**settings, "die_once": FLAGS.die_once},
        scaling_config=ScalingConfig(num_workers=FLAGS.workers, use_gpu=FLAGS.gpu),
        run_config=RunConfig(
            storage_path=settings["run"], failure_config=FailureConfig(max_failures=3)
        ),
    )
    print(trainer.fit().metrics)


if __name__ == "__main__":
    app.run(main)
