"""Programs for processes of their own: devices must exist before a backend starts.

workers.py NAME ARGUMENTS... prints one line of JSON in the end.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import threading
from pathlib import Path

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.data import BucketedDataset
from tests.distribution.models import (
    VARIANTS,
    Batches,
    compile_task,
    config,
    losses,
    make,
    make_variant,
)
from tests.distribution.prepared import OPTIONS, TEXTS, make_task, prepared, trained
from tests.thorough import THOROUGH

# Whether the processes take a GPU each: `make test-gpu DEVICES=2`.
ON_GPUS = "ON_GPUS" in os.environ
# All for one of them: compiling is nearly all of the time.
MESHES = {
    "encoder": [(2, 4)],
    "decoder": [(8, 1), (1, 4), (2, 4)],
    "experts": [(2, 4)],
    "seq2seq": [(2, 4)],
    "recurrent": [(2, 4)],
    "latent": [(2, 4)],
}
if not THOROUGH and not ON_GPUS:
    del MESHES["recurrent"], MESHES["latent"], MESHES["decoder"][0]


def under(data: int, model: int):
    """The scope of a mesh."""
    return kt.distribution.ModelParallel(kt.distribution.device_mesh(data, model)).scope()


def odd(kind: str = "decoder") -> list[float]:
    """With a batch of 5 rows, and a vocabulary that 4 devices do not divide."""
    return losses(make(kind, vocabulary_size=62), Batches(kind, 62, odd_rows=5))


def adversarial() -> list[float]:
    """Return losses of a classifier whose losses have a gradient within."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    x, y = {"token_ids": random.integers(0, 64, (8, 6))}, random.integers(0, 2, 8)
    classifier = kt.TextClassifier(kt.models.build_backbone(config("encoder")), num_classes=2)
    classifier.compile(keras.optimizers.SGD(0.1), classifier.loss, adversarial_norm=0.2)
    return classifier.fit(x, y, epochs=3, shuffle=False, verbose=0).history["loss"]


def eight_devices(folder: str) -> dict:
    """Meshes of eight devices on JAX."""
    found: dict = {"losses": {}}
    for kind, meshes in MESHES.items():
        found["losses"][kind] = {"1x1": losses(make(kind), Batches(kind))}
        for data, model in meshes:
            with under(data, model):
                task = make(kind)
                found["losses"][kind][f"{data}x{model}"] = losses(task, Batches(kind))
            found[f"shards of {kind} on {data}x{model}"] = shards(task)
    found["odd of one"] = odd()
    found["adversarial of one"] = adversarial()
    with under(2, 4):
        found["adversarial"] = adversarial()
        found["odd"] = odd()
        embedding = make("decoder", vocabulary_size=62).backbone.token_embedding
        kernels = (embedding.embeddings, embedding.reverse_embeddings)
        found["axes"] = [list(kernel.value.sharding.spec) for kernel in kernels]

    preset = Path(folder, "preset")
    x = Batches("encoder")[0][0]
    with under(2, 4):
        task = make("encoder")
        found["at once"] = list(task({name: array[:1] for name, array in x.items()}).shape)
        task.save_to_preset(preset)
        found["outputs"] = {"2x4": task.predict(x, verbose=0).ravel().tolist()}
    for data, model in ((4, 2), (1, 1)):
        with under(data, model):
            task = kt.MaskedLM.from_preset(preset)
            outputs = task.predict(x, verbose=0).ravel().tolist()
            found["outputs"][f"{data}x{model}"] = outputs
            found[f"shards of loaded on {data}x{model}"] = shards(task)
    return found | {"errors": errors(), "loss": memory_of_loss()}


# Sizes of `setup` by what is trained: axes that are not named are 1.
SETUPS: dict[str, list[dict[str, int]]] = {
    "decoder": [{"fsdp": 8}, {"data": 2, "fsdp": 2, "model": 2}, {"fsdp": 2, "sequence": 4}],
    "encoder": [{"data": 2, "fsdp": 2}],
    "seq2seq": [{"fsdp": 2}],
    "experts": [{"fsdp": 2, "model": 2}],
    "tied, rematerialized": [{"fsdp": 4}],
    "adapters": [{"fsdp": 4}],
    "accumulated": [{"fsdp": 4}],
}


