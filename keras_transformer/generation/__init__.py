"""Generation: samplers, rules and constraints, the cache and the compiled engine."""

from keras_transformer.generation.beam_search import BeamSearch
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.constraints import Constraints, TokenAutomaton
from keras_transformer.generation.contrastive import Contrastive
from keras_transformer.generation.engine import Engine, Settings
from keras_transformer.generation.random_sampling import Random
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Greedy, Sampler
from keras_transformer.generation.scheduler import Scheduler
from keras_transformer.generation.speculative import Speculative
from keras_transformer.generation.streaming import TextStream

__all__ = [
    "BeamSearch",
    "Cache",
    "Constraints",
    "Contrastive",
    "Engine",
    "Greedy",
    "Random",
    "Rules",
    "Sampler",
    "Scheduler",
    "Settings",
    "Speculative",
    "TextStream",
    "TokenAutomaton",
]


def __dir__() -> list[str]:
    return __all__
