"""Replicas on TensorFlow, which are in one process."""

import tensorflow as tf

from keras_transformer.distribution.engine import Engine


class TensorflowEngine(Engine):
    """The replicas of a `tf.distribute` strategy."""

    name, packages = "tensorflow", ("tensorflow",)
    # Replicas are threads that share the layers: in an exchange another one goes on, which would
    # replace the losses that a layer has added.
    exchanges_within_layers = False
    spreads_batches_by = "tf.distribute.MirroredStrategy"

    def over_replicas(self, weight, processes: int):
        context = tf.distribute.get_replica_context()  # None outside of a step
        if context is None or context.num_replicas_in_sync == 1:
            return 1, weight
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(weight))
        return context.num_replicas_in_sync, total
