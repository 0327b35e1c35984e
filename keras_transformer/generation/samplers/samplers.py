"""Base class of samplers, which choose the next tokens from logits, and simple samplers."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.kernels.selection import REACHED, argmax, best, ordered
from keras_transformer.kernels.values import full_tensor
from keras_transformer.support.checking import (
    MOST_TOKENS,
    check_fields,
    check_float,
    check_int,
    nearest,
    shorten,
)
from keras_transformer.support.foreign_names import sampler_here

# Score of a masked token. Rules ban tokens with the same value.
NEVER = -1e30
# Below the first temperature the rounding of float32 logits would decide; above the second the
# distribution is uniform.
COLD, _HOT = 1e-5, 1e20


def broken(logits):
    """Return whether any number of `(..., size)` is NaN or infinite, bool `(...)`.

    It tests the sum, through which NaN and infinity propagate; XLA's maximum may skip NaN.
    """
    total = ops.sum(logits, axis=-1)
    # Not `not total < inf`: TensorFlow's graphs turn it into `total >= inf`, false for NaN.
    return ops.logical_or(ops.isnan(total), ops.abs(total) == float("inf"))


def draw(chances, numbers, instead=None):
    """Draw a token for each row, int32 `(rows,)`, but never a token of probability 0.

    `chances`, `(rows, vocabulary_size)`, need not sum to 1; `numbers` are in [0, 1). If all chances
    are 0, the largest of `instead` is taken, which defaults to `chances`.
    """
    summed = ops.cumsum(chances, axis=-1)
    reached = ops.logical_and(summed > numbers[:, None] * summed[:, -1:], chances > 0)
    ids = ops.arange(chances.shape[-1], dtype="int32")
    first = ops.min(ops.where(reached, ids, chances.shape[-1]), axis=-1)
    # Rounding can make the draw reach no token: then take the likeliest.
    likeliest = argmax(chances if instead is None else instead)
    return ops.where(first < chances.shape[-1], first, likeliest)


def apply_temperature(logits, temperature: float):
    """Divide logits `(..., size)` by a temperature above 0; banned tokens stay banned."""
    if temperature == 1:
        return logits
    if temperature < COLD:  # keep only the largest logit and equal ones
        return keep(ops.zeros_like(logits), best(ordered(logits), 1))
    return keep(logits / min(temperature, _HOT), logits > NEVER / 2)


def keep(logits, kept):
    """Set the logits to -1e30 where `kept` is False."""
    return ops.where(kept, logits, NEVER)


class RowLimits(NamedTuple):
    """Limits and random numbers of a batch; tensors have a row for each prompt."""

    end_ids: tuple[int, ...]  # a row ends with any of them
    pad_id: int  # fills rows after their end
    max_new_tokens: Any  # int32 (rows,); a row with 0 is finished
    # float32 (rows, size * draws), random numbers from 0 to 1, the sampler's `draws` for each new
    # token side by side.
    uniforms: Any
    # float32 (rows, count), options of each row, for samplers that have options per row
    choices: Any = None


class Prompt(NamedTuple):
    """Prompts of a batch, which a sampler may read before the first token."""

    tokens: Any  # int (rows, length)
    mask: Any  # bool (rows, length)
    hidden: Any  # float (rows, length, hidden_dim), the last states


class Outputs(NamedTuple):
    """Outputs of a sampler: `n` texts per row, best first."""

    tokens: Any  # int (rows, n, size)
    counts: Any  # int (rows, n), tokens including an end id; 0 if absent
    scores: Any = None  # float32 (rows, n), if the sampler ranks texts
    # int (rows,), number of passes of the model, if a pass can give several tokens
    passes: Any = None
    log_probabilities: Any = None  # float32 (rows, n, size), if the sampler keeps them
    entropies: Any = None  # float32 (rows, n, size), in nats, of the distributions


class RowState(NamedTuple):
    """State of a sampler that follows one text per row."""

    tokens: Any  # int (rows, size)
    count: Any  # int (rows,)
    ended: Any  # bool (rows,)


class Sampler:
    """Base class of samplers. The engine calls them in a compiled loop: all state is in tensors.

    The first axis of every tensor in the state is the rows of the batch, so that rows can leave a
    batch and others can join. Subclasses are frozen dataclasses: equal ones share their compiled
    functions. A subclass that adds one token to each row at a time only implements `choose`.

    Example:
    ```python
    import dataclasses
    import keras_transformer as kt
    from keras import ops

    @dataclasses.dataclass(frozen=True)
    class SecondBest(kt.generation.Sampler):
        def choose(self, logits, count, limits):
            return ops.cast(ops.top_k(logits, 2)[1][:, 1], "int32")

    lm = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    assert lm.generate("ROMEO:", 8, sampler=SecondBest()) != lm.generate("ROMEO:", 8)
    ```
    """

    streams: ClassVar[bool] = True  # whether a chosen token is final
    reads_prompt: ClassVar[bool] = False  # whether `start` needs the whole prompts
    branches: int = 1  # number of continuations of a prompt followed side by side
    step_length: int = 1  # tokens of a row per step; above 1 only with one branch
    draws: int = 0  # number of random numbers per token, from `RowLimits.uniforms`
    models: tuple = ()  # further models, which read the same tokens as the backbone
    ranks_log_probabilities: ClassVar[bool] = False  # whether rules change these instead of logits
    takes_guidance: ClassVar[bool] = True  # whether the logits may be guided
    reads_model_logits: ClassVar[bool] = False  # whether `advance` takes the logits before rules
    extra_steps: ClassVar[int] = 0  # steps beyond the number of new tokens
    # The state's fields with a place for each new token, and the axis of these places.
    sized: ClassVar[dict[str, int]] = {"tokens": -1}

    def get_config(self) -> dict[str, Any]:
        """Return the constructor arguments, for Keras files."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Sampler":
        return cls(**config)

    @property
    def slots_per_step(self) -> int:
        """Largest number of cache slots that a step needs."""
        return self.branches * self.step_length

    def check(self, backbone, rules) -> None:
        """Raise ValueError if the sampler does not support this backbone or these rules."""

    def start(self, rows: int, size: int, limits: RowLimits, prompt: Prompt):
        """Return the state before the first token, a NamedTuple with room for `size` tokens."""
        tokens = full_tensor((rows, size), limits.pad_id, "int32")
        return RowState(tokens, ops.zeros((rows,), "int32"), ops.zeros((rows,), "bool"))

    def propose(self, state, cache, limits: RowLimits):
        """Prepare a step: set the tokens that `next_tokens` returns.

        Args:
            state: the state.
            cache: the `Cache` of `models`, or one without layers.
            limits: `RowLimits`.

        Returns:
            The state, and the cache of `models` after they have read `next_tokens`.
        """
        return state, cache

    def choose(self, logits, count, limits: RowLimits):
        """Choose the next tokens, int `(rows,)`, from logits `(rows, vocabulary_size)`."""
        raise NotImplementedError

    def advance(self, state, logits, hidden, limits: RowLimits):
        """Choose the tokens of one step. The step after the prompt gives one token per branch.

        Args:
            state: the state.
            logits: float32 `(rows, branches, vocabulary_size)`, or log-probabilities; `(rows,
                step_length, vocabulary_size)` for a sampler with steps of several tokens.
            hidden: float `(rows, branches or step_length, hidden_dim)`, the states from which the
                logits were computed.
            limits: `RowLimits`.

        Returns:
            The new state, and what the cache keeps: the branch that each branch continues, int
            `(rows, branches)`; for steps of several tokens, how many each row keeps, int `(rows,)`;
            or None to keep everything.
        """
        chosen = self.choose(logits[:, 0], state.count, limits)
        open_ = ops.logical_not(self.finished(state, limits))
        tokens = put_at(state.tokens, state.count, chosen, open_)
        ended = ops.logical_or(state.ended, ops.logical_and(open_, is_end(chosen, limits)))
        return RowState(tokens, state.count + ops.cast(open_, "int32"), ended), None

    def next_tokens(self, state):
        """Return the tokens of the next step, `(rows, branches)` or `(rows, step_length)`."""
        last = ops.maximum(state.count - 1, 0)
        return ops.take_along_axis(state.tokens, last[:, None], axis=1)

    def grow(self, state, extra: int, pad_id: int):
        """Return the state with room for `extra` more new tokens."""
        return with_room(state, self.sized, extra, pad_id)

    def counts(self, state):
        """Return the number of tokens chosen so far, int `(rows,)`."""
        return state.count

    def finished(self, state, limits: RowLimits):
        """Return which rows need no further step, bool `(rows,)`."""
        return ops.logical_or(state.ended, self.counts(state) >= limits.max_new_tokens)

    def outputs(self, state) -> Outputs:
        """Return the outputs so far."""
        return Outputs(state.tokens[:, None], self.counts(state)[:, None])


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Greedy(Sampler):
    """Chooses the likeliest token at every step.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    translator.generate("a man rides a bike .", sampler=kt.generation.Greedy())
    ```
    """

    def choose(self, logits, count, limits: RowLimits):
        return argmax(logits)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Random(Sampler):
    """Draws each token from the model's distribution, after scaling and truncating it.

    Truncations are applied in the order of the arguments, each to the tokens that the previous ones
    left. Tokens as likely as the last one kept are kept too, and at least one token always remains:
    the likeliest, or with `typical_p` the most typical.

    Args:
        temperature: float above 0, divides the logits: below 1 likely tokens become likelier.
            Below 1e-5, finer than float32 logits can resolve, the likeliest token is taken.
        top_k: int, keep only this many of the likeliest tokens. None disables it.
        top_p: float in (0, 1], keep only the likeliest tokens that together have this probability.
            1 disables it.
        min_p: float in [0, 1], keep only tokens with at least this share of the probability of the
            likeliest token. 0 disables it.
        typical_p: float in (0, 1], keep only the tokens whose information is nearest to the entropy
            and which together have this probability. 1 disables it.
        epsilon_cutoff: float in [0, 1), keep only tokens with at least this probability; 3e-4 to
            9e-4 in the paper. 0 disables it.
        eta_cutoff: float in [0, 1), like `epsilon_cutoff`, but the bound falls with the entropy if
            the model is unsure, to `sqrt(eta_cutoff) * exp(-entropy)`. 3e-4 to 4e-3 in the paper. 0
            disables it.

    Raises:
        ValueError: if a value is out of range.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    sampler = kt.generation.Random(temperature=0.7, top_p=0.9)
    first = translator.generate("a man rides a bike .", sampler=sampler, seed=1)
    assert first == translator.generate("a man rides a bike .", sampler=sampler, seed=1)
    ```

    Source: top-k: Fan et al. 2018, section 5.4; top-p: Holtzman et al. 2020, section 3.1; min-p:
    Nguyen et al. 2024, section 3; typical: Meister et al. 2023, section 3; epsilon and eta: Hewitt
    et al. 2022, "Truncation Sampling as Language Model Desmoothing", section 4.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0

    draws: ClassVar[int] = 1

    def __post_init__(self):
        hint = "For the likeliest token at every step, use Greedy()."
        check_fields(self, check_float, "temperature", above=0, hint=hint)
        check_fields(self, check_float, "top_p", "typical_p", above=0, at_most=1, hint=hint)
        check_fields(self, check_float, "min_p", at_least=0, at_most=1, hint=hint)
        check_fields(self, check_int, "top_k", at_least=1, at_most=MOST_TOKENS, none=True)
        check_fields(self, check_float, "epsilon_cutoff", "eta_cutoff", at_least=0, below=1)

    def choose(self, logits, count, limits: RowLimits):
        return draw(ops.softmax(self.filtered(logits), axis=-1), uniform_of(limits, count))

    def filtered(self, logits):
        """Return scaled logits `(..., vocabulary_size)`, with removed tokens at -1e30."""
        logits = apply_temperature(logits, self.temperature)
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            logits = keep(logits, best(ordered(logits), self.top_k))
        if self.top_p < 1:
            chances = ops.softmax(logits, axis=-1)
            logits = keep(logits, best(ordered(logits), self.top_p, chances))
        if self.min_p > 0:
            share = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
            logits = _keep_likely(logits, share >= self.min_p * REACHED)
        if self.typical_p < 1:
            chances = ops.softmax(logits, axis=-1)
            surprise = -ops.log_softmax(logits, axis=-1)
            possible = logits > NEVER / 2
            expected = ops.where(possible, chances * surprise, 0.0)
            expected = ops.sum(expected, axis=-1, keepdims=True)
            distance = ops.where(possible, ops.abs(surprise - expected), -NEVER)
            logits = keep(logits, best(ordered(-distance), self.typical_p, chances))
        if self.epsilon_cutoff > 0:
            logits = _keep_likely(logits, ops.softmax(logits, axis=-1) >= self.epsilon_cutoff)
        if self.eta_cutoff > 0:
            chances = ops.softmax(logits, axis=-1)
            information = ops.where(chances > 0, chances * ops.log_softmax(logits, axis=-1), 0.0)
            # exp(-entropy)
            sureness = ops.exp(ops.sum(information, axis=-1, keepdims=True))
            least = ops.minimum(self.eta_cutoff, self.eta_cutoff**0.5 * sureness)
            logits = _keep_likely(logits, chances >= least)
        return logits


def _keep_likely(logits, likely):
    """Mask logits of tokens that are not `likely`, bool; the likeliest token always stays."""
    count = ops.sum(ops.cast(likely, "int32"), axis=-1, keepdims=True)
    return keep(logits, best(ordered(logits), ops.maximum(count, 1)))


def uniform_of(limits: RowLimits, count):
    """Return each row's random number for its next token."""
    last = limits.uniforms.shape[1] - 1
    return ops.take_along_axis(limits.uniforms, ops.minimum(count, last)[:, None], axis=1)[:, 0]


