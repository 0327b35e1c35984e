"""Length buckets and the dataset that pads batches to them."""

from keras_transformer.data.buckets import bucket_of, choose_buckets
from keras_transformer.data.dataset import BucketedDataset

__all__ = ["BucketedDataset", "bucket_of", "choose_buckets"]
