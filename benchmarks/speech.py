"""Whisper tiny on 30 seconds of sound: features, encoder, and 100 tokens, greedy.

python benchmarks/speech.py --rounds 3

In float32, except for contenders named `bfloat16`. The weights are random, so the tokens are
meaningless, and each contender generates as many as requested.
"""

import functools
import pathlib
import tempfile

import numpy as np
from harness import BACKENDS, main, median_seconds, use_threads_of_torch

RATE, SECONDS, TOKENS, START = 16_000, 30, 100, 50_258


def sound() -> np.ndarray:
    time = np.arange(SECONDS * RATE) / RATE
    noise = np.random.default_rng(0).normal(size=time.size)
    return (0.3 * np.sin(440 * time) + 0.01 * noise).astype("float32")


def _measured(transcribe) -> list:
    return [("recordings", 1 / median_seconds(transcribe, runs=5, warmup=2))]


def ours(dtype: str = "float32") -> list:
    import keras

    import keras_transformer as kt

    if keras.backend.backend() == "torch":
        use_threads_of_torch()
    backbone = kt.Backbone.from_preset("whisper_tiny_multi", load_weights=False, dtype=dtype)
    processor, tokenizer = kt.AudioProcessor(length=3000), kt.Tokenizer.of_symbols(range(51_860))
    # Without an end it writes all the tokens that it may.
    task = kt.SpeechToText(backbone, processor, tokenizer, start_id=START, end_ids=[])
    samples = sound()
    prompt, options = [[START]], {"max_new_tokens": TOKENS}

    def transcribe():
        (found,) = task.written([samples], prompt, options, return_details=False)
        return found

    return _measured(transcribe)


def _reference():
    import torch
    import transformers as library

    use_threads_of_torch()
    torch.manual_seed(0)
    config = library.WhisperConfig(
        vocab_size=51_865, decoder_start_token_id=START, pad_token_id=50_257, bos_token_id=50_257,
        eos_token_id=50_257, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return library.WhisperForConditionalGeneration(config).eval()


def transformers(dtype: str = "float32") -> list:
    import torch
    import transformers as library

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = _reference().to(device, getattr(torch, dtype))
    extract, samples = library.WhisperFeatureExtractor(), sound()
    lengths = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS}

    def transcribe():
        features = extract(samples, sampling_rate=RATE, return_tensors="pt").input_features
        with torch.inference_mode():
            features = features.to(device, model.dtype)
            found = model.generate(features, do_sample=False, **lengths)
        assert found.shape[-1] >= TOKENS
        return found

    return _measured(transcribe)


def ctranslate2() -> list:
    """Run CTranslate2 on features from Transformers, since it computes none."""
    import ctranslate2 as library
    import transformers

    folder = pathlib.Path(tempfile.mkdtemp())
    _reference().save_pretrained(folder / "theirs")
    _tokenizer().save_pretrained(folder / "theirs")
    converter = library.converters.TransformersConverter(str(folder / "theirs"))
    model = library.models.Whisper(
        converter.convert(str(folder / "converted")), compute_type="float32"
    )
    extract, samples = transformers.WhisperFeatureExtractor(), sound()

    def transcribe():  # It writes half as many tokens as `max_length` says.
        features = extract(samples, sampling_rate=RATE, return_tensors="np").input_features
        features = library.StorageView.from_array(np.ascontiguousarray(features))
        found = model.generate(
            features, [[START]], beam_size=1, max_length=2 * TOKENS, suppress_blank=False,
            suppress_tokens=[50_257],
        )  # fmt: skip
        assert len(found[0].sequences_ids[0]) >= TOKENS
        return found

    return _measured(transcribe)


def _tokenizer():
    """As many tokens as Whisper has, with its names for those that are told."""
    import transformers
    from tokenizers import Tokenizer, models

    named = {
        50_257: "<|endoftext|>", 50_258: "<|startoftranscript|>", 50_259: "<|en|>",
        50_358: "<|translate|>", 50_359: "<|transcribe|>", 50_360: "<|startoflm|>",
        50_361: "<|startofprev|>", 50_362: "<|nospeech|>", 50_363: "<|notimestamps|>",
    }  # fmt: skip
    words = {named.get(i, f"w{i}"): i for i in range(51_865)}
    backend = Tokenizer(models.WordLevel(words, named[50_257]))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=named[50_257])


CONTENDERS = {
    **{f"keras_transformer-{backend}": ours for backend in BACKENDS},
    "transformers": transformers,
    "ctranslate2": ctranslate2,
}
DEFAULT = list(CONTENDERS)
for _backend in BACKENDS:
    CONTENDERS[f"keras_transformer-bfloat16-{_backend}"] = functools.partial(ours, "bfloat16")
CONTENDERS["transformers-bfloat16"] = functools.partial(transformers, "bfloat16")

if __name__ == "__main__":
    main(__doc__.splitlines()[0], CONTENDERS, "recordings/s", DEFAULT)