def jax_spread(folder: str, *names: str) -> dict:
    """Train on JAX with weights, or tokens, over devices that `setup` arranges."""
    found: dict = {}
    for name in names:
        setups = SETUPS[name]
        make_task = make_variant if name in VARIANTS else make
        batches = Batches(VARIANTS[name][0] if name in VARIANTS else name)
        keras.distribution.set_distribution(None)
        found[name] = {"one": losses(make_task(name), batches)}
        for sizes in setups:
            mesh = kt.distribution.setup(**sizes).mesh
            task = make_task(name)
            found[name][json.dumps(sizes)] = losses(task, batches)
            found[f"axes of {name}, {json.dumps(sizes)}"] = list(mesh.axis_names)
            found[f"shards of {name}, {json.dumps(sizes)}"] = shards(task)
            if sizes == {"fsdp": 8}:
                found["collectives"] = collectives(task, batches[0])
                found["plan"] = planned_traffic(task, 8)
            if "model" in sizes and name == "decoder":
                found["generated"] = continued(task)
                task.save_to_preset(Path(folder, "saved"))
                keras.distribution.set_distribution(None)
                one = kt.CausalLM.from_preset(Path(folder, "saved"))
                found["by one"] = continued(one)
    found["errors"] = messages(
        {
            "devices": lambda: kt.distribution.setup(data=4, fsdp=4),
            "heads": lambda: kt.distribution.setup(sequence=3) and make("decoder"),
            "no config": lambda: kt.distribution.setup(batch_size=8),
        }
    )
    keras.distribution.set_distribution(None)
    return found


def continued(task) -> list[list[int]]:
    """Return prompts with generated tokens."""
    rows = task.generate([[1, 2, 3], [4, 5]], max_new_tokens=6)
    return [[int(i) for i in row] for row in rows]


def collectives(task, batch) -> dict[str, list[list[int]]]:
    """Return the shapes that each kind of collective of a compiled training step results in."""
    groups = task._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )
    values = [group.values() for group in groups]
    program = task.train_function.programs._jitted().lower(*values, batch).compile().as_text()
    found: dict[str, list[list[int]]] = {}
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    for shapes, kind in re.findall(rf"= (\S+|\(.*?\)) ({kinds})\(", program):
        for shape in re.findall(r"f32\[([\d,]*)\]", shapes):
            found.setdefault(kind, []).append([int(size) for size in shape.split(",") if size])
    return found


def planned_traffic(task, devices: int) -> int:
    """Return the bytes that a device sends in a step for one layer, by the plan."""
    options = {"devices": devices, "fsdp": devices, "batch_size": 8, "length": 12}
    one = task.backbone.config
    first, second = (
        kt.planning.make_plan(one.replace(num_layers=count), **options).sent_bytes
        for count in (1, 2)
    )
    return second - first


def shards(task) -> list:
    """Return of weights and optimizer states the path, shape, and bytes on each device."""
    return [
        [v.path, list(v.shape), [shard.data.nbytes for shard in v.value.addressable_shards]]
        for v in (*task.trainable_variables, *task.optimizer.variables)
    ]


def memory_of_loss() -> dict:
    """Loss and gradients in eight chunks, with the vocabulary over four devices."""
    import jax

    from keras_transformer.training import linear_cross_entropy

    random = np.random.default_rng(0)
    states = random.normal(size=(8, 64, 16)).astype("float32")
    kernel = random.normal(size=(512, 16)).astype("float32")
    targets = random.integers(0, 512, (8, 64))

    def loss(states, kernel):
        devices = keras.distribution.distribution().device_mesh.devices.size
        chunk = 4 * 8 * 512 * 8 // devices  # of each device
        return linear_cross_entropy(states, kernel, targets, chunk_bytes=chunk).loss

    found = {}
    for data, model in ((1, 1), (2, 4)):
        with under(data, model):
            mesh = keras.distribution.distribution().device_mesh
            layouts = [
                keras.distribution.TensorLayout(axes, mesh).backend_layout
                for axes in (["batch", None, None], ["model", None])
            ]
            step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), in_shardings=layouts)
            compiled = step.lower(states, kernel).compile()
            value, gradients = compiled(*map(jax.device_put, (states, kernel), layouts))
            found[f"{data}x{model}"] = {
                "bytes": compiled.memory_analysis().temp_size_in_bytes,
                "value": float(value),
                "gradients": [np.asarray(g)[:2, :2].ravel().tolist() for g in gradients],
            }
    return found


