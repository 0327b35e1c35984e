"""Decoding engine: reads prompts in one pass, then generates tokens in a compiled loop."""

import dataclasses
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import keras
import numpy as np
from keras import ops

from keras_transformer.generation.cache import CACHE_DTYPES, Cache, longer, put_padded_rows
from keras_transformer.generation.constraints.automaton_tables import AutomatonTables
from keras_transformer.generation.program import GuidedProgram, Program, check_scale, split_inputs
from keras_transformer.generation.samplers.samplers import (
    Greedy,
    Outputs,
    Prompt,
    RowLimits,
    Sampler,
    broken,
)
from keras_transformer.kernels.compiling import compile_loop, compile_pass
from keras_transformer.kernels.device import device
from keras_transformer.kernels.packed import finds_largest_alone
from keras_transformer.kernels.process import release_memory
from keras_transformer.kernels.programs import compile_function, to_tensor
from keras_transformer.kernels.values import full_tensor
from keras_transformer.planning.memory import LOOP_TOKENS
from keras_transformer.support.checking import (
    MOST_TOKENS,
    check_choice,
    check_fields,
    check_flag,
    check_ids,
    check_int,
)
from keras_transformer.support.sizes import ShapeBuckets, round_rows, round_size


@dataclasses.dataclass(frozen=True)
class Settings:
    """Options for decoding a batch. Equal settings share their compiled functions.

    Args:
        sampler: `Sampler`.
        rules: `Rules`, which change the logits before the sampler sees them, or None.
        end_ids: ints, ids of the tokens that end a row.
        pad_id: int, id that fills ended rows.
        cache_dtype: see `Cache.create`.
        pack_weights: bool, keep a second copy of the weights in the memory order in which they are
            read (PyTorch on a CPU): faster, but twice the memory.
        guidance_scale: float from -1000 to 1000. Unless it is 1, each row has a negative prompt and
            the sampler sees the logits of `guidance.GuidedProgram`.
        compile_steps: bool, compile a step with TorchInductor, once for each shape (PyTorch). Other
            backends always compile steps.

    Raises:
        ValueError: if a value has the wrong type, an id is below 0, or the sampler does not take
            guidance.

    Example: see `Engine`.
    """

    sampler: Sampler
    rules: Any = None
    end_ids: tuple[int, ...] = ()
    pad_id: int = 0
    cache_dtype: str | None = None
    pack_weights: bool = False
    guidance_scale: float = 1.0
    compile_steps: bool = False

    def __post_init__(self):
        if not isinstance(self.sampler, Sampler):
            raise ValueError(
                f"`sampler` must be a Sampler, such as Greedy(), received {self.sampler!r}."
            )
        check_cache_dtype(self.cache_dtype)
        check_fields(self, check_ids, "end_ids")
        check_fields(self, check_int, "pad_id", at_least=0, at_most=MOST_TOKENS)
        check_fields(self, check_flag, "pack_weights", "compile_steps")
        check_fields(self, check_scale, "guidance_scale")
        if self.guided and not self.sampler.takes_guidance:
            raise ValueError(
                f"`guidance_scale` does not go with {type(self.sampler).__name__}, received "
                f"{self.guidance_scale}. Use Greedy(), Random() or BeamSearch(), or no guidance: "
                "guidance_scale=1."
            )

    @property
    def guided(self) -> bool:
        """Whether each row has a negative prompt, bool."""
        return self.guidance_scale != 1

    @property
    def argmax_only(self) -> bool:
        """Whether only the largest logit matters, and packed weights can make use of this."""
        greedy = type(self.sampler) is Greedy and self.rules is None and not self.guided
        return greedy and self.pack_weights and finds_largest_alone()


def check_cache_dtype(value: Any) -> None:
    """Raise ValueError unless `value` is None or a dtype for keys and values of the cache."""
    check_choice("cache_dtype", value, CACHE_DTYPES, none=True)


class DecodeInputs(NamedTuple):
    """Limits and random numbers of a batch, as arguments of compiled functions."""

    max_new_tokens: Any  # int32 (rows,)
    uniforms: Any  # float32 (rows, size * draws), see `RowLimits`
    tables: Any  # `AutomatonTables` of the rules, or ()
    choices: Any = ()  # float32 (rows, count), see `RowLimits`


