"""A small LLaVA of Transformers, with its processor, and conversations with images."""

import copy
import json
import sys

import numpy as np
import tokenizers

from tests.checkpoints import mobilenet_v5
from tests.checkpoints.family_placed import (
    OF_ANY_SIZE,
    OF_BUDGETS,
    OF_RECORDINGS,
    OF_ROWS,
    PIXTRAL_LLAVA,
)

WORDS = (
    "user", "assistant", "which", "is", "dark", "?", "the", "first", "second", "both", "cat", "a",
    "b", ":", "or",
)  # fmt: skip
_EACH = "{{% for c in m['content'] | selectattr('type', 'equalto', '{}') %}}{}{{% endfor %}}"
_TURNS = (
    "{% for m in messages %}{{ m['role'] }} : CONTENT{% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
).replace(
    "CONTENT",
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'][0]['text'] }} </s>"
    "{% endgeneration %}{% else %}CONTENT {% endif %}",
)
# LLaVA 1.5's order: the images of a message, then its texts.
TEMPLATE = _TURNS.replace(
    "CONTENT", _EACH.format("image", "<image> ") + _EACH.format("text", "{{ c['text'] }}")
)
# Images where they are in the message.
IN_PLACE = _TURNS.replace(
    "CONTENT",
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}{{ '<image> ' }}"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}",
)


# Gemma 3's, whose line breaks merge with those around an image.
OF_GEMMA = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<start_of_turn>' + m['role'].replace('assistant', 'model') + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% else %}{{ c['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
_LINES = ("\n", "\n\n", "\n\n\n", " ", "user", "model")


def tokenizer_of(*special, **roles):
    """A tokenizer of Transformers with these special tokens, which begins texts with `<s>`."""
    import transformers

    tokens = ["<pad>", "<s>", "</s>", "<unk>", *special, *roles.values(), *WORDS, *_LINES]
    tokens = list(dict.fromkeys(tokens))
    vocabulary = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if roles:
        pieces = tokenizers.Regex(r"\n+|[^\s]+| +")
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(pieces, "isolated")
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>", extra_special_tokens=roles or list(special),
    )  # fmt: skip


def llava(folder, template=IN_PLACE):
    """A random LLaVA and its processor, saved to a folder."""
    import torch
    import transformers

    tokenizer = tokenizer_of("<image>")
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 20}, crop_size={"height": 20, "width": 20}
    )
    processor = transformers.LlavaProcessor(
        images, tokenizer, patch_size=5, vision_feature_select_strategy="default",
        chat_template=template, image_token="<image>", num_additional_image_tokens=1,
    )  # fmt: skip
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config={**sizes, "model_type": "clip_vision_model", "hidden_size": 16,
                           "image_size": 20, "patch_size": 5},
            text_config={**sizes, "model_type": "llama", "hidden_size": 12,
                         "vocab_size": len(tokenizer), "num_key_value_heads": 1},
            image_token_index=4, pad_token_id=0,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


def gemma3(folder):
    """The same of a Gemma 3, whose image is wider than its window."""
    import torch
    import transformers

    tokenizer = tokenizer_of(
        boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>"
    )
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<start_of_turn>", "<end_of_turn>"]},
        replace_extra_special_tokens=False,
    )
    images = transformers.Gemma3ImageProcessorPil(size={"height": 20, "width": 20})
    processor = transformers.Gemma3Processor(images, tokenizer, OF_GEMMA, image_seq_length=4)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    torch.manual_seed(0)
    model = transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(
            vision_config={**sizes, "model_type": "siglip_vision_model", "hidden_size": 16,
                           "image_size": 20, "patch_size": 5, "vision_use_head": False},
            text_config={**sizes, "model_type": "gemma3_text", "hidden_size": 12, "head_dim": 6,
                         "vocab_size": len(tokenizer), "num_key_value_heads": 1,
                         "sliding_window": 3, "pad_token_id": 0, "bos_token_id": 1,
                         "eos_token_id": 2, "query_pre_attn_scalar": 5,
                         "layer_types": ["sliding_attention", "full_attention"]},
            image_token_index=tokenizer.image_token_id, mm_tokens_per_image=4,
            boi_token_index=tokenizer.boi_token_id, eoi_token_index=tokenizer.eoi_token_id,
        )
    ).eval()  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.4)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


