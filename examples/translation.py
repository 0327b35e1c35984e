"""Train a small Transformer to translate image descriptions, and translate the test set.

    python examples/translation.py --epochs 30 --output my_translator

If it is killed and started again with the same flags, it resumes at the same step; if it is started
again with more --epochs, it trains further, unless the schedule is linear. At the end the average
of the last checkpoints is saved as a preset in --output:

    keras-transformer translate --preset my_translator "A man rides a bike."
"""

import json
import pathlib
import time

from runs import check_recipe, start, values

import keras_transformer as kt
from example_data import multi30k

import keras
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("source", "en", ["en", "de", "fr"], "Language to translate from.")
flags.DEFINE_enum("target", "de", ["en", "de", "fr"], "Language to translate to.")
flags.DEFINE_string("work_dir", "runs/translation", "Checkpoints and logs of one run.")
flags.DEFINE_string("output", "runs/translation/preset", "Folder of the finished preset.")
flags.DEFINE_integer("epochs", 30, "Passes over the 29,000 training pairs.", lower_bound=1)
flags.DEFINE_integer("batch_tokens", 4096, "Tokens in a batch, on either side.", lower_bound=64)
flags.DEFINE_integer("vocabulary_size", 8000, "Tokens shared by both languages.", lower_bound=300)
flags.DEFINE_enum(
    "optimizer",
    "adam",
    ["adam", "muon"],
    "adam as in the paper; muon for the matrices of the blocks learns more from each step.",
)
flags.DEFINE_float("learning_rate", 0.005, "Peak of the learning rate.")
flags.DEFINE_enum(
    "schedule",
    "inverse_square_root",
    ["inverse_square_root", "linear"],
    "How the learning rate falls: as in the paper, or to 0 at the end.",
)
flags.DEFINE_integer(
    "warmup_steps", 1000, "Steps up to the peak; of linear at most a quarter.", lower_bound=1
)
flags.DEFINE_float("dropout", 0.3, "Dropout rate.")
flags.DEFINE_integer("bleu_every", 5, "Epochs between two measurements of BLEU.", lower_bound=1)
flags.DEFINE_integer("train_pairs", None, "Train on the first pairs only, for a quick look.")
flags.DEFINE_integer("eval_pairs", None, "Validate and test on the first pairs only, likewise.")
flags.DEFINE_integer("seed", 1, "Seed of weights, dropout and shuffling.")

# The flags that define the training, except its length.
RECIPE = (
    "source target train_pairs batch_tokens vocabulary_size optimizer learning_rate warmup_steps "
    "schedule dropout seed"
)
LANGUAGES = {"en": "English", "de": "German", "fr": "French"}
EXAMPLES = {
    "en": "A man rides a bike.",
    "de": "Ein Mann fährt Fahrrad.",
    "fr": "Un homme fait du vélo.",
}


def build(tokenizer: kt.Tokenizer) -> kt.Seq2SeqLM:
    """Build 4 + 4 layers of width 128, with one matrix for both embeddings and the output."""
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=128,
        num_layers=4,
        num_heads=4,
        intermediate_dim=256,
        normalize_first=True,
        dropout=FLAGS.dropout,
        scale_embedding=True,
    )
    return kt.Seq2SeqLM(kt.models.Seq2Seq(config), tokenizer)


def train_tokenizer(folder: pathlib.Path, texts: list[str]) -> kt.Tokenizer:
    """Return the tokenizer of an earlier start, or train a new one."""
    if (folder / "tokenizer.json").is_file():
        return kt.Tokenizer.from_files(folder)
    tokenizer = kt.Tokenizer.train(
        texts, kind="bpe", vocabulary_size=FLAGS.vocabulary_size, lowercase=True
    )
    tokenizer.save(folder)
    return tokenizer


