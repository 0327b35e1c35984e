"""W12: a server under load, beside itself one request at a time and `transformers serve`.

Random weights in the shape of GPT-2 124M, written by `export_to_huggingface`, are served on the
loopback, each server in a process of its own and in turns. `--clients` clients send
`--requests` prompts of mixed lengths, greedily continued by mixed numbers of tokens and streamed.
Printed are, for each server and round: requests lost, texts that are not those of a request alone,
tokens a second, the median and the 99th percentile of the first token and of whole answers, and
resident memory as it goes. A text counts as wrong here if it differs from the one that the same
server gave when nothing else was asked, for the first `--alone` requests.

    python benchmarks/serving.py --requests=2000 --backends=jax,torch
    python benchmarks/serving.py --requests=128 --rounds=1 --nopeer
"""

import concurrent.futures
import contextlib
import http.client
import itertools
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from typing import NamedTuple

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("requests", 2000, "Requests of each round.", lower_bound=1)
flags.DEFINE_integer("clients", 64, "Clients at once.", lower_bound=1)
flags.DEFINE_integer("rounds", 2, "Rounds of all servers, in turns.", lower_bound=1)
flags.DEFINE_integer("alone", 16, "Requests that are sent one at a time too.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Texts that our server writes together.", lower_bound=1)
flags.DEFINE_integer("peer_requests", None, "Requests of the peer, where not so many as of ours.")
flags.DEFINE_list("backends", ["torch"], "Backends of our server.")
flags.DEFINE_list("modes", ["float32"], "How our server holds the model, such as int8-packed.")
flags.DEFINE_bool("peer", True, "Measure `transformers serve` too.")
flags.DEFINE_bool("short", False, "A tiny model, to try the benchmark.")
flags.DEFINE_string("work_dir", "/tmp/keras_transformer_serving", "Folder of the model.")

ROOT = pathlib.Path(__file__).resolve().parents[1]
VOCABULARY = 50_257


class Request(NamedTuple):
    prompt: str
    most: int


class Answer(NamedTuple):
    text: str | None  # None if the answer was lost
    first: float  # seconds until the first token
    whole: float
    tokens: int


def make_model(folder: pathlib.Path, short: bool) -> None:
    """Random weights in Hugging Face's format; its words are names of ids, apart by spaces."""
    import keras
    import tokenizers

    import keras_transformer as kt

    keras.utils.set_random_seed(0)
    words = {f"t{i}": i for i in range(VOCABULARY - 1)} | {"<|endoftext|>": VOCABULARY - 1}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<|endoftext|>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = kt.Tokenizer(backend, end="<|endoftext|>", unknown="<|endoftext|>")
    width, layers, heads = (64, 2, 2) if short else (768, 12, 12)
    config = kt.TransformerConfig(
        kind="decoder", vocabulary_size=VOCABULARY, hidden_dim=width, num_layers=layers,
        num_heads=heads, intermediate_dim=4 * width, max_sequence_length=1024, position="learned",
        normalize_first=True, activation="gelu_tanh", tie_embeddings=True,
    )  # fmt: skip
    task = kt.CausalLM(kt.models.Decoder(config), tokenizer)
    kt.checkpoints.export_to_huggingface(task, folder, family="gpt2")


def make_requests(count: int) -> list[Request]:
    rng = random.Random(0)
    lengths = [(rng.randint(4, 128), rng.randint(4, 64)) for _ in range(count)]
    return [
        Request(" ".join(f"t{rng.randrange(VOCABULARY - 1)}" for _ in range(prompt)), most)
        for prompt, most in lengths
    ]


