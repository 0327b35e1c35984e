"""Transformers in Keras 3 on JAX, TensorFlow and PyTorch: load a preset, fit it on strings, ask it.

To begin:

    import keras_transformer as kt              # before keras: it picks an installed backend

    kt.list_presets()                           # what can be loaded by name

    classifier = kt.TextClassifier.from_preset("minilm_l6_en", labels=["bad", "good"])
    classifier.fit(texts, labels, epochs=3)     # lists of strings, as keras.Model.fit
    classifier.classify(["what a lovely evening"])
    classifier.save_to_preset("my_classifier")  # a folder that from_preset reads

    kt.Seq2SeqLM.from_preset("transformer_tiny_en_de").generate("a man rides a bike .")
    kt.CausalLM.from_preset("gpt_tiny_shakespeare").generate("ROMEO:", sampler="top_p")

What there is:

    TextClassifier, TokenClassifier, QuestionAnswerer, MaskedLM, TextEmbedder, CausalLM, Seq2SeqLM
                        tasks: `from_preset`, Keras's verbs on strings, and a verb of their own
    SequenceClassifier, SequenceLabeler
                        a class of rows of symbols such as DNA or notes, or of each symbol
    ImageClassifier, AudioClassifier
                        likewise, on images and on sound
    ImageEmbedder       vectors of images, and of texts in the same space; any labels, untrained
    ImageToText, SpeechToText, CTCSpeechToText
                        captions and answers to questions about an image; what was said
    Forecaster          what follows on series of numbers
    SampledForecaster   likewise, drawn value by value (Chronos)
    Tokenizer           text to ids and back
    ImageProcessor, AudioProcessor
                        images and recordings to arrays; processors has what reads their files
    SeriesProcessor     data frames of series to arrays
    TransformerConfig   the values that make a model; models.Encoder(config) builds it
    layers, models      the parts, for a Keras model of your own
    data, training      files larger than memory; schedules, losses, metrics, resuming
    generation          samplers, rules, constraints
    explanations        what a model saw of an input: attention by head, and what each token adds
    optimize            a task in the dtype that is fastest here, as it measures
    planning            what a model takes before it is built
    distribution        many devices
    tune_process        whether steps on a CPU may keep the memory of the process

A preset is a bundled name, a folder (of ours, Hugging Face's or KerasHub's), or "hf://org/name".
`help(kt.TextClassifier)`, or `kt.TextClassifier?` in a notebook, says more and has an example.
"""

import logging as _logging

from keras_transformer.backend import choose_backend, let_threads_sleep
from keras_transformer.checking import Printable as _Printable
from keras_transformer.cli import parse_before_keras, tell_errors_of_import

__version__ = "0.1.0"

_logging.getLogger("keras_transformer").addFilter(_Printable())
tell_errors_of_import()
choose_backend()  # Before the first import of Keras.
let_threads_sleep()  # Before PyTorch is imported.
parse_before_keras()

from keras_transformer import (  # noqa: E402
    data,
    distribution,
    explanations,
    generation,
    layers,
    models,
    planning,
    processors,
    training,
)
from keras_transformer.checkpoints import (  # noqa: E402
    export_to_huggingface,
    from_keras_hub,
    list_presets,
    to_keras_hub,
)
from keras_transformer.checkpoints.heads import register_tasks  # noqa: E402
from keras_transformer.config import TransformerConfig  # noqa: E402
from keras_transformer.exporting import export  # noqa: E402
from keras_transformer.kerashub_names import offer  # noqa: E402
from keras_transformer.models import Backbone  # noqa: E402
from keras_transformer.optimizing import optimize  # noqa: E402
from keras_transformer.process import tune_process  # noqa: E402
from keras_transformer.processors import AudioProcessor, ImageProcessor, SeriesProcessor  # noqa: E402
from keras_transformer.tasks import (  # noqa: E402
    AudioClassifier,
    CausalLM,
    CTCSpeechToText,
    Forecaster,
    ImageClassifier,
    ImageEmbedder,
    ImageToText,
    MaskedLM,
    QuestionAnswerer,
    SampledForecaster,
    Seq2SeqLM,
    SequenceClassifier,
    SequenceLabeler,
    SpeechToText,
    Task,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)
from keras_transformer.tokenizers import Tokenizer  # noqa: E402

# Presets name them, and so does the command.
register_tasks(
    AudioClassifier,
    CausalLM,
    CTCSpeechToText,
    Forecaster,
    ImageClassifier,
    ImageEmbedder,
    ImageToText,
    MaskedLM,
    QuestionAnswerer,
    SampledForecaster,
    Seq2SeqLM,
    SequenceClassifier,
    SequenceLabeler,
    SpeechToText,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
)

__all__ = [
    "AudioClassifier",
    "AudioProcessor",
    "Backbone",
    "CTCSpeechToText",
    "CausalLM",
    "Forecaster",
    "ImageClassifier",
    "ImageEmbedder",
    "ImageProcessor",
    "ImageToText",
    "MaskedLM",
    "QuestionAnswerer",
    "SampledForecaster",
    "Seq2SeqLM",
    "SequenceClassifier",
    "SequenceLabeler",
    "SeriesProcessor",
    "SpeechToText",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TokenClassifier",
    "Tokenizer",
    "TransformerConfig",
    "data",
    "distribution",
    "explanations",
    "export",
    "export_to_huggingface",
    "from_keras_hub",
    "generation",
    "layers",
    "list_presets",
    "models",
    "optimize",
    "planning",
    "processors",
    "to_keras_hub",
    "training",
    "tune_process",
]

offer(__name__, [*__all__, "__version__"])
