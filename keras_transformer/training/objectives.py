"""Pretraining objectives: NumPy functions that make batches of padded rows of ids."""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_transformer.checking import check_bool, check_number
from keras_transformer.data import TokenRows
from keras_transformer.data.packing import packed_inputs
from keras_transformer.tokenizers import Tokenizer

_WORD_STARTS = ("\u2581", "\u0120")  # of SentencePiece and of byte-level BPE
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Each token is predicted from those before it.

    Example:
    ```python
    from keras_transformer.data import TokenRows
    from keras_transformer.training import NextToken

    columns = NextToken().columns(TokenRows.of([[5, 6, 7]]))
    assert columns["inputs"][0].tolist() == [5, 6] and columns["targets"][0].tolist() == [6, 7]
    ```

    Source: Radford et al. 2018, section 3.1, equation 1.
    """

    def columns(self, rows: TokenRows) -> dict[str, TokenRows]:
        """The columns of a `BucketedDataset`, of rows of two tokens or more."""
        return {"inputs": rows.without_last(), "targets": rows.without_first()}

    def __call__(self, arrays: dict, masks: dict):
        """The batch of padded columns: inputs, targets and their weights."""
        inputs = {"token_ids": arrays["inputs"], "padding_mask": masks["inputs"]}
        inputs |= packed_inputs(arrays)
        return inputs, arrays["targets"], masks["targets"].astype("float32")


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
    """Some tokens of a text are masked, and predicted from the tokens on both sides.

    Of these 80 % become the mask token, 10 % a random token, and 10 % stay.

    Args:
        rate: float in (0, 1), share of the tokens of a row that are masked, special ones not
            counted; at least one.
        whole_words: bool, all tokens of a word are masked or none. Words are drawn in turn, and
            one that would go beyond the share of the row is passed over, so fewer tokens may be
            masked. A word begins as the vocabulary says: with `▁` (SentencePiece), with a space
            (byte-level BPE), or with a token that does not begin with `##` (WordPiece).

    Raises:
        ValueError: for a rate out of range.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt

    tokenizer = kt.Tokenizer.train(["a man rides a bike ."] * 2, "wordpiece", vocabulary_size=60)
    ids = np.array([tokenizer.encode("a man rides a bike .")])
    hide = kt.training.MaskedTokens(rate=0.3).bind(tokenizer)
    inputs, targets, weights = hide(ids, np.ones_like(ids, bool), np.random.default_rng(0))
    assert weights.sum() == 2
    assert (targets == np.take_along_axis(ids, inputs["mask_positions"], axis=1)).all()
    ```

    Source: Devlin et al. 2018, "BERT", section 3.1 and appendix A.1; drawn anew each time as by
    Liu et al. 2019, "RoBERTa", section 4.1; whole words: Cui et al. 2019, "Pre-Training with Whole
    Word Masking for Chinese BERT", section 2.
    """

    rate: float = 0.15
    whole_words: bool = False

    def __post_init__(self):
        check_number("rate", self.rate, above=0, below=1)
        check_bool("whole_words", self.whole_words)

    def bind(self, tokenizer: Tokenizer) -> Callable:
        """The function that makes a batch of this tokenizer's ids; ValueError without a mask token.

        It takes ids, int `(batch, length)`, their padding mask, bool, and a NumPy generator, and
        gives a dict of `token_ids`, `padding_mask` and `mask_positions` `(batch, count)`, the
        masked tokens `(batch, count)`, and their weights, 1 or 0 for a row with fewer of them.
        """
        mask_id = require_mask_id(tokenizer)
        ordinary = np.setdiff1d(np.arange(tokenizer.vocabulary_size), tokenizer.special_ids)
        begins = _begin_words(tokenizer) if self.whole_words else None

        def make_batch(ids, mask, random):
            eligible = mask & ~np.isin(ids, tokenizer.special_ids)
            numbers = eligible.sum(axis=1)
            # At most the share of a whole row: all batches of a bucket have one shape.
            hidden = np.where(numbers, np.maximum(np.rint(self.rate * numbers), 1), 0)
            count = max(round(self.rate * ids.shape[1]), 1)
            chances = np.where(eligible, random.random(ids.shape), -1.0)
            if begins is not None:
                chances, hidden = _whole_words(chances, begins[ids], hidden, count)
            positions = np.argsort(-chances, axis=1)[:, :count].astype("int32")
            weights = (np.arange(count) < hidden[:, None]).astype("float32")

            targets = np.take_along_axis(ids, positions, axis=1)
            replaced = random.choice(ordinary, positions.shape)
            fate = random.random(positions.shape)
            replaced = np.where(fate < 0.8, mask_id, replaced)
            kept = (fate >= 0.9) | (weights == 0)
            masked = ids.copy()
            chosen = np.where(kept, targets, replaced).astype("int32")
            np.put_along_axis(masked, positions, chosen, 1)
            inputs = {"token_ids": masked, "padding_mask": mask, "mask_positions": positions}
            return inputs, targets, weights

        return make_batch


def _begin_words(tokenizer: Tokenizer) -> np.ndarray:
    """Whether each token of a vocabulary begins a word, bool `(vocabulary_size,)`.

    Raises ValueError if its tokens do not say so.
    """
    tokens = [tokenizer.id_to_token(id) or "" for id in range(tokenizer.vocabulary_size)]
    marked = np.array([token.startswith(_WORD_STARTS) for token in tokens])
    if marked.any():
        return marked
    continued = np.array([token.startswith("##") for token in tokens])
    if not continued.any():
        raise ValueError(
            "`whole_words` needs a vocabulary whose tokens tell where a word begins (`▁`, a space, "
            "or `##` where it goes on), and this one does not. Leave `whole_words` out."
        )
    return ~continued


