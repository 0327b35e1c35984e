"""One call that arranges the devices for the models that are made after it."""

import dataclasses
import math
from typing import Any

import keras

from keras_transformer.config import TransformerConfig
from keras_transformer.distribution.engines import ENGINE
from keras_transformer.distribution.layout import ModelParallel, device_mesh
from keras_transformer.distribution.processes import (
    check_processes,
    process_count,
    process_index,
)
from keras_transformer.distribution.replicas import use_mesh
from keras_transformer.kernels.device import device
from keras_transformer.planning.plan import Plan, make_plan
from keras_transformer.support.checking import check_int, describe


@dataclasses.dataclass(frozen=True)
class DeviceSetup:
    """The arrangement of devices that `setup` makes.

    Fields:
        mesh: `keras.distribution.DeviceMesh` on JAX, `torch.distributed.device_mesh.DeviceMesh`
            on PyTorch. One process on PyTorch has none.
        data: int, groups of devices with a copy of the weights each, which see different rows.
        fsdp: int, devices that see different rows and share the weights of a copy.
        model: int, devices that share the computation of each layer.
        sequence: int, devices that share the tokens of each row.
        process_index: int, number of this process, from 0.
        process_count: int, number of processes.
        plan: `planning.Plan` of the model, or None if `setup` was given no config. On a `sequence`
            axis it is that of a device's part of the tokens.
    """

    mesh: Any
    data: int
    fsdp: int
    model: int
    sequence: int
    process_index: int
    process_count: int
    plan: Plan | None

    def __str__(self):
        sizes = {"data": self.data, "fsdp": self.fsdp}
        sizes |= {"sequence": self.sequence, "model": self.model}
        axes = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return f"{axes}\n{self.plan}" if self.plan else axes


def setup(
    config: TransformerConfig | None = None,
    *,
    data: int | None = None,
    fsdp: int | None = None,
    model: int | None = None,
    sequence: int | None = None,
    batch_size: int | None = None,
    length: int | None = None,
    device_memory: float | None = None,
    **options: Any,
) -> DeviceSetup:
    """Arrange the devices for training, before a model is made, and print the arrangement.

    On JAX the devices are those of all processes, after `keras.distribution.initialize` if there
    are several. On PyTorch each process has one device: start the script with `torchrun`, or
    initialize a process group before the call. Models that are trained afterwards have their
    batches, weights, gradients and optimizer states laid out by the arrangement; read data with
    `shard_of`.

    Without sizes, `planning.make_plan` chooses `data`, `fsdp` and `model` for the config: copies
    of the model if they fit into the memory, else the smallest `fsdp` that fits, else on JAX
    `model`. Without a config, all devices share the weights (`fsdp`).

    Args:
        config: `TransformerConfig` of the model, to print what a device holds, and to choose sizes.
        data: int, groups of devices with a copy of the weights each. Defaults to what the other
            sizes leave, if one of them is given.
        fsdp: int, devices that see different rows and share weights, gradients and optimizer.
        model: int, devices that share the computation of each layer.
        sequence: int, devices that share the tokens of each row.
        batch_size: int, rows of a batch on all devices, for the plan. Defaults to a row for each
            device.
        length: int, tokens of a row, for the plan. Defaults to the longest of the model.
        device_memory: float, bytes of a device, for the plan. Defaults to what the device has, if
            that is known.
        **options: further options of `planning.make_plan`, such as `dtype` and `optimizer`.

    Returns:
        `DeviceSetup`.

    Raises:
        ValueError: if the backend is TensorFlow, a size is below 1, the sizes need more devices
            than there are, or on PyTorch other than the number of processes, an axis does not
            divide the heads or the batch, the processes cannot share a layer of the config, or
            they have other sizes or packages.

    Example:
    ```python
    import keras_transformer as kt
    import keras

    if keras.config.backend() == "torch":
        found = kt.distribution.setup()  # under torchrun: all processes
        assert (found.fsdp, found.process_index, found.process_count) == (1, 0, 1)
    ```

    Source: Rajbhandari et al. 2020, "ZeRO"; Shoeybi et al. 2019, "Megatron-LM".
    """
    if not ENGINE.axes:
        raise ValueError(
            "`setup` is for JAX and PyTorch. On TensorFlow make the model in the scope of a "
            "tf.distribute.MirroredStrategy."
        )
    if not isinstance(config, TransformerConfig | None):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    sizes = {"data": data, "fsdp": fsdp, "model": model, "sequence": sequence}
    for name, size in sizes.items():
        check_int(name, size, at_least=1, none=True)
    check_int("length", length, at_least=1, none=True)
    if config is None and (batch_size, length, device_memory, options) != (None, None, None, {}):
        raise ValueError("A plan needs the model: give `config`, a TransformerConfig.")
    ENGINE.connect()
    index, count, devices = process_index(), process_count(), ENGINE.device_count()
    chosen = {name: size for name, size in sizes.items() if size is not None}
    beside = max(fsdp or 1, sequence or 1)
    if not ENGINE.is_one_program and min(model or 1, beside) > 1:
        raise ValueError(
            "On PyTorch processes share the work of each layer (`model`), or the weights (`fsdp`) "
            f"and the tokens (`sequence`): received fsdp={fsdp}, model={model}, "
            f"sequence={sequence}."
        )
    if chosen:
        others = math.prod(size for name, size in chosen.items() if name != "data")
        chosen.setdefault("data", max(1, devices // others))
    elif config is None:
        chosen = {"data": 1, "fsdp": devices}
    plan = None
    if config is not None:
        plan = _plan(config, chosen, devices, batch_size, length, device_memory, options)
        if not chosen:
            chosen = {"data": plan.data_parallel, "fsdp": plan.fsdp, "model": plan.model_parallel}
    sizes = {name: chosen.get(name, 1) for name in sizes}
    if count > 1:
        check_processes(sizes=sizes)
    mesh = _install(sizes, devices)
    made = DeviceSetup(mesh, **sizes, process_index=index, process_count=count, plan=plan)
    if index == 0:
        print(made)
    return made


def _plan(config, chosen, devices, batch_size, length, device_memory, options) -> Plan:
    if chosen:
        sizes = [chosen.get(name, 1) for name in ("data", "fsdp", "model")]
        devices = math.prod(sizes)
        options = {"fsdp": sizes[1], "model_parallel": sizes[2], **options}
    elif not ENGINE.is_one_program:  # where `fsdp` and `model` exclude each other
        options = {"model_parallel": 1, **options}
    length = config.max_sequence_length if length is None else length
    return make_plan(
        config,
        devices=devices,
        batch_size=devices if batch_size is None else batch_size,
        length=-(-length // chosen.get("sequence", 1)),  # the weights are whole on that axis
        device_memory=device().memory if device_memory is None else device_memory,
        **{"fsdp": None, **options},
    )


def _install(sizes: dict[str, int], devices: int) -> Any:
    data, model, fsdp, sequence = (sizes[n] for n in ("data", "model", "fsdp", "sequence"))
    if ENGINE.is_one_program:
        mesh = device_mesh(data, model, fsdp=fsdp, sequence=sequence)
        keras.distribution.set_distribution(ModelParallel(mesh))
        return mesh
    if math.prod(sizes.values()) != devices:
        asked = " times ".join(f"{name}={size}" for name, size in sizes.items())
        raise ValueError(
            f"{asked} must be the number of processes, {devices}. Start as many as that with "
            "torchrun, or choose other sizes."
        )
    return use_mesh(**sizes) if devices > 1 else None
