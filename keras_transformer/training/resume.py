"""Training runs that can be killed at any moment and resumed as if nothing had happened."""

import contextlib
import json
import math
import os
import re
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.config.structure import without_numbers
from keras_transformer.distribution.processes import (
    check_processes,
    gather_values,
    process_count,
    process_index,
)
from keras_transformer.distribution.spread import MODELS
from keras_transformer.kernels.accumulation import batches_of_update
from keras_transformer.kernels.random_state import RandomGenerators
from keras_transformer.support.checking import check_int, check_path, describe, shorten
from keras_transformer.support.files import naming
from keras_transformer.support.scratch import PathLock
from keras_transformer.training.run_states import (
    StateFile,
    StateShards,
    latest,
    place_of,
    splits,
)

_FILE = "state.safetensors"
_SHARDS = "shards"
_SHAPE = "shape."
_BYTES = 4  # of a number, for a message
_LONGEST = 200  # characters of a state that a message quotes


class ResumableRun(keras.callbacks.Callback):
    """Saves the whole state of a run, and resumes the run when the program starts again.

    One file holds the weights, the optimizer, the states of all random number generators, the
    metrics of the running epoch and the position in the data. It is replaced atomically, so that a
    run that is killed, even while saving, resumes from a complete file. After a restart of the same
    program, `fit` reports the losses of an uninterrupted run, as far as the backend is
    deterministic.

    If several processes train, or devices share the weights, each process writes its part of the
    state, in the background (`distribution.ShardedCheckpoints`), to a directory that all of them
    see. The run goes on with any number of processes and devices, also within an epoch, if the
    dataset is a `distribution.shard_of` the same whole batches. Processes that differ in their
    packages, their data or their model are refused before the first step.

    Call `keras.utils.set_random_seed` before the model is made, and put this last among the
    callbacks: the effects of earlier callbacks on an epoch then belong to the saved epoch.

    Args:
        directory: folder for the file; made if it does not exist.
        dataset: the `BucketedDataset` that is trained on. None means other data, which must come
            in the same order whenever the program starts.
        every: int, number of steps between two saves, in addition to the save after each epoch;
            with `gradient_accumulation_steps` a step is an update of the weights, not a batch.
            Defaults to None, which saves after epochs only.

    Raises:
        ValueError: if `every` is out of range or lacks a `dataset`; from `fit`, if the saved state
            belongs to another run. The message names the differences: other sizes, another
            optimizer, other data, or, within an epoch, other metrics.
        OSError: from `fit`, if the state cannot be written, as on a full disk (the last state is
            kept); if another process has a run in this directory; or if another run of this
            process has since begun there.
        ImportError: from `fit` on JAX, if several devices share the state and Orbax is missing.

    Example:
    ```python
    import keras_transformer as kt
    import keras

    keras.utils.set_random_seed(1)
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    dataset = classifier.make_dataset(["a warm film", "dull"] * 4, [1, 0] * 4, shuffle=True)
    for epochs in (1, 3):  # as if the program was started twice: the second adds two epochs
        run = kt.training.ResumableRun("run", dataset, every=1)
        history = classifier.fit(dataset, epochs=epochs, verbose=0, callbacks=[run])
    assert history.epoch == [1, 2]
    ```
    """

    # Locks of this process, so that a run that was interrupted and started again in the same
    # notebook does not block itself.
    _locks: ClassVar[dict[Path, PathLock]] = {}

    def __init__(self, directory: str | os.PathLike, dataset=None, every: int | None = None):
        super().__init__()
        every = check_int("every", every, at_least=1, none=True)
        if dataset is not None and not hasattr(dataset, "first_batch"):
            raise ValueError(
                "`dataset` must be the BucketedDataset that is trained on, or a shard of one, "
                f"received {describe(dataset)}."
            )
        if every is not None and dataset is None:
            raise ValueError(
                "`every` needs the `dataset` too, to resume within an epoch: give "
                "ResumableRun(directory, dataset, every)."
            )
        self.path = Path(check_path("directory", directory)) / _FILE
        self._lock = PathLock(self.path)
        weakref.finalize(self, self._lock.release)  # also if an error ends the run
        self.dataset = dataset
        self.every = every

    def on_train_begin(self, logs=None):
        self._run = _description(self.model, self.dataset)
        self._within = (0, 0)  # epoch, its finished batches
        self._warnings = None
        self._generators = RandomGenerators()
        self._take_lock()
        several, shards = splits(self.model), self.path.with_name(_SHARDS)
        file = StateFile(self.path)
        states = [file]
        if several or shards.is_dir():
            states.append(StateShards(shards))
        self._resumed = latest(states, _position)
        self._state = states[-1] if several else file
        self._check_processes()
        if self._resumed is None:
            return
        kept = _values(self._resumed)
        trained = self.model.trainable_variables
        if self.model in MODELS:  # states of the optimizer are spread too
            MODELS[self.model].build(self.model.optimizer, trained)
        else:
            self.model.optimizer.build(trained)
        variables = _variables(self.model)
        self._check(kept, variables)
        self._resumed.restore({place_of(name): each for name, each in variables.items()})
        self._within = (kept["epoch"], kept["batch"])
        self._generators = RandomGenerators(kept.get("torch_seed"), self._resumed.own())
        self.model._initial_epoch = kept["epoch"]  # as Keras's `BackupAndRestore` does

    def on_epoch_begin(self, epoch, logs=None):
        self.model._initial_epoch = 0  # used already; another `fit` has its own first epoch
        resumed, batch = self._within
        self._epoch, self._first = epoch, batch if epoch == resumed else 0
        self._done = self._first
        if self.dataset is None:
            return
        self.dataset.epoch = epoch
        self.dataset.first_batch = self._first
        if self._first:
            self._restore_metrics()
            # Keras would expect as many batches as in other epochs.
            self._warnings = warnings.catch_warnings()
            self._warnings.__enter__()
            warnings.filterwarnings("ignore", message="Your input ran out of data")

    def on_train_batch_begin(self, batch, logs=None):
        if self._first and self._first + batch >= self.dataset.batches_per_epoch:
            # TensorFlow's step would start, and count itself, before it finds no data. This tells
            # Keras's loop that the data has ended.
            raise StopIteration
        if batch == 0:
            # Not earlier: PyTorch's iterators draw numbers at the start of an epoch.
            self._generators.begin(self._epoch, resumed=self._first > 0)

    def on_train_batch_end(self, batch, logs=None):
        before, self._done = self._done, self._first + batch + 1
        if not self.every or self._done >= self.dataset.batches_per_epoch:
            return
        every = self.every * batches_of_update(self.model.optimizer)
        if before // every < self._done // every:
            self._save(self._epoch, self._done, logs)

    def on_epoch_end(self, epoch, logs=None):
        if self._warnings is not None:
            self._warnings.__exit__(None, None, None)
            self._warnings = None
        self._save(epoch + 1, 0, logs)

    def on_train_end(self, logs=None):
        self.model._initial_epoch = 0
        self._state.close()
        self._lock.release()

    def _take_lock(self):
        """Allow one run at a time in a directory: two would resume from each other's state."""
        failed = ""
        try:
            if process_index() == 0:
                self._take_own_lock()
        except OSError as error:
            if process_count() == 1:
                raise
            failed = str(error)
        if process_count() == 1:
            return
        if message := next(filter(None, gather_values(failed)), None):
            raise OSError(message)
        missing = [i for i, seen in enumerate(gather_values(self._lock.file.exists())) if not seen]
        if missing:
            raise ValueError(
                f"Of {process_count()} processes, these do not see the folder {self.path.parent} "
                f"of process 0: {missing}. Name a folder on a file system that all hosts share."
            )

    def _check_processes(self):
        if process_count() > 1:
            resumed = self._resumed
            position = None if resumed is None else list(_position(resumed))
            check_processes(state=position, steps_between_saves=self.every, run=self._run)

    def _take_own_lock(self):
        place = self.path.absolute()
        earlier = self._locks.pop(place, None)
        if earlier is not None:
            earlier.release()
        with naming(self.path):
            mine = self._lock.acquire()
        if not mine:
            raise OSError(
                f"Another process has a run in {self.path.parent} right now. Wait until it ends, "
                "or give this run a directory of its own."
            )
        self._locks[place] = self._lock

    def _check(self, kept: dict[str, Any], variables: dict[str, Any]) -> None:
        """Raise ValueError unless the state fits this run and its variables."""
        self._refuse_other(kept["of"])
        _check_shapes(self._resumed, variables, "Remove it to start anew.")

    def _save(self, epoch, batch, logs):
        if not np.isfinite(float((logs or {}).get("loss", 0.0))):
            return  # a state with a NaN loss would be useless
        variables = {**_variables(self.model), **(_metric_variables(self.model) if batch else {})}
        place = {"epoch": epoch, "batch": batch, "torch_seed": self._generators.seed}
        number = epoch * (self.dataset.batches_per_epoch if self.dataset else 1) + batch
        if process_index() == 0 and not self._lock.held:
            raise OSError(
                f"Another run of this process has begun in {self.path.parent}: use two directories."
            )
        try:
            self._state.save(
                number, variables, self._generators.states(), {**place, "of": self._run}
            )
        except OSError as error:
            self._lock.release()
            size = sum(math.prod(v.shape) * _BYTES for v in variables.values())
            kept = " The previous one is still there." if self.path.exists() else ""
            message = (
                f"The state of the run, {size / 2**20:,.1f} MiB, could not be written to "
                f"{self.path.parent}: {error}{kept} Make room and start the program again."
            )
            number = () if error.errno is None else (error.errno,)
            raise OSError(*number, message) from error

    def _restore_metrics(self):
        """Restore the metrics of a partial epoch; Keras makes some of them only in a first step."""
        batch = next(self.dataset.examples_of_shapes())
        self.model._symbolic_build(data_batch=batch)
        variables = _metric_variables(self.model)
        kept = {name for name in self._resumed.shapes() if name.startswith("metrics/")}
        if set(variables) != kept:
            then, now = (", ".join(map(_quoted, sorted(names)[:20])) for names in (kept, variables))
            raise ValueError(
                f"The state in {self._resumed.path} was saved within an epoch, with these metrics: "
                f"{then}; but the model has {now}. Compile it with the same metrics."
            )
        self._resumed.restore(variables)

    def _refuse_other(self, kept: dict):
        now, kept = json.loads(json.dumps(self._run)), _without_numbers(kept)
        names = [name for name in {**kept, **now} if kept.get(name) != now.get(name)]
        if names:
            shown = [
                f"{_quoted(n)}: {_quoted(kept.get(n, 'none'))} then, "
                f"{_quoted(now.get(n, 'none'))} now"
                for n in names
            ]
            more = f"\n  and {len(shown) - 8} more" if len(shown) > 8 else ""
            raise ValueError(
                f"The state in {self.path} belongs to another run:\n  "
                + "\n  ".join(shown[:8])
                + f"{more}\nUse the earlier settings, or another directory to start anew."
            )