@contextlib.contextmanager
def serving(command: list[str], port: int, path: str, log: pathlib.Path, **environment):
    """Start a server, and return its process when it is ready."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=errors, stderr=errors, cwd=ROOT, env={**os.environ, **environment}
        )
    try:
        while True:
            if process.poll() is not None:
                sys.exit(f"{' '.join(command)} ended: see {log}")
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5)
                break
            time.sleep(0.2)
        yield process
    finally:
        process.terminate()
        process.wait()


def ask(port: int, model: str, request: Request) -> Answer:
    """One streamed request; `ignore_eos` is not needed, since the random model never ends."""
    given = {"model": model, "prompt": request.prompt, "max_tokens": request.most,
             "temperature": 0, "stream": True}  # fmt: skip
    started, first, text = time.perf_counter(), 0.0, ""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(
            "POST", "/v1/completions", json.dumps(given), {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        if response.status != 200:
            print("   ", response.status, response.read()[:300], file=sys.stderr)
            return Answer(None, 0, 0, 0)
        reason = None
        for line in response:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                for choice in chunk.get("choices", ()):
                    piece = choice.get("text") or ""
                    if piece and not first:
                        first = time.perf_counter() - started
                    text += piece
                    reason = choice.get("finish_reason") or reason
    except OSError as error:
        print("   ", error, file=sys.stderr)
        return Answer(None, 0, 0, 0)
    finally:
        connection.close()
    tokens = len(text.split())
    lost = reason is None or tokens != request.most
    return Answer(None if lost else text, first, time.perf_counter() - started, tokens)


def resident(pid: int) -> int:
    """Return the resident memory in megabytes."""
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


def load(port, model, requests, clients, pid) -> tuple[list[Answer], float, list[int]]:
    """Return the answers to all requests, the total seconds, and memory after each tenth."""
    memory, started = [resident(pid)], time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        waiting = [pool.submit(ask, port, model, request) for request in requests]
        for i, one in enumerate(waiting):
            one.result()
            if (i + 1) % max(1, len(requests) // 10) == 0:
                memory.append(resident(pid))
    return [one.result() for one in waiting], time.perf_counter() - started, memory


def percentiles(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.2f} {ordered[int(0.99 * (len(ordered) - 1))]:.2f}"


def tell(name: str, answers: list[Answer], seconds: float, wrong: int, memory: list[int]) -> float:
    given = [answer for answer in answers if answer.text is not None]
    speed = sum(answer.tokens for answer in given) / seconds
    print(
        f"{name}: {len(answers)} requests, {len(answers) - len(given)} lost, {wrong} wrong, "
        f"{speed:.1f} tokens/s; first token p50, p99: {percentiles([x.first for x in given])} s; "
        f"whole: {percentiles([x.whole for x in given])} s; MB: {memory}",
        flush=True,
    )
    return speed


def commands(folder: pathlib.Path) -> dict[str, tuple]:
    """Return for each server its command, port, readiness path, model and environment."""
    found = {}
    for i, (backend, mode) in enumerate(itertools.product(FLAGS.backends, FLAGS.modes)):
        command = [sys.executable, "-m", "keras_transformer", "serve", "--api", str(folder)]
        command += ["--port", str(18100 + i), "--batch-size", str(FLAGS.batch_size)]
        command += ["--mode", mode]
        environment = {"KERAS_BACKEND": backend}
        found[f"keras_transformer-{backend}-{mode}"] = (
            command, 18100 + i, "/ready", folder.name, environment,
        )  # fmt: skip
    if FLAGS.peer:
        command = [str(pathlib.Path(sys.executable).with_name("transformers")), "serve"]
        command += [str(folder), "--continuous-batching", "--device", "cpu", "--port", "18200"]
        # A cache for all clients. Left to itself it takes most of the memory, and goes through it.
        command += ["--cb-block-size", "32", "--cb-num-blocks", str(8 * FLAGS.clients)]
        found["transformers"] = (command, 18200, "/health", str(folder), {})
    return found


def main(_):
    folder = pathlib.Path(FLAGS.work_dir) / ("tiny" if FLAGS.short else "gpt2")
    if not folder.is_dir():
        make_model(folder, FLAGS.short)
    requests = make_requests(FLAGS.requests)
    speeds: dict[str, list[float]] = {}
    for number in range(FLAGS.rounds):
        for name, (command, port, path, model, environment) in commands(folder).items():
            log = folder.parent / f"{name}.log"
            with serving(command, port, path, log, **environment) as process:
                ours = name.startswith("keras_transformer")
                asked = requests if ours else requests[: FLAGS.peer_requests]
                ask(port, model, requests[0])  # compile and load before measuring
                alone, seconds, memory = load(port, model, asked[: FLAGS.alone], 1, process.pid)
                one = tell(f"{number} {name} one at a time", alone, seconds, 0, memory)
                many, seconds, memory = load(port, model, asked, FLAGS.clients, process.pid)
                pairs = zip(alone, many, strict=False)
                wrong = sum(first.text != second.text for first, second in pairs)
                speed = tell(f"{number} {name}", many, seconds, wrong, memory)
                print(f"  {speed / one:.2f} times one at a time", flush=True)
                speeds.setdefault(name, []).append(speed)
    for name, values in speeds.items():
        ratio = statistics.median(values) / statistics.median(speeds.get("transformers", values))
        print(f"{name}: {statistics.median(values):.1f} tokens/s, {ratio:.2f} of the peer")


if __name__ == "__main__":
    app.run(main)
