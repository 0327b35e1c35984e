"""Generation: samplers, rules, constraints, beam search, and the engine that runs them.

A `Program` is a model as pure functions; a `Decoding` combines it with a sampler. `Engine` compiles
their functions and runs one batch; `Scheduler` runs many prompts.
"""

from keras_transformer.generation.cache import Cache
from keras_transformer.generation.constraints.constraints import Constraints, TokenAutomaton
from keras_transformer.generation.engine import Engine, Settings
from keras_transformer.generation.rules.rules import Rules
from keras_transformer.generation.samplers.beam_search import BeamSearch
from keras_transformer.generation.samplers.contrastive import Contrastive
from keras_transformer.generation.samplers.samplers import Greedy, Random, Sampler
from keras_transformer.generation.samplers.speculative import Speculative
from keras_transformer.generation.scheduler import Scheduler
from keras_transformer.generation.streaming import TextStream
from keras_transformer.support.foreign_names import offer

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

offer(__name__, __all__)
