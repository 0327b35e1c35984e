"""Conversion of the arguments of `fit` and `predict` to batches: labels, texts, tables."""
