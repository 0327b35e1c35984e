"""Objectives, optimizers, schedules, losses, metrics, callbacks, averaging, distillation."""

from keras_transformer.models.runtime.steps import TrainingLoss
from keras_transformer.training.averaging import LastCheckpoints, average_checkpoints
from keras_transformer.training.callbacks import BLEUCallback, StopAtNaN
from keras_transformer.training.distillation import Distiller, distillation_loss, smaller
from keras_transformer.training.losses.embedding_losses import (
    BatchAllTripletLoss,
    BatchHardTripletLoss,
    BatchSemiHardTripletLoss,
    CachedMultipleNegativesRankingLoss,
    CoSENTLoss,
    CosineSimilarityLoss,
    MarginMSELoss,
    MultipleNegativesRankingLoss,
    TripletLoss,
)
from keras_transformer.training.losses.linear_cross_entropy import linear_cross_entropy
from keras_transformer.training.losses.losses import ClassCrossEntropy, CTCLoss, TokenCrossEntropy
from keras_transformer.training.losses.pair_losses import (
    ContrastiveLoss,
    PairAccuracy,
    PairwiseSigmoidLoss,
)
from keras_transformer.training.metrics import ClassAccuracy, Perplexity, TokenAccuracy
from keras_transformer.training.objectives import Denoising, MaskedTokens, NextToken, SpanCorruption
from keras_transformer.training.optimizers import FineTuningAdamW, transformer_adam
from keras_transformer.training.resume import ResumableRun
from keras_transformer.training.schedules import InverseSquareRoot, LinearDecay
from keras_transformer.training.text_metrics import BLEU, ROUGE, EditDistance, WordErrorRate
from keras_transformer.training.throughput import Throughput, matmul_flops_per_second

__all__ = [
    "BLEU",
    "ROUGE",
    "BLEUCallback",
    "BatchAllTripletLoss",
    "BatchHardTripletLoss",
    "BatchSemiHardTripletLoss",
    "CTCLoss",
    "CachedMultipleNegativesRankingLoss",
    "ClassAccuracy",
    "ClassCrossEntropy",
    "CoSENTLoss",
    "ContrastiveLoss",
    "CosineSimilarityLoss",
    "Denoising",
    "Distiller",
    "EditDistance",
    "FineTuningAdamW",
    "InverseSquareRoot",
    "LastCheckpoints",
    "LinearDecay",
    "MarginMSELoss",
    "MaskedTokens",
    "MultipleNegativesRankingLoss",
    "NextToken",
    "PairAccuracy",
    "PairwiseSigmoidLoss",
    "Perplexity",
    "ResumableRun",
    "SpanCorruption",
    "StopAtNaN",
    "Throughput",
    "TokenAccuracy",
    "TokenCrossEntropy",
    "TrainingLoss",
    "TripletLoss",
    "WordErrorRate",
    "average_checkpoints",
    "distillation_loss",
    "linear_cross_entropy",
    "matmul_flops_per_second",
    "smaller",
    "transformer_adam",
]


def __dir__() -> list[str]:
    return __all__
