"""Plans: the cost of a model on a number of devices, and its layout on them."""

import dataclasses
from collections.abc import Sequence

from keras_transformer.config import TransformerConfig
from keras_transformer.config.integer_dtype import IntegerDtype
from keras_transformer.config.structure import backbone, sides
from keras_transformer.planning.activations import Rows
from keras_transformer.planning.flops import (
    check_lengths,
    decoding_flops,
    flops_per_sequence,
    flops_per_token,
)
from keras_transformer.planning.memory import (
    DTYPES,
    OPTIMIZER_STATES,
    Memory,
    adapter_memory,
    count_parameters,
    dtypes,
    generation_memory,
    predicted_tokens,
    training_memory,
)
from keras_transformer.planning.meshes import fsdp_axes, model_axes, numbers_on_a_device
from keras_transformer.planning.table import table
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    describe,
)

_MOST = 2**31 - 1  # devices, or batch rows


@dataclasses.dataclass(frozen=True)
class Plan:
    """Cost and layout of one step of a model, made by `make_plan`. It prints as a table.

    The fields are the arguments of `make_plan`, and:
        parameters: int, number of parameters of the backbone.
        flops_per_token: float, operations for one training token; in generation, for the last token
            of a row.
        flops_per_step: int, operations on all devices, without rematerialization.
        data_parallel: int, copies of the model, each with a part of the batch.
        fsdp: int, devices that see different rows and share the weights of a copy.
        model_parallel: int, devices that share one copy.
        memory: `Memory` of one device.
        sent_bytes: int, bytes that a device sends to others in a step.
        rematerialize: bool, whether the activations fit only with rematerialization.
        compute_seconds: float, seconds of a step's matrix products; None if `flops` is not given.
        transfer_seconds: float, seconds of a step's transfers between devices; None if `bandwidth`
            is not given.
    """

    config: TransformerConfig
    devices: int
    batch_size: int
    length: int
    target_length: int | None
    dtype: str
    optimizer: str
    generating: bool
    lora_rank: int | None
    lora_targets: tuple[str, ...]
    parameters: int
    flops_per_token: float
    flops_per_step: int
    data_parallel: int
    fsdp: int
    model_parallel: int
    memory: Memory
    device_memory: int | None
    sent_bytes: int
    rematerialize: bool
    compute_seconds: float | None
    transfer_seconds: float | None

    @property
    def peak_memory(self) -> int:
        """Bytes of memory that a device needs."""
        return self.memory.peak(self.rematerialize)

    @property
    def fits(self) -> bool | None:
        """Whether the devices have enough memory; None if `device_memory` is not given."""
        return None if self.device_memory is None else self.peak_memory <= self.device_memory

    @property
    def step_seconds(self) -> float | None:
        """Seconds of a step, if transfers follow the products; None if `flops` is not given."""
        if self.compute_seconds is None:
            return None
        return self.compute_seconds + (self.transfer_seconds or 0.0)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a batch: target tokens for an encoder-decoder, one per row in generation."""
        if self.generating:
            return self.batch_size
        return self.batch_size * (self.target_length or self.length)

    def __str__(self):
        return table(self)


def make_plan(
    config: TransformerConfig,
    *,
    batch_size: int,
    length: int,
    target_length: int | None = None,
    devices: int = 1,
    dtype: str = "float32",
    optimizer: str = "adamw",
    generating: bool = False,
    lora_rank: int | None = None,
    lora_targets: Sequence[str] = ("query", "value"),
    model_parallel: int | None = None,
    fsdp: int | None = 1,
    device_memory: float | None = None,
    flops: float | None = None,
    bandwidth: float | None = None,
) -> Plan:
    """Plan the training or the generation of a model from its config alone, without building it.

    An encoder of tokens is planned as a masked language model that predicts 15 % of the tokens, an
    encoder of images without a head. The model axis is the shortest that fits into memory. If the
    activations do not fit, they are rematerialized.

    Args:
        config: `TransformerConfig`.
        batch_size: int, rows of a batch on all devices together.
        length: int, tokens (or other states, such as patches) in a row; for an encoder-decoder, of
            the encoder's input.
        target_length: int, target tokens in a row of an encoder-decoder. Defaults to `length`.
        devices: int, number of devices.
        dtype: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, `"bfloat16"` or `"float16"`; or
            of integer weights, `"int8"`, `"int4"`, `"int4/64"` or `"int4_from_bfloat16"`, which
            adapters can be trained beside.
        optimizer: `"adamw"`, `"adam"`, `"lion"`, `"rmsprop"` or `"sgd"`.
        generating: bool, whether to plan generation with a cache, of rows of `length` tokens,
            instead of training.
        lora_rank: int, plans the training of adapters of this rank instead of all weights.
        lora_targets: names of the dense layers that get adapters, see `Task.enable_lora`.
        model_parallel: int, size of the model axis. Defaults to the shortest that fits.
        fsdp: int, devices that see different rows and share the weights, gradients and optimizer.
            None chooses the smallest number that fits. Defaults to 1.
        device_memory: float, memory of a device in bytes. None plans without a limit.
        flops: float, operations per second that a device reaches in matrix products. None plans
            no time of computation.
        bandwidth: float, bytes per second that a device sends to other devices. None plans no
            time of transfers.

    Returns:
        `Plan`, which prints as a table.

    Raises:
        ValueError: if a name is unknown, a size is invalid, or an axis does not divide the batch or
            the heads.

    Example:
    ```python
    from keras_transformer import TransformerConfig
    from keras_transformer.planning import make_plan

    config = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=12_288, num_layers=96, num_heads=96,
        intermediate_dim=49_152, position="learned", max_sequence_length=2048,
    )
    plan = make_plan(
        config, batch_size=64, length=2048, devices=1024, dtype="mixed_bfloat16",
        device_memory=141e9,
    )
    assert plan.fits and (plan.data_parallel, plan.model_parallel) == (32, 32)
    ```

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters",
    sections 3 and 5.
    """
    return _planned(
        config, batch_size, length, target_length, devices, dtype, optimizer, generating,
        lora_rank, lora_targets, model_parallel, fsdp, device_memory, flops, bandwidth,
    )  # fmt: skip


def _planned(
    config, batch_size, length, target_length, devices, dtype, optimizer, generating,
    lora_rank, lora_targets, model_parallel, fsdp, device_memory, flops, bandwidth,
) -> Plan:  # fmt: skip
    batch_size = check_int("batch_size", batch_size, at_least=1, at_most=_MOST)
    devices = check_int("devices", devices, at_least=1, at_most=_MOST)
    model_parallel = check_int("model_parallel", model_parallel, 1, devices, none=True)
    fsdp = check_int("fsdp", fsdp, 1, devices, none=True)
    _check(config, dtype, optimizer, generating, device_memory, flops, bandwidth)
    targets = _check_adapters(config, dtype, generating, lora_rank, lora_targets)
    length, target = check_lengths(config, length, target_length)
    room = float("inf") if device_memory is None else device_memory
    found = {}
    models = model_axes(config, devices, batch_size, model_parallel)
    for model, shares in fsdp_axes(devices, models, fsdp):
        rows = Rows(
            batch_size * model // devices, batch_size, devices, length, target,
            predicted_tokens(config, target), dtypes(dtype)[1], model, shares,
        )  # fmt: skip
        if generating:
            found[rows] = generation_memory(config, rows, dtype)
        elif lora_rank is None:
            found[rows] = training_memory(config, rows, dtype, optimizer)
        else:
            found[rows] = adapter_memory(config, rows, dtype, optimizer, lora_rank, targets)
    # The shortest axis that fits, or else the one that needs the least memory.
    rows = min(found, key=lambda rows: max(found[rows].peak(rematerialize=True), room))
    memory = found[rows]
    rematerialize = not generating and memory.peak() > room
    per_token, per_step, done = _operations(config, rows, generating, rematerialize)
    if lora_rank is not None:
        # Forward, and gradients of states: the third part, gradients of kernels, is left out.
        per_token, done = per_token * 2 / 3, done - per_step // 3
        per_step -= per_step // 3
    sent = _bytes_sent(config, rows, memory, rematerialize, generating)
    return Plan(
        config, devices, batch_size, length, target if config.kind == "seq2seq" else None,
        dtype, optimizer, generating, lora_rank, targets,
        count_parameters(config), per_token, per_step,
        data_parallel=devices // rows.model_parallel // rows.fsdp,
        fsdp=rows.fsdp,
        model_parallel=rows.model_parallel,
        memory=memory,
        device_memory=None if device_memory is None else int(device_memory),
        sent_bytes=int(sent),
        rematerialize=rematerialize,
        compute_seconds=None if flops is None else done / devices / flops,
        transfer_seconds=None if bandwidth is None else sent / bandwidth,
    )  # fmt: skip


def _operations(
    config: TransformerConfig, rows: Rows, generating: bool, rematerialize: bool
) -> tuple[float, int, int]:
    """Return the operations of a token, of a step, and of a step with rematerialization."""
    if generating:
        per_token = float(decoding_flops(config, rows.source, rows.target))
        per_step = round(rows.batch * per_token)
        return per_token, per_step, per_step
    options = {"predicted_tokens": rows.predicted}
    if config.kind == "seq2seq":
        options["target_length"] = rows.target
    again, once = (
        rows.batch * flops_per_sequence(config, rows.source, rematerialized=each, **options)
        for each in (rematerialize, False)
    )
    return flops_per_token(config, rows.source, **options), once, again


def _bytes_sent(
    config: TransformerConfig, rows: Rows, memory: Memory, rematerialize: bool, generating: bool
) -> float:
    """Return the bytes that a device sends in a step.

    States are sent along the model axis, gradients along the data axis, weights and gradients along
    the fsdp axis. In a ring each device sends all parts but one of what is gathered, or summed and
    cut; what is summed for all devices is both.
    """
    numbers = 0  # numbers of the states of one row that are sent
    for side in sides(config)[-1:] if generating else sides(config):
        tokens = 1 if generating else side.lengths(rows.source, rows.target)[0]
        sublayers = 3 if side.source_dim else 2
        widths = (side.states(i, tokens) * side.side.width(i) for i in range(side.depth))
        numbers += sublayers * sum(widths)
    passes = 1 if generating else 3 if rematerialize else 2
    model, fsdp = rows.model_parallel, rows.fsdp
    copies = rows.devices // model // fsdp
    states = rows.count * numbers * rows.itemsize
    numbers, held = (numbers_on_a_device(backbone(config), model, parts) for parts in (1, fsdp))
    times = 1 if generating else 2  # gathered forward, and again backward
    # Adapters are few, and whole on each device.
    gradients = memory.gradients * (1 if memory.adapters else numbers / held)
    return (
        2 * (model - 1) / model * passes * states
        + 2 * (copies - 1) / copies * memory.gradients
        + (fsdp - 1) / fsdp * (times * numbers * rows.itemsize + gradients)
    )


def _check(config, dtype, optimizer, generating, device_memory, flops, bandwidth) -> None:
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    if IntegerDtype.parse(dtype) is None:
        check_choice("dtype", dtype, (*DTYPES, "int8", "int4"))
    check_choice("optimizer", optimizer, OPTIMIZER_STATES)
    check_bool("generating", generating)
    amounts = {"device_memory": device_memory, "flops": flops, "bandwidth": bandwidth}
    for name, value in amounts.items():
        check_number(name, value, above=0, none=True)
    if generating and config.kind == "encoder":
        raise ValueError("An encoder does not generate: plan its training.")


def _check_adapters(config, dtype, generating, rank, targets) -> tuple[str, ...]:
    """Return the targets of adapters, none without a rank."""
    integer = IntegerDtype.parse(dtype)
    if integer is not None:
        check_choice("dtype", integer.floats or "float32", DTYPES)
        if config.num_experts:
            raise ValueError("A model with experts is not quantized: plan it in 'bfloat16'.")
    check_int("lora_rank", rank, at_least=1, at_most=2**15, none=True)
    if rank is None:
        if integer is not None and not generating:
            raise ValueError(
                f"Weights in {dtype} do not learn: give `lora_rank`, the rank of adapters, or plan "
                "the training of floats."
            )
        return ()
    if generating:
        raise ValueError("`lora_rank` is for training: adapters are merged before generation.")
    known = {w.path.split("/")[-2] for w in backbone(config) if w.path.endswith("/kernel")}
    several = isinstance(targets, (list, tuple, set, frozenset)) and len(targets) > 0
    if not several or not all(target in known for target in targets):
        raise ValueError(
            f"`lora_targets` must be a list of dense layers, {', '.join(sorted(known))}; received "
            f"{describe(targets)}."
        )
    return tuple(sorted(targets))
