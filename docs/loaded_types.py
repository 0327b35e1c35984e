"""The 100 model types of Transformers that are loaded most, and why some are not covered."""

from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.text_models import TEXT_MODELS

_BOXES = "Its detector reads texts."
_SPEECH_OUT = "There is no task that writes sound."
_CONVOLUTIONS = "A network of convolutions, without a mixer of tokens."
_BELOW = "[See below](#what-is-not-covered-and-why)."

# By estimated downloads, the most first; the reason is None if a family covers the type.
LOADED_TYPES: dict[str, str | None] = {
    "bert": None,
    "roberta": None,
    "xlm-roberta": None,
    "mpnet": None,
    "electra": None,
    "clip": None,
    "distilbert": None,
    "timm_wrapper": "Models of the package timm, of many architectures, most of them convolutions.",
    "qwen3": None,
    "qwen2": None,
    "vit": None,
    "gpt2": None,
    "llama": None,
    "wav2vec2": None,
    "whisper": None,
    "t5": None,
    "modernbert": None,
    "esm": None,
    "deberta-v2": None,
    "qwen2_5_vl": None,
    "qwen3_vl": None,
    "gemma3": None,
    "gpt_oss": None,
    "opt": None,
    "siglip": None,
    "dinov2": None,
    "mistral": None,
    "nomic_bert": None,
    "qwen3_5": None,
    "qwen3_5_moe": None,
    "gemma4": None,
    "qwen2_vl": None,
    "gemma3_text": None,
    "qwen3_moe": None,
    "phi3": None,
    "bart": None,
    "marian": None,
    "albert": None,
    "camembert": None,
    "audio-spectrogram-transformer": None,
    "segformer": None,
    "table-transformer": None,
    "detr": None,
    "layoutlmv3": "Places of words on a page are embedded and are biases of the scores.",
    "blip": None,
    "deepseek_v3": None,
    "gpt_neox": None,
    "bloom": None,
    "gemma2": None,
    "gemma": None,
    "swin": None,
    "hubert": None,
    "wavlm": None,
    "wav2vec2-bert": None,
    "clap": None,
    "llava": None,
    "mistral3": None,
    "m2m_100": None,
    "mt5": None,
    "qwen3_next": None,
    "vision-encoder-decoder": None,
    "dinov3_vit": None,
    "siglip2": None,
    "resnet": _CONVOLUTIONS,
    "convnext": _CONVOLUTIONS,
    "rt_detr": None,
    "grounding-dino": _BOXES,
    "owlv2": _BOXES,
    "yolos": None,
    "sam": None,
    "sam2": "Its encoder of images merges places between stages.",
    "mask2former": "Its decoder attends within the masks that the layer before predicted.",
    "depth_anything": None,
    "dpt": None,
    "florence2": "Its encoder of images is a DaViT, whose attention is also between channels.",
    "vits": _SPEECH_OUT,
    "speecht5": _SPEECH_OUT,
    "blip-2": None,
    "layoutlm": "Places of words on a page are embedded.",
    "longformer": None,
    "big_bird": None,
    "deberta": "Projections of keys and of positions lack the biases of the others.",
    "xlnet": None,
    "mbart": None,
    "pegasus": None,
    "mixtral": None,
    "gptj": None,
    "gpt_neo": None,
    "falcon": None,
    "phi": None,
    "starcoder2": None,
    "gpt_bigcode": None,
    "llama4": None,
    "mllama": "Layers of the decoder attend to images by gates of their own.",
    "internvl": None,
    "smolvlm": None,
    "gemma3n": None,
    "olmo2": None,
    "granite": None,
    "videomae": None,
}


def rows() -> list[tuple[str, str, str]]:
    """The rows of the table: a type, whether it is covered, and by which name or why not.

    Raises:
        ValueError: If a type has neither a family nor a reason, or both.
    """
    found = []
    for name, reason in LOADED_TYPES.items():
        text = None if name in FAMILIES else TEXT_MODELS.get(name)
        covered = name in FAMILIES or text is not None
        if covered == (reason is not None):
            raise ValueError(
                f"{name} has a family and a reason not to have one: set it to None in LOADED_TYPES."
                if covered
                else f"{name} has no family: state in LOADED_TYPES why not."
            )
        if name in FAMILIES:
            found.append((f"`{name}`", "yes", f"`{name}`"))
        elif covered:
            found.append((f"`{name}`", "text alone", f"`{text}`, or as its config names it"))
        else:
            found.append((f"`{name}`", "no", reason or ""))
    return found
