"""Models of Transformers with states of images among their tokens, and their processors."""

WORDS = ["<pad>", "<s>", "</s>", "<unk>", "<image>"]
WORDS += ["USER", ":", "ASSISTANT", "what", "is", "it", "?", "a", "dark", "bright", "square", "how"]
WORDS += [f"w{i}" for i in range(8)]
SIZE = 20
_IMAGES = {
    "hidden_size": 16, "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4,
    "image_size": SIZE, "patch_size": 5,
}  # fmt: skip
_TEXT = {
    "vocab_size": len(WORDS), "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 1, "intermediate_size": 20, "max_position_embeddings": 64,
    "head_dim": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def tokenizer(single="<s> $A"):
    """A `PreTrainedTokenizerFast` of words, which begins a text as `single` says.

    A new line is a word too.
    """
    import tokenizers
    import transformers
    from tokenizers import Regex, models, pre_tokenizers, processors

    words = {word: i for i, word in enumerate([*WORDS[:-1], "\n"])}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^\w\s]|\w+|\n"), "removed", invert=True)
    backend.add_special_tokens(WORDS[:5])
    special = [(token, words[token]) for token in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        unk_token="<unk>", cls_token="<s>", padding_side="left",
    )  # fmt: skip


def clip_images():
    from transformers import CLIPImageProcessor

    size = {"height": SIZE, "width": SIZE}
    return CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=size)


def llava():
    """The processor, and the config."""
    import transformers

    processor = transformers.LlavaProcessor(
        clip_images(), tokenizer(), patch_size=5, vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    )  # fmt: skip
    return processor, {
        "vision_config": {"model_type": "clip_vision_model", **_IMAGES},
        "text_config": {"model_type": "llama", **_TEXT},
        "image_token_index": 4,
    }


def paligemma():
    import transformers

    images = transformers.SiglipImageProcessor(size={"height": SIZE, "width": SIZE})
    images.image_seq_length = (SIZE // 5) ** 2
    texts = tokenizer(single="$A")
    texts.add_special_tokens({"additional_special_tokens": ["<image>"]})
    texts.image_token, texts.image_token_id = "<image>", 4
    processor = transformers.PaliGemmaProcessor(images, texts)
    size = len(processor.tokenizer)
    return processor, {
        "vision_config": {
            "model_type": "siglip_vision_model", "vision_use_head": False, **_IMAGES
        },
        "text_config": {"model_type": "gemma", **_TEXT, "vocab_size": size},
        "image_token_index": 4,
        "projection_dim": 12,
        "hidden_size": 12,
    }  # fmt: skip


def git():
    import transformers

    processor = transformers.GitProcessor(clip_images(), tokenizer(single="<s> $A </s>"))
    text = {name: _TEXT[name] for name in _TEXT if name not in ("num_key_value_heads", "head_dim")}
    return processor, {"vision_config": {"model_type": "git_vision_model", **_IMAGES}, **text}


MAKERS = {"llava": llava, "paligemma": paligemma, "git": git}


def saved(name, folder):
    """The model, its processor, and the folder with both."""
    from tests.checkpoints import families

    processor, values = MAKERS[name]()
    prefix, _ = families.CONFIGS[name]
    # Made as the small models of the family's tests are.
    families.CONFIGS[name] = (prefix, [values])
    try:
        model = families.make(name, 0, "LanguageModel")
    finally:
        families.CONFIGS[name] = (prefix, _)
    model.save_pretrained(folder)
    processor.tokenizer.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder)
    return model, processor
