"""Training a part of a task: some of its blocks, or matrices of low rank beside its kernels."""

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
from keras_transformer.structure import block_of, is_before_blocks

_PAIR = ("lora_kernel_a", "lora_kernel_b")


class Adaptable:
    """What a task has to train a part of its weights: freezing, and low-rank adaptation (LoRA).

    Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", section 4.1.
    """

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
        weights = self.backbone.weights
        if self._is_adapted:
            raise ValueError("The task has adapters, and its weights are frozen already.")
        blocks = {id(v): found[1] for v in weights if (found := block_of(v.path))}
        if not blocks:
            raise ValueError(
                "`freeze` found no blocks of your own, of paths like 'decoder/layer_0/...': set "
                "`trainable` of yours."
            )
        layers = check_int("layers", layers, at_least=0, at_most=max(blocks.values()) + 1)
        embeddings = check_bool("embeddings", embeddings)
        for variable in weights:
            before = embeddings and is_before_blocks(variable.path)
            variable.trainable = not before and blocks.get(id(variable), layers) >= layers
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
        if self._is_adapted:
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
        backbone = self.backbone
        backbone.trainable_before_lora = frozenset(v.path for v in backbone.trainable_variables)
        for variable in backbone.variables:
            variable.trainable = False
        for layer in layers:
            if layer.name in targets:
                layer.enable_lora(rank, lora_alpha=alpha)
        self._forget_compiled()

    @changes
    def merge_lora(self) -> None:
        """Adds what was learned to the kernels: a model as any other, that can be saved so.

        What `enable_lora` froze is trained again. ValueError for a task without adapters.
        """
        for layer in self._adapted_layers():
            merged = ops.convert_to_numpy(layer.kernel)  # Keras's property gives the sum.
            for name in _PAIR:
                layer._untrack_variable(getattr(layer, name))
            layer.lora_enabled = False
            layer._kernel.assign(merged)
        for variable in self.backbone.variables:
            variable.trainable = variable.path in self.backbone.trainable_before_lora
        self.backbone.trainable_before_lora = None
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
        """Adapters and head of a file of `save_adapter`, on the weights that the task has.

        Raises:
            FileNotFoundError: for a file that is not there.
            ValueError: for adapters of another model: the tensor is named, with both shapes.
        """
        arrays = dict(SafetensorsFile(check_path("path", path)))
        inner = [name for name in arrays if name.endswith(f"/{_PAIR[0]}")]
        alpha = arrays.pop("alpha", np.zeros(2))
        if not inner or alpha.size != 1 or any(arrays[name].ndim != 2 for name in inner):
            raise ValueError(f"{path} holds no adapters: it is no file of `save_adapter`.")
        alpha = float(alpha.item())
        fresh = not self._is_adapted
        if fresh:
            targets = sorted({name.split("/")[-2] for name in inner})
            try:
                self.enable_lora(arrays[inner[0]].shape[-1], alpha, targets)
            except ValueError as error:
                raise ValueError(f"{path} does not fit this model: {error}") from error
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

    @property
    def _is_adapted(self) -> bool:
        """Whether the backbone has adapters."""
        return getattr(self.backbone, "trainable_before_lora", None) is not None

    def _dense_layers(self) -> list[keras.layers.Dense]:
        layers = self.backbone._flatten_layers(include_self=False)
        return [layer for layer in layers if isinstance(layer, keras.layers.Dense)]

    def _adapted_layers(self) -> list[keras.layers.Dense]:
        """The layers that have adapters; ValueError for a task without."""
        if not self._is_adapted:
            raise ValueError("The task has no adapters: call `enable_lora` first.")
        return [layer for layer in self._dense_layers() if layer.lora_enabled]

    def _adapters(self) -> list[keras.Variable]:
        """The matrices of the adapters, two a layer."""
        return [getattr(layer, name) for layer in self._adapted_layers() for name in _PAIR]

    def _adapter_variables(self) -> dict[str, keras.Variable]:
        """Adapters and head, by their names in a file."""
        inside = f"{self.backbone.path}/"
        variables = {f"backbone/{v.path.removeprefix(inside)}": v for v in self._adapters()}
        return variables | {f"head/{name}": variable for name, variable in self.head.items()}

    def _lora_values(self) -> dict | None:
        """The arguments of `enable_lora` that made the adapters, None without."""
        if not self._is_adapted:
            return None
        layers = self._adapted_layers()
        names = sorted({layer.name for layer in layers})
        return {"rank": layers[0].lora_rank, "alpha": layers[0].lora_alpha, "targets": names}

    def _load_apart(self, arrays: list[np.ndarray]) -> None:
        """Takes the values of `_adapters` out of the kernels that Keras loads next."""
        pairs = zip(arrays[::2], arrays[1::2], strict=True)
        for layer, (a, b) in zip(self._adapted_layers(), pairs, strict=True):

            def load(store, layer=layer, a=a, b=b):
                del layer.load_own_variables  # the class's from here on
                layer.load_own_variables(store)
                merged = ops.convert_to_numpy(ops.cast(layer._kernel, "float32"))
                learned = np.matmul(a, b, dtype="float32") * (layer.lora_alpha / layer.lora_rank)
                layer._kernel.assign(merged - learned)
                layer.lora_kernel_a.assign(a)
                layer.lora_kernel_b.assign(b)

            layer.load_own_variables = load

    def _forget_compiled(self) -> None:
        """Drops steps and optimizer states, which are of other variables than there are now."""
        for model in (self.backbone, self):
            model.train_function = model.test_function = model.predict_function = None
            if model.compiled and model.optimizer is not None:
                config = keras.optimizers.serialize(model.optimizer)
                model.optimizer = keras.optimizers.deserialize(config)


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