def errors() -> dict:
    """Return the errors of meshes that do not work."""
    distribution = kt.distribution
    mesh = distribution.device_mesh

    def keras_own():
        layouts = distribution.layout_map(mesh(2, 4))
        own = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        with own.scope():
            make("decoder", vocabulary_size=61)

    def no_model_axis():
        flat = keras.distribution.DeviceMesh((8,), ["batch"], keras.distribution.list_devices())
        distribution.layout_map(flat)

    def of_model(**values):
        with under(1, 4):
            kt.models.build_backbone(config("encoder", **values))

    calls = {
        "devices": lambda: mesh(data=4, model=4),
        "zero": lambda: mesh(data=0),
        "float": lambda: mesh(model=2.0),
        "key heads": lambda: distribution.layout_map(mesh(1, 8), config("decoder")),
        "heads": lambda: of_model(num_heads=2),
        "width": lambda: of_model(intermediate_dim=30),
        "vocabulary": lambda: distribution.layout_map(
            mesh(1, 4), config("decoder", vocabulary_size=62)
        ),
        "keras_own": keras_own,
        "no_model_axis": no_model_axis,
    }
    return messages(calls)


def jax_processes(rank: str, port: str, folder: str) -> dict:
    """One of two processes on JAX, with half of the rows, and then with half of the weights."""
    import jax

    keras.distribution.initialize(f"127.0.0.1:{port}", 2, int(rank))
    found = {}
    for data, model in ((2, 1), (1, 2)):
        mesh = kt.distribution.device_mesh(data, model)
        keras.distribution.set_distribution(kt.distribution.ModelParallel(mesh))
        found[f"{data}x{model}"] = of_a_mesh(data, Path(folder, f"{data}x{model} {rank}"))
    jax.distributed.shutdown()  # both at their end, which here does nothing more
    return found


def of_a_mesh(data: int, folder: Path) -> dict:
    """Run the part of a process of a mesh."""
    sizes = {"vocabulary_size": 62} if data == 2 else {}
    odd_rows = 5 if data == 2 else 8
    shard = kt.distribution.shard_of(Batches("decoder", **sizes, odd_rows=odd_rows))
    task = make("decoder", **sizes)
    found = {"losses": losses(task, shard), "share": [shard.index, shard.count]}
    found["rows read"] = [len(shard[place][1]) for place in range(2)]
    task.save_to_preset(folder)  # of parts that both hold: both must ask
    with open(folder / "model.safetensors", "rb") as file:
        found["saved"] = hashlib.sha256(file.read()).hexdigest()
    return found


def prepare(rank: str, address: str, folder: str) -> dict:
    """One of two processes that tokenize together, and make a share of each batch."""
    if keras.backend.backend() == "torch":
        from torch import distributed

        distributed.init_process_group("gloo", f"tcp://{address}", rank=int(rank), world_size=2)
    else:
        keras.distribution.initialize(address, 2, int(rank))
    kt.distribution.setup(data=2)
    found, parent = prepared(Path(folder)), Path(folder).parent
    task = make_task(parent)

    def share(texts):
        return kt.distribution.shard_of(lambda: task.make_dataset(texts, **OPTIONS))

    ends = "a different end" if rank == "1" else "an end"
    errors = {
        "other texts": lambda: share([*TEXTS, ends]),
        "an empty text": lambda: kt.distribution.shard_of(
            lambda: make_task(parent, kt.TextClassifier, num_classes=2).make_dataset(
                [*TEXTS[:59], ""]
            )
        ),
    }
    found["errors"] = messages(errors)
    if keras.backend.backend() == "torch":
        found["history"] = trained(
            parent,
            lambda task: kt.distribution.shard_of(lambda: task.make_dataset(TEXTS, **OPTIONS)),
        )
        distributed.destroy_process_group()
    else:
        import jax

        jax.distributed.shutdown()
    return found


