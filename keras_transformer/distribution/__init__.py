"""Distribution over devices: mesh and layout for JAX, replicas for PyTorch and TensorFlow."""

from keras_transformer.distribution.layout import ModelParallel, device_mesh, layout_map
from keras_transformer.distribution.replicas import data_parallel
from keras_transformer.distribution.shards import DatasetShard, shard_of

__all__ = [
    "DatasetShard",
    "ModelParallel",
    "data_parallel",
    "device_mesh",
    "layout_map",
    "shard_of",
]


def __dir__() -> list[str]:
    return __all__
