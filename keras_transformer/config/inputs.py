"""Inputs of a side: token ids, or a stem that reads other arrays."""

from typing import ClassVar

from keras_transformer.config.options import Part, option, part
from keras_transformer.config.weight import Weight, weight_of
from keras_transformer.support.checking import describe

__all__ = ["ImageStemConfig", "StemConfig", "Tokens"]


@part
class StemConfig(Part):
    """Base class of inputs: values of the layer that turns arrays into states."""

    # Whether the states are a set, which a decoder reads without an order (DETR).
    is_set: ClassVar[bool] = False
    # Whether the stem is a whole network, behind which a side needs no blocks (MobileNetV5).
    is_whole: ClassVar[bool] = False

    def check_width(self, width: int) -> None:
        """Raise ValueError if the stem cannot make states of this width."""

    @property
    def attention_positions(self) -> bool:
        """Whether the states have positions that each attention adds to its queries and keys."""
        return False

    @property
    def num_states(self) -> int | None:
        """Number of states for one input of the usual size. None if it depends on the input."""
        return None

    @property
    def num_positions(self) -> int | None:
        """Number of states that have a position, if learned ones are added. None as above."""
        return self.num_states

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Weights of the layers, with axes named after the side's sizes or `sizes`."""
        return ()

    def sizes(self, width: int) -> dict[str, int]:
        """Sizes of the weight axes that the side does not define, by name."""
        return {}

    @property
    def products(self) -> dict[str, int]:
        """Number of times that each kernel is applied to one input of the usual size, by path."""
        return {}

    @property
    def pair_products(self) -> int:
        """Number of products of two numbers of one input, such as of queries and keys."""
        return 0

    @property
    def kept_numbers(self) -> int:
        """Number of numbers of one input that training keeps for gradients, beside the states."""
        return 0


@part
class Tokens(StemConfig, kind="tokens"):
    """`layers.stems.TokenStem`: the embeddings of token ids, and of segments if there are any."""

    vocabulary_size: int = option(
        "number of token ids, 0 for a model of other inputs.", of="side", least=0
    )
    segments: int = option(
        "number of token types. 0 omits the segment embedding.", 0, of="side", least=0
    )
    segment_use: str = option(
        'what token types are for: their embeddings are `"added"` to those of the tokens, or they '
        'are `"compared"` by `RelativeSinusoids` (XLNet).',
        "added",
        choices=("added", "compared"),
    )
    dropped_id: int | None = option(
        "id of a token without an embedding, the mask: its embedding is zero, and the other "
        "embeddings of a text are multiplied by 0.88 over the share of tokens that are kept, as in "
        "dropout, since 12% of the tokens are masks in training (ESM-2). For encoders. None "
        "disables it.",
        None,
        of="side",
        least=0,
    )
    replaced_id: int | None = option(
        "id of a token whose embedding is a trained vector beside the table, without `scale`; the "
        "logits use its row of the table (T5Gemma 2's end of an image). None disables it.",
        None,
        least=0,
    )
    class_token: bool = option(
        "a trained state behind the tokens of each text, which sees all of them and has no "
        "position: the side's vector is its state (CoCa, VideoPrism). For texts whose vector has "
        'the pooling `"last"`.',
        False,
    )
    scale: float | str = option(
        'factor of the token embedding. `"sqrt"` is the root of its width.',
        1.0,
        of="model",
        positive=True,
        choices=("sqrt",),
    )

    def check(self):
        if self.dropped_id is not None and self.dropped_id >= self.vocabulary_size:
            raise ValueError(
                "`dropped_token_id` must be below `vocabulary_size`, received "
                f"{self.dropped_id} and {self.vocabulary_size}."
            )

    def factor(self, width: int) -> float:
        """Return the factor of embeddings of this width."""
        return width**0.5 if self.scale == "sqrt" else self.scale

    @property
    def has_segment_embedding(self) -> bool:
        """Whether embeddings of token types are added."""
        return bool(self.segments) and self.segment_use == "added"

    @property
    def weights(self):
        table = weight_of("segment_embedding/embeddings", "segments", "embedded")
        token = weight_of("input_class_token", "embedded") if self.class_token else ()
        return (table if self.has_segment_embedding else ()) + token

    def sizes(self, width: int):
        return {"segments": self.segments}


@part
class ImageStemConfig(StemConfig):
    """Values common to all image stems."""

    image_size: tuple | list = option(
        "height and width of the images that positions are defined for; positions are "
        "interpolated for other sizes.",
        (224, 224),
    )
    num_channels: int = option("number of channels of an image.", 3, least=1, most=1024)

    def check(self):
        check_size("image_size", self.image_size)

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of states for an image."""
        raise NotImplementedError


def check_size(name: str, sizes) -> None:
    """Raise ValueError if a value of a stem is not a height and a width."""
    if len(sizes) != 2 or not all(type(n) is int and 1 <= n <= 2**15 for n in sizes):
        raise ValueError(
            f"`{name}` of a stem must be two integers from 1 to 32,768, height and width, received "
            f"{describe(sizes)}."
        )
