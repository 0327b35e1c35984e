"""Attention over one axis of a video: in space, or in time."""

from keras import ops

from keras_transformer import config
from keras_transformer.layers.attention.sparse import AttentionPattern


class VideoAxisPattern(AttentionPattern):
    """Tubes of the same frames, or of the same place, see each other, see `config.VideoAxis`.

    Source: Arnab et al. 2021, "ViViT: A Video Vision Transformer", section 3.3.
    """

    part: config.VideoAxis

    def attend(self, attention, attend, states, projected, visibility, bias, **options):
        limits = ("padding", "query_pack", "explicit", "prefix")
        given = [name for name in limits if getattr(visibility, name) is not None]
        if given or bias is not None or not options["may_cut"]:
            raise ValueError(
                "Attention over one axis of a video takes whole videos, and returns no weights: "
                "call it without masks, a bias, a cache and `return_attention_scores`."
            )
        steps, *places = options["grid"]
        count, length = places[0] * places[1], states.shape[1]
        if isinstance(length, int) and length != steps * count:
            raise ValueError(
                f"A video of {steps} x {places[0]} x {places[1]} tubes has {steps * count:,} "
                f"states, received {length:,}."
            )
        cut = [self._cut(x, steps, count) for x in projected]
        attended, _ = attend(*cut, visibility._replace(pattern=None), None)
        return self._joined(attended, steps, count), None

    def _cut(self, x, steps: int, count: int):
        """Cut `(batch, steps * count, heads, head_dim)` into the sequences of the axis."""
        heads = x.shape[2:]
        if self.part.over == "space":
            return ops.reshape(x, (-1, count, *heads))
        x = ops.transpose(ops.reshape(x, (-1, steps, count, *heads)), (0, 2, 1, 3, 4))
        return ops.reshape(x, (-1, steps, *heads))

    def _joined(self, x, steps: int, count: int):
        """Join the sequences to the states of a video: the reverse of `_cut`."""
        heads = x.shape[2:]
        if self.part.over == "time":
            x = ops.reshape(x, (-1, count, steps, *heads))
            x = ops.transpose(x, (0, 2, 1, 3, 4))
        return ops.reshape(x, (-1, steps * count, *heads))