def torch_one() -> dict:
    """One process on PyTorch, which the two are held against."""
    return {"losses": odd("encoder")}


def torch_process(rank: str, store: str) -> dict:
    """One of two processes on PyTorch, with unequal numbers of tokens and of rows."""
    import torch
    from torch import distributed

    library = "nccl" if ON_GPUS else "gloo"
    if ON_GPUS:
        torch.cuda.set_device(int(rank))
    distributed.init_process_group(library, f"file://{store}", rank=int(rank), world_size=2)
    task = make("encoder", vocabulary_size=62)  # with a pooler that the task does without
    kt.distribution.data_parallel(task)
    shard = kt.distribution.shard_of(Batches("encoder", 62, odd_rows=5))
    found = {"losses": losses(task, shard)}
    found["weights"] = [float(abs(keras.ops.convert_to_numpy(v)).sum()) for v in task.weights]
    distributed.destroy_process_group()
    return found


SPREAD = {2: ["encoder", "experts", "adapters"]}
if THOROUGH:
    SPREAD = {2: ["encoder", "experts", "seq2seq", *VARIANTS], 4: ["encoder"]}


def torch_alone() -> dict:
    """Losses of one process on PyTorch, of all that processes do together."""
    found = {name: losses(*spread_case(name)) for name in SPREAD[2]}
    return {**found, "shared": shared_work(), "tokens": shared_tokens()}


SHARED: dict[str, dict] = {
    "decoder": {"window": 3, "tie_embeddings": True},
    "experts": {"vocabulary_size": 63},  # which two processes do not divide
}


def shared_work(rank: int | None = None, folder: Path | None = None) -> dict:
    """Return what two processes that share the work of each layer find, or one process.

    They train, generate, predict and serve.
    """
    found: dict = {}
    if rank is not None:
        plan = kt.distribution.setup(config("decoder", **SHARED["decoder"]), model=2).plan
        found["plan"] = [plan.memory.weights, plan.memory.optimizer]
    for name, values in SHARED.items():
        found[name] = {"losses": shared_losses(name, rank == 1)}
        task = make(name, **values)
        if rank == 1:  # as with another seed
            for variable in task.trainable_variables:
                variable.assign(variable + 1.0)
        found[name] |= {
            "generate": continued(task),
            "predict": float(
                abs(task.predict({"token_ids": np.array([[1, 2, 3]])}, verbose=0)).mean()
            ),
            "bytes": [[v.path, list(v.shape), local_bytes(v)] for v in task.weights],
        }
    found["classifier"] = shared_classifier(rank)
    task = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    found["streamed"] = "".join(
        task.generate("ROMEO:", max_new_tokens=6, sampler="greedy", stream=True)
    )
    found["served"] = served(task, rank == 1)
    if rank is None:
        return found
    task.save_to_preset(folder)
    found["saved"] = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    calls = {
        "rows": lambda: task.fit([f"to be or not to be {rank}"] * 2, verbose=0),
        "attention": lambda: task.explain("ROMEO:"),
        "kind": lambda: make("seq2seq"),
        "mixer": lambda: make("latent"),
        "seed": lambda: task.generate("ROMEO:", sampler="top_p", seed=rank),
        "heads": lambda: make("decoder", num_heads=3, num_key_value_heads=3),
        "adapter": lambda: make_variant("adapters").generate([[1]], max_new_tokens=1),
    }
    return {**found, "errors": messages(calls)}


def shared_losses(name: str, is_other: bool) -> list[float]:
    """Return losses of a model of `SHARED`, of which a process begins with other weights."""
    values = SHARED[name]
    task = make(name, **values)
    if is_other:
        for variable in task.trainable_variables:
            variable.assign(variable + 1.0)
    # Experts count the rows that fill up a share, as they count all others.
    rows = {} if name == "experts" else {"odd_rows": 5}
    batches = Batches(name, values.get("vocabulary_size", 64), **rows)
    return losses(task, kt.distribution.shard_of(batches))


