"""Trains a decoder-only model on tiny Shakespeare, and continues prompts before and after.

python examples/language_model.py --output my_model
keras-transformer generate --preset my_model "ROMEO:"
"""

import keras
from absl import app, flags
from datasets import tiny_shakespeare

import keras_transformer as kt

FLAGS = flags.FLAGS
flags.DEFINE_integer("epochs", 6, "Passes over the training text.", lower_bound=1)
flags.DEFINE_integer("batch_tokens", 2048, "Tokens of a training step.", lower_bound=64)
flags.DEFINE_integer("vocabulary_size", 1000, "Tokens of the vocabulary.", lower_bound=300)
flags.DEFINE_float("learning_rate", 2e-3, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("train_size", None, "Use the first speeches only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of weights, dropout and shuffling.")
flags.DEFINE_string("output", None, "Save the model as a preset here.")

PROMPTS = [
    "ROMEO:\nO",
    "KING RICHARD III:\nNow",
    "First Citizen:\nWhat",
    "JULIET:\nIf thou",
]


def build(tokenizer: kt.Tokenizer) -> kt.CausalLM:
    """The model: 4 layers of width 128, rotary positions."""
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=128,
        num_layers=4,
        num_heads=4,
        intermediate_dim=512,
        activation="gelu",
        normalize_first=True,
        position="rotary",
        max_sequence_length=256,
        dropout=0.1,
        initializer_range=0.02,
    )
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


def show(lm: kt.CausalLM, title: str):
    """Prints what the model makes of the prompts."""
    print(f"\n{title}\n")
    beam = kt.generation.BeamSearch(num_beams=4)
    for text in lm.generate(PROMPTS, max_new_tokens=48, sampler=beam, return_prompt=True):
        print("  " + text.strip().replace("\n", "\n  ") + "\n")


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    # A speech is a text: a name, a colon, a line break, the lines. The last tenth is held out.
    speeches = tiny_shakespeare().strip().split("\n\n")
    first_held_out = len(speeches) * 9 // 10
    train, held_out = speeches[:first_held_out], speeches[first_held_out:]
    train, held_out = train[: FLAGS.train_size], held_out[: FLAGS.train_size]
    # A continuation keeps the space that it starts with.
    tokenizer = kt.Tokenizer.train(
        train, vocabulary_size=FLAGS.vocabulary_size, add_prefix_space=False
    )
    lm = build(tokenizer)
    batches = {"batch_tokens": FLAGS.batch_tokens, "max_buckets": 4}
    dataset = lm.make_dataset(train, shuffle=True, seed=FLAGS.seed, **batches)
    validation = lm.make_dataset(held_out, **batches)
    steps = len(dataset) * FLAGS.epochs
    schedule = kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 10)
    lm.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.1, beta_2=0.98, clipnorm=1.0),
        loss=kt.training.TokenCrossEntropy(),
        weighted_metrics=[kt.training.Perplexity()],
    )
    print(
        f"{len(train):,} speeches, {dataset.tokens_per_epoch:,} tokens in {len(dataset)} batches, "
        f"{dataset.padding_share:.1%} padding; {lm.count_params():,} parameters on "
        f"{keras.backend.backend()}."
    )
    show(lm, "Before the training:")
    before = lm.evaluate(validation, verbose=0)[0]
    history = lm.fit(
        dataset,
        epochs=FLAGS.epochs,
        validation_data=validation,
        callbacks=[kt.training.Throughput(dataset)],
    ).history
    show(lm, "After the training:")
    losses = [before, *history["val_loss"]]
    print("validation loss a token, before and after each epoch:")
    print("  " + "  ".join(f"{loss:.3f}" for loss in losses))
    if FLAGS.output:
        lm.save_to_preset(FLAGS.output)
        print(f"\nThe preset is in {FLAGS.output}. Try:")
        print(f'  keras-transformer generate --preset {FLAGS.output} "ROMEO:" --beams 4')


if __name__ == "__main__":
    app.run(main)