def load_run(model: keras.Model, directory: str | os.PathLike) -> None:
    """Load the weights of a run into a model, such as to save it as a preset.

    One process can read what many wrote, a tensor at a time: it needs memory for the weights, not
    for optimizer states.

    Args:
        model: a `keras.Model` made as that of the run; it need not be compiled.
        directory: the directory of a `ResumableRun`.

    Raises:
        FileNotFoundError: if there is no state of a run.
        ValueError: if the state is that of another model. The model is then unchanged.

    Example:
    ```python
    import tempfile
    import keras_transformer as kt

    folder = tempfile.mkdtemp()
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    run = kt.training.ResumableRun(folder)
    classifier.fit(["a warm film", "dull"], [1, 0], verbose=0, callbacks=[run])
    again = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    kt.training.load_run(again, folder)
    again.save_to_preset(f"{folder}/preset")
    ```
    """
    with open_run(model, directory) as (state, variables):
        for place, variable in variables.items():
            state.restore({place: variable})


@contextlib.contextmanager
def open_run(model: keras.Model, directory: str | os.PathLike) -> Iterator[tuple]:
    """Yield the state of a run, and the variables of a model by their places in it.

    Raises the errors of `load_run`.
    """
    path = Path(check_path("directory", directory))
    states: list[StateFile | StateShards] = [StateFile(path / _FILE)]
    if (path / _SHARDS).is_dir():
        states.append(StateShards(path / _SHARDS))
    state = latest(states, _position)
    if state is None:
        raise FileNotFoundError(f"{path} has no state of a run.")
    variables = {f"model/{i}/{v.path}": v for i, v in enumerate(model.variables)}
    _check_shapes(state, variables, "Make the model as in the run.")
    try:
        yield state, {place_of(name): variable for name, variable in variables.items()}
    finally:
        for each in states:
            each.close()