# Qwen's, whose images are in place, between two tokens.
OF_QWEN = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} "
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)
_OF_QWEN = (
    "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip


def qwen(folder, name, **sizes):
    """The same of a Qwen-VL, for images of any size."""
    import torch
    import transformers

    tokenizer = tokenizer_of(*_OF_QWEN)
    sizes = {"patch_size": 4, "size": {"shortest_edge": 64, "longest_edge": 1600}, **sizes}
    images = transformers.Qwen2VLImageProcessorPil(**sizes)
    ids = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>")
        for name in ("vision_start", "vision_end")
    }
    ids |= {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}_pad|>")
        for name in ("image", "video")
    }
    name, (values, *_) = OF_ANY_SIZE[name]

    class Processor(transformers.Qwen2VLProcessor):
        """Theirs for images alone: its part for videos needs torchvision."""

        def check_argument_for_proper_class(self, argument_name, argument):
            if argument is not None:
                super().check_argument_for_proper_class(argument_name, argument)

    tokenizer.chat_template = OF_QWEN
    processor = Processor(images, tokenizer, chat_template=OF_QWEN)
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        vision_config=values["vision_config"],
        text_config={**values["text_config"], "vocab_size": len(tokenizer)},
        **ids,
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = ("norm" in name or ".ln_q." in name) and name.endswith("weight")
            parameter.normal_(mean=float(norm), std=0.3)
    for part in (model, images, tokenizer):
        part.save_pretrained(folder)
    return model, processor


# Pixtral's, whose images are in place.
OF_PIXTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST]{% endif %}"
    "{% if m['content'] is string %} {{ m['content'] }} {% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}[IMG]{% else %} {{ c['text'] }} "
    "{% endif %}{% endfor %}{% endif %}"
    "{{ '[/INST]' if m['role'] == 'user' else eos_token }}{% endfor %}"
)
_OF_PIXTRAL = ("[INST]", "[/INST]", "[UNUSED]", "[IMG]", "[IMG_BREAK]", "[IMG_END]")