class ShortRows(Batches):
    """Rows whose number of tokens two processes do not divide, some with a half of padding."""

    def __getitem__(self, place):
        return keras.tree.map_structure(lambda array: array[:, :11], super().__getitem__(place))


def shared_tokens() -> dict:
    """Return losses of models whose rows' tokens processes share, if `setup` says so."""
    cases = {
        "decoder": {"window": 3, "tie_embeddings": True},
        "experts": {"expert_capacity_factor": None},
    }
    found = {}
    for name, values in cases.items():
        rows = {} if name == "experts" else {"odd_rows": 5}
        shard = kt.distribution.shard_of(ShortRows(name, **rows))
        found[name] = losses(make(name, **values), shard)
    return found


def shared_classifier(rank: int | None) -> dict:
    """Return losses of a classifier, whose last block computes the first state alone.

    The head is made around a backbone that the processes share already. Random numbers differ
    between them until `fit`.
    """
    import torch

    keras.utils.set_random_seed(0)
    backbone = kt.models.build_backbone(config("encoder", dropout=0.2))
    random = np.random.default_rng(0)
    x, y = {"token_ids": random.integers(1, 64, (8, 6))}, random.integers(0, 2, 8)
    backbone.predict(x, verbose=0)
    classifier = kt.TextClassifier(backbone, num_classes=2)
    classifier.compile(keras.optimizers.SGD(0.1), classifier.loss)
    torch.manual_seed(rank or 0)
    history = classifier.fit(x, y, epochs=3, batch_size=4, shuffle=False, verbose=0).history
    weights = b"".join(weight.tobytes() for weight in classifier.get_weights())
    return {"losses": history["loss"], "weights": hashlib.sha256(weights).hexdigest()}


def served(task, follows: bool) -> list:
    """Return the texts of a server's jobs, which a second process may decode with the first."""
    from keras_transformer.serving.following import follow
    from keras_transformer.serving.worker import STEPS, Done, Job, Worker, row_counts

    if follows:
        return follow(task, 4, row_counts(4), STEPS) or []
    worker, done, told = Worker(task, batch_size=4), threading.Event(), {}

    def teller(number):
        def tell(event):
            if isinstance(event, Done):
                told[number] = [event.token_ids, event.reason]
            if len(told) == len(JOBS):
                done.set()

        return tell

    ids = task.tokenizer.encode("ROMEO:")
    jobs = []
    for number, (heat, options) in enumerate(JOBS):
        if "regex" in options:
            options = {"constraint": task.constraint(regex=options["regex"])}
        jobs.append(Job(task, ids, 12, heat, 0.9, 7, number, teller(number), **options))
    worker.start()
    worker.submit(jobs)
    assert done.wait(100)
    worker.stop()
    return [told[number] for number in sorted(told)]


# Temperature and options of each text.
JOBS: list[tuple[float, dict]] = [
    (0.0, {"stop": [" not"]}),
    (1.0, {"regex": "[0-9]{3}"}),
]


def spread_case(name: str) -> tuple:
    """Return a task, and the batches of all processes together, one with an odd number of rows."""
    if name in VARIANTS:
        return make_variant(name), Batches(VARIANTS[name][0], odd_rows=5)
    sizes = {"vocabulary_size": 62} if name == "encoder" else {}
    # Experts count the rows that fill up a share, as they count all others.
    return make(name, **sizes), Batches(name, **sizes, odd_rows=8 if name == "experts" else 5)