def _whole_words(chances, begins, hidden, count: int):
    """Chances by which whole words come first, and how many tokens of each row are masked.

    Args:
        chances: float `(batch, length)`, below 0 where a token cannot be masked.
        begins: bool `(batch, length)`, whether a token begins a word.
        hidden: int `(batch,)`, the most tokens of a row that are masked.
        count: int, the most of any row.
    """
    order, taken = np.full(chances.shape, -1.0), np.zeros(len(chances), "int64")
    for row, limit in enumerate(np.minimum(hidden, count)):
        places = np.flatnonzero(chances[row] >= 0)
        if not len(places):
            continue
        # What stands behind a special token begins a word too.
        first = begins[row, places] | (np.diff(places, prepend=-2) > 1)
        words = np.split(places, np.flatnonzero(first)[1:])
        for i in np.argsort([chances[row, word[0]] for word in words]):
            if taken[row] + len(words[i]) <= limit:
                order[row, words[i]] = 1.0
                taken[row] += len(words[i])
    return order, taken


@dataclasses.dataclass(frozen=True)
class SpanCorruption:
    """The model writes the spans that are cut out of a text, one after the other.

    In the source a sentinel token stands for each span. The target is each sentinel with what it
    stands for. Sentinels are T5's, `<extra_id_0>`, `<extra_id_1>` and so on.

    Args:
        density: float in (0, 1), share of the tokens that are cut out.
        mean_span_length: float of at least 1, tokens of a span.

    Raises:
        ValueError: for values out of range.

    Example:
    ```python
    import keras_transformer as kt

    texts = ["thank you for inviting me to your party last week ."] * 8
    sentinels = [f"<extra_id_{i}>" for i in range(20)]
    words = kt.Tokenizer.train(texts, vocabulary_size=400, special_tokens=sentinels)
    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=words.vocabulary_size, hidden_dim=32, num_layers=1,
        num_heads=2, intermediate_dim=64,
    )
    lm = kt.Seq2SeqLM(kt.models.Seq2Seq(config), words)
    dataset = lm.make_dataset(texts, objective=kt.training.SpanCorruption(), shuffle=True)
    lm.fit(dataset, epochs=1, verbose=0)
    ```

    Source: Raffel et al. 2020, "T5", section 3.1.4 and figure 2; numbers and lengths of spans as in
    its code (`random_spans_noise_mask`).
    """

    density: float = 0.15
    mean_span_length: float = 3.0

    def __post_init__(self):
        check_number("density", self.density, above=0, below=1)
        check_number("mean_span_length", self.mean_span_length, at_least=1)

    def bind(self, tokenizer: Tokenizer, start_id: int) -> Callable:
        """As in `MaskedTokens`, of ids without the template's, for a `Seq2SeqLM`."""
        sentinels = _sentinels(tokenizer)
        finish = _seq2seq_batch(tokenizer, start_id)

        def make_batch(ids, mask, random):
            width = ids.shape[1]
            noise, spans = self._numbers(np.arange(1, width + 1))
            if spans.max() > len(sentinels):
                raise ValueError(
                    f"Rows of {width} tokens have up to {spans.max()} spans, but the tokenizer "
                    f"has {len(sentinels)} sentinels. Lower `max_length`, or train a tokenizer "
                    "with more special tokens '<extra_id_...>'."
                )
            cut_out = self._noise(mask.sum(axis=1), width, random)
            source, target = _sentinel_spans(ids, mask, cut_out, sentinels)
            lengths = np.arange(1, width + 1) - noise + spans
            return finish(source, target, lengths.max(), (noise + spans).max())

        return make_batch

    def _numbers(self, lengths):
        """Tokens that are cut out of rows of these lengths, and in how many spans."""
        # A row of one token is taken as one of two: nothing of it is cut out.
        noise = np.rint(self.density * lengths).astype("int64")
        noise = np.clip(noise, 1, np.maximum(lengths - 1, 1))
        spans = np.rint(noise / self.mean_span_length)
        kept = np.maximum(lengths - noise, 1)
        return noise, np.clip(spans.astype("int64"), 1, np.minimum(noise, kept))

    def _noise(self, lengths, width: int, random: np.random.Generator) -> np.ndarray:
        """What to cut out, bool `(batch, width)`: what is kept and a span in turn."""
        noise, spans = self._numbers(lengths)
        kept = np.maximum(lengths, 2) - noise
        places = np.arange(max(width, 2))
        parts = [
            (2 * _segments(number, spans, len(places), random) + odd, places < number[:, None])
            for odd, number in enumerate((kept, noise))
        ]
        keys = np.concatenate([np.where(real, key, 2 * width + 2) for key, real in parts], axis=1)
        keys = np.sort(keys, axis=1)[:, :width]  # the parts of what is kept, and spans, in turn
        return (keys % 2 == 1) & (places[:width] < lengths[:, None])


