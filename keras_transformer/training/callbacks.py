"""Callbacks: a check of the loss for NaN, and BLEU of generated texts."""

import os
from pathlib import Path

import keras
import numpy as np

from keras_transformer.kernels.accumulation import batches_of_update
from keras_transformer.support.checking import check_int, check_path, describe
from keras_transformer.training.text_metrics import BLEU, check_translations


class StopAtNaN(keras.callbacks.Callback):
    """Ends a run whose loss is NaN or infinite; the error names the step and the last checkpoint.

    The loss in the logs is a mean over the epoch so far, so once it is NaN or infinite it stays so.
    Reading the loss waits for the step to end, so it is only checked every few steps.

    Args:
        every: int, steps between two checks; with `gradient_accumulation_steps` a step is an
            update of the weights, not a batch. Defaults to 50.
        checkpoints: path of the folder with the run's checkpoints; the error names the newest one.
            Defaults to None.

    Raises:
        FloatingPointError: from `fit`, once the loss is NaN or infinite.

    Example:
    ```python
    from keras_transformer.training import StopAtNaN
    import keras, numpy as np

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    try:
        model.fit(np.full((8, 2), np.nan), np.ones(8), verbose=0, callbacks=[StopAtNaN()])
    except FloatingPointError as error:
        print(error)
    ```
    """

    def __init__(self, every: int = 50, checkpoints: str | os.PathLike | None = None):
        super().__init__()
        self.every = check_int("every", every, at_least=1)
        self.checkpoints = None if checkpoints is None else check_path("checkpoints", checkpoints)

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._good, self._steps = epoch, 0, 0

    def on_train_batch_end(self, batch, logs=None):
        before, self._steps = self._steps, (batch + 1) // batches_of_update(self.model.optimizer)
        if before // self.every < self._steps // self.every:
            self._look(self._steps, logs)

    def on_epoch_end(self, epoch, logs=None):
        self._look(None, logs)

    def _look(self, step: int | None, logs) -> None:
        loss = float((logs or {}).get("loss", 0.0))
        if np.isfinite(loss):
            self._good = step or self._good
            return
        until = "the end" if step is None else f"step {step}"
        kept = None
        if self.checkpoints is not None and Path(self.checkpoints).is_dir():
            files = Path(self.checkpoints).iterdir()
            kept = max(files, key=lambda path: path.stat().st_mtime, default=None)
        raise FloatingPointError(
            f"The loss became {loss} in epoch {self._epoch + 1}, after step {self._good} and by "
            f"{until}. A lower learning rate, clipping (`clipnorm`) or float32 may help. "
            + (f"The last checkpoint is {kept}." if kept else "No checkpoint was kept.")
        )


class BLEUCallback(keras.callbacks.Callback):
    """Logs the BLEU score of the model's generated texts as `val_bleu` after an epoch.

    Place it before callbacks that watch `val_bleu`, such as `ModelCheckpoint`.

    Args:
        sources: list of str, given to `model.generate`.
        references: list of str, or of lists of str if sources have several.
        generate_kwargs: dict of further arguments of `model.generate`.
        tokenize, lowercase: see `BLEU`.
        samples: int, number of sources to print with their reference and the model's output.
        every: int, number of epochs between two measurements; epochs in between log the last value.

    Raises:
        ValueError: if references and sources differ in number, `every` is below 1, or the model
            has no `generate`.
        ImportError: if sacrebleu is not installed.

    Example:
    ```python
    import keras_transformer as kt

    translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
    pair = (["a man rides a bike ."], ["ein mann fährt fahrrad ."])
    bleu = kt.training.BLEUCallback(*pair, tokenize="none")
    history = translator.fit(*pair, verbose=0, callbacks=[bleu]).history
    assert history["val_bleu"][0] > 0
    ```
    """

    def __init__(
        self,
        sources: list[str],
        references: list,
        generate_kwargs: dict | None = None,
        tokenize: str = "13a",
        lowercase: bool = False,
        samples: int = 0,
        every: int = 1,
    ):
        super().__init__()
        self.every = check_int("every", every, at_least=1)
        self.samples = check_int("samples", samples, at_least=0)
        check_translations(("references", "sources"), references, sources)
        if not len(sources) or len(sources) != len(references):
            raise ValueError(
                f"Got {len(sources)} sources but {len(references)} references; each source needs "
                "one, and there must be at least one."
            )
        self.sources = list(sources)
        self.references = list(references)
        if not isinstance(generate_kwargs, dict | None):
            raise ValueError(
                f"`generate_kwargs` must be a dict, received {describe(generate_kwargs)}."
            )
        self.generate_kwargs = dict(generate_kwargs or {})
        self._last = float("nan")  # CSVLogger needs the same logs in each epoch
        self.bleu = BLEU(tokenize=tokenize, lowercase=lowercase)

    def on_train_begin(self, logs=None):
        if not hasattr(self.model, "generate"):
            raise ValueError(
                "BLEUCallback needs a model with a `generate` method, such as a Seq2SeqLM; "
                f"{type(self.model).__name__} has none."
            )

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every == 0:
            hypotheses = self.model.generate(self.sources, **self.generate_kwargs)
            self.bleu.reset_state()
            self.bleu.update_state(self.references, hypotheses)
            self._last = self.bleu.result()
            if self.samples:
                self._print(epoch, hypotheses)
        if logs is not None:
            logs["val_bleu"] = self._last

    def _print(self, epoch, hypotheses):
        lines = ["", f"Epoch {epoch + 1}: BLEU {self._last:.2f} ({self.bleu.signature})"]
        texts = zip(self.sources, self.references, hypotheses, strict=True)
        for source, reference, hypothesis in list(texts)[: self.samples]:
            reference = reference if isinstance(reference, str) else " | ".join(reference)
            lines += [f"  source     {source}", f"  reference  {reference}"]
            lines += [f"  model      {hypothesis}", ""]
        print("\n".join(lines), flush=True)
