"""Search in pages as images: a vector for each part of a page and each token of a query."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_transformer.config import TransformerConfig
from keras_transformer.data import BucketedDataset
from keras_transformer.kernels.device import device
from keras_transformer.layers.normalization import unit_vectors
from keras_transformer.models.backbone import Backbone, as_mask
from keras_transformer.models.runtime.read_write_lock import reads
from keras_transformer.processors.processor import Processor
from keras_transformer.support.checking import (
    check_int,
    check_text,
    describe,
    shorten,
)
from keras_transformer.support.files import has_file
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.labels import check_weights
from keras_transformer.tasks.data.text import check_equal, check_said, take_max_length, text_rows
from keras_transformer.tasks.images.row_images import (
    RowImages,
    image_arrays,
    repeated,
    states_of,
)
from keras_transformer.tasks.media.sources import PageProcessor
from keras_transformer.tasks.text.late_interaction import late_scores
from keras_transformer.tokenizers import ImageMarkup, Tokenizer
from keras_transformer.training import FineTuningAdamW, MultipleNegativesRankingLoss
from keras_transformer.training.losses.embedding_losses import EmbeddingLoss, embedding_loss

_QUERIES = ("query_token_ids", "query_padding_mask")  # of a row that has a page and a query
_TOKENS = 2**13  # tokens of a batch of `encode` on a CPU: eight pages of a thousand patches


class PageVectorHead(Head):
    """The head of `PageEmbedder`: a linear layer on each state, and vectors of length 1.

    Args:
        task: as for `Head`.
        vector_dim: as for `PageEmbedder`.
    """

    options = ("vector_dim",)
    takes_records = False
    predicts_by_tokens = True
    predict_options: ClassVar[dict[str, Any]] = {
        "max_buckets": 1
    }  # rows of one length are one array
    further_inputs = _QUERIES
    beside, learned, needs_beside = ("query", "queries", "question", "text"), (), True

    def __init__(self, task, vector_dim: int):
        super().__init__(task)
        self.vector_dim = check_int("vector_dim", vector_dim, at_least=1, at_most=2**20)
        self.keep(projection=self.make_dense(self.vector_dim, "projection"))

    def __call__(self, states, inputs, training: bool = False):
        vectors = unit_vectors(ops.cast(self.projection(states), "float32"))
        there = as_mask(vectors[..., 0], inputs.get("decoder_padding_mask"))
        return ops.where(ops.expand_dims(there, -1), vectors, ops.zeros_like(vectors))

    def usual(self) -> dict[str, Any]:
        # A score is a sum over the tokens of a query.
        loss = MultipleNegativesRankingLoss(scale=1.0)
        return {"optimizer": FineTuningAdamW(), "loss": loss}

    @classmethod
    def weight_values(cls, config: TransformerConfig, values: Mapping[str, Any]) -> dict[str, Any]:
        return {"vector_dim": values.get("vector_dim", 128)}

    @classmethod
    def weight_shapes(
        cls, config: TransformerConfig, values: Mapping[str, Any]
    ) -> dict[str, tuple[int, ...]]:
        size = cls.weight_values(config, values)["vector_dim"]
        return {
            "projection/kernel": (config.sides[-1].hidden_dim, size),
            "projection/bias": (size,),
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class PageEmbedder(Task):
    """A model that finds pages by queries: it embeds images of pages, and texts.

    Each patch of a page and each token of a query has a vector. The score of a page is the sum,
    over the tokens of the query, of the largest product with a vector of the page (late
    interaction, as in ColBERT). A page needs no text recognition: tables, figures and layout are
    read as they are.

    It trains on pages and their queries, `fit((pages, queries))`, compiled with AdamW (5e-5) and
    `training.MultipleNegativesRankingLoss` over the scores of a batch.

    Args:
        backbone: a `Seq2Seq` whose encoder has an image `stem` and whose states replace placeholder
            tokens of the decoder, such as those of PaliGemma and Qwen2-VL.
        processor: `processors.ImageProcessor`, or None if the task only takes arrays and ids.
        tokenizer: `Tokenizer`, or None if the task only takes arrays and ids.
        vector_dim: int, the width of a vector.
        page_template: str, the text around a page, with `"{image}"` in its place. The special
            tokens of the tokenizer are not added.
        query_template: str, the text around a query, with `"{query}"` in its place. Published
            models end it with padding tokens, whose vectors expand the query.
        name: str.

    Call arguments:
        inputs: dict with `decoder_token_ids`, `decoder_padding_mask` and `decoder_placed_states`,
            and for pages also `encoder_images`, or `encoder_patches` and
            `encoder_patch_positions`, as for `ImageToText`. In training also `query_token_ids` int
            and `query_padding_mask` bool `(batch, query_length)`.

    Returns:
        Float `(batch, length, vector_dim)`, with zeros in the places of padding; with queries
        `(batch, 2, length, vector_dim)`, a query and its page in each row.

    Raises:
        ValueError: if the backbone reads no images or has no placeholders, or a template has no
            place for what it is around.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    tokenizer = kt.Tokenizer.train(
        ["a dark page", "a bright page"] * 4, vocabulary_size=300, special_tokens=["<image>"]
    )
    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
        num_heads=2, intermediate_dim=64, position="rotary", normalize_first=True,
        placeholder_id=tokenizer.token_to_id("<image>"), projector="linear",
        encoder={
            "vocabulary_size": 0, "position": "learned",
            "stem": {"kind": "patches", "image_size": [16, 16], "patch_size": 4},
        },
    )
    embedder = kt.PageEmbedder(
        kt.models.Seq2Seq(config), kt.ImageProcessor(size=16), tokenizer, vector_dim=8,
        query_template="{query}" + 3 * tokenizer.id_to_token(tokenizer.pad_id),
    )
    pages = [np.full((16, 16, 3), value, "uint8") for value in (10, 240)]
    embedder.fit((pages, ["a dark page", "a bright page"]), epochs=1, verbose=0)

    stored = embedder.encode(pages)  # a list of arrays (tokens, 8)
    found = embedder.search(embedder.encode_texts("a dark page"), stored, top_k=1)
    ((page, score),) = found
    assert page in (0, 1)
    ```

    Source: Faysse et al. 2024, "ColPali: Efficient Document Retrieval with Vision Language Models",
    https://arxiv.org/abs/2407.01449, section 4.
    """

    alias = "page_embedding"
    backbone_kinds = ("seq2seq",)
    head_class = PageVectorHead
    processor_class = PageProcessor
    task_options = ("vector_dim", "page_template", "query_template")

    vector_dim: int  # a value of the head

    def __init__(
        self,
        backbone: Backbone,
        processor: Processor | None = None,
        tokenizer: Tokenizer | None = None,
        vector_dim: int = 128,
        page_template: str = "{image}",
        query_template: str = "{query}",
        name: str | None = None,
    ):
        super().__init__(backbone, self.processor_class.joined(processor, tokenizer), name=name)
        places = backbone.placeholder_tokens
        if (
            backbone.id_inputs[0] not in self.processor_class.reads_arrays
            or places is None
            or places.apart
        ):
            raise ValueError(
                "PageEmbedder needs a backbone that puts images among the tokens of its decoder: "
                "give the config an `encoder` with an image `stem`, a `placeholder_id`, and "
                "positions that count all tokens."
            )
        self.page_template = _checked_template("page_template", page_template, "{image}")
        self.query_template = _checked_template("query_template", query_template, "{query}")
        self.set_head(vector_dim=vector_dim)

    def compile(self, optimizer="auto", loss="auto", *args, **kwargs):
        """Compile as `TextEmbedder.compile` does, with a loss that takes vectors of tokens.

        Args:
            optimizer: as in `keras.Model.compile`.
            loss: `"multiple_negatives_ranking"` or an object, see
                `training.MultipleNegativesRankingLoss`.
            *args: as in `keras.Model.compile`.
            **kwargs: as in `keras.Model.compile`.

        Raises:
            ValueError: if the loss is unknown, or takes one vector for each text.
        """
        loss = embedding_loss(loss)
        if isinstance(loss, EmbeddingLoss):
            loss.check_width(self.vector_dim)
            if not loss.takes_tokens or loss.mini_batch_size is not None:
                raise ValueError(
                    f"{type(loss).__name__} does not take the vectors of pages and queries, one "
                    'for each token: compile with loss="multiple_negatives_ranking".'
                )
        super().compile(optimizer, loss, *args, **kwargs)

    def _named(self, inputs) -> dict[str, Any]:
        if not isinstance(inputs, Mapping) or inputs.get(_QUERIES[0]) is None:
            return super()._named(inputs)
        pages = super()._named({n: array for n, array in inputs.items() if n not in _QUERIES})
        queries = {name: inputs[name] for name in _QUERIES if inputs.get(name) is not None}
        super()._named(self._of_queries(queries))
        return {**pages, **queries}

    def call(self, inputs, collect: tuple[str, ...] = (), training: bool = False):
        found = super().call(inputs, collect, training)
        if inputs.get(_QUERIES[0]) is None:
            return found
        pages, *collected = found if collect else (found,)
        queries = super().call(self._of_queries(inputs), training=training)
        # Pad both with zeros to the sum of their lengths: a vector of zeros is not a token.
        zeros = [ops.zeros_like(each) for each in (pages, queries)]
        both = [ops.concatenate(pair, axis=1) for pair in zip((queries, pages), zeros, strict=True)]
        vectors = ops.stack(both, axis=1)
        return (vectors, *collected) if collect else vectors

    def _of_queries(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs of a pass over the queries of rows, which have no images."""
        ids, mask = (inputs.get(name) for name in _QUERIES)
        found = {"decoder_token_ids": ids}
        if mask is not None:
            found["decoder_padding_mask"] = mask
        lib = np if isinstance(ids, np.ndarray) else ops
        none = lib.zeros_like(ids[:, :1])
        found["decoder_placed_states"] = none - 1
        axes = self.backbone.placeholder_tokens.axes
        if axes:
            found["decoder_placed_offsets"] = lib.stack([none] * (axes + 1), axis=-1)
        return self._seeing(found)

    def _seeing(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return inputs with what tells that all tokens see each other, if the model needs it."""
        if self.backbone.placeholder_tokens.visibility != "prompt":
            return inputs
        mask = inputs.get("decoder_padding_mask")
        if mask is None:
            ids = inputs["decoder_token_ids"]
            mask = ops.ones_like(ids, dtype="bool")
        return {**inputs, "decoder_prefix_mask": mask}

    # Batches of pages, of queries, and of both.

    def make_dataset(self, x, y=None, sample_weight=None, **options) -> BucketedDataset:
        """Batch pages, or a tuple of pages and their queries. See `Task.make_dataset`.

        Args:
            x: pages, images; or a tuple of pages and queries that belong together pairwise.
            y: must be None: the targets are the queries.
            sample_weight: one number for each pair.
            **options: as in `Task.make_dataset`; `max_length` applies to queries.
        """
        if y is not None:
            raise ValueError(
                "PageEmbedder learns which page and query belong together, and takes no `y`: "
                "fit((pages, queries))."
            )
        pages, queries = self._require_processor().parts(x)
        max_length = take_max_length(self, options)
        images, ids = self._page_rows(pages)
        if queries is None:
            if sample_weight is not None:
                raise ValueError("`sample_weight` is for pairs: (pages, queries).")
            return self._row_batches(ids, images, **options)
        texts = text_rows(queries, "queries")
        check_equal(pages, texts, ("pages", "queries"))
        weights = check_weights("sample_weight", sample_weight, len(images), unit="pair")
        values = {} if weights is None else {"sample_weight": weights}

        def finish(inputs, arrays, masks):
            inputs |= dict(zip(_QUERIES, (arrays["queries"], masks["queries"]), strict=True))
            ones = np.ones(len(arrays["row"]), "float32")
            return inputs, ones, *(arrays[name] for name in values)

        paired = {"queries": self._query_rows(texts, max_length)}
        return self._row_batches(
            ids, images, finish, paired_columns=paired, values=values, **options
        )

    def _row_batches(self, ids, images: list[RowImages], finish=None, **options):
        """Batch rows of ids with the images of each."""
        backbone, source = self.backbone, self._require_processor().source

        def make_batch(arrays, masks):
            rows = arrays["row"]
            inputs = {"decoder_token_ids": arrays["ids"], "decoder_padding_mask": masks["ids"]}
            inputs |= image_arrays(backbone, source, [images[i] for i in rows], rows)
            inputs = self._seeing(inputs)
            return (inputs,) if finish is None else finish(inputs, arrays, masks)

        padded = dict.fromkeys(("ids", *options.get("paired_columns", ())), self._pad_id)
        return self._bucketed({"ids": ids}, make_batch, pad_values=padded, **options)

    @property
    def _pad_id(self) -> int:
        return self.tokenizer.pad_id or 0

    @property
    def _image_token(self) -> str:
        """The token that a state of an image replaces. Raises ValueError if it is missing."""
        place = self.backbone.placeholder_tokens.token
        token = self.tokenizer.id_to_token(place)
        if token is None:
            raise ValueError(
                f"The tokenizer has no token of the id {place}, the `placeholder_id` of the model: "
                "give the tokenizer that belongs to it."
            )
        return token

    def _page_rows(self, pages: Sequence) -> tuple[list[RowImages], list[list[int]]]:
        """Return each page as the image of a row, and the ids of the row.

        Of images of any size only the size is read here.
        """
        token, place = self._image_token, self.backbone.placeholder_tokens.token
        source, states = self._require_processor().source, states_of(self.backbone)
        layouts = [source.layouts([page], states, [f"x[{i}]"])[0] for i, page in enumerate(pages)]
        markup = ImageMarkup(token, "{image}")
        texts = [markup.written(self.page_template, [layout.text]) for layout in layouts]
        known: dict[str, list[int]] = {}  # most pages have the same text
        for text in texts:
            if text not in known:
                known[text] = self.tokenizer.encode(text, special_tokens=False)
        rows = [
            repeated(known[text], place, [len(run) for run in layout.runs])
            for text, layout in zip(texts, layouts, strict=True)
        ]
        pairs = zip(pages, layouts, strict=True)
        return [RowImages.whole([page], [layout]) for page, layout in pairs], rows

    def _query_rows(self, texts: list[str], max_length: int) -> list[list[int]]:
        """Return the ids of queries. Raises ValueError if one is empty, too long or has an image.

        Queries are not truncated: they would lose the end of their template.
        """
        token = self._image_token
        for place, text in enumerate(texts):
            if token in text:
                raise ValueError(
                    f"`queries[{place}]` has {token!r}, which stands for an image: leave it out."
                )
        before, behind = self.query_template.split("{query}")
        written = [f"{before}{text}{behind}" for text in texts]
        ids = self.tokenizer.encode_batch(written, special_tokens=False)
        (empty,) = self.tokenizer.encode_batch([before + behind], special_tokens=False)
        check_said(texts, ids, empty, "`queries[{}]`".format)
        for place, row in enumerate(ids):
            if len(row) > max_length:
                raise ValueError(
                    f"`queries[{place}]` has {len(row):,} tokens with its template, and may have "
                    f"{max_length:,}: shorten it."
                )
        return ids

    def _batches(self, x, y, sample_weight, processing: dict, **options) -> tuple:
        if self._takes(x) and not isinstance(x, tuple):
            raise ValueError(
                f"PageEmbedder learns from pages and their queries, fit((pages, queries)), "
                f"received {describe(x)}. `validation_data` is ((pages, queries),). For vectors of "
                "pages use `encode`."
            )
        if isinstance(x, Mapping) and y is None:
            y = np.ones(len(x["decoder_token_ids"]), "float32")
        return super()._batches(x, y, sample_weight, processing, **options)

    def to_predict(self, batch_size: int | None = None) -> dict[str, Any]:
        options = super().to_predict(batch_size)
        if batch_size is None and device().batch_tokens is None:
            options |= {"batch_tokens": _TOKENS, "even": True}
        return options

    # Embedding, scores and search.

    @reads
    def encode(self, pages, batch_size: int | None = None):
        """Return the vectors of pages. Images are read batch by batch.

        Args:
            pages: a list of images that `ImageProcessor` can read, such as paths, or one image.
            batch_size: int, the number of pages computed together. Defaults to as many as have
                about 8,192 tokens on a CPU, and on a GPU to as many as suit it.

        Returns:
            A list of float32 arrays `(tokens, vector_dim)`, of vectors of length 1; one array for
            one image.

        Raises:
            ValueError: if one is not an image.
        """
        _refuse_queries(pages)
        alone = self._require_processor().source.is_one(pages)
        dataset = self.make_dataset([pages] if alone else pages, **self.to_predict(batch_size))
        vectors = self._row_outputs(dataset, _without_padding)
        return vectors[0] if alone else vectors

    @reads
    def encode_texts(self, texts: str | Sequence[str], batch_size: int | None = None):
        """Return the vectors of queries, each in the `query_template`.

        Args:
            texts: a list of strings, or one string.
            batch_size: int, the number of queries computed together, as for `encode`.

        Returns:
            A list of float32 arrays `(tokens, vector_dim)`, of vectors of length 1; one array for
            one string.

        Raises:
            ValueError: if a text is empty, too long, or holds the token that stands for an image.
        """
        self._require_processor()
        alone = isinstance(texts, str)
        rows = text_rows([texts] if alone else texts, "texts")
        options = self.to_predict(batch_size)
        ids = self._query_rows(rows, take_max_length(self, options))
        dataset = self._row_batches(ids, [RowImages()] * len(ids), **options)
        vectors = self._row_outputs(dataset, _without_padding)
        return vectors[0] if alone else vectors

    def similarity(self, queries: Sequence, pages: Sequence) -> np.ndarray:
        """Return the score of each query with each page, by late interaction (MaxSim).

        Args:
            queries: the result of `encode_texts` for a list of texts.
            pages: the result of `encode` for a list of pages, or what was stored of it.

        Returns:
            Float32 `(queries, pages)`. A score is at most the number of tokens of the query.

        Source: Khattab and Zaharia 2020, "ColBERT", section 3.3.
        """
        return late_scores(_vectors("queries", queries), _vectors("pages", pages))

    def search(self, queries, pages: Sequence, top_k: int = 5) -> list:
        """Return the pages with the highest scores of each query, the best first.

        Args:
            queries: the result of `encode_texts`, for a list of texts or for one.
            pages: as for `similarity`.
            top_k: int, the number of pages to return; the number of pages or more returns all.

        Returns:
            For each query a list of `(page, score)`, an int that counts the pages from 0 and a
            float; for one query, only its list.
        """
        check_int("top_k", top_k, at_least=1)
        alone = np.ndim(queries[0]) == 1 if len(queries) else False
        scores = self.similarity([queries] if alone else queries, pages)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        found = [
            [(int(page), float(row[page])) for page in places]
            for row, places in zip(scores, best, strict=True)
        ]
        return found[0] if alone else found


def _checked_template(name: str, template: Any, place: str) -> str:
    if check_text(name, template).count(place) != 1:
        raise ValueError(f"`{name}` must have {place!r} once, received {shorten(template)}.")
    return template


def _refuse_queries(pages: Any) -> None:
    """Raise ValueError if texts are given in the place of images."""
    given = [pages] if isinstance(pages, str) else pages
    first = given[0] if isinstance(given, (list, tuple)) and len(given) else None
    if isinstance(first, str) and not has_file(first):
        raise ValueError(
            f"`encode` embeds images of pages, and there is no file {shorten(first)}. For texts, "
            "such as queries, call `encode_texts`."
        )


def _without_padding(vectors: np.ndarray) -> list[np.ndarray]:
    return [row[(row != 0).any(axis=-1)] for row in vectors]


def _vectors(name: str, given: Any) -> Sequence[np.ndarray]:
    """Check that each item has a vector for each token. Raises ValueError if it has not."""
    wrong = next((each for each in given if np.ndim(each) != 2), None)
    if wrong is not None:
        raise ValueError(
            f"`{name}` must be a list of arrays (tokens, width), as `encode` returns them for a "
            f"list, received an item of shape {np.shape(wrong)}."
        )
    return given
