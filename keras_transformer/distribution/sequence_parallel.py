"""Training on PyTorch in which each process has a part of the tokens of each row.

A process computes its tokens as if they were rows of its own, with the weights, the loss and the
gradients of data parallel training. Only where tokens attend to each other, the processes exchange
tokens for heads and back, so that each attends over whole rows with some of the heads.

Source: Jacobs et al. 2023, "DeepSpeed Ulysses".
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import torch
from torch import distributed

from keras_transformer.config import Attention, TransformerConfig
from keras_transformer.distribution.layout import EXCHANGES
from keras_transformer.distribution.tensor_parallel import Mapped, check_plain

_OF_TOKENS = ("token_ids", "padding_mask", "position_ids", "pack_ids", "segment_ids")


class TokenExchange:
    """The processes that share the tokens of each row.

    Args:
        mesh: `torch.distributed.device_mesh.DeviceMesh` of one axis.
    """

    def __init__(self, mesh: Any):
        self._group, self.index, self.count = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._padding = self._packs = None

    def over_heads(self, *projections) -> tuple:
        """Exchange tokens for heads, of `(batch, length, heads, head_dim)`."""
        return tuple(Mapped.apply(x, self.to_heads, self.to_tokens) for x in projections)

    def over_tokens(self, attended):
        """Exchange heads for tokens again, after `over_heads`."""
        return Mapped.apply(attended, self.to_tokens, self.to_heads)

    def of_whole_rows(self, visibility):
        """Return an `AttentionMask` of this process's tokens as that of whole rows."""
        return visibility._replace(padding=self._padding, query_pack=self._packs)

    def to_heads(self, states):
        """Return all tokens of this process's heads, without a gradient."""
        batch, length, heads, width = states.shape
        parts = states.reshape(batch, length, self.count, heads // self.count, width)
        parts = self._sent(parts.movedim(2, 0))  # by whose tokens they are
        return parts.movedim(0, 1).reshape(batch, -1, heads // self.count, width)

    def to_tokens(self, states):
        """Return all heads of this process's tokens, without a gradient."""
        batch, length, heads, width = states.shape
        parts = states.reshape(batch, self.count, length // self.count, heads, width)
        parts = self._sent(parts.movedim(1, 0))  # by whose heads they are
        return parts.movedim(0, 2).reshape(batch, length // self.count, -1, width)

    def _sent(self, parts):
        """Send each process its part, `(processes, ...)`, and return what they sent."""
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        distributed.all_to_all_single(received, parts, group=self._group)
        return received

    @contextlib.contextmanager
    def sharing(self, x: dict, y: Any, weights: Any) -> Iterator[tuple]:
        """Yield this process's tokens of a batch, and exchange them within the scope.

        Args:
            x: dict of the model's inputs, `(batch, length)`.
            y: int `(batch, length)`, a target for each token.
            weights: float `(batch, length)`, or None.

        Raises:
            ValueError: if an input or the targets are not of tokens.
        """
        length = np.shape(x["token_ids"])[1]
        for name, array in {**x, "the targets": y, "the weights of the targets": weights}.items():
            known = name in _OF_TOKENS or name.startswith("the ")
            if array is not None and not (known and np.shape(array)[1:2] == (length,)):
                raise ValueError(
                    "Processes that share the tokens of each row (`sequence`) train on tokens with "
                    f"a target each: they do not divide {name} of shape {tuple(np.shape(array))}."
                )
        missing = -length % self.count
        x = {name: _padded(array, missing) for name, array in x.items()}
        y, rows = _padded(y, missing), np.shape(y)[0]
        if weights is None:
            weights = keras.ops.ones((rows, length), "float32")
        weights, length = _padded(weights, missing), length + missing
        if missing and x.get("padding_mask") is None:
            x["padding_mask"] = keras.ops.broadcast_to(
                keras.ops.arange(length) < length - missing, (rows, length)
            )
        if x.get("position_ids") is None:
            places = keras.ops.arange(length, dtype="int32")
            x["position_ids"] = keras.ops.broadcast_to(places, (rows, length))
        masks = (x.get("padding_mask"), x.get("pack_ids"))
        self._padding, self._packs = (
            None if mask is None else keras.ops.convert_to_tensor(mask) for mask in masks
        )
        size = length // self.count
        own = slice(self.index * size, (self.index + 1) * size)
        EXCHANGES.append(self)
        try:
            yield keras.tree.map_structure(lambda array: array[:, own], (x, y, weights))
        finally:
            EXCHANGES.remove(self)


def _padded(array: Any, missing: int):
    """Return a tensor whose rows have further tokens, which are zeros."""
    tensor = keras.ops.convert_to_tensor(array)
    return keras.ops.pad(tensor, ((0, 0), (0, missing))) if missing else tensor


def check_divides_tokens(model: keras.Model, count: int) -> None:
    """Raise ValueError unless `count` processes can share the tokens of rows of a model."""
    if not getattr(getattr(model, "head", None), "learns_tokens", False):
        raise ValueError(
            "Processes that share the tokens of each row (`sequence`) train tasks with a target "
            f"for each token, such as a CausalLM, and not a {type(model).__name__}."
        )
    for layer in model._flatten_layers():
        config, attention = (getattr(layer, name, None) for name in ("config", "attention"))
        if isinstance(config, TransformerConfig):
            check_plain(config, "share the tokens of rows (`sequence`)")
        if getattr(layer, "expert_capacity_factor", None) is not None:
            raise ValueError(
                "Processes that share the tokens of each row (`sequence`) do not count the tokens "
                "of an expert: set expert_capacity_factor=None."
            )
        if not isinstance(attention, Attention):
            continue
        heads = (attention.num_heads, attention.num_key_value_heads)
        if any(number % count for number in heads):
            raise ValueError(
                f"sequence={count} does not divide the heads of the model: num_heads={heads[0]}, "
                f"num_key_value_heads={heads[1]}."
            )
        if attention.sinks or getattr(layer.rotary_embedding, "by_length", False):
            what = "attention sinks" if attention.sinks else "a rotation that depends on the length"
            raise ValueError(f"Processes do not share the tokens of each row with {what}.")
