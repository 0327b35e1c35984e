"""Token and segment embeddings."""

import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_transformer.kernels.indexing import look_up
from keras_transformer.kernels.products import (
    BY_XLA,
    bfloat16_product,
    dequantized_product,
    int4_product,
    int8_product,
    takes_bfloat16,
    takes_int4,
    takes_int8,
)
from keras_transformer.kernels.quantized_matrix import MODES, QuantizedMatrix
from keras_transformer.kernels.values import known_values
from keras_transformer.layers.arguments import (
    ChecksCall,
    SavesArguments,
    check_axes,
    check_range,
    checked_options,
)
from keras_transformer.layers.remat import Rematerializable, whole_value
from keras_transformer.layers.word_vectors import read_vectors, words_by_id
from keras_transformer.support.checking import (
    check_bool,
    check_int,
    check_number,
    check_seed,
    shorten,
)


class Embedding(keras.layers.Embedding):
    """`keras.layers.Embedding` with the lookup of `kernels`."""

    def call(self, inputs):
        return ops.cast(look_up(self.embeddings, ops.cast(inputs, "int32")), self.compute_dtype)


# Rows of a table that are quantized at a time, and the axes of the vocabulary in what they become.
_ROWS = 8192
_PARTS = {
    "_embeddings": 0, "embeddings_scale": 0, "embeddings_zero": 0,
    "reverse_embeddings": 1, "reverse_embeddings_scale": -1, "reverse_embeddings_zero": 1,
}  # fmt: skip

_SIZE = functools.partial(check_int, at_least=1, at_most=2**31 - 1)


def _check_scale(name: str, value):
    return value if isinstance(value, bool) else check_number(name, value)


class _OfIds(ChecksCall):
    """Mixin for an embedding that checks the range of its ids if their values are known."""

    def __call__(self, inputs, *args, **kwargs):
        values = known_values(inputs)
        if values is not None and values.dtype.kind in "iu":
            known = f"the layer {self.name!r} has the ids"
            check_range("inputs", values, 0, self.input_dim - 1, known)
        return super().__call__(inputs, *args, **kwargs)


