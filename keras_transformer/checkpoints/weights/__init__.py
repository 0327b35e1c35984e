"""Weights on disk: safetensors files, tables of tensor names, assignment to variables."""
