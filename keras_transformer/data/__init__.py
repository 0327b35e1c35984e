"""Training data: texts of files and data sets as rows of token ids, in batches of like lengths."""

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
