"""Train a decoder-only model on tiny Shakespeare, and continue prompts before and after.

    python examples/language_model.py --output my_model
    keras-transformer generate --preset my_model "ROMEO:"

The text is cut into overlapping windows. The loss is measured on the last tenth of the text, for
tokens with at least half a window before them, in nats per character, so that models with other
vocabularies can be compared. If it is killed and started again with the same flags and a
--work_dir, it resumes. To train the preset again: make reproduce PRESET=gpt_tiny_shakespeare
"""

import pathlib
import tempfile

from runs import check_recipe, start, values

import keras_transformer as kt
from example_data import tiny_shakespeare

import keras
import numpy as np
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_integer(
    "epochs", 3, "Passes over the windows, which have each token twice.", lower_bound=1
)
flags.DEFINE_integer("batch_size", 16, "Windows in a training step.", lower_bound=1)
flags.DEFINE_integer("window", 128, "Tokens in a window.", lower_bound=8)
flags.DEFINE_integer("vocabulary_size", 512, "Tokens of the vocabulary.", lower_bound=300)
flags.DEFINE_integer("layers", 4, "Blocks of the model.", lower_bound=1)
flags.DEFINE_integer("width", 128, "Width of the model, a multiple of 64.", lower_bound=64)
flags.DEFINE_float("dropout", 0.1, "Dropout rate.")
flags.DEFINE_float("learning_rate", 3e-3, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_integer("train_size", None, "Use the first characters only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of weights, dropout and shuffling.")
flags.DEFINE_string("work_dir", None, "Folder for checkpoints. Defaults to a temporary one.")
flags.DEFINE_string("output", None, "Save the model as a preset here.")

# The flags that define the training.
RECIPE = (
    "epochs batch_size window vocabulary_size layers width dropout learning_rate train_size seed"
)
PROMPTS = ["ROMEO:\nO", "KING RICHARD III:\nNow", "First Citizen:\nWhat", "JULIET:\nIf thou"]


def build(tokenizer: kt.Tokenizer) -> kt.CausalLM:
    """Build a decoder like current language models: rotary positions, RMSNorm, gated layers."""
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=FLAGS.width // 64,
        intermediate_dim=2 * FLAGS.width,
        activation="silu",
        gated=True,
        use_bias=False,
        normalization="rms_norm",
        normalize_first=True,
        query_key_norm=True,
        position="rotary",
        max_sequence_length=FLAGS.window,
        dropout=FLAGS.dropout,
        initializer_range=0.02,
    )
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


def windows(ids: np.ndarray) -> kt.data.TokenRows:
    """Return rows one token longer than a window; each begins in the middle of the one before."""
    starts = np.arange(0, max(1, len(ids) - FLAGS.window // 2), FLAGS.window // 2)
    return kt.data.TokenRows(ids, np.minimum(FLAGS.window + 1, len(ids) - starts), starts)


def dataset(rows: kt.data.TokenRows, **options) -> kt.data.BucketedDataset:
    """Return batches of windows, whose targets are the next tokens."""
    objective = kt.training.NextToken()
    return kt.data.BucketedDataset(
        objective.columns(rows), objective, batch_size=FLAGS.batch_size, max_buckets=1, **options
    )


def nats_per_character(lm: kt.CausalLM, ids: np.ndarray) -> float:
    """Return the loss on a text, for tokens with at least half a window before them."""
    scores = lm.score([row.tolist() for row in windows(ids)], per_token=True)
    half = FLAGS.window // 2
    new = [scores[0], *(row[half:] for row in scores[1:])]
    return -sum(row.sum(dtype="float64") for row in new) / len(lm.tokenizer.decode(ids[1:]))


def show(lm: kt.CausalLM, title: str):
    """Print the continuations of the prompts."""
    print(f"\n{title}\n")
    sampler = kt.generation.Random(temperature=0.8, top_p=0.95)
    texts = lm.generate(PROMPTS, max_new_tokens=60, sampler=sampler, seed=0, return_prompt=True)
    for text in texts:
        print("  " + text.strip().replace("\n", "\n  ") + "\n")


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    if FLAGS.work_dir:
        train(pathlib.Path(FLAGS.work_dir))
    else:
        with tempfile.TemporaryDirectory() as folder:
            train(pathlib.Path(folder))


def train(work_dir: pathlib.Path):
    check_recipe(work_dir, values(RECIPE))
    text = tiny_shakespeare()[: FLAGS.train_size]
    training, held_out = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    # The model never sees the end of a text; a continuation keeps its leading space.
    tokenizer = kt.Tokenizer.train(
        training.split("\n\n"),
        vocabulary_size=FLAGS.vocabulary_size,
        add_prefix_space=False,
        template="none",
    )
    ids, held_out_ids = (np.array(tokenizer.encode(part)) for part in (training, held_out))
    lm = build(tokenizer)
    batches = dataset(windows(ids), shuffle=True, seed=FLAGS.seed)
    steps = len(batches) * FLAGS.epochs
    lm.compile(
        optimizer=keras.optimizers.AdamW(
            kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 20),
            weight_decay=0.1,
            beta_2=0.98,
            global_clipnorm=1.0,
        ),
        loss=kt.training.TokenCrossEntropy(),
        weighted_metrics=[kt.training.Perplexity()],
    )
    print(
        f"{len(training):,} characters, {len(ids):,} tokens, {len(batches)} batches; "
        f"{lm.count_params():,} parameters on {keras.backend.backend()}."
    )
    show(lm, "Before the training:")
    before = nats_per_character(lm, held_out_ids)
    checkpoints = kt.training.LastCheckpoints(
        work_dir / "checkpoints", keep=10, every=max(1, steps // 50)
    )
    lm.fit(
        batches,
        epochs=FLAGS.epochs,
        validation_data=dataset(windows(held_out_ids)),
        callbacks=[
            kt.training.Throughput(batches),
            checkpoints,
            # Last, so that an epoch counts as finished only after everything else is written.
            kt.training.ResumableRun(work_dir, batches, every=50),
        ],
        verbose=2,
    )
    last = nats_per_character(lm, held_out_ids)
    checkpoints.average_into(lm)
    average = nats_per_character(lm, held_out_ids)
    show(lm, "After the training:")
    print(
        "loss on the last tenth of the text, nats a character:\n"
        f"  before {before:.3f}   after {last:.3f}   "
        f"average of {len(checkpoints.paths)} checkpoints {average:.3f}"
    )
    if FLAGS.output:
        lm.save_to_preset(
            FLAGS.output,
            dtype="float16",
            metadata={
                "family": "transformer",
                "description": "Continues text in the manner of Shakespeare's plays.",
                "source": "trained with examples/language_model.py",
                "license": "apache-2.0",
                "validation_nats_per_character": round(average, 3),
            },
        )
        print(f"\nThe preset is in {FLAGS.output}. Try:")
        print(f'  keras-transformer generate --preset {FLAGS.output} "ROMEO:" --top-p 0.95')


if __name__ == "__main__":
    start(main)
