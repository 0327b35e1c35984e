"""Train one model on one device and on many, and compare the two loss curves.

The script is the same on each backend. Without accelerators it uses virtual devices on the CPU,
which shows that the numbers are right, but says nothing about speed:

    KERAS_BACKEND=jax python examples/train_distributed.py --data 2 --model 2
    KERAS_BACKEND=jax python examples/train_distributed.py --data 4 --processes 2
    KERAS_BACKEND=torch python examples/train_distributed.py --data 2
    KERAS_BACKEND=tensorflow python examples/train_distributed.py --data 2

The number of devices is --data, the parts of a batch, times --model, the parts of the weights. JAX
supports both. PyTorch starts a process for each part of a batch (DistributedDataParallel), and
TensorFlow has replicas in one process (MirroredStrategy): on these two each device holds the whole
model, and --model must be 1.

On a machine with accelerators add --novirtual. For several machines see docs/scaling.md.
"""

import contextlib
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from runs import start

import keras_transformer as kt
from example_data import tiny_shakespeare

import keras
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("data", 2, "Parts of a batch.", lower_bound=1)
flags.DEFINE_integer("model", 1, "Parts of the weights. On JAX only.", lower_bound=1)
flags.DEFINE_integer("processes", 1, "Processes that share the devices, on JAX.", lower_bound=1)
flags.DEFINE_boolean("virtual", True, "Use virtual devices on the CPU.")
flags.DEFINE_boolean("compare", True, "Also train on one device.")
flags.DEFINE_integer("steps", 30, "Training steps.", lower_bound=2)
flags.DEFINE_integer("batch_size", 32, "Texts of a step, on all devices together.", lower_bound=1)
flags.DEFINE_integer("hidden_dim", 128, "Width of the model.", lower_bound=8)
flags.DEFINE_integer("num_layers", 2, "Layers of the model.", lower_bound=1)
flags.DEFINE_float("learning_rate", 2e-3, "Learning rate of AdamW.")
flags.DEFINE_integer("seed", 0, "Seed of weights and shuffling.")
flags.DEFINE_string("output", None, "Save the model trained on many devices as a preset here.")
# Flags of the processes that `launch` starts.
flags.DEFINE_integer("rank", None, "Number of a process. Set by this script.")
flags.DEFINE_string("address", None, "Where the processes meet. Set by this script.")
flags.DEFINE_string("report", None, "File for the result. Set by this script.")


LABELS = {"tokens_per_second": "tokens/s", "bytes": "bytes a device"}


def build(tokenizer):
    """Build a gated decoder without dropout, with sizes that are divisible by 8 devices."""
    keras.utils.set_random_seed(FLAGS.seed)
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=FLAGS.hidden_dim,
        num_layers=FLAGS.num_layers,
        num_heads=8,
        intermediate_dim=4 * FLAGS.hidden_dim,
        gated=True,
        normalization="rms_norm",
        normalize_first=True,
        position="rotary",
        max_sequence_length=128,
    )
    lm = kt.CausalLM(kt.models.Decoder(config), tokenizer)
    lm.compile(
        optimizer=keras.optimizers.AdamW(FLAGS.learning_rate),
        loss=kt.training.TokenCrossEntropy(),
        weighted_metrics=[],
    )
    return lm


def read_data():
    """Return as many speeches of Shakespeare as the steps need, and a tokenizer for them."""
    speeches = [text for text in tiny_shakespeare().strip().split("\n\n") if text.strip()]
    texts = [speeches[i % len(speeches)] for i in range(FLAGS.steps * FLAGS.batch_size)]
    tokenizer = kt.Tokenizer.train(speeches[:2000], vocabulary_size=512, add_prefix_space=False)
    return texts, tokenizer


def jax_engine():
    """Connect the processes, and distribute weights and batches over a mesh."""
    if FLAGS.processes > 1:
        keras.distribution.initialize(FLAGS.address, FLAGS.processes, FLAGS.rank)
    mesh = kt.distribution.device_mesh(FLAGS.data, FLAGS.model)
    # Set for the whole program, since `fit` reads it too.
    keras.distribution.set_distribution(kt.distribution.ModelParallel(mesh))
    return contextlib.nullcontext()


def torch_engine():
    """Connect the processes, and give each a GPU or a share of the CPU."""
    import torch

    kind = "gloo"
    if not FLAGS.virtual:
        kind = "nccl"
        torch.cuda.set_device(FLAGS.rank % torch.cuda.device_count())
    address = f"tcp://{FLAGS.address}"
    torch.distributed.init_process_group(kind, address, rank=FLAGS.rank, world_size=FLAGS.data)
    return contextlib.nullcontext()


def tensorflow_engine():
    """Return a scope in which variables get a copy on each device."""
    import tensorflow as tf

    kind = "CPU" if FLAGS.virtual else "GPU"
    if FLAGS.virtual:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * FLAGS.data
        tf.config.set_logical_device_configuration(cpu, parts)
    return tf.distribute.MirroredStrategy([f"{kind}:{i}" for i in range(FLAGS.data)]).scope()


ENGINES = {"jax": jax_engine, "torch": torch_engine, "tensorflow": tensorflow_engine}


def train():
    """Train in one process of a run, and return the results."""
    many = FLAGS.data * FLAGS.model > 1
    backend = keras.backend.backend()
    scope = ENGINES[backend]() if many else contextlib.nullcontext()
    texts, tokenizer = read_data()
    with scope:
        lm = build(tokenizer)
    if many and backend == "torch":
        kt.distribution.data_parallel(lm)
    whole = lm.make_dataset(
        texts,
        batch_size=FLAGS.batch_size,
        buckets=[128],
        max_length=128,
        shuffle=True,
        seed=FLAGS.seed,
    )
    tokens = [int(whole[place][2].sum()) for place in range(len(whole))]
    losses, seconds = [], []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))  # the mean up to this step
            seconds.append(time.perf_counter())

    share = kt.distribution.shard_of(whole) if FLAGS.rank is not None else whole
    lm.fit(share, verbose=0, callbacks=[Watch()])
    half = len(seconds) // 2  # without the steps that compile
    if FLAGS.output and many:
        # All processes take part, since each may hold weights that the others do not.
        lm.save_to_preset(FLAGS.output if not FLAGS.rank else f"{FLAGS.output}.{FLAGS.rank}")
    if not FLAGS.rank:
        report = {
            "losses": losses,
            "tokens_per_second": sum(tokens[half:]) / (seconds[-1] - seconds[half - 1]),
            "bytes": bytes_of_a_device(lm),
            "parameters": lm.count_params(),
        }
        pathlib.Path(FLAGS.report).write_text(json.dumps(report), encoding="utf-8")


def bytes_of_a_device(lm) -> int:
    """Return the bytes of weights and optimizer states on the first device."""
    count = 0
    for variable in (*lm.weights, *lm.optimizer.variables):
        shards = getattr(variable.value, "addressable_shards", None)
        if shards is not None:
            count += shards[0].data.nbytes
        else:
            count += 4 * math.prod(variable.shape)
    return count


def launch(data: int, model: int, processes: int) -> dict:
    """Start the processes of a run, and read the report of the first one."""
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        report = pathlib.Path(folder, "report.json")
        environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
        if FLAGS.virtual:
            flag = f"--xla_force_host_platform_device_count={data * model // processes}"
            environment["XLA_FLAGS"] = f"{flag} {os.environ.get('XLA_FLAGS', '')}"
            environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        free.close()
        started = []
        for rank in range(processes):
            command = [sys.executable, *sys.argv, f"--data={data}", f"--model={model}"]
            command += [f"--processes={processes}", f"--report={report}", f"--address={address}"]
            command += [f"--rank={rank}"] if processes > 1 else []
            started.append(subprocess.Popen(command, env=environment))
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"Training on {data} x {model} devices ended with codes {codes}.")
        return json.loads(report.read_text(encoding="utf-8"))


def main(_):
    if FLAGS.report:
        return train()
    backend = keras.backend.backend()
    data, model, processes = FLAGS.data, FLAGS.model, FLAGS.processes
    if backend != "jax" and model > 1:
        raise app.UsageError(f"--model={model} needs KERAS_BACKEND=jax, which is {backend}.")
    if backend == "torch":
        processes = data
    elif backend == "tensorflow" and processes > 1:
        raise app.UsageError(
            "On TensorFlow the replicas are in one process: leave out --processes."
        )
    if data * model % processes:
        raise app.UsageError(f"--processes={processes} must divide the {data * model} devices.")
    runs = {f"{data} x {model} devices": (data, model, processes)}
    if FLAGS.compare and data * model > 1:
        runs = {"one device": (1, 1, 1), **runs}
    reports = {}
    for name, run in runs.items():
        print(
            f"{name}: {FLAGS.steps} steps of {FLAGS.batch_size} texts on {backend} ...", flush=True
        )
        reports[name] = launch(*run)
    first = next(iter(reports.values()))
    print(f"\n{first['parameters']:,} parameters. Mean loss up to a step:\n")
    print(" " * 18 + "".join(f"{name:>18}" for name in reports))
    curves = [report["losses"] for report in reports.values()]
    for step in sorted({*range(0, FLAGS.steps, max(1, FLAGS.steps // 6)), FLAGS.steps - 1}):
        print(f"  {f'step {step + 1}':16}" + "".join(f"{curve[step]:18.6f}" for curve in curves))
    for title in ("tokens_per_second", "bytes"):
        values = "".join(f"{report[title]:18,.0f}" for report in reports.values())
        print(f"  {LABELS[title]:16}{values}")
    if len(curves) == 2:
        worst = max(abs(a - b) / abs(a) for a, b in zip(*curves, strict=True))
        print(f"\nLargest relative difference of the curves: {worst:.1e}")
        print("They are the same." if worst < 1e-4 else "THEY DIFFER.")
    return None


if __name__ == "__main__":
    start(main)
