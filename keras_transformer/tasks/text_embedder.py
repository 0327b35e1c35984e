"""Vectors of texts."""

import keras
from keras import ops

from keras_transformer.data import BucketedDataset
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.encoder import Encoder
from keras_transformer.tasks.task import Task, text_rows
from keras_transformer.tokenizers import Tokenizer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextEmbedder(Task):
    """An encoder whose states are pooled to one vector a text.

    Args:
        backbone: an encoder.
        tokenizer: `Tokenizer`, or None to take ids only.
        pooling: `"mean"` over the real tokens, or `"first"` for the state of the first.
        normalize: bool, vectors of length 1, whose dot product is the cosine.
        name: str.

    Call arguments:
        inputs: dict of `token_ids` and `padding_mask`, as for `Encoder`.

    Returns:
        Float `(batch, hidden_dim)`.

    Raises:
        ValueError: for an unknown pooling, or a backbone that is no encoder.

    Example:
    ```python
    import keras_transformer as kt

    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    cat, kitten, car = embedder.predict(["a cat", "a kitten", "a car"], verbose=0)
    assert cat @ kitten > cat @ car
    ```

    Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.
    """

    backbone_kinds = ("encoder",)

    def __init__(
        self,
        backbone: Encoder | Backbone,
        tokenizer: Tokenizer | None = None,
        pooling: str = "mean",
        normalize: bool = True,
        name: str | None = None,
    ):
        if pooling not in ("mean", "first"):
            raise ValueError(f"`pooling` must be 'mean' or 'first', received {pooling!r}.")
        super().__init__(backbone, tokenizer, name=name)
        self.pooling = pooling
        self.normalize = normalize
        self.built = True

    def call(self, inputs, training: bool = False):
        states = ops.cast(self.backbone(inputs, training=training), "float32")
        if self.pooling == "first":
            pooled = states[:, 0]
        else:
            weights = ops.ones(ops.shape(states)[:2], "float32")
            if inputs.get("padding_mask") is not None:
                weights = ops.cast(inputs["padding_mask"], "float32")
            total = ops.sum(states * weights[..., None], axis=1)
            pooled = total / ops.maximum(ops.sum(weights, axis=1, keepdims=True), 1.0)
        return ops.normalize(pooled, axis=-1) if self.normalize else pooled

    def make_dataset(
        self, x, y=None, sample_weight=None, shuffle: bool = False, seed: int = 0, **options
    ) -> BucketedDataset:
        """Texts as batches. See `Task.make_dataset`."""
        tokenizer = self._require_tokenizer()
        if y is not None or sample_weight is not None:
            raise ValueError("TextEmbedder has no labels: use `predict`.")
        max_length = options.pop("max_length", self.backbone.config.max_sequence_length)
        ids = tokenizer.encode_batch(text_rows(x), max_length=max_length)

        def make_batch(arrays, masks):
            batch = {"token_ids": arrays["token_ids"], "padding_mask": masks["token_ids"]}
            return (batch,)

        return BucketedDataset(
            {"token_ids": ids},
            make_batch,
            pad_values={"token_ids": tokenizer.pad_id or 0},
            shuffle=shuffle,
            seed=seed,
            **options,
        )

    def task_values(self) -> dict:
        return {"pooling": self.pooling, "normalize": self.normalize}
