"""Training a part: the upper layers, or a few matrices beside frozen weights (LoRA)."""

import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.checking import check_bool, check_int, check_number, check_path, shorten
from keras_transformer.checkpoints.safetensors_io import save_tensors
from keras_transformer.files import SafetensorsFile, naming
from keras_transformer.models.turns import changes, reads
from keras_transformer.scratch import PathLock
from keras_transformer.training.optimizers import is_before_blocks

_INNER = "/lora_kernel_a"


class Adaptable:
    """What a task has to train a part of its weights: freezing, and low-rank adaptation (LoRA).

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """

    # The paths of what adapters stand for in training; None without adapters.
    _frozen: frozenset[str] | None = None

    @changes
    def freeze(self, layers: int, embeddings: bool = True) -> None:
        """Trains the upper part of the backbone only, and the head. Optimizer states start anew.

        Called again with fewer layers, it thaws those between: gradual unfreezing.

        Args:
            layers: int, the first so many blocks keep their weights; of an encoder-decoder those
                of each.
            embeddings: bool, whether what stands before the blocks keeps its weights too.

        Raises:
            ValueError: for more layers than there are, or for a task with adapters.

        Source: Howard and Ruder 2018, "ULMFiT", section 3.3.

        Example:
        ```python
        import keras_transformer as kt

        classifier = kt.TextClassifier.from_preset("minilm_l6_en", num_classes=2)
        classifier.freeze(layers=4)
        paths = [variable.path for variable in classifier.trainable_variables]
        assert not any("layer_3" in path or "embedding" in path for path in paths)
        assert any("layer_4" in path for path in paths)
        ```
        """
        if self._frozen is not None:
            raise ValueError("The task has adapters, and its weights are frozen already.")
        if not self.backbone.stacks:
            raise ValueError("`freeze` knows no blocks of your own: set `trainable` of yours.")
        most = max(len(stack.blocks) for stack in self.backbone.stacks)
        layers = check_int("layers", layers, at_least=0, at_most=most)
        embeddings = check_bool("embeddings", embeddings)
        frozen = [block for stack in self.backbone.stacks for block in stack.blocks[:layers]]
        kept = {id(variable) for block in frozen for variable in block.weights}
        for variable in self.backbone.weights:
            before = embeddings and is_before_blocks(variable.path)
            variable.trainable = not before and id(variable) not in kept
        self._forget_compiled()

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
        rank = check_int("rank", rank, at_least=1, at_most=2**15)
        alpha = check_number("alpha", alpha, above=0, none=True)
        if self._frozen is not None:
            raise ValueError("The task is adapted already: call `merge_lora` first.")
        layers = self._dense_layers()
        names = {layer.name for layer in layers}
        several = isinstance(targets, (list, tuple, set, frozenset)) and len(targets) > 0
        if not several or not all(isinstance(t, str) and t in names for t in targets):
            raise ValueError(
                f"`targets` must be a list of dense layers of the backbone, "
                f"{', '.join(sorted(names))}; received {shorten(targets)}."
            )
        if any(layer.quantization_mode is not None for layer in layers):
            raise ValueError("The model is quantized, and would not keep what it learns.")
        frozen = frozenset(variable.path for variable in self.backbone.trainable_variables)
        for variable in self.backbone.variables:
            variable.trainable = False
        for layer in layers:
            if layer.name in targets:
                layer.enable_lora(rank, lora_alpha=alpha)
        self._frozen = frozen
        self._forget_compiled()

    @changes
    def merge_lora(self) -> None:
        """Adds what was learned to the kernels: a model as any other, that can be saved so.

        What `enable_lora` froze is trained again afterwards.

        Raises:
            ValueError: for a task without adapters.
        """
        for layer in self._adapted_layers():
            # Keras's property gives the sum.
            merged = ops.convert_to_numpy(layer.kernel)
            for variable in (layer.lora_kernel_a, layer.lora_kernel_b):
                layer._untrack_variable(variable)
            layer.lora_enabled = False
            layer._kernel.assign(merged)
        for variable in self.backbone.variables:
            variable.trainable = variable.path in self._frozen
        self._frozen = None
        self._forget_compiled()

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
        alpha = np.float32(self._adapted_layers()[0].lora_alpha)
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
        """Adapters and head of a file, on the weights that the task has.

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
        fresh = self._frozen is None
        if fresh:
            targets = sorted({name.split("/")[-2] for name in inner})
            self._enable_saved(path, arrays[inner[0]].shape[-1], alpha, targets)
        variables = self._adapter_variables()
        try:
            _check_same(path, arrays, variables)
        except ValueError:
            if fresh:
                self.merge_lora()  # nothing was learned yet: the model is as it was
            raise
        for layer in self._adapted_layers():
            layer.lora_alpha = alpha
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _enable_saved(self, path, rank: int, alpha: float, targets: list[str]) -> None:
        try:
            self.enable_lora(rank, alpha, targets)
        except ValueError as error:
            raise ValueError(f"{path} does not fit this model: {error}") from error

    def _dense_layers(self) -> list[keras.layers.Dense]:
        layers = self.backbone._flatten_layers(include_self=False)
        return [layer for layer in layers if isinstance(layer, keras.layers.Dense)]

    def _adapted_layers(self) -> list[keras.layers.Dense]:
        if self._frozen is None:
            raise ValueError("The task has no adapters: call `enable_lora` first.")
        return [layer for layer in self._dense_layers() if layer.lora_enabled]

    def _adapter_variables(self) -> dict[str, keras.Variable]:
        prefix = self.backbone.path + "/"
        variables = {
            "backbone/" + variable.path.removeprefix(prefix): variable
            for layer in self._adapted_layers()
            for variable in (layer.lora_kernel_a, layer.lora_kernel_b)
        }
        return variables | {"head/" + name: variable for name, variable in self.head.items()}

    def _forget_compiled(self) -> None:
        """The compiled steps and optimizer states are of other variables than there are now."""
        self.train_function = self.test_function = self.predict_function = None
        if self.compiled and self.optimizer is not None:
            config = keras.optimizers.serialize(self.optimizer)
            self.optimizer = keras.optimizers.deserialize(config)


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
