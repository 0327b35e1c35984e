"""Small models of series, and series that they learn."""

import numpy as np

import keras_transformer as kt


def config(**values):
    stem = {"kind": "series", "context_length": 24, "patch_length": 6, **values}
    return kt.TransformerConfig(
        kind="encoder",
        vocabulary_size=0,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        position="learned",
        normalize_first=True,
        stem=stem,
    )


def forecaster(dtype=None, horizon=6, quantiles=None, **values):
    backbone = kt.models.Encoder(config(**values), dtype=dtype)
    return kt.Forecaster(backbone, kt.SeriesProcessor(), horizon=horizon, quantiles=quantiles)


def bolt(horizon=6, quantiles=(0.1, 0.5, 0.9), context_length=24):
    """An encoder-decoder that reads pieces, what is known of them too."""
    stem = {"context_length": context_length, "patch_length": 6, "reads_observed": True}
    stem |= {"kind": "series", "residual": True, "end_token": True}
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=1,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        intermediate_dim=32,
        position="relative",
        normalize_first=True,
        encoder={"vocabulary_size": 0, "stem": stem},
    )
    backbone = kt.models.Seq2Seq(config)
    quantiles = quantiles and list(quantiles)
    return kt.Forecaster(backbone, kt.SeriesProcessor(), horizon, quantiles, residual=True)


def waves(length=240):
    """Two channels, of other levels and speeds, float64 `(length, 2)`."""
    time = np.arange(length)
    return np.stack([np.sin(time * 0.5), 100 + 20 * np.cos(time * 0.3)], axis=1)
