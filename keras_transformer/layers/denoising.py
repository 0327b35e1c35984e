"""Queries of objects with noise, from which a decoder learns to find the objects."""

import keras
from keras import ops

from keras_transformer.config.box_decoder import BoxDecoder
from keras_transformer.kernels.dropout import random_shares
from keras_transformer.layers.mask_decoder import HeadLayer

# The class of places without an object, and of places that do not count.
NO_OBJECT, NO_QUERY = -1, -2
# Random numbers of a query: whether it has another class, which, and signs and sizes of distances.
_DRAWS = 2 + 4 + 4


def repeated(boxes, classes, count: int) -> tuple:
    """Repeat the objects of each image in groups, as many as `count` queries allow.

    A group has as many places as an image of the batch has objects at most. There is at least one
    group, except if the whole batch has no object.

    Args:
        boxes: float `(batch, objects, 4)`.
        classes: int `(batch, objects)`, the class of each box; below 0 for padding at any place.
        count: int, number of queries.

    Returns:
        Boxes `(batch, places, 4)`, where there are as many places as `count`, or as objects if
        these are more; their classes `(batch, places)`, `NO_OBJECT` for the places of a group
        behind the objects of an image, and `NO_QUERY` behind the last group; and int `(places,)`,
        the group of each place, -1 behind the last one.
    """
    real = classes >= 0
    counts = ops.sum(ops.cast(real, "int32"), axis=1)
    most = ops.max(counts)
    in_group = ops.maximum(most, 1)
    groups = ops.maximum(count // in_group, 1)
    places = ops.arange(max(count, classes.shape[1] or 0), dtype="int32")
    kept = ops.logical_and(places // in_group < groups, most > 0)
    numbers = ops.cumsum(ops.cast(real, "int32"), axis=1) - 1
    chosen = ops.equal(numbers[:, None], (places % in_group)[None, :, None])
    chosen = ops.logical_and(chosen, ops.logical_and(real[:, None], kept[None, :, None]))
    boxes = ops.sum(ops.where(chosen[..., None], boxes[:, None], 0), axis=2)
    classes = ops.sum(ops.where(chosen, classes[:, None] - NO_OBJECT, 0), axis=2) + NO_OBJECT
    return boxes, ops.where(kept, classes, NO_QUERY), ops.where(kept, places // in_group, -1)


class NoisyObjects(HeadLayer):
    """Make queries of objects: two of each, whose boxes are moved less and more than by half.

    The first ones are to find the object, the second ones nothing. Both have the vector of a class,
    for some of them a random one.

    Args:
        values: `BoxDecoder`, with the number of queries and the strength of the noise.
        classes: int, number of classes.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        boxes: float `(batch, objects, 4)`, center x, center y, width and height as shares of the
            image.
        classes: int `(batch, objects)`, below 0 for padding.
        others: int, the number of queries that are not of this layer.

    Returns:
        States `(batch, 2 * places, width)`, see `repeated`; float32 boxes of them, within the
        image; and bool `(1, others + 2 * places, others + 2 * places)`, which queries see which:
        other queries see only each other; these see the others and their own group.

    Source: Zhang et al. 2022, "DINO: DETR with Improved DeNoising Anchor Boxes for End-to-End
    Object Detection", section 3.3.
    """

    def __init__(self, values: BoxDecoder, classes: int, seed: int | None = None, **kwargs):
        super().__init__(autocast=False, **kwargs)  # boxes stay float32
        self.values, self.classes = values, classes
        self.seed_generator = keras.random.SeedGenerator(seed)

    def build(self, *shapes, **named):
        # The last row stands for places without an object, and does not learn.
        shape = (self.classes + 1, self.values.width)
        self.embeddings = self.add_weight(shape, "glorot_uniform", name="embeddings")
        self.built = True

    def load_own_variables(self, store):
        if len(store.keys()):  # files that were saved before have none
            super().load_own_variables(store)

    def noise(self, shape):
        """Return random numbers from 0 to 1 of this shape."""
        return random_shares(shape, self.seed_generator.next())

    def call(self, boxes, classes, others: int):
        values = self.values
        boxes, classes, groups = repeated(boxes, classes, values.num_denoising)
        boxes, classes = (ops.concatenate([x, x], axis=1) for x in (boxes, classes))
        groups = ops.concatenate([groups, groups], axis=0)
        second = ops.arange(2, dtype="float32")
        second = ops.repeat(second, groups.shape[0] // 2)[:, None]
        noise = self.noise((*ops.shape(classes), _DRAWS))

        changed = ops.logical_and(noise[..., 0] < values.label_noise_ratio / 2, classes >= 0)
        drawn = ops.cast(noise[..., 1] * self.classes, "int32")
        classes = ops.where(classes >= 0, classes, self.classes)
        table = ops.convert_to_tensor(self.embeddings)
        table = ops.concatenate([table[:-1], ops.stop_gradient(table[-1:])], axis=0)
        states = ops.take(table, ops.where(changed, drawn, classes), axis=0)
        states = ops.cast(states, self.compute_dtype)

        signs = ops.where(noise[..., 2:6] < 0.5, -1.0, 1.0)
        moved = signs * (noise[..., 6:] + second)
        halves = ops.cast(boxes[..., 2:], "float32") / 2
        centers = ops.cast(boxes[..., :2], "float32")
        scaled = halves * values.box_noise_scale
        low = ops.clip(centers - halves + moved[..., :2] * scaled, 0, 1)
        high = ops.clip(centers + halves + moved[..., 2:] * scaled, 0, 1)
        boxes = ops.concatenate([(low + high) / 2, high - low], axis=-1)

        own = ops.equal(groups[:, None], groups[None])
        seen = ops.concatenate(
            [
                ops.ones((others + groups.shape[0], others), "bool"),
                ops.concatenate([ops.zeros((others, groups.shape[0]), "bool"), own], axis=0),
            ],
            axis=1,
        )
        return states, boxes, seen[None]

    def compute_output_spec(self, boxes, classes, others: int):
        batch = boxes.shape[0]
        count = 2 * max(self.values.num_denoising, classes.shape[1] or 0)
        return (
            keras.KerasTensor((batch, count, self.values.width), self.compute_dtype),
            keras.KerasTensor((batch, count, 4), "float32"),
            keras.KerasTensor((1, others + count, others + count), "bool"),
        )