class DecodeStatus(NamedTuple):
    """Values that the engine reads between two calls of the loop, with a row per prompt."""

    finished: Any  # bool (rows,)
    counts: Any  # int (rows,), tokens so far
    used: Any  # int (rows, groups), number of slots of each cache group still visible
    found: Outputs


class DecodeState(NamedTuple):
    """State passed from step to step. The first four fields have a row for each prompt."""

    sampled: Any  # the sampler's state
    ruled: Any  # the state of the rules
    not_a_number: Any  # int (rows,), index of the first token with NaN or infinite logits, or -1
    not_ruled: Any  # int (rows,), the same for the result of the rules' `function`
    cache: Cache


class Decoding:
    """Pure functions of a program, a sampler and rules. Keyword arguments are static.

    The functions that advance or change a batch return its `DecodeState` and `DecodeStatus`.
    """

    def __init__(self, program: Program, settings: Settings):
        self.program = program
        self.settings = settings
        self.sampler = settings.sampler

    def compiled(self, sizes: ShapeBuckets) -> SimpleNamespace:
        """Return the compiled functions and their sizes, without a reference back to `self`."""
        models = self.program.models
        packed = WeakValueDictionary() if self.settings.pack_weights else None
        return SimpleNamespace(
            prefill=compile_pass(self.prefill, *models, packed=packed),
            read_prefix=compile_function(self.read_prefix, *models),
            extend=compile_loop(
                self.finished,
                self.step,
                self.status,
                *models,
                packed=packed,
                by_compiler=self.settings.compile_steps,
            ),
            grow=compile_function(self.grow, moves=True),
            grow_layer=compile_function(self.grow_layer, moves=True),
            compact=compile_function(self.compact, donate=(0,), moves=True),
            take_rows=compile_function(self.take_rows, moves=True),
            place=compile_function(self.place, donate=(0,), moves=True),
            place_larger=compile_function(self.place, moves=True),
            sizes=sizes,
            groups=self.program.groups,
        )

    def prefill(self, inputs, given: DecodeInputs, prefix, *, slots: tuple, size: int, copies: int):
        """Read prompts and choose the first new token; `slots` has pairs of a group and a size."""
        program, sampler = self.program, self.sampler
        limits, rules = self._limits(given), self._rules(given)
        tokens, mask = program.backbone.prompt_tokens(inputs)
        rows, length = tokens.shape
        if prefix is None:
            capacities = {key: count if key else max(count, length) for key, count in slots}
            cache = program.new_cache(rows, capacities, self.settings.cache_dtype)
        else:
            capacities = {
                key: max(count, prefix.groups[key].slots + length) for key, count in slots
            }
            cache = prefix.take_rows(ops.zeros((rows,), "int32")).as_full().grow(capacities)
        logits, hidden, cache = program.prefill(inputs, cache)
        cache = cache.fit(dict(slots))
        prompt = Prompt(tokens, mask, hidden)
        if copies > 1:
            each = ops.repeat(ops.arange(rows, dtype="int32"), copies, axis=0)
            logits, *prompt = (ops.take(x, each, axis=0) for x in (logits, *prompt))
            prompt, rows = Prompt(*prompt), rows * copies
            cache = cache.take_rows(program.cache_rows(each))
        last = ops.sum(ops.cast(prompt.mask, "int32"), axis=1) - 1
        hidden = ops.take_along_axis(prompt.hidden, last[:, None, None], axis=1)
        sizes_of_rules = (sampler.branches, size, logits.shape[-1])
        state = DecodeState(
            sampler.start(rows, size, limits, prompt),
            () if rules is None else rules.start(*sizes_of_rules, prompt, limits),
            full_tensor((rows,), -1, "int32"),
            full_tensor((rows,), -1, "int32"),
            cache.branch(sampler.branches).as_tensors(),
        )
        logits, hidden = (ops.repeat(x, sampler.branches, axis=1) for x in (logits, hidden))
        state = self._choose(state, logits, hidden, limits, rules)
        return self.status(state, given)

    def read_prefix(self, tokens):
        """Return the cache after reading tokens `(1, length)`, without room for more."""
        inputs = {"token_ids": tokens, "padding_mask": ops.ones(tokens.shape, "bool")}
        length = tokens.shape[1]
        # The next token sees itself and `window - 1` tokens before it.
        capacities = {
            key: min(length, max(1, key - 1)) if key else length for key in self.program.groups
        }
        cache = self.program.new_cache(1, capacities, self.settings.cache_dtype)
        return self.program.prefill(inputs, cache)[2].as_tensors()

    def finished(self, state, given: DecodeInputs):
        """Return which rows are finished, bool `(rows,)`: further steps keep their outputs."""
        return self.sampler.finished(state.sampled, self._limits(given))

    def step(self, state, given: DecodeInputs) -> DecodeState:
        """Return the state after one more step."""
        program, limits = self.program, self._limits(given)
        drafts = program.drafts_of(state.cache)
        sampled, drafts = self.sampler.propose(state.sampled, drafts, limits)
        cache = program.with_drafts(state.cache, drafts)
        logits, hidden, cache = program.step(self.sampler.next_tokens(sampled), cache)
        state = state._replace(sampled=sampled, cache=cache)
        return self._choose(state, logits, hidden, limits, self._rules(given))

    def status(self, state, given: DecodeInputs):
        """Return the state and its `DecodeStatus`."""
        sampler, sampled = self.sampler, state.sampled
        finished = self.finished(state, given)
        used = [ops.sum(ops.cast(x, "int32"), axis=1) for x in state.cache.live_slots().values()]
        used = ops.stack(used, axis=1)
        return state, DecodeStatus(
            finished, sampler.counts(sampled), used, sampler.outputs(sampled)
        )

    def grow(self, state, given: DecodeInputs, *, extra: int, slots: tuple):
        """Add room for `extra` tokens, and grow the cache to `slots`, pairs of a group and a size.

        Layers in the cache grow too. If the cache has none, `grow_layer` grows them one by one.
        """
        sampled, ruled, rules = state.sampled, state.ruled, self.settings.rules
        if extra:
            sampled = self.sampler.grow(sampled, extra, self.settings.pad_id)
            ruled = ruled if rules is None else rules.grow(ruled, extra, self.settings.pad_id)
        state = state._replace(sampled=sampled, ruled=ruled, cache=state.cache.grow(dict(slots)))
        return self.status(state, given)

    def grow_layer(self, layer: tuple, *, extra: int) -> tuple:
        """Return a layer of the cache with room for `extra` more tokens."""
        return tuple(longer(x, 2, extra) for x in layer)

    def compact(self, cache, *, slots: tuple):
        """Drop invisible slots from the groups in `slots`, pairs of a group and a size."""
        return cache.compact(dict(slots))

    def take_rows(self, state, given: DecodeInputs, rows):
        """Take the rows `rows` of a state, int `(count,)`; a row may occur several times."""
        taken = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), tuple(state[:4]))
        cache = state.cache.take_rows(self.program.cache_rows(rows))
        return self.status(DecodeState(*taken, cache), given)

    def place(self, state, new, given: DecodeInputs, rows):
        """Put the rows of the state `new` in the places `rows`, int `(count,)`."""
        both = (tuple(state[:4]), tuple(new[:4]))
        joined = keras.tree.map_structure(lambda *pair: put_padded_rows(*pair, rows), *both)
        cache = state.cache.place(new.cache, self.program.cache_rows(rows))
        return self.status(DecodeState(*joined, cache), given)

    def _choose(self, state, logits, hidden, limits, rules):
        """Choose next tokens from logits `(rows, branches or step_length, vocabulary_size)`."""
        sampler, count = self.sampler, self.sampler.counts(state.sampled)
        not_a_number = _first_broken(state.not_a_number, logits, count)
        ruled, not_ruled, options = state.ruled, state.not_ruled, {}
        if sampler.ranks_log_probabilities:
            # Not subtracted from all logits, since only a few of them are read.
            options["log_sum"] = self.program.log_sum(logits)
        if sampler.reads_model_logits:
            options["model_logits"] = logits
        if rules is not None:
            if sampler.ranks_log_probabilities:
                for part in options["log_sum"]:
                    logits = logits - part[..., None]
                options["log_sum"] = (ops.zeros_like(part),) * 2
            logits = rules.apply(logits, ruled, limits)
            finished = sampler.finished(state.sampled, limits)
            not_ruled = ops.where(finished, not_ruled, _first_broken(not_ruled, logits, count))
        sampled, kept = sampler.advance(state.sampled, logits, hidden, limits, **options)
        if rules is not None:
            ruled = rules.advance(ruled, kept, sampler.next_tokens(sampled))
        cache = state.cache
        if kept is not None and sampler.step_length > 1:
            cache = cache.accept(kept, sampler.step_length)
        elif kept is not None:
            cache = cache.reorder_branches(self.program.for_cache(kept))
        return DecodeState(sampled, ruled, not_a_number, not_ruled, cache)

    def _limits(self, given: DecodeInputs) -> RowLimits:
        return RowLimits(self.settings.end_ids, self.settings.pad_id, *given[:2], given.choices)

    def _rules(self, given: DecodeInputs):
        rules = self.settings.rules
        return rules.with_automaton(given.tables) if given.tables else rules


