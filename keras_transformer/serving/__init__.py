"""A page and JSON endpoints to try presets, on this machine."""

from keras_transformer.serving.app import make_app
from keras_transformer.serving.limits import Limits
from keras_transformer.serving.run import serve
from keras_transformer.serving.verbs import VERBS, Field, Served, Verb

__all__ = ["VERBS", "Field", "Limits", "Served", "Verb", "make_app", "serve"]


def __dir__() -> list[str]:
    return __all__
