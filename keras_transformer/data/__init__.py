"""Length buckets, packing, and the dataset that makes batches of them."""

from keras_transformer.data.buckets import bucket_of, choose_buckets
from keras_transformer.data.dataset import BucketedDataset
from keras_transformer.data.packing import pack_rows

__all__ = ["BucketedDataset", "bucket_of", "choose_buckets", "pack_rows"]
