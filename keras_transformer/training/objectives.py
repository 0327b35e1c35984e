"""Pretraining objectives: NumPy functions that turn padded rows of ids into batches."""

import dataclasses
from collections.abc import Callable

import numpy as np

from keras_transformer.data import TokenRows
from keras_transformer.data.packing import packed_inputs
from keras_transformer.support.checking import check_bool, check_int, check_number
from keras_transformer.tokenizers import Tokenizer

_WORD_STARTS = ("\u2581", "\u0120")  # of SentencePiece and of byte-level BPE
_SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")


@dataclasses.dataclass(frozen=True)
class NextToken:
    """Predicts each token from the tokens before it.

    Example:
    ```python
    from keras_transformer.data import TokenRows
    from keras_transformer.training import NextToken

    columns = NextToken().columns(TokenRows.from_lists([[5, 6, 7]]))
    assert columns["inputs"][0].tolist() == [5, 6] and columns["targets"][0].tolist() == [6, 7]
    ```

    Source: Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training",
    section 3.1, equation 1.
    """

    def columns(self, rows: TokenRows) -> dict[str, TokenRows]:
        """Return the columns of a `BucketedDataset` for rows of at least two tokens."""
        return {"inputs": rows.without_last(), "targets": rows.without_first()}

    def __call__(self, arrays: dict, masks: dict):
        """Make inputs, targets and their weights from a batch of padded columns."""
        inputs = {"token_ids": arrays["inputs"], "padding_mask": masks["inputs"]}
        inputs |= packed_inputs(arrays)
        return inputs, arrays["targets"], masks["targets"].astype("float32")


