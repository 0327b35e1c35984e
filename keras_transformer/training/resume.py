"""Runs that can be killed at any moment, and resumed as if they had not been."""

import json
import os
import re
import warnings
import weakref
from pathlib import Path
from typing import Any, ClassVar

import keras
import numpy as np

from keras_transformer.checking import check_int, check_path, describe, shorten
from keras_transformer.files import SafetensorsFile, has_file, naming, write_safetensors
from keras_transformer.models.accumulation import batches_of_update
from keras_transformer.scratch import PathLock
from keras_transformer.structure import without_numbers
from keras_transformer.training.averaging import to_numpy

_FILE = "state.safetensors"
_SHAPE = "shape."
_LONGEST = 200  # of what a message quotes of a state


class ResumableRun(keras.callbacks.Callback):
    """Saves all that a run needs, and resumes the run when the program starts again.

    One file holds the weights, the optimizer, the states of all random numbers, the metrics of the
    running epoch and the place in the data. It is renamed when whole: a run that is killed, while
    saving too, resumes from a whole file. Started again with the same program, `fit` then has the
    losses of an unbroken run, as exact as the backend repeats itself.

    Call `keras.utils.set_random_seed` before the model is made, and put this last among the
    callbacks: what those before it did with an epoch then belongs to it.

    Args:
        directory: where the file goes; made if it does not exist.
        dataset: the `BucketedDataset` that is trained on. None for other data, which must then
            come in the same order whenever the program starts.
        every: int, steps from one save to the next, beside the one after each epoch; with
            `gradient_accumulation_steps` a step is an update of the weights, not a batch. Defaults
            to none.

    Raises:
        ValueError: for `every` out of range or without a `dataset`; from `fit` for a state of
            another run, with what differs: other sizes, another optimizer, other data, and within
            an epoch other metrics.
        OSError: from `fit` when the state cannot be written, as on a full disk, and the last one is
            still there; when another process has a run in this directory; when another run of
            this process has begun there since.

    Example:
    ```python
    import keras_transformer as kt
    import keras

    keras.utils.set_random_seed(1)
    classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
    dataset = classifier.make_dataset(["a warm film", "dull"] * 4, [1, 0] * 4, shuffle=True)
    for epochs in (1, 3):  # As if the program was started twice: the second adds two epochs.
        run = kt.training.ResumableRun("run", dataset, every=1)
        history = classifier.fit(dataset, epochs=epochs, verbose=0, callbacks=[run])
    assert history.epoch == [1, 2]
    ```
    """

    # What this process holds. A run that was broken off, and begun again in the same notebook,
    # does not stand in its own way.
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
            raise ValueError("To go on within an epoch, `every` needs the `dataset`.")
        self.path = Path(check_path("directory", directory)) / _FILE
        self._lock = PathLock(self.path)
        weakref.finalize(self, self._lock.release)  # also if an error ends the run
        self.dataset = dataset
        self.every = every

    def on_train_begin(self, logs=None):
        self._run = _description(self.model, self.dataset)
        self._within = (0, 0, {})  # epoch, batches of it that are done, its metrics
        self._warnings = None
        self._torch = _TorchGenerators()
        self._take_lock()
        if not has_file(self.path):
            return
        self.model.optimizer.build(self.model.trainable_variables)
        variables = _variables(self.model)
        kept, tensors = self._read(variables)
        metrics = {n: tensors.pop(n) for n in list(tensors) if n.startswith("metrics/")}
        for name, variable in variables.items():
            variable.assign(tensors[_place(name)])
        self._within = (kept["epoch"], kept["batch"], metrics)
        self._torch = _TorchGenerators(kept["torch_seed"], tensors)
        self.model._initial_epoch = kept["epoch"]  # As Keras's `BackupAndRestore` says it.

    def on_epoch_begin(self, epoch, logs=None):
        self.model._initial_epoch = 0  # Heard already. Another `fit` begins where it is told to.
        resumed, batch, metrics = self._within
        self._epoch, self._first = epoch, batch if epoch == resumed else 0
        self._done = self._first
        if self.dataset is None:
            return
        self.dataset.epoch = epoch
        self.dataset.first_batch = self._first
        if self._first:
            self._restore_metrics(metrics)
            # Keras counts on as many batches as the other epochs have.
            self._warnings = warnings.catch_warnings()
            self._warnings.__enter__()
            warnings.filterwarnings("ignore", message="Your input ran out of data")

    def on_train_batch_begin(self, batch, logs=None):
        if self._first and self._first + batch >= self.dataset.batches_per_epoch:
            # TensorFlow's step would begin, and count itself, before it finds no data. This is how
            # Keras's loop is told that there is none.
            raise StopIteration
        if batch == 0:
            # Not before: PyTorch's iterators draw numbers when an epoch begins.
            self._torch.begin(self._epoch, resumed=self._first > 0)

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
        self._lock.release()

    def _take_lock(self):
        """One run at a time in a directory: two would go on from each other's state."""
        place = self.path.absolute()
        earlier = self._locks.pop(place, None)
        if earlier is not None:
            earlier.release()
        with naming(self.path):
            mine = self._lock.acquire()
        if not mine:
            raise OSError(
                f"Another process has a run in {self.path.parent} right now. Wait for its end, or "
                "give this one a directory of its own."
            )
        self._locks[place] = self._lock

    def _read(self, variables: dict[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Place and tensors of the state, held against the variables that they are for."""
        try:
            file = SafetensorsFile(self.path)
            kept = json.loads(file.metadata.get("run", "null"))
            of, epoch, batch = (kept[name] for name in ("of", "epoch", "batch"))
            if not (isinstance(of, dict) and isinstance(epoch, int) and isinstance(batch, int)):
                raise TypeError("it names no place in a run")
            kept.setdefault("torch_seed", None)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.path} is no state of a run: {error}. Remove it to start anew."
            ) from error
        self._refuse_other(of)
        tensors = {_place(name): tensor for name, tensor in file.items()}
        for name, variable in variables.items():
            place = _place(name)
            shape = tensors[place].shape if place in tensors else None
            if shape != tuple(variable.shape):
                raise ValueError(
                    f"{self.path} does not fit this run: {name!r} has the shape {shape} there and "
                    f"{tuple(variable.shape)} here. Remove it to start anew."
                )
        return kept, tensors

    def _save(self, epoch, batch, logs):
        if not np.isfinite(float((logs or {}).get("loss", 0.0))):
            return  # What is kept shall be of use.
        variables = {**_variables(self.model), **(_metric_variables(self.model) if batch else {})}
        tensors = {name: to_numpy(variable) for name, variable in variables.items()}
        tensors |= self._torch.states()
        place = {"epoch": epoch, "batch": batch, "torch_seed": self._torch.seed}
        metadata = {"run": json.dumps({**place, "of": self._run})}
        if not self._lock.held:
            raise OSError(f"Another run of this process has begun in {self.path.parent}.")
        try:
            write_safetensors(self.path, tensors, metadata)
        except OSError as error:
            self._lock.release()
            size = sum(tensor.nbytes for tensor in tensors.values())
            kept = " The one before is still there." if self.path.exists() else ""
            message = (
                f"The state of the run, {size / 2**20:,.1f} MiB, could not be written to "
                f"{self.path.parent}: {error}{kept} Make room and start the program again."
            )
            number = () if error.errno is None else (error.errno,)
            raise OSError(*number, message) from error

    def _restore_metrics(self, kept: dict[str, np.ndarray]):
        """Those of the epoch's first part. Keras makes some of them in the first step only."""
        batch = next(self.dataset.examples_of_shapes())
        self.model._symbolic_build(data_batch=batch)
        variables = _metric_variables(self.model)
        if set(variables) != set(kept):
            then, now = (", ".join(map(_quoted, sorted(names)[:20])) for names in (kept, variables))
            raise ValueError(
                f"The state in {self.path} is within an epoch, of which it has these metrics: "
                f"{then}; but the model has {now}. Compile it with the metrics that it had."
            )
        for name, variable in variables.items():
            variable.assign(kept[name])

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
                f"The state in {self.path} is of another run:\n  "
                + "\n  ".join(shown[:8])
                + f"{more}\nGive what it was started with, or another directory to start anew."
            )


def _quoted(value: Any) -> str:
    """What a file says, or this run: escaped, on one line, and cut where it is long."""
    text = shorten(value, _LONGEST)
    return text[1:-1] if isinstance(value, str) else text


def _variables(model) -> dict[str, Any]:
    """Weights, states of random numbers and optimizer, each under a name of its own."""
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
    # Keras numbers metrics without a name of their own within a process.
    paths = [re.sub(r"_\d+(?=/)", "", variable.path) for variable in model.metrics_variables]
    return dict(
        zip(
            (f"metrics/{i}/{path}" for i, path in enumerate(paths)),
            model.metrics_variables,
            strict=True,
        )
    )


def _place(name: str) -> str:
    """The place of a tensor of a state, `model/0` of `model/0/dense_1/kernel`.

    The rest of the name is for people: the optimizer's variables, and files of before, have names
    with the numbers that Keras gave the layers in the process that wrote them.
    """
    group, *further = name.split("/")
    return f"{group}/{further[0]}" if further and group in ("model", "optimizer") else name


def _without_numbers(run: dict[str, Any]) -> dict[str, Any]:
    """The description of a run, with weights by names that are the same in any process."""
    names = without_numbers(name.removeprefix(_SHAPE) for name in run if name.startswith(_SHAPE))
    return {
        _SHAPE + names[name.removeprefix(_SHAPE)] if name.startswith(_SHAPE) else name: value
        for name, value in run.items()
    }


def _within_model(variable) -> str:
    """Its path without the name of model or optimizer, which Keras numbers within a process."""
    return variable.path.split("/", 1)[-1]


class _TorchGenerators:
    """PyTorch's own random numbers: each epoch has a seed, and within one their states are kept."""

    def __init__(self, seed: int | None = None, tensors: dict | None = None):
        self.seed, self.kept, self.torch = seed, tensors or {}, None
        if keras.backend.backend() == "torch":
            import torch

            self.torch = torch
            self.seed = torch.initial_seed() % 2**31 if seed is None else seed

    def begin(self, epoch: int, resumed: bool) -> None:
        torch = self.torch
        if torch is not None:
            torch.manual_seed(self.seed + epoch)
        if torch is None or not resumed:
            return
        torch.set_rng_state(torch.from_numpy(self.kept["torch/cpu"]))
        for i in range(torch.cuda.device_count()):
            if f"torch/cuda/{i}" in self.kept:
                torch.cuda.set_rng_state(torch.from_numpy(self.kept[f"torch/cuda/{i}"]), i)

    def states(self) -> dict[str, np.ndarray]:
        torch = self.torch
        if torch is None:
            return {}
        states = {"torch/cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            states |= {f"torch/cuda/{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
        return {name: state.cpu().numpy() for name, state in states.items()}


def _description(model, dataset) -> dict[str, Any]:
    """What must be the same for a run to go on: flat, so that differences can be named."""
    values = {"optimizer": keras.saving.serialize_keras_object(model.optimizer)}
    config = getattr(getattr(model, "backbone", None), "config", None)
    if config is not None:
        values["config"] = config.to_dict()
    values["shape"] = {_within_model(v): list(v.shape) for v in model.trainable_variables}
    if hasattr(dataset, "description"):
        values["data"] = dataset.description
    return _without_numbers(dict(_flat("", values)))


def _flat(name, value):
    if isinstance(value, dict):
        for key, part in value.items():
            # What Keras writes beside the values of an object.
            if key not in ("module", "registered_name", "build_config", "name"):
                yield from _flat(f"{name}.{key}".strip("."), part)
    else:
        yield name.replace(".config.", "."), value
