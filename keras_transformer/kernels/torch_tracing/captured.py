"""Steps of a loop on PyTorch as CUDA graphs, each started by one call of the host.

A decoding step is some hundred kernels, and the host takes several times as long to start them one
by one as the device takes to run them. Captured once, they are started together. A graph reads and
writes fixed places in memory, so its state is kept in buffers that the loop updates.
"""

import functools
import itertools
import logging
import threading
import warnings
import weakref
from collections.abc import Callable

import torch
import torch.utils._pytree as pytree

from keras_transformer.kernels.device import device
from keras_transformer.kernels.programs import TRACING
from keras_transformer.kernels.torch_tracing.traced import TracedFunction

# Captures that wait for a batch keep their buffers. Maximum number of them in the process, and
# maximum share of the device's memory that they may take.
MOST_WAITING = 16
WAITING_SHARE = 1 / 8
_LOOPS: "weakref.WeakSet[CapturedLoop]" = weakref.WeakSet()
_USES = itertools.count()
# Smaller tensors of a state are copied into separate buffers, since other states may share them.
# Larger ones become buffers themselves.
_SMALL_BYTES = 2**16


def record(function: Callable[[], None]) -> Callable[[], None]:
    """Capture what `function` does on the device, without running it; return the replay."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile, for example to send batches.
    with torch.cuda.graph(graph, pool=_keeper().pool(), capture_error_mode="thread_local"):
        function()
    return graph.replay


@functools.cache
def _keeper() -> torch.cuda.CUDAGraph:
    """Return an empty graph, whose memory pool all graphs share, since they run one after another.

    PyTorch frees a pool with its last graph and refuses its handle from then on, which leaves
    the random number generator as if a capture went on. This graph is never freed.
    """
    graph = torch.cuda.CUDAGraph()
    with (
        warnings.catch_warnings(),  # it is empty
        torch.cuda.graph(graph, capture_error_mode="thread_local"),
    ):
        warnings.simplefilter("ignore")
    return graph


class CapturedLoop:
    """Loop over a step as captured graphs.

    There is a capture for each set of shapes, and one more if the state of another batch is still
    in the buffers of the existing captures.

    Args:
        step: `TracedFunction` of a state and arguments to the next state. Tensors that it changes
            in place must be computed from its inputs.
    """

    def __init__(self, step: TracedFunction):
        self._step = step
        self._captures: list[_Capture] = []
        self._lock = threading.RLock()
        _LOOPS.add(self)

    def run(self, weights_key: tuple, state, args: tuple, count: int):
        """Return the state after `count` steps. The given state must not be used again."""
        with self._lock:
            leaves, structure = pytree.tree_flatten((state, args))
            key = (weights_key, structure, *map(_kind, leaves))
            capture = self._capture_for(key, leaves)
            if capture is None:
                size = len(pytree.tree_leaves(state))
                capture = _Capture(self._step, weights_key, leaves, structure, size, key)
                self._captures = [x for x in self._captures if x.key[0] == weights_key]
                self._captures.append(capture)
                _make_room(capture)
            else:
                capture.load(leaves)
            capture.run(count)
            return capture.hand_out()

    def apart(self, outputs, state):
        """Return outputs that share no memory with a state, which the next steps overwrite."""
        owned = [x for x in pytree.tree_leaves(state) if x is not None]
        return pytree.tree_map(
            lambda x: x if x is None or not _shares(x, owned) else x.clone(), outputs
        )

    def _capture_for(self, key: tuple, leaves: list) -> "_Capture | None":
        """Return the capture that holds this state, or else one that holds no state."""
        fitting = [capture for capture in self._captures if capture.key == key]
        holding = [capture for capture in fitting if capture.holds(leaves)]
        return next(iter([*holding, *(x for x in fitting if x.waits())]), None)


def _make_room(new: "_Capture") -> None:
    """Drop waiting captures of all loops, the least recently used first, if they keep too much.

    A loop that is about to use one of them in another thread keeps it for that run alone.
    """
    memory = device().memory
    most = None if memory is None else memory * WAITING_SHARE
    waiting = [(x, loop) for loop in list(_LOOPS) for x in list(loop._captures)]
    waiting = [(x, loop) for x, loop in waiting if x is not new and x.waits()]
    waiting.sort(key=lambda pair: -pair[0].used)
    while waiting and (
        len(waiting) > MOST_WAITING or (most and sum(x.nbytes for x, _ in waiting) > most)
    ):
        dropped, loop = waiting.pop()
        loop._captures = [x for x in loop._captures if x is not dropped]


class _Capture:
    """Step as a graph, and the buffers that it reads and writes."""

    def __init__(self, step, weights_key, leaves: list, structure, size: int, key: tuple):
        self.key = key
        self.used = next(_USES)
        self._structure = structure
        self._size = size  # leaves of the state, which precede the arguments
        self._held: list[weakref.ref] = []
        self._given: list = [None] * len(leaves)
        taken: set[int] = set()
        self.buffers = [
            x if x is None else _buffer(x, taken, own=place < size)
            for place, x in enumerate(leaves)
        ]
        self.nbytes = sum(x.nbytes for x in self.buffers if x is not None)

        # Traced before it is captured, since a trace computes its constants.
        state, args = pytree.tree_unflatten(self.buffers, structure)
        self._program = step.program(weights_key, state, *args)
        self._replay: Callable[[], None] | None = None

    def run(self, count: int) -> None:
        """Make `count` steps. The very first one runs uncaptured, and allocates what it needs."""
        self.used = next(_USES)
        for _ in range(count):
            if self._replay is not None:
                self._replay()
                continue
            self._step_in_place()
            self._replay = self._recorded()

    def _recorded(self) -> Callable[[], None]:
        """Return the step as a graph, or uncaptured if it cannot be captured."""
        try:
            with TRACING:
                return record(self._step_in_place)
        except RuntimeError as error:
            logging.getLogger("keras_transformer").warning(
                "The steps of `generate` run one operation after the other, which is slower, since "
                "they cannot be captured as a CUDA graph: %s",
                error,
            )
            return self._step_in_place

    def _step_in_place(self) -> None:
        self._write(pytree.tree_leaves(self._program(*self.buffers)))

    def holds(self, leaves: list) -> bool:
        """Return True if part of a state is in the buffers."""
        places = {x.data_ptr() for x in self.buffers[: self._size] if x is not None and x.numel()}
        return any(x is not None and x.data_ptr() in places for x in leaves[: self._size])

    def waits(self) -> bool:
        """Return True if the state that was handed out is no longer referred to."""
        return all(held() is None for held in self._held)

    def load(self, leaves: list) -> None:
        """Copy a state and arguments into the buffers, except for tensors already there."""
        state, args = leaves[: self._size], leaves[self._size :]
        self._write(state)
        for place, given in enumerate(args, self._size):
            known = self._given[place]
            if given is None or (known is not None and known() is given):
                continue
            self.buffers[place].copy_(given)
            self._given[place] = weakref.ref(given)

    def hand_out(self):
        """Return the state in the buffers."""
        leaves = [x if x is None else x.view(x.shape) for x in self.buffers[: self._size]]
        self._held = [weakref.ref(x) for x in leaves if x is not None]
        rest = [None] * (len(self.buffers) - self._size)
        return pytree.tree_unflatten([*leaves, *rest], self._structure)[0]

    def _write(self, state: list) -> None:
        """Write a state into its buffers. A part that lies in another's buffer is copied first."""
        new = []
        for place, x in enumerate(state):
            buffer = self.buffers[place]
            if x is None or not x.numel() or _is_same(x, buffer):
                continue
            new.append((place, x.clone() if _shares(x, self.buffers) else x))
        for place, x in new:
            self.buffers[place].copy_(x)


def _kind(x) -> tuple | None:
    return None if x is None else (tuple(x.shape), x.dtype, x.device)


def _buffer(x: torch.Tensor, taken: set[int], own: bool) -> torch.Tensor:
    """Return the memory of a tensor itself if it may be kept and overwritten, else a copy."""
    storage = x.untyped_storage()
    whole = x.is_contiguous() and storage.nbytes() == x.nbytes
    if own and whole and x.nbytes > _SMALL_BYTES and storage.data_ptr() not in taken:
        taken.add(storage.data_ptr())
        return x.view(x.shape)
    return x.clone(memory_format=torch.contiguous_format)


def _is_same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.data_ptr() == y.data_ptr() and x.stride() == y.stride()


def _shares(x: torch.Tensor, buffers: list) -> bool:
    """Return True if a tensor lies in the memory of one of the buffers."""
    place = x.untyped_storage().data_ptr()
    return any(b is not None and b.untyped_storage().data_ptr() == place for b in buffers)
