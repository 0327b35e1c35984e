"""Config of the object queries that a decoder reads."""

from typing import ClassVar

from keras_transformer.config.inputs import StemConfig
from keras_transformer.config.options import option, part
from keras_transformer.config.weight import weight_of

__all__ = ["QueryStemConfig"]


@part
class QueryStemConfig(StemConfig, kind="queries"):
    """`layers.stems.QueryStem`: states of zeros, each with a trained position (DETR).

    They are the input of a decoder that finds objects in the states of an encoder: a set, whose
    states all see each other.
    """

    attention_positions: ClassVar[bool] = True
    is_set: ClassVar[bool] = True

    num_queries: int = option(
        "number of object queries, each of which may find an object.", 100, least=1, most=2**15
    )

    @property
    def num_states(self):
        return self.num_queries

    @property
    def weights(self):
        return weight_of("input_queries", "num_queries", "embedding_dim")

    def sizes(self, width):
        return {"num_queries": self.num_queries}