@dataclasses.dataclass(frozen=True)
class MaskedTokens:
    """Masks some tokens of a text, which the model learns to predict from both sides.

    80 % of the chosen tokens become the mask token, 10 % a random token, and 10 % stay.

    Args:
        rate: float in (0, 1), share of a row's tokens, without special tokens, that are masked;
            at least one token is.
        whole_words: bool, mask either all tokens of a word or none. Words are drawn in turn, and a
            word that would exceed the share of the row is skipped, so fewer tokens may be masked.
            The vocabulary marks where a word begins: with `▁` (SentencePiece), with a space
            (byte-level BPE), or by tokens that do not begin with `##` (WordPiece).

    Raises:
        ValueError: if the rate is out of range.

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

    Source: Devlin et al. 2018, "BERT", section 3.1 and appendix A.1; drawn anew each time: Liu et
    al. 2019, "RoBERTa", section 4.1; whole words: Cui et al. 2019, "Pre-Training with Whole Word
    Masking for Chinese BERT", section 2.
    """

    rate: float = 0.15
    whole_words: bool = False

    def __post_init__(self):
        check_number("rate", self.rate, above=0, below=1)
        check_bool("whole_words", self.whole_words)

    def bind(self, tokenizer: Tokenizer) -> Callable:
        """Return a function that makes batches of this tokenizer's ids.

        It takes ids, int `(batch, length)`, their padding mask, bool, and a NumPy generator, and
        returns a dict of `token_ids`, `padding_mask` and `mask_positions` `(batch, count)`, the
        masked tokens `(batch, count)`, and their weights, 1, or 0 for unused places of a row.
        Raises ValueError if the tokenizer lacks a mask token.
        """
        mask_id = require_mask_id(tokenizer)
        ordinary = np.setdiff1d(np.arange(tokenizer.vocabulary_size), tokenizer.special_ids)
        begins = _begin_words(tokenizer) if self.whole_words else None

        def make_batch(ids, mask, random):
            eligible = mask & ~np.isin(ids, tokenizer.special_ids)
            numbers = eligible.sum(axis=1)
            # Limited to the share of a full row, so that all batches of a bucket have one shape.
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
    """Return which tokens of a vocabulary begin a word, bool `(vocabulary_size,)`.

    Raises ValueError if the tokens do not mark the beginnings of words.
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
    """Return chances that put whole words first, and how many tokens of each row are masked.

    Args:
        chances: float `(batch, length)`, below 0 if a token cannot be masked.
        begins: bool `(batch, length)`, whether a token begins a word.
        hidden: int `(batch,)`, the most tokens of a row that are masked.
        count: int, the most masked tokens of any row.
    """
    order, taken = np.full(chances.shape, -1.0), np.zeros(len(chances), "int64")
    for row, limit in enumerate(np.minimum(hidden, count)):
        places = np.flatnonzero(chances[row] >= 0)
        if not len(places):
            continue
        # A token after a special token begins a word too.
        first = begins[row, places] | (np.diff(places, prepend=-2) > 1)
        words = np.split(places, np.flatnonzero(first)[1:])
        for i in np.argsort([chances[row, word[0]] for word in words]):
            if taken[row] + len(words[i]) <= limit:
                order[row, words[i]] = 1.0
                taken[row] += len(words[i])
    return order, taken


@dataclasses.dataclass(frozen=True)
class SpanCorruption:
    """Cuts spans out of a text, which the model learns to write one after the other.

    In the source a sentinel token stands for each span. The target is each sentinel followed by
    its span. Sentinels are T5's, `<extra_id_0>`, `<extra_id_1>` and so on.

    Args:
        density: float in (0, 1), share of the tokens that are cut out.
        mean_span_length: float of at least 1, mean number of tokens of a span.

    Raises:
        ValueError: if a value is out of range.

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
        """Return a function that makes `Seq2SeqLM` batches from ids without special tokens.

        For its arguments see `MaskedTokens.bind`.
        """
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
        """Return how many tokens are cut out of rows of these lengths, and in how many spans."""
        # A row of one token is treated like a row of two, so that the token is not cut out.
        noise = np.rint(self.density * lengths).astype("int64")
        noise = np.clip(noise, 1, np.maximum(lengths - 1, 1))
        spans = np.rint(noise / self.mean_span_length)
        kept = np.maximum(lengths - noise, 1)
        return noise, np.clip(spans.astype("int64"), 1, np.minimum(noise, kept))

    def _noise(self, lengths, width: int, random: np.random.Generator) -> np.ndarray:
        """Draw which tokens to cut out, bool `(batch, width)`: kept parts and spans alternate."""
        noise, spans = self._numbers(lengths)
        kept = np.maximum(lengths, 2) - noise
        places = np.arange(max(width, 2))
        parts = [
            (2 * _segments(number, spans, len(places), random) + odd, places < number[:, None])
            for odd, number in enumerate((kept, noise))
        ]
        keys = np.concatenate([np.where(real, key, 2 * width + 2) for key, real in parts], axis=1)
        keys = np.sort(keys, axis=1)[:, :width]  # kept parts and spans, alternating
        return (keys % 2 == 1) & (places[:width] < lengths[:, None])