def _table(path, words, found, vectors, missing, seed) -> tuple[np.ndarray, list[str]]:
    """Return the vectors of all words in order, and the words that the file does not have."""
    row_of = {word: row for row, word in enumerate(found)}
    missing_words = [word for word in words if word not in row_of]
    if not found:
        raise ValueError(
            f"{path} has none of the {len(words)} words, such as {shorten(words[:3])}. Write them "
            "as in the file, for example in lower case."
        )
    if missing_words and missing == "error":
        raise ValueError(
            f"{path} does not have {len(missing_words)} of {len(words)} words: "
            f"{shorten(missing_words)}. Leave them out, or give `missing`."
        )
    table = np.zeros((len(words), vectors.shape[1]), "float32")
    if missing == "random":
        bound = math.sqrt(3 * vectors.var())
        table[:] = np.random.default_rng(seed).uniform(-bound, bound, table.shape)
    rows = [(place, row_of[word]) for place, word in enumerate(words) if word in row_of]
    places, sources = np.array(rows).T
    table[places] = vectors[sources]
    return table, missing_words


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(_OfIds, Rematerializable, keras.layers.ReversibleEmbedding, Embedding):
    """Embed token ids as vectors, and project states to vocabulary logits with the same matrix.

    Args:
        vocabulary_size: int, number of token ids.
        hidden_dim: int, width of a vector.
        scale: float, factor of the vectors; True for `sqrt(hidden_dim)`. The logits are not scaled.
        tie_weights: bool, whether `reverse=True` uses the transposed embedding matrix.
        replaced_id: int, id of a token whose vector is a weight of its own, which is not scaled, in
            place of a row of the matrix. The logits use the row. Defaults to no such token.
        **kwargs: as in `keras.layers.ReversibleEmbedding`, e.g. `embeddings_initializer`,
            `mask_zero`, `dtype`, `name`.

    Call arguments:
        inputs: int `(batch, length)`, or with `reverse=True` float `(batch, length, hidden_dim)`.
        reverse: bool, whether to project states to logits.

    Returns:
        Float `(batch, length, hidden_dim)`, or `(batch, length, vocabulary_size)` for logits.

    Raises:
        ValueError: if ids are not below `vocabulary_size`, in NumPy arrays and in JAX arrays on a
            CPU. Within a compiled function ids are not checked.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import TokenEmbedding

    embedding = TokenEmbedding(100, 16, scale=True)
    states = embedding(np.array([[5, 7, 1]]))
    logits = embedding(states, reverse=True)
    assert states.shape == (1, 3, 16) and logits.shape == (1, 3, 100)
    ```

    Source: Vaswani et al. 2017, section 3.4; Press and Wolf 2016 for the tied output.
    """

    option_rules: ClassVar = {
        "vocabulary_size": _SIZE,
        "scale": _check_scale,
        "tie_weights": check_bool,
        "replaced_id": functools.partial(check_int, at_least=0),
    }

    # The words by id, and the words missing from the file; only `from_vectors` sets these.
    vocabulary: list[str] | None = None
    missing_words: list[str] | None = None
    # Whether the states stay as they are in products with a quantized matrix.
    float_states: bool = False
    # The processes that have other words, see `distribution.tensor_parallel`.
    sharing: Any = None

    def __init__(
        self,
        vocabulary_size: int,
        hidden_dim: int,
        scale: bool | float = False,
        tie_weights: bool = True,
        replaced_id: int | None = None,
        **kwargs,
    ):
        given = {"vocabulary_size": vocabulary_size, "hidden_dim": hidden_dim, "scale": scale}
        given |= {"tie_weights": tie_weights, "replaced_id": replaced_id}
        given = checked_options(type(self), given)
        vocabulary_size, hidden_dim, scale, tie_weights, replaced_id = given.values()
        super().__init__(vocabulary_size, hidden_dim, tie_weights=tie_weights, **kwargs)
        self.scale, self.replaced_id = scale, replaced_id
        self.supports_masking = True  # Hidden states may carry a mask; logits do not.

    def check_call(self, given):
        if given.get("reverse"):
            axes, sizes = {"inputs": (..., "hidden_dim")}, {"hidden_dim": self.output_dim}
            check_axes(type(self).__name__, axes, sizes, given)

    @classmethod
    def from_vectors(
        cls,
        path: str | os.PathLike,
        vocabulary: Sequence[str] | Mapping[str, int] | None = None,
        format: str = "auto",
        missing: str = "random",
        limit: int | None = None,
        seed: int | None = None,
        **kwargs,
    ) -> Self:
        r"""Make a layer from a file of pretrained word vectors: GloVe, word2vec or fastText.

        The returned layer has two additional attributes, which its config and its files do not
        keep: `vocabulary`, the words in the order of their ids, and `missing_words`, the words
        that the file does not have.

        Args:
            path: a file in one of the formats, plain or compressed with gzip.
            vocabulary: words in the order of their ids, or a dict from word to id. Defaults to
                the words of the file, in its order. Case matters: lower-case your words if the
                words of the file are lower-case.
            format: `"glove"` (text without a header; words may contain spaces), `"word2vec"` and
                `"fasttext"` (text after a header line with the number of vectors and their width),
                or `"word2vec_binary"`. `"auto"` detects the format from the first two lines.
            missing: treatment of words of `vocabulary` that are not in the file: `"random"` draws
                their vectors uniformly, with the variance of the vectors in the file (Kim 2014,
                section 3.2); `"zeros"`; or `"error"`.
            limit: int, maximum number of vectors to read. Published files begin with frequent
                words.
            seed: int, seed of `missing="random"`.
            **kwargs: as in the constructor, e.g. `scale`, `mask_zero`, `trainable`, `name`.

        Returns:
            A built `TokenEmbedding`. If the file has a word twice, the first vector is used.

        Raises:
            FileNotFoundError: if the file does not exist.
            ValueError: if the file is incomplete or not in the format (the message gives the
                line), if the vocabulary has a word twice or the file has none of its words, or if
                a word is missing and `missing="error"`.

        Example:
        ```python
        from pathlib import Path
        from keras_transformer.layers import TokenEmbedding

        Path("tiny.txt").write_text("the 0.1 0.2\ncat 0.3 0.4\n")
        embedding = TokenEmbedding.from_vectors("tiny.txt", ["<pad>", "cat"], missing="zeros")
        assert embedding.missing_words == ["<pad>"] and embedding.embeddings.shape == (2, 2)
        ```

        Source: Pennington et al. 2014, "GloVe"; Mikolov et al. 2013; Bojanowski et al. 2017.
        """
        if missing not in ("random", "zeros", "error"):
            raise ValueError(
                f"`missing` must be 'random', 'zeros' or 'error', received {missing!r}."
            )
        seed = check_seed("seed", seed, none=True)
        words = None if vocabulary is None else words_by_id(vocabulary)
        found, vectors = read_vectors(path, format, words, limit)
        words = found if words is None else words
        table, missing_words = _table(path, words, found, vectors, missing, seed)
        layer = cls(len(words), vectors.shape[1], **kwargs)
        layer.build()
        layer.embeddings.assign(table)
        layer.vocabulary, layer.missing_words = words, missing_words
        return layer

    def call(self, inputs, reverse: bool = False):
        if self.sharing is not None:
            return self._shared(inputs, reverse)
        if reverse and BY_XLA and self._plain():
            if takes_bfloat16(inputs, self.embeddings):
                return bfloat16_product(inputs, self.embeddings, axis=1)
            if all(size == 1 for size in inputs.shape[:-1]):
                # With the transposed matrix XLA recomputes a preceding norm for each number.
                logits = ops.matmul(self.embeddings, ops.reshape(inputs, (-1, 1)))
                return ops.reshape(logits, (*inputs.shape[:-1], self.input_dim))
        outputs = super().call(inputs, reverse=reverse)
        return outputs if reverse else self._finished(outputs, inputs)

    def _shared(self, inputs, reverse: bool):
        """Join the logits of all processes, or sum the vectors of ids: one process has each."""
        if reverse:
            return self.sharing.join(super().call(self.sharing.enter(inputs), reverse=True))
        held = ops.convert_to_tensor(self.embeddings).shape[0]
        own = ops.cast(inputs, "int32") - self.sharing.index * held
        is_here = ops.logical_and(own >= 0, own < held)
        vectors = super().call(ops.where(is_here, own, 0))
        vectors = ops.where(is_here[..., None], vectors, ops.zeros((), vectors.dtype))
        return self._finished(self.sharing.sum(vectors), inputs)

    def build(self, input_shape=None):
        super().build(input_shape)
        if self.replaced_id is not None and not hasattr(self, "replaced"):
            self.replaced = self.add_weight(
                (self.output_dim,), self.embeddings_initializer, name="replaced"
            )

    @property
    def variable_serialization_spec(self):
        spec = super().variable_serialization_spec
        further = [] if self.replaced_id is None else ["replaced"]
        return {mode: [*names, *further] for mode, names in spec.items()}

    def _plain(self) -> bool:
        """Return True if logits are simply a product with the embeddings."""
        return self.tie_weights and self.reverse_dtype is None and self.logit_soft_cap is None

    def compute_mask(self, inputs, mask=None):
        # Keras sets the mask in its own `call`; scaling and quantization would lose it.
        states = keras.backend.is_float_dtype(inputs.dtype)  # the inputs of `reverse=True`
        return None if states or not self.mask_zero else ops.not_equal(inputs, 0)

    def quantize(self, mode=None, type_check: bool = True, config=None):
        # Keras refuses subclasses, which may compute something else. This one only scales.
        if self.input_dim > _ROWS and mode in MODES:
            self._quantize_in_parts(mode, config)
        else:
            super().quantize(mode, type_check=False, config=config)

    def _quantize_in_parts(self, mode: str, config) -> None:
        """Quantize some rows at a time: for a whole table Keras needs six times its memory."""
        floats = {"embeddings": ops.convert_to_numpy(self._embeddings)}
        if not self.tie_weights:
            floats["reverse_embeddings"] = ops.convert_to_numpy(self.reverse_embeddings).T
        found: dict[str, list[np.ndarray]] = {}
        for start in range(0, self.input_dim, _ROWS):
            rows = {name: array[start : start + _ROWS] for name, array in floats.items()}
            part = TokenEmbedding(
                len(rows["embeddings"]), self.output_dim, tie_weights=self.tie_weights,
                embeddings_initializer="zeros", dtype=self.dtype_policy,
            )  # fmt: skip
            part.build()
            for name, array in rows.items():
                getattr(part, name).assign(array if name == "embeddings" else array.T)
            part.quantize(mode, config=config)
            for name in _PARTS:
                if getattr(part, name, None) is not None:
                    array = ops.convert_to_numpy(getattr(part, name))
                    found.setdefault(name, []).append(np.array(array))
        del floats, rows, self._embeddings
        if not self.tie_weights:
            del self.reverse_embeddings
        self.quantization_config = config
        self.quantized_build((self.input_dim, self.output_dim), mode, config)
        for name, arrays in found.items():
            getattr(self, name).assign(np.concatenate(arrays, axis=_PARTS[name]))
        self.dtype_policy = part.dtype_policy

    def quantized_call(self, inputs, reverse: bool = False):
        # Keras calls this instead of `call` once the layer is quantized.
        if reverse and self.float_states and self.logit_soft_cap is None:
            return dequantized_product(inputs, QuantizedMatrix(self, of_logits=True))
        if reverse and self.logit_soft_cap is None and takes_int8(self, inputs):
            if not self.tie_weights:
                return int8_product(inputs, self.reverse_embeddings, self.reverse_embeddings_scale)
            return int8_product(inputs, self._embeddings, self.embeddings_scale, axis=1)
        if reverse and self.logit_soft_cap is None and takes_int4(self, inputs, of_logits=True):
            return int4_product(self, inputs, of_logits=True)
        if not reverse and self.quantization_mode == "int4" and not self.lora_enabled:
            return self._finished(self._rows_of_int4(inputs), inputs)
        outputs = super().quantized_call(inputs, reverse=reverse)
        return outputs if reverse else self._finished(outputs, inputs)

    def _rows_of_int4(self, ids):
        """Dequantize only the rows of `ids`; Keras dequantizes the whole table in each call."""
        flat = ops.reshape(ops.cast(ids, "int32"), (-1,))
        rows = ops.take(self._embeddings, flat, axis=0)
        rows = keras.quantizers.unpack_int4(rows, self.output_dim, axis=-1)
        rows = ops.cast(rows, "float32")
        scale = ops.cast(ops.take(self.embeddings_scale, flat, axis=0), "float32")
        if getattr(self, "embeddings_zero", None) is None:
            rows = ops.divide(rows, scale[:, None])
        else:
            groups = ops.cast(self.g_idx, "int32")
            zero = ops.cast(ops.take(self.embeddings_zero, flat, axis=0), rows.dtype)
            scale, zero = (ops.take(x, groups, axis=1) for x in (scale, zero))
            rows = (rows - zero) * scale
        rows = ops.cast(rows, self.compute_dtype)
        return ops.reshape(rows, (*ops.shape(ids), self.output_dim))

    def output_kernel(self, joined: bool = True):
        """Return the matrix that projects states to logits, `(vocabulary_size, hidden_dim)`.

        Args:
            joined: bool, whether processes that have other words join theirs.
        """
        if self.quantization_mode is not None:
            return QuantizedMatrix(self, of_logits=True).rows(self.compute_dtype)
        # Gathered once, not for each part of the positions that a loss projects.
        kernel = whole_value(self, self.embeddings if self.tie_weights else self.reverse_embeddings)
        kernel = kernel if self.tie_weights else ops.transpose(kernel)
        kernel = self.sharing.join(kernel, axis=0) if self.sharing and joined else kernel
        return ops.cast(kernel, self.compute_dtype)

    def _finished(self, vectors, ids):
        """Scale the rows of the table, and replace those of the token that has its own vector."""
        factor = math.sqrt(self.output_dim) if self.scale is True else float(self.scale or 1)
        vectors = vectors if factor == 1 else vectors * ops.cast(factor, vectors.dtype)
        if self.replaced_id is None:
            return vectors
        own = ops.expand_dims(ops.equal(ids, self.replaced_id), -1)
        return ops.where(own, ops.cast(self.replaced, vectors.dtype), vectors)

    def get_config(self) -> dict:
        config = super().get_config()
        config["vocabulary_size"] = config.pop("input_dim")
        config["hidden_dim"] = config.pop("output_dim")
        own = {} if self.replaced_id is None else {"replaced_id": self.replaced_id}
        return {**config, "scale": self.scale, **own}


