"""Traces of layer functions as flat lists of PyTorch operations. Imported only on PyTorch."""
