"""PyTorch: functions of layers as flat lists of operations. Imported on PyTorch alone."""
