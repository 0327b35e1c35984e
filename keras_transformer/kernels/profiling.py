"""Profiles of what a device does while a function runs, from the backend's profiler."""

import contextlib
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_transformer.kernels.device import device, on

# Calls in which the host waits for the device, by their names in the CUDA runtime.
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cuStreamSynchronize")
_LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
    "cudaGraphLaunch",
)  # fmt: skip


class Operation(NamedTuple):
    """Time of an operation, without the operations within it.

    Fields:
        name: str, a kernel on a GPU, or an operation of the backend on a CPU.
        seconds: float, total time of all its calls.
        count: int, number of its calls.
    """

    name: str
    seconds: float
    count: int


class Trace(NamedTuple):
    """Result of a profiler run.

    Fields:
        file: the trace, for https://ui.perfetto.dev or TensorBoard.
        operations: list of `Operation`, the slowest first.
        launches: int, number of kernels and graphs of kernels that the host sent to the device.
            None on a CPU, or if the profiler does not report it.
        waits: int, number of times the host waited for the device. None in the same cases.
    """

    file: Path
    operations: list[Operation]
    launches: int | None
    waits: int | None


def traced(run: Callable[[], object], folder: Path) -> Trace:
    """Run a function and return the profiler's result, with its trace in a folder.

    Args:
        run: function that must wait for everything it starts on the device, see `finish`.
        folder: existing folder that can be written to.

    Example:
    ```python
    import tempfile
    from keras_transformer.kernels.profiling import finish, traced
    import keras

    x = keras.ops.ones((64, 64))
    with tempfile.TemporaryDirectory() as folder:
        trace = traced(lambda: finish(keras.ops.matmul(x, x)), folder)
        assert trace.file.stat().st_size > 0
    ```
    """
    return _TRACERS[keras.backend.backend()](run, Path(folder))


def finish(outputs: Any = None) -> None:
    """Wait until the device has computed these outputs, or on PyTorch everything it was given."""
    if on("torch"):
        import torch

        if device().kind == "cuda":
            torch.cuda.synchronize()
        return
    for tensor in keras.tree.flatten(outputs):
        keras.ops.convert_to_numpy(tensor)


def _of_torch(run: Callable, folder: Path) -> Trace:
    import torch
    from torch.profiler import ProfilerActivity, profile

    cuda = device().kind == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as seen:
        run()
    file = folder / "trace.json"
    seen.export_chrome_trace(str(file))
    averages = seen.key_averages()
    if not cuda:
        operations = [Operation(e.key, e.self_cpu_time_total / 1e6, e.count) for e in averages]
        return Trace(file, _dearest(operations), None, None)
    operations = [
        Operation(e.key, e.self_device_time_total / 1e6, e.count)
        for e in averages
        if e.device_type == torch.autograd.DeviceType.CUDA
    ]
    calls = {e.key: e.count for e in averages}
    launches, waits = (sum(calls.get(n, 0) for n in names) for names in (_LAUNCHES, _WAITS))
    return Trace(file, _dearest(operations), launches, waits)


def _of_jax(run: Callable, folder: Path) -> Trace:
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # else most of the trace is Python calls
    with jax.profiler.trace(folder, profiler_options=options):
        run()
    file = next(_newest(folder, "*.xplane.pb"))
    data = jax.profiler.ProfileData.from_file(str(file))

    def events(line) -> list:
        return [(e.name, e.start_ns, e.duration_ns, dict(e.stats)) for e in line.events]

    lines = ((plane.name, line.name, events(line)) for plane in data.planes for line in plane.lines)
    # The same trace in the format that Perfetto reads.
    return _of_planes(next(_newest(folder, "*.trace.json.gz"), file), lines)


def _of_tensorflow(run: Callable, folder: Path) -> Trace:
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
    with contextlib.redirect_stderr(io.StringIO()):
        tf.profiler.experimental.start(str(folder), options)
    try:
        run()
    finally:
        tf.profiler.experimental.stop()
    file = next(_newest(folder, "*.xplane.pb"))
    space = xplane_pb2.XSpace.FromString(file.read_bytes())

    def lines():
        for plane in space.planes:
            names = {key: value.name for key, value in plane.event_metadata.items()}
            stats = {key: value.name for key, value in plane.stat_metadata.items()}
            for line in plane.lines:
                yield (
                    plane.name,
                    line.name,
                    [
                        (
                            names[e.metadata_id],
                            e.offset_ps / 1e3,
                            e.duration_ps / 1e3,
                            {
                                stats[s.metadata_id]: s.str_value or stats.get(s.ref_value)
                                for s in e.stats
                            },
                        )
                        for e in line.events
                    ],
                )

    return _of_planes(file, lines())


_TRACERS = {"torch": _of_torch, "jax": _of_jax, "tensorflow": _of_tensorflow}


def _of_planes(file: Path, lines: Iterable[tuple[str, str, list]]) -> Trace:
    """Read XLA's profile: planes of lines of events `(name, start, nanoseconds, stats)`."""
    on_host: dict[str, list] = defaultdict(list)
    on_device: dict[str, list] = defaultdict(list)
    launches = waits = 0
    for plane, line, events in lines:
        if plane.startswith("/device:") and line.startswith(("Stream", "XLA Ops")):
            launches += len(events)
            _add(on_device, [(e[3].get("hlo_op") or e[0], *e[1:3]) for e in events])
        elif plane.startswith("/host:"):
            waits += sum(name in _WAITS for name, *_ in events)
            named = [(e[3].get("hlo_op") or _type(e[0]), *e[1:3]) for e in events]
            _add(on_host, [each for each in named if each[0]])
    found = on_device or on_host
    operations = [Operation(name, sum(some) / 1e9, len(some)) for name, some in found.items()]
    known = bool(on_device)
    return Trace(file, _dearest(operations), launches if known else None, waits if known else None)


def _type(name: str) -> str | None:
    """Return the type of an operation of a TensorFlow graph, such as `"MatMul"`."""
    found = re.fullmatch(r"[^:]+:([A-Z]\w*)", name)
    return found and found[1]


def _add(found: dict[str, list], events: list[tuple[str, float, float]]) -> None:
    """Add the times of a line's events by name, each without the events within it."""
    within: list[list] = []  # running events: name, end, own nanoseconds

    def end(before: float) -> None:
        while within and within[-1][1] <= before:
            name, _, own = within.pop()
            found[name].append(own)

    for name, start, length in sorted(events, key=lambda e: (e[1], -e[2])):
        end(start)
        if within:
            within[-1][2] -= length
        within.append([name, start + length, length])
    end(float("inf"))


def _dearest(operations: list[Operation]) -> list[Operation]:
    return sorted(operations, key=lambda each: -each.seconds)


def _newest(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the most recently written file that matches a pattern, if there is one."""
    found = sorted(folder.rglob(pattern), key=lambda path: path.stat().st_mtime)
    return iter(found[-1:])
