"""Write chorales in four voices with a small decoder trained on 229 of Bach's.

python examples/music.py --output new                          writes a new one
python examples/music.py --chorale 3                           continues an unseen one
python examples/music.py --train --output my_chorales

Without --train a preset writes a chorale, as MIDI and WAV to hear and as a piano roll to see, and
its statistics are printed next to those of unseen chorales. With --train a decoder is trained, and
an LSTM with as many weights on the same batches, and both are scored on the unseen chorales. If it
is killed and started again with the same flags and a --work_dir, it resumes.
"""

import itertools
import pathlib
import tempfile

from runs import check_recipe, start, values

import keras_transformer as kt
from chorales import (
    BEAT,
    STEPS_PER_BEAT,
    SYMBOLS,
    draw,
    from_text,
    statistics,
    to_text,
    transpositions,
    voice_ranges,
    write_midi,
    write_wav,
)
from example_data import chorales

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "chorales", "Preset that writes.")
flags.DEFINE_string(
    "output", "chorale", "Path of the files, without .mid; with --train, the preset."
)
flags.DEFINE_integer("chorale", None, "Number of the validation chorale to continue.")
flags.DEFINE_integer("beats", 16, "Quarter notes of it that are given.", lower_bound=1)
flags.DEFINE_integer("new_beats", 48, "Quarter notes to write.", lower_bound=1)
flags.DEFINE_float("temperature", 0.9, "Temperature; below 1 favours likely notes.")
flags.DEFINE_float("top_p", 0.97, "Probability mass of the notes to sample from.")
flags.DEFINE_boolean("train", False, "Train a decoder, and an LSTM for comparison.")
flags.DEFINE_boolean("lstm", True, "With --train, train the LSTM too.")
flags.DEFINE_integer("layers", 4, "Blocks of the decoder.", lower_bound=1)
flags.DEFINE_integer("width", 128, "Width of the states, a multiple of 32.", lower_bound=32)
flags.DEFINE_integer("window", 256, "Number of symbols that a note attends to.", lower_bound=8)
flags.DEFINE_integer("row", 24, "Quarter notes in a training row.", lower_bound=2)
flags.DEFINE_integer("epochs", 2, "Passes over all transpositions of the chorales.", lower_bound=1)
flags.DEFINE_integer("batch_size", 16, "Rows in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 3e-3, "Peak of the learning rate, which then falls to 0.")
flags.DEFINE_float("dropout", 0.1, "Dropout rate.")
flags.DEFINE_integer("train_size", None, "Use the first chorales only, for a quick look.")
flags.DEFINE_integer("seed", 0, "Seed of weights, rows, dropout and sampling.")
flags.DEFINE_string("work_dir", None, "Folder from which a killed run is resumed.")

_RECIPE = "layers width window row epochs batch_size learning_rate dropout train_size seed"


def make_tokenizer() -> kt.Tokenizer:
    """Make a tokenizer with a token for each voice and pitch, and for start and end."""
    return kt.Tokenizer.of_symbols(SYMBOLS, template="start_end")


def make_decoder(tokenizer: kt.Tokenizer) -> kt.CausalLM:
    """Build a decoder with rotary positions, RMSNorm, gated feed-forward layers and a window."""
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=FLAGS.width,
        num_layers=FLAGS.layers,
        num_heads=FLAGS.width // 32,
        intermediate_dim=2 * FLAGS.width,
        activation="silu",
        gated=True,
        use_bias=False,
        normalization="rms_norm",
        normalize_first=True,
        query_key_norm=True,
        position="rotary",
        window=FLAGS.window,
        max_sequence_length=4096,
        dropout=FLAGS.dropout,
        initializer_range=0.02,
    )
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


def make_lstm(vocabulary_size: int, weights: int) -> keras.Model:
    """Make two LSTM layers after an embedding, with about `weights` weights in all."""

    def count(units):
        embedding, output = vocabulary_size * FLAGS.width, (units + 1) * vocabulary_size
        return embedding + 4 * units * (FLAGS.width + 3 * units + 2) + output

    units = min(range(8, 2048), key=lambda units: abs(count(units) - weights))
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    mask = keras.Input((None,), dtype="bool", name="padding_mask")  # rows are padded at the end
    x = keras.layers.Embedding(vocabulary_size, FLAGS.width)(ids)
    for _ in range(2):
        x = keras.layers.Dropout(FLAGS.dropout)(x)
        x = keras.layers.LSTM(units, return_sequences=True)(x)
    x = keras.layers.Dropout(FLAGS.dropout)(x)
    logits = keras.layers.Dense(vocabulary_size)(x)
    return keras.Model({"token_ids": ids, "padding_mask": mask}, logits, name="lstm")


def rows_of(pieces: list, tokenizer: kt.Tokenizer, seed: int) -> kt.data.TokenRows:
    """Return rows of some quarter notes of each chorale in every key that fits."""
    random, beat = np.random.default_rng(seed), tokenizer.encode(BEAT, special_tokens=False)[0]
    ranges, rows = voice_ranges(pieces), []
    for piece in pieces:
        for moved in transpositions(piece, ranges):
            ids = np.array(tokenizer.encode(to_text(moved)))
            begins = np.flatnonzero(ids == beat)[random.integers(1, FLAGS.row + 1) :: FLAGS.row]
            # The last token of a row is the first of the next, so that every token is predicted.
            bounds = [0, *begins.tolist(), len(ids) - 1]
            rows += [ids[a : b + 1].tolist() for a, b in itertools.pairwise(bounds)]
    return kt.data.TokenRows.from_lists([row for row in rows if len(row) > 1])


