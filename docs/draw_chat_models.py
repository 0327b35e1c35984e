"""Draws the picture of docs/chat_models.md: `python docs/draw_chat_models.py`, about a minute."""

from pathlib import Path

import keras_transformer as kt

PICTURE = Path(__file__).with_name("chat_models_loss.svg")
SOUNDS = {"dog": "Woof.", "cat": "Meow.", "cow": "Moo."}
ASKED = ["What does a {} say?", "A {} says", "How does a {} sound?"]
TARGETS = ("query", "key", "value", "output", "gate", "intermediate")
EPOCHS = 30


def losses(rank: int | None) -> list[float]:
    """Return the loss of each epoch of a full fine-tuning, or of LoRA of this rank."""
    import keras

    keras.utils.set_random_seed(0)
    base = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
    lm = kt.CausalLM(base.backbone, base.tokenizer.with_chat_template("zephyr"))
    if rank is not None:
        lm.enable_lora(rank=rank, targets=TARGETS)
    lm.compile(keras.optimizers.Adam(2e-3 if rank is None else 5e-3))
    prompts = [ask.format(animal) for animal in SOUNDS for ask in ASKED]
    answers = [sound for sound in SOUNDS.values() for _ in ASKED]
    return lm.fit(prompts, answers, epochs=EPOCHS, verbose=0).history["loss"]


def main():
    """Train both ways, and draw their losses."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    for label, rank in (("all weights, 2e-3", None), ("LoRA of rank 8, 5e-3", 8)):
        panel.plot(range(1, EPOCHS + 1), losses(rank), marker=".", label=label)
    panel.set(title="loss of the answers' tokens", xlabel="epoch", yscale="log")
    panel.legend(frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