@dataclasses.dataclass(frozen=True)
class Denoising:
    """The model restores a text from a corrupted one.

    The sentences are permuted, and spans of tokens are each replaced by one mask token. The lengths
    of spans are drawn from a Poisson distribution; a span of length 0 inserts a mask token.

    Args:
        mask_rate: float in (0, 1), share of the tokens in spans.
        mean_span_length: float above 0, tokens of a span.
        permute_sentences: bool. A sentence ends with a token that ends with a full stop, a
            question or an exclamation mark.

    Raises:
        ValueError: for values out of range.

    Example, which makes a batch as `make_dataset(texts, objective=Denoising())` does:
    ```python
    import numpy as np
    import keras_transformer as kt

    words = kt.Tokenizer.train(["two dogs run . a man rides ."], special_tokens=["<mask>"])
    ids = np.array([words.encode("two dogs run . a man rides .")])
    make_batch = kt.training.Denoising().bind(words, start_id=0)
    inputs, targets, weights = make_batch(ids, np.ones_like(ids, bool), np.random.default_rng(0))
    assert inputs["decoder_token_ids"].shape == targets.shape == weights.shape
    ```

    Source: Lewis et al. 2020, "BART", section 2.2 and 5 (text infilling, sentence permutation).
    """

    mask_rate: float = 0.3
    mean_span_length: float = 3.0
    permute_sentences: bool = True

    def __post_init__(self):
        check_number("mask_rate", self.mask_rate, above=0, below=1)
        check_number("mean_span_length", self.mean_span_length, at_least=0)

    def bind(self, tokenizer: Tokenizer, start_id: int) -> Callable:
        """As in `SpanCorruption`. ValueError for a tokenizer without a mask token."""
        mask_id = require_mask_id(tokenizer)
        texts = tokenizer.decode_batch([[id] for id in range(tokenizer.vocabulary_size)])
        ends = np.asarray([text.rstrip().endswith(_SENTENCE_ENDS) for text in texts])
        finish = _seq2seq_batch(tokenizer, start_id)

        def make_batch(ids, mask, random):
            width = ids.shape[1]
            spoiled = _permuted(ids, mask, ends[ids], random) if self.permute_sentences else ids
            source = self._infilled(spoiled, mask.sum(axis=1), mask_id, random)
            return finish(source, (ids, mask), width, width)

        return make_batch

    def _infilled(self, ids, lengths, mask_id: int, random: np.random.Generator):
        """The rows with spans replaced, and which of their tokens are real."""
        width = ids.shape[1]
        places = np.arange(width)
        hidden = np.rint(self.mask_rate * lengths).astype("int64")[:, None]
        # No more spans than hidden tokens, and no row gets longer: one shape.
        reached = np.cumsum(random.poisson(self.mean_span_length, ids.shape), axis=1)
        reached = np.where(places >= hidden - 1, hidden, np.minimum(reached, hidden))
        spans = np.where(hidden, (reached < hidden).sum(axis=1, keepdims=True) + 1, 0)
        slots = lengths[:, None] - hidden + spans  # of what is kept and masks, in any order
        chances = np.where(places < slots, random.random(ids.shape), 2.0)
        is_mask = np.argsort(np.argsort(chances, axis=1), axis=1) < spans
        # Where each slot begins in the row: after what is kept, and all spans, before it.
        passed = np.cumsum(is_mask, axis=1) - is_mask
        skipped = np.concatenate([np.zeros_like(hidden), reached], axis=1)
        begins = places - passed + np.take_along_axis(skipped, passed, axis=1)
        kept = np.take_along_axis(ids, np.minimum(begins, width - 1), axis=1)
        return np.where(is_mask, mask_id, kept), places < slots


