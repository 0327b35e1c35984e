"""Samplers: from the logits of a step to the next tokens. Greedy and random ones."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import keras
from keras import ops

from keras_transformer.checking import (
    MOST_TOKENS,
    check_fields,
    check_float,
    check_int,
    nearest,
    shorten,
)
from keras_transformer.generation.logits import NEVER, apply_temperature, draw, keep
from keras_transformer.kerashub_names import sampler_here
from keras_transformer.kernels.selection import REACHED, argmax, best, ordered


class Limits(NamedTuple):
    """What bounds a generation, row by row."""

    end_ids: tuple[int, ...]  # a row ends with any of them
    pad_id: int  # fills rows after their end
    max_new_tokens: Any  # int32 (rows,); a row with 0 is finished
    # float32 (rows, size * draws), random numbers from 0 to 1, `draws` of the sampler for each new
    # token, those of a token side by side.
    uniforms: Any
    # float32 (rows, count), numbers by which a sampler treats each row, of those that have some
    choices: Any = None


class Prompt(NamedTuple):
    """What a sampler may know of the prompts before the first token."""

    tokens: Any  # int (rows, length)
    mask: Any  # bool (rows, length)
    hidden: Any  # float (rows, length, hidden_dim), the last states


class Outputs(NamedTuple):
    """What a sampler has found, best first."""

    tokens: Any  # int (rows, n, size)
    counts: Any  # int (rows, n), tokens, an end included; 0 for a hypothesis that there is not
    scores: Any = None  # float32 (rows, n), of samplers that rank
    # int (rows,), how often the model ran for a row, where a pass may give several tokens.
    passes: Any = None


class RowState(NamedTuple):
    """The new tokens of every row."""

    tokens: Any  # int (rows, size)
    count: Any  # int (rows,)
    ended: Any  # bool (rows,)


class Sampler:
    """Chooses tokens. The engine calls it within a compiled loop: all state is in tensors.

    Every tensor of the state has the rows of the batch as its first axis, so that rows can leave
    a batch and others come. Subclasses are frozen dataclasses: equal ones share their compiled
    functions. A subclass that adds one token to each row at a time implements `choose` alone.

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

    streams: ClassVar[bool] = True  # whether a token once chosen stays
    reads_prompt: ClassVar[bool] = False  # whether `start` needs the whole prompts
    branches: int = 1  # continuations of a prompt that are followed side by side
    step_length: int = 1  # tokens of a row that go into a step; above 1 with one branch only
    draws: int = 0  # random numbers that it needs for a token, of `Limits.uniforms`
    models: tuple = ()  # further models, which read what the backbone reads
    ranks_log_probabilities: ClassVar[bool] = False  # whether rules change those and not logits
    takes_guidance: ClassVar[bool] = True  # whether the logits may be guided ones
    extra_steps: ClassVar[int] = 0  # steps beyond the number of new tokens
    # The fields of the state that have a place for each new token, and on which axis.
    sized: ClassVar[dict[str, int]] = {"tokens": -1}

    def get_config(self) -> dict[str, Any]:
        """The values that make the sampler again, for Keras's files."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Sampler":
        return cls(**config)

    @property
    def slots_per_step(self) -> int:
        """Slots of the cache that a step needs at most."""
        return self.branches * self.step_length

    def check(self, backbone, rules) -> None:
        """ValueError if the sampler cannot work with this backbone or these rules."""

    def start(self, rows: int, size: int, limits: Limits, prompt: Prompt):
        """The state before the first token, a NamedTuple of tensors with room for `size` tokens."""
        tokens = ops.full((rows, size), limits.pad_id, "int32")
        return RowState(tokens, ops.zeros((rows,), "int32"), ops.zeros((rows,), "bool"))

    def propose(self, state, cache, limits: Limits):
        """Prepares a step: sets the tokens that `next_tokens` gives.

        Args:
            state: the state.
            cache: the `Cache` of `models`, or one without layers.
            limits: `Limits`.

        Returns:
            The state, and the cache of `models` after they have read `next_tokens`.
        """
        return state, cache

    def choose(self, logits, count, limits: Limits):
        """The next tokens, int `(rows,)`, of logits `(rows, vocabulary_size)`."""
        raise NotImplementedError

    def advance(self, state, logits, hidden, limits: Limits):
        """Chooses the tokens of one step. After the prompt, the step is of one token a branch.

        Args:
            state: the state.
            logits: float32 `(rows, branches, vocabulary_size)`, or log-probabilities; `(rows,
                step_length, vocabulary_size)` for a sampler with steps of several tokens.
            hidden: float `(rows, branches or step_length, hidden_dim)`, the states that the
                logits are of.
            limits: `Limits`.

        Returns:
            The new state, and what the cache keeps, or None for everything: which branch each
            branch continues, int `(rows, branches)`; for steps of several tokens, how many of
            them each row keeps, int `(rows,)`.
        """
        chosen = self.choose(logits[:, 0], state.count, limits)
        open_ = ops.logical_not(self.finished(state, limits))
        tokens = put_at(state.tokens, state.count, chosen, open_)
        ended = ops.logical_or(state.ended, ops.logical_and(open_, is_end(chosen, limits)))
        return RowState(tokens, state.count + ops.cast(open_, "int32"), ended), None

    def next_tokens(self, state):
        """The tokens of the next step, int `(rows, branches)` or `(rows, step_length)`."""
        last = ops.maximum(state.count - 1, 0)
        return ops.take_along_axis(state.tokens, last[:, None], axis=1)

    def grow(self, state, extra: int, pad_id: int):
        """The state with room for `extra` more new tokens."""
        return with_room(state, self.sized, extra, pad_id)

    def counts(self, state):
        """Int `(rows,)`, the number of tokens chosen so far."""
        return state.count

    def finished(self, state, limits: Limits):
        """Bool `(rows,)`, the rows that need no further step."""
        return ops.logical_or(state.ended, self.counts(state) >= limits.max_new_tokens)

    def outputs(self, state) -> Outputs:
        """What has been found."""
        return Outputs(state.tokens[:, None], self.counts(state)[:, None])


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Greedy(Sampler):
    """The likeliest token at every step.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    translator.generate("a man rides a bike .", sampler=kt.generation.Greedy())
    ```
    """

    def choose(self, logits, count, limits: Limits):
        return argmax(logits)


@keras.saving.register_keras_serializable(package="keras_transformer")
@dataclasses.dataclass(frozen=True)
class Random(Sampler):
    """Draws each token from the model's distribution, sharpened and cut as asked.

    The cuts are made in the order of the arguments, each on what the one before has left. A token
    as likely as the last one kept is kept too, and each cut keeps at least one token: the
    likeliest, or with `typical_p` the most typical.

    Args:
        temperature: float above 0, divides the logits: below 1 likely tokens become likelier.
            Below 1e-5, less than logits in float32 can tell, the likeliest token is drawn.
        top_k: int, only the `k` likeliest tokens. None for all.
        top_p: float in (0, 1], only the likeliest tokens that together have this probability.
        min_p: float in [0, 1], only tokens with at least this share of the likeliest one's
            probability.
        typical_p: float in (0, 1], only the tokens whose information is nearest to the expected
            one, and which together have this probability.
        epsilon_cutoff: float in [0, 1), only tokens with at least this probability; 3e-4 to 9e-4
            in the paper. 0 cuts nothing.
        eta_cutoff: float in [0, 1), as `epsilon_cutoff` where the model is sure; where it is not,
            the bound falls with the entropy, to `sqrt(eta_cutoff) * exp(-entropy)`. 3e-4 to 4e-3
            in the paper. 0 cuts nothing.

    Raises:
        ValueError: for values that are out of range.

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

    def choose(self, logits, count, limits: Limits):
        return draw(ops.softmax(self.filtered(logits), axis=-1), uniform_of(limits, count))

    def filtered(self, logits):
        """Logits `(..., vocabulary_size)`, scaled, with tokens that are cut off at -1e30."""
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
    """Logits without the tokens that are not likely, bool; the likeliest token always stays."""
    count = ops.sum(ops.cast(likely, "int32"), axis=-1, keepdims=True)
    return keep(logits, best(ordered(logits), ops.maximum(count, 1)))


def uniform_of(limits: Limits, count):
    """Each row's number for its next token."""
    last = limits.uniforms.shape[1] - 1
    return ops.take_along_axis(limits.uniforms, ops.minimum(count, last)[:, None], axis=1)[:, 0]


def put_at(tokens, places, values, where=None):
    """`(rows, ..., size)` tokens with `(rows, ...)` values at `(rows,)` places, `where` is true."""
    here = ops.arange(tokens.shape[-1], dtype="int32")[None] == places[:, None]
    here = here if where is None else ops.logical_and(here, where[:, None])
    here = ops.reshape(here, (here.shape[0], *[1] * (len(tokens.shape) - 2), here.shape[1]))
    return ops.where(here, values[..., None], tokens)


def with_room(state, sized: dict[str, int], extra: int, pad_id: int):
    """A state with its `sized` fields longer by `extra`, each on its axis; `()` stays."""
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


def is_end(tokens, limits: Limits):
    """Bool, which tokens are end ids."""
    ended = ops.zeros_like(tokens, dtype="bool")
    for end_id in limits.end_ids:
        ended = ops.logical_or(ended, ops.equal(tokens, end_id))
    return ended


# The samplers that have a name, each without arguments.
_NAMED: dict[str, Callable[[], Sampler]] = {
    "greedy": Greedy,
    "random": Random,
    "top_k": lambda: Random(top_k=50),
    "top_p": lambda: Random(top_p=0.9),
}


def named(name: str) -> Callable[[type[Sampler]], type[Sampler]]:
    """A decorator: the class is what `get` makes of the name."""

    def register(sampler: type[Sampler]) -> type[Sampler]:
        _NAMED[name] = sampler
        return sampler

    return register


def get(sampler: str | Sampler) -> Sampler:
    """The sampler of a name with its default values, or the sampler itself."""
    if isinstance(sampler, Sampler):
        kind = type(sampler)
        if kind.choose is Sampler.choose and kind.advance is Sampler.advance:
            raise ValueError(
                f"{kind.__name__} does not say how tokens are chosen: a subclass of Sampler has a "
                "method `choose(self, logits, count, limits)`."
            )
        return sampler
    if isinstance(sampler, type) and issubclass(sampler, Sampler):
        name = sampler.__name__
        raise ValueError(f"`sampler` is the class {name}: give an object of it, {name}().")
    if not isinstance(sampler, str) or sampler not in _NAMED:
        raise ValueError(
            f"Unknown sampler {shorten(sampler)}.{sampler_here(sampler)}"
            f"{nearest(sampler, _NAMED)} "
            f"Known names are: {', '.join(map(repr, sorted(_NAMED)))}; or give a sampler object, "
            "such as keras_transformer.generation.BeamSearch(num_beams=5)."
        )
    return _NAMED[sampler]()
