"""The compiled programs of a process: a bounded number, of which the least recently used go.

A program is made for shapes, and a process that lives long sees many. Each takes some megabytes,
and with XLA on a CPU some hundred memory maps, of which Linux gives a process 65,530: then it ends
with a segmentation fault. So there is one store for all models, and what is not in it is gone.
"""

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import keras

# So many programs are in memory at most, of them so many that last. On JAX each operation that runs
# by itself is a program too, such as when a model is made: they count, and leave room for so many.
MOST_PROGRAMS = 60
MOST_LASTING = 36
LEAST_PROGRAMS = 24

# Held while something is traced. Keras, `make_fx` and the tracers of TensorFlow keep what they
# are at in objects that all threads share.
TRACING = threading.RLock()


class Program:
    """A function whose first call compiles, and lets no other thread trace meanwhile.

    Args:
        function: what is called.
        compiled: bool, whether it is compiled already.
        lasting: bool, whether its memory stays taken when it is dropped: then it is not.
    """

    def __init__(self, function: Callable, compiled: bool = False, lasting: bool = False):
        self.lasting = lasting
        self.compiled = compiled
        self._function = function

    def __call__(self, *args):
        if not self.compiled:
            with TRACING:
                if not self.compiled:
                    result = self._function(*args)
                    self.compiled = True
                    return result
        return self._function(*args)


class Programs:
    """Programs by what they are of and for which shapes; the least recently used go.

    A program that is dropped while another thread runs it ends its run. An owner that is no longer
    used takes its programs with it.

    Args:
        most: int, programs in memory; on JAX with those that are not of this store.
        most_lasting: int, of how many it may ever be said that they last, see `may_last`.

    Example:
    ```python
    from keras_transformer.programs import Program, Programs

    class Owner:
        pass

    programs, owner = Programs(most=2), Owner()
    for shape in (1, 2, 1, 3):
        programs.get(owner, shape, lambda: Program(lambda x: x + 1))
    assert programs.keys(owner) == [1, 3]
    ```
    """

    def __init__(self, most: int = MOST_PROGRAMS, most_lasting: int = MOST_LASTING):
        self.most = most
        self.most_lasting = most_lasting
        self.made = 0  # since the process began
        self._lasting = 0
        self._lock = threading.RLock()
        self._kept: OrderedDict[tuple[int, Hashable], Any] = OrderedDict()
        self._owners: dict[int, weakref.finalize] = {}

    def get(self, owner: object, key: Hashable, make: Callable[[], Any]) -> Any:
        """The program of a key, from `make` if it is not kept.

        Args:
            owner: what the program is of, an object that can be referred to weakly. The program
                must not refer to it.
            key: what the program is for.
            make: returns the program; called by one thread at a time.
        """
        place = (id(owner), key)
        with self._lock:
            program = self._kept.get(place)
            if program is not None:
                self._kept.move_to_end(place)
                return program
        # Not under the lock of the store: others may go on with programs that there are.
        with TRACING:
            program = self.peek(owner, key)
            return self.put(owner, key, make()) if program is None else program

    def peek(self, owner: object, key: Hashable) -> Any:
        """The program of a key, or None. It does not count as a use."""
        return self._kept.get((id(owner), key))

    def put(self, owner: object, key: Hashable, program: Any) -> Any:
        """Keeps a program, and drops others if there are too many. Returns it."""
        with self._lock:
            if id(owner) not in self._owners:
                self._owners[id(owner)] = weakref.finalize(owner, self._forget, id(owner))
            self._kept[(id(owner), key)] = program
            self.made += 1
            self._make_room()
        return program

    def forget(self, owner: object) -> None:
        """Drops all programs of an owner."""
        finalizer = self._owners.get(id(owner))
        if finalizer is not None:
            finalizer()

    def keys(self, owner: object) -> list:
        """The keys of what is kept for an owner, the one used last at the end."""
        return [key for mine, key in list(self._kept) if mine == id(owner)]

    def may_last(self, count: int = 1) -> bool:
        """Takes `count` of the places for programs that can never be given back.

        Returns:
            Whether there were so many; if not, none is taken.
        """
        with self._lock:
            if self._lasting + count > self.most_lasting:
                return False
            self._lasting += count
            return True

    @property
    def lasting(self) -> int:
        """How many programs were made that can never be given back."""
        return self._lasting

    def __len__(self) -> int:
        """How many programs are in memory, those counted that are dropped and last."""
        lasting = sum(getattr(program, "lasting", False) for program in list(self._kept.values()))
        return len(self._kept) - lasting + self._lasting

    def _make_room(self) -> None:
        others = self._others()
        # One more operation by itself, or two, may come before there is room to be made again.
        most = self.most - others - 2 if others else self.most
        most = max(min(self.most, LEAST_PROGRAMS), most)
        while len(self) > most:
            oldest = (
                place
                for place, program in list(self._kept.items())[:-1]
                if not getattr(program, "lasting", False)
            )
            place = next(oldest, None)
            if place is None:
                return
            self._kept.pop(place, None)

    def _others(self) -> int:
        """Programs of the process that are not in the store, of those that can be counted."""
        if keras.backend.backend() != "jax":
            return 0
        import jax

        mine = sum(getattr(program, "compiled", True) for program in list(self._kept.values()))
        return max(0, len(jax.local_devices()[0].client.live_executables()) - mine)

    def _forget(self, owner: int) -> None:
        # May come from the garbage collector at any place in this thread.
        with self._lock:
            self._owners.pop(owner, None)
            for place in list(self._kept):
                if place[0] == owner:
                    self._kept.pop(place, None)


PROGRAMS = Programs()
