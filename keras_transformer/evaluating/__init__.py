"""Scores that others can compare: lm-eval, MTEB, reports on classes, precision of objects."""

from typing import TYPE_CHECKING

from keras_transformer.evaluating.detection import DetectionScores, evaluate_detector
from keras_transformer.evaluating.reports import ClassificationReport, EntityReport
from keras_transformer.evaluating.result import Score, Scores
from keras_transformer.evaluating.run import evaluate
from keras_transformer.evaluating.texts import evaluate_texts
from keras_transformer.support.foreign_names import offer

if TYPE_CHECKING:
    from keras_transformer.evaluating.embedding_model import EmbeddingModel
    from keras_transformer.evaluating.language_model import HarnessModel

__all__ = [
    "ClassificationReport",
    "DetectionScores",
    "EmbeddingModel",
    "EntityReport",
    "HarnessModel",
    "Score",
    "Scores",
    "evaluate",
    "evaluate_detector",
    "evaluate_texts",
]

# Their modules import the harnesses, which are packages of the extras `scores` and `mteb`.
LATER = {
    "EmbeddingModel": "keras_transformer.evaluating.embedding_model",
    "HarnessModel": "keras_transformer.evaluating.language_model",
}
offer(__name__, __all__, LATER)
