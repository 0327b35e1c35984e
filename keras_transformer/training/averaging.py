"""Saving the last checkpoints of a run, and averaging them."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.config.structure import without_numbers
from keras_transformer.kernels.accumulation import batches_done, batches_of_update
from keras_transformer.support.checking import check_int, check_path, describe
from keras_transformer.support.files import SafetensorsFile, write_safetensors


def average_checkpoints(
    paths: Sequence[str | os.PathLike], output_path: str | os.PathLike | None = None
) -> dict[str, np.ndarray]:
    """Average the weights in several safetensors files.

    Sums are in float64, and one tensor at a time is in memory. Integer tensors come from the last
    file.

    Args:
        paths: paths of safetensors files that hold the same tensors.
        output_path: path of the file to write the average to. Defaults to None, which only returns
            it.

    Returns:
        dict of tensor name to array, with the files' dtypes.

    Raises:
        ValueError: if `paths` is empty, or the tensors of the files differ in name or shape.
        FileNotFoundError: if a file does not exist.
        OSError: if the output cannot be written. An existing file stays unchanged.

    Example:
    ```python
    import numpy as np
    from safetensors.numpy import save_file
    from keras_transformer.training import average_checkpoints

    save_file({"kernel": np.full((2,), 1.0, "float32")}, "a.safetensors")
    save_file({"kernel": np.full((2,), 2.0, "float32")}, "b.safetensors")
    average = average_checkpoints(["a.safetensors", "b.safetensors"])
    assert average["kernel"].tolist() == [1.5, 1.5]
    ```

    Source: Vaswani et al. 2017, section 6.1 (the last 5 checkpoints, 20 for the big model).
    """
    if isinstance(paths, (str, bytes, os.PathLike)) or not isinstance(paths, Iterable):
        raise ValueError(f"`paths` must be a list of paths, received {describe(paths)}.")
    paths = [Path(check_path(f"paths[{place}]", path)) for place, path in enumerate(paths)]
    if not paths:
        raise ValueError("`paths` is empty: average_checkpoints needs at least one file.")
    if output_path is not None:
        check_path("output_path", output_path)
    files = {path: SafetensorsFile(path) for path in paths}
    names = without_numbers(files[paths[-1]])
    stored = {
        path: {stable: name for name, stable in without_numbers(file).items()}
        for path, file in files.items()
    }
    for path in paths:
        differ = sorted(set(names.values()) ^ set(stored[path]))
        if differ:
            raise ValueError(
                f"{path} and {paths[-1]} do not hold the same tensors; "
                f"{len(differ)} are in only one of them, such as {differ[0]!r}."
            )
    average = {
        name: _average([(path, files[path], stored[path][names[name]]) for path in paths])
        for name in sorted(names)
    }
    if output_path is not None:
        write_safetensors(output_path, average)
    return average


def _average(found: list[tuple[Path, SafetensorsFile, str]]) -> np.ndarray:
    """Average one tensor under its name in each file; integer tensors come from the last file."""
    last_path, file, name = found[-1]
    last = file[name]
    if last.dtype.kind in "iub":
        return last
    total = np.zeros(last.shape, "float64")
    for path, file, name in found:
        tensor = file[name]
        if tensor.shape != last.shape:
            raise ValueError(
                f"Tensor {name!r} has shape {tensor.shape} in {path} but {last.shape} in "
                f"{last_path}."
            )
        total += tensor
    total /= len(found)
    return total.astype(last.dtype)


class LastCheckpoints(keras.callbacks.Callback):
    """Saves the model's weights during training and keeps the last few, for averaging.

    Files are named by the optimizer's step, `step-00001200.safetensors`, and are written completely
    or not at all. With `gradient_accumulation_steps` a step is an update of the weights, not a
    batch. A resumed run continues with its own files and does not touch the files of earlier runs.

    Args:
        directory: folder for the files; made if it does not exist.
        keep: int, number of files to keep. Defaults to 10.
        every: "epoch", or int, the number of steps between two files. Defaults to "epoch".

    Raises:
        ValueError: if `keep` or `every` is out of range.

    Example:
    ```python
    from keras_transformer.training import LastCheckpoints
    import keras, numpy as np

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    last = LastCheckpoints("checkpoints", keep=2)
    model.fit(np.ones((4, 2)), np.ones(4), epochs=3, verbose=0, callbacks=[last])
    assert last.paths[0].name == "step-00000002.safetensors" and len(last.paths) == 2
    last.average_into(model)
    ```
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 10, every: str | int = "epoch"):
        super().__init__()
        self.keep = check_int("keep", keep, at_least=1)
        if not isinstance(every, str) or every != "epoch":
            every = check_int("every", every, at_least=1, hint='Or give "epoch".')
        self.directory = Path(check_path("directory", directory))
        self.every = every
        self.paths = None

    def on_epoch_begin(self, epoch, logs=None):
        # Not in on_train_begin, where `ResumableRun` may not have restored the step yet.
        self._batches = self._begin = batches_done(self.model.optimizer)
        self._find()

    def on_train_batch_end(self, batch, logs=None):
        # Counted here: reading the optimizer's step would copy the whole state on JAX.
        before, self._batches = self._batches, self._begin + batch + 1
        if self.every == "epoch":
            return
        every = self.every * batches_of_update(self.model.optimizer)
        if before // every < self._batches // every:
            self._save_model()

    def on_epoch_end(self, epoch, logs=None):
        if self.every == "epoch":
            self._save_model()

    def on_train_end(self, logs=None):
        self._find()  # a run resumed at its end has no epoch to begin

    def average_into(self, model: keras.Model):
        """Set the model's weights to the average of the saved checkpoints.

        Raises:
            ValueError: if nothing was saved yet, or the weights of model and files differ in name
                or shape.
        """
        if not self.paths:
            raise ValueError(f"No checkpoint was saved to {self.directory} yet; call fit first.")
        average = average_checkpoints(self.paths)
        names = without_numbers(average)
        average = {names[name]: array for name, array in average.items()}
        variables = _named_weights(model)
        names = without_numbers(variables)
        variables = {names[name]: variable for name, variable in variables.items()}
        differ = sorted(set(average) ^ set(variables))
        if differ:
            raise ValueError(
                f"The checkpoints in {self.directory} belong to another model: {len(differ)} "
                f"weights are in only one of the two, such as {differ[0]!r}."
            )
        for name, variable in variables.items():
            if tuple(variable.shape) != average[name].shape:
                raise ValueError(
                    f"Weight {name!r} has shape {tuple(variable.shape)} in the model but "
                    f"{average[name].shape} in the checkpoints in {self.directory}."
                )
        for name, variable in variables.items():
            variable.assign(average[name])

    def _find(self):
        """Find the files that a resumed run has already saved; later calls do nothing."""
        if self.paths is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        step = self._current_step()
        named = re.compile(r"step-(\d+)\.safetensors")
        found = {path: named.fullmatch(path.name) for path in self.directory.iterdir()}
        steps = {path: int(match[1]) for path, match in found.items() if match}
        self.paths = sorted((p for p, its in steps.items() if 0 < its <= step), key=steps.get)
        self._prune()

    def _current_step(self):
        return int(ops.convert_to_numpy(self.model.optimizer.iterations))

    def _save_model(self):
        path = self.directory / f"step-{self._current_step():08d}.safetensors"
        weights = {name: to_numpy(v) for name, v in _named_weights(self.model).items()}
        write_safetensors(path, weights)
        self.paths = [other for other in self.paths if other != path] + [path]
        self._prune()

    def _prune(self):
        for path in self.paths[: -self.keep]:
            path.unlink(missing_ok=True)
        self.paths = self.paths[-self.keep :]


def _named_weights(model) -> dict:
    """Return the model's weights by path, relative to the model's own path."""
    prefix = f"{model.path or model.name}/"
    named = {weight.path.removeprefix(prefix): weight for weight in model.weights}
    if len(named) < len(model.weights):
        paths = [weight.path for weight in model.weights]
        twice = next(path for path in paths if paths.count(path) > 1)
        raise ValueError(f"Two weights of the model are called {twice!r}: rename its layers.")
    return named


def to_numpy(variable) -> np.ndarray:
    """Return the value of a variable in a dtype that files support."""
    array = ops.convert_to_numpy(variable)
    # NumPy has no bfloat16 or float8 of its own, and not every reader of the file has them.
    return array.astype("float32") if array.dtype.kind == "V" else np.asarray(array, order="C")
