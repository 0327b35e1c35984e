"""Teach a small decoder arithmetic by rewards: a verifier says only whether an answer is right.

python examples/reinforce_arithmetic.py --seeds=0,1
python examples/reinforce_arithmetic.py --preset=hf://Qwen/Qwen2.5-0.5B-Instruct --seeds=0

A decoder of characters first learns additions of two-digit numbers from answers, and stops early,
at an accuracy of 60%. Then it sees no more answers: it writes several for each problem, and
Dr. GRPO makes those likelier that the verifier accepts. A fifth of all problems is held out: the
accuracies are of these, which neither part of the training has seen.

With --preset a published model is trained in place of it, from its own accuracy on.
"""

import csv
import dataclasses
import pathlib
import random
import re
import time

from runs import check_recipe, start, values

import keras_transformer as kt

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_enum("size", "small", ["small", "tiny"], "Size of the decoder; tiny is for tests.")
flags.DEFINE_string("preset", None, "Preset of a CausalLM to train in place of the decoder.")
flags.DEFINE_list("seeds", ["0"], "Seeds of runs, one after the other.")
flags.DEFINE_enum(
    "loss",
    "dr_grpo",
    ["grpo", "clip_higher", "dr_grpo", "rloo", "ppo_clip"],
    "Loss of the rewards.",
)
flags.DEFINE_float("supervised", 0.6, "Accuracy at which the training on answers ends.")
flags.DEFINE_list(
    "steps", None, "Steps of rewards, by default those of the size; 250,150 are two rounds."
)
flags.DEFINE_integer("group_size", None, "Answers to a problem. By default those of the size.")
flags.DEFINE_integer("problems", None, "Problems in a step. By default those of the size.")
flags.DEFINE_integer("update_rows", None, "Answers in an update. By default those of the size.")
flags.DEFINE_float("learning_rate", None, "Peak of the rate of the rewards, which then falls to 0.")
flags.DEFINE_float("temperature", 1.0, "Temperature at which answers are sampled.")
flags.DEFINE_integer("every", 50, "Steps of rewards between two measurements.", lower_bound=1)
flags.DEFINE_string("work_dir", None, "Folder from which a killed run is resumed.")
flags.DEFINE_string("output", "reinforce_arithmetic.png", "Path of the picture; beside it a table.")

LOSSES = {
    "grpo": kt.training.GRPO(),
    "clip_higher": kt.training.GRPO(clip_high=0.28),
    "dr_grpo": kt.training.DrGRPO(),
    "rloo": kt.training.RLOO(beta=0.0),
    "ppo_clip": kt.training.PPOClip(),
}
_RECIPE = (
    "size preset loss supervised group_size problems update_rows learning_rate temperature every"
)


@dataclasses.dataclass(frozen=True)
class Size:
    """Sizes of a decoder and of its training."""

    hidden_dim: int
    num_layers: int
    batch_size: int  # of the training on answers
    most_batches: int
    problems: int
    group_size: int
    steps: int
    update_rows: int
    learning_rate: float


SIZES = {
    "small": Size(256, 4, 128, 4000, 64, 8, 800, 128, 1e-4),
    "tiny": Size(32, 1, 64, 120, 16, 4, 4, 32, 3e-3),
}
PRESET = Size(0, 0, 0, 0, 32, 8, 100, 64, 1e-6)
LONGEST = 4  # characters of an answer, and its end


def size() -> Size:
    """Return the sizes of the flags."""
    chosen = PRESET if FLAGS.preset else SIZES[FLAGS.size]
    given = values("group_size problems update_rows learning_rate")
    return dataclasses.replace(chosen, **{n: v for n, v in given.items() if v is not None})


def rounds() -> list[int]:
    """Return the steps of each round; within a round the learning rate falls to 0."""
    return [int(steps) for steps in FLAGS.steps or [size().steps]]


def problems(seed: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the problems to learn from, with their answers, and those that are held out."""
    numbers = range(10, 100)
    found = [(f"{a}+{b}=", str(a + b)) for a in numbers for b in numbers]
    random.Random(seed).shuffle(found)
    held_out = len(found) // 5
    return found[held_out:], found[:held_out]


def right(prompt, completion: str, row: dict) -> bool:
    """Verify an answer: the reward is whether it is the right number, and nothing else."""
    return completion == row["answer"]


def last_number_is_right(prompt, completion: str, row: dict) -> bool:
    """Verify the answer of a published model, which may write more than a number."""
    found = re.findall(r"-?\d+", completion.replace(",", ""))
    return bool(found) and found[-1] == row["answer"]


def without_twins(
    held_out: list[tuple[str, str]], learned: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the held-out problems whose twin, as 34+12 is of 12+34, is not learned from either."""
    known = {tuple(prompt[:-1].split("+")) for prompt, _ in learned}
    return [one for one in held_out if tuple(one[0][:-1].split("+"))[::-1] not in known]


def make_decoder(chosen: Size) -> kt.CausalLM:
    """Build a decoder of characters with random weights."""
    characters = kt.Tokenizer.of_symbols("0123456789+=")
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=characters.vocabulary_size,
        hidden_dim=chosen.hidden_dim,
        num_layers=chosen.num_layers,
        num_heads=chosen.hidden_dim // 32,
        intermediate_dim=4 * chosen.hidden_dim,
        activation="gelu",
        normalize_first=True,
        position="rotary",
        initializer_range=0.02,
    )
    return kt.CausalLM(kt.models.Decoder(config), characters)


