"""Data: texts of files and data sets tokenized on disk, length buckets, packing, batches."""

from keras_transformer.data.buckets import bucket_of, choose_buckets
from keras_transformer.data.dataset import BucketedDataset
from keras_transformer.data.packing import pack_rows
from keras_transformer.data.records import Records, read
from keras_transformer.data.token_rows import TokenRows

__all__ = [
    "BucketedDataset",
    "Records",
    "TokenRows",
    "bucket_of",
    "choose_buckets",
    "pack_rows",
    "read",
]


def __dir__() -> list[str]:
    return __all__