def put_at(tokens, places, values, where=None):
    """Put values `(rows, ...)` at `places`, int `(rows,)`, of tokens `(rows, ..., size)`."""
    here = ops.arange(tokens.shape[-1], dtype="int32")[None] == places[:, None]
    here = here if where is None else ops.logical_and(here, where[:, None])
    here = ops.reshape(here, (here.shape[0], *[1] * (len(tokens.shape) - 2), here.shape[1]))
    return ops.where(here, values[..., None], tokens)


def with_room(state, sized: dict[str, int], extra: int, pad_id: int):
    """Lengthen the `sized` fields of a state by `extra`, each on its axis; `()` is unchanged."""
    longer = {}
    for name, axis in sized.items():
        tensor = getattr(state, name)
        if isinstance(tensor, tuple):
            continue
        widths = [(0, 0)] * len(tensor.shape)
        widths[axis] = (0, extra)
        floats = "float" in keras.backend.standardize_dtype(tensor.dtype)
        longer[name] = ops.pad(tensor, widths, constant_values=0 if floats else pad_id)
    return state._replace(**longer)


def is_end(tokens, limits: RowLimits):
    """Return which tokens are end ids, bool."""
    ended = ops.zeros_like(tokens, dtype="bool")
    for end_id in limits.end_ids:
        ended = ops.logical_or(ended, ops.equal(tokens, end_id))
    return ended


