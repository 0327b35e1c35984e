"""Text embedding: one vector a text."""

from typing import Any

import keras
from keras import ops

from keras_transformer.checking import check_bool, check_choice, check_int
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.tasks.pooling import POOLINGS, pool
from keras_transformer.tasks.task import Task
from keras_transformer.tasks.text import take_max_length, text_rows, token_batches, tokenizer_of
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextEmbedder(Task):
    """An encoder or a decoder whose states are pooled to one vector a text.

    Args:
        backbone, tokenizer, name: as for `Task`.
        pooling: over the real tokens `"mean"`, `"max"` (of each feature) or `"mean_sqrt_len"`
            (their sum, divided by the square root of their number); or the state of the
            `"first"` or the `"last"` of them.
        normalize: bool, vectors of length 1, whose dot product is the cosine.
        max_length: int, longer texts are cut to this many tokens. Defaults to the model's
            `max_sequence_length`, and may not be above it.

    Call arguments:
        inputs: dict of `token_ids` and `padding_mask`, as for `Encoder`.

    Returns:
        Float `(batch, hidden_dim)`.

    Raises:
        ValueError: for an unknown pooling, a `max_length` that the model does not have, or a
            seq2seq backbone.

    Example:
    ```python
    import keras_transformer as kt

    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    cat, kitten, car = embedder.predict(["a cat", "a kitten", "a car"], verbose=0)
    assert cat @ kitten > cat @ car
    ```

    Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.
    """

    backbone_kinds = ("encoder", "decoder")
    alias = "text_embedding"
    task_options = ("pooling", "normalize", "max_length")
    takes_records = False

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        pooling: str = "mean",
        normalize: bool = True,
        max_length: int | None = None,
        name: str | None = None,
    ):
        super().__init__(backbone, tokenizer, name=name)
        limit = backbone.config.max_sequence_length
        max_length = check_int(
            "max_length", max_length, at_least=1, at_most=limit, none=True,
            hint="The model's `max_sequence_length` is the longest.",
        )  # fmt: skip
        self.pooling = check_choice("pooling", pooling, POOLINGS)
        self.first_only = self.pooling == "first" and backbone.config.kind == "encoder"
        self.normalize = check_bool("normalize", normalize)
        self.max_length = max_length
        self.built = True

    def head_outputs(self, states, inputs, training: bool):
        vectors = pool(ops.cast(states, "float32"), inputs.get("padding_mask"), self.pooling)
        return ops.normalize(vectors, axis=-1) if self.normalize else vectors

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Texts as batches. See `Task.make_dataset`."""
        tokenizer = tokenizer_of(self)
        if y is not None or sample_weight is not None:
            raise ValueError("TextEmbedder has no labels: use `predict`.")
        max_length = take_max_length(self, options, default=self.max_length)
        ids = tokenizer.encode_batch(text_rows(x), max_length=max_length)
        return token_batches(self, {"token_ids": ids}, **options)

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {"pooling": values.get("pooling", "mean")}
