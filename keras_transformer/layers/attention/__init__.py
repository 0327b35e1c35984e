"""Attention: the layer, its masks and patterns, scores and their biases, cache slots."""