class PixtralInputs:
    """Inputs of Transformers' Pixtral models: its images and tokenizer, and rows of tokens.

    Its own class for both needs torchvision. What it writes for an image is stated in the source of
    `PixtralProcessor.replace_image_token`: a token for each square, then one for the end of a row,
    the last of which is the end of the image.
    """

    def __init__(self, images, tokenizer, square):
        self.images, self.tokenizer, self.square = images, tokenizer, square

    def apply_chat_template(self, conversation, **options):
        content = [m["content"] for m in conversation if not isinstance(m["content"], str)]
        given = [c["image"] for each in content for c in each if c["type"] == "image"]
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        pixels = {}
        if given:
            pixels = dict(self.images(given, patch_size=self.square, return_tensors="pt"))
            before, *behind = text.split("[IMG]")
            for size, rest in zip(pixels["image_sizes"], behind, strict=True):
                rows, columns = (int(side) // self.square for side in size)
                row = "[IMG]" * columns
                before += "[IMG_BREAK]".join([row] * rows) + "[IMG_END]" + rest
            text = before
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        return {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"], **pixels}


def pixtral(folder, name, number=0):
    """A Mistral 3, or a LLaVA with its image tower, for images of any size."""
    import torch
    import transformers

    tokenizer = tokenizer_of(*_OF_PIXTRAL)
    tokenizer.chat_template = OF_PIXTRAL
    values = PIXTRAL_LLAVA if name == "llava" else OF_ROWS[name][1][number]
    name = "Llava" if name == "llava" else OF_ROWS[name][0]
    config = getattr(transformers, f"{name}Config")(
        **{**values, "text_config": {**values["text_config"], "vocab_size": len(tokenizer)}}
    )
    assert tokenizer.convert_tokens_to_ids("[IMG]") == config.image_token_id
    merge = getattr(config, "spatial_merge_size", 1)
    images = transformers.PixtralImageProcessorPil(size={"longest_edge": 29}, patch_size=4)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = any(each in name for each in ("norm", "ln_pre")) and name.endswith("weight")
            parameter.normal_(mean=float(norm), std=0.3)
    for part in (model, images, tokenizer):
        part.save_pretrained(folder)
    outer = {"processor_class": "PixtralProcessor", "patch_size": 4, "spatial_merge_size": merge}
    (folder / "processor_config.json").write_text(json.dumps(outer))
    return model, PixtralInputs(images, tokenizer, 4 * merge)


# Gemma 4's.
OF_GEMMA4 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|turn>' + m['role'].replace('assistant', 'model') + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}"
    "{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] | trim }}"
    "{% else %}{{ '\n\n<|' + c['type'] + '|>\n\n' }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<turn|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}"
)


class Gemma4Inputs:
    """Inputs of Transformers' Gemma 4: images, videos, sound and tokenizer, and rows of tokens.

    Its own class for all needs torchvision. What it writes for an image, a video and a recording
    is in the source of `Gemma4Processor.replace_image_token` and the methods behind it.
    """

    def __init__(self, images, tokenizer, videos=None, sounds=None):
        self.images, self.tokenizer, self.videos = images, tokenizer, videos
        self.sounds = sounds

    def apply_chat_template(self, conversation, **options):
        import torch

        content = [m["content"] for m in conversation if not isinstance(m["content"], str)]
        parts = [c for each in content for c in each]
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        found, written = {}, {"image": [], "video": [], "audio": []}
        if pictures := [c["image"] for c in parts if c["type"] == "image"]:
            found |= self.images(pictures, return_tensors="pt")
            written["image"] = [
                f"<|image>{'<|image|>' * int(count)}<image|>"
                for count in found.pop("num_soft_tokens_per_image")
            ]
        if given := [c for c in parts if c["type"] == "video"]:
            import numpy as np

            made = self.videos(
                videos=[np.moveaxis(c["video"], -1, 1) for c in given],
                video_metadata=[
                    {"fps": c["fps"], "total_num_frames": len(c["video"])} for c in given
                ],
                return_metadata=True, return_tensors="pt",
            )  # fmt: skip
            counts, about = made.pop("num_soft_tokens_per_video"), made.pop("video_metadata")
            for count, each in zip(counts, about, strict=True):
                run = f"<|image>{'<|video|>' * int(count)}<image|>"
                times = (f"{int(t // 60):02d}:{int(t % 60):02d}" for t in each.timestamps)
                written["video"].append(" ".join(f"{time} {run}" for time in times))
            found |= made
        if given := [c["audio"] for c in parts if c["type"] == "audio"]:
            made = self.sounds(given, return_tensors="pt")
            for mask in made["input_features_mask"]:
                count = int(mask[::2][::2].sum())
                written["audio"].append(f"<|audio>{'<|audio|>' * count}<audio|>")
            found |= made
        for kind, texts in written.items():
            before, *behind = text.split(f"<|{kind}|>")
            text = before + "".join(a + b for a, b in zip(texts, behind, strict=True))
        ids = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
        kinds = torch.zeros_like(ids)
        for number, name in enumerate(("image", "video", "audio"), 1):
            kinds[ids == self.tokenizer.convert_tokens_to_ids(f"<|{name}|>")] = number
        return {"input_ids": ids, "mm_token_type_ids": kinds, **found}


# A tower of sound of a Gemma 4, which caps scores that are far from 0.
OF_SOUND = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "output_proj_dims": 12,
    "subsampling_conv_channels": [16, 6], "attention_chunk_size": 5, "attention_context_left": 6,
    "attention_logit_cap": 2.0,
}  # fmt: skip