def torch_spread(rank: str, count: str, store: str, folder: str) -> dict:
    """One of several processes on PyTorch that share the weights, in copies if there are four."""
    from torch import distributed

    distributed.init_process_group("gloo", f"file://{store}", rank=int(rank), world_size=int(count))
    setup = kt.distribution.setup(fsdp=2)
    found: dict = {"setup": [setup.data, setup.fsdp, setup.process_index, setup.process_count]}
    if count == "4":
        kt.distribution.setup(model=2)  # in two copies
        found["shared"] = {name: shared_losses(name, rank == "3") for name in SHARED}
        kt.distribution.setup(sequence=2, fsdp=2)
        found["tokens"] = shared_tokens()
        kt.distribution.setup(fsdp=2)
    for name in SPREAD[int(count)]:
        task, batches = spread_case(name)
        if rank != "0":  # as with other seeds
            for variable in task.trainable_variables:
                variable.assign(variable + 1.0)
        found[name] = losses(task, kt.distribution.shard_of(batches))
        found[f"bytes of {name}"] = [
            [v.path, list(v.shape), v._value.dtype.itemsize, local_bytes(v)]
            for v in (*task.weights, *task.optimizer.variables)
        ]
    if count == "2":
        task, batches = spread_case("tied, rematerialized")
        task.fit(kt.distribution.shard_of(batches), verbose=0)
        kt.distribution.fully_sharded(task)  # again: does nothing
        found["sent"] = sent(task, kt.distribution.shard_of(batches)[0])
        found["plan"] = planned_traffic(task, 2)
        found["reading"] = readings(task, batches)
        task.save_to_preset(Path(folder, rank))
        found["by keras"] = by_keras(task, Path(folder, rank))
        found["groups"] = groups_of_checkpoints(Path(folder, "checkpoints"))
        found["errors"] = messages(
            {
                "new weights": lambda: task.enable_lora(rank=2) or task.make_train_function(),
                "world": lambda: kt.distribution.setup(data=3, fsdp=2),
                "both": lambda: kt.distribution.setup(fsdp=2, model=2),
                "both works": lambda: kt.distribution.setup(sequence=2, model=2),
            }
        )
        found["tokens"] = tokens_over_processes()
        found["shared"] = shared_work(int(rank), Path(folder, f"shared {rank}"))
        if rank == "1":  # as on a machine with an older one
            version = importlib.metadata.version
            importlib.metadata.version = lambda name: "3.0.0" if name == "keras" else version(name)
        found["errors"] |= messages({"versions": kt.distribution.setup})
    distributed.destroy_process_group()
    return found


def tokens_over_processes() -> dict:
    """Return what two processes find that share the tokens of each row."""
    setup = kt.distribution.setup(sequence=2)
    found = {"setup": [setup.data, setup.sequence], **shared_tokens()}
    ids = {"token_ids": np.ones((2, 6), "int32")}
    calls = {
        "task": lambda: kt.TextClassifier(
            kt.models.build_backbone(config("encoder")), num_classes=2
        ).fit(ids, np.array([0, 1]), verbose=0),
        "places": lambda: make("encoder").fit(Batches("encoder"), verbose=0),
        "heads": lambda: make("decoder", num_key_value_heads=1).fit(Batches("decoder"), verbose=0),
        "sinks": lambda: make("decoder", attention_sinks=True).fit(Batches("decoder"), verbose=0),
        "capacity": lambda: make("experts").fit(Batches("experts"), verbose=0),
        "mixer": lambda: make("latent").fit(Batches("latent"), verbose=0),
    }
    return {**found, "errors": messages(calls)}