@keras.saving.register_keras_serializable(package="keras_transformer")
class SegmentEmbedding(_OfIds, Embedding):
    """Embed token types, such as first and second sentence, as vectors to add to token vectors.

    Args:
        num_segments: int, number of token types.
        hidden_dim: int, width of a vector.
        **kwargs: as in `keras.layers.Embedding`.

    Call arguments:
        inputs: int `(batch, length)`, segment ids.

    Returns:
        Float `(batch, length, hidden_dim)`.

    Raises:
        ValueError: if ids are not below `num_segments`, checked as in `TokenEmbedding`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import SegmentEmbedding

    assert SegmentEmbedding(2, 16)(np.array([[0, 0, 1]])).shape == (1, 3, 16)
    ```

    Source: Devlin et al. 2018, "BERT", section 3 and figure 2.
    """

    option_rules: ClassVar = {"num_segments": _SIZE}

    def __init__(self, num_segments: int, hidden_dim: int, **kwargs):
        given = {"num_segments": num_segments, "hidden_dim": hidden_dim}
        num_segments, hidden_dim = checked_options(type(self), given).values()
        super().__init__(num_segments, hidden_dim, **kwargs)

    def get_config(self) -> dict:
        config = super().get_config()
        config["num_segments"] = config.pop("input_dim")
        config["hidden_dim"] = config.pop("output_dim")
        return config


@keras.saving.register_keras_serializable(package="keras_transformer")
class VocabularyBias(ChecksCall, SavesArguments, keras.layers.Layer):
    """Add a trained bias for each token of the vocabulary to the logits.

    Args:
        vocabulary_size: int, number of token ids.
        **kwargs: as in `keras.layers.Layer`.

    Call arguments:
        inputs: float `(..., vocabulary_size)`, logits.

    Returns:
        Float `(..., vocabulary_size)`.

    Example:
    ```python
    import numpy as np
    from keras_transformer.layers import VocabularyBias

    assert VocabularyBias(100)(np.ones((2, 5, 100))).shape == (2, 5, 100)
    ```

    Source: Devlin et al. 2018, "BERT", the published code of the masked language model.
    """

    option_rules: ClassVar = {"vocabulary_size": _SIZE}
    axes: ClassVar = {"inputs": (..., "vocabulary_size")}

    def __init__(self, vocabulary_size: int, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.fixed = {"vocabulary_size": vocabulary_size}

    def build(self, input_shape=None):
        self.bias = self.add_weight(name="bias", shape=(self.vocabulary_size,), initializer="zeros")

    def call(self, inputs):
        return inputs + ops.cast(self.bias, inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape
