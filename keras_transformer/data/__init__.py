"""Training data: texts of files and data sets as rows of token ids, in batches of like lengths."""

from keras_transformer.data.buckets import bucket_of, choose_buckets
from keras_transformer.data.conversations import Conversation, as_conversations
from keras_transformer.data.dataset import BucketedDataset
from keras_transformer.data.packing import pack_rows
from keras_transformer.data.pictured import Pictured, pictured
from keras_transformer.data.records import Records, read
from keras_transformer.data.token_rows import TokenRows

__all__ = [
    "BucketedDataset",
    "Conversation",
    "Pictured",
    "Records",
    "TokenRows",
    "as_conversations",
    "bucket_of",
    "choose_buckets",
    "pack_rows",
    "pictured",
    "read",
]


def __dir__() -> list[str]:
    return __all__