def _seq2seq_batch(tokenizer: Tokenizer, start_id: int) -> Callable:
    """Makes sources and targets, each with its real tokens, the batch of a `Seq2SeqLM`."""
    before, after = _template(tokenizer)
    ends = [] if tokenizer.end_id is None else [tokenizer.end_id]
    pad_id = tokenizer.pad_id or 0

    def batch(source, target, source_width: int, target_width: int):
        """The widths are the longest that the two can be."""
        sides = [
            _to_the_left(*_joined(first, *row, last), width + len(first) + len(last), pad_id)
            for first, row, last, width in (
                (before, source, after, source_width), ([], target, ends, target_width)
            )
        ]  # fmt: skip
        (source_ids, source_mask), (targets, mask) = sides
        first = np.full((len(targets), 1), start_id)
        inputs = np.where(mask, np.concatenate([first, targets[:, :-1]], axis=1), pad_id)
        inputs = {
            "encoder_token_ids": source_ids.astype("int32"),
            "encoder_padding_mask": source_mask,
            "decoder_token_ids": inputs.astype("int32"),
            "decoder_padding_mask": mask,
        }
        return inputs, targets.astype("int32"), mask.astype("float32")

    return batch


def _joined(before: list[int], ids, mask, after: list[int]):
    """Rows, and which of their tokens are real, with the same tokens before and after each."""
    ends = [np.tile(np.asarray(part, "int64"), (len(ids), 1)) for part in (before, after)]
    real = [np.ones(part.shape, bool) for part in ends]
    ids = np.concatenate([ends[0], ids, ends[1]], axis=1)
    return ids, np.concatenate([real[0], mask, real[1]], axis=1)


def _sentinel_spans(ids, mask, noise, sentinels):
    """Source and target of rows and of what is cut out of them, each with its real tokens."""

    def replaced(spans):
        starts = spans & ~np.pad(spans, [(0, 0), (1, 0)])[:, :-1]
        numbers = np.cumsum(starts, axis=1) - 1
        return np.where(starts, sentinels[numbers], ids), mask & (starts | ~spans)

    noise = noise & mask
    # What is kept is, of the target, spans of its own, and the text begins with one of these.
    return replaced(noise), replaced(mask & ~noise)


def _to_the_left(ids, keep, width: int, pad_id: int):
    """The tokens to keep in front, padded or cut to `width`; and which of them are real."""
    missing = max(width - ids.shape[1], 0)
    ids, keep = (np.pad(x, [(0, 0), (0, missing)]) for x in (ids, keep))
    order = np.argsort(~keep, axis=1, kind="stable")[:, :width]
    mask = np.arange(width) < keep.sum(axis=1, keepdims=True)
    return np.where(mask, np.take_along_axis(ids, order, axis=1), pad_id), mask


