"""Masked language models: pretraining, and filling of masks."""

from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np

from keras_transformer.checking import check_bool, check_int, check_number, shorten
from keras_transformer.columns import text_alone
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.data.dataset import check_batch
from keras_transformer.layers.embedding import VocabularyBias
from keras_transformer.layers.remat import one_piece
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.structure import OUTPUT_BIAS, hidden_of_head, shapes_of
from keras_transformer.tasks.hidden import HiddenLayer
from keras_transformer.tasks.labels import token_weights, weighed
from keras_transformer.tasks.pooling import states_at
from keras_transformer.tasks.task import PER_TOKEN, softmax
from keras_transformer.tasks.text import (
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
from keras_transformer.tasks.token_predictor import TokenPredictor
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import (
    FineTuningAdamW,
    MaskedTokens,
    Perplexity,
    TokenAccuracy,
    TokenCrossEntropy,
)
from keras_transformer.training.objectives import generator_of, require_mask_id


class Filling(NamedTuple):
    """What may stand in place of a mask, its probability, and `text` with it in that place."""

    token: str
    token_id: int
    score: float
    text: str


@keras.saving.register_keras_serializable(package="keras_transformer")
class MaskedLM(HiddenLayer, TokenPredictor):
    """An encoder that predicts masked tokens from the tokens on both sides.

    The head is a dense layer, an activation, a normalization, the token embedding as output
    projection, and a bias for each token.

    `fit` masks tokens of each text (see `training.MaskedTokens`), other ones in each epoch unless
    `shuffle=False`. Logits and loss are computed for the masked tokens alone.

    Compiled with AdamW (5e-5), token cross-entropy, perplexity and accuracy.

    Args:
        backbone, tokenizer, name: as for `Task`. The tokenizer must have a mask token.
        hidden_activation: str, see `layers.FeedForward`. Defaults to the backbone's.
        normalization_epsilon: float, of the head's normalization. Defaults to the backbone's.
        mask_rate: float, share of the tokens that `fit` masks.
        hidden_bias: bool, a bias of the head's dense layer.
        block_norm: bool, the head's normalization is of the kind of the blocks' (ModernBERT).
            Defaults to LayerNorm.

    Call arguments:
        inputs: dict of `token_ids`, `padding_mask` and optionally `segment_ids`, as for `Encoder`;
            and optionally `mask_positions`, int `(batch, count)`, the tokens to predict.

    Returns:
        Logits, float `(batch, length, vocabulary_size)`, or with `mask_positions`
        `(batch, count, vocabulary_size)`.

    Raises:
        ValueError: for an unknown activation, a rate out of range, or another kind of backbone.

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

    backbone_kinds = ("encoder",)
    alias = "masked_lm"
    published_as = ("ForMaskedLM",)
    hidden_name = "transform"
    task_options = (
        "hidden_activation",
        "normalization_epsilon",
        "mask_rate",
        "hidden_bias",
        "block_norm",
    )
    further_inputs = ("mask_positions",)
    predict_options: ClassVar = {**PER_TOKEN, "masked": False}

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
    ):
        super().__init__(backbone, tokenizer, name=name)
        mask_rate = check_number("mask_rate", mask_rate, above=0, below=1)
        normalization_epsilon = check_number(
            "normalization_epsilon", normalization_epsilon, above=0, none=True
        )
        config = backbone.config
        self.hidden_activation = hidden_activation
        self.normalization_epsilon = normalization_epsilon
        self.mask_rate = mask_rate
        self.hidden_bias = check_bool("hidden_bias", hidden_bias)
        self.block_norm = check_bool("block_norm", block_norm)
        values = self.task_values()
        used = self.head_values(config, values)
        self.make_hidden(
            used["hidden_activation"],
            config.embedding_dim,
            self._norm_of(config, values),
            used["normalization_epsilon"],
        )
        with one_piece():
            self.output_bias = VocabularyBias(
                config.vocabulary_size, name="output_bias", dtype=self.dtype_policy
            )
        self.output_bias.build((None, None, config.vocabulary_size))
        self.built = True
        metrics = [Perplexity(), TokenAccuracy()]
        self.compile(FineTuningAdamW(), TokenCrossEntropy(), weighted_metrics=metrics)

    @property
    def vocabulary_bias(self) -> VocabularyBias:
        return self.output_bias

    def projected_states(self, states, inputs):
        positions = inputs.get("mask_positions")
        if positions is not None:
            states = states_at(states, positions)
        return self.hidden(states)

    def make_dataset(
        self, x, y=None, sample_weight=None, *, masked: bool = True, objective=None, **options
    ) -> BucketedDataset:
        """Texts with tokens masked, and the original tokens as targets. See `Task.make_dataset`.

        Which tokens are masked depends on `seed`, the batch and, with `shuffle`, the epoch: each
        epoch of `fit` learns other tokens, and `evaluate` always asks for the same.

        Args:
            x: texts.
            y: None, since the targets are made of the texts.
            sample_weight: one number a text; or for each text one for each of its tokens, as
                `tokenizer.encode` gives them, of which those of masked ones count.
            masked: bool, False for the unchanged texts.
            objective: `training.MaskedTokens`. Defaults to that of `mask_rate`.
            **options: as for `Task.make_dataset`.
        """
        self._refuse_targets(y)
        objective = MaskedTokens(self.mask_rate) if objective is None else objective
        if not isinstance(objective, MaskedTokens):
            raise ValueError(
                f"MaskedLM learns `MaskedTokens`, received objective={shorten(objective)}."
            )
        max_length = take_max_length(self, options)
        # A text without a token to mask has targets of weight 0: it counts for nothing.
        encode = segmented_rows(self, max_length, may_be_empty=True)
        columns = encode_rows(self, text_columns(x), encode, max_length=max_length).columns
        if not check_bool("masked", masked):
            return token_batches(self, columns, **options)
        hide = objective.bind(tokenizer_of(self))
        special = tokenizer_of(self).special_ids
        blocks = columns["token_ids"].blocks
        # Most often the first tokens say so.
        if all(np.isin(part, special).all() for b in blocks for part in (b[:4096], b[4096:])):
            raise ValueError(
                "`x` has no token that can be masked: its texts are empty, or all their tokens are "
                "special ones, such as the unknown one."
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
        """The likeliest tokens in place of each mask token.

        Args:
            texts: a string or a list of strings, each with the tokenizer's mask token in it.
            top_k: int, number of tokens for each mask.
            batch_size: int, texts computed together. Defaults to 32.

        Returns:
            For each text a list of `Filling`, the likeliest first; for a text with several masks
            a list of such lists, where other masks stay masks. For a string its result alone.

        Raises:
            ValueError: for a text without a mask, or longer than the model's longest sequence.
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
            sizes=self._sizes,
            **check_batch(batch_size),
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
        """Encoded texts, and the places of the masks in each."""
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
        """The fillings of the mask at a place among the tokens of a text."""
        decode = self.tokenizer.decode_batch
        start, end = character_spans(text, encoding)[place]
        before = encoding.ids[:place]
        wholes = decode([before, *([*before, token_id] for token_id in ids)])
        prefix = wholes.pop(0)
        fillings = []
        for token_id, score, whole, token in zip(
            ids, scores, wholes, decode([[token_id] for token_id in ids]), strict=True
        ):
            token = token or self.tokenizer.id_to_token(token_id)  # Special ones decode to nothing.
            # What the decoder adds to the text before says whether the token goes on with a word.
            piece = whole[len(prefix) :] if whole.startswith(prefix) else f" {token}"
            joined = piece and not (prefix[-1:] or " ").isspace() and not piece[0].isspace()
            left = text[:start].rstrip() if joined else text[:start]
            filled = left + (piece.strip() or token.strip()) + text[end:]
            fillings.append(Filling(token, token_id, score, filled))
        return fillings

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        epsilon = values.get("normalization_epsilon") or config.normalization_epsilon
        return {
            "hidden_activation": values.get("hidden_activation") or config.activation,
            "normalization_epsilon": epsilon,
            "hidden_bias": values.get("hidden_bias", True),
            "block_norm": values.get("block_norm", False),
        }

    @staticmethod
    def _norm_of(config: TransformerConfig, values: dict[str, Any]) -> str:
        return config.normalization if values.get("block_norm") else "layer_norm"

    @classmethod
    def head_shapes(cls, config, values):
        bias, norm = values.get("hidden_bias", True), cls._norm_of(config, values)
        hidden = hidden_of_head(cls.hidden_name, "embedding_dim", bias, norm)
        return shapes_of((*hidden, *OUTPUT_BIAS), config)
