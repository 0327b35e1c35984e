"""Train one model on one device and on many, and compare the two loss curves.

The script is the same on each backend. Without accelerators it uses virtual devices on the CPU,
which shows that the numbers are right, but says nothing about speed:

    KERAS_BACKEND=jax python examples/train_distributed.py --data 2 --model 2
    KERAS_BACKEND=jax python examples/train_distributed.py --data 4 --processes 2
    KERAS_BACKEND=torch python examples/train_distributed.py --data 2
    KERAS_BACKEND=torch python examples/train_distributed.py --data 1 --fsdp 2
    KERAS_BACKEND=torch python examples/train_distributed.py --data 1 --model 2
    KERAS_BACKEND=tensorflow python examples/train_distributed.py --data 2

The number of devices is --data, the copies of the weights, times --fsdp, the devices that see
different rows and share a copy, times --model, the devices that share the work of each layer, times
--sequence, those that share the tokens of each row. PyTorch starts a process for each device, and
has --model without --fsdp and --sequence. TensorFlow has replicas in one process
(MirroredStrategy): each device holds the whole model.

On a machine with accelerators add --novirtual.

A launcher of a cluster starts the processes itself, on one machine or on many:

    cd examples
    KERAS_BACKEND=torch torchrun --nproc_per_node 2 train_distributed.py --checkpoints my_run

It sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; the files of examples/clusters set the same
for SLURM and for a Kubernetes JobSet, and on JAX. With --checkpoints, a folder that all machines
see, the run goes on from its last checkpoint when it is started again, with any number of them.
"""

import contextlib
import datetime
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
flags.DEFINE_integer("data", 2, "Copies of the weights.", lower_bound=1)
flags.DEFINE_integer("fsdp", 1, "Devices that share a copy. JAX, PyTorch.", lower_bound=1)
flags.DEFINE_integer("model", 1, "Devices that share layers. JAX, PyTorch.", lower_bound=1)
flags.DEFINE_integer("sequence", 1, "Devices that share tokens. JAX, PyTorch.", lower_bound=1)
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
flags.DEFINE_string("checkpoints", None, "Folder of checkpoints, from which the run goes on.")
flags.DEFINE_integer("every", 10, "Steps between two checkpoints.", lower_bound=1)
flags.DEFINE_integer("epochs", 1, "Passes over the data.", lower_bound=1)
# Flags of the processes that `launch` starts.
flags.DEFINE_integer("rank", None, "Number of a process. Set by this script.")
flags.DEFINE_string("address", None, "Where the processes meet. Set by this script.")
flags.DEFINE_string("report", None, "File for the result. Set by this script.")


AXES = ("data", "fsdp", "model", "sequence")
PATIENCE = 60  # seconds until a process that does not answer ends the others
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


def sizes() -> dict[str, int]:
    """Return the numbers of devices by axis."""
    return {name: FLAGS[name].value for name in AXES}


