"""Recognize speech in a recording: digits, one at a time or several in a row.

python examples/speech.py --recordings speech.wav --output speech.png
python examples/speech.py --train sequences --epochs 20 --output runs/my_listener

Without --train two presets read recordings, by default those in examples/data/audio: one classifies
a recording as a single digit, the other transcribes any number of digits. A picture shows their
inputs, the loudness of frequencies over time. With --train a model learns from the recordings of
six people and is scored on unseen recordings; with --leave_out on an unseen person.
"""

import pathlib

from runs import check_recipe, start, values

import keras_transformer as kt
from example_data import spoken_digits

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("classifier", "spoken_digits", "Preset that classifies a recording as a digit.")
flags.DEFINE_string("transcriber", "speech_digits_to_text", "Preset that transcribes digits.")
flags.DEFINE_list("recordings", [], "Paths of recordings. Defaults to examples/data/audio.")
flags.DEFINE_string("output", "speech.png", "Path of the picture; with --train, of the preset.")
flags.DEFINE_enum(
    "train", None, ["digits", "sequences"], "Train on single digits, or on one to six in a row."
)
flags.DEFINE_string("leave_out", None, "Speaker to leave out of training and to score on.")
flags.DEFINE_integer("copies", 8, "Versions of each recording, at different speeds.", lower_bound=1)
flags.DEFINE_integer("sequences", 12_000, "Sequences to train on.", lower_bound=100)
flags.DEFINE_integer("layers", 3, "Layers of the encoder; the decoder has 2.", lower_bound=1)
flags.DEFINE_integer("width", 128, "Width of the states.", lower_bound=8)
flags.DEFINE_integer("epochs", 20, "Passes over the recordings.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Recordings in a training step.", lower_bound=1)
flags.DEFINE_float("learning_rate", 1e-3, "Peak, reached after 5 % of the steps; then decays to 0.")
flags.DEFINE_integer("seed", 1, "Seed of weights, order, versions and sequences.")
flags.DEFINE_string("work_dir", "runs/speech", "Folder from which a killed run is resumed.")

RATE, BINS = 8000, 40
LENGTHS = {"digits": 120, "sequences": 400}  # in frames of a hundredth of a second
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
HELD_OUT = range(5, 10)  # of the 45 recordings of each digit by each speaker
_EXAMPLES = pathlib.Path(__file__).parent / "data" / "audio"
_RECIPE = (
    "train leave_out copies sequences layers width epochs batch_size learning_rate seed"
)  # fmt: skip


