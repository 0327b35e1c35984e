"""Training a part of a task's weights, by the functions of `training.lora`."""

import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_transformer.checking import check_path
from keras_transformer.checkpoints.safetensors_io import save_tensors
from keras_transformer.files import SafetensorsFile, naming
from keras_transformer.models.turns import changes, reads
from keras_transformer.scratch import PathLock
from keras_transformer.structure import without_numbers
from keras_transformer.training import lora

_BACKBONE, _INNER = "backbone/", "/lora_kernel_a"


class Adaptable:
    """Mixin of a task: freezing, and low-rank adaptation (LoRA).

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """

    @changes
    def freeze(self, layers: int, embeddings: bool = True) -> None:
        """Trains the upper part of the backbone only, and the head. Optimizer states start anew.

        Called again with fewer layers, it thaws those between: gradual unfreezing.

        Args:
            layers: int, number of the lowest blocks that are frozen; of an encoder-decoder of each
                side.
            embeddings: bool, whether what is before the blocks, the embeddings, is frozen too.

        Raises:
            ValueError: for more layers than there are, or for a task with adapters.

        Example:
        ```python
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        classifier.freeze(layers=4)
        paths = [variable.path for variable in classifier.trainable_variables]
        assert not any("layer_3" in path or "embedding" in path for path in paths)
        assert any("layer_4" in path for path in paths)
        ```

        Source: Howard and Ruder 2018, "ULMFiT", section 3.3.
        """
        lora.freeze(self.backbone, layers, embeddings)
        lora.forget_compiled(self)

    @changes
    def enable_lora(
        self,
        rank: int,
        alpha: float | None = None,
        targets: Sequence[str] = ("query", "value"),
    ) -> None:
        """Freezes the backbone, and trains matrices of low rank beside some of its kernels.

        The kernel `W` of a target becomes `W + alpha / rank * A @ B`. `B` is zero at first, so
        that the model is what it was. The head of the task is trained as before. Optimizer states
        start anew: call it before `fit`, with the learning rate that `compile` was given or gives.

        Args:
            rank: int, the inner size of `A @ B`.
            alpha: float, see above. Defaults to `rank`.
            targets: names of the dense layers to adapt, of `"query"`, `"key"`, `"value"`,
                `"output"` and the layers of the feed-forward part.

        Raises:
            ValueError: for a rank or alpha that is not positive, a target that no layer is named
                by, a model that is quantized or adapted already.

        Example:
        ```python
        import math
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        before = classifier.count_params()
        classifier.enable_lora(rank=4)
        trained = sum(math.prod(v.shape) for v in classifier.trainable_variables)
        assert trained < before / 50
        ```
        """
        lora.enable_lora(self.backbone, rank, alpha, targets)
        lora.forget_compiled(self)

    @changes
    def merge_lora(self) -> None:
        """Adds the adapters to the kernels, so that the model has none any more.

        What `enable_lora` froze is trained again afterwards.

        Raises:
            ValueError: for a task without adapters.
        """
        lora.merge_lora(self.backbone)
        lora.forget_compiled(self)

    @reads
    def save_adapter(self, path: str | os.PathLike) -> None:
        """Writes the adapters and the task's head, without the frozen weights, to one file.

        Args:
            path: of a safetensors file, which appears complete or not at all.

        Raises:
            ValueError: for a task without adapters, or a path that is a folder.
            OSError: if the file cannot be written, or somebody else writes it at this moment.
        """
        check_path("path", path)
        variables = self._adapter_variables()
        alpha = np.float32(lora.adapted_layers(self.backbone)[0].lora_alpha)
        lock = PathLock(path)
        with naming(Path(path)):
            mine = lock.acquire()
        if not mine:
            raise OSError(f"{path} is being written by somebody else. Name another file.")
        try:
            save_tensors(path, {**variables, "alpha": alpha})
        finally:
            lock.release()

    @changes
    def load_adapter(self, path: str | os.PathLike) -> None:
        """Loads adapters and head from a file, beside the weights that the task has.

        Args:
            path: a file of `save_adapter`.

        Raises:
            FileNotFoundError: for a file that is not there.
            ValueError: for adapters of another model: the tensor is named, with both shapes.
        """
        arrays = dict(SafetensorsFile(check_path("path", path)))
        inner = [name for name in arrays if name.endswith(_INNER)]
        alpha = arrays.pop("alpha", np.zeros(2))
        if not inner or alpha.size != 1 or any(arrays[name].ndim != 2 for name in inner):
            raise ValueError(f"{path} holds no adapters: it is no file of `save_adapter`.")
        alpha = float(alpha.item())
        fresh = not lora.is_adapted(self.backbone)
        if fresh:
            layers = [name.removeprefix(_BACKBONE).rpartition("/")[0] for name in inner]
            try:
                lora.enable_lora(self.backbone, arrays[inner[0]].shape[-1], alpha, layers=layers)
                lora.forget_compiled(self)
            except ValueError as error:
                raise ValueError(f"{path} does not fit this model: {error}") from error
        variables = self._adapter_variables()
        try:
            _check_same(path, arrays, variables)
        except ValueError:
            if fresh:
                self.merge_lora()  # nothing was learned yet: the model is as it was
            raise
        for layer in lora.adapted_layers(self.backbone):
            layer.lora_alpha = alpha
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _adapter_variables(self) -> dict[str, keras.Variable]:
        matrices = lora.adapters(self.backbone).items()
        variables = {f"{_BACKBONE}{path}": variable for path, variable in matrices}
        names = without_numbers(self.head)
        return variables | {f"head/{names[n]}": variable for n, variable in self.head.items()}


def _check_same(path, arrays: dict, variables: dict) -> None:
    """ValueError unless there is one array of its shape for each variable."""
    for name in sorted(set(arrays) ^ set(variables)):
        where = "file" if name in arrays else "task"
        raise ValueError(f"{path} is of another task: {name!r} is in the {where} only.")
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise ValueError(
                f"{path} is of another model: {name!r} has the shape {arrays[name].shape} there "
                f"and {tuple(variable.shape)} here."
            )
