"""A Whisper of Transformers with random weights, and a tokenizer with its kinds of tokens."""

import functools

import numpy as np

LANGUAGES = ("en", "de", "yue")
SPECIAL = (
    "<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES),
    "<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>",
    "<|notimestamps|>",
)  # fmt: skip
SECONDS = 1  # of a window


@functools.cache
def vocabulary() -> dict[str, int]:
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    times = [f"<|{i * 0.02:.2f}|>" for i in range(round(SECONDS / 0.02) + 1)]
    return {token: i for i, token in enumerate([*letters, *SPECIAL, *times])}


def tokenizer():
    """A `PreTrainedTokenizerFast` as Whisper's: bytes, and tokens for tasks and times."""
    import tokenizers
    import transformers
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

    known = vocabulary()
    letters = {token: i for token, i in known.items() if i < 256}
    backend = tokenizers.Tokenizer(models.BPE(vocab=letters, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    for token in list(known)[256:]:
        backend.add_tokens([AddedToken(token, special=token in SPECIAL, normalized=False)])
    assert Regex and backend.get_vocab() == known
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )


def model(seed=0, **values):
    """A `WhisperForConditionalGeneration` that writes something, and not always the same."""
    import torch
    import transformers

    known = vocabulary()
    end = known["<|endoftext|>"]
    config = transformers.WhisperConfig(
        **{
            "vocab_size": len(known), "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
            "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 20, "num_mel_bins": 8, "max_source_positions": 50,
            "max_target_positions": 40, "pad_token_id": end, "bos_token_id": end,
            "eos_token_id": end, "decoder_start_token_id": known["<|startoftranscript|>"],
            "suppress_tokens": None, "begin_suppress_tokens": None,
        }
        | values
    )  # fmt: skip
    torch.manual_seed(seed)
    made = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            scale = 0.6 if "embed_tokens" in name or "embed_pos" in name else 0.15
            parameter.add_(scale * torch.randn_like(parameter))
    generation = made.generation_config
    generation._from_model_config = False  # so that what follows is kept
    generation.is_multilingual = True
    generation.lang_to_id = {f"<|{code}|>": known[f"<|{code}|>"] for code in LANGUAGES}
    generation.task_to_id = {t: known[f"<|{t}|>"] for t in ("transcribe", "translate")}
    generation.no_timestamps_token_id = known["<|notimestamps|>"]
    generation.max_initial_timestamp_index = 10
    generation.decoder_start_token_id = config.decoder_start_token_id
    generation.eos_token_id = generation.pad_token_id = generation.bos_token_id = end
    generation.max_length = 40
    generation.begin_suppress_tokens = [known["a"], end]
    return made


def features():
    import transformers

    return transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=SECONDS)


def saved(reference, folder):
    """A folder as Whisper's are published: weights, tokenizer, features."""
    reference.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    features().save_pretrained(folder)
    return folder


def sound(seconds, seed=0):
    random = np.random.default_rng(seed)
    time = np.arange(round(seconds * 16_000)) / 16_000
    pitch = 200 + 2000 * random.random() + 1500 * np.sin(3 * time + seed)
    return (0.3 * np.sin(2 * np.pi * np.cumsum(pitch) / 16_000)).astype("float32")