class Until(keras.callbacks.Callback):
    """Ends the training on answers at an accuracy, measured every few batches.

    Args:
        problems: the problems to measure with.
        accuracy: float.
        every: int, batches between two measurements.
    """

    def __init__(self, problems: list[tuple[str, str]], accuracy: float, every: int = 20):
        super().__init__()
        self.problems, self.accuracy, self.every = problems, accuracy, every
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        if self.batches % self.every == 0:
            reached = score(self.model, self.problems)
            self.model.stop_training = reached >= self.accuracy
            print(f"  batch {self.batches:>4}  accuracy {reached:.1%}", flush=True)


def supervise(lm: kt.CausalLM, learned: list[tuple[str, str]], chosen: Size, seed: int) -> None:
    """Train on answers up to the accuracy of the flag; prompts do not count in the loss."""
    unseen = learned[: len(learned) // 10]  # held out here, but not from the rewards
    learned = learned[len(unseen) :]
    lm.compile(optimizer=keras.optimizers.Adam(1e-3))
    weights = [np.repeat([0.0, 1.0], (len(asked), len(answer) + 1)) for asked, answer in learned]
    until = Until(unseen[:400], FLAGS.supervised)
    dataset = lm.make_dataset(
        [prompt + answer for prompt, answer in learned],
        sample_weight=weights,
        batch_size=chosen.batch_size,
        buckets=[max(len(prompt) + len(answer) for prompt, answer in learned) + 1],
        shuffle=True,
        seed=seed,
    )
    epochs = -(-chosen.most_batches // len(dataset))
    lm.fit(dataset, epochs=epochs, callbacks=[until], verbose=0)
    print(f"  {until.batches} batches of {chosen.batch_size} answers", flush=True)


def score(lm: kt.CausalLM, asked: list[tuple[str, str]]) -> float:
    """Return the share of the problems that the likeliest answer solves."""
    prompts = table(asked, lm)["prompt"]
    if FLAGS.preset:
        if isinstance(prompts[0], list):
            prompts = [lm.tokenizer.encode_chat(messages) for messages in prompts]
        found = lm.generate(prompts, 64, sampler="greedy", return_details=True)
        answers = [completion.text for completion in found]
    else:
        answers = lm.generate(prompts, LONGEST, sampler="greedy", batch_size=512)
    verify = last_number_is_right if FLAGS.preset else right
    pairs = zip(answers, asked, strict=True)
    return float(np.mean([verify("", answer, {"answer": truth}) for answer, (_, truth) in pairs]))


def table(asked: list[tuple[str, str]], lm: kt.CausalLM) -> dict[str, list]:
    """Return the problems as a table of prompts and answers."""
    prompts: list = [prompt for prompt, _ in asked]
    if FLAGS.preset:
        prompts = [f"What is {prompt[:-1]}? Answer with the number only." for prompt in prompts]
        if lm.tokenizer.chat_template is not None:
            prompts = [[{"role": "user", "content": prompt}] for prompt in prompts]
    return {"prompt": prompts, "answer": [answer for _, answer in asked]}


class Curve(keras.callbacks.Callback):
    """Measures the accuracy on held-out problems while a model is trained on rewards.

    Args:
        lm: the model.
        held_out: the problems.
        path: path of a CSV file, which is continued if it exists.
    """

    def __init__(self, lm: kt.CausalLM, held_out: list[tuple[str, str]], path: pathlib.Path):
        super().__init__()
        self.lm, self.held_out, self.path = lm, held_out, path
        self.before = 0  # steps of earlier rounds

    def measure(self, step: int, logs: dict) -> float:
        """Measure, write a row of the table, and return the accuracy."""
        accuracy = score(self.lm, self.held_out)
        names = ("reward", "entropy", "length", "skipped_groups")
        row = [step, accuracy, *(logs.get(name, "") for name in names)]
        exists = self.path.is_file()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            if not exists:
                writer.writerow(["step", "accuracy", *names])
            writer.writerow(row)
        said = "".join(f"  {name} {logs[name]:.2f}" for name in names if name in logs)
        print(f"  step {step:>4}  accuracy {accuracy:.1%}{said}", flush=True)
        return accuracy

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % FLAGS.every == 0 or epoch + 1 == self.params["epochs"]:
            self.measure(self.before + epoch + 1, logs or {})


def reinforce(seed: int, folder: pathlib.Path) -> tuple[float, float]:
    """Train a model with this seed; return its accuracies before and after the rewards."""
    keras.utils.set_random_seed(seed)
    chosen, (learned, held_out) = size(), problems(seed)
    held_out = held_out[:200] if FLAGS.preset or FLAGS.size == "tiny" else held_out
    folder.mkdir(parents=True, exist_ok=True)
    begin = (time.perf_counter(), time.process_time())
    supervised, path = folder / "supervised", folder / "curve.csv"
    if FLAGS.preset:
        lm = kt.CausalLM.from_preset(FLAGS.preset)
    elif supervised.is_dir():
        lm = kt.CausalLM.from_preset(supervised)
    else:
        lm = make_decoder(chosen)
        print(f"seed {seed}: {lm.count_params():,} parameters", flush=True)
        supervise(lm, learned, chosen, seed)
        lm.save_to_preset(supervised)
    curve = Curve(lm, held_out, path)
    if not path.is_file():
        curve.measure(0, {})
    before = 0
    for steps in rounds():
        updates = steps * -(-chosen.problems * chosen.group_size // chosen.update_rows)
        rate = kt.training.LinearDecay(chosen.learning_rate, updates, warmup_steps=updates // 50)
        lm.compile(optimizer=keras.optimizers.Adam(rate, global_clipnorm=1.0))
        curve.before = before
        lm.fit_rewards(
            table(learned, lm),
            last_number_is_right if FLAGS.preset else right,
            LOSSES[FLAGS.loss],
            group_size=chosen.group_size,
            batch_size=chosen.problems,
            steps=steps,
            update_rows=chosen.update_rows,
            sampler=kt.generation.Random(FLAGS.temperature),
            max_new_tokens=64 if FLAGS.preset else LONGEST,
            seed=seed + before,
            verbose=0,
            callbacks=[curve, kt.training.ResumableRun(folder / f"from_{before}")],
        )
        before += steps
    wall, processor = time.perf_counter() - begin[0], time.process_time() - begin[1]
    rows = read(path)
    first, last = rows[0][1], rows[-1][1]
    print(
        f"seed {seed}: {first:.1%} to {last:.1%} of {len(held_out):,} held-out problems, in "
        f"{wall / 60:.1f} minutes, {processor / 60:.1f} of processor time",
        flush=True,
    )
    alone = without_twins(held_out, learned)
    accuracy = score(lm, alone)
    print(f"  {accuracy:.1%} of the {len(alone)} of them without a learned twin", flush=True)
    return first, last


def read(path: pathlib.Path) -> list[tuple[int, float]]:
    """Return steps and accuracies of a table; of rows for a step, the last."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = {int(row["step"]): float(row["accuracy"]) for row in csv.DictReader(file)}
    return sorted(rows.items())


def draw(paths: dict[int, pathlib.Path], output: pathlib.Path) -> None:
    """Draw the accuracies by steps, a line for each seed, and write them to a table beside it."""
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    for seed, path in paths.items():
        axis.plot(*zip(*read(path), strict=True), marker=".", label=f"seed {seed}")
    axis.axhline(0.95, color="gray", linewidth=0.8, linestyle="--")
    answers = f"{size().problems} x {size().group_size} answers"
    axis.set_xlabel(f"steps of {FLAGS.loss}, each of {answers}")
    axis.set_ylabel("right, held-out problems")
    axis.set_ylim(top=1.0)
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(output, dpi=110)
    pyplot.close(figure)


def main(_):
    try:
        seeds, _ = [int(seed) for seed in FLAGS.seeds], rounds()
    except ValueError as error:
        raise app.UsageError(f"--seeds and --steps are whole numbers: {error}") from error
    output = pathlib.Path(FLAGS.output)
    folder = pathlib.Path(FLAGS.work_dir or output.with_suffix(""))
    check_recipe(folder, values(_RECIPE))
    for seed in seeds:
        reinforce(seed, folder / f"seed_{seed}")
    draw({seed: folder / f"seed_{seed}" / "curve.csv" for seed in seeds}, output)
    print(f"The picture is {output}, the tables are in {folder}.")


if __name__ == "__main__":
    start(main)
