"""Resident memory while tokens are generated, sampled by a thread. Linux only."""

import pathlib
import resource
import threading
import time
from collections.abc import Callable

from harness import memory, start_peak


class Samples:
    """`VmRSS` in megabytes every few milliseconds while the block runs."""

    def __enter__(self):
        self.values: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        while not self._stop.is_set():
            self.values.append(memory("VmRSS"))
            time.sleep(0.01)

    def __exit__(self, *error):
        self._stop.set()
        self._thread.join()
        self.values.append(memory("VmRSS"))

    def at(self, share: float) -> float:
        """Return the value when this share of the time had passed."""
        return self.values[int(share * (len(self.values) - 1))]


def measure(make: Callable, prompts: list[list[int]], short: bool) -> list:
    """Return the megabytes held after calls of 64, 200, and twice 1,000 tokens.

    The first call of 1,000 compiles; the second should need no more than the cache. A fifth of
    its time is taken for the 200th token, since all steps take about as long. "held" and "peak"
    do not include the memory of the process after its libraries were imported.
    """
    import keras_transformer  # noqa: F401
    from keras_transformer.generation import Cache

    if not pathlib.Path("/proc/self/clear_refs").exists():
        raise SystemExit("The memory is read from /proc, which Linux has.")
    longest = 100 if short else 1000
    imported = memory("VmRSS")
    contender = make()
    config = contender.model.backbone.config
    weights = 4 * contender.model.backbone.count_params()
    cache = Cache.count_bytes(config, 1, len(prompts[0]) + longest)
    held = {"loaded": memory("VmRSS") - imported}
    for new in (64, longest // 5, longest):
        contender.generate(prompts, new)
        held[f"after {new}"] = memory("VmRSS") - imported
    start_peak()
    with Samples() as samples:
        contender.generate(prompts, longest)
    peak = memory("VmHWM") - imported
    return [
        ("model + cache", (weights + cache) / 1e6),
        *held.items(),
        ("again", memory("VmRSS") - imported),
        (f"growth {longest // 5} to {longest}", samples.values[-1] - samples.at(0.2)),
        ("peak", peak),
        ("peak / (model + cache)", 1e6 * peak / (weights + cache)),
        ("cache alone", cache / 1e6),
        ("process, ever", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6),
    ]