def schedule(steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
    """Return the learning rate schedule for this many steps."""
    if FLAGS.schedule == "linear":
        warmup = min(FLAGS.warmup_steps, steps // 4)
        return kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup)
    return kt.training.InverseSquareRoot(FLAGS.learning_rate, FLAGS.warmup_steps)


def optimizer(steps: int) -> keras.optimizers.Optimizer:
    """Make an optimizer for this many steps. Muon: Jordan et al. 2024, scaled to Adam's step."""
    if FLAGS.optimizer == "adam":
        return kt.training.transformer_adam(schedule(steps))
    return keras.optimizers.Muon(
        schedule(steps), adam_beta_2=0.98, epsilon=1e-9, weight_decay=None, adam_weight_decay=None
    )


def main(_):
    keras.utils.set_random_seed(FLAGS.seed)
    work_dir = pathlib.Path(FLAGS.work_dir)
    # The values of the linear schedule depend on its end.
    recipe = values(RECIPE + (" epochs" if FLAGS.schedule == "linear" else ""))
    check_recipe(work_dir, recipe)
    languages = FLAGS.source, FLAGS.target
    source, target = (multi30k("train", language)[: FLAGS.train_pairs] for language in languages)
    tokenizer = train_tokenizer(work_dir / "tokenizer", source + target)
    translator = build(tokenizer)
    dataset = translator.make_dataset(
        source,
        target,
        batch_tokens=FLAGS.batch_tokens,
        multiple=4,
        shuffle=True,
        seed=FLAGS.seed,
    )
    translator.compile(
        optimizer=optimizer(len(dataset) * FLAGS.epochs),
        loss=kt.training.TokenCrossEntropy(label_smoothing=0.1),
        weighted_metrics=[kt.training.Perplexity()],
    )
    print(
        f"{len(source):,} pairs, {dataset.tokens_per_epoch:,} tokens in {len(dataset)} batches of "
        f"the lengths {dataset.buckets}, {dataset.padding_share:.1%} padding; "
        f"{translator.count_params():,} parameters on {keras.backend.backend()}."
    )
    validation = [multi30k("val", language)[: FLAGS.eval_pairs] for language in languages]
    checkpoints = kt.training.LastCheckpoints(work_dir / "checkpoints", keep=10)
    started = time.time()
    translator.fit(
        dataset,
        epochs=FLAGS.epochs,
        validation_data=tuple(validation),
        verbose=2,
        callbacks=[
            kt.training.Throughput(dataset),
            kt.training.BLEUCallback(
                *validation, tokenize="none", samples=3, every=FLAGS.bleu_every
            ),
            checkpoints,
            keras.callbacks.CSVLogger(work_dir / "log.csv", append=True),
            # Last, so that an epoch counts as finished only after everything else is written.
            kt.training.ResumableRun(work_dir, dataset, every=50),
        ],
    )
    hours = (time.time() - started) / 3600
    checkpoints.average_into(translator)

    test = [multi30k("test_2016_flickr", language)[: FLAGS.eval_pairs] for language in languages]
    beam = kt.generation.BeamSearch(num_beams=5)
    started = time.time()
    hypotheses = translator.generate(test[0], sampler=beam)
    speed = len(hypotheses) / (time.time() - started)
    bleu = kt.training.BLEU(tokenize="none")
    bleu.update_state(test[1], hypotheses)
    for i in range(0, len(test[0]), max(1, len(test[0]) // 3)):
        print(
            f"\n  source     {test[0][i]}\n  reference  {test[1][i]}\n  model      {hypotheses[i]}"
        )
    print(
        f"\ntest_2016, beam 5: BLEU {bleu.result():.2f} ({bleu.signature}), {speed:.1f} sentences/s"
    )
    translator.save_to_preset(
        FLAGS.output,
        dtype="float16",
        metadata={
            "family": "transformer",
            "text": "moses",  # so that the command takes ordinary text
            "description": f"Translates {LANGUAGES[FLAGS.source]} to {LANGUAGES[FLAGS.target]}, "
            "trained on Multi30k.",
            "source": "trained with examples/translation.py",
            "license": "Multi30k: non-commercial research and education",
            "test_2016_bleu": round(bleu.result(), 2),
        },
    )
    pathlib.Path(FLAGS.output, "recipe.json").write_text(
        json.dumps(
            {**recipe, "epochs": FLAGS.epochs, "hours_of_this_start": round(hours, 2)}, indent=2
        )
    )
    print(f"The preset is in {FLAGS.output}. Try:")
    print(f'  keras-transformer translate --preset {FLAGS.output} "{EXAMPLES[FLAGS.source]}"')


if __name__ == "__main__":
    start(main)
