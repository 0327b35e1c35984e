"""Generation: samplers, rules, constraints, beam search, and the engine that runs them.

A `Program` is a model as plain functions, `Decoding` what a sampler makes of it.

`Engine` compiles those and runs one batch, `Scheduler` many prompts.
"""

from keras_transformer.generation.beam_search import BeamSearch
from keras_transformer.generation.cache import Cache
from keras_transformer.generation.constraints import Constraints, TokenAutomaton
from keras_transformer.generation.contrastive import Contrastive
from keras_transformer.generation.engine import Engine, Settings
from keras_transformer.generation.rules import Rules
from keras_transformer.generation.samplers import Greedy, Random, Sampler
from keras_transformer.generation.scheduler import Scheduler
from keras_transformer.generation.speculative import Speculative
from keras_transformer.generation.streaming import TextStream
from keras_transformer.kerashub_names import offer

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