def sent(task, batch) -> dict[str, list[int]]:
    """Return the numbers that each kind of collective of a training step gathers or scatters.

    `CommDebugMode` of PyTorch fails at modules of Keras, whose names it does not find.
    """
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode

    found: dict[str, list[int]] = {}

    class Collectives(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function.namespace == "c10d":
                sizes = [x.numel() for x in _pytree.tree_leaves(args) if hasattr(x, "numel")]
                found.setdefault(function.__name__.partition(".")[0], []).append(max(sizes))
            return function(*args, **(kwargs or {}))

    with Collectives():
        x, y, weights = batch
        task.train_on_batch(x, y, sample_weight=weights)
    return found


def by_keras(task, folder: Path) -> dict:
    """Save and load weights that are spread with methods of Keras."""
    first = task.get_weights()
    task.save(folder / "whole.keras")
    task.save_weights(folder / "whole.weights.h5")
    task.set_weights([np.zeros_like(weight) for weight in first])
    zeros = task.get_weights()
    task.load_weights(folder / "whole.weights.h5")
    again = task.get_weights()
    return {
        "shapes": [list(weight.shape) for weight in first] == [list(w.shape) for w in task.weights],
        "zeros": max(float(abs(weight).max()) for weight in zeros),
        "same": all(np.array_equal(one, two) for one, two in zip(first, again, strict=True)),
        "sums": [float(abs(weight).sum()) for weight in first],
        "still spread": sum(local_bytes(v) for v in task.weights) < sum(w.nbytes for w in first),
    }


def groups_of_checkpoints(folder: Path) -> list[int]:
    """Return the number of process groups before and after checkpoints that are closed."""
    from torch import distributed

    groups = distributed.distributed_c10d._world.pg_map
    before = len(groups)
    for number in (1, 2):
        checkpoints = kt.distribution.ShardedCheckpoints(folder)
        checkpoints.save(number, {"a": keras.ops.ones((2, 3))}, {})
        checkpoints.close()
    return [before, len(groups)]


def torch_read(folder: str) -> dict:
    """The same of a model that two processes have saved, read by one."""
    task = kt.CausalLM.from_preset(folder)
    compile_task(task)
    whole = keras.saving.load_model(Path(folder, "whole.keras"))
    sums = [float(abs(weight).sum()) for weight in whole.get_weights()]
    return readings(task, Batches("decoder")) | {"sums": sums}


def readings(task, batches) -> dict:
    """Return what calls that do not train give."""
    x, y, weights = batches[0]
    generated = task.generate([[1, 2, 3]], max_new_tokens=150)  # so many that the cache grows
    return {
        "evaluate": task.evaluate(x, y, sample_weight=weights, verbose=0),
        "predict": float(abs(task.predict(x, verbose=0)).mean()),
        "generate": [[int(i) for i in row] for row in generated],
    }


def local_bytes(variable) -> int:
    """Return the bytes of a variable that this process has."""
    value = variable._value
    value = value.to_local() if hasattr(value, "to_local") else value
    return value.numel() * value.element_size()


def messages(calls: dict) -> dict:
    """Return the errors of calls, by name."""
    found = {}
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
    return found


class Doubled(Batches):
    """Batches whose halves are equal, so that a loss for balance is that of each half."""

    def __getitem__(self, place):
        batch = super().__getitem__(place)
        return keras.tree.map_structure(lambda x: np.concatenate([x[: len(x) // 2]] * 2), batch)


def mirrored() -> dict:
    """One device and two on TensorFlow."""
    import tensorflow as tf

    device = tf.config.LogicalDeviceConfiguration()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [device, device])
    found = {"one": losses(make("decoder"), Batches("decoder"))}
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        task = make("decoder")
    found["two"] = losses(task, Batches("decoder"))
    values = {"expert_capacity_factor": None, "load_balancing_factor": 0.5}
    found["one, experts"] = losses(make("experts", **values), Doubled("experts"))
    with strategy.scope():
        routed = make("experts", **values)
    found["two, experts"] = losses(routed, Doubled("experts"))
    # Keras looks at a batch before it trains: this does not count as an epoch of the dataset.
    x, y, weights = Batches("decoder")[0]
    rows = {"ids": [[1]] * 16}
    dataset = BucketedDataset(rows, lambda arrays, masks: (x, y, weights), batch_size=8)
    task.fit(dataset, epochs=1, verbose=0)
    return found | {"epochs": dataset.epoch}


def two_gpus() -> dict:
    """Meshes of two GPUs on JAX, and one."""
    found = {}
    for kind in MESHES:
        found[kind] = {"1x1": losses(make(kind), Batches(kind))}
        for data, model in ((2, 1), (1, 2)):
            with under(data, model):
                found[kind][f"{data}x{model}"] = losses(make(kind), Batches(kind))
    return found


def run(name: str, *arguments: str) -> dict:
    """Call a function of this file, on the CPU unless GPUs are asked for."""
    if ON_GPUS:
        kt.use_exact_float32()
        return globals()[name](*arguments)
    if keras.backend.backend() == "jax":  # compiling is nearly all of the time
        import jax

        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_disable_most_optimizations", True)
    # Of PyTorch the default device is known before.
    scope = keras.device("cpu") if keras.backend.backend() == "torch" else contextlib.nullcontext()
    with scope:
        return globals()[name](*arguments)


if __name__ == "__main__":
    result = run(*sys.argv[1:])
    print("\n" + json.dumps(result), flush=True)
