"""Measure what thousands of mixed calls leave behind in a long-lived process.

Calls of `generate` with prompts, limits, samplers and constraints that change from one to the next,
and in between `predict` and `fit` on texts of other lengths and numbers. At regular intervals it
writes down how many compiled programs are alive, the resident memory, the memory maps (of which
Linux gives a process 65,530) and the calls a second. Programs are those of the library's store
and, on JAX, all that the process has. Linux only.

    KERAS_BACKEND=jax python benchmarks/soak.py --calls=2000 --log=jax.jsonl
    KERAS_BACKEND=torch python benchmarks/soak.py --calls=300 --steady  # the same call each time
    python benchmarks/soak.py --plot=soak.svg --logs=jax.jsonl,tensorflow.jsonl,torch.jsonl
"""

import json
import pathlib
import random
import time

from absl import app, flags
from harness import memory

FLAGS = flags.FLAGS
flags.DEFINE_integer("calls", 2000, "How many calls.", lower_bound=1)
flags.DEFINE_integer("every", 10, "Write a line after so many calls.", lower_bound=1)
flags.DEFINE_integer("seed", 0, "Of what is called.")
flags.DEFINE_bool("steady", False, "The same call of generate each time: its speed.")
flags.DEFINE_integer("most_programs", None, "Keep so many programs, in place of the default.")
flags.DEFINE_string("log", None, "File for the lines, as JSON.")
flags.DEFINE_list("logs", [], "Such files, to be plotted.")
flags.DEFINE_string("plot", None, "Draw --logs into this SVG or PNG file, and do nothing else.")

TEXT = (
    "to be or not the king my lord what is thou art and so good night sweet prince we shall see "
    "a man rides his bike two dogs run in snow"
)
WORDS = TEXT.split()


class Calls:
    """Random calls, drawn by a random number generator."""

    def __init__(self, seed: int):
        import keras

        import keras_transformer as kt

        self.random = random.Random(seed)
        self.kt = kt
        keras.utils.set_random_seed(seed)
        self.writer = kt.CausalLM.from_preset("gpt_tiny_shakespeare")
        self.translator = kt.Seq2SeqLM.from_preset("transformer_tiny_en_de")
        tokenizer = kt.Tokenizer.train([TEXT], "wordpiece", vocabulary_size=200)
        config = kt.TransformerConfig(
            kind="encoder", vocabulary_size=tokenizer.vocabulary_size, hidden_dim=32, num_layers=2,
            num_heads=2, intermediate_dim=64, max_sequence_length=128,
        )  # fmt: skip
        self.classifier = kt.TextClassifier(kt.models.Encoder(config), tokenizer, num_classes=2)

    def texts(self, most: int, longest: int) -> list[str]:
        count = self.random.randint(1, most)
        lengths = [self.random.randint(1, longest) for _ in range(count)]
        return [" ".join(self.random.choices(WORDS, k=length)) for length in lengths]

    def steady(self) -> None:
        texts = ["to be or not to be", "my lord", "what is", "we shall see"] * 2
        self.writer.generate(texts, max_new_tokens=48)

    def mixed(self) -> None:
        kinds = ("write", "translate", "constrain", "predict", "fit")
        getattr(self, self.random.choices(kinds, weights=(50, 20, 15, 10, 5))[0])()

    def write(self) -> None:
        self.writer.generate(
            self.texts(16, 40),
            max_new_tokens=self.random.randint(1, 100),
            sampler=self.random.choice(["greedy", "top_p"]),
            batch_size=self.random.choice([4, 8, 32]),
            seed=1,
        )

    def translate(self) -> None:
        sampler = self.random.choice(["greedy", "beam"])
        limit = self.random.randint(5, 40)
        self.translator.generate(self.texts(8, 12), max_new_tokens=limit, sampler=sampler)

    def constrain(self) -> None:
        choices = self.random.sample(WORDS, k=self.random.randint(2, 8))
        rules = self.kt.generation.Rules(automaton=self.writer.constraint(choices=choices))
        self.writer.generate(self.texts(8, 10), max_new_tokens=10, rules=rules)

    def predict(self) -> None:
        self.classifier.predict(self.texts(32, 60), verbose=0)

    def fit(self) -> None:
        texts = self.texts(24, 60)
        labels = [self.random.randint(0, 1) for _ in texts]
        self.classifier.fit(texts, labels, batch_size=8, epochs=1, verbose=0)


def live_programs() -> int:
    """Return the number of live programs: on JAX all, elsewhere those of the store."""
    import keras

    from keras_transformer.kernels.programs import PROGRAMS

    if keras.backend.backend() != "jax":
        return len(PROGRAMS)
    import jax

    return len(jax.devices()[0].client.live_executables())


def run() -> None:
    import keras

    from keras_transformer.kernels.programs import PROGRAMS

    if FLAGS.most_programs is not None:
        PROGRAMS.most = PROGRAMS.most_unevictable = FLAGS.most_programs
    calls = Calls(FLAGS.seed)
    call = calls.steady if FLAGS.steady else calls.mixed
    bar = keras.utils.Progbar(
        FLAGS.calls, stateful_metrics=("programs", "memory", "rate"), unit_name="call"
    )
    lines, start = [], time.perf_counter()
    for number in range(1, FLAGS.calls + 1):
        call()
        if number % FLAGS.every and number != FLAGS.calls:
            continue
        seconds, start = time.perf_counter() - start, time.perf_counter()
        line: dict = {
            "backend": keras.backend.backend(),
            "call": number,
            "programs": len(PROGRAMS),
            "live": live_programs(),
            "made": PROGRAMS.made,
            "megabytes": round(memory("VmRSS")),
            "maps": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
            "calls_per_second": round(FLAGS.every / seconds, 2),
        }
        lines.append(json.dumps(line))
        if FLAGS.log:
            pathlib.Path(FLAGS.log).write_text("\n".join(lines) + "\n", encoding="utf-8")
        values = [
            ("programs", line["programs"]), ("memory", line["megabytes"]),
            ("rate", line["calls_per_second"]),
        ]  # fmt: skip
        bar.update(number, values)
    print(lines[-1])


def plot(logs: list[str], path: str) -> None:
    """Plot memory and programs over the calls, with a line for each backend."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, sharex=True, figsize=(6.5, 4.5))
    for log in logs:
        lines = [json.loads(text) for text in pathlib.Path(log).read_text().splitlines()]
        numbers, name = [line["call"] for line in lines], lines[0]["backend"]
        upper.plot(numbers, [line["megabytes"] for line in lines], label=name, linewidth=1)
        lower.plot(numbers, [line["programs"] for line in lines], label=name, linewidth=1)
    upper.set_ylabel("memory, MB")
    lower.set_ylabel("programs alive")
    lower.set_xlabel("calls")
    for axes in (upper, lower):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    upper.legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: list[str]) -> None:
    if len(arguments) > 1:
        raise app.UsageError(f"What is {arguments[1]!r}? All options begin with --.")
    if FLAGS.plot:
        plot(FLAGS.logs, FLAGS.plot)
    else:
        run()


if __name__ == "__main__":
    app.run(main)
