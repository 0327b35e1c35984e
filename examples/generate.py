"""Stream generated text from any decoder-only preset.

Without flags it uses the bundled preset that continues Shakespeare's plays (language_model.py
trains such a model).

    python examples/generate.py
    python examples/generate.py --prompt "JULIET:" --temperature 0.8 --top_p 0.9 --seed 3
    python examples/generate.py --preset hf://openai-community/gpt2 --prompt "The old sailor"

Ctrl-C ends a text; the printed part stays, and the model can be used again.
"""

import time

from runs import start

import keras_transformer as kt

from absl import flags

PRESET = flags.DEFINE_string(
    "preset", "gpt_tiny_shakespeare", "Preset, folder or hf:// name of a decoder."
)
PROMPTS = flags.DEFINE_multi_string("prompt", ["ROMEO:", "First Citizen:"], "Texts to continue.")
TOKENS = flags.DEFINE_integer("max_new_tokens", 80, "Maximum number of new tokens.", lower_bound=1)
TEMPERATURE = flags.DEFINE_float("temperature", 0.7, "0 for the likeliest token at every step.")
TOP_P = flags.DEFINE_float("top_p", 0.95, "Probability mass to sample from.")
STOP = flags.DEFINE_multi_string("stop", [], "The text ends before these strings.")
SEED = flags.DEFINE_integer("seed", 0, "Seed of the random choices.")


def main(_) -> None:
    lm = kt.CausalLM.from_preset(PRESET.value)
    if TEMPERATURE.value > 0:
        sampler = kt.generation.Random(temperature=TEMPERATURE.value, top_p=TOP_P.value)
    else:
        sampler = kt.generation.Greedy()
    for prompt in PROMPTS.value:
        print(f"\n{prompt}", end="", flush=True)
        start, first, text = time.perf_counter(), None, ""
        try:
            for piece in lm.generate(
                prompt,
                max_new_tokens=TOKENS.value,
                sampler=sampler,
                stop=STOP.value or None,
                seed=SEED.value,
                stream=True,
            ):
                first = first or time.perf_counter() - start
                text += piece
                print(piece, end="", flush=True)
        except KeyboardInterrupt:
            print(" [interrupted]", end="")
        seconds = time.perf_counter() - start
        count = len(lm.tokenizer.encode(text, special_tokens=False)) if text else 0
        print(
            f"\n[{count} tokens in {seconds:.1f} s, the first after {first or seconds:.2f} s, "
            "compilation included]"
        )


if __name__ == "__main__":
    start(main)