@dataclasses.dataclass(frozen=True)
class Denoising:
    """Corrupts a text, which the model learns to restore.

    Sentences are permuted, and spans of tokens are each replaced by one mask token. The lengths of
    spans are drawn from a Poisson distribution; a span of length 0 inserts a mask token.

    Args:
        mask_rate: float in (0, 1), share of the tokens in spans.
        mean_span_length: float above 0, mean number of tokens of a span.
        permute_sentences: bool, whether sentences are permuted. A sentence ends with a token whose
            last character is a full stop, a question mark or an exclamation mark.

    Raises:
        ValueError: if a value is out of range.

    Example, which makes a batch like `make_dataset(texts, objective=Denoising())`:
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
        """Return a function that makes batches; see `SpanCorruption.bind`.

        Raises ValueError if the tokenizer lacks a mask token.
        """
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
        """Return the rows with spans replaced by masks, and which of their tokens are real."""
        width = ids.shape[1]
        places = np.arange(width)
        hidden = np.rint(self.mask_rate * lengths).astype("int64")[:, None]
        # Rows have at most one span per hidden token and never grow, so that all batches have one
        # shape.
        reached = np.cumsum(random.poisson(self.mean_span_length, ids.shape), axis=1)
        reached = np.where(places >= hidden - 1, hidden, np.minimum(reached, hidden))
        spans = np.where(hidden, (reached < hidden).sum(axis=1, keepdims=True) + 1, 0)
        slots = lengths[:, None] - hidden + spans  # kept tokens and masks, in any order
        chances = np.where(places < slots, random.random(ids.shape), 2.0)
        is_mask = np.argsort(np.argsort(chances, axis=1), axis=1) < spans
        # Where each slot begins in the row: after all kept tokens and spans before it.
        passed = np.cumsum(is_mask, axis=1) - is_mask
        skipped = np.concatenate([np.zeros_like(hidden), reached], axis=1)
        begins = places - passed + np.take_along_axis(skipped, passed, axis=1)
        kept = np.take_along_axis(ids, np.minimum(begins, width - 1), axis=1)
        return np.where(is_mask, mask_id, kept), places < slots


def _seq2seq_batch(tokenizer: Tokenizer, start_id: int) -> Callable:
    """Return a function that makes `Seq2SeqLM` batches of sources and targets with their masks."""
    before, after = _template(tokenizer)
    ends = [] if tokenizer.end_id is None else [tokenizer.end_id]
    pad_id = tokenizer.pad_id or 0

    def batch(source, target, source_width: int, target_width: int):
        """Make a batch; the widths are the greatest lengths of sources and targets."""
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
    """Put the same tokens before and after each row; return the rows and their masks."""
    ends = [np.tile(np.asarray(part, "int64"), (len(ids), 1)) for part in (before, after)]
    real = [np.ones(part.shape, bool) for part in ends]
    ids = np.concatenate([ends[0], ids, ends[1]], axis=1)
    return ids, np.concatenate([real[0], mask, real[1]], axis=1)


def _sentinel_spans(ids, mask, noise, sentinels):
    """Return source and target of rows and the spans cut out of them, each with its mask."""

    def replaced(spans):
        starts = spans & ~np.pad(spans, [(0, 0), (1, 0)])[:, :-1]
        numbers = np.cumsum(starts, axis=1) - 1
        return np.where(starts, sentinels[numbers], ids), mask & (starts | ~spans)

    noise = noise & mask
    # In the target the roles are swapped: sentinels replace the kept parts, and a text begins with
    # one.
    return replaced(noise), replaced(mask & ~noise)


def _to_the_left(ids, keep, width: int, pad_id: int):
    """Move kept tokens to the front, padded or cut to `width`; return them and their mask."""
    missing = max(width - ids.shape[1], 0)
    ids, keep = (np.pad(x, [(0, 0), (0, missing)]) for x in (ids, keep))
    order = np.argsort(~keep, axis=1, kind="stable")[:, :width]
    mask = np.arange(width) < keep.sum(axis=1, keepdims=True)
    return np.where(mask, np.take_along_axis(ids, order, axis=1), pad_id), mask


def _segments(numbers, counts, width: int, random: np.random.Generator) -> np.ndarray:
    """Assign a row's `numbers` items to `counts` parts; all divisions are equally likely."""
    places = np.arange(width - 1)
    chances = np.where(places < numbers[:, None] - 1, random.random((len(numbers), width - 1)), 2.0)
    cuts = np.argsort(np.argsort(chances, axis=1), axis=1) < counts[:, None] - 1
    return np.concatenate([np.zeros((len(numbers), 1), "int64"), np.cumsum(cuts, axis=1)], axis=1)