def make_task(train: str) -> kt.Task:
    """Build a model with the sizes of the flags and random weights."""
    length = LENGTHS[train]
    strides = (1, 2) if train == "digits" else (2, 2)
    stem = {"kind": "frames", "num_bins": BINS, "num_frames": length, "strides": strides}
    sizes = {
        "hidden_dim": FLAGS.width,
        "num_layers": FLAGS.layers,
        "num_heads": max(FLAGS.width // 32, 1),
        "intermediate_dim": 2 * FLAGS.width,
        "position": "sinusoidal",
        "normalize_first": True,
        "activation": "gelu",
        "dropout": 0.1,
    }
    processor = kt.AudioProcessor(
        sampling_rate=RATE, length=length, num_bins=BINS, window_length=200, hop_length=80
    )
    if train == "digits":
        config = kt.TransformerConfig(kind="encoder", vocabulary_size=0, stem=stem, **sizes)
        backbone = kt.models.Encoder(config)
        return kt.AudioClassifier(backbone, processor, labels=WORDS, pooling="attention")
    tokenizer = kt.Tokenizer.of_symbols(WORDS)
    config = kt.TransformerConfig(
        kind="seq2seq",
        vocabulary_size=tokenizer.vocabulary_size,
        num_decoder_layers=2,
        encoder={"vocabulary_size": 0, "stem": stem},
        **sizes,
    )
    return kt.SpeechToText(kt.models.Seq2Seq(config), processor, tokenizer)


def versions(recordings: list[np.ndarray], random: np.random.Generator) -> list[np.ndarray]:
    """Return each recording unchanged, and `--copies - 1` versions at other speeds and volumes."""
    import soxr

    made = list(recordings)
    for _ in range(FLAGS.copies - 1):
        for samples in recordings:
            faster = soxr.resample(samples, RATE, RATE * random.uniform(0.87, 1.15))
            noise = random.normal(size=len(faster)) * 10 ** random.uniform(-5, -2.5)
            made.append((faster * random.uniform(0.4, 1) + noise).astype("float32"))
    return made


def in_a_row(recordings: list, labels: list, count: int, random: np.random.Generator) -> tuple:
    """Return sequences of one to six recordings with pauses between them, and their words."""
    sounds, texts = [], []
    for _ in range(count):
        chosen = random.integers(len(recordings), size=random.integers(1, 7))
        parts = []
        for i in chosen:
            parts += [np.zeros(random.integers(0, RATE // 5), "float32"), recordings[i]]
        sounds.append((np.concatenate(parts) * 32_767).astype("int16"))
        texts.append(" ".join(labels[i] for i in chosen))
    return sounds, texts


def train() -> None:
    """Train a model, score it on unseen recordings, and save it."""
    check_recipe(pathlib.Path(FLAGS.work_dir), values(_RECIPE))
    keras.utils.set_random_seed(FLAGS.seed)
    random = np.random.default_rng(FLAGS.seed)
    rows = spoken_digits()
    speakers = {row["speaker"] for row in rows}
    if FLAGS.leave_out not in (None, *speakers):
        raise app.UsageError(f"--leave_out must be one of {', '.join(sorted(speakers))}.")
    unseen = [
        row["speaker"] == FLAGS.leave_out if FLAGS.leave_out else row["index"] in HELD_OUT
        for row in rows
    ]
    sounds = [kt.processors.read_audio(row["audio"], RATE) for row in rows]
    words = [WORDS[row["digit"]] for row in rows]
    known, new = ([i for i, u in enumerate(unseen) if u == wanted] for wanted in (False, True))
    x, y = versions([sounds[i] for i in known], random), [words[i] for i in known] * FLAGS.copies
    tests, truth = [sounds[i] for i in new], [words[i] for i in new]
    if FLAGS.train == "sequences":
        x, y = in_a_row(x, y, FLAGS.sequences, random)
        tests, truth = in_a_row(tests, truth, 1000, np.random.default_rng(0))
    task = make_task(FLAGS.train)
    dataset = task.make_dataset(x, y, batch_size=FLAGS.batch_size, shuffle=True, seed=FLAGS.seed)
    steps = len(dataset) * FLAGS.epochs
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps, warmup_target=FLAGS.learning_rate, warmup_steps=steps // 20
    )
    task.compile(keras.optimizers.AdamW(schedule, weight_decay=0.02, clipnorm=1.0))
    print(f"{task.count_params():,} parameters, {len(x):,} recordings", flush=True)
    run = kt.training.ResumableRun(FLAGS.work_dir, dataset)
    task.fit(dataset, epochs=FLAGS.epochs, callbacks=[run], verbose=2)
    who = f"of {FLAGS.leave_out}" if FLAGS.leave_out else "not heard in training"
    if FLAGS.train == "digits":
        right = [a == b for (a, _), b in zip(task.classify(tests), truth, strict=True)]
        print(f"accuracy on {len(tests):,} recordings {who}: {np.mean(right):.2%}")
    else:
        metric = kt.training.WordErrorRate()
        metric.update_state(truth, task.transcribe(tests, batch_size=64))
        rate = metric.result()
        print(f"word error rate on {len(tests):,} sequences of recordings {who}: {rate:.2%}")
    if FLAGS["output"].present:
        task.save_to_preset(FLAGS.output, dtype="float16")
        print(f"The model is in {FLAGS.output}.")


def look() -> None:
    """Transcribe recordings, print the results, and draw the inputs of the models."""
    paths = [pathlib.Path(p) for p in FLAGS.recordings] or sorted(_EXAMPLES.glob("*.wav"))
    classifier = kt.AudioClassifier.from_preset(FLAGS.classifier)
    transcriber = kt.SpeechToText.from_preset(FLAGS.transcriber)
    named, written = classifier.classify(paths), transcriber.transcribe(paths)
    for path, (label, probability), text in zip(paths, named, written, strict=True):
        print(f"{path.name:<24} one digit: {label} {probability:.0%}; several: {text}")
    draw(paths, named, written, transcriber.processor.source)
    print(f"The picture is in {FLAGS.output}.")


def draw(paths: list, named: list, written: list, processor: kt.AudioProcessor) -> None:
    """Draw the frames of each recording below its transcript."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(paths), 1, figsize=(8, 1.9 * len(paths)), squeeze=False, layout="constrained"
    )
    for axis, path, (label, probability), text in zip(
        axes[:, 0], paths, named, written, strict=True
    ):
        samples = processor.read([path])[0]
        frames = processor.frames_of(samples)[: len(samples) // processor.hop_length]
        seconds = len(frames) * processor.hop_length / processor.sampling_rate
        shown = (0, seconds, 0, processor.sampling_rate / 2000)
        axis.imshow(frames.T, origin="lower", aspect="auto", extent=shown, cmap="magma")
        axis.set_title(f"{path.name}: “{text}”   (as one digit: {label}, {probability:.0%})",
                       fontsize=9, loc="left")  # fmt: skip
        axis.set_ylabel("mel bands", fontsize=8)
        axis.set_yticks([])
    longest = max(axis.get_xlim()[1] for axis in axes[:, 0])
    for axis in axes[:, 0]:
        axis.set_xlim(0, longest)
    axes[-1, 0].set_xlabel("seconds")
    figure.savefig(FLAGS.output, dpi=120)
    pyplot.close(figure)


def main(_):
    train() if FLAGS.train else look()


if __name__ == "__main__":
    start(main)
