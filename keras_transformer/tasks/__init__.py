"""Tasks: backbones with a head and a processor, which users load, fit and ask."""

from keras_transformer.processors.processor import Processor
from keras_transformer.tasks.audio_classifier import AudioClassifier
from keras_transformer.tasks.causal_lm import CausalLM
from keras_transformer.tasks.ctc_speech_to_text import CTCSpeechToText
from keras_transformer.tasks.forecaster import Forecaster
from keras_transformer.tasks.image_classifier import ImageClassifier
from keras_transformer.tasks.image_embedder import ImageEmbedder
from keras_transformer.tasks.image_to_text import ImageToText
from keras_transformer.tasks.masked_lm import MaskedLM
from keras_transformer.tasks.question_answerer import QuestionAnswerer
from keras_transformer.tasks.sampled_forecaster import SampledForecaster
from keras_transformer.tasks.seq2seq_lm import Seq2SeqLM
from keras_transformer.tasks.sequences import SequenceClassifier, SequenceLabeler
from keras_transformer.tasks.speech_to_text import SpeechToText
from keras_transformer.tasks.task import Task
from keras_transformer.tasks.text import TextProcessor
from keras_transformer.tasks.text_classifier import TextClassifier
from keras_transformer.tasks.text_embedder import TextEmbedder
from keras_transformer.tasks.token_classifier import TokenClassifier

__all__ = [
    "AudioClassifier",
    "CTCSpeechToText",
    "CausalLM",
    "Forecaster",
    "ImageClassifier",
    "ImageEmbedder",
    "ImageToText",
    "MaskedLM",
    "Processor",
    "QuestionAnswerer",
    "SampledForecaster",
    "Seq2SeqLM",
    "SequenceClassifier",
    "SequenceLabeler",
    "SpeechToText",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextProcessor",
    "TokenClassifier",
]


def __dir__() -> list[str]:
    return __all__
