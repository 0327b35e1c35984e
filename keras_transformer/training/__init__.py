"""Objectives, optimizers, losses, metrics, callbacks, averaging, distillation, preferences."""

from keras_transformer.models.runtime.runtime import TrainingLoss
from keras_transformer.training.averaging import LastCheckpoints, average_checkpoints
from keras_transformer.training.callbacks import BLEUCallback, StopAtNaN
from keras_transformer.training.distillation import Distiller, distillation_loss, smaller
from keras_transformer.training.log_probabilities import token_log_probabilities
from keras_transformer.training.losses.depth_losses import (
    AbsoluteRelativeError,
    AffineInvariantLoss,
    ScaleInvariantLogLoss,
)
from keras_transformer.training.losses.detection_loss import (
    DetectionLoss,
    EdgeDetectionLoss,
    VarifocalDetectionLoss,
)
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
from keras_transformer.training.losses.linear_cross_entropy import (
    linear_cross_entropy,
    linear_log_probabilities,
)
from keras_transformer.training.losses.losses import ClassCrossEntropy, CTCLoss, TokenCrossEntropy
from keras_transformer.training.losses.mask_losses import PromptedMaskLoss
from keras_transformer.training.losses.pair_losses import (
    ContrastiveLoss,
    PairAccuracy,
    PairwiseSigmoidLoss,
)
from keras_transformer.training.losses.preference_losses import (
    CPO,
    DPO,
    IPO,
    KTO,
    ORPO,
    BradleyTerry,
    PreferenceLoss,
    SimPO,
    SLiC,
)
from keras_transformer.training.metrics import ClassAccuracy, Perplexity, TokenAccuracy
from keras_transformer.training.muon import Muon
from keras_transformer.training.objectives import (
    Denoising,
    MaskedTokens,
    NextToken,
    PermutedOrders,
    SpanCorruption,
)
from keras_transformer.training.optimizers import FineTuningAdamW, transformer_adam
from keras_transformer.training.reinforcement import GRPO, RLOO, DrGRPO, PolicyLoss, PPOClip
from keras_transformer.training.resume import ResumableRun, load_run
from keras_transformer.training.rewards import Rewards
from keras_transformer.training.run_conversion import convert_run
from keras_transformer.training.schedules import InverseSquareRoot, LinearDecay
from keras_transformer.training.text_metrics import (
    BLEU,
    CHRF,
    ROUGE,
    EditDistance,
    ExactMatch,
    WordErrorRate,
)
from keras_transformer.training.throughput import Throughput, matmul_flops_per_second

__all__ = [
    "BLEU",
    "CHRF",
    "CPO",
    "DPO",
    "GRPO",
    "IPO",
    "KTO",
    "ORPO",
    "RLOO",
    "ROUGE",
    "AbsoluteRelativeError",
    "AffineInvariantLoss",
    "BLEUCallback",
    "BatchAllTripletLoss",
    "BatchHardTripletLoss",
    "BatchSemiHardTripletLoss",
    "BradleyTerry",
    "CTCLoss",
    "CachedMultipleNegativesRankingLoss",
    "ClassAccuracy",
    "ClassCrossEntropy",
    "CoSENTLoss",
    "ContrastiveLoss",
    "CosineSimilarityLoss",
    "Denoising",
    "DetectionLoss",
    "Distiller",
    "DrGRPO",
    "EdgeDetectionLoss",
    "EditDistance",
    "ExactMatch",
    "FineTuningAdamW",
    "InverseSquareRoot",
    "LastCheckpoints",
    "LinearDecay",
    "MarginMSELoss",
    "MaskedTokens",
    "MultipleNegativesRankingLoss",
    "Muon",
    "NextToken",
    "PPOClip",
    "PairAccuracy",
    "PairwiseSigmoidLoss",
    "PermutedOrders",
    "Perplexity",
    "PolicyLoss",
    "PreferenceLoss",
    "PromptedMaskLoss",
    "ResumableRun",
    "Rewards",
    "SLiC",
    "ScaleInvariantLogLoss",
    "SimPO",
    "SpanCorruption",
    "StopAtNaN",
    "Throughput",
    "TokenAccuracy",
    "TokenCrossEntropy",
    "TrainingLoss",
    "TripletLoss",
    "VarifocalDetectionLoss",
    "WordErrorRate",
    "average_checkpoints",
    "convert_run",
    "distillation_loss",
    "linear_cross_entropy",
    "linear_log_probabilities",
    "load_run",
    "matmul_flops_per_second",
    "smaller",
    "token_log_probabilities",
    "transformer_adam",
]


def __dir__() -> list[str]:
    return __all__