def gemma4(folder, number=0, sound=None, **of_videos):
    """A Gemma 4, whose images and frames have at most 14 states, fewer than in published models."""
    import torch
    import transformers
    from transformers.models.gemma4 import image_processing_pil_gemma4 as of_images

    from tests.processors.published_videos import video_processor

    budgets = (14, 70, 140, 280, 560, 1120)
    of_images._SUPPORTED_SOFT_TOKENS = budgets

    tokenizer = tokenizer_of(
        boi_token="<|image>", eoi_token="<image|>", image_token="<|image|>",
        video_token="<|video|>",
        **({} if sound is None else {"audio_token": "<|audio|>", "boa_token": "<|audio>",
                                     "eoa_token": "<audio|>"}),
    )  # fmt: skip
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<|turn>", "<turn|>"]}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = OF_GEMMA4
    values = OF_BUDGETS["gemma4"][1][number]
    sizes = {name: len(tokenizer) for name in ("vocab_size", "vocab_size_per_layer_input")}
    config = transformers.Gemma4Config(
        **{
            **values, "text_config": {**values["text_config"], **sizes},
            "image_token_id": tokenizer.image_token_id, "video_token_id": tokenizer.video_token_id,
            "audio_config": sound, "audio_token_id": getattr(tokenizer, "audio_token_id", None),
        }
    )  # fmt: skip
    vision = config.vision_config
    images = transformers.Gemma4ImageProcessorPil(
        patch_size=vision.patch_size, pooling_kernel_size=vision.pooling_kernel_size,
        max_soft_tokens=14,
    )  # fmt: skip
    videos = video_processor(
        "gemma4", patch_size=images.patch_size, pooling_kernel_size=images.pooling_kernel_size,
        **of_videos,
    )  # fmt: skip
    sys.modules[type(videos).__module__]._SUPPORTED_SOFT_TOKENS = budgets
    videos.max_soft_tokens = 14
    torch.manual_seed(0 if sound is None else 4)  # whose weights are well conditioned
    model = transformers.Gemma4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            norm = "norm" in name and name.endswith("weight")
            parameter.normal_(mean=float(norm), std=0.15)
        for name, buffer in model.named_buffers():
            if name.endswith(("_min", "_max")):  # some of the numbers are beyond them
                buffer.copy_(torch.rand(()) + 0.8 if name.endswith("max") else -1.1)
            elif name.endswith(("std_bias", "std_scale", "layer_scalar")):
                buffer.copy_(torch.rand(buffer.shape) + 0.5)
    for part in (model, images, tokenizer, videos):
        part.save_pretrained(folder)
    sounds = None
    if sound is not None:
        sounds = transformers.Gemma4AudioFeatureExtractor(feature_size=16)
        parts = {"feature_extractor": json.loads(sounds.to_json_string()), "audio_seq_length": 750}
        (folder / "processor_config.json").write_text(json.dumps(parts))
    return model, Gemma4Inputs(images, tokenizer, videos, sounds)


# Gemma 3n's, of texts, images and recordings.
OF_GEMMA3N = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' }}"
    "{{ 'model' if m['role'] == 'assistant' else m['role'] }}{{ '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'audio' %}{{ '<audio_soft_token>' }}"
    "{% elif c['type'] == 'image' %}{{ '<image_soft_token>' }}"
    "{% elif c['type'] == 'text' %}{{ c['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


class Gemma3nInputs:
    """Inputs of Transformers' Gemma 3n: images, sound and tokenizer, and rows of tokens.

    Its own class for all needs torchvision. What it writes for an image and a recording is in the
    source of `Gemma3nProcessor.__init__`. `recordings` are apart, since each is encoded by itself.
    """

    def __init__(self, tokenizer, images, sounds, states):
        self.tokenizer, self.images, self.sounds = tokenizer, images, sounds
        self.states = states

    def apply_chat_template(self, conversation, **options):
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=True
        )
        for name, count in (("audio", self.states), ("image", 4)):
            run = f"<{name}_soft_token>" * count
            whole = f"\n\n<start_of_{name}>{run}<end_of_{name}>\n\n"
            text = text.replace(f"<{name}_soft_token>", whole)
        found = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        images = self._parts(conversation, "image")
        pixels = self.images(images, return_tensors="pt") if images else {}
        return {"input_ids": found["input_ids"], **pixels}

    def recordings(self, conversation):
        """The features of each recording by itself, and their masks."""
        samples = self._parts(conversation, "audio")
        return [self.sounds([each], return_tensors="pt") for each in samples]

    @staticmethod
    def _parts(conversation, kind):
        content = [m["content"] for m in conversation if not isinstance(m["content"], str)]
        return [c[kind] for each in content for c in each if c["type"] == kind]


