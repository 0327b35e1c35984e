"""The decode engine: the whole prompt at once, then token by token in a compiled loop."""

import threading
import weakref
from collections import OrderedDict

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import MOST_TOKENS, check_int
from keras_transformer.generation.automaton_tables import AutomatonTables
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.decoding import Compiled, DecodeState, Decoding, Settings
from keras_transformer.generation.program import Program
from keras_transformer.generation.samplers import Outputs, Sampler
from keras_transformer.programs import to_tensor
from keras_transformer.sizes import round_size, round_up

# The functions of so many samplers, rules and ends are kept.
_MOST_SETTINGS = 32


class Engine:
    """Steps of generation with a backbone that follows the cache protocol.

    The protocol: `backbone(inputs, cache=cache)` returns states and the updated cache, which keeps
    what `backbone.cache_layers` says; `backbone.logits`; `backbone.prompt_tokens(inputs)` the ids
    and mask that the decoder starts from; and `backbone.step_inputs(tokens)` the inputs of one
    further step. `models.DecoderBase` has it for a decoder of one's own.

    `generate` decodes one batch to its end. `Scheduler.run` decodes many prompts, and lets
    others take the place of those that are done.

    Args:
        backbone: a `Decoder` or `Seq2Seq`, or one of your own.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Engine, Greedy, Settings

    backbone = kt.models.Decoder(kt.TransformerConfig(
        kind="decoder", vocabulary_size=50, hidden_dim=16, num_layers=1, num_heads=2,
        intermediate_dim=32,
    ))
    inputs = {"token_ids": np.array([[3, 4]]), "padding_mask": np.ones((1, 2), bool)}
    outputs = Engine(backbone).generate(inputs, Settings(Greedy()), max_new_tokens=5)
    assert outputs.tokens.shape == (1, 1, 5)
    ```
    """

    def __init__(self, backbone):
        self.backbone = backbone
        self._lock = threading.RLock()
        self._compiled: OrderedDict = OrderedDict()
        # What a constraint is to the device, for as long as there is the constraint.
        self._tables: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def generate(
        self,
        inputs: dict[str, np.ndarray],
        settings: Settings,
        max_new_tokens: int,
        uniforms: np.ndarray | None = None,
    ) -> Outputs:
        """New tokens for one batch of prompts.

        Args:
            inputs: the backbone's inputs, NumPy arrays, rows padded on the right.
            settings: `Settings`.
            max_new_tokens: int.
            uniforms: float32 `(rows, max_new_tokens * draws)`, for samplers that draw, see
                `Limits`.

        Returns:
            `Outputs` of NumPy arrays; rows end with an end id or with pads. They are
            `max_new_tokens` long, or less if that was not needed.
        """
        rows = len(next(iter(inputs.values())))
        max_new_tokens = check_int("max_new_tokens", max_new_tokens, 1, MOST_TOKENS)
        limit = np.full((rows,), max_new_tokens, "int32")
        width = max_new_tokens * settings.sampler.draws
        uniforms = np.zeros((rows, 0), "float32") if uniforms is None else np.asarray(uniforms)
        if width and (uniforms.ndim != 2 or len(uniforms) != rows or uniforms.shape[1] < width):
            raise ValueError(
                f"{settings.sampler} draws: `uniforms` must have the shape ({rows}, {width}), "
                f"received {uniforms.shape}."
            )
        steps = most_steps(settings.sampler)
        state = self.prefill(inputs, settings, limit, uniforms, steps)
        while not self.finished(state, settings, limit).all():
            state = self.make_room(state, settings, steps)
            state = self.extend(state, settings, limit, uniforms, steps, rows)
        found = self.outputs(state, settings)
        return found._replace(tokens=found.tokens[..., :max_new_tokens])

    def prefill(
        self,
        inputs: dict,
        settings: Settings,
        max_new_tokens: np.ndarray,
        uniforms: np.ndarray,
        steps: int,
        prefix: Cache | None = None,
        copies: int = 1,
        slots: int = 0,
    ) -> DecodeState:
        """The state after the prompts and the first new token.

        Args:
            inputs: the backbone's inputs, `prompts` rows, padded on the right.
            settings: `Settings`.
            max_new_tokens: int32 `(prompts * copies,)`.
            uniforms: float32 `(prompts * copies, count)`, see `Limits`; those of the first token
                are needed.
            steps: int, room in the cache for so many steps.
            prefix: a cache of one row with what stands before every prompt, from `read_prefix`.
            copies: int, rows of each prompt, one after the other.
            slots: int, room in the cache at least.
        """
        inputs = {name: to_tensor(np.asarray(array)) for name, array in inputs.items()}
        length = self.backbone.prompt_tokens(inputs)[0].shape[1]
        needed = (0 if prefix is None else prefix.slots) + length
        needed += settings.sampler.slots_per_step * steps
        slots = self._slots(settings, len(max_new_tokens), max(slots, needed))
        limits = _tensors(max_new_tokens, _of_width(uniforms, slots * settings.sampler.draws))
        state, report = self._compiled_for(settings).prefill(
            inputs, *limits, self._tables_of(settings), prefix, slots=slots, copies=copies
        )
        return state._replace(report=report)

    def padded_prompts(
        self, settings: Settings, rows: int, length: int, most: tuple[int | None, int | None]
    ) -> tuple[int, int]:
        """To how many rows and tokens to pad so many prompts, the longest of which has `length`.

        Args:
            settings: `Settings`.
            rows: int, prompts.
            length: int, tokens.
            most: the most rows and tokens, each an int or None.
        """
        padded = (round_up(rows), round_size(length))
        pairs = zip((rows, length), padded, most, strict=True)
        wanted = tuple(x if m is None else max(n, min(x, m)) for n, x, m in pairs)
        return self._compiled_for(settings).sizes.choose(wanted, most, group="prompts")

    def read_prefix(self, ids: list[int], settings: Settings) -> Cache:
        """The cache of tokens that many prompts begin with: one row without room for more."""
        tokens = to_tensor(np.asarray([ids], "int32"))
        return self._compiled_for(settings).read_prefix(tokens)

    def extend(
        self,
        state: DecodeState,
        settings: Settings,
        max_new_tokens: np.ndarray,
        uniforms: np.ndarray,
        steps: int,
        enough: int,
    ) -> DecodeState:
        """At most `steps` more steps, fewer if `enough` rows are finished before."""
        limits = _tensors(max_new_tokens, _of_width(uniforms, state.size * settings.sampler.draws))
        numbers = (to_tensor(np.array(x, "int32")) for x in (steps, enough))
        state = state._replace(steps=to_tensor(np.zeros((), "int32")), report=())
        extend, tables = self._compiled_for(settings).extend, self._tables_of(settings)
        state, report = extend(state, *limits, tables, *numbers)
        return state._replace(report=report)

    def make_room(self, state: DecodeState, settings: Settings, steps: int) -> DecodeState:
        """The state with slots and room for the tokens of `steps` more steps.

        Slots that nothing sees any more are given back first: padding, dead branches, rejected
        tokens, what has left the window of a model that has one.
        """
        sampler, report = settings.sampler, state.report
        unfinished = ~ops.convert_to_numpy(report.finished)
        counts, remaining = (ops.convert_to_numpy(x) for x in (report.counts, report.remaining))
        remaining = int(remaining[unfinished].max(initial=0))
        needed, end = steps * sampler.slots_per_step, int(state.cache.end)
        if end + needed > state.cache.slots:
            used = int(ops.convert_to_numpy(report.used).max())
            if used <= 0.75 * end:
                cache = self._compiled_for(settings).compact(state.cache)
                state, end = state._replace(cache=cache), used
        slots, size = state.cache.slots, state.size
        if end + needed > slots:
            # Half as many again, so that it is seldom; but not for steps that will not come.
            most = max(needed, (remaining + sampler.extra_steps) * sampler.slots_per_step)
            slots = self._slots(settings, len(counts), end + min(max(needed, end // 2), most))
            size = max(size, slots)
        count = int(counts[unfinished].max(initial=0))
        # Rules may be a token ahead of a sampler that begins with candidates.
        coming = min(steps * sampler.step_length, remaining) + sampler.extra_steps
        if count + coming > size:
            size = round_size(count + max(steps * sampler.step_length, count // 2))
        if (slots, size) == (state.cache.slots, state.size):
            return state
        extra = size - state.size
        grow = self._compiled_for(settings).grow
        grown = grow(state._replace(report=()), extra=extra, slots=slots)
        tokens = ops.convert_to_numpy(report.found.tokens)
        tokens = np.pad(tokens, ((0, 0), (0, 0), (0, extra)), constant_values=settings.pad_id)
        report = report._replace(found=report.found._replace(tokens=tokens))
        return grown._replace(report=report)

    def replace_rows(
        self, state: DecodeState, settings: Settings, kept: np.ndarray, new: DecodeState
    ) -> DecodeState:
        """The rows `kept`, int `(count,)`, and behind them those of `new`."""
        reports = [keras.tree.map_structure(_to_numpy, x.report) for x in (state, new)]
        order = np.concatenate([kept, len(reports[0].counts) + np.arange(len(reports[1].counts))])
        old, new = (x._replace(report=()) for x in (state, new))
        replace = self._compiled_for(settings).replace
        joined = replace(old, new, to_tensor(order.astype("int32")))
        report = keras.tree.map_structure(
            lambda x, y: None if x is None else _joined(x, y)[order], *reports
        )
        return joined._replace(report=report)

    def finished(self, state: DecodeState, settings: Settings, max_new_tokens) -> np.ndarray:
        """Bool `(rows,)`, the rows that are done. FloatingPointError for broken logits."""
        places = ops.convert_to_numpy(state.not_a_number)
        places = places[(places >= 0) & (max_new_tokens > 0)]
        if places.size:
            raise FloatingPointError(
                f"The logits of new token {places.min() + 1} are NaN or infinite: the model's "
                "weights hold such values, or it overflows in its dtype "
                f"({self.backbone.compute_dtype}). Check the weights, or load with "
                'dtype="float32".'
            )
        places = ops.convert_to_numpy(state.not_ruled)
        if (places >= 0).any():
            raise FloatingPointError(
                f"The `function` of the rules gave NaN or infinity for new token "
                f"{places[places >= 0].min() + 1}, of logits that were numbers. To ban a token "
                "give it -infinity or -1e30."
            )
        finished = ops.convert_to_numpy(state.report.finished)
        return np.logical_or(finished, np.asarray(max_new_tokens) <= 0)

    def counts(self, state: DecodeState, settings: Settings) -> np.ndarray:
        """Int `(rows,)`, the tokens that each row has so far."""
        return ops.convert_to_numpy(state.report.counts)

    def outputs(self, state: DecodeState, settings: Settings) -> Outputs:
        """What has been found so far, as NumPy arrays."""
        return Outputs(*map(_to_numpy, state.report.found))

    def compiled_once(self, key, make):
        """What `make` gave for this key the first time; the ones not used for long are dropped."""
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = make()
            self._compiled.move_to_end(key)
            if len(self._compiled) > _MOST_SETTINGS:
                self._compiled.popitem(last=False)
            return self._compiled[key]

    def _compiled_for(self, settings: Settings) -> Compiled:
        if settings.rules is not None:
            settings = settings._replace(rules=settings.rules.of_any_automaton)

        def make():
            settings.sampler.check(self.backbone, settings.rules)
            program = Program(self.backbone, *settings.sampler.models)
            return Decoding(program, settings).compiled()

        return self.compiled_once(settings, make)

    def _slots(self, settings: Settings, rows: int, needed: int) -> int:
        """Slots of a cache with room for `needed`: up to twice as many if there is a program."""
        wanted = round_size(needed)
        most = max(256, 2 * wanted)  # memory
        return self._compiled_for(settings).sizes.choose(
            (rows, wanted), (rows, most), group="slots"
        )[1]

    def _tables_of(self, settings: Settings) -> AutomatonTables | tuple:
        """The automaton of the rules, as tensors; `()` without one."""
        automaton = None if settings.rules is None else settings.rules.automaton
        if automaton is None:
            return ()
        key = (settings.end_ids, settings.pad_id)
        with self._lock:
            made = self._tables.setdefault(automaton, {})
            if key not in made:
                size = self.backbone.config.vocabulary_size
                tables = AutomatonTables.make(automaton, size, *key)
                made[key] = AutomatonTables(*map(to_tensor, tables))
            return made[key]


def _tensors(max_new_tokens, uniforms) -> tuple:
    # Copies: the limits of rows that leave are set to 0.
    return to_tensor(np.array(max_new_tokens, "int32")), to_tensor(np.array(uniforms, "float32"))


def most_steps(sampler: Sampler) -> int:
    """Steps in one call of the loop.

    So many that a call costs little beside them, and so few that the cache starts small and an
    interruption is heard soon.
    """
    return 16 if sampler.branches > 1 else max(8, 64 // sampler.step_length)


def _of_width(uniforms: np.ndarray, width: int) -> np.ndarray:
    """Random numbers `(rows, count)` cut or filled up to `width` columns."""
    count = uniforms.shape[1]
    if count >= width:
        return uniforms[:, :width]
    return np.pad(uniforms, ((0, 0), (0, width - count)))


def _to_numpy(tensor):
    return None if tensor is None else ops.convert_to_numpy(tensor)


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The rows of both, padded with zeros to the larger of each size."""
    sizes = [max(pair) for pair in zip(first.shape[1:], second.shape[1:], strict=True)]

    def pad(array):
        more = [size - old for size, old in zip(sizes, array.shape[1:], strict=True)]
        return np.pad(array, [(0, 0), *((0, extra) for extra in more)])

    return np.concatenate([pad(first), pad(second)])