def _permuted(ids, mask, ends, random: np.random.Generator) -> np.ndarray:
    """Permute the sentences of rows; `ends` marks the last token of each sentence."""
    ends = ends & mask
    sentence = np.cumsum(ends, axis=1) - ends
    chances = random.random(ids.shape)  # one per sentence is enough
    keys = np.where(mask, np.take_along_axis(chances, sentence, axis=1), 2.0)
    return np.take_along_axis(ids, np.argsort(keys, axis=1, kind="stable"), axis=1)


@dataclasses.dataclass(frozen=True)
class PermutedOrders:
    """Orders in which the tokens of a text are predicted, for models with a `query_stream`.

    The orders come in pairs, one the reverse of the other. The first pair is from left to right and
    from right to left; the end of the text is predicted behind the whole text, and from its
    position alone. The other pairs are drawn, and leave the end out. Texts of fewer tokens than
    five have fewer pairs, one for each two orders that there are. All orders of a text are packed
    documents of one row: `position_ids` is where the token that comes next is in the text.

    Args:
        number: int, the number of orders, an even number; or 1, from left to right alone.

    Raises:
        ValueError: if the number is neither.

    Example:
    ```python
    import numpy as np
    from keras_transformer.training import PermutedOrders

    ids, targets = np.array([[1, 7, 8]]), np.array([[7, 8, 2]])  # 1 starts a text, 2 ends it
    real = np.ones((1, 3), bool)
    inputs, targets, weights = PermutedOrders(2)(ids, targets, real, real.astype("float32"))
    assert inputs["token_ids"].tolist() == [[1, 7, 8, 1, 1, 8]]
    assert targets.tolist() == [[7, 8, 2, 2, 8, 7]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 2, 1, 0]]
    ```

    Source: Bautista and Atienza 2022, "Scene Text Recognition with Permuted Autoregressive Sequence
    Models", section 3.2, and its published code.
    """

    number: int = 6

    def __post_init__(self):
        number = check_int("num_orders", self.number, at_least=1, at_most=2**10)
        if number > 1 and number % 2:
            raise ValueError(
                f"`num_orders` must be 1 or an even number, received {number}: orders come in "
                "pairs, of which one is the reverse of the other."
            )

    def __call__(self, ids, targets, mask, weights, random=None, pad_id: int = 0):
        """Make the rows of all orders.

        Args:
            ids: int `(batch, length)`, the start and the tokens of each text.
            targets: int of the same shape, the tokens and the end.
            mask: bool of the same shape, True for the targets, False for the padding behind them.
            weights: float of the same shape, what each target counts.
            random: a `RowGenerator` or a NumPy generator, for more than two orders.
            pad_id: int, the id of padding.

        Returns:
            A dict of `token_ids`, `padding_mask`, `position_ids` and `pack_ids`, the targets, and
            their weights, float32, all of shape `(batch, 2 + number * (length - 1))`; with a number
            of 1 the arrays as they are, without positions and packs.
        """
        if self.number == 1:
            return {"token_ids": ids, "padding_mask": mask}, targets, weights
        places = np.broadcast_to(np.arange(ids.shape[1] - 1), (len(ids), ids.shape[1] - 1))
        tokens = mask.sum(axis=1, keepdims=True) - 1  # of a text, without its end
        several = np.where(tokens > 1, tokens, 0)
        orders = [places]
        for _ in range(1, self.number // 2):
            chances = np.where(places < tokens, random.random(places.shape), 2.0)
            orders.append(np.argsort(chances, axis=1, kind="stable"))
        # The place of each target in its text, and the number of targets of each row.
        parts = [(np.broadcast_to(np.arange(ids.shape[1]), ids.shape), tokens + 1)]
        parts.append((np.maximum(tokens, 0), several > 0))
        for pair, order in enumerate(orders):
            reverse = np.take_along_axis(order, np.maximum(tokens - 1 - places, 0), axis=1)
            taken = np.where(pair < _PAIRS[np.clip(tokens, 0, len(_PAIRS) - 1)], several, 0)
            parts += [(reverse, taken)] if pair == 0 else [(order, taken), (reverse, taken)]
        packs = []
        for pack, (order, number) in enumerate(parts):
            here = np.arange(order.shape[1]) < number
            wanted = np.take_along_axis(targets, order, axis=1)
            before = np.concatenate([ids[:, :1], wanted[:, :-1]], axis=1)
            counts = np.take_along_axis(weights, order, axis=1)
            filled = ((before, pad_id), (order, 0), (pack, -1), (wanted, pad_id), (counts, 0))
            packs.append([here, *(np.where(here, array, hole) for array, hole in filled)])
        real, *arrays = (np.concatenate(each, axis=1) for each in zip(*packs, strict=True))
        before, order, pack, wanted = (array.astype("int32") for array in arrays[:-1])
        inputs = {"token_ids": before, "padding_mask": real}
        inputs |= {"position_ids": order, "pack_ids": pack}
        return inputs, wanted, arrays[-1].astype("float32")


# Half of the numbers of orders of 0 to 4 tokens, at least 1; five tokens have more than are drawn.
_PAIRS = np.array([1, 1, 1, 3, 12, 2**10])


class RowGenerator:
    """A NumPy generator that draws separately for each row, seeded by the row's number.

    A row is thus corrupted in the same way in batches of any size and with any padding, and by
    whichever process makes it.

    Args:
        seed: int.
        rows: int array `(batch,)`, the numbers of the rows.
        epoch: int, on which the draws depend too. Defaults to 0.
    """

    def __init__(self, seed: int, rows: np.ndarray, epoch: int = 0):
        self.seed, self.rows, self.epoch, self.draws = seed, rows.tolist(), epoch, 0

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return self._draw(lambda generator: generator.random(shape[1]))

    def choice(self, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        return values[self._draw(lambda generator: generator.integers(len(values), size=shape[1]))]

    def poisson(self, mean: float, shape: tuple[int, int]) -> np.ndarray:
        return self._draw(lambda generator: generator.poisson(mean, shape[1]))

    def _draw(self, draw: Callable) -> np.ndarray:
        # Seeded anew each time, since earlier draws depend on the padding. Only the counter of the
        # bit generator is set: making a generator for each row would take ten times as long.
        self.draws += 1
        bits = np.random.Philox(key=[self.seed % 2**64, self.draws])
        state, generator, found = bits.state, np.random.Generator(bits), []
        for row in self.rows:
            state["state"]["counter"][:] = [0, 0, self.epoch, row]
            bits.state = state
            found.append(draw(generator))
        return np.stack(found)


def generator_of(dataset, arrays: dict) -> RowGenerator:
    """Return the random generator for a batch; `arrays["row"]` has its row numbers.

    The draws depend on the seed, the row and, with `shuffle`, the epoch; not on the batch that the
    row is in, nor on the process that makes it.
    """
    epoch = int(dataset.epoch) if dataset.shuffle else 0
    return RowGenerator(dataset.seed, np.asarray(arrays["row"]), epoch)


def require_mask_id(tokenizer: Tokenizer) -> int:
    """Return the id of the mask token. Raises ValueError if the tokenizer lacks it."""
    if tokenizer.mask_id is None:
        raise ValueError(
            "The tokenizer has no mask token. Load the one that belongs to the model, or give "
            "`Tokenizer(..., mask=...)` the token that hides another."
        )
    return tokenizer.mask_id


def _sentinels(tokenizer: Tokenizer) -> np.ndarray:
    """Return the ids of T5's sentinels `<extra_id_0>`, `<extra_id_1>` and so on."""
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
    """Return the special tokens that the tokenizer puts before and after a text."""
    bare = tokenizer.encode("a", special_tokens=False)
    whole = tokenizer.encode("a")
    places = range(len(whole) - len(bare) + 1)
    place = next((i for i in places if whole[i : i + len(bare)] == bare), len(whole))
    return (whole[:place], whole[place + len(bare) :]) if place < len(whole) else ([], [])
