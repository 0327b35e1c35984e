"""Tasks: models of a backbone, a head and a processor, to be loaded, trained and used."""

from keras_transformer.processors.processor import Processor
from keras_transformer.tasks.base.head import Head
from keras_transformer.tasks.base.task import Task
from keras_transformer.tasks.data.text import TextProcessor
from keras_transformer.tasks.images.depth_estimator import DepthEstimator, DepthMap
from keras_transformer.tasks.images.image_classifier import ImageClassifier
from keras_transformer.tasks.images.image_embedder import ImageEmbedder
from keras_transformer.tasks.images.image_segmenter import ImageSegmenter, Segmentation
from keras_transformer.tasks.images.image_to_text import ImageToText
from keras_transformer.tasks.images.object_detector import Detection, ObjectDetector
from keras_transformer.tasks.images.page_embedder import PageEmbedder
from keras_transformer.tasks.images.prompted_segmenter import (
    EncodedImage,
    PromptedSegmentation,
    PromptedSegmenter,
)
from keras_transformer.tasks.series.forecaster import Forecaster
from keras_transformer.tasks.series.sampled_forecaster import SampledForecaster
from keras_transformer.tasks.speech.audio_classifier import AudioClassifier
from keras_transformer.tasks.speech.audio_embedder import AudioEmbedder
from keras_transformer.tasks.speech.ctc_speech_to_text import CTCSpeechToText
from keras_transformer.tasks.speech.speech_to_text import SpeechToText
from keras_transformer.tasks.text.causal_lm import CausalLM
from keras_transformer.tasks.text.generator import Generator, PromptFormat
from keras_transformer.tasks.text.late_interaction import LateInteraction
from keras_transformer.tasks.text.masked_lm import MaskedLM
from keras_transformer.tasks.text.question_answerer import QuestionAnswerer
from keras_transformer.tasks.text.seq2seq_lm import Seq2SeqLM
from keras_transformer.tasks.text.sequences import SequenceClassifier, SequenceLabeler
from keras_transformer.tasks.text.text_classifier import TextClassifier
from keras_transformer.tasks.text.text_embedder import TextEmbedder
from keras_transformer.tasks.text.token_classifier import TokenClassifier
from keras_transformer.tasks.videos.video_classifier import VideoClassifier
from keras_transformer.tasks.videos.video_embedder import VideoEmbedder

__all__ = [
    "AudioClassifier",
    "AudioEmbedder",
    "CTCSpeechToText",
    "CausalLM",
    "DepthEstimator",
    "DepthMap",
    "Detection",
    "EncodedImage",
    "Forecaster",
    "Generator",
    "Head",
    "ImageClassifier",
    "ImageEmbedder",
    "ImageSegmenter",
    "ImageToText",
    "LateInteraction",
    "MaskedLM",
    "ObjectDetector",
    "PageEmbedder",
    "Processor",
    "PromptFormat",
    "PromptedSegmentation",
    "PromptedSegmenter",
    "QuestionAnswerer",
    "SampledForecaster",
    "Segmentation",
    "Seq2SeqLM",
    "SequenceClassifier",
    "SequenceLabeler",
    "SpeechToText",
    "Task",
    "TextClassifier",
    "TextEmbedder",
    "TextProcessor",
    "TokenClassifier",
    "VideoClassifier",
    "VideoEmbedder",
]


def __dir__() -> list[str]:
    return __all__
