"""The published families. A new one is a file here, and its name in the list below.

`family` defines what one is, `shared` holds what several have in common.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.albert import ALBERT
from keras_transformer.checkpoints.families.ast import AST
from keras_transformer.checkpoints.families.bart import BART, MARIAN
from keras_transformer.checkpoints.families.beit import BEIT
from keras_transformer.checkpoints.families.bert import BERT
from keras_transformer.checkpoints.families.big_bird import BIG_BIRD
from keras_transformer.checkpoints.families.blip import BLIP
from keras_transformer.checkpoints.families.bloom import BLOOM
from keras_transformer.checkpoints.families.chronos_bolt import CHRONOS_BOLT
from keras_transformer.checkpoints.families.clip import CLIP, CLIP_TEXT, CLIP_VISION
from keras_transformer.checkpoints.families.cohere import COHERE
from keras_transformer.checkpoints.families.cohere2 import COHERE2
from keras_transformer.checkpoints.families.deberta_v2 import DEBERTA_V2
from keras_transformer.checkpoints.families.dinov2 import DINOV2
from keras_transformer.checkpoints.families.distilbert import DISTILBERT
from keras_transformer.checkpoints.families.electra import ELECTRA
from keras_transformer.checkpoints.families.encoder_decoder import ENCODER_DECODER
from keras_transformer.checkpoints.families.falcon import FALCON
from keras_transformer.checkpoints.families.family import Family
from keras_transformer.checkpoints.families.gemma import GEMMA, GEMMA2, GEMMA3
from keras_transformer.checkpoints.families.git import GIT
from keras_transformer.checkpoints.families.gpt import GPT, GPT2
from keras_transformer.checkpoints.families.gpt_neox import GPT_NEOX
from keras_transformer.checkpoints.families.gpt_oss import GPT_OSS
from keras_transformer.checkpoints.families.gptj import GPTJ
from keras_transformer.checkpoints.families.granite import GRANITE
from keras_transformer.checkpoints.families.hubert import HUBERT
from keras_transformer.checkpoints.families.led import LED
from keras_transformer.checkpoints.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from keras_transformer.checkpoints.families.llava import LLAVA
from keras_transformer.checkpoints.families.longformer import LONGFORMER
from keras_transformer.checkpoints.families.longt5 import LONGT5
from keras_transformer.checkpoints.families.mbart import MBART, PEGASUS
from keras_transformer.checkpoints.families.mixtral import MIXTRAL
from keras_transformer.checkpoints.families.modernbert import MODERNBERT
from keras_transformer.checkpoints.families.moonshine import MOONSHINE
from keras_transformer.checkpoints.families.mpnet import MPNET
from keras_transformer.checkpoints.families.mt5 import MT5
from keras_transformer.checkpoints.families.nearest import advice
from keras_transformer.checkpoints.families.nomic_bert import NOMIC_BERT
from keras_transformer.checkpoints.families.olmo2 import OLMO2
from keras_transformer.checkpoints.families.olmoe import OLMOE
from keras_transformer.checkpoints.families.opt import OPT
from keras_transformer.checkpoints.families.paligemma import PALIGEMMA
from keras_transformer.checkpoints.families.patchtst import PATCHTST
from keras_transformer.checkpoints.families.phi import PHI
from keras_transformer.checkpoints.families.phi3 import PHI3
from keras_transformer.checkpoints.families.qwen_moe import QWEN2_MOE, QWEN3_MOE
from keras_transformer.checkpoints.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from keras_transformer.checkpoints.families.siglip import SIGLIP, SIGLIP_TEXT, SIGLIP_VISION
from keras_transformer.checkpoints.families.smollm3 import SMOLLM3
from keras_transformer.checkpoints.families.stablelm import STABLELM
from keras_transformer.checkpoints.families.t5 import T5
from keras_transformer.checkpoints.families.t5gemma import T5GEMMA
from keras_transformer.checkpoints.families.vision_encoder_decoder import VISION_ENCODER_DECODER
from keras_transformer.checkpoints.families.vit import DEIT, VIT
from keras_transformer.checkpoints.families.wav2vec2 import WAV2VEC2
from keras_transformer.checkpoints.families.whisper import WHISPER
from keras_transformer.checkpoints.other_formats import FAMILIES_PAGE

FAMILIES = {
    family.model_type: family
    for family in (
        BERT,
        ROBERTA,
        XLM_ROBERTA,
        CAMEMBERT,
        DISTILBERT,
        ALBERT,
        ELECTRA,
        MPNET,
        NOMIC_BERT,
        MODERNBERT,
        LONGFORMER,
        BIG_BIRD,
        DEBERTA_V2,
        GPT,
        GPT2,
        GPT_NEOX,
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        PHI3,
        OLMO2,
        SMOLLM3,
        MIXTRAL,
        OLMOE,
        QWEN2_MOE,
        QWEN3_MOE,
        GPT_OSS,
        OPT,
        BLOOM,
        GPTJ,
        FALCON,
        PHI,
        STABLELM,
        COHERE,
        COHERE2,
        GRANITE,
        T5,
        MT5,
        T5GEMMA,
        BART,
        MBART,
        MARIAN,
        LED,
        LONGT5,
        PEGASUS,
        ENCODER_DECODER,
        VIT,
        DEIT,
        DINOV2,
        BEIT,
        AST,
        WHISPER,
        MOONSHINE,
        VISION_ENCODER_DECODER,
        BLIP,
        WAV2VEC2,
        HUBERT,
        PATCHTST,
        CHRONOS_BOLT,
        CLIP,
        CLIP_VISION,
        CLIP_TEXT,
        SIGLIP,
        SIGLIP_VISION,
        SIGLIP_TEXT,
        LLAVA,
        PALIGEMMA,
        GIT,
    )
}


def get_family(values: Mapping[str, Any]) -> Family:
    """The family of a published config."""
    model_type, named = values.get("model_type"), values.get("architectures")
    for family in FAMILIES.values():
        of_type = family.published_type is not None and family.published_type == model_type
        if of_type and isinstance(named, list) and family.architecture in named:
            return family
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"Checkpoints of model_type {model_type!r} are not supported. Supported are: "
            f"{', '.join(sorted(FAMILIES))}. {FAMILIES_PAGE}{advice(values, FAMILIES.values())}"
        )
    return FAMILIES[model_type]
