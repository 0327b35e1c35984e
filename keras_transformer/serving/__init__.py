"""Serving of presets: a page with JSON endpoints to try them, and a server for OpenAI's API."""

from typing import TYPE_CHECKING

from keras_transformer.serving.api import make_api
from keras_transformer.serving.app import make_app
from keras_transformer.serving.limits import API_LIMITS, Limits
from keras_transformer.serving.run import serve
from keras_transformer.serving.verbs import VERBS, Field, ServedTask, Verb
from keras_transformer.support.former_names import renamed

__all__ = [
    "API_LIMITS", "VERBS", "Field", "Limits", "ServedTask", "Verb", "make_api", "make_app", "serve",
]  # fmt: skip

if not TYPE_CHECKING:  # so that a type checker reports wrong names

    def __getattr__(name: str):
        return renamed(__name__, name, {"Served": "ServedTask"}, __all__)


def __dir__() -> list[str]:
    return __all__
