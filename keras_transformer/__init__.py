"""Transformer models in Keras 3, on JAX, TensorFlow and PyTorch: load, fit on strings, predict.

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
                        tasks: `from_preset`, Keras's methods on strings, and one of their own
    SequenceClassifier, SequenceLabeler
                        a class for each sequence of symbols, such as DNA, or for each symbol
    ImageClassifier, AudioClassifier, VideoClassifier
                        a class for each image, recording or video
    ImageSegmenter, DepthEstimator
                        a class or a distance for each pixel of an image
    ObjectDetector      boxes with classes in images
    PromptedSegmenter   masks of the objects at points and in boxes of an image
    ImageEmbedder, AudioEmbedder, VideoEmbedder
                        vectors of images or recordings and of texts in one space; zero-shot
                        classification
    PageEmbedder        vectors for each part of a page and each word of a query, for search
    ImageToText, SpeechToText, CTCSpeechToText
                        captions and answers about images; transcripts of speech
    Forecaster          forecasts of numeric time series
    SampledForecaster   forecasts sampled value by value (Chronos)
    Tokenizer           text to ids and back
    ImageProcessor, AudioProcessor, VideoProcessor
                        images, recordings and videos to arrays; `processors` reads their files
    SeriesProcessor     data frames of series to arrays
    TransformerConfig   the options of a model; models.Encoder(config) builds it
    layers, models      the parts, to build a Keras model of your own
    data, training      files larger than memory; schedules, losses, metrics, resuming
    generation          samplers, rules, constraints
    evaluate            scores on benchmarks, by lm-eval and MTEB
    evaluating          reports on classes and entities, ROUGE and WER of what a model writes
    explanations        attention by head, and how much each token contributes
    optimize            measure dtypes and return the task in the fastest
    planning            memory and compute of a model before it is built
    distribution        training on many devices
    tune_process        let a process keep freed memory, for faster steps on a CPU
    use_exact_float32   matrix products in full float32 precision on a GPU

A preset is a bundled name, a folder (ours, Hugging Face's or KerasHub's), or "hf://org/name".
`help(kt.TextClassifier)`, or `kt.TextClassifier?` in a notebook, says more and has an example.
"""

import logging as _logging
from typing import TYPE_CHECKING as _TYPE_CHECKING

from keras_transformer.cli import parse_before_keras, tell_errors_of_import
from keras_transformer.support.backend import choose_backend, let_threads_sleep
from keras_transformer.support.checking import Printable as _Printable

__version__ = "0.2.0"

_logging.getLogger("keras_transformer").addFilter(_Printable())
tell_errors_of_import()
choose_backend()  # before the first import of Keras
let_threads_sleep()  # before PyTorch is imported
parse_before_keras()

from keras_transformer import (  # noqa: E402
    data,
    distribution,
    evaluating,
    explanations,
    generation,
    layers,
    models,
    planning,
    processors,
    training,
)
from keras_transformer.checkpoints import LATER as _LATER  # noqa: E402
from keras_transformer.checkpoints import list_presets  # noqa: E402
from keras_transformer.checkpoints.heads import register_tasks  # noqa: E402
from keras_transformer.config import TransformerConfig  # noqa: E402
from keras_transformer.evaluating import evaluate  # noqa: E402
from keras_transformer.exporting import export  # noqa: E402
from keras_transformer.kernels.precision import use_exact_float32  # noqa: E402
from keras_transformer.kernels.process import tune_process  # noqa: E402
from keras_transformer.models import Backbone  # noqa: E402
from keras_transformer.optimizing import optimize  # noqa: E402
from keras_transformer.processors import (  # noqa: E402
    AudioProcessor,
    ImageProcessor,
    SeriesProcessor,
    VideoProcessor,
)
from keras_transformer.support.foreign_names import offer  # noqa: E402
from keras_transformer.tasks import (  # noqa: E402
    AudioClassifier,
    AudioEmbedder,
    CausalLM,
    CTCSpeechToText,
    DepthEstimator,
    Forecaster,
    ImageClassifier,
    ImageEmbedder,
    ImageSegmenter,
    ImageToText,
    MaskedLM,
    ObjectDetector,
    PageEmbedder,
    PromptedSegmenter,
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
    VideoClassifier,
    VideoEmbedder,
)
from keras_transformer.tokenizers import Tokenizer  # noqa: E402

if _TYPE_CHECKING:
    from keras_transformer.checkpoints import (
        export_to_huggingface,
        from_keras_hub,
        to_keras_hub,
    )

# Presets and the command refer to tasks by these names.
register_tasks(
    AudioClassifier,
    AudioEmbedder,
    CausalLM,
    CTCSpeechToText,
    DepthEstimator,
    Forecaster,
    ImageClassifier,
    ImageEmbedder,
    ImageSegmenter,
    ImageToText,
    MaskedLM,
    ObjectDetector,
    PageEmbedder,
    PromptedSegmenter,
    QuestionAnswerer,
    SampledForecaster,
    Seq2SeqLM,
    SequenceClassifier,
    SequenceLabeler,
    SpeechToText,
    TextClassifier,
    TextEmbedder,
    TokenClassifier,
    VideoClassifier,
    VideoEmbedder,
)

__all__ = [
    "AudioClassifier",
    "AudioEmbedder",
    "AudioProcessor",
    "Backbone",
    "CTCSpeechToText",
    "CausalLM",
    "DepthEstimator",
    "Forecaster",
    "ImageClassifier",
    "ImageEmbedder",
    "ImageProcessor",
    "ImageSegmenter",
    "ImageToText",
    "MaskedLM",
    "ObjectDetector",
    "PageEmbedder",
    "PromptedSegmenter",
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
    "VideoClassifier",
    "VideoEmbedder",
    "VideoProcessor",
    "data",
    "distribution",
    "evaluate",
    "evaluating",
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
    "use_exact_float32",
]

offer(__name__, [*__all__, "__version__"], _LATER)