def batches(rows: kt.data.TokenRows) -> kt.data.BucketedDataset:
    """Return batches of rows, whose targets are the next tokens."""
    objective = kt.training.NextToken()
    return kt.data.BucketedDataset(
        objective.columns(rows), objective, batch_size=FLAGS.batch_size, max_buckets=2,
        shuffle=True, seed=FLAGS.seed,
    )  # fmt: skip


def nats_a_note(scores: list[np.ndarray], rows: list[list[int]], tokenizer: kt.Tokenizer) -> float:
    """Return the loss per note, without the symbols for quarter notes and the end."""
    notes = set(range(tokenizer.vocabulary_size)) - set(tokenizer.special_ids)
    notes -= set(tokenizer.encode(BEAT, special_tokens=False))
    found = [score[np.isin(row[1:], list(notes))] for score, row in zip(scores, rows, strict=True)]
    return -float(np.concatenate(found).mean(dtype="float64"))


def scores_of_lstm(model: keras.Model, rows: list[list[int]]) -> list[np.ndarray]:
    """Return the log-probability of each token but the first, reading each row as a whole."""
    scores = []
    longest = max(map(len, rows)) - 1
    for begin in range(0, len(rows), 8):
        part = rows[begin : begin + 8]
        ids = np.array([row[:-1] + [0] * (longest + 1 - len(row)) for row in part], "int32")
        inputs = {"token_ids": ids, "padding_mask": np.ones_like(ids, bool)}
        logits = np.asarray(model.predict_on_batch(inputs), "float64")
        logits -= np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        for row, of_row in zip(part, logits, strict=True):
            scores.append(of_row[np.arange(len(row) - 1), row[1:]])
    return scores


def fit(model: keras.Model, dataset: kt.data.BucketedDataset, folder: pathlib.Path, loss) -> None:
    """Train a model; the decoder and the LSTM are trained alike."""
    steps = len(dataset) * FLAGS.epochs
    rate = kt.training.LinearDecay(FLAGS.learning_rate, steps, warmup_steps=steps // 20)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.1, beta_2=0.98, global_clipnorm=1.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "embedding"])
    model.compile(optimizer, loss)
    print(f"{model.count_params():,} parameters, {steps:,} steps", flush=True)
    run = kt.training.ResumableRun(folder, dataset, every=100)
    model.fit(dataset, epochs=FLAGS.epochs, shuffle=False, callbacks=[run], verbose=2)


def train(work_dir: pathlib.Path) -> None:
    """Train the decoder and the LSTM, score them on unseen chorales, and save the decoder."""
    tokenizer = make_tokenizer()
    pieces = chorales("train")[: FLAGS.train_size]
    unseen = chorales("valid")[: FLAGS.train_size]
    rows = [tokenizer.encode(to_text(piece)) for piece in unseen]
    dataset = batches(rows_of(pieces, tokenizer, FLAGS.seed))
    keras.utils.set_random_seed(FLAGS.seed)
    lm = make_decoder(tokenizer)
    fit(lm, dataset, work_dir / "decoder", kt.training.TokenCrossEntropy())
    found = {"decoder": nats_a_note(lm.score(rows, per_token=True), rows, tokenizer)}
    print(f"decoder: {found['decoder']:.4f} nats a note of unseen chorales", flush=True)
    if FLAGS.lstm:
        keras.utils.set_random_seed(FLAGS.seed)
        lstm = make_lstm(tokenizer.vocabulary_size, lm.count_params())
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        fit(lstm, dataset, work_dir / "lstm", loss)
        found["lstm"] = nats_a_note(scores_of_lstm(lstm, rows), rows, tokenizer)
        print(f"LSTM: {found['lstm']:.4f} nats a note of unseen chorales", flush=True)
    if FLAGS["output"].present:
        metadata = {
            "family": "transformer",
            "description": "Writes chorales in four voices, in the manner of Bach's.",
            "source": "trained with examples/music.py",
            "license": "apache-2.0",
            "validation_nats_per_note": round(found["decoder"], 4),
        }
        lm.save_to_preset(FLAGS.output, dtype="float16", metadata=metadata)
        print(f"The decoder is in {FLAGS.output}.")


def write() -> None:
    """Write a chorale, or continue one, and print its statistics."""
    lm = kt.CausalLM.from_preset(FLAGS.preset)
    prompt = ""
    if FLAGS.chorale is not None:
        unseen = chorales("valid")
        if not 0 <= FLAGS.chorale < len(unseen):
            raise app.UsageError(f"--chorale must be from 0 to {len(unseen) - 1}.")
        prompt = to_text(unseen[FLAGS.chorale][: FLAGS.beats * STEPS_PER_BEAT])
    sampler = kt.generation.Random(temperature=FLAGS.temperature, top_p=FLAGS.top_p)
    text = lm.generate(
        prompt, max_new_tokens=FLAGS.new_beats * (4 * STEPS_PER_BEAT + 1), sampler=sampler,
        seed=FLAGS.seed, return_prompt=True,
    )  # fmt: skip
    written = from_text(text)
    given = len(from_text(prompt))
    write_midi(written, f"{FLAGS.output}.mid")
    write_wav(written, f"{FLAGS.output}.wav")
    draw(written, f"{FLAGS.output}.png", given)
    print(f"{len(written) // STEPS_PER_BEAT} quarters are in {FLAGS.output}.mid, .wav and .png.")
    print(" ".join(f"{name} {share:.1%}" for name, share in statistics([written[given:]]).items()))


def main(_):
    if not FLAGS.train:
        write()
    elif FLAGS.work_dir:
        check_recipe(pathlib.Path(FLAGS.work_dir), values(_RECIPE))
        train(pathlib.Path(FLAGS.work_dir))
    else:
        with tempfile.TemporaryDirectory() as folder:
            train(pathlib.Path(folder))


if __name__ == "__main__":
    start(main)
