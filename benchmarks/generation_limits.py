"""Measure the limits of a decoding step: reading the weights, and its matrix products.

A step of one token reads every matrix once and does little with it, so that the bandwidth of the
memory is a lower bound of its time. The rest of a step is matrix products that do not read at full
bandwidth, and everything that is not a matrix product.
"""

from collections.abc import Callable

from harness import median_seconds
from peak import compiled, gflops, random_tensor


def bandwidth(short: bool) -> float:
    """Return GB/s of a product of a vector and a large matrix, which reads the matrix once."""
    from keras import ops

    rows, columns = (1024, 1024) if short else (16_384, 8192)
    matrix = random_tensor(rows, columns)
    vector = ops.ones((1, rows), "float32")
    product = compiled(ops.matmul)
    seconds = median_seconds(lambda: product(vector, matrix), runs=5, warmup=2)
    return 4 * rows * columns / seconds / 1e9


def matrix_shapes(config) -> list[tuple[int, int]]:
    """Return the shapes of a layer's matrices: query, key, value, output, feed-forward."""
    width, inner = config.hidden_dim, config.intermediate_dim
    keys = config.head_dim * config.num_key_value_heads
    queries = config.head_dim * config.num_heads
    attention = [(width, queries), (width, keys), (width, keys), (queries, width)]
    return attention + [(width, inner)] * (1 + config.gated) + [(inner, width)]


def step_bytes(config, rows: int, slots: float, itemsize: int = 4) -> float:
    """Return the bytes that one step must read: every matrix, and the filled slots of the cache."""
    from keras_transformer.generation import Cache

    of_a_layer = sum(rows * columns for rows, columns in matrix_shapes(config))
    weights = config.num_layers * of_a_layer + config.vocabulary_size * config.hidden_dim
    cache = Cache.count_bytes(config, rows, 1, itemsize=itemsize) * slots
    return weights * itemsize + cache


def products_seconds(config, rows: int, steps: int, runs: int) -> float:
    """Return the seconds of the matrix products of one step, in a compiled loop."""
    import keras
    from keras import ops

    layers = [
        [random_tensor(*shape) for shape in matrix_shapes(config)] for _ in range(config.num_layers)
    ]
    # The logits are a product with the transposed embeddings: GPT-2 has no other output matrix.
    embeddings = random_tensor(config.vocabulary_size, config.hidden_dim)
    start = random_tensor(rows, 1, config.hidden_dim)

    def step(x, layers, embeddings, start):
        for query, key, value, output, first, second in layers:
            x = ops.matmul(x, query) + ops.matmul(x, key) + ops.matmul(x, value)
            x = ops.matmul(ops.matmul(ops.matmul(x, output), first), second)
        logits = ops.matmul(x, ops.transpose(embeddings))
        # Each step depends on all of the one before, so that no product is optimized away; and
        # each starts from the same size, so that the numbers neither grow nor vanish.
        return start + 1e-9 * ops.max(logits, axis=-1, keepdims=True)

    def loop(layers, embeddings, start):
        if keras.backend.backend() == "torch":
            x = start
            for _ in range(steps):
                x = step(x, layers, embeddings, start)
            return x
        return ops.fori_loop(0, steps, lambda _, x: step(x, layers, embeddings, start), start)

    run = compiled(loop)
    return median_seconds(lambda: run(layers, embeddings, start), runs=runs) / steps


def measure(contender, prompts: Callable, new: int, short: bool) -> list:
    """Measure the limits and the steps of one backend, all in this process.

    Args:
        contender: a GPT-2 of this project.
        prompts: function of the number of rows that returns prompts.
        new: int, number of tokens to generate.
        short: bool, whether this is a short trial run.
    """
    config, runs = contender.model.backbone.config, 1 if short else 3
    results = [("read GB/s", bandwidth(short)), ("matmul GFLOP/s", gflops(256 if short else 2048))]
    for rows in (1, 8):
        given = prompts(rows)
        first = median_seconds(lambda given=given: contender.generate(given, 1), runs)
        whole = median_seconds(lambda given=given: contender.generate(given, new), runs)
        step = (whole - first) / (new - 1)  # The first token comes from the pass over the prompt.
        products = products_seconds(config, rows, new, runs)
        slots = len(given[0]) + new / 2
        results += [
            (f"step ms, {rows}", 1e3 * step),
            (f"products ms, {rows}", 1e3 * products),
            (f"outside products, {rows}", 1 - products / step),
            (f"MB a step, {rows}", step_bytes(config, rows, slots) / 1e6),
        ]
    return results


def print_floors(values: dict, medians: Callable) -> None:
    """Print how near each step is to the bandwidth, the highest that a backend reached."""
    names = list(dict.fromkeys(name for _, name in values))
    best = max(medians("read GB/s", name) for name in names)
    print(f"The floor of a step: its bytes at {best:.1f} GB/s, the most that was read here.")
    for name in names:
        for rows in (1, 8):
            floor = medians(f"MB a step, {rows}", name) / best
            step = medians(f"step ms, {rows}", name)
            print(
                f"  {name}, batch {rows}: the floor is {floor:.2f} ms, "
                f"{floor / step:.0%} of the step of {step:.2f} ms"
            )
    print()
