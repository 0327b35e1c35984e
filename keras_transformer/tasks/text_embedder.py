"""Text embedding: one vector a text, and learning from pairs of texts."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import (
    check_bool,
    check_choice,
    check_int,
    check_text,
    describe,
    shorten,
)
from keras_transformer.columns import text_alone
from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.layers.feed_forward import get_activation
from keras_transformer.layers.remat import recomputed
from keras_transformer.layers.unit_vectors import unit_vectors
from keras_transformer.models.backbone import Backbone
from keras_transformer.models.turns import reads
from keras_transformer.tasks.labels import (
    check_weights,
    label_codes,
    real_margins,
    real_numbers,
)
from keras_transformer.tasks.pooling import POOLINGS, check_pooler, pool, pool_by, pooled_width
from keras_transformer.tasks.task import Task
from keras_transformer.tasks.text import (
    check_ends,
    check_said,
    take_max_length,
    text_rows,
    token_batches,
    tokenizer_of,
)
from keras_transformer.tasks.text_tuples import flat, is_tuple, tuple_batches, tuple_rows
from keras_transformer.tokenizers import Tokenizer
from keras_transformer.training import FineTuningAdamW
from keras_transformer.training.embedding_losses import EmbeddingLoss, embedding_loss

_PROMPTS = "prompt_lengths"  # the tokens of each text that its vector is not made of
_LABELS = ("score", "scores", "label", "labels")  # as sentence-transformers names them


@keras.saving.register_keras_serializable(package="keras_transformer")
class TextEmbedder(Task):
    """An encoder or a decoder whose states are pooled to one vector a text.

    It learns from a tuple of lists of texts: anchors and positives, and lists of negatives too; or
    from two lists and `y`, how near the two texts of a row are. Without `y` the loss is
    `"multiple_negatives_ranking"`, which it is compiled with, beside AdamW (5e-5); with `y`
    compile it with `loss="cosent"` or `"cosine_similarity"`.

    Args:
        backbone, tokenizer, name: as for `Task`.
        pooling: over the real tokens `"mean"`, `"max"` (of each feature), `"mean_sqrt_len"`
            (their sum, divided by the square root of their number) or `"weighted_mean"` (by their
            place, counted from 1); the state of the `"first"` or the `"last"` of them; or what
            `pool` of the backbone gives, `"pooler"`. Defaults to that for a backbone with a
            `vector_pooling` (CLIP's tower of texts), else to `"mean"`.
        normalize: bool, vectors of length 1, whose dot product is the cosine.
        max_length: int, longer texts are cut to this many tokens. Defaults to the model's
            `max_sequence_length`, and may not be above it.
        dense: list of dicts with `units`, and optionally `activation` (see `layers.FeedForward`)
            and `use_bias`: linear layers behind the pooling. Defaults to none.
        prompts: dict of name to what is put before a text, as `encode` is told.
        default_prompt_name: str, the prompt before all texts for which none is named.
        include_prompt: bool, whether the tokens of a prompt are pooled too.

    Call arguments:
        inputs: dict of `token_ids` and `padding_mask`, as for `Encoder`; or, of several texts a
            row, of the shape `(batch, texts, length)`.

    Returns:
        Float `(batch, width)`, or `(batch, texts, width)`. The width is the `hidden_dim`, or the
        `units` of the last of `dense`.

    Raises:
        ValueError: for an unknown pooling, a `max_length` above the model's, invalid layers or
            prompts, or a seq2seq backbone.

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

    backbone_kinds = ("encoder", "decoder")
    alias = "text_embedding"
    task_options = (
        "pooling", "normalize", "max_length", "dense", "prompts", "default_prompt_name",
        "include_prompt",
    )  # fmt: skip
    takes_records = False
    most_texts = None
    further_inputs = (_PROMPTS,)

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
    ):
        super().__init__(backbone, tokenizer, name=name)
        limit = backbone.config.max_sequence_length
        max_length = check_int(
            "max_length", max_length, at_least=1, at_most=limit, none=True,
            hint="The model's `max_sequence_length` is the longest.",
        )  # fmt: skip
        pooling = self.head_values(backbone.config, {"pooling": pooling})["pooling"]
        self.pooling = check_choice("pooling", pooling, (*POOLINGS, "pooler"))
        self.normalize = check_bool("normalize", normalize)
        self.max_length = max_length
        self.prompts = _checked_prompts(prompts)
        self.default_prompt_name = default_prompt_name
        self.default_prompt = self._prompt_named(default_prompt_name)
        self.include_prompt = check_bool("include_prompt", include_prompt)
        check_pooler(backbone.config, self.pooling, self.include_prompt)
        first = self.pooling == "first" and self.include_prompt
        self.first_only = first and backbone.config.kind == "encoder"
        self.dense = _checked_dense(dense)
        self.dense_layers, width = [], pooled_width(backbone.config, self.pooling)
        for number, layer in enumerate(self.dense):
            made = keras.layers.Dense(
                layer["units"],
                use_bias=layer["use_bias"],
                name=f"dense_{number}",
                dtype=self.dtype_policy,
            )
            made.build((None, width))
            self.dense_layers.append(made)
            width = layer["units"]
        self.width = width
        self.built = True
        self.compile(FineTuningAdamW(), "multiple_negatives_ranking")

    def compile(self, optimizer="auto", loss="auto", *args, **kwargs):
        """As `keras.Model.compile`, and a loss may be named as in sentence-transformers.

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
            ValueError: for another name, or a loss of more numbers than the vectors have.
        """
        loss = embedding_loss(loss)
        if isinstance(loss, EmbeddingLoss):
            loss.check_width(self.width)
        super().compile(optimizer, loss, *args, **kwargs)

    def _named(self, inputs) -> dict[str, Any]:
        named = super()._named(flat(inputs) if isinstance(inputs, Mapping) else inputs)
        return {n: a for n, a in inputs.items() if a is not None} if _is_deep(inputs) else named

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        size = getattr(self.loss, "mini_batch_size", None)
        rows = inputs["token_ids"].shape[0] if _is_deep(inputs) else None
        if training and size and not collect and (rows or 0) > size:
            parts = [
                {name: array[start : start + size] for name, array in inputs.items()}
                for start in range(0, rows, size)
            ]
            # Each of them is embedded again when its gradient is taken, and nothing kept of it.
            vectors = [recomputed(self, self._embed, (part, (), training), {})() for part in parts]
            return ops.concatenate(vectors)
        return self._embed(inputs, collect, training)

    def _embed(self, inputs, collect: tuple[str, ...], training: bool):
        found = super().call(flat(inputs), collect, training)
        if not _is_deep(inputs):
            return found
        vectors, *collected = found if collect else (found,)
        vectors = ops.reshape(vectors, (-1, inputs["token_ids"].shape[1], self.width))
        return (vectors, *collected) if collect else vectors

    def head_outputs(self, states, inputs, training: bool):
        if self.pooling == "pooler":
            vectors = ops.cast(pool_by(self.backbone, states, inputs["token_ids"]), "float32")
        else:
            states, prompts = ops.cast(states, "float32"), inputs.get(_PROMPTS)
            vectors = pool(states, inputs.get("padding_mask"), self.pooling, prompts)
        for layer, values in zip(self.dense_layers, self.dense, strict=True):
            vectors = layer(vectors)
            if values["activation"] is not None:
                vectors = get_activation(values["activation"])(vectors)
        vectors = ops.cast(vectors, "float32")
        return unit_vectors(vectors) if self.normalize else vectors

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Texts, or a tuple of lists of them, as batches. See `Task.make_dataset`.

        Args:
            x: texts; or a tuple of lists, row by row an anchor, its positive and any negatives, or
                the two texts of which `y` is the score.
            y: one number a row, with a loss that takes them; or the label of each text.
            sample_weight: one number a row.
            **options: as in `Task.make_dataset`; and `prompt`, put before each text in place of
                the one that `default_prompt_name` names.
        """
        tokenizer = tokenizer_of(self)
        max_length = take_max_length(self, options, default=self.max_length)
        prompt = options.pop("prompt", None)
        prompt = self.default_prompt if prompt is None else prompt
        several = is_tuple(x)
        parts = tuple_rows(x) if several else [text_rows(x)]
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

        def further(rows):
            return {_PROMPTS: np.full((*rows.shape, 1), skipped, "int32")} if skipped else {}

        if not several:
            values = self._labels_and_weights(y, sample_weight, len(ids[0]))

            def finish(inputs, arrays):
                return {**inputs, **further(arrays["row"])}, *(arrays[name] for name in values)

            return token_batches(self, {"token_ids": ids[0]}, finish, values=values, **options)
        if y is not None and self._learns_labels:
            raise ValueError(
                f"{type(self.loss).__name__} learns from single texts and their labels: "
                "fit(texts, labels), with a list of texts."
            )
        values = self._scores_and_weights(y, sample_weight, len(parts[0]))
        return tuple_batches(self, ids, further, values=values, **options)

    @property
    def _learns_labels(self) -> bool:
        return getattr(self.loss, "takes_labels", False)

    def _labels_and_weights(self, y, sample_weight, count: int) -> dict[str, np.ndarray]:
        """The values of a data set of single texts."""
        if (y is not None or sample_weight is not None) and not self._learns_labels:
            raise ValueError(
                "TextEmbedder has no labels of single texts: use `predict`. It learns from pairs, "
                "as in fit((anchors, positives)), or fit((first, second), scores); or from labels "
                'of single texts, compiled with loss="batch_hard_triplet".'
            )
        values = {} if y is None else {"labels": label_codes(y, count)}
        weights = check_weights("sample_weight", sample_weight, count)
        return {**values, "sample_weight": weights} if values and weights is not None else values

    def _scores_and_weights(self, y, sample_weight, count: int) -> dict[str, np.ndarray]:
        """The values of a data set of several texts a row."""
        values = {}
        if y is not None:
            if not getattr(self.loss, "takes_scores", True):
                raise ValueError(
                    f"{type(self.loss).__name__} takes no scores, and `y` was given. With scores "
                    'compile with loss="cosent" or "cosine_similarity"; without, leave `y` out.'
                )
            margins = getattr(self.loss, "takes_margins", False)
            values["scores"] = real_margins(y, count) if margins else real_numbers(y, count)
        weights = check_weights("sample_weight", sample_weight, count, unit="row")
        return values if weights is None else {**values, "sample_weight": weights}

    def _prompt_named(self, name: str | None) -> str:
        """The prompt of a name, "" for None. ValueError for one that there is not."""
        if name is not None and name not in self.prompts:
            known = (
                f"it has {', '.join(map(repr, self.prompts))}" if self.prompts else "it has none"
            )
            raise ValueError(
                f"The model has no prompt {shorten(name)}, {known}. Give `prompts`, a dict of name "
                "to text, when it is made or loaded."
            )
        return "" if name is None else self.prompts[name]

    def _prompt_length(self, prompt: str) -> int:
        """The tokens of a prompt, the last not counted if it is a special one."""
        ids = self.tokenizer.encode(prompt)
        return len(ids) - (ids[-1] in self.tokenizer.special_ids)

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        if self._takes(x) and self._learns_labels and y is None:
            raise ValueError(
                f"{type(self.loss).__name__} learns from single texts and their labels: give `y`, "
                "as in fit(texts, labels)."
            )
        if self._takes(x) and not is_tuple(x) and not self._learns_labels:
            raise ValueError(
                f"TextEmbedder learns from a tuple of lists of texts, received {describe(x)}: "
                "fit((anchors, positives)), fit((anchors, positives, negatives)), or "
                "fit((first, second), scores). `validation_data` is ((anchors, positives),) or "
                "((first, second), scores). Single texts and their labels are for compile(loss="
                '"batch_hard_triplet"). Vectors of texts are what `predict` gives.'
            )
        made = super()._batches(x, y, sample_weight, processing, **options)
        if isinstance(made[0], BucketedDataset):
            self._check_training_set(made[0])
        return made

    def _check_training_set(self, dataset: BucketedDataset) -> None:
        if getattr(self.loss, "takes_scores", False) and "scores" not in dataset.values:
            raise ValueError(
                f"{type(self.loss).__name__} learns from scores: give `y`, one number a pair. For "
                'pairs without scores compile with loss="multiple_negatives_ranking".'
            )
        if self._learns_labels and "labels" not in dataset.values:
            raise ValueError(
                f"{type(self.loss).__name__} learns from single texts and their labels: "
                "make_dataset(texts, labels)."
            )

    @reads
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        batch_size: int | None = None,
    ) -> np.ndarray:
        """The vectors of texts, with a prompt of the model before each.

        Args:
            texts: a list of strings, or one string.
            prompt_name: str, one of `prompts`. Defaults to `default_prompt_name`.
            batch_size: int.

        Returns:
            Float `(texts, width)`; of one string `(width,)`.

        Raises:
            ValueError: for a prompt that the model does not have.

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
        """Return the vectors of a list of texts, and how many tokens were read of all of them.

        The arguments are those of `encode`. Prompts and special tokens are counted, and what is cut
        is not.
        """
        prompt = self._prompt_named(prompt_name or self.default_prompt_name)
        options = {"sizes": self._sizes, "batch_size": batch_size, "prompt": prompt}
        dataset = self.make_dataset(texts, **options)
        return self.predict(dataset, verbose=0), dataset.tokens_per_epoch

    def encode_ids(
        self, rows: Sequence[Sequence[int]], prompt_name: str | None = None
    ) -> np.ndarray:
        """The vectors of texts that are ids of the tokenizer already.

        A prompt and the special tokens of a text are put around them, as around texts, unless the
        special tokens are there. Rows with more than `max_length` ids are cut.

        Args:
            rows: lists of ids, one for each text.
            prompt_name: as in `encode`.

        Returns:
            Float `(texts, width)`.

        Raises:
            ValueError: if a row is empty or has ids that the model does not have.

        Example:
        ```python
        import keras_transformer as kt

        embedder = kt.TextEmbedder.from_preset("minilm_l6_en")
        ids = embedder.tokenizer.encode("where is Rome?", special_tokens=False)
        assert (embedder.encode_ids([ids])[0] == embedder.encode("where is Rome?")).all()
        ```
        """
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
        dataset = token_batches(self, columns, finish, sizes=self._sizes, batch_size=None)
        return self.predict(dataset, verbose=0)

    def _behind_prompt(self, prompt: str, rows: list[list[int]]) -> list[list[int]]:
        """Rows of ids with a prompt and special tokens around them."""
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

    @classmethod
    def usual_columns(cls, names: Sequence[str]) -> tuple[tuple[str, ...], str | None]:
        """The columns of texts of a data set, all but that of scores, in their order."""
        label = next((name for name in _LABELS if name in names), None)
        return tuple(name for name in names if name != label), label

    @classmethod
    def head_values(cls, config: TransformerConfig, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "pooling": values.get("pooling") or ("pooler" if config.vector_pooling else "mean"),
            "dense": _checked_dense(values.get("dense") or ()),
        }

    @classmethod
    def head_shapes(
        cls, config: TransformerConfig, values: dict[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        shapes, width = {}, pooled_width(config, cls.head_values(config, values)["pooling"])
        for number, layer in enumerate(_checked_dense(values.get("dense") or ())):
            shapes[f"dense_{number}/kernel"] = (width, layer["units"])
            if layer["use_bias"]:
                shapes[f"dense_{number}/bias"] = (layer["units"],)
            width = layer["units"]
        return shapes


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
    """The linear layers with all their values. ValueError for what is none."""
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
