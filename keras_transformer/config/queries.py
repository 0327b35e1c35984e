"""Config of trained queries, which read the states of another side."""

from typing import ClassVar

from keras_transformer.config.inputs import StemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import weight_of

__all__ = ["QueryStemConfig"]


@part
class QueryStemConfig(StemConfig, kind="queries"):
    """`layers.stems.QueryStem`: states that belong to the model, or their positions.

    They are the input of a decoder that finds objects in the states of an encoder (DETR), or of the
    `queries` that summarize an image in a few states (BLIP-2). They are a set: all see each other.
    """

    is_set: ClassVar[bool] = True

    num_queries: int = option(
        "number of queries, each of which may find an object.", 100, least=1, most=2**15
    )
    trained: str = option(
        'what each query trains: its `"position"`, which every attention adds to a state that '
        'begins as zeros (DETR), or its `"state"` (BLIP-2).',
        "position",
        choices=("position", "state"),
    )

    @property
    def attention_positions(self):
        return self.trained == "position"

    @property
    def num_states(self):
        return self.num_queries

    @property
    def weights(self):
        return weight_of("input_queries", "num_queries", "embedding_dim")

    def sizes(self, width):
        return {"num_queries": self.num_queries}