# Samplers by name; each is constructed without arguments.
_NAMED: dict[str, Callable[[], Sampler]] = {
    "greedy": Greedy,
    "random": Random,
    "top_k": lambda: Random(top_k=50),
    "top_p": lambda: Random(top_p=0.9),
}


def named(name: str) -> Callable[[type[Sampler]], type[Sampler]]:
    """Decorate a sampler class so that `get` finds it by this name."""

    def register(sampler: type[Sampler]) -> type[Sampler]:
        _NAMED[name] = sampler
        return sampler

    return register


def get(sampler: str | Sampler) -> Sampler:
    """Return the sampler with this name and default values, or a given sampler itself."""
    if isinstance(sampler, Sampler):
        kind = type(sampler)
        if kind.choose is Sampler.choose and kind.advance is Sampler.advance:
            raise ValueError(
                f"{kind.__name__} does not say how tokens are chosen: a subclass of Sampler needs "
                "a method `choose(self, logits, count, limits)`."
            )
        return sampler
    if isinstance(sampler, type) and issubclass(sampler, Sampler):
        name = sampler.__name__
        raise ValueError(f"`sampler` is the class {name}: give an instance, {name}().")
    if not isinstance(sampler, str) or sampler not in _NAMED:
        raise ValueError(
            f"Unknown sampler {shorten(sampler)}.{sampler_here(sampler)}"
            f"{nearest(sampler, _NAMED)} "
            f"Known names are: {', '.join(map(repr, sorted(_NAMED)))}; or give a sampler object, "
            "such as keras_transformer.generation.BeamSearch(num_beams=5)."
        )
    return _NAMED[sampler]()


