"""PatchTST on ETTh1, float32: an epoch of training, 336 hours to 96, batches of 128 windows.

python benchmarks/series.py --rounds 3

The sizes are those of the paper for this data: 3 layers of width 16 with 4 heads, pieces of 16 each
8 hours, batch normalization after each sub-layer, dropout of 0.3. Both train the same model on all
8,209 windows of the first 12 months, in a new order each epoch, with Adam. The first epoch
includes compiling.
"""

import sys
import time

import numpy as np
from harness import BACKENDS, data_folder, main, use_threads_of_torch

CONTEXT, HORIZON, WINDOWS, RATE = 336, 96, 128, 1e-4
ROWS = 12 * 30 * 24  # 12 months of 30 days
SIZES = {
    "num_input_channels": 7, "context_length": CONTEXT, "prediction_length": HORIZON,
    "patch_length": 16, "patch_stride": 8, "d_model": 16, "num_hidden_layers": 3,
    "num_attention_heads": 4, "ffn_dim": 128, "pre_norm": False, "pooling_type": None,
    "positional_dropout": 0.3, "path_dropout": 0.3, "head_dropout": 0.3,
}  # fmt: skip


def data() -> np.ndarray:
    """Return the training hours, `(time, channels)`, of mean 0 and deviation 1."""
    path = data_folder() / "ett" / "ETTh1.csv"
    if not path.is_file():
        sys.exit(f"{path} is missing: give the folder that holds ett/ as --data_dir.")
    values = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(1, 8), max_rows=ROWS)
    return ((values - values.mean(axis=0)) / values.std(axis=0)).astype("float32")


def _measured(epoch, windows: int) -> list:
    found = []
    for measure in ("first epoch", "second epoch"):
        start = time.perf_counter()
        loss = epoch()
        found.append((measure, windows / (time.perf_counter() - start)))
        assert 0.1 < loss < 2, loss
    return found


def ours() -> list:
    import keras

    import keras_transformer as kt
    from keras_transformer.checkpoints.families import FAMILIES

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    backbone = kt.models.Encoder(FAMILIES["patchtst"].config(SIZES))
    model = kt.Forecaster(backbone, kt.SeriesProcessor(), HORIZON, dropout=SIZES["head_dropout"])
    model.compile(keras.optimizers.Adam(RATE), model.loss)
    series = data()
    rows = WINDOWS * series.shape[1]

    def epoch():
        return model.fit(series, batch_size=rows, verbose=0).history["loss"][-1]

    return _measured(epoch, len(series) - CONTEXT - HORIZON + 1)


def transformers() -> list:
    import torch
    import transformers as library

    use_threads_of_torch()
    model = library.PatchTSTForPrediction(library.PatchTSTConfig(**SIZES)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    # All windows as one view, of which a batch takes its own: no loader could be quicker.
    windows = torch.tensor(data()).unfold(0, CONTEXT + HORIZON, 1).mT

    def epoch():
        losses = []
        for places in torch.randperm(len(windows)).split(WINDOWS):
            batch = windows[places]
            loss = model(past_values=batch[:, :CONTEXT], future_values=batch[:, CONTEXT:]).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return float(np.mean(losses))

    return _measured(epoch, len(windows))


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    "transformers": transformers,
}

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CONTENDERS, "windows/s", list(CONTENDERS))
