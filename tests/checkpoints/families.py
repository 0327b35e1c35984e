"""Small random checkpoints of every family, made by the Transformers library."""

import numpy as np

from tests.checkpoints import (
    family_decoders,
    family_dense,
    family_duals,
    family_encoders,
    family_images,
    family_placed,
    family_seq2seqs,
    family_series,
    family_sound,
    family_videos,
    family_writers,
    mobilenet_v5,
)

OF_TEXTS = {
    **family_encoders.CONFIGS,
    **family_decoders.CONFIGS,
    **family_seq2seqs.CONFIGS,
    **family_writers.OF_TEXTS,
}
OF_OTHERS = {
    **family_images.CONFIGS,
    **family_images.OF_MAPS,
    **family_sound.CONFIGS,
    **family_videos.CONFIGS,
    **family_series.CONFIGS,
    **family_duals.CONFIGS,
    **family_duals.TEXTS,
    **family_duals.OF_PATCHES,
    **family_duals.OF_SOUND,
    **family_duals.OF_VIDEOS,
    **family_writers.OF_IMAGES,
    **family_placed.CONFIGS,
    **family_placed.OF_ANY_SIZE,
    **family_placed.OF_ROWS,
    **family_placed.OF_BUDGETS,
    **family_placed.OF_RECORDINGS,
    **family_placed.RETRIEVERS,
    **family_placed.IN_ENCODERS,
}
CONFIGS = {**OF_TEXTS, **OF_OTHERS}
# Models of theirs that mix padding with the tokens: their texts are of one length.
WITHOUT_MASK = ("fnet",)
LANGUAGE_MODELS = {
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
    "gemma3n_text": "Gemma3nForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "openai-gpt": "OpenAIGPTLMHeadModel",
    "t5": "T5ForConditionalGeneration",
    "bart": "BartForConditionalGeneration",
    "plbart": "PLBartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "m2m_100": "M2M100ForConditionalGeneration",
    "switch_transformers": "SwitchTransformersForConditionalGeneration",
    "umt5": "UMT5ForConditionalGeneration",
    "mt5": "MT5ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "pegasus_x": "PegasusXForConditionalGeneration",
    "t5gemma": "T5GemmaForConditionalGeneration",
    "t5gemma2": "T5Gemma2ForConditionalGeneration",
    "t5gemma2_images": "T5Gemma2ForConditionalGeneration",
    "marian": "MarianMTModel",
    "led": "LEDForConditionalGeneration",
    "longt5": "LongT5ForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "moonshine": "MoonshineForConditionalGeneration",
    "encoder-decoder": "EncoderDecoderModel",
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
    "blip": "BlipForConditionalGeneration",
    "blip-2": "Blip2ForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "mistral3": "Mistral3ForConditionalGeneration",
    "gemma3": "Gemma3ForConditionalGeneration",
    "internvl": "InternVLForConditionalGeneration",
    "llava_next": "LlavaNextForConditionalGeneration",
    "llava_onevision": "LlavaOnevisionForConditionalGeneration",
    "idefics3": "Idefics3ForConditionalGeneration",
    "smolvlm": "SmolVLMForConditionalGeneration",
    "paligemma": "PaliGemmaForConditionalGeneration",
    "colpali": "ColPaliForRetrieval",
    "colqwen2": "ColQwen2ForRetrieval",
    "gemma3n": "Gemma3nForConditionalGeneration",
    "gemma4": "Gemma4ForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen3_5": "Qwen3_5ForConditionalGeneration",
    "qwen3_vl": "Qwen3VLForConditionalGeneration",
    "qwen3_vl_moe": "Qwen3VLMoeForConditionalGeneration",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration",
    "chronos_bolt": "ChronosBoltModelForForecasting",
}


def cases(*kinds):
    """`(model_type, number of the config)` of the families of texts of these kinds, or of all."""
    from keras_transformer.checkpoints.families import FAMILIES

    assert {*CONFIGS, *family_dense.MODELS} == set(FAMILIES), "every family has its configs here"
    return [
        (model_type, number)
        for model_type, (_, configs) in OF_TEXTS.items()
        for number in range(len(configs))
        if not kinds or FAMILIES[model_type].constants["kind"] in kinds
    ]


def class_name(model_type, suffix):
    """The class of the Transformers library, e.g. for the suffix `"Model"` or `"ForMaskedLM"`."""
    prefix = CONFIGS[model_type][0]
    if suffix == "LanguageModel":
        return LANGUAGE_MODELS.get(model_type, f"{prefix}ForCausalLM")
    name = f"{prefix}{suffix}"
    return _OTHERWISE.get(name, name)


# Classes that are not named as their configs.
_OTHERWISE = {
    "ParakeetEncoderModel": "ParakeetEncoder",
    "ParakeetCTCModel": "ParakeetForCTC",
    "ParakeetCTCForCTC": "ParakeetForCTC",
    "VideoPrismModel": "VideoPrismClipModel",
    "VideoPrismVisionForVideoClassification": "VideoPrismForVideoClassification",
}


def class_of(model_type, suffix):
    """The class of this name, one of the library or of another package."""
    import transformers

    from tests.checkpoints import chronos_bolt

    name = class_name(model_type, suffix)
    return getattr(transformers if hasattr(transformers, name) else chronos_bolt, name)


def make(model_type, number, suffix, seed=0, **values):
    """A model of the Transformers library, all of whose weights differ."""
    import torch
    import transformers

    if model_type == "gemma3n":
        mobilenet_v5.register()
    prefix, configs = CONFIGS[model_type]
    config = getattr(transformers, f"{prefix}Config")(**{**configs[number], **values})
    model = class_of(model_type, suffix)(config).eval()
    # As wide as to tell one activation, epsilon or position from another.
    random = torch.Generator().manual_seed(seed)

    def noise_of(buffer):
        return torch.rand(buffer.shape, generator=random)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" in name and model_type in ("marian", "pegasus", "roformer"):
                continue
            norm = "norm" in name.lower() or "ln_" in name
            offset = 1.0 if norm and name.endswith("weight") else 0.0
            noise = torch.randn(parameter.shape, generator=random)
            parameter.copy_(offset + 0.3 * noise)
        for name, buffer in model.named_buffers():  # of a batch normalization
            if name.endswith(("running_mean", "running_var")):
                offset = 1.0 if name.endswith("var") else 0.0
                noise = torch.rand(buffer.shape, generator=random)
                buffer.copy_(offset + 0.5 * noise)
            elif name.endswith("layer_scalar"):  # of Gemma 4
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=random))
            elif name.endswith(("_min", "_max")):  # the ranges of Gemma 4's clipped layers
                buffer.copy_((1.0 if name.endswith("max") else -1.0) * (1.0 + noise_of(buffer)))
            elif name.endswith(("std_bias", "std_scale")):
                buffer.copy_(noise_of(buffer) + name.endswith("scale"))
            elif name.endswith(("e_score_correction_bias", "expert_bias")):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=random))
    if hasattr(model, "final_logits_bias"):
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=random))
    return model


def batch(pad_id=0, rows=3, length=9, seed=1, words=61):
    """Ids `(rows, length)` without the padding's, of rows of several lengths, and their mask."""
    random = np.random.default_rng(seed)
    ids = random.integers(5, words, (rows, length)).astype("int32")
    mask = np.arange(length) < np.array([[length], [length - 4], [2]])[:rows]
    return np.where(mask, ids, pad_id).astype("int32"), mask
