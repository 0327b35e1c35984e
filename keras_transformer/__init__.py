"""One set of transformer layers, every kind of model, on JAX, TensorFlow and PyTorch."""

from keras_transformer.backend import choose_backend
from keras_transformer.cli import tell_errors_of_import

tell_errors_of_import()
choose_backend()  # Before the first import of Keras.

from keras_transformer import (  # noqa: E402
    data,
    distribution,
    generation,
    layers,
    models,
    planning,
    training,
)
from keras_transformer.checkpoints import (  # noqa: E402
    export_to_huggingface,
    from_keras_hub,
    list_presets,
    to_keras_hub,
)
from keras_transformer.config import TransformerConfig  # noqa: E402
from keras_transformer.kerashub_names import missing  # noqa: E402
from keras_transformer.memory import keep_freed_memory  # noqa: E402
from keras_transformer.models import Backbone  # noqa: E402
from keras_transformer.tasks import (  # noqa: E402
    CausalLM,
    MaskedLM,
    QuestionAnswerer,
    Seq2SeqLM,
    Task,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)
from keras_transformer.tokenizers import Tokenizer  # noqa: E402

keep_freed_memory()

__version__ = "0.1.0"


def __getattr__(name: str):
    raise missing(__name__, name)


__all__ = [
    "Backbone",
    "CausalLM",
    "MaskedLM",
    "QuestionAnswerer",
    "Seq2SeqLM",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TokenClassifier",
    "Tokenizer",
    "TransformerConfig",
    "data",
    "distribution",
    "export_to_huggingface",
    "from_keras_hub",
    "generation",
    "layers",
    "list_presets",
    "models",
    "planning",
    "to_keras_hub",
    "training",
]
