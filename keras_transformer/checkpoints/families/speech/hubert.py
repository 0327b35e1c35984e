"""HuBERT: Hsu et al. 2021, https://arxiv.org/abs/2106.07447.

The encoder of wav2vec 2.0 with different training.
"""

import dataclasses

from keras_transformer.checkpoints.families.speech.wav2vec2 import WAV2VEC2

_CLASSIFIER = dataclasses.replace(
    WAV2VEC2.heads["AudioClassifier"], architectures=("HubertForSequenceClassification",)
)

HUBERT = dataclasses.replace(
    WAV2VEC2,
    model_type="hubert",
    architecture="HubertModel",
    required={"conv_pos_batch_norm": False},
    heads={**WAV2VEC2.heads, "AudioClassifier": _CLASSIFIER},
    names=dataclasses.replace(WAV2VEC2.names, prefixes=("hubert.",)),
)
