"""Make an assistant from nothing: tokenizer, base model, conversations, preferences, rewards.

    python examples/assistant.py --output my_assistant --serve

A decoder reads plain text, learns to answer questions in conversations, to prefer short answers
(DPO), and to repeat words as often as it is asked (GRPO with a verifier). A report says what each
stage brought, on questions that were held out. `--size tiny` takes a quarter of an hour on two
cores, the other sizes are for a GPU. With `--serve` a page at http://127.0.0.1:8000 answers at the
end, until Ctrl-C; `keras-transformer serve my_assistant/preset` serves it again.
"""

import collections
import contextlib
import dataclasses
import math
import pathlib
import random
import re
import time

from runs import read_text, start

import keras_transformer as kt
from conversations import Question, conversations, skills
from example_data import read, tiny_shakespeare

import keras
import numpy as np
from absl import flags

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True)
class Size:
    """A model and how long each stage trains it: steps of reading, rows or steps of the others."""

    layers: int
    width: int
    vocabulary: int
    window: int
    batch: int
    reading: int
    conversations: int
    pairs: int
    rewards: int
    learning_rate: float


SIZES = {
    "nano": Size(2, 64, 400, 64, 8, 20, 64, 32, 2, 3e-3),
    "tiny": Size(6, 192, 2048, 128, 16, 540, 24000, 600, 40, 2e-3),
    "small": Size(12, 512, 8192, 512, 32, 5000, 20000, 2000, 100, 6e-4),
    "base": Size(12, 768, 16384, 1024, 64, 20000, 20000, 2000, 100, 4e-4),
}
flags.DEFINE_enum("size", "tiny", list(SIZES), "Size of the model, and length of its training.")
flags.DEFINE_list("text", None, "Files of plain text to read, in place of the data.")
flags.DEFINE_string("output", "runs/assistant", "Folder of the preset, the export and the report.")
flags.DEFINE_bool("serve", False, "Serve a page to talk to the assistant, until Ctrl-C.")
flags.DEFINE_integer("port", 8000, "Port of the page; 0 takes any free port.")
flags.DEFINE_integer("seed", 0, "Seed of weights, shuffling, questions and samples.")

SKILL = "repeating"  # what is reinforced


def corpus() -> str:
    """Return the plain text: the files of --text, or plays, captions and reviews."""
    if FLAGS.text:
        return "\n\n".join(read_text(path) for path in FLAGS.text)
    reviews = [line.split("\t")[0] for line in read("sst2", "train.tsv").splitlines()]
    parts = [tiny_shakespeare(), read("multi30k/raw", "train.en"), "\n".join(reviews)]
    return "\n\n".join(parts)


def build(tokenizer: kt.Tokenizer, size: Size) -> kt.CausalLM:
    """Build a decoder in the form of Qwen 3, which other libraries know."""
    config = kt.TransformerConfig(
        kind="decoder",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=size.width,
        num_layers=size.layers,
        num_heads=size.width // 64,
        intermediate_dim=3 * size.width,
        activation="silu",
        gated=True,
        use_bias=False,
        normalization="rms_norm",
        normalize_first=True,
        query_key_norm=True,
        position="rotary",
        max_sequence_length=size.window,
        initializer_range=0.02,
    )
    return kt.CausalLM(kt.models.Decoder(config), tokenizer)