def _position(state: StateFile | StateShards) -> tuple[int, int]:
    """Return the epoch of a state, and its finished batches."""
    kept = _values(state)
    return kept["epoch"], kept["batch"]


def _values(state: StateFile | StateShards) -> dict[str, Any]:
    """Return the values of a state. Raises ValueError if they are not those of a run."""
    try:
        kept = state.values()
        of, epoch, batch = (kept[name] for name in ("of", "epoch", "batch"))
        if not (isinstance(of, dict) and isinstance(epoch, int) and isinstance(batch, int)):
            raise TypeError("it does not say where in a run it was saved")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{state.path} is not the state of a run: {error}. Remove it to start anew."
        ) from error
    return kept


def _check_shapes(state: StateFile | StateShards, variables: dict[str, Any], advice: str) -> None:
    shapes = state.shapes()
    for name, variable in variables.items():
        shape = shapes.get(place_of(name))
        if shape != tuple(variable.shape):
            raise ValueError(
                f"{state.path} does not fit this model: {name!r} has the shape {shape} there and "
                f"{tuple(variable.shape)} here. {advice}"
            )


def _quoted(value: Any) -> str:
    """Quote a value from a file or of this run: escaped, on one line, and shortened."""
    text = shorten(value, _LONGEST)
    return text[1:-1] if isinstance(value, str) else text


