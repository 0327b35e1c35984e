"""Generation: the cache, the samplers and the compiled engine."""

from keras_transformer.generation.beam_search import BeamSearch
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.engine import Engine
from keras_transformer.generation.samplers import Greedy, Sampler

__all__ = ["BeamSearch", "Cache", "Engine", "Greedy", "Sampler"]