def optimizer(learning_rate: float, steps: int) -> keras.optimizers.Optimizer:
    """Return AdamW with a short warm-up and a decay to 0."""
    schedule = kt.training.LinearDecay(learning_rate, steps, warmup_steps=max(1, steps // 20))
    return keras.optimizers.AdamW(schedule, weight_decay=0.1, beta_2=0.98, global_clipnorm=1.0)


def windows(ids: np.ndarray, length: int) -> kt.data.TokenRows:
    """Return rows one token longer than a window."""
    starts = np.arange(0, len(ids) - 1, length)
    return kt.data.TokenRows(ids, np.minimum(length + 1, len(ids) - starts), starts)


def learn_to_read(lm: kt.CausalLM, ids: np.ndarray, size: Size) -> None:
    """Train on the next tokens of plain text."""
    objective = kt.training.NextToken()
    rows = windows(ids, size.window)
    batches = kt.data.BucketedDataset(
        objective.columns(rows), objective, batch_size=size.batch, max_buckets=1, shuffle=True,
        seed=FLAGS.seed,
    )  # fmt: skip
    lm.compile(optimizer(size.learning_rate, size.reading), loss=kt.training.TokenCrossEntropy())
    epochs, rest = divmod(size.reading, len(batches))
    lm.fit(batches, epochs=epochs, verbose=2)
    if rest:
        lm.fit(batches, steps_per_epoch=rest, verbose=2)


def learn_to_answer(lm: kt.CausalLM, questions: list[Question], size: Size) -> None:
    """Train on conversations; the loss counts what the assistant says."""
    rows = conversations(questions, size.conversations, FLAGS.seed)
    lm.show_example(rows[0])
    steps = math.ceil(len(rows) / size.batch)
    lm.compile(optimizer(size.learning_rate / 2, steps))
    lm.fit(rows, batch_size=size.batch, seed=FLAGS.seed, verbose=2)


def learn_to_be_brief(lm: kt.CausalLM, questions: list[Question], size: Size) -> None:
    """Prefer short answers to wordy ones, by direct preference optimization."""
    chosen = random.Random(FLAGS.seed).sample(questions, min(size.pairs, len(questions)))
    lm.compile(optimizer(size.learning_rate / 40, math.ceil(len(chosen) / size.batch)))
    lm.fit_preferences(
        [prompt(question) for question in chosen],
        [question.short for question in chosen],
        [question.wordy for question in chosen],
        loss=kt.training.DPO(beta=0.1),
        batch_size=size.batch,
        seed=FLAGS.seed,
        verbose=2,
    )


def reinforce(lm: kt.CausalLM, questions: list[Question], size: Size) -> None:
    """Reward answers that repeat a word as often as asked, and in few words, by GRPO."""
    rows = [
        {"prompt": prompt(question), "question": question}
        for question in questions
        if question.skill == SKILL
    ]
    random.Random(FLAGS.seed).shuffle(rows)
    lm.compile(optimizer(size.learning_rate / 10, size.rewards))
    lm.fit_rewards(
        rows,
        [is_right, is_brief],
        reward_weights=[1.0, 0.2],
        loss=kt.training.GRPO(),
        group_size=8,
        batch_size=size.batch // 2,
        steps=size.rewards,
        max_new_tokens=48,
        seed=FLAGS.seed,
        verbose=2,
    )


def is_right(prompt, completion: str, row: dict) -> bool:
    """Verify an answer."""
    return row["question"].is_right(completion)


def is_brief(prompt, completion: str, row: dict) -> bool:
    """Tell whether an answer has no words around it."""
    return len(completion.split()) <= len(row["question"].short.split())


def bits_per_byte(lm: kt.CausalLM, ids: np.ndarray, size: Size) -> float:
    """Return the bits that the model needs for a byte of held-out text."""
    nats = -lm.score([row.tolist() for row in windows(ids, size.window)]).sum()
    return nats / math.log(2) / len(lm.tokenizer.decode(ids[1:]).encode())


def prompt(question: Question) -> list[dict]:
    """Return the conversation that a question begins."""
    return [{"role": "user", "content": question.text}]


def examine(lm: kt.CausalLM, questions: list[Question]) -> dict[str, float]:
    """Return the share of right answers by skill, and the words of an answer."""
    asked = [lm.tokenizer.encode_chat(prompt(question)) for question in questions]
    replies = lm.tokenizer.decode_batch(lm.generate(asked, max_new_tokens=48, sampler="greedy"))
    right = collections.defaultdict(list)
    for question, reply in zip(questions, replies, strict=True):
        right[question.skill].append(question.is_right(reply))
    shares = {skill: float(np.mean(values)) for skill, values in sorted(right.items())}
    return shares | {"words": float(np.mean([len(reply.split()) for reply in replies]))}


def show(lm: kt.CausalLM, questions: list[Question]) -> None:
    """Print answers to a held-out question of each skill, and to one more that follows it."""
    for skill in ("facts", "sums", SKILL):
        question = next(each for each in questions if each.skill == skill)
        print(f"\n  user       {question.text}")
        print(f"  assistant  {lm.chat(prompt(question), max_new_tokens=48)}")


def report(results: dict[str, dict[str, float]], facts: str) -> str:
    """Return a table in Markdown: a row for each measure, a column for each stage."""
    names = {name: None for values in results.values() for name in values}
    lines = ["| |" + "|".join(f" {stage} " for stage in results) + "|"]
    lines.append("|---" * (len(results) + 1) + "|")
    for name in names:
        cells = [_cell(name, values.get(name)) for values in results.values()]
        lines.append(f"| {name} |" + "|".join(f" {cell} " for cell in cells) + "|")
    return f"# Report card\n\n{facts}\n\n" + "\n".join(lines) + "\n"


def _said(questions: list[Question]) -> list[str]:
    """Return questions and answers as text, from which a tokenizer learns too."""
    return [f"{question.text} {question.wordy}" for question in questions]


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return ""
    shares = ("facts", "sums", "repeating")
    return f"{100 * value:.1f} %" if name in shares else f"{value:.2f}"


def main(_):
    if FLAGS.serve:
        from keras_transformer.serving import serve  # what it needs is missed before the training
    keras.utils.set_random_seed(FLAGS.seed)
    size, output = SIZES[FLAGS.size], pathlib.Path(FLAGS.output)
    text = corpus()
    training, held_out = text[: len(text) * 19 // 20], text[len(text) * 19 // 20 :]
    words = re.findall(r"\b[a-z]{4,7}\b", training)
    words = [word for word, _ in collections.Counter(words).most_common(400)][200:]
    questions = skills(words, FLAGS.seed)
    tokenizer = kt.Tokenizer.train(
        [*training.split("\n\n"), *_said(questions["train"])],
        vocabulary_size=size.vocabulary,
        add_prefix_space=False,
        template="none",
        special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    ids, unseen = (np.array(tokenizer.encode(part)) for part in (training, held_out))
    lm = build(tokenizer.with_chat_template("chatml"), size)
    facts = f"{lm.count_params():,} parameters, {len(ids):,} tokens of text to read"
    print(f"{facts}, {len(questions['train'])} questions, on {keras.backend.backend()}.")

    results = {}
    stages = {
        "reads": lambda: learn_to_read(lm, ids, size),
        "answers": lambda: learn_to_answer(lm, questions["train"], size),
        "is brief": lambda: learn_to_be_brief(lm, questions["train"], size),
        "is reinforced": lambda: reinforce(lm, questions["train"], size),
    }
    for stage, train in stages.items():
        print(f"\n== The model {stage}")
        began = time.monotonic()
        train()
        minutes = (time.monotonic() - began) / 60
        results[stage] = {
            "bits a byte of text": bits_per_byte(lm, unseen[: 200 * size.window], size),
            **examine(lm, questions["held_out"]),
            "minutes": minutes,
        }
    show(lm, questions["held_out"])

    output.mkdir(parents=True, exist_ok=True)
    lm.save_to_preset(output / "preset", dtype="float16")
    kt.checkpoints.export_to_huggingface(lm, output / "huggingface")
    card = report(results, facts)
    (output / "report.md").write_text(card, encoding="utf-8")
    print(f"\n{card}\nThe report, the preset and its export are in {output}.")
    if FLAGS.serve:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            serve([str(output / "preset")], port=FLAGS.port)
    else:
        print(f"Talk to it:\n  keras-transformer serve {output / 'preset'}")


if __name__ == "__main__":
    start(main)
