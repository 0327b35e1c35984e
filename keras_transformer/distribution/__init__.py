"""Distribution over devices: meshes, replicas, and what the processes of a run do together."""

from keras_transformer.distribution.checkpoints import ShardedCheckpoints
from keras_transformer.distribution.device_setup import DeviceSetup, setup
from keras_transformer.distribution.layout import ModelParallel, device_mesh, layout_map
from keras_transformer.distribution.processes import check_processes
from keras_transformer.distribution.replicas import data_parallel, fully_sharded
from keras_transformer.distribution.shards import DatasetShard, shard_of
from keras_transformer.distribution.watching import ProcessWatch

__all__ = [
    "DatasetShard",
    "DeviceSetup",
    "ModelParallel",
    "ProcessWatch",
    "ShardedCheckpoints",
    "check_processes",
    "data_parallel",
    "device_mesh",
    "fully_sharded",
    "layout_map",
    "setup",
    "shard_of",
]


def __dir__() -> list[str]:
    return __all__
