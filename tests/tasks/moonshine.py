"""A Moonshine of Transformers with random weights, and a tokenizer of its kind."""

import functools
import string

from tests.tasks.whisper import sound

LETTERS = ["▁", *string.ascii_lowercase]
SPECIAL = ("<unk>", "<s>", "</s>")
LENGTHS = (2.2, 1.3, 0.7)  # seconds


@functools.cache
def vocabulary() -> dict[str, int]:
    letters = [*SPECIAL, *(f"<0x{i:02X}>" for i in range(256)), *LETTERS, "▁a", "th", "er"]
    return {token: i for i, token in enumerate(letters)}


def tokenizer():
    """A `PreTrainedTokenizerFast` as Llama's: letters, bytes for others, a start in front."""
    import tokenizers
    import transformers
    from tokenizers import AddedToken, decoders, models, normalizers, processors

    merges = [("▁", "a"), ("t", "h"), ("e", "r")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary(), merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    backend.add_special_tokens(list(SPECIAL))
    backend.add_special_tokens([AddedToken(f"<<ST_{i}>>", special=True) for i in range(5)])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>",
        unk_token="<unk>",
    )  # fmt: skip


def model(seed=0, **values):
    """A `MoonshineForConditionalGeneration` that writes something, and not always the same."""
    import torch
    import transformers

    config = transformers.MoonshineConfig(
        **{
            "vocab_size": len(vocabulary()) + 5, "hidden_size": 24, "intermediate_size": 20,
            "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
            "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
            "max_position_embeddings": 40, "pad_head_dim_to_multiple_of": 8,
        }
        | values
    )  # fmt: skip
    torch.manual_seed(seed)
    made = transformers.MoonshineForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            scale = 0.1 if "embed_tokens" in name else 0.5
            parameter.add_(scale * torch.randn_like(parameter))
    made.generation_config.max_length = 40
    made.generation_config._from_model_config = False  # so that it is kept
    return made


def features():
    import transformers

    return transformers.Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True)


def saved(reference, folder):
    """A folder as Moonshine's are published: weights, tokenizer, features."""
    reference.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    features().save_pretrained(folder)
    return folder


def recordings():
    return [sound(seconds, seed) for seed, seconds in enumerate(LENGTHS)]
