"""The decode engine: the whole prompt at once, then token by token in a compiled loop."""

import dataclasses
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import MOST_TOKENS, check_int
from keras_transformer.generation.automaton_tables import AutomatonTables
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.decoding import DecodeState, Decoding, Given, Report, Settings
from keras_transformer.generation.guidance import GuidedProgram, split_inputs
from keras_transformer.generation.program import Program
from keras_transformer.generation.samplers import Outputs, Sampler
from keras_transformer.kernels.programs import to_tensor
from keras_transformer.planning.memory import LOOP_TOKENS
from keras_transformer.process import release_memory
from keras_transformer.sizes import round_size, round_up

# The functions of so many samplers, rules and ends are kept.
_MOST_SETTINGS = 32


@dataclasses.dataclass
class Batch:
    """Rows that are decoded together, between two calls of what is compiled."""

    settings: Settings
    compiled: SimpleNamespace  # the functions of the settings, see `Decoding.compiled`
    limits: np.ndarray  # int32 (rows,), the most new tokens of each; 0 for one that counts no more
    owners: list  # whose each row is, None for nobody's
    draw: Callable  # from the owners and a width to float32 (rows, width), see `Limits`
    uniforms: np.ndarray  # what was drawn
    choices: np.ndarray  # float32 (rows, count), see `samplers.Limits`
    state: DecodeState | None = None
    report: Report | None = None  # NumPy arrays, except for what was found

    def take(self, result: tuple) -> "Batch":
        """The batch with what a compiled function gave of it."""
        self.state, report = result
        self.report = Report(*map(ops.convert_to_numpy, report[:-1]), report.found)
        return self

    @property
    def size(self) -> int:
        """The room for new tokens."""
        return self.report.found.tokens.shape[-1]


