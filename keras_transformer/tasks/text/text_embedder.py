"""Text embedding: one vector for each text, and training on pairs of texts."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset, TokenRows
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.layers.remat import recomputed
from keras_transformer.models.backbone import Backbone, as_mask
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.support.checking import (
    check_bool,
    check_choice,
    check_int,
    check_text,
    describe,
    shorten,
)
from keras_transformer.support.columns import text_alone
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.base.pooling import POOLINGS, check_pooler, pool, pool_by, pooled_width
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.arguments import warn_of_repeats
from keras_transformer.tasks.data.labels import (
    check_weights,
    label_codes,
    real_margins,
    real_numbers,
)
from keras_transformer.tasks.data.text import (
    check_ends,
    check_said,
    take_max_length,
    text_rows,
    token_batches,
    tokenizer_of,
)
from keras_transformer.tasks.text.late_interaction import (
    DOCUMENT,
    MULTI_VECTOR,
    QUERY,
    SCORED,
    LateInteraction,
    joined,
    late_scores,
)
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW, MultipleNegativesRankingLoss
from keras_transformer.training.losses.embedding_losses import EmbeddingLoss, embedding_loss

_PROMPTS = "prompt_lengths"  # the number of tokens of each text that pooling leaves out
_LABELS = ("score", "scores", "label", "labels")  # column names of sentence-transformers


class VectorHead(Head):
    """The head of `TextEmbedder`: states pooled to a vector, and linear layers on it.

    Args:
        task: as for `Head`.
        pooling, normalize, dense, include_prompt: as for `TextEmbedder`.
    """

    options = ("pooling", "normalize", "dense")
    takes_records = False
    most_texts = None
    predicts_by_tokens = True
    further_inputs = (_PROMPTS, SCORED)

    def __init__(self, task, pooling: str | None, normalize: bool, dense, include_prompt: bool):
        super().__init__(task)
        config = task.backbone.config
        pooling = self.weight_values(config, {"pooling": pooling})["pooling"]
        self.pooling = check_choice("pooling", pooling, (*POOLINGS, "pooler", MULTI_VECTOR))
        if self.pooling == MULTI_VECTOR:
            self.predict_options = {"max_buckets": 1}  # rows of one length are one array
        self.normalize = check_bool("normalize", normalize)
        check_pooler(config, self.pooling, include_prompt)
        first = self.pooling == "first" and include_prompt
        self.first_only = first and config.kind == "encoder"
        self.dense = _checked_dense(dense)
        layers, width = [], pooled_width(config, self.pooling)
        for number, layer in enumerate(self.dense):
            made = keras.layers.Dense(
                layer["units"],
                use_bias=layer["use_bias"],
                name=f"dense_{number}",
                dtype=task.dtype_policy,
            )
            made.build((None, width))
            layers.append(made)
            width = layer["units"]
        self.keep(dense_layers=layers)
        self.width = width

    def __call__(self, states, inputs, training: bool = False):
        if self.pooling == "pooler":
            vectors = pool_by(self.task.backbone, states, inputs["token_ids"])
            vectors = ops.cast(vectors, "float32")
        elif self.pooling == MULTI_VECTOR:
            vectors = ops.cast(states, "float32")
        else:
            states, prompts = ops.cast(states, "float32"), inputs.get(_PROMPTS)
            vectors = pool(states, inputs.get("padding_mask"), self.pooling, prompts)
        for layer, values in zip(self.dense_layers, self.dense, strict=True):
            vectors = layer(vectors)
            if values["activation"] is not None:
                vectors = get_activation(values["activation"])(vectors)
        vectors = ops.cast(vectors, "float32")
        vectors = unit_vectors(vectors) if self.normalize else vectors
        if self.pooling != MULTI_VECTOR:
            return vectors
        there = inputs.get(SCORED)
        there = as_mask(vectors[..., 0], inputs.get("padding_mask") if there is None else there)
        return ops.where(ops.expand_dims(there, -1), vectors, ops.zeros_like(vectors))

    def usual(self) -> dict[str, Any]:
        loss: Any = "multiple_negatives_ranking"
        if self.pooling == MULTI_VECTOR:  # a score is a sum over the tokens of a query
            loss = MultipleNegativesRankingLoss(scale=1.0)
        return {"optimizer": FineTuningAdamW(), "loss": loss}

    @property
    def learns_labels(self) -> bool:
        """Whether the loss learns from single texts and their labels."""
        return getattr(self.task.loss, "takes_labels", False)

    def check_training_set(self, dataset: BucketedDataset) -> None:
        loss = self.task.loss
        if self.pooling == MULTI_VECTOR and not getattr(loss, "takes_tokens", False):
            raise ValueError(
                f"{type(loss).__name__} takes one vector for each text, and pooling="
                f"{MULTI_VECTOR!r} gives one for each token: compile with loss="
                '"multiple_negatives_ranking".'
            )
        if getattr(loss, "takes_scores", False) and "scores" not in dataset.values:
            raise ValueError(
                f"{type(loss).__name__} learns from scores: give `y`, one number for each pair. "
                'For pairs without scores compile with loss="multiple_negatives_ranking".'
            )
        if self.learns_labels and "labels" not in dataset.values:
            raise ValueError(
                f"{type(loss).__name__} learns from single texts and their labels: "
                "make_dataset(texts, labels)."
            )

    @classmethod
    def usual_columns(cls, names: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
        """Return the text columns of a data set, in order, and the column of scores or None."""
        label = next((name for name in _LABELS if name in names), None)
        return tuple(name for name in names if name != label), label

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "pooling": values.get("pooling") or ("pooler" if config.vector_pooling else "mean"),
            "dense": _checked_dense(values.get("dense") or ()),
        }

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        shapes, width = {}, pooled_width(config, cls.weight_values(config, values)["pooling"])
        for number, layer in enumerate(_checked_dense(values.get("dense") or ())):
            shapes[f"dense_{number}/kernel"] = (width, layer["units"])
            if layer["use_bias"]:
                shapes[f"dense_{number}/bias"] = (layer["units"],)
            width = layer["units"]
        return shapes


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextEmbedder(Task):
    """An encoder or decoder whose states are pooled to one vector for each text.

    It trains on a tuple of lists of texts: anchors and positives, and optionally lists of
    negatives; or on two lists and `y`, the similarity of the two texts of each row. Without `y` the
    loss is `"multiple_negatives_ranking"`, the compiled default, with AdamW (5e-5); with `y`
    compile it with `loss="cosent"` or `"cosine_similarity"`.

    Args:
        backbone, tokenizer, name: as for `Task`.
        pooling: str, how the states of the real tokens become a vector: `"mean"`, `"max"` (of each
            feature), `"mean_sqrt_len"` (their sum divided by the square root of their number) or
            `"weighted_mean"` (weighted by position, counted from 1); the state of the `"first"` or
            `"last"` real token; `"pooler"`, the output of the backbone's `pool`; or
            `"multi_vector"`, a vector for each token, for late interaction (ColBERT). Defaults to
            `"pooler"` if the config has a `vector_pooling` (CLIP's text tower), otherwise to
            `"mean"`.
        normalize: bool, scale vectors to length 1: their dot product is then the cosine similarity.
        max_length: int, longer texts are truncated to this many tokens. Defaults to the model's
            `max_sequence_length`, and cannot exceed it.
        dense: list of dicts with `units`, and optionally `activation` (see `layers.FeedForward`)
            and `use_bias`: linear layers after the pooling. Defaults to no layers.
        prompts: dict of prompts by name; `encode` puts the chosen one before each text.
        default_prompt_name: str, the name of the prompt to use if none is named. Defaults to no
            prompt.
        include_prompt: bool, whether the tokens of a prompt are pooled too.
        interaction: `tasks.LateInteraction` or a dict of its values, for `"multi_vector"` only: how
            queries and documents are read. The texts of `encode` are queries if `prompt_name` is
            `"query"`, otherwise documents; in rows of `fit` the first text is the query.

    Call arguments:
        inputs: dict with `token_ids` and `padding_mask`, as for `Encoder`; or, for rows of several
            texts, of shape `(batch, texts, length)`.

    Returns:
        Float `(batch, width)`, or `(batch, texts, width)`. The width is the `hidden_dim`, or the
        `units` of the last layer of `dense`. With `"multi_vector"` there is an axis of tokens
        before the last one; places without a token hold zeros.

    Raises:
        ValueError: if the pooling is unknown, `max_length` exceeds the model's, layers or prompts
            are invalid, or the backbone is an encoder-decoder.

    Example:
    ```python
    import keras_transformer as kt

    embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
    cat, kitten, car = embedder.predict(["a cat", "a kitten", "a car"], verbose=0)
    assert cat @ kitten > cat @ car

    questions = ["who wrote Faust?", "where is Rome?"]
    answers = ["Faust is by Goethe.", "Rome is in Italy."]
    embedder.fit((questions, answers), epochs=1, verbose=0)

    embedder.compile(loss="cosent")  # the pairs have scores: only their order counts
    embedder.fit((["a cat", "a cat"], ["a kitten", "a car"]), [0.9, 0.1], verbose=0)
    ```

    Source: Reimers and Gurevych 2019, "Sentence-BERT", section 3.
    """

    alias = "text_embedding"
    backbone_kinds = ("encoder", "decoder")
    head_class = VectorHead
    task_options = (
        "pooling", "normalize", "max_length", "dense", "prompts", "default_prompt_name",
        "include_prompt", "interaction",
    )  # fmt: skip

    pooling: str  # values of the head
    normalize: bool
    dense: list[dict[str, Any]]

    def __init__(
        self,
        backbone: Backbone,
        tokenizer: Tokenizer | None = None,
        pooling: str | None = None,
        normalize: bool = True,
        max_length: int | None = None,
        name: str | None = None,
        dense: Sequence[Mapping[str, Any]] = (),
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        include_prompt: bool = True,
        interaction: LateInteraction | Mapping | None = None,
    ):
        super().__init__(backbone, tokenizer, name=name)
        limit = backbone.config.max_sequence_length
        max_length = check_int(
            "max_length", max_length, at_least=1, at_most=limit, none=True,
            hint="The model's `max_sequence_length` is the longest.",
        )  # fmt: skip
        self.max_length = max_length
        self.prompts, self.interaction, self._reading = _checked_prompts(prompts), None, None
        if pooling == MULTI_VECTOR:
            self._reading = LateInteraction.given(interaction)
            self.interaction = self._reading.values()
            self.prompts = {QUERY: "", DOCUMENT: "", **self.prompts}
        elif interaction is not None:
            raise ValueError(f"`interaction` needs pooling={MULTI_VECTOR!r}, received {pooling!r}.")
        self.default_prompt_name = default_prompt_name
        self.default_prompt = self._prompt_named(default_prompt_name)
        self.include_prompt = check_bool("include_prompt", include_prompt)
        # What each step was last made for: the texts of a row, and the most rows of a batch.
        self._made_for: dict[str, tuple[int, int | None]] = {}
        self.set_head(
            pooling=pooling,
            normalize=normalize,
            dense=dense,
            include_prompt=self.include_prompt,
        )

    @property
    def width(self) -> int:
        """The width of a vector."""
        return self.head.width

    def compile(self, optimizer="auto", loss="auto", *args, **kwargs):
        """Compile as `keras.Model.compile` does, with losses named as in sentence-transformers.

        Args:
            optimizer: as in `keras.Model.compile`.
            loss: `"multiple_negatives_ranking"`, `"cached_multiple_negatives_ranking"`,
                `"triplet"`, `"cosine_similarity"`, `"cosent"` or `"margin_mse"`; for single texts
                with labels `"batch_hard_triplet"`, `"batch_all_triplet"` or
                `"batch_semi_hard_triplet"`; or an object: see
                `training.MultipleNegativesRankingLoss` and others, which have options.
            *args: as in `keras.Model.compile`.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: if the name is unknown, or the loss needs more dimensions than the vectors
                have.
        """
        loss = embedding_loss(loss)
        if isinstance(loss, EmbeddingLoss):
            loss.check_width(self.width)
        super().compile(optimizer, loss, *args, **kwargs)

    def _named(self, inputs) -> dict[str, Any]:
        named = super()._named(flat(inputs) if isinstance(inputs, Mapping) else inputs)
        return {n: a for n, a in inputs.items() if a is not None} if _is_deep(inputs) else named

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        size, rows = self._mini_batch_size, None
        if training and size and not collect and _is_deep(inputs):
            # In `fit` TensorFlow does not know the number of rows. The largest possible number is
            # taken, and the last parts of a smaller batch are empty.
            rows = inputs["token_ids"].shape[0] or self._made_for.get("train", (0, None))[1]
        if (rows or 0) > (size or 0):
            parts = [
                {name: array[start : start + size] for name, array in inputs.items()}
                for start in range(0, rows, size)
            ]
            # Each part is computed again for its gradients, so that no activations are kept.
            vectors = [recomputed(self, self._embed, (part, (), training), {})() for part in parts]
            return ops.concatenate(vectors)
        return self._embed(inputs, collect, training)

    @property
    def _mini_batch_size(self) -> int | None:
        return getattr(self.loss, "mini_batch_size", None)

    def _expect(self, step: str, data, is_batch: bool = False) -> None:
        """Make a step anew for another number of texts a row, or of rows in parts.

        Steps need both as plain numbers, and TensorFlow would reuse a trace and leave them open.
        """
        if (found := _texts_and_rows(data, is_batch)) is not None:
            found = found if self._mini_batch_size else (found[0], None)
            if self._made_for.get(step, found) != found:
                setattr(self, f"{step}_function", None)
            self._made_for[step] = found
        super()._expect(step, data, is_batch)

    def _embed(self, inputs, collect: tuple[str, ...], training: bool):
        found = super().call(flat(inputs), collect, training)
        if not _is_deep(inputs):
            return found
        vectors, *collected = found if collect else (found,)
        vectors = ops.reshape(vectors, (-1, inputs["token_ids"].shape[1], *ops.shape(vectors)[1:]))
        return (vectors, *collected) if collect else vectors

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch texts, or a tuple of lists of texts. See `Task.make_dataset`.

        Args:
            x: texts; or a tuple of lists of texts: anchors, positives and any number of negatives,
                or the first and the second texts of pairs with the similarity `y`.
            y: one number for each row, if the loss takes scores; or the label of each text.
            sample_weight: one number for each row.
            **options: as for `Task.make_dataset`; and `prompt`, put before each text instead of the
                prompt that `default_prompt_name` names; and, for `"multi_vector"`, `role`, whether
                a list of texts holds those of the kind `"query"` or `"document"`, the default.
        """
        tokenizer = tokenizer_of(self)
        max_length = take_max_length(self, options, default=self.max_length)
        prompt = options.pop("prompt", None)
        prompt = self.default_prompt if prompt is None else prompt
        several = is_tuple(x)
        parts = tuple_rows(x) if several else [text_rows(x)]
        if several and isinstance(self.loss, MultipleNegativesRankingLoss):
            warn_of_repeats(parts[1], options.get("batch_size"))
        if self._reading is not None:
            values = (self._scores_and_weights if several else self._labels_and_weights)(
                y, sample_weight, len(parts[0])
            )
            roles = [QUERY, *[DOCUMENT] * (len(parts) - 1)]
            roles = roles if several else [options.pop("role", DOCUMENT)]
            return self._interacting(parts, roles, max_length, values, **options)
        ids = [
            tokenizer.encode_batch([prompt + t for t in part], max_length=max_length)
            for part in parts
        ]
        (empty,) = tokenizer.encode_batch([prompt], max_length=max_length)
        for i, (part, rows) in enumerate(zip(parts, ids, strict=True)):
            name = f"x[{i}]" if several else "x"
            check_said(part, rows, empty, f"`{name}[{{}}]`".format)
        if self.pooling == "pooler":
            for rows in ids:
                check_ends(self.backbone.config, rows)
        skipped = 0 if self.include_prompt or not prompt else self._prompt_length(prompt)

        def further(rows, *_):
            return {_PROMPTS: np.full((*rows.shape, 1), skipped, "int32")} if skipped else {}

        if not several:
            values = self._labels_and_weights(y, sample_weight, len(ids[0]))

            def finish(inputs, arrays):
                return {**inputs, **further(arrays["row"])}, *(arrays[name] for name in values)

            return token_batches(self, {"token_ids": ids[0]}, finish, values=values, **options)
        if y is not None and self.head.learns_labels:
            raise ValueError(
                f"{type(self.loss).__name__} learns from single texts and their labels: call "
                "fit(texts, labels) with a list of texts."
            )
        values = self._scores_and_weights(y, sample_weight, len(parts[0]))
        return tuple_batches(self, ids, further, values=values, **options)

    def _interacting(
        self, parts: list[list[str]], roles: list[str], max_length: int, values, **options
    ) -> BucketedDataset:
        """Batch texts of these roles, or rows of them, for late interaction."""
        tokenizer, reading = tokenizer_of(self), self._reading
        read = [
            reading.read(tokenizer, part, role, self.prompts[role], max_length)
            for part, role in zip(parts, roles, strict=True)
        ]
        every = joined(read)

        def masks(rows, ids, mask):
            return reading.masks(tokenizer, every, rows, ids, mask)

        if len(parts) > 1:
            ids = [part.ids for part in read]
            return tuple_batches(self, ids, masks, values=values, **options)

        def finish(inputs, arrays):
            found = masks(arrays["row"], inputs["token_ids"], inputs["padding_mask"])
            return {**inputs, **found}, *(arrays[name] for name in values)

        return token_batches(self, {"token_ids": every.ids}, finish, values=values, **options)

    def _labels_and_weights(self, y, sample_weight, count: int) -> dict[str, np.ndarray]:
        """Return the values of a data set of single texts."""
        if (y is not None or sample_weight is not None) and not self.head.learns_labels:
            raise ValueError(
                "TextEmbedder has no labels of single texts: use `predict`. It learns from pairs, "
                "as in fit((anchors, positives)), or fit((first, second), scores); or from labels "
                'of single texts, compiled with loss="batch_hard_triplet".'
            )
        values = {} if y is None else {"labels": label_codes(y, count)}
        weights = check_weights("sample_weight", sample_weight, count)
        return {**values, "sample_weight": weights} if values and weights is not None else values

    def _scores_and_weights(self, y, sample_weight, count: int) -> dict[str, np.ndarray]:
        """Return the values of a data set of rows of several texts."""
        values = {}
        if y is not None:
            if not getattr(self.loss, "takes_scores", True):
                raise ValueError(
                    f"{type(self.loss).__name__} takes no scores, but `y` was given. For scores, "
                    'compile with loss="cosent" or "cosine_similarity"; otherwise leave `y` out.'
                )
            margins = getattr(self.loss, "takes_margins", False)
            values["scores"] = real_margins(y, count) if margins else real_numbers(y, count)
        weights = check_weights("sample_weight", sample_weight, count, unit="row")
        return values if weights is None else {**values, "sample_weight": weights}

    def _prompt_named(self, name: str | None) -> str:
        """Return the named prompt, "" if `name` is None. Raises ValueError if it is unknown."""
        if name is not None and name not in self.prompts:
            known = (
                f"it has {', '.join(map(repr, self.prompts))}" if self.prompts else "it has none"
            )
            raise ValueError(
                f"The model has no prompt {shorten(name)}, {known}. Give `prompts`, a dict from "
                "names to texts, when you make or load the model."
            )
        return "" if name is None else self.prompts[name]

    def _prompt_length(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without a special token at its end."""
        ids = self.tokenizer.encode(prompt)
        return len(ids) - (ids[-1] in self.tokenizer.special_ids)

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        if self._takes(x) and self.head.learns_labels and y is None:
            raise ValueError(
                f"{type(self.loss).__name__} learns from single texts and their labels: give `y`, "
                "as in fit(texts, labels)."
            )
        if self._takes(x) and not is_tuple(x) and not self.head.learns_labels:
            raise ValueError(
                f"TextEmbedder learns from a tuple of lists of texts, received {describe(x)}: "
                "fit((anchors, positives)), fit((anchors, positives, negatives)), or "
                "fit((first, second), scores). `validation_data` is ((anchors, positives),) or "
                "((first, second), scores). For single texts and their labels compile(loss="
                '"batch_hard_triplet"). For vectors of texts call `predict`.'
            )
        made = super()._batches(x, y, sample_weight, processing, **options)
        if isinstance(made[0], BucketedDataset):
            self.head.check_training_set(made[0])
        return made

    @reads
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        batch_size: int | None = None,
    ) -> np.ndarray:
        """Return the vectors of texts, with one of the model's prompts before each.

        Args:
            texts: a list of strings, or one string.
            prompt_name: str, one of `prompts`. Defaults to `default_prompt_name`.
            batch_size: int, the number of texts computed together. Defaults to 32 on a CPU, and on
                a GPU to as many texts as have about `kernels.device.device().batch_tokens` tokens.

        Returns:
            Float `(texts, width)`; `(width,)` for one string. With pooling `"multi_vector"` a list
            of arrays `(tokens, width)`, or one of them.

        Raises:
            ValueError: if the model does not have the prompt.

        Example:
        ```python
        import keras_transformer as kt

        prompts = {"query": "query: ", "document": "passage: "}
        embedder = kt.TextEmbedder.from_preset("minilm_l6_en", prompts=prompts)
        query = embedder.encode("where is Rome?", prompt_name="query")
        assert (embedder.predict(["query: where is Rome?"], verbose=0)[0] == query).all()
        ```
        """
        texts = text_alone(texts)
        alone = isinstance(texts, str)
        vectors, _ = self.encode_counted([texts] if alone else texts, prompt_name, batch_size)
        return vectors[0] if alone else vectors

    @reads
    def encode_counted(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        batch_size: int | None = None,
    ) -> tuple[np.ndarray, int]:
        """Return the vectors of a list of texts, and the total number of tokens that were read.

        Arguments are as for `encode`. Prompts and special tokens count, truncated tokens do not.
        """
        prompt = self._prompt_named(prompt_name or self.default_prompt_name)
        made = {**self.to_predict(batch_size), "prompt": prompt}
        if self._reading is not None:
            role = QUERY if (prompt_name or self.default_prompt_name) == QUERY else DOCUMENT
            made |= {"role": role, **self.head.predict_options}
        make = functools.partial(self.make_dataset, **made)
        vectors, count = self._predicted(texts, make, {"verbose": 0})
        if self._reading is not None:
            vectors = [row[(row != 0).any(axis=-1)] for row in vectors]
        return vectors, count

    def similarity(self, first, second) -> np.ndarray:
        """Return how similar each of the first texts is to each of the second, by their vectors.

        With pooling `"multi_vector"` it is the sum, over the tokens of a query, of the largest
        product with a token of the document (MaxSim); otherwise the product of two vectors, which
        is their cosine if they have length 1.

        Args:
            first: the result of `encode` for a list of texts, the queries.
            second: the result for another list, the documents.

        Returns:
            Float32 `(first, second)`.

        Example:
        ```python
        import keras_transformer as kt

        embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
        vectors = embedder.encode(["a cat", "a kitten", "a car"])
        scores = embedder.similarity(vectors[:1], vectors[1:])
        assert scores.shape == (1, 2) and scores[0, 0] > scores[0, 1]
        ```
        """
        if self._reading is None:
            return np.asarray(first, "float32") @ np.asarray(second, "float32").T
        return late_scores(first, second)

    def encode_ids(
        self, rows: Sequence[Sequence[int]], prompt_name: str | None = None
    ) -> np.ndarray:
        """Return the vectors of texts that are given as ids of the tokenizer.

        A prompt and special tokens are added to the ids, as for texts; special tokens only if they
        are missing. Rows with more than `max_length` ids are truncated.

        Args:
            rows: lists of ids, one for each text.
            prompt_name: as in `encode`.

        Returns:
            Float `(texts, width)`.

        Raises:
            ValueError: if a row is empty or has ids outside the model's vocabulary.

        Example:
        ```python
        import keras_transformer as kt

        embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
        ids = embedder.tokenizer.encode("where is Rome?", special_tokens=False)
        assert (embedder.encode_ids([ids])[0] == embedder.encode("where is Rome?")).all()
        ```
        """
        if self._reading is not None:
            raise ValueError(
                f"pooling={MULTI_VECTOR!r} reads texts, as queries or documents: call `encode`."
            )
        for place, row in enumerate(rows):
            if not len(row):
                raise ValueError(f"`rows[{place}]` is empty: there must be at least one id.")
            self.backbone.check_ids(**{f"rows[{place}]": np.asarray(row)})
        prompt = self._prompt_named(prompt_name or self.default_prompt_name)
        skipped = 0 if self.include_prompt or not prompt else self._prompt_length(prompt)

        def skipping(x, arrays):
            return ({**x, _PROMPTS: np.full((*arrays["row"].shape, 1), skipped, "int32")},)

        columns = {"token_ids": self._behind_prompt(prompt, list(map(list, rows)))}
        finish = skipping if skipped else None
        dataset = token_batches(self, columns, finish, **self.to_predict())
        return self.predict(dataset, verbose=0)

    def _behind_prompt(self, prompt: str, rows: list[list[int]]) -> list[list[int]]:
        """Return rows of ids with a prompt and special tokens around them."""
        tokenizer = tokenizer_of(self)
        inner = tokenizer.encode(prompt or "a", special_tokens=False)
        whole = tokenizer.encode(prompt or "a")
        first = next(i for i in range(len(whole)) if whole[i : i + len(inner)] == inner)
        start, end = whole[:first], whole[first + len(inner) :]
        inner = inner if prompt else []
        most = take_max_length(self, {}, default=self.max_length)
        room = max(1, most - len(start) - len(inner) - len(end))
        found = []
        for row in rows:
            if row[: len(start)] == start and row[len(row) - len(end) :] == end:
                row = row[len(start) : len(row) - len(end)] or row
            found.append([*start, *inner, *row[:room], *end])
        return found


def _texts_and_rows(data, is_batch: bool) -> tuple[int, int | None] | None:
    """Return the texts of a row and the most rows of a batch, None if there are no such rows."""
    batch, most = data, None
    if isinstance(data, BucketedDataset):
        batch, most = next(data.examples_of_shapes())[0], data.most_rows
    if not isinstance(batch, Mapping) or not _is_deep(batch):
        return None
    rows, texts, _ = batch["token_ids"].shape
    return texts, rows if is_batch else most


def _is_deep(inputs: Mapping[str, Any]) -> bool:
    return flat(inputs) is not inputs


def _checked_prompts(prompts: Any) -> dict[str, str]:
    if not isinstance(prompts, Mapping | None):
        raise ValueError(
            f"`prompts` must be a dict of texts by name, received {describe(prompts)}."
        )
    for name, prompt in (prompts or {}).items():
        check_text("prompts", name)
        check_text(f"prompts[{name!r}]", prompt)
    return dict(prompts or {})


def _checked_dense(layers: Any) -> list[dict[str, Any]]:
    """Return the linear layers with all their values. Raises ValueError if they are invalid."""
    known = {"units", "activation", "use_bias"}
    if not isinstance(layers, (list, tuple)):
        raise ValueError(f"`dense` must be a list of dicts, received {describe(layers)}.")
    checked = []
    for number, layer in enumerate(layers):
        name = f"dense[{number}]"
        if not isinstance(layer, Mapping) or not {"units"} <= set(layer) <= known:
            raise ValueError(
                f"`{name}` must be a dict with `units`, and optionally `activation` and "
                f"`use_bias`, received {shorten(layer)}."
            )
        activation = layer.get("activation")
        if activation is not None:
            get_activation(activation)
        checked.append(
            {
                "units": check_int(f"{name}['units']", layer["units"], at_least=1, at_most=2**20),
                "activation": activation,
                "use_bias": check_bool(f"{name}['use_bias']", layer.get("use_bias", True)),
            }
        )
    return checked


def is_tuple(x: Any) -> bool:
    """Return True if `x` is a tuple of lists of texts, rather than of texts."""
    return isinstance(x, tuple) and bool(x) and not isinstance(x[0], str)


def tuple_rows(x: tuple) -> list[list[str]]:
    """Return the lists of a tuple. Raises ValueError unless there are two or more of one length."""
    if len(x) < 2:
        raise ValueError(
            "A tuple must have two or more lists of texts, such as (anchors, positives), received "
            "one. To get the vectors of texts, give a list."
        )
    parts = [text_rows(part, f"x[{i}]") for i, part in enumerate(x)]
    for i, part in enumerate(parts):
        if len(part) != len(parts[0]):
            raise ValueError(
                f"`x[0]` has {len(parts[0])} texts and `x[{i}]` {len(part)}: the lists of a tuple "
                "must have the same length, since their rows belong together."
            )
    return parts


def tuple_batches(
    task, ids: list[list[list[int]]], further: Callable[..., dict], **options
) -> BucketedDataset:
    """Batch inputs `(batch, texts, length)`: all texts of a row are padded to one length.

    `further` maps the numbers of texts `(batch, texts)`, their token ids and their mask `(batch,
    texts, length)` to additional inputs.
    """
    if options.get("pack_length") is not None:
        raise ValueError("`pack_length` needs single texts, received a tuple of lists of texts.")
    if options.get("batch_tokens") is not None:
        options["batch_tokens"] = max(1, options["batch_tokens"] // len(ids))
    every = TokenRows.from_lists([row for part in ids for row in part], "token_ids")
    lengths = every.lengths.reshape(len(ids), -1)
    count = lengths.shape[1]
    # Rows are bucketed by their longest text, located in the store of all texts.
    starts = every.starts[lengths.argmax(axis=0) * count + np.arange(count)]
    longest = TokenRows(every.ids, lengths.max(axis=0), starts, every.blocks)
    pad_id = np.int32(tokenizer_of(task).pad_id or 0)

    def finish(inputs, arrays):
        places = np.arange(inputs["token_ids"].shape[1])
        rows = arrays["row"][:, None] + count * np.arange(len(ids))
        mask = places < every.lengths[rows][..., None]
        found = np.where(mask, every.ids_at(rows[..., None], places), pad_id)
        inputs = {"token_ids": found, "padding_mask": mask, **further(rows, found, mask)}
        scores = arrays.get("scores", np.ones(len(rows), "float32"))
        weights = (arrays["sample_weight"],) if "sample_weight" in arrays else ()
        return inputs, scores, *weights

    return token_batches(task, {"token_ids": longest}, finish, **options)


def flat(inputs: dict[str, Any]) -> dict[str, Any]:
    """Reshape inputs `(batch, texts, length)` to `(batch * texts, length)`; keep 2D ones."""
    ids = inputs.get("token_ids")
    if ids is None or len(getattr(ids, "shape", ())) != 3:
        return inputs
    return {
        name: array.reshape(-1, *array.shape[2:])
        if isinstance(array, np.ndarray)
        else ops.reshape(array, (-1, *ops.shape(array)[2:]))
        for name, array in inputs.items()
    }