def jax_engine():
    """Connect the processes, and distribute weights and batches over a mesh."""
    if FLAGS.processes > 1:
        import jax

        jax.distributed.initialize(
            FLAGS.address, FLAGS.processes, FLAGS.rank, heartbeat_timeout_seconds=PATIENCE
        )
    if not FLAGS.report:  # of a cluster: all devices
        import jax

        FLAGS.data = max(1, jax.device_count() // (math.prod(sizes().values()) // FLAGS.data))
    kt.distribution.setup(**sizes())
    return contextlib.nullcontext()


def torch_engine():
    """Connect the processes, and give each a GPU or a share of the CPU."""
    import torch

    kind = "gloo"
    if not FLAGS.virtual:
        kind = "nccl"
        torch.cuda.set_device(FLAGS.rank % torch.cuda.device_count())
    # Under torchrun, which serves at the address itself, the environment has all.
    agent = "TORCHELASTIC_RUN_ID" in os.environ
    address = "env://" if agent else f"tcp://{FLAGS.address}"
    patience = datetime.timedelta(seconds=PATIENCE)
    count = math.prod(sizes().values())
    torch.distributed.init_process_group(kind, address, patience, rank=FLAGS.rank, world_size=count)
    kt.distribution.setup(**sizes())
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
    many = math.prod(sizes().values()) > 1
    backend = keras.backend.backend()
    scope = ENGINES[backend]() if many else contextlib.nullcontext()
    texts, tokenizer = read_data()
    with scope:
        lm = build(tokenizer)
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
    callbacks, watch = [Watch()], contextlib.nullcontext()
    if FLAGS.checkpoints:
        run = kt.training.ResumableRun(FLAGS.checkpoints, share, every=FLAGS.every)
        watch = kt.distribution.ProcessWatch(FLAGS.checkpoints)
        callbacks = [watch, *callbacks, run]
    with watch:
        history = lm.fit(share, epochs=FLAGS.epochs, verbose=0, callbacks=callbacks)
    if not FLAGS.report:
        if not FLAGS.rank:
            for epoch, loss in zip(history.epoch, history.history["loss"], strict=True):
                print(f"epoch {epoch + 1}: loss {loss:.6f}, {len(losses)} steps since the start")
        return
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
        elif hasattr(variable.value, "to_local"):
            count += variable.value.to_local().nbytes
        else:
            count += 4 * math.prod(variable.shape)
    return count


def launch(sizes: dict[str, int], processes: int) -> dict:
    """Start the processes of a run, and read the report of the first one."""
    devices = math.prod(sizes.values())
    with socket.socket() as free, tempfile.TemporaryDirectory() as folder:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        report = pathlib.Path(folder, "report.json")
        environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
        if FLAGS.virtual:
            flag = f"--xla_force_host_platform_device_count={devices // processes}"
            environment["XLA_FLAGS"] = f"{flag} {os.environ.get('XLA_FLAGS', '')}"
            environment |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        free.close()
        started = []
        for rank in range(processes):
            command = [sys.executable, *sys.argv]
            command += [f"--{name}={size}" for name, size in sizes.items()]
            command += [f"--processes={processes}", f"--report={report}", f"--address={address}"]
            command += [f"--rank={rank}"] if processes > 1 else []
            started.append(subprocess.Popen(command, env=environment))
        codes = [process.wait() for process in started]
        if any(codes):
            raise SystemExit(f"Training on {devices} devices ended with codes {codes}.")
        return json.loads(report.read_text(encoding="utf-8"))


def take_part() -> bool:
    """Read from the environment which process of a cluster this is, if it is one."""
    rank = os.environ.get("RANK")
    if rank is None or FLAGS.report:
        return False
    missing = [n for n in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if n not in os.environ]
    if missing:
        raise app.UsageError(f"RANK={rank} is set, but not {', '.join(missing)}.")
    if keras.backend.backend() == "tensorflow":
        raise app.UsageError("Several processes need KERAS_BACKEND=jax or torch.")
    FLAGS.rank, count = int(rank), int(os.environ["WORLD_SIZE"])
    if FLAGS.rank >= count:
        raise app.UsageError(f"RANK={rank} must be below WORLD_SIZE={count}.")
    FLAGS.address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    FLAGS.processes = count
    FLAGS.data = max(1, count // (math.prod(sizes().values()) // FLAGS.data))
    return True


def main(_):
    if FLAGS.report or take_part():
        return train()
    backend = keras.backend.backend()
    processes, devices = FLAGS.processes, math.prod(sizes().values())
    if backend == "tensorflow" and devices > FLAGS.data:
        raise app.UsageError(
            "On TensorFlow there is --data alone: choose KERAS_BACKEND=jax or torch."
        )
    if backend == "tensorflow" and processes > 1:
        raise app.UsageError(
            "On TensorFlow the replicas are in one process: leave out --processes."
        )
    if devices % processes:
        raise app.UsageError(f"--processes={processes} must divide the {devices} devices.")
    if backend == "torch":
        processes = devices
    runs = {f"{devices} devices": (sizes(), processes)}
    if FLAGS.compare and devices > 1:
        runs = {"one device": (dict.fromkeys(AXES, 1), 1), **runs}
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