def _variables(model) -> dict[str, Any]:
    """Return the weights, random states and optimizer variables of a model by unique names."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
    groups = {"model": model.variables, "optimizer": model.optimizer.variables}
    names = {
        group: without_numbers(map(_within_model, variables)) for group, variables in groups.items()
    }
    return {
        f"{group}/{i}/{names[group][_within_model(variable)]}": variable
        for group, variables in groups.items()
        for i, variable in enumerate(variables)
    }


def _metric_variables(model) -> dict[str, Any]:
    # Keras numbers metrics without an explicit name within a process.
    paths = [re.sub(r"_\d+(?=/)", "", variable.path) for variable in model.metrics_variables]
    return dict(
        zip(
            (f"metrics/{i}/{path}" for i, path in enumerate(paths)),
            model.metrics_variables,
            strict=True,
        )
    )


def _without_numbers(run: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a run with weight names that are the same in any process."""
    names = without_numbers(name.removeprefix(_SHAPE) for name in run if name.startswith(_SHAPE))
    return {
        _SHAPE + names[name.removeprefix(_SHAPE)] if name.startswith(_SHAPE) else name: value
        for name, value in run.items()
    }


def _within_model(variable) -> str:
    """Return a variable's path without the model's or optimizer's name, which Keras numbers."""
    return variable.path.split("/", 1)[-1]


def _description(model, dataset) -> dict[str, Any]:
    """Describe what must be equal to resume a run, as a flat dict, so that errors can name it."""
    values = {"optimizer": keras.saving.serialize_keras_object(model.optimizer)}
    config = getattr(getattr(model, "backbone", None), "config", None)
    if config is not None:
        values["config"] = dict(config.flat)
    values["shape"] = {_within_model(v): list(v.shape) for v in model.trainable_variables}
    if hasattr(dataset, "description"):
        values["data"] = dataset.description
    values |= getattr(model, "run_values", {})
    return _without_numbers(dict(_flat("", values)))


def _flat(name, value):
    if isinstance(value, dict):
        for key, part in value.items():
            # Skip what Keras writes beside the values of an object.
            if key not in ("module", "registered_name", "build_config", "name"):
                yield from _flat(f"{name}.{key}".strip("."), part)
    else:
        yield name.replace(".config.", "."), value