def gemma3n(folder, states=20, timm=False):
    """A Gemma 3n, whose recordings have this many states, and images 4, fewer than published.

    Its tower of images is timm's own, or has the names and sizes of timm's. All weights are
    determined by their names.
    """
    import torch
    import transformers

    if not timm:
        mobilenet_v5.register()
    tokenizer = tokenizer_of(
        boi_token="<start_of_image>", boa_token="<start_of_audio>", turn_token="<start_of_turn>",
        end_of_turn_token="<end_of_turn>",
    )  # fmt: skip
    first = len(tokenizer)
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<end_of_image>", "<image_soft_token>", "<further>"]},
        replace_extra_special_tokens=False,
    )
    of_sound = len(tokenizer)
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<end_of_audio>", "<audio_soft_token>", "<last>"]},
        replace_extra_special_tokens=False,
    )
    tokenizer.chat_template = OF_GEMMA3N
    size, values = len(tokenizer), OF_RECORDINGS["gemma3n"][1][0]
    parts = {  # the last tokens are those of images, and then those of sound
        "text_config": {"vocab_size": size, "vocab_size_per_layer_input": first},
        "vision_config": {"vocab_size": of_sound - first, "vocab_offset": first},
        "audio_config": {"vocab_size": size - of_sound, "vocab_offset": of_sound},
    }
    ids = {
        "eoi_token_id": first, "image_token_id": first + 1, "eoa_token_id": of_sound,
        "audio_token_id": of_sound + 1, "boi_token_id": tokenizer.boi_token_id,
        "boa_token_id": tokenizer.boa_token_id,
    }  # fmt: skip
    config = transformers.Gemma3nConfig(
        **{name: copy.deepcopy({**values[name], **own}) for name, own in parts.items()},
        audio_soft_tokens_per_image=states, vision_soft_tokens_per_image=4, **ids,
    )  # fmt: skip
    model = transformers.Gemma3nForConditionalGeneration(config)
    model.config.vision_config.model_args = mobilenet_v5.small_args()  # timm has taken some of it
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            norm = float("norm" in name and name.endswith("weight"))
            made = norm + np.float32(0.15) * mobilenet_v5.noise(name, tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(made.astype("float32")))
    mobilenet_v5.fill(model.model.vision_tower.timm_model)
    sounds = transformers.Gemma3nAudioFeatureExtractor(feature_size=16)
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    # As in published folders: one file with the values of images and of recordings.
    values = {
        **json.loads(sounds.to_json_string()), "image_processor_type": "SiglipImageProcessorFast",
        "do_normalize": False, "do_rescale": True, "do_resize": True, "resample": 2,
        "size": {"height": 64, "width": 64}, "processor_class": "Gemma3nProcessor",
    }  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    outer = {"audio_seq_length": states, "image_seq_length": 4}
    (folder / "processor_config.json").write_text(json.dumps(outer))
    images = transformers.SiglipImageProcessorPil(
        size={"height": 64, "width": 64}, do_normalize=False, resample=2
    )
    return model, Gemma3nInputs(tokenizer, images, sounds, states)


# SmolVLM's.
OF_SMOLVLM = (
    "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}"
    "{% if m['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
    "{% elif c['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def with_weights(model, processor, folder):
    """Save a model of random weights and its processor to a folder."""
    import torch

    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.eval().named_parameters():
            norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(mean=float(norm), std=0.4)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model, processor


def without_videos(processor_class):
    """A processor class of Transformers without its part for videos, which needs more packages."""

    class WithoutVideos(processor_class):
        @classmethod
        def get_attributes(cls):
            return ["image_processor", "tokenizer"]

    return WithoutVideos


# Two turns as in a chat of Qwen: the images of a message before its texts.
_IMAGES_FIRST = (
    "{% for m in messages %}{{ m['role'] + ' ' }}"
    "{% for c in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image> ' }}"
    "{% endfor %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ c['text'] + ' ' }}{% endfor %}{{ '</s> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant ' }}{% endif %}"
)


def llava_next(folder, name="LlavaNext"):
    """A LLaVA-NeXT, or a LLaVA-OneVision with images of more states than it describes them with."""
    import transformers

    tokenizer = tokenizer_of("<image>", "<video>")
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    text = {**sizes, "hidden_size": 12, "vocab_size": len(tokenizer), "num_key_value_heads": 1,
            "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
    image = {**sizes, "hidden_size": 16, "patch_size": 5}
    if name == "LlavaNext":
        side, tiles, kinds = 20, [(1, 2), (2, 1), (2, 2), (1, 3)], ("clip_vision_model", "mistral")
        options = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    else:
        side, kinds = 10, ("siglip_vision_model", "qwen2")
        tiles = [(row, column) for row in range(1, 5) for column in range(1, 5)]
        options = {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3}
        image["vision_use_head"] = False
    resolutions = [[side * row, side * column] for row, column in tiles]
    images = getattr(transformers, f"{name}ImageProcessorPil")(
        image_grid_pinpoints=resolutions, **options
    )
    if name == "LlavaNext":
        processor = transformers.LlavaNextProcessor(
            images, tokenizer, patch_size=5, vision_feature_select_strategy="default",
            chat_template=_IMAGES_FIRST, num_additional_image_tokens=1,
        )  # fmt: skip
    else:
        processor = without_videos(transformers.LlavaOnevisionProcessor)(
            images, tokenizer, None, num_image_tokens=4, chat_template=_IMAGES_FIRST,
            vision_feature_select_strategy="full",
        )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(
        getattr(transformers, f"{name}Config")(
            vision_config={**image, "image_size": side, "model_type": kinds[0]},
            text_config={**text, "model_type": kinds[1]},
            image_token_index=4,
            image_grid_pinpoints=resolutions,
        )
    )
    return with_weights(model, processor, folder)


# InternVL's.
OF_INTERNVL = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}{{ '<IMG_CONTEXT>\n' }}{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def internvl(folder):
    """An InternVL, whose images are up to six tiles of 20 x 20 pixels and a thumbnail."""
    import transformers

    tokenizer = tokenizer_of(
        start_image_token="<img>", end_image_token="</img>", context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )  # fmt: skip
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]},
        replace_extra_special_tokens=False,
    )
    images = transformers.GotOcr2ImageProcessorPil(
        size={"height": 20, "width": 20}, crop_to_patches=True, max_patches=6
    )
    processor = without_videos(transformers.InternVLProcessor)(
        images, tokenizer, image_seq_length=4, chat_template=OF_INTERNVL
    )
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    model = transformers.InternVLForConditionalGeneration(
        transformers.InternVLConfig(
            vision_config={**sizes, "hidden_size": 16, "image_size": [20, 20],
                           "patch_size": [5, 5], "attention_bias": True},
            text_config={**sizes, "model_type": "qwen2", "hidden_size": 12, "pad_token_id": 0,
                         "vocab_size": len(tokenizer), "num_key_value_heads": 1, "bos_token_id": 1,
                         "eos_token_id": 2},
            image_token_id=tokenizer.context_image_token_id,
        )
    )  # fmt: skip
    return with_weights(model, processor, folder)