@dataclasses.dataclass(frozen=True)
class RowRandom(Sampler):
    """Samples like `Greedy` or `Random`, with a temperature and a `top_p` for each row.

    These values are the `choices` of `RowLimits`, float32 `(rows, 2)`. They are arguments of the
    compiled function, so that new values need no compilation. A row with a temperature below 1e-5
    takes the likeliest token.

    Args:
        cuts: bool, whether `top_p` is applied, which requires sorting the vocabulary.

    Example:
    ```python
    import numpy as np
    from keras_transformer.generation.samplers.samplers import RowRandom
    from keras_transformer.generation.samplers.samplers import RowLimits
    from keras import ops

    choices = np.array([[0.0, 1.0], [1.0, 0.5]], "float32")
    limits = RowLimits((), 0, None, np.full((2, 1), 0.9, "float32"), choices)
    logits = np.log(np.array([[0.2, 0.7, 0.1], [0.2, 0.7, 0.1]], "float32"))
    chosen = RowRandom(cuts=True).choose(ops.array(logits), ops.zeros((2,), "int32"), limits)
    assert ops.convert_to_numpy(chosen).tolist() == [1, 1]
    ```
    """

    cuts: bool = False

    draws: ClassVar[int] = 1

    def choose(self, logits, count, limits: RowLimits):
        temperature, top_p = limits.choices[:, :1], limits.choices[:, 1:2]
        cold = temperature < COLD
        possible = logits > NEVER / 2
        drawn = keep(logits / ops.where(cold, 1.0, temperature), possible)
        if self.cuts:
            kept = best(ordered(drawn), top_p, ops.softmax(drawn, axis=-1))
            drawn = keep(drawn, ops.logical_or(kept, top_p >= 1))
        drawn = draw(ops.softmax(drawn, axis=-1), uniform_of(limits, count))
        return ops.where(cold[:, 0], argmax(logits), drawn)
