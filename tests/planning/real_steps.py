"""Compiles real steps of training on abstract arrays and prints what XLA says that they take.

Run as a program, with cases as JSON in the first argument, in a process of its own: the flags of
XLA are those that it has by default, but that it does not optimize machine code, which changes no
byte of what a step takes, and there are eight devices.
"""

import concurrent.futures
import json
import os
import sys

# Rematerialization alone needs a flag: on a CPU XLA drops the barriers that keep it from merging
# what is computed again with what was computed before, and so undoes it.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_disable_hlo_passes=cse_barrier_expander "
    "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_llvm_disable_expensive_passes=true"
)

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import keras_transformer as kt
from keras_transformer.distribution.layout import spreads_weights
from keras_transformer.kernels.jax_step_programs import SPREAD_ON_CPU
from keras_transformer.planning.memory import predicted_tokens

TASKS = {"encoder": kt.MaskedLM, "decoder": kt.CausalLM, "seq2seq": kt.Seq2SeqLM}


def abstract_task(config, dtype, optimizer, rematerialize):
    """A task whose variables have shapes and no values: it is made while JAX traces."""
    made = []

    def make():
        with keras.RematScope("full" if rematerialize else None):
            task = TASKS[config.kind](kt.models.build_backbone(config, dtype=dtype))
        task.compile(optimizer, loss=kt.training.TokenCrossEntropy())
        task.optimizer.build(task.trainable_variables)
        made.append(task)

    jax.eval_shape(make)
    return made[0]


def adapted_task(config, case):
    """A task of integers with adapters, which has values: quantizing needs them."""
    with keras.RematScope("full" if case.get("rematerialize") else None):
        task = TASKS[config.kind](kt.models.build_backbone(config))
    task.backbone.quantize(case["dtype"])
    task.enable_lora(case["lora_rank"])
    task.compile("adamw", loss=kt.training.TokenCrossEntropy())
    task.optimizer.build(task.trainable_variables)
    return task


def batch_of(config, rows, length, target_length):
    """Shapes and dtypes of inputs, targets and weights."""

    def ids(length):
        return jax.ShapeDtypeStruct((rows, length), "int32")

    def mask(length):
        return jax.ShapeDtypeStruct((rows, length), "bool")

    if config.kind == "seq2seq":
        target = target_length or length
        inputs = {
            "encoder_token_ids": ids(length),
            "encoder_padding_mask": mask(length),
            "decoder_token_ids": ids(target),
            "decoder_padding_mask": mask(target),
        }
    else:
        target = predicted_tokens(config, length)
        inputs = {"token_ids": ids(length), "padding_mask": mask(length)}
        if config.kind == "encoder":
            inputs["mask_positions"] = ids(target)
    return inputs, ids(target), jax.ShapeDtypeStruct((rows, target), "float32")


def lowered_step(case):
    config = kt.TransformerConfig(**case["config"])
    if "lora_rank" in case:
        task = adapted_task(config, case)
    else:
        optimizer = case.get("optimizer", "adamw")
        task = abstract_task(config, "float32", optimizer, case.get("rematerialize", False))
    data, model, fsdp = case.get("mesh", (1, 1, 1))
    layout = kt.distribution.ModelParallel(kt.distribution.device_mesh(data, model, fsdp=fsdp))

    def abstract(array, *axes):
        sharding = NamedSharding(layout.device_mesh.backend_mesh, PartitionSpec(*axes))
        dtype = keras.backend.standardize_dtype(array.dtype)
        return jax.ShapeDtypeStruct(array.shape, dtype, sharding=sharding)

    def of_variable(variable):
        # A state of the optimizer has the path of its weight in its name, with underscores.
        weight = weights.get(variable.path.rsplit("/", 1)[-1], variable)
        return abstract(variable, *layout.get_variable_layout(weight).axes)

    weights = {}
    for variable in task.trainable_variables:
        name = variable.path.replace("/", "_")
        for state in ("momentum", "velocity"):
            weights[f"{name}_{state}"] = variable
    lists = (
        task.trainable_variables,
        task.non_trainable_variables,
        task.optimizer.variables,
        task.metrics_variables,
    )
    state = tuple([of_variable(variable) for variable in variables] for variables in lists)
    rows = ("batch", "fsdp") if fsdp > 1 else "batch"
    batch = batch_of(config, case["batch_size"], case["length"], case.get("target_length"))
    batch = jax.tree.map(lambda array: abstract(array, rows), batch)
    # The variables stay where they are. Metrics come to be in the first step.
    shardings = (*jax.tree.map(lambda array: array.sharding, state[:3]), None)
    step = jax.jit(task.train_step, donate_argnums=0, out_shardings=(None, shardings))
    with layout.scope():
        options = SPREAD_ON_CPU if spreads_weights() else {}
        if "lora_rank" in case:
            task.make_train_function()
            options = task.train_function.programs.compiler_options()
        return task, state, batch, step.lower(state, batch), options


def bytes_on_a_device(arrays):
    return sum(
        int(np.prod(array.sharding.shard_shape(array.shape))) * array.dtype.itemsize
        for array in jax.tree.leaves(arrays)
    )


def measure(task, state, batch, lowered, options):
    memory = lowered.compile(options).memory_analysis()
    trainable, frozen, optimizer, metrics = map(bytes_on_a_device, state)
    counters = sum(array.dtype.itemsize for array in state[2] if array.shape == ())
    output = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "parameters": task.backbone.count_params(),
        "weights": trainable,
        "frozen": frozen,
        "optimizer": optimizer - counters,
        "arguments": memory.argument_size_in_bytes,
        # Rows, random states, counters and metrics: all that is neither weight nor state of one.
        "others": bytes_on_a_device(batch) + frozen + metrics + counters,
        "total": memory.argument_size_in_bytes + memory.temp_size_in_bytes + output,
    }


if __name__ == "__main__":
    steps = [lowered_step(case) for case in json.loads(sys.argv[1])]
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        print(json.dumps(list(threads.map(measure, *zip(*steps, strict=True)))))