def smolvlm(folder, name="SmolVLM", **options):
    """A SmolVLM or an Idefics 3, whose images are cut into tiles of 20 x 20 pixels."""
    import transformers

    tokenizer = tokenizer_of(image_token="<image>")
    places = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    tokenizer.add_special_tokens(
        {
            "extra_special_tokens": [
                "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<|im_start|>",
                *places,
            ]
        },
        replace_extra_special_tokens=False,
    )  # fmt: skip
    images = getattr(transformers, f"{name}ImageProcessorPil")(
        size={"longest_edge": 48}, max_image_size={"longest_edge": 20}, **options
    )
    # SmolVLM's processor writes the same, and needs further packages for videos.
    processor = transformers.Idefics3Processor(
        images, tokenizer, image_seq_len=4, chat_template=OF_SMOLVLM
    )
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 20}
    model = getattr(transformers, f"{name}ForConditionalGeneration")(
        getattr(transformers, f"{name}Config")(
            vision_config={**sizes, "model_type": f"{name.lower()}_vision", "hidden_size": 16,
                           "image_size": 20, "patch_size": 5},
            text_config={**sizes, "model_type": "llama", "hidden_size": 12, "pad_token_id": 0,
                         "vocab_size": len(tokenizer), "num_key_value_heads": 1, "bos_token_id": 1,
                         "eos_token_id": 2},
            image_token_id=tokenizer.image_token_id, scale_factor=2,
        )
    )  # fmt: skip
    return with_weights(model, processor, folder)


def pictures(count=3, seed=0):
    """Images of several sizes."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, (24 + 3 * i, 30, 3), dtype="uint8") for i in range(count)]


def user(*parts):
    """A message of a user: strings, and images as parts; parts are taken as they are."""
    return {
        "role": "user",
        "content": [
            {"type": "text", "text": p}
            if isinstance(p, str)
            else p
            if isinstance(p, dict)
            else {"type": "image", "image": p}
            for p in parts
        ],
    }


def conversations():
    """Rows with none, one, two and five images, of which some come several times."""
    a, b, c = pictures()
    said = {"role": "assistant", "content": [{"type": "text", "text": "the first"}]}
    return [
        [user("which is dark ?")],
        [user(a, "which is dark ?")],
        [user("a : ", b, " b : ", a, " ?"), said, user("which ?")],
        [user(a, b, "which ?"), said, user(c, "or ", c.copy(), a, " ?")],
    ]
