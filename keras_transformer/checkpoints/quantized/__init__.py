"""Quantized matrices of published checkpoints: GPTQ, AWQ, bitsandbytes, compressed-tensors, FP8.

A scheme is found in the config, `schemes.py`. It gathers the tensors of each matrix to one entry of
the checkpoint, which is checked by its header and its scales, and unpacked when it is read.
"""