def _segments(numbers, counts, width: int, random: np.random.Generator) -> np.ndarray:
    """The part of each of a row's `numbers` items in `counts` parts; all divisions alike likely."""
    places = np.arange(width - 1)
    chances = np.where(places < numbers[:, None] - 1, random.random((len(numbers), width - 1)), 2.0)
    cuts = np.argsort(np.argsort(chances, axis=1), axis=1) < counts[:, None] - 1
    return np.concatenate([np.zeros((len(numbers), 1), "int64"), np.cumsum(cuts, axis=1)], axis=1)


def _permuted(ids, mask, ends, random: np.random.Generator) -> np.ndarray:
    """The rows with their sentences in another order. `ends` is where one ends."""
    ends = ends & mask
    sentence = np.cumsum(ends, axis=1) - ends
    chances = random.random(ids.shape)  # one a sentence is enough
    keys = np.where(mask, np.take_along_axis(chances, sentence, axis=1), 2.0)
    return np.take_along_axis(ids, np.argsort(keys, axis=1, kind="stable"), axis=1)


class RowGenerator:
    """The draws of a NumPy generator, those of each row by the row's own number.

    So a row is spoiled alike in batches of any size, and behind any padding.

    Args:
        seed: int.
        rows: int array `(batch,)`, the numbers of the rows.
    """

    def __init__(self, seed: int, rows: np.ndarray):
        self.seed, self.rows, self.draws = seed, rows.tolist(), 0

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return self._draw(lambda generator: generator.random(shape[1]))

    def choice(self, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        return values[self._draw(lambda generator: generator.integers(len(values), size=shape[1]))]

    def poisson(self, mean: float, shape: tuple[int, int]) -> np.ndarray:
        return self._draw(lambda generator: generator.poisson(mean, shape[1]))

    def _draw(self, draw: Callable) -> np.ndarray:
        # Anew each time: how much was drawn before depends on the padding. Only the counter of the
        # bits is set, since to make a generator for each row takes ten times as long.
        self.draws += 1
        bits = np.random.Philox(key=[self.seed % 2**64, self.draws])
        state, generator, found = bits.state, np.random.Generator(bits), []
        for row in self.rows:
            state["state"]["counter"][:] = [0, 0, 0, row]
            bits.state = state
            found.append(draw(generator))
        return np.stack(found)


def generator_of(dataset, arrays: dict) -> np.random.Generator | RowGenerator:
    """Return what a batch is drawn from. `arrays["row"]` are its rows of the dataset.

    Without `shuffle`, as in `evaluate`, what is drawn does not depend on the size of the batches.
    """
    if not dataset.shuffle:
        return RowGenerator(dataset.seed, np.asarray(arrays["row"]))
    # By epoch and first row: a batch fetched twice, or by another thread, is the same.
    return np.random.default_rng((dataset.seed, dataset.epoch, int(arrays["row"][0])))


def require_mask_id(tokenizer: Tokenizer) -> int:
    """The id of the mask token. ValueError for a tokenizer without one."""
    if tokenizer.mask_id is None:
        raise ValueError(
            "The tokenizer has no mask token. Load the one that belongs to the model, or give "
            "`Tokenizer(..., mask=...)` the token that hides another."
        )
    return tokenizer.mask_id


def _sentinels(tokenizer: Tokenizer) -> np.ndarray:
    """The ids of `<extra_id_0>`, `<extra_id_1>`, ... of which T5's descend."""
    ids = []
    while (found := tokenizer.token_to_id(f"<extra_id_{len(ids)}>")) is not None:
        ids.append(found)
    if not ids:
        raise ValueError(
            "SpanCorruption needs sentinel tokens, and the tokenizer has no '<extra_id_0>'. Load "
            "T5's, or train one with special_tokens=[f'<extra_id_{i}>' for i in range(100)]."
        )
    return np.asarray(ids)


def _template(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    bare = tokenizer.encode("a", special_tokens=False)
    whole = tokenizer.encode("a")
    places = range(len(whole) - len(bare) + 1)
    place = next((i for i in places if whole[i : i + len(bare)] == bare), len(whole))
    return (whole[:place], whole[place + len(bare) :]) if place < len(whole) else ([], [])
