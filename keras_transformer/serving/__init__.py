"""A page and JSON endpoints to try presets on this machine, and a server of OpenAI's API."""

from keras_transformer.serving.api import make_api
from keras_transformer.serving.app import make_app
from keras_transformer.serving.limits import API_LIMITS, Limits
from keras_transformer.serving.run import serve
from keras_transformer.serving.verbs import VERBS, Field, Served, Verb

__all__ = [
    "API_LIMITS", "VERBS", "Field", "Limits", "Served", "Verb", "make_api", "make_app", "serve",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
