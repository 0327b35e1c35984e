"""Semantic search: find the sentences closest in meaning to a query, whatever their words.

    python examples/semantic_search.py "someone fixes a car" "children in the water"
    python examples/semantic_search.py --file notes.txt --cache notes.npz "when do we meet?"

searches 5,000 descriptions of images, or the lines of a file.
"""

import hashlib
import pathlib
import statistics
import time

from runs import read_text, start

import keras_transformer as kt
from example_data import image_descriptions

import keras
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "minilm_l6_en", "Preset that makes vectors of sentences.")
flags.DEFINE_string("file", None, "Search the lines of this file, not the descriptions of images.")
flags.DEFINE_integer("size", 5000, "Search the first sentences only.", lower_bound=1)
flags.DEFINE_integer("top_k", 4, "Number of sentences to print for a query.", lower_bound=1)
flags.DEFINE_integer("batch_size", 32, "Sentences computed together.", lower_bound=1)
flags.DEFINE_string("cache", None, "An .npz file that keeps the vectors for the next run.")

QUERIES = [
    "children playing in the water",
    "someone fixes a car",
    "a musician on a stage",
    "preparing a meal",
    "It is winter.",
    "The crowd cheers for its team.",
]


def read_sentences() -> list[str]:
    """Return the sentences to search."""
    if FLAGS.file is None:
        return image_descriptions()[: FLAGS.size]
    lines = read_text(FLAGS.file).splitlines()
    sentences = [line.strip() for line in lines if line.strip()][: FLAGS.size]
    if not sentences:
        raise app.UsageError(f"{FLAGS.file} has no lines to search.")
    return sentences


def embed(embedder: kt.TextEmbedder, sentences: list[str]) -> np.ndarray:
    """Return vectors of length 1, `(sentences, width)`, from the cache if it has them."""
    # Vectors of other sentences, or of another model, must not be mistaken for these.
    key = hashlib.sha256("\n".join([FLAGS.preset, *sentences]).encode()).hexdigest()
    cache = pathlib.Path(FLAGS.cache) if FLAGS.cache else None
    if cache and cache.is_file():
        with np.load(cache) as stored:
            if stored["key"] == key:
                print(f"The vectors of {len(sentences):,} sentences are read from {cache}.\n")
                return stored["vectors"]
        print(f"{cache} holds the vectors of other sentences, and is written anew.")
    print(f"Making vectors of {len(sentences):,} sentences on {keras.backend.backend()}:")
    started = time.time()
    vectors = normalized(embedder.predict(sentences, batch_size=FLAGS.batch_size))
    seconds = time.time() - started
    print(
        f"{len(sentences):,} sentences in {seconds:.1f} s, {len(sentences) / seconds:,.0f} "
        f"sentences/s, compilation included; {vectors.shape[1]} numbers each.\n"
    )
    if cache:
        with open(cache, "wb") as file:  # Given a name, `savez` might append a suffix.
            np.savez(file, vectors=vectors, key=key)
    return vectors


def normalized(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length 1, so that their dot product is the cosine of the angle."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def search(embedder: kt.TextEmbedder, vectors: np.ndarray, query: str) -> list[tuple[float, int]]:
    """Return the cosine and the index of the nearest sentences, the nearest first."""
    cosines = vectors @ normalized(embedder.predict([query], verbose=0))[0]
    nearest = np.argsort(-cosines, kind="stable")[: FLAGS.top_k]
    return [(float(cosines[place]), int(place)) for place in nearest]


def main(arguments):
    sentences = read_sentences()
    embedder = kt.TextEmbedder.from_preset(FLAGS.preset)
    vectors = embed(embedder, sentences)
    queries = arguments[1:] or QUERIES
    for query in queries:
        print(query)
        for cosine, place in search(embedder, vectors, query):
            print(f"  {cosine:6.3f}  {sentences[place]}")
        print()
    # Again, since the model is compiled the first time that a length occurs.
    seconds = []
    for query in queries:
        started = time.perf_counter()
        search(embedder, vectors, query)
        seconds.append(time.perf_counter() - started)
    print(
        f"A query takes {statistics.median(seconds) * 1000:.0f} ms (median of {len(queries)}, once "
        f"compiled), its vector and {len(sentences):,} cosines."
    )


if __name__ == "__main__":
    start(main)
