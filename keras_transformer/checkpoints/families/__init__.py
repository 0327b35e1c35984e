"""Published families. To add one, write a file here and add its name to the list below.

`base/family.py` defines the class, `base/shared.py` has the parts that several families use.
"""

from collections.abc import Mapping
from typing import Any

from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.checkpoints.families.decoders.arcee import ARCEE
from keras_transformer.checkpoints.families.decoders.biogpt import BIOGPT
from keras_transformer.checkpoints.families.decoders.bloom import BLOOM
from keras_transformer.checkpoints.families.decoders.codegen import CODEGEN
from keras_transformer.checkpoints.families.decoders.cohere import COHERE
from keras_transformer.checkpoints.families.decoders.cohere2 import COHERE2
from keras_transformer.checkpoints.families.decoders.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from keras_transformer.checkpoints.families.decoders.ernie4_5 import ERNIE4_5
from keras_transformer.checkpoints.families.decoders.ernie4_5_moe import ERNIE4_5_MOE
from keras_transformer.checkpoints.families.decoders.exaone4 import EXAONE4
from keras_transformer.checkpoints.families.decoders.falcon import FALCON
from keras_transformer.checkpoints.families.decoders.falcon_h1 import FALCON_H1
from keras_transformer.checkpoints.families.decoders.gated_delta import (
    QWEN3_5_MOE_TEXT,
    QWEN3_5_TEXT,
    QWEN3_NEXT,
)
from keras_transformer.checkpoints.families.decoders.gemma import GEMMA, GEMMA2, GEMMA3
from keras_transformer.checkpoints.families.decoders.gemma3n import GEMMA3N_TEXT
from keras_transformer.checkpoints.families.decoders.gemma4 import GEMMA4_TEXT
from keras_transformer.checkpoints.families.decoders.glm import GLM, GLM4
from keras_transformer.checkpoints.families.decoders.glm4_moe import GLM4_MOE, GLM4_MOE_LITE
from keras_transformer.checkpoints.families.decoders.gpt import GPT, GPT2
from keras_transformer.checkpoints.families.decoders.gpt_bigcode import GPT_BIGCODE
from keras_transformer.checkpoints.families.decoders.gpt_neo import GPT_NEO
from keras_transformer.checkpoints.families.decoders.gpt_neox import GPT_NEOX
from keras_transformer.checkpoints.families.decoders.gpt_oss import GPT_OSS
from keras_transformer.checkpoints.families.decoders.gptj import GPTJ
from keras_transformer.checkpoints.families.decoders.granite import GRANITE
from keras_transformer.checkpoints.families.decoders.granitemoe import GRANITEMOE, GRANITEMOESHARED
from keras_transformer.checkpoints.families.decoders.granitemoehybrid import GRANITEMOEHYBRID
from keras_transformer.checkpoints.families.decoders.helium import HELIUM
from keras_transformer.checkpoints.families.decoders.hunyuan import HUNYUAN_V1_DENSE
from keras_transformer.checkpoints.families.decoders.kimi_linear import KIMI_LINEAR
from keras_transformer.checkpoints.families.decoders.lfm2 import LFM2, LFM2_MOE
from keras_transformer.checkpoints.families.decoders.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from keras_transformer.checkpoints.families.decoders.llama4 import LLAMA4_TEXT
from keras_transformer.checkpoints.families.decoders.mamba2 import BAMBA, MAMBA2
from keras_transformer.checkpoints.families.decoders.ministral3 import MINISTRAL, MINISTRAL3
from keras_transformer.checkpoints.families.decoders.mixtral import MIXTRAL
from keras_transformer.checkpoints.families.decoders.modernbert_decoder import MODERNBERT_DECODER
from keras_transformer.checkpoints.families.decoders.mpt import MPT
from keras_transformer.checkpoints.families.decoders.nanochat import NANOCHAT
from keras_transformer.checkpoints.families.decoders.nemotron import NEMOTRON
from keras_transformer.checkpoints.families.decoders.nemotron_h import NEMOTRON_H
from keras_transformer.checkpoints.families.decoders.olmo2 import OLMO2
from keras_transformer.checkpoints.families.decoders.olmo3 import OLMO3
from keras_transformer.checkpoints.families.decoders.olmo_hybrid import OLMO_HYBRID
from keras_transformer.checkpoints.families.decoders.olmoe import OLMOE
from keras_transformer.checkpoints.families.decoders.opt import OPT
from keras_transformer.checkpoints.families.decoders.persimmon import PERSIMMON
from keras_transformer.checkpoints.families.decoders.phi import PHI
from keras_transformer.checkpoints.families.decoders.phi3 import PHI3
from keras_transformer.checkpoints.families.decoders.phimoe import PHIMOE
from keras_transformer.checkpoints.families.decoders.qwen_moe import QWEN2_MOE, QWEN3_MOE
from keras_transformer.checkpoints.families.decoders.recurrent_gemma import RECURRENT_GEMMA
from keras_transformer.checkpoints.families.decoders.seed_oss import SEED_OSS
from keras_transformer.checkpoints.families.decoders.smollm3 import SMOLLM3
from keras_transformer.checkpoints.families.decoders.stablelm import STABLELM
from keras_transformer.checkpoints.families.decoders.starcoder2 import STARCODER2
from keras_transformer.checkpoints.families.decoders.xglm import XGLM
from keras_transformer.checkpoints.families.encoders.albert import ALBERT
from keras_transformer.checkpoints.families.encoders.bert import BERT
from keras_transformer.checkpoints.families.encoders.big_bird import BIG_BIRD
from keras_transformer.checkpoints.families.encoders.deberta_v2 import DEBERTA_V2
from keras_transformer.checkpoints.families.encoders.distilbert import DISTILBERT
from keras_transformer.checkpoints.families.encoders.electra import ELECTRA
from keras_transformer.checkpoints.families.encoders.esm import ESM
from keras_transformer.checkpoints.families.encoders.eurobert import EUROBERT
from keras_transformer.checkpoints.families.encoders.fnet import FNET
from keras_transformer.checkpoints.families.encoders.gte import GTE
from keras_transformer.checkpoints.families.encoders.jina_embeddings_v3 import JINA_EMBEDDINGS_V3
from keras_transformer.checkpoints.families.encoders.longformer import LONGFORMER
from keras_transformer.checkpoints.families.encoders.megatron_bert import MEGATRON_BERT
from keras_transformer.checkpoints.families.encoders.modernbert import MODERNBERT
from keras_transformer.checkpoints.families.encoders.mpnet import MPNET
from keras_transformer.checkpoints.families.encoders.nomic_bert import NOMIC_BERT
from keras_transformer.checkpoints.families.encoders.rembert import REMBERT
from keras_transformer.checkpoints.families.encoders.roberta import (
    CAMEMBERT,
    DATA2VEC_TEXT,
    ROBERTA,
    XLM_ROBERTA,
)
from keras_transformer.checkpoints.families.encoders.roberta_pre_norm import (
    ROBERTA_PRE_NORM,
    XLM_ROBERTA_XL,
)
from keras_transformer.checkpoints.families.encoders.roformer import ROFORMER
from keras_transformer.checkpoints.families.encoders.xlnet import XLNET
from keras_transformer.checkpoints.families.joined.blip import BLIP
from keras_transformer.checkpoints.families.joined.blip_2 import BLIP_2
from keras_transformer.checkpoints.families.joined.encoder_decoder import ENCODER_DECODER
from keras_transformer.checkpoints.families.joined.vision_encoder_decoder import (
    VISION_ENCODER_DECODER,
)
from keras_transformer.checkpoints.families.nearest import nearest
from keras_transformer.checkpoints.families.seq2seq.bart import BART, MARIAN
from keras_transformer.checkpoints.families.seq2seq.blenderbot import BLENDERBOT
from keras_transformer.checkpoints.families.seq2seq.led import LED
from keras_transformer.checkpoints.families.seq2seq.longt5 import LONGT5
from keras_transformer.checkpoints.families.seq2seq.m2m_100 import M2M_100
from keras_transformer.checkpoints.families.seq2seq.mbart import MBART, PEGASUS
from keras_transformer.checkpoints.families.seq2seq.mt5 import MT5
from keras_transformer.checkpoints.families.seq2seq.pegasus_x import PEGASUS_X
from keras_transformer.checkpoints.families.seq2seq.plbart import PLBART
from keras_transformer.checkpoints.families.seq2seq.switch_transformers import SWITCH_TRANSFORMERS
from keras_transformer.checkpoints.families.seq2seq.t5 import T5
from keras_transformer.checkpoints.families.seq2seq.t5gemma import T5GEMMA
from keras_transformer.checkpoints.families.seq2seq.t5gemma2 import T5GEMMA2
from keras_transformer.checkpoints.families.seq2seq.umt5 import UMT5
from keras_transformer.checkpoints.families.series.chronos_bolt import CHRONOS_BOLT
from keras_transformer.checkpoints.families.series.patchtsmixer import PATCHTSMIXER
from keras_transformer.checkpoints.families.series.patchtst import PATCHTST
from keras_transformer.checkpoints.families.series.timesfm2_5 import TIMESFM2_5
from keras_transformer.checkpoints.families.speech.ast import AST
from keras_transformer.checkpoints.families.speech.clap import CLAP
from keras_transformer.checkpoints.families.speech.hubert import HUBERT
from keras_transformer.checkpoints.families.speech.moonshine import MOONSHINE
from keras_transformer.checkpoints.families.speech.parakeet import PARAKEET, PARAKEET_ENCODER
from keras_transformer.checkpoints.families.speech.wav2vec2 import WAV2VEC2
from keras_transformer.checkpoints.families.speech.wav2vec2_bert import WAV2VEC2_BERT
from keras_transformer.checkpoints.families.speech.wavlm import WAVLM
from keras_transformer.checkpoints.families.speech.whisper import WHISPER
from keras_transformer.checkpoints.families.vision.beit import BEIT
from keras_transformer.checkpoints.families.vision.clip import CLIP, CLIP_TEXT, CLIP_VISION
from keras_transformer.checkpoints.families.vision.colpali import COLPALI
from keras_transformer.checkpoints.families.vision.colqwen2 import COLQWEN2
from keras_transformer.checkpoints.families.vision.d_fine import D_FINE
from keras_transformer.checkpoints.families.vision.depth_anything import DEPTH_ANYTHING
from keras_transformer.checkpoints.families.vision.detr import DETR, TABLE_TRANSFORMER
from keras_transformer.checkpoints.families.vision.dinov2 import DINOV2
from keras_transformer.checkpoints.families.vision.dinov2_with_registers import (
    DINOV2_WITH_REGISTERS,
)
from keras_transformer.checkpoints.families.vision.dinov3_vit import DINOV3_VIT
from keras_transformer.checkpoints.families.vision.dpt import DPT
from keras_transformer.checkpoints.families.vision.gemma3 import GEMMA3_VISION
from keras_transformer.checkpoints.families.vision.gemma3n import GEMMA3N
from keras_transformer.checkpoints.families.vision.gemma4 import GEMMA4
from keras_transformer.checkpoints.families.vision.git import GIT
from keras_transformer.checkpoints.families.vision.idefics3 import IDEFICS3, SMOLVLM
from keras_transformer.checkpoints.families.vision.internvl import INTERNVL
from keras_transformer.checkpoints.families.vision.llava import LLAVA, LLAVA_NEXT, LLAVA_ONEVISION
from keras_transformer.checkpoints.families.vision.metaclip_2 import (
    METACLIP_2,
    METACLIP_2_TEXT,
    METACLIP_2_VISION,
)
from keras_transformer.checkpoints.families.vision.mistral3 import MISTRAL3
from keras_transformer.checkpoints.families.vision.paligemma import PALIGEMMA
from keras_transformer.checkpoints.families.vision.qwen2_5_vl import QWEN2_5_VL
from keras_transformer.checkpoints.families.vision.qwen2_vl import QWEN2_VL
from keras_transformer.checkpoints.families.vision.qwen3_vl import (
    QWEN3_5,
    QWEN3_5_MOE,
    QWEN3_VL,
    QWEN3_VL_MOE,
)
from keras_transformer.checkpoints.families.vision.rt_detr import RT_DETR, RT_DETR_V2
from keras_transformer.checkpoints.families.vision.sam import SAM
from keras_transformer.checkpoints.families.vision.segformer import SEGFORMER
from keras_transformer.checkpoints.families.vision.siglip import SIGLIP, SIGLIP_TEXT, SIGLIP_VISION
from keras_transformer.checkpoints.families.vision.siglip2 import (
    SIGLIP2,
    SIGLIP2_TEXT,
    SIGLIP2_VISION,
)
from keras_transformer.checkpoints.families.vision.swin import SWIN
from keras_transformer.checkpoints.families.vision.swinv2 import SWINV2
from keras_transformer.checkpoints.families.vision.t5gemma2_images import T5GEMMA2_IMAGES
from keras_transformer.checkpoints.families.vision.videomae import VIDEOMAE
from keras_transformer.checkpoints.families.vision.videoprism import VIDEOPRISM, VIDEOPRISM_VISION
from keras_transformer.checkpoints.families.vision.vit import DEIT, VIT
from keras_transformer.checkpoints.families.vision.vitdet import VITDET
from keras_transformer.checkpoints.families.vision.vivit import VIVIT
from keras_transformer.checkpoints.families.vision.yolos import YOLOS
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
        EUROBERT,
        ESM,
        ROFORMER,
        XLNET,
        REMBERT,
        XLM_ROBERTA_XL,
        MEGATRON_BERT,
        DATA2VEC_TEXT,
        ROBERTA_PRE_NORM,
        FNET,
        JINA_EMBEDDINGS_V3,
        GTE,
        GPT,
        GPT2,
        GPT_NEOX,
        LLAMA,
        MISTRAL,
        MINISTRAL,
        MINISTRAL3,
        LLAMA4_TEXT,
        QWEN2,
        QWEN3,
        GEMMA,
        GEMMA2,
        GEMMA3,
        GEMMA3N_TEXT,
        GEMMA4_TEXT,
        PHI3,
        OLMO2,
        OLMO3,
        EXAONE4,
        GLM,
        GLM4,
        ERNIE4_5,
        HUNYUAN_V1_DENSE,
        NANOCHAT,
        LFM2,
        LFM2_MOE,
        SMOLLM3,
        BAMBA,
        FALCON_H1,
        MAMBA2,
        OLMO_HYBRID,
        QWEN3_5_TEXT,
        QWEN3_5_MOE_TEXT,
        QWEN3_NEXT,
        MIXTRAL,
        OLMOE,
        QWEN2_MOE,
        QWEN3_MOE,
        GPT_OSS,
        DEEPSEEK_V2,
        DEEPSEEK_V3,
        GLM4_MOE,
        GLM4_MOE_LITE,
        OPT,
        BLOOM,
        GPTJ,
        FALCON,
        PHI,
        STABLELM,
        COHERE,
        COHERE2,
        GRANITE,
        STARCODER2,
        GPT_BIGCODE,
        XGLM,
        GPT_NEO,
        CODEGEN,
        MPT,
        HELIUM,
        ARCEE,
        SEED_OSS,
        NEMOTRON,
        PERSIMMON,
        GRANITEMOE,
        GRANITEMOESHARED,
        GRANITEMOEHYBRID,
        NEMOTRON_H,
        RECURRENT_GEMMA,
        ERNIE4_5_MOE,
        PHIMOE,
        KIMI_LINEAR,
        BIOGPT,
        MODERNBERT_DECODER,
        T5,
        MT5,
        UMT5,
        SWITCH_TRANSFORMERS,
        T5GEMMA,
        T5GEMMA2,
        BART,
        MBART,
        M2M_100,
        PLBART,
        BLENDERBOT,
        MARIAN,
        LED,
        LONGT5,
        PEGASUS,
        PEGASUS_X,
        ENCODER_DECODER,
        VIT,
        DEIT,
        DINOV2,
        DINOV2_WITH_REGISTERS,
        DINOV3_VIT,
        DPT,
        YOLOS,
        DETR,
        TABLE_TRANSFORMER,
        RT_DETR,
        RT_DETR_V2,
        D_FINE,
        SAM,
        VITDET,
        SEGFORMER,
        SWIN,
        SWINV2,
        DEPTH_ANYTHING,
        BEIT,
        VIDEOMAE,
        VIDEOPRISM,
        VIDEOPRISM_VISION,
        VIVIT,
        AST,
        WHISPER,
        MOONSHINE,
        VISION_ENCODER_DECODER,
        BLIP,
        WAV2VEC2,
        WAV2VEC2_BERT,
        PARAKEET_ENCODER,
        PARAKEET,
        HUBERT,
        WAVLM,
        PATCHTST,
        TIMESFM2_5,
        PATCHTSMIXER,
        CHRONOS_BOLT,
        CLAP,
        CLIP,
        CLIP_VISION,
        CLIP_TEXT,
        METACLIP_2,
        METACLIP_2_VISION,
        METACLIP_2_TEXT,
        SIGLIP,
        SIGLIP_VISION,
        SIGLIP_TEXT,
        SIGLIP2,
        SIGLIP2_VISION,
        SIGLIP2_TEXT,
        LLAVA,
        MISTRAL3,
        PALIGEMMA,
        COLPALI,
        GEMMA3_VISION,
        GEMMA3N,
        GEMMA4,
        QWEN2_VL,
        COLQWEN2,
        QWEN2_5_VL,
        QWEN3_VL,
        QWEN3_VL_MOE,
        QWEN3_5,
        QWEN3_5_MOE,
        IDEFICS3,
        SMOLVLM,
        LLAVA_NEXT,
        LLAVA_ONEVISION,
        INTERNVL,
        BLIP_2,
        T5GEMMA2_IMAGES,
        GIT,
    )
}


def get_family(values: Mapping[str, Any]) -> Family:
    """Return the family of a published config. Raises ValueError if it is not supported."""
    model_type, named = values.get("model_type"), values.get("architectures")
    for family in FAMILIES.values():
        of_type = family.published_type is not None and family.published_type == model_type
        if of_type and isinstance(named, list) and family.architecture in named:
            return family
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"Checkpoints of model_type {model_type!r} are not supported. Supported are: "
            f"{', '.join(sorted(FAMILIES))}.{nearest(values, FAMILIES)} {FAMILIES_PAGE} "
            "docs/add_a_family.md says how to add a family, docs/add_a_part.md a part."
        )
    return FAMILIES[model_type]
