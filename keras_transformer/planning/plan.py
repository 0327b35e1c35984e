"""A plan: what a model takes on so many devices, and how it lies on them."""

import dataclasses

from keras_transformer.checking import check_bool, check_choice, check_int, check_number, describe
from keras_transformer.config import TransformerConfig
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
    count_parameters,
    generation_memory,
    predicted_tokens,
    training_memory,
)
from keras_transformer.planning.meshes import model_axes
from keras_transformer.planning.table import table
from keras_transformer.structure import sides

_MOST = 2**31 - 1  # Devices, or rows of a batch.


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a step of a model takes, by `make_plan`. It prints as a table.

    Fields are the arguments of `make_plan`, and:
        parameters: int, of the backbone.
        flops_per_token: float, of a token of training; of generating, for the last token of a row.
        flops_per_step: int, on all devices, without rematerialization.
        data_parallel: int, copies of the model, each with a part of the batch.
        model_parallel: int, devices that share a copy.
        memory: `Memory` of one device.
        rematerialize: bool, whether the activations fit only with rematerialization.
        compute_seconds: float, of a step's products, or None without FLOP/s.
        transfer_seconds: float, of what devices send each other, or None without bandwidth.
    """

    config: TransformerConfig
    devices: int
    batch_size: int
    length: int
    target_length: int | None
    dtype: str
    optimizer: str
    generating: bool
    parameters: int
    flops_per_token: float
    flops_per_step: int
    data_parallel: int
    model_parallel: int
    memory: Memory
    device_memory: int | None
    rematerialize: bool
    compute_seconds: float | None
    transfer_seconds: float | None

    @property
    def peak_memory(self) -> int:
        """Bytes that a device needs."""
        return self.memory.peak(self.rematerialize)

    @property
    def fits(self) -> bool | None:
        """Whether the devices have the memory; None if their memory is not given."""
        return None if self.device_memory is None else self.peak_memory <= self.device_memory

    @property
    def step_seconds(self) -> float | None:
        """The time of a step, its transfers after the products; None without FLOP/s."""
        if self.compute_seconds is None:
            return None
        return self.compute_seconds + (self.transfer_seconds or 0.0)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a batch; of an encoder-decoder those of the targets. Generating, the rows."""
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
    model_parallel: int | None = None,
    device_memory: float | None = None,
    flops: float | None = None,
    bandwidth: float | None = None,
) -> Plan:
    """Plans the training or the generation of a model, from its config alone; nothing is built.

    An encoder is planned as a masked language model that predicts 15 % of the tokens, one of images
    without a head. The model axis is the shortest that fits; what does not fit is rematerialized.

    Args:
        config: `TransformerConfig`.
        batch_size: int, rows of all devices together.
        length: int, tokens, or states, of a row; for an encoder-decoder those that its encoder
            reads.
        target_length: int, tokens of the target for an encoder-decoder. Defaults to `length`.
        devices: int.
        dtype: `"float32"`, `"mixed_bfloat16"`, `"mixed_float16"`, `"bfloat16"` or `"float16"`.
        optimizer: `"adamw"`, `"adam"`, `"lion"`, `"rmsprop"` or `"sgd"`.
        generating: bool, plan the generation of rows of `length` tokens with a cache.
        model_parallel: int, the model axis, in place of the shortest.
        device_memory: number of bytes that a device has.
        flops: operations a second that a device reaches in products of matrices.
        bandwidth: bytes a second that a device sends to others.

    Raises:
        ValueError: for unknown names or sizes, and axes that do not divide the batch or the heads.

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

    Source: Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU
    Clusters", sections 3 and 5.
    """
    return _planned(
        config, batch_size, length, target_length, devices, dtype, optimizer, generating,
        model_parallel, device_memory, flops, bandwidth,
    )  # fmt: skip


def _planned(
    config, batch_size, length, target_length, devices, dtype, optimizer, generating,
    model_parallel, device_memory, flops, bandwidth,
) -> Plan:  # fmt: skip
    batch_size = check_int("batch_size", batch_size, at_least=1, at_most=_MOST)
    devices = check_int("devices", devices, at_least=1, at_most=_MOST)
    model_parallel = check_int("model_parallel", model_parallel, 1, devices, none=True)
    _check(config, dtype, optimizer, generating, device_memory, flops, bandwidth)
    length, target = check_lengths(config, length, target_length)
    room = float("inf") if device_memory is None else device_memory
    found = {}
    for model in model_axes(config, devices, batch_size, model_parallel):
        rows = Rows(
            batch_size * model // devices, batch_size, devices, length, target,
            predicted_tokens(config, target), DTYPES[dtype][1], model,
        )  # fmt: skip
        held = (dtype,) if generating else (dtype, optimizer)
        found[rows] = (generation_memory if generating else training_memory)(config, rows, *held)
    # The shortest axis that fits; if none does, what comes nearest.
    rows = min(found, key=lambda rows: max(found[rows].peak(rematerialize=True), room))
    memory = found[rows]
    rematerialize = not generating and memory.peak() > room
    per_token, per_step, done = _operations(config, rows, generating, rematerialize)
    sent = _bytes_sent(config, rows, memory, rematerialize, generating)
    return Plan(
        config, devices, batch_size, length, target if config.kind == "seq2seq" else None,
        dtype, optimizer, generating, count_parameters(config), per_token, per_step,
        data_parallel=devices // rows.model_parallel,
        model_parallel=rows.model_parallel,
        memory=memory,
        device_memory=None if device_memory is None else int(device_memory),
        rematerialize=rematerialize,
        compute_seconds=None if flops is None else done / devices / flops,
        transfer_seconds=None if bandwidth is None else sent / bandwidth,
    )  # fmt: skip


def _operations(
    config: TransformerConfig, rows: Rows, generating: bool, rematerialize: bool
) -> tuple[float, int, int]:
    """Of a token, of a step, and of a step with what is computed again."""
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
    """Bytes that a device sends in a step: states along the model axis, gradients along data."""
    numbers = 0  # of a row
    for side in sides(config)[-1:] if generating else sides(config):
        tokens = 1 if generating else side.lengths(rows.source, rows.target)[0]
        sublayers = 3 if side.source_dim else 2
        numbers += side.depth * sublayers * tokens * side.config.hidden_dim
    passes = 1 if generating else 3 if rematerialize else 2
    model, data = rows.model_parallel, rows.devices // rows.model_parallel
    states = rows.count * numbers * rows.itemsize
    # Of what is summed in a ring, each device sends this share.
    return 2 * (model - 1) / model * passes * states + 2 * (data - 1) / data * memory.gradients


def _check(config, dtype, optimizer, generating, device_memory, flops, bandwidth) -> None:
    if not isinstance(config, TransformerConfig):
        raise ValueError(f"`config` must be a TransformerConfig, received {describe(config)}.")
    check_choice("dtype", dtype, DTYPES)
    check_choice("optimizer", optimizer, OPTIMIZER_STATES)
    check_bool("generating", generating)
    amounts = {"device_memory": device_memory, "flops": flops, "bandwidth": bandwidth}
    for name, value in amounts.items():
        check_number(name, value, above=0, none=True)
    if generating and config.kind == "encoder":
        raise ValueError("An encoder does not generate: plan its training.")