class Engine:
    """Steps of generation with a backbone that follows the cache protocol.

    The protocol: `backbone(inputs, cache=cache)` returns states and the updated cache, which keeps
    what `backbone.cache_layers` says; `backbone.logits`; `backbone.prompt_tokens(inputs)` the ids
    and mask that the decoder starts from; and `backbone.step_inputs(tokens)` the inputs of one
    further step. `models.DecoderBase` has it for a decoder of your own.

    `generate` decodes one batch to its end. `Scheduler.run` decodes many prompts, and lets
    others take the place of those that are done.

    Args:
        backbone: a `Decoder` or `Seq2Seq`, or one of your own.

    Example:
    ```python
    import numpy as np
    import keras_transformer as kt
    from keras_transformer.generation import Engine, Greedy, Settings

    backbone = kt.CausalLM.from_preset("gpt_tiny_shakespeare").backbone
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
            inputs: the backbone's inputs, NumPy arrays, rows padded on the right; with guidance
                also those of the negative prompts, see `guidance.negative_inputs`.
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
        if settings.rules is not None:
            settings.rules.check_limit(max_new_tokens)
        width = max_new_tokens * settings.sampler.draws
        uniforms = np.zeros((rows, 0), "float32") if uniforms is None else np.asarray(uniforms)
        if width and (uniforms.ndim != 2 or len(uniforms) != rows or uniforms.shape[1] < width):
            raise ValueError(
                f"{settings.sampler} draws: `uniforms` must have the shape ({rows}, {width}), "
                f"received {uniforms.shape}."
            )

        def draw(owners, width):
            return np.pad(uniforms[:, :width], ((0, 0), (0, max(0, width - uniforms.shape[1]))))

        batch = self.prefill(inputs, settings, np.full((rows,), max_new_tokens, "int32"), draw)
        while not self.finished(batch).all():
            self.extend(batch)
        found = self.outputs(batch)
        return found._replace(tokens=found.tokens[..., :max_new_tokens])

    def prefill(
        self,
        inputs: dict,
        settings: Settings,
        limits: np.ndarray,
        draw: Callable | None = None,
        steps: int | None = None,
        owners: list | None = None,
        prefix: Cache | None = None,
        slots: int = 0,
        choices: np.ndarray | None = None,
    ) -> Batch:
        """A batch after its prompts, padded on the right, and the first new token.

        Each of `rows` prompts has `len(limits) // rows` rows of the batch, one after the other. The
        cache has room for `steps` steps, or `most_steps` where so many can come, and for `slots` at
        least; `prefix`, of `read_prefix`, stands before every prompt. For `limits`, `draw`,
        `owners` and `choices` see `Batch`.
        """
        sampler = settings.sampler
        tensors = {name: to_tensor(np.asarray(array)) for name, array in inputs.items()}
        own, negative = split_inputs(tensors)
        if settings.guided != bool(negative):
            raise ValueError(
                "The settings have a `guidance_scale` other than 1 if and only if `inputs` hold "
                f"negative prompts, see `negative_inputs`: received {settings.guidance_scale} and "
                f"inputs {sorted(inputs)}."
            )
        tokens = self.backbone.prompt_tokens(own)[0]
        copies = len(limits) // tokens.shape[0]
        needed = (0 if prefix is None else prefix.slots) + tokens.shape[1]
        if negative:
            needed = max(needed, self.backbone.prompt_tokens(negative)[0].shape[1])
        if steps is None:  # Nothing is written for the last token.
            longest = int(limits.max(initial=1)) - 1 + sampler.extra_steps
            steps = min(most_steps(sampler), longest)
        needed += sampler.slots_per_step * steps
        compiled, nothing = self._compiled_for(settings), np.zeros((len(limits), 0), "float32")
        owners = list(range(len(limits))) if owners is None else owners
        choices = nothing if choices is None else choices
        batch = Batch(settings, compiled, limits, owners, draw, nothing, choices)
        # A batch that is joined has the slots that it has.
        wanted = max(slots, round_size(needed)) if slots else _slots(batch, needed)
        room = {key: min(wanted, most) for key, most in _most_slots(batch).items()}
        options = {"slots": tuple(room.items()), "size": max(room.values()), "copies": copies}
        given = self._given(batch, options["size"])
        return batch.take(compiled.prefill(tensors, given, prefix, **options))

    def padded_prompts(
        self, settings: Settings, rows: int, length: int, most: tuple[int | None, int | None]
    ) -> tuple[int, int]:
        """To how many rows and tokens to pad so many prompts, of at most `most`, None for any."""
        padded = (round_up(rows), round_size(length))
        pairs = zip((rows, length), padded, most, strict=True)
        wanted = tuple(x if m is None else max(n, min(x, m)) for n, x, m in pairs)
        return self._compiled_for(settings).sizes.choose(wanted, most, group="prompts")

    def read_prefix(self, ids: list[int], settings: Settings) -> Cache:
        """The cache of tokens that many prompts begin with: one row without room for more."""
        tokens = to_tensor(np.asarray([ids], "int32"))
        return self._compiled_for(settings).read_prefix(tokens)

    def extend(self, batch: Batch, steps: int | None = None, enough: int | None = None) -> None:
        """At most `steps` more steps, fewer if `enough` rows, else all, are finished before."""
        sampler = batch.settings.sampler
        remaining = int((batch.limits - batch.report.counts).max()) + sampler.extra_steps
        steps = min(remaining, most_steps(sampler) if steps is None else steps)
        self.make_room(batch, steps)
        enough = len(batch.limits) if enough is None else enough
        numbers = (to_tensor(np.array(x, "int32")) for x in (steps, enough))
        state = batch.state._replace(steps=to_tensor(np.zeros((), "int32")))
        batch.take(batch.compiled.extend(state, self._given(batch, batch.size), *numbers))

    def make_room(self, batch: Batch, steps: int) -> None:
        """Makes room for the slots and the tokens of `steps` more steps.

        Slots that nothing sees any more are given back first, see `Cache.compact`.
        """
        report, sampler = batch.report, batch.settings.sampler
        needed = steps * sampler.slots_per_step
        ends = self._compacted(batch, needed)
        unfinished = ~report.finished
        remaining = int((batch.limits - report.counts)[unfinished].max(initial=0))
        has = {key: space.slots for key, space in batch.state.cache.spaces.items()}
        slots, size = dict(has), batch.size
        small = [key for key, end in ends.items() if end + needed > slots[key]]
        if small:
            # Half as many again, so that it is seldom; but not for steps that will not come.
            most = max(needed, (remaining + sampler.extra_steps) * sampler.slots_per_step)
            end, windows = max(ends[key] for key in small), _most_slots(batch, needed)
            wanted = _slots(batch, end + min(max(needed, end // 2), most))
            slots |= {key: min(wanted, windows[key]) for key in small}
            size = max(size, *(slots[key] for key in small))
        count = int(report.counts[unfinished].max(initial=0))
        # Rules may be a token ahead of a sampler that begins with candidates.
        coming = min(steps * sampler.step_length, remaining) + sampler.extra_steps
        if count + coming > size:
            size = round_size(count + max(steps * sampler.step_length, count // 2))
        if (slots, size) != (has, batch.size):
            self._grow(batch, slots, size - batch.size)

    def _grow(self, batch: Batch, slots: dict[int, int], extra: int) -> None:
        """Room for `extra` more tokens, and `slots` in the spaces of the cache.

        One layer after the other, of which the old one is freed: the old cache and the new one are
        never there as a whole together.
        """
        cache, compiled = batch.state.cache, batch.compiled
        more = {key: slots[key] - space.slots for key, space in cache.spaces.items()}
        layers = {key: dict(space.layers) for key, space in cache.spaces.items()}
        state = batch.state._replace(cache=cache.replace_layers({key: {} for key in layers}))
        given = self._given(batch, batch.size, moves=True)
        del cache  # and with it, once the batch has another state, all layers but these
        batch.take(compiled.grow(state, given, extra=extra, slots=tuple(slots.items())))
        for key, own in layers.items():
            if more[key]:
                each = list(own)
                layers[key] = {i: compiled.grow_layer(own.pop(i), extra=more[key]) for i in each}
        batch.state = batch.state._replace(cache=batch.state.cache.replace_layers(layers))
        release_memory()

    def _compacted(self, batch: Batch, needed: int) -> dict[int, int]:
        """The next free slot of each space, of those compacted that have no room for `needed`."""
        spaces, most = batch.state.cache.spaces, _most_slots(batch, needed)
        used = dict(zip(batch.compiled.spaces, batch.report.used.max(axis=0).tolist(), strict=True))
        ends = {key: int(space.end) for key, space in spaces.items()}
        crowded = {
            key: spaces[key].slots
            for key, end in ends.items()
            if end + needed > spaces[key].slots
            and (used[key] <= 0.75 * end or end + needed > most[key])
        }
        if crowded:
            cache = batch.compiled.compact(batch.state.cache, slots=tuple(crowded.items()))
            batch.state = batch.state._replace(cache=cache)
        return ends | {key: used[key] for key in crowded}

    def take_rows(self, batch: Batch, rows: list[int]) -> Batch:
        """The rows `rows` of a batch. One that comes again is nobody's the second time."""
        first = [row not in rows[:i] for i, row in enumerate(rows)]
        taken = dataclasses.replace(
            batch,
            limits=np.where(first, batch.limits[rows], 0).astype("int32"),
            owners=[
                batch.owners[row] if new else None for row, new in zip(rows, first, strict=True)
            ],
            uniforms=np.zeros((len(rows), 0), "float32"),
            choices=batch.choices[rows],
        )
        given = self._given(taken, 0, moves=True)
        order = to_tensor(np.array(rows, "int32"))
        return taken.take(batch.compiled.take_rows(batch.state, given, order))

    def place_rows(self, batch: Batch, new: Batch, rows: list[int]) -> None:
        """Puts the rows of `new` into the places `rows` of a batch."""
        batch.limits[rows], batch.choices[rows] = new.limits, new.choices
        for row, owner in zip(rows, new.owners, strict=True):
            batch.owners[row] = owner
        batch.uniforms = np.zeros((len(batch.limits), 0), "float32")
        given, places = self._given(batch, 0, moves=True), to_tensor(np.array(rows, "int32"))
        both = zip(*(keras.tree.flatten(tuple(x.state)) for x in (batch, new)), strict=True)
        # What has to grow cannot be written where it is.
        fits = all(
            a >= b for pair in both for a, b in zip(*(x.shape[1:] for x in pair), strict=True)
        )
        place = batch.compiled.place if fits else batch.compiled.place_larger
        batch.take(place(batch.state, new.state, given, places))

    def finished(self, batch: Batch) -> np.ndarray:
        """Bool `(rows,)`, the rows that are done. FloatingPointError for broken logits."""
        state = batch.state
        places = ops.convert_to_numpy(state.not_a_number)
        places = places[(places >= 0) & (batch.limits > 0)]
        if places.size:
            raise FloatingPointError(
                f"The logits of new token {places.min() + 1} are NaN or infinite: the model's "
                "weights hold such values, or it overflows in its dtype "
                f"({self.backbone.compute_dtype}). Check the weights, or load with "
                'dtype="float32".'
            )
        places = ops.convert_to_numpy(state.not_ruled)
        places = places[places >= 0]
        if places.size:
            raise FloatingPointError(
                f"The `function` of the rules gave NaN or infinity for new token "
                f"{places.min() + 1}, of logits that were numbers. To ban a token give it "
                "-infinity or -1e30."
            )
        return np.logical_or(batch.report.finished, batch.limits <= 0)

    def outputs(self, batch: Batch) -> Outputs:
        """What has been found so far, as NumPy arrays."""
        return Outputs(*map(_numpy, batch.report.found))

    def compiled_once(self, key, make):
        """What `make` gave for this key the first time; the ones not used for long are dropped."""
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = make()
            self._compiled.move_to_end(key)
            if len(self._compiled) > _MOST_SETTINGS:
                self._compiled.popitem(last=False)
            return self._compiled[key]

    def _compiled_for(self, settings: Settings) -> SimpleNamespace:
        if settings.rules is not None and settings.rules.automaton is not None:
            # Those that differ in their automaton alone share compiled functions.
            rules = settings.rules.with_automaton(AutomatonTables())
            settings = dataclasses.replace(settings, rules=rules)

        def make():
            settings.sampler.check(self.backbone, settings.rules)
            if settings.guided:
                scale, dtype = settings.guidance_scale, settings.cache_dtype
                program = GuidedProgram(self.backbone, scale, dtype)
            else:
                models = settings.sampler.models
                program = Program(self.backbone, *models, best_only=settings.best_only)
            return Decoding(program, settings).compiled()

        return self.compiled_once(settings, make)

    def _given(self, batch: Batch, size: int, moves: bool = False) -> Given:
        """What bounds the rows, for `size` new tokens; rules play no part where rows only move."""
        width = size * batch.settings.sampler.draws
        if batch.uniforms.shape[1] != width:
            batch.uniforms = batch.draw(batch.owners, width)
        # Copies: the limits of rows that leave are set to 0.
        limits, uniforms = np.array(batch.limits, "int32"), np.array(batch.uniforms, "float32")
        tables = () if moves else self._tables_of(batch.settings)
        choices = to_tensor(np.array(batch.choices, "float32"))
        return Given(to_tensor(limits), to_tensor(uniforms), tables, choices)

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


def most_steps(sampler: Sampler) -> int:
    """Steps in one call of the loop.

    So many that a call costs little beside them, and so few that the cache starts small and an
    interruption is heard soon.
    """
    return 16 if sampler.branches > 1 else max(8, LOOP_TOKENS // sampler.step_length)


def _most_slots(batch: Batch, needed: int = 0) -> dict[int, float]:
    """For each space of the cache the most slots that it can need, for so many more at a time.

    That is the window before the next token, of each branch, and what a call of the loop adds.
    """
    sampler = batch.settings.sampler
    added = max(needed, sampler.slots_per_step * most_steps(sampler))
    return {
        key: round_size((key - 1) * sampler.branches + added) if key else math.inf
        for key in batch.compiled.spaces
    }


def _slots(batch: Batch, needed: int) -> int:
    """Slots of a cache with room for `needed`: up to twice as many if there is a program."""
    rows, wanted = len(batch.limits), round_size(needed)
    most = max(256, 2 * wanted)  # memory
    return batch.compiled.sizes.choose((rows, wanted), (rows, most), group="slots")[1]


def _numpy(tensor):
    return None if tensor is None else ops.convert_to_numpy(tensor)
