"""Masked language models: pretraining and mask filling."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.config.structure import OUTPUT_BIAS, OWN_OUTPUT, hidden_of_head, shapes_of
from keras_transformer.data import BucketedDataset
from keras_transformer.layers.embedding import VocabularyBias
from keras_transformer.layers.remat import no_inner_remat
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_number,
    shorten,
)
from keras_transformer.support.columns import text_alone
from keras_transformer.tasks.base.head import PER_TOKEN, HiddenLayer, softmax
from keras_transformer.tasks.base.pooling import states_at
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import token_weights, weighed
from keras_transformer.tasks.data.text import (
    character_spans,
    encode_rows,
    segmented_rows,
    take_max_length,
    text_columns,
    text_rows,
    token_batches,
    token_columns,
    tokenizer_of,
)
from keras_transformer.tasks.heads.vocabulary_head import VocabularyHead
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import (
    FineTuningAdamW,
    MaskedTokens,
)
from keras_transformer.training.objectives import generator_of, require_mask_id


class Filling(NamedTuple):
    """A token that can replace a mask, its probability, and the `text` with the mask replaced."""

    token: str
    token_id: int
    score: float
    text: str


_WIDEST = 2**20  # A wider output matrix would be a mistake, and exhaust memory.
PROJECTIONS = ("transformed", "linear")


class MaskedTokenHead(VocabularyHead):
    """The head of `MaskedLM`: a hidden layer and logits with a vocabulary bias, or logits alone.

    Args:
        task: as for `Head`.
        hidden_activation, normalization_epsilon, hidden_bias, block_norm, projection, output_dim:
            as for `MaskedLM`.
    """

    options = (
        "hidden_activation", "normalization_epsilon", "hidden_bias", "block_norm", "projection",
        "output_dim",
    )  # fmt: skip
    published_as = ("ForMaskedLM",)
    further_inputs = ("mask_positions",)
    predict_options: ClassVar = {**PER_TOKEN, "masked": False}

    def __init__(
        self,
        task,
        hidden_activation: str | None,
        normalization_epsilon: float | None,
        hidden_bias: bool,
        block_norm: bool,
        projection: str = "transformed",
        output_dim: int | None = None,
    ):
        super().__init__(task)
        config = task.backbone.config
        self.projection = check_choice("projection", projection, PROJECTIONS)
        self.normalization_epsilon = check_number(
            "normalization_epsilon", normalization_epsilon, above=0, none=True
        )
        self.hidden_activation = hidden_activation
        self.hidden_bias = check_bool("hidden_bias", hidden_bias)
        self.block_norm = check_bool("block_norm", block_norm)
        self.output_dim = check_int("output_dim", output_dim, 1, _WIDEST, none=True)
        values = {name: getattr(self, name) for name in self.options}
        self.hidden = self.output_bias = self.output_dense = None
        if self.projection == "linear":
            given = hidden_activation is not None or normalization_epsilon is not None
            if given or block_norm or not hidden_bias or output_dim is not None:
                raise ValueError(
                    "`hidden_activation`, `normalization_epsilon`, `hidden_bias`, `block_norm` and "
                    "`output_dim` are for projection='transformed', received projection='linear'."
                )
            self.keep(output_bias=None, output_dense=None)
            return
        used = self.weight_values(config, values)
        self.hidden = HiddenLayer(
            self,
            used["hidden_activation"],
            self.output_dim or config.embedding_dim,
            self.hidden_bias,
            _norm_of(config, values),
            used["normalization_epsilon"],
            name="transform",
        )
        if self.output_dim is not None:
            size = config.vocabulary_size
            matrix = self.make_dense(size, "output", use_bias=False, width=self.output_dim)
            self.keep(output_dense=matrix)
        with no_inner_remat():
            bias = VocabularyBias(
                config.vocabulary_size, name="output_bias", dtype=task.dtype_policy
            )
        bias.build((None, None, config.vocabulary_size))
        self.keep(output_bias=bias)

    @property
    def vocabulary_bias(self) -> VocabularyBias | None:
        return self.output_bias

    @property
    def biases(self):
        return super().biases if self.output_dense is None else (self.vocabulary_bias,)

    def logits(self, states):
        return super().logits(states) if self.output_dense is None else self.output_dense(states)

    @property
    def logits_are_a_product(self) -> bool:
        if self.output_dense is None:
            return super().logits_are_a_product
        return self.output_dense.quantization_mode is None

    @property
    def projection_learns(self) -> bool:
        return self.output_dense is not None or super().projection_learns

    def output_projection(self, states, joined: bool = True):
        if self.output_dense is None:
            return super().output_projection(states, joined)
        kernel = ops.cast(ops.transpose(self.output_dense.kernel), states.dtype)
        return states, kernel

    def projected_states(self, states, inputs):
        positions = inputs.get("mask_positions")
        if positions is not None:
            states = states_at(states, positions)
        return states if self.hidden is None else self.hidden(states)

    def usual(self) -> dict[str, Any]:
        return {**super().usual(), "optimizer": FineTuningAdamW()}

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        epsilon = values.get("normalization_epsilon") or config.normalization_epsilon
        if values.get("projection") == "linear":
            return {"projection": "linear"}
        return {
            "projection": "transformed",
            "output_dim": values.get("output_dim"),
            "hidden_activation": values.get("hidden_activation") or config.activation,
            "normalization_epsilon": epsilon,
            "hidden_bias": values.get("hidden_bias", True),
            "block_norm": values.get("block_norm", False),
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        if values.get("projection") == "linear":
            return {}
        bias, norm = values.get("hidden_bias", True), _norm_of(config, values)
        width = values.get("output_dim")
        if width is None:
            hidden = hidden_of_head("transform", "embedding_dim", bias, norm)
            return shapes_of((*hidden, *OUTPUT_BIAS), config)
        weights = (*hidden_of_head("transform", "output_dim", bias, norm), *OWN_OUTPUT)
        return shapes_of((*weights, *OUTPUT_BIAS), config, output_dim=width)


def _norm_of(config: TransformerConfig, values: Mapping[str, Any]) -> str:
    return config.normalization if values.get("block_norm") else "layer_norm"


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedLM(Task):
    """An encoder that predicts masked tokens from the tokens on both sides.

    The head is a dense layer, an activation, a normalization, the token embedding as output
    projection, and a vocabulary bias. With `projection="linear"` the logits are those of the
    backbone, as in a decoder.

    `fit` masks tokens of each text (see `training.MaskedTokens`), different ones in each epoch
    unless `shuffle=False`. Logits and loss are computed for the masked tokens only.

    Compiled with AdamW (5e-5), token cross-entropy, perplexity and accuracy.

    Args:
        backbone, tokenizer, name: as for `Task`. The tokenizer must have a mask token.
        hidden_activation: str, see `layers.FeedForward`. Defaults to the backbone's.
        normalization_epsilon: float, epsilon of the head's normalization. Defaults to the
            backbone's.
        mask_rate: float, the fraction of tokens that `fit` masks.
        hidden_bias: bool, whether the head's dense layer has a bias.
        block_norm: bool, use the blocks' kind of normalization in the head (ModernBERT). Defaults
            to LayerNorm.
        projection: str, what makes logits of the states: `"transformed"`, the layers above (BERT),
            or `"linear"`, the output projection alone (EuroBERT).
        output_dim: int, the width of the transform, if the head has an output matrix of its own
            (RemBERT). Defaults to the width of the token embedding, which is then the matrix.

    Call arguments:
        inputs: dict with `token_ids`, `padding_mask` and optionally `segment_ids`, as for
            `Encoder`; and optionally `mask_positions`, int `(batch, count)`, the positions to
            predict.

    Returns:
        Logits, float `(batch, length, vocabulary_size)`, or with `mask_positions`
        `(batch, count, vocabulary_size)`.

    Raises:
        ValueError: if the activation or projection is unknown, a rate is out of range, or the kind
            of backbone is wrong.

    Example:
    ```python
    import keras_transformer as kt

    lm = kt.MaskedLM.from_preset("minilm_l6_en")
    lm.fit(["a man rides a bike .", "two dogs run on the grass ."], epochs=1, verbose=0)
    best, second = lm.fill_mask("a man rides a [MASK] .", top_k=2)
    assert best.score >= second.score and best.text.startswith("a man rides a")
    ```

    Source: Devlin et al. 2018, "BERT", section 3.1 and appendix A.1.
    """

    alias = "masked_lm"
    backbone_kinds = ("encoder",)
    head_class = MaskedTokenHead
    task_options = (
        "hidden_activation",
        "normalization_epsilon",
        "mask_rate",
        "hidden_bias",
        "block_norm",
        "projection",
        "output_dim",
    )

    # Values of the head.
    hidden_activation: str | None
    normalization_epsilon: float | None
    hidden_bias: bool
    block_norm: bool
    projection: str
    output_dim: int | None

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        hidden_activation: str | None = None,
        normalization_epsilon: float | None = None,
        mask_rate: float = 0.15,
        name: str | None = None,
        hidden_bias: bool = True,
        block_norm: bool = False,
        projection: str = "transformed",
        output_dim: int | None = None,
    ):
        super().__init__(backbone, tokenizer, name=name)
        self.mask_rate = check_number("mask_rate", mask_rate, above=0, below=1)
        self.set_head(
            hidden_activation=hidden_activation,
            normalization_epsilon=normalization_epsilon,
            hidden_bias=hidden_bias,
            block_norm=block_norm,
            projection=projection,
            output_dim=output_dim,
        )

    def make_dataset(
        self, x, y=None, sample_weight=None, *, masked: bool = True, objective=None, **options
    ) -> BucketedDataset:
        """Batch texts with masked tokens, and the original tokens as targets.

        See `Task.make_dataset`. Which tokens are masked depends on `seed`, the batch and, with
        `shuffle`, the epoch: `fit` masks other tokens in each epoch, `evaluate` always the same.

        Args:
            x: texts.
            y: must be None: the targets are made from the texts.
            sample_weight: one number for each text; or for each text an array with one number for
                each token that `tokenizer.encode` returns. Only the numbers of masked tokens count.
            masked: bool; False returns the texts unchanged.
            objective: `training.MaskedTokens`. Defaults to one with the task's `mask_rate`.
            **options: as for `Task.make_dataset`.
        """
        self._refuse_targets(y)
        objective = MaskedTokens(self.mask_rate) if objective is None else objective
        if not isinstance(objective, MaskedTokens):
            raise ValueError(
                f"`objective` must be a training.MaskedTokens, received {shorten(objective)}."
            )
        max_length = take_max_length(self, options)
        # A text without a maskable token has targets of weight 0, so it does not count.
        encode = segmented_rows(self, max_length, may_be_empty=True)
        columns = encode_rows(self, text_columns(x), encode, max_length=max_length).columns
        if not check_bool("masked", masked):
            return token_batches(self, columns, **options)
        hide = objective.bind(tokenizer_of(self))
        special = tokenizer_of(self).special_ids
        blocks = columns["token_ids"].blocks
        # Split, so that usually only the first tokens are read: they already have one to mask.
        if all(np.isin(part, special).all() for b in blocks for part in (b[:4096], b[4096:])):
            raise ValueError(
                "`x` has no token that can be masked: its texts are empty, or all their tokens are "
                "special tokens, such as the unknown token."
            )

        given = token_weights(sample_weight, columns["token_ids"].lengths, max_length, "text")
        columns = columns | given

        def finish(inputs, arrays):
            random = generator_of(dataset, arrays)
            hidden, targets, counted = hide(inputs["token_ids"], inputs["padding_mask"], random)
            if given:
                positions = hidden["mask_positions"]
                at = {"weights": np.take_along_axis(arrays["weights"], positions, axis=1)}
                counted = weighed(counted, at)
            return {**inputs, **hidden}, targets, counted

        dataset = token_batches(self, columns, finish, **options)
        return dataset

    @reads
    def fill_mask(self, texts, top_k: int = 5, batch_size: int | None = None) -> list:
        """Return the most likely tokens for each mask token.

        Args:
            texts: a string or a list of strings, each containing the tokenizer's mask token.
            top_k: int, the number of tokens for each mask.
            batch_size: int, the number of texts computed together. Defaults to 32.

        Returns:
            For each text a list of `Filling`, the most likely first; for a text with several masks
            a list of one list for each mask; `text` then keeps the other masks. A single result for
            a string.

        Raises:
            ValueError: if a text has no mask token, or is longer than the model allows.
        """
        top_k = check_int("top_k", top_k, at_least=1)
        texts = text_alone(texts)
        rows = text_rows([texts] if isinstance(texts, str) else texts, "texts")
        encodings, places = self._masks(rows)
        positions = np.zeros((len(rows), max(map(len, places))), "int32")
        for row, found in zip(positions, places, strict=True):
            row[: len(found)] = found

        def finish(inputs, arrays):
            return ({**inputs, "mask_positions": arrays["mask_positions"]},)

        def best(logits):
            scores = softmax(logits)
            ids = np.argsort(-scores, axis=-1, kind="stable")[..., :top_k]
            return list(zip(ids, np.take_along_axis(scores, ids, axis=-1), strict=True))

        dataset = token_batches(
            self,
            token_columns(self, [e.ids for e in encodings], [e.type_ids for e in encodings]),
            finish,
            values={"mask_positions": positions},
            **self.to_predict(batch_size),
        )
        results = []
        for i, (ids, scores) in enumerate(self._row_outputs(dataset, best)):
            fillings = [
                self._fillings(rows[i], encodings[i], place, ids[j].tolist(), scores[j].tolist())
                for j, place in enumerate(places[i])
            ]
            results.append(fillings[0] if len(fillings) == 1 else fillings)
        return results[0] if isinstance(texts, str) else results

    def _masks(self, texts: list[str]) -> tuple[list, list[np.ndarray]]:
        """Return the encoded texts, and the positions of the masks in each."""
        mask_id = require_mask_id(tokenizer_of(self))
        encodings = self.tokenizer.encode_batch_with_offsets(texts)
        places = [np.flatnonzero(np.equal(e.ids, mask_id)) for e in encodings]
        limit = self.backbone.config.max_sequence_length
        for i, encoding in enumerate(encodings):
            if not len(places[i]):
                raise ValueError(
                    f"`texts[{i}]` has no {self.tokenizer.id_to_token(mask_id)!r}, the mask token "
                    f"of this model: {shorten(texts[i])}"
                )
            if len(encoding) > limit:
                raise ValueError(
                    f"`texts[{i}]` has {len(encoding)} tokens, and the model takes {limit} at "
                    "most. Shorten it."
                )
        return encodings, places

    def _fillings(self, text, encoding, place, ids, scores) -> list[Filling]:
        """Return the fillings of the mask at position `place` of a text."""
        decode = self.tokenizer.decode_batch
        start, end = character_spans(text, encoding)[place]
        before = encoding.ids[:place]
        wholes = decode([before, *([*before, token_id] for token_id in ids)])
        prefix = wholes.pop(0)
        fillings = []
        for token_id, score, whole, token in zip(
            ids, scores, wholes, decode([[token_id] for token_id in ids]), strict=True
        ):
            token = token or self.tokenizer.id_to_token(token_id)  # special tokens decode to ""
            # The decoded continuation tells whether the token continues the word before it.
            piece = whole[len(prefix) :] if whole.startswith(prefix) else f" {token}"
            joined = piece and not (prefix[-1:] or " ").isspace() and not piece[0].isspace()
            left = text[:start].rstrip() if joined else text[:start]
            filled = left + (piece.strip() or token.strip()) + text[end:]
            fillings.append(Filling(token, token_id, score, filled))
        return fillings