def _first_broken(known, logits, count):
    """Return the index of the first token with NaN or infinite logits, int `(rows,)`.

    `known` is the result so far, and `count` the index of the present token.
    """
    now = ops.logical_and(known < 0, ops.any(broken(logits), axis=-1))
    return ops.where(now, count, known)


_ITEM_BYTES = {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
# Number of different `Settings` whose compiled functions are kept.
_MOST_SETTINGS = 32


@dataclasses.dataclass
class Batch:
    """Rows that are decoded together, as they are between two calls of compiled functions."""

    settings: Settings
    compiled: SimpleNamespace  # the functions of the settings, see `Decoding.compiled`
    limits: np.ndarray  # int32 (rows,), limit of each row's new tokens; 0 for an idle row
    samples: list  # the request of each row, None if the row is idle
    draw: Callable  # from the samples and a width to float32 (rows, width), see `RowLimits`
    uniforms: np.ndarray  # the random numbers drawn so far
    choices: np.ndarray  # float32 (rows, count), see `samplers.RowLimits`
    state: DecodeState | None = None
    status: DecodeStatus | None = None  # NumPy arrays, except for `found`

    def take(self, result: tuple) -> "Batch":
        """Update the batch with the result of a compiled function."""
        self.state, status = result
        self.status = DecodeStatus(*map(ops.convert_to_numpy, status[:-1]), status.found)
        return self

    @property
    def size(self) -> int:
        """Number of new tokens that the batch has room for."""
        return self.status.found.tokens.shape[-1]


class Engine:
    """Generates tokens with a backbone that follows the cache protocol.

    The protocol: `backbone(inputs, cache=cache)` returns states and the updated cache, whose layers
    `backbone.cache_layers` describes; `backbone.logits` maps states to logits;
    `backbone.prompt_tokens(inputs)` returns the ids and mask that the decoder starts from; and
    `backbone.step_inputs(tokens)` returns the inputs of one further step. `models.DecoderBase`
    implements the protocol for a decoder of your own. `generate` decodes one batch to its end.
    `Scheduler.run` decodes many prompts and gives the rows of finished prompts to waiting ones.

    Args:
        backbone: a `Decoder` or `Seq2Seq`, or a model of your own that follows the protocol.
        sizes: class of the sizes that batches are padded to.

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

    def __init__(self, backbone, sizes: type[ShapeBuckets] = ShapeBuckets):
        self.backbone = backbone
        self._sizes = sizes
        self._lock = threading.RLock()
        self._compiled: OrderedDict = OrderedDict()
        # Tables of each constraint on the device, kept as long as the constraint exists.
        self._tables: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def generate(
        self,
        inputs: dict[str, np.ndarray],
        settings: Settings,
        max_new_tokens: int,
        uniforms: np.ndarray | None = None,
    ) -> Outputs:
        """Generate new tokens for one batch of prompts.

        Args:
            inputs: the backbone's inputs, NumPy arrays, rows padded on the right; with guidance
                also the inputs of negative prompts, see `guidance.negative_inputs`.
            settings: `Settings`.
            max_new_tokens: int.
            uniforms: float32 `(rows, max_new_tokens * draws)`, random numbers for samplers that
                draw, see `RowLimits`.

        Returns:
            `Outputs` of NumPy arrays; rows end with an end id or with pads. They are
            `max_new_tokens` long, or shorter if every row ended earlier.
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

        def draw(samples, width):
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
        samples: list | None = None,
        prefix: Cache | None = None,
        slots: int = 0,
        choices: np.ndarray | None = None,
    ) -> Batch:
        """Read prompts, padded on the right, choose the first new token, and return the batch.

        Each of `rows` prompts gets `len(limits) // rows` consecutive rows of the batch. The cache
        has room for `steps` steps and at least `slots` slots. `steps` defaults to all possible
        steps if their cache is small for the device, else to `most_steps`. `prefix`, a result of
        `read_prefix`, precedes every prompt. For `limits`, `draw`, `samples` and `choices` see
        `Batch`.
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
        if steps is None:  # the last token is not written to the cache
            longest = int(limits.max(initial=1)) - 1 + sampler.extra_steps
            steps = longest
            if not self._has_room(settings, len(limits), needed + sampler.slots_per_step * steps):
                steps = min(most_steps(sampler), longest)
        needed += sampler.slots_per_step * steps
        compiled, nothing = self._compiled_for(settings), np.zeros((len(limits), 0), "float32")
        samples = list(range(len(limits))) if samples is None else samples
        choices = nothing if choices is None else choices
        batch = Batch(settings, compiled, limits, samples, draw, nothing, choices)
        # A batch that will join another one needs as many slots.
        wanted = max(slots, round_size(needed)) if slots else _slots(batch, needed)
        capacities = {key: min(wanted, most) for key, most in _most_slots(batch).items()}
        options = {
            "slots": tuple(capacities.items()),
            "size": max(capacities.values()),
            "copies": copies,
        }
        given = self._decode_inputs(batch, options["size"])
        return batch.take(compiled.prefill(tensors, given, prefix, **options))

    def padded_prompts(
        self, settings: Settings, rows: int, length: int, most: tuple[int | None, int | None]
    ) -> tuple[int, int]:
        """Return the padded batch size and length for these prompts, up to `most` (None: any)."""
        padded = (round_rows(rows), round_size(length))
        pairs = zip((rows, length), padded, most, strict=True)
        wanted = tuple(x if m is None else max(n, min(x, m)) for n, x, m in pairs)
        return self._compiled_for(settings).sizes.choose(wanted, most, group="prompts")

    def read_prefix(self, ids: list[int], settings: Settings) -> Cache:
        """Return the cache of a prefix that prompts share: one row, without free slots."""
        tokens = to_tensor(np.asarray([ids], "int32"))
        return self._compiled_for(settings).read_prefix(tokens)

    def extend(self, batch: Batch, steps: int | None = None, enough: int | None = None) -> None:
        """Run up to `steps` more steps, until `enough` rows (by default all) are finished."""
        sampler = batch.settings.sampler
        remaining = int((batch.limits - batch.status.counts).max()) + sampler.extra_steps
        steps = min(remaining, most_steps(sampler) if steps is None else steps)
        self.make_room(batch, steps)
        enough = len(batch.limits) if enough is None else enough
        given = self._decode_inputs(batch, batch.size)
        batch.take(batch.compiled.extend(batch.state, steps, enough, given))

    def make_room(self, batch: Batch, steps: int) -> None:
        """Make room in the cache and the outputs for `steps` more steps.

        Slots that no later token sees are freed first, see `Cache.compact`.
        """
        status, sampler = batch.status, batch.settings.sampler
        needed = steps * sampler.slots_per_step
        ends = self._compacted(batch, needed)
        unfinished = ~status.finished
        remaining = int((batch.limits - status.counts)[unfinished].max(initial=0))
        has = {key: group.slots for key, group in batch.state.cache.groups.items()}
        slots, size = dict(has), batch.size
        small = [key for key, end in ends.items() if end + needed > slots[key]]
        if small:
            # Grow by half, so that growing is rare, but not beyond the steps that can come.
            most = max(needed, (remaining + sampler.extra_steps) * sampler.slots_per_step)
            end, windows = max(ends[key] for key in small), _most_slots(batch, needed)
            wanted = _slots(batch, end + min(max(needed, end // 2), most))
            slots |= {key: min(wanted, windows[key]) for key in small}
            size = max(size, *(slots[key] for key in small))
        count = int(status.counts[unfinished].max(initial=0))
        # Rules may be one token ahead of a sampler whose first step only finds candidates.
        coming = min(steps * sampler.step_length, remaining) + sampler.extra_steps
        if count + coming > size:
            size = round_size(count + max(steps * sampler.step_length, count // 2))
        if (slots, size) != (has, batch.size):
            self._grow(batch, slots, size - batch.size)

    def _grow(self, batch: Batch, slots: dict[int, int], extra: int) -> None:
        """Add room for `extra` tokens and grow the groups of the cache to `slots`.

        Layers grow one after the other, and each frees its old tensors, so that the old and the new
        cache never fully exist at the same time.
        """
        cache, compiled = batch.state.cache, batch.compiled
        more = {key: slots[key] - group.slots for key, group in cache.groups.items()}
        layers = {key: dict(group.layers) for key, group in cache.groups.items()}
        state = batch.state._replace(cache=cache.replace_layers({key: {} for key in layers}))
        given = self._decode_inputs(batch, batch.size, moves=True)
        del cache  # frees the other layers once the batch has another state
        batch.take(compiled.grow(state, given, extra=extra, slots=tuple(slots.items())))
        for key, own in layers.items():
            if more[key]:
                each = list(own)
                layers[key] = {
                    i: tensors and compiled.grow_layer(tensors, extra=more[key])
                    for i, tensors in ((i, own.pop(i)) for i in each)
                }
        batch.state = batch.state._replace(cache=batch.state.cache.replace_layers(layers))
        release_memory()

    def _compacted(self, batch: Batch, needed: int) -> dict[int, int]:
        """Compact groups with too little room for `needed`; return the next free slot of each."""
        groups, most = batch.state.cache.groups, _most_slots(batch, needed)
        used = dict(zip(batch.compiled.groups, batch.status.used.max(axis=0).tolist(), strict=True))
        ends = {key: int(group.end) for key, group in groups.items()}
        crowded = {
            key: groups[key].slots
            for key, end in ends.items()
            if end + needed > groups[key].slots
            and (used[key] <= 0.75 * end or end + needed > most[key])
        }
        if crowded:
            cache = batch.compiled.compact(batch.state.cache, slots=tuple(crowded.items()))
            batch.state = batch.state._replace(cache=cache)
        return ends | {key: used[key] for key in crowded}

    def take_rows(self, batch: Batch, rows: list[int]) -> Batch:
        """Take the rows `rows` of a batch. Repetitions of a row are idle."""
        first = [row not in rows[:i] for i, row in enumerate(rows)]
        taken = dataclasses.replace(
            batch,
            limits=np.where(first, batch.limits[rows], 0).astype("int32"),
            samples=[
                batch.samples[row] if new else None for row, new in zip(rows, first, strict=True)
            ],
            uniforms=np.zeros((len(rows), 0), "float32"),
            choices=batch.choices[rows],
        )
        given = self._decode_inputs(taken, 0, moves=True)
        order = to_tensor(np.array(rows, "int32"))
        return taken.take(batch.compiled.take_rows(batch.state, given, order))

    def place_rows(self, batch: Batch, new: Batch, rows: list[int]) -> None:
        """Put the rows of `new` in the places `rows` of a batch."""
        batch.limits[rows], batch.choices[rows] = new.limits, new.choices
        for row, sample in zip(rows, new.samples, strict=True):
            batch.samples[row] = sample
        batch.uniforms = np.zeros((len(batch.limits), 0), "float32")
        given, places = (
            self._decode_inputs(batch, 0, moves=True),
            to_tensor(np.array(rows, "int32")),
        )
        both = zip(*(keras.tree.flatten(tuple(x.state)) for x in (batch, new)), strict=True)
        # Tensors that have to grow cannot be updated in place.
        fits = all(
            a >= b for pair in both for a, b in zip(*(x.shape[1:] for x in pair), strict=True)
        )
        place = batch.compiled.place if fits else batch.compiled.place_larger
        batch.take(place(batch.state, new.state, given, places))

    def finished(self, batch: Batch) -> np.ndarray:
        """Return which rows are finished, bool `(rows,)`.

        Raises FloatingPointError if the logits of a row are NaN or infinite.
        """
        state = batch.state
        places = ops.convert_to_numpy(state.not_a_number)
        places = places[(places >= 0) & (batch.limits > 0)]
        if places.size:
            raise FloatingPointError(
                f"The logits of new token {places.min() + 1} are NaN or infinite: the model's "
                "weights contain such values, or it overflows in its dtype "
                f"({self.backbone.compute_dtype}). Check the weights, or load with "
                'dtype="float32".'
            )
        places = ops.convert_to_numpy(state.not_ruled)
        places = places[places >= 0]
        if places.size:
            raise FloatingPointError(
                f"The `function` of the rules returned NaN or infinity for new token "
                f"{places.min() + 1}, from finite logits. To ban a token, set its logit to "
                "-infinity or -1e30."
            )
        return np.logical_or(batch.status.finished, batch.limits <= 0)

    def outputs(self, batch: Batch) -> Outputs:
        """Return the outputs so far as NumPy arrays."""
        return Outputs(*map(_numpy, batch.status.found))

    def _has_room(self, settings: Settings, rows: int, slots: int) -> bool:
        """Return whether a cache of this many slots is small compared to the device's memory."""
        numbers = sum(2 * heads * head_dim for heads, head_dim, *_ in self.backbone.cache_layers)
        dtype = settings.cache_dtype or self.backbone.compute_dtype
        return rows * slots * numbers * _ITEM_BYTES[dtype] <= device().cache_bytes

    def compiled_once(self, key, make):
        """Return `make()`, cached by `key`; least recently used results are dropped."""
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = make()
            self._compiled.move_to_end(key)
            if len(self._compiled) > _MOST_SETTINGS:
                self._compiled.popitem(last=False)
            return self._compiled[key]

    def _compiled_for(self, settings: Settings) -> SimpleNamespace:
        if settings.rules is not None and settings.rules.automaton is not None:
            # Settings that differ only in their automaton share compiled functions.
            rules = settings.rules.with_automaton(AutomatonTables())
            settings = dataclasses.replace(settings, rules=rules)

        def make():
            settings.sampler.check(self.backbone, settings.rules)
            if settings.guided:
                scale, dtype = settings.guidance_scale, settings.cache_dtype
                program = GuidedProgram(self.backbone, scale, dtype)
            else:
                models = settings.sampler.models
                program = Program(self.backbone, *models, argmax_only=settings.argmax_only)
            return Decoding(program, settings).compiled(self._sizes())

        return self.compiled_once(settings, make)

    def _decode_inputs(self, batch: Batch, size: int, moves: bool = False) -> DecodeInputs:
        """Return the `DecodeInputs` for `size` new tokens; without rules if rows only move."""
        width = size * batch.settings.sampler.draws
        if batch.uniforms.shape[1] != width:
            batch.uniforms = batch.draw(batch.samples, width)
        # Copies, since the limits of rows that leave the batch are set to 0 in place.
        limits, uniforms = np.array(batch.limits, "int32"), np.array(batch.uniforms, "float32")
        tables = () if moves else self._tables_of(batch.settings)
        choices = to_tensor(np.array(batch.choices, "float32"))
        return DecodeInputs(to_tensor(limits), to_tensor(uniforms), tables, choices)

    def _tables_of(self, settings: Settings) -> AutomatonTables | tuple:
        """Return the automaton of the rules as tensors, or `()` without an automaton."""
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
    """Return the number of steps in one call of the loop.

    It is large enough that a call costs little compared to its steps, and small enough that the
    cache starts small and an interrupt is handled soon.
    """
    return 16 if sampler.branches > 1 else max(8, LOOP_TOKENS // sampler.step_length)


def _most_slots(batch: Batch, needed: int = 0) -> dict[int, float]:
    """Return the most slots each cache group can need if `needed` more are added at a time.

    A group with a window needs the window before the next token for each branch, and the slots that
    a call of the loop adds.
    """
    sampler = batch.settings.sampler
    added = max(needed, sampler.slots_per_step * most_steps(sampler))
    return {
        key: round_size((key - 1) * sampler.branches + added) if key else math.inf
        for key in batch.compiled.groups
    }


def _slots(batch: Batch, needed: int) -> int:
    """Return a number of slots with room for `needed`, at most doubled to reuse a known shape."""
    rows, wanted = len(batch.limits), round_size(needed)
    most = max(256, 2 * wanted)  # memory
    return batch.compiled.sizes.choose((rows, wanted), (rows, most), group="slots")[1]


def _numpy(tensor):
    return None if tensor is None else ops.convert_to_numpy(tensor)
