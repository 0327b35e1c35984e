"""What a model costs before anything is allocated: computed from its config alone."""

from keras_transformer.flops import flops_per_sequence, flops_per_token

__all__ = ["flops_per_sequence", "flops_per_token"]
