"""The variables of a backbone, computed from its config alone: nothing is built or allocated."""

from collections.abc import Mapping
from typing import Any

from keras_transformer.config import TransformerConfig

Shapes = dict[str, tuple[int, ...]]


def variable_shapes(config: TransformerConfig) -> Shapes:
    """Names and shapes of all variables that a backbone of this config has.

    A preset is held against its weights with these before the model is built, so that a config
    that declares absurd sizes costs an error message and not the memory.

    Args:
        config: The backbone's config.

    Returns:
        A dict from path, relative to the backbone, to shape.

    Example:
    ```python
    import math
    from keras_transformer import TransformerConfig
    from keras_transformer.checkpoints.shapes import variable_shapes

    gpt2 = TransformerConfig(
        kind="decoder", vocabulary_size=50_257, hidden_dim=768, num_layers=12, num_heads=12,
        intermediate_dim=3072, position="learned", max_sequence_length=1024, normalize_first=True,
    )
    assert sum(map(math.prod, variable_shapes(gpt2).values())) == 124_439_808
    ```
    """
    width, embedded = config.hidden_dim, config.embedding_dim
    shapes = {"token_embedding/embeddings": (config.vocabulary_size, embedded)}
    if not config.tie_embeddings:
        shapes["token_embedding/reverse_embeddings"] = (embedded, config.vocabulary_size)
    if config.output_bias:
        shapes["output_bias/bias"] = (config.vocabulary_size,)
    if config.kind != "decoder":
        shapes |= _stack(config, "encoder", stack_depth(config, "encoder"))
    if config.kind != "encoder":
        shapes |= _stack(config, "decoder", stack_depth(config, "decoder"))
    if config.pooler:
        shapes |= _dense("pooler", width, width, True)
    return shapes


def head_shapes(config: TransformerConfig, task: Mapping[str, Any]) -> Shapes:
    """Names and shapes of the variables of a task's head.

    Args:
        config: The backbone's config.
        task: The values of the task, with its `"name"`.

    Returns:
        A dict from path to shape, empty for a task without a head of its own.

    Raises:
        ValueError: If the number of classes is not an integer.
    """
    name, width = task.get("name"), config.hidden_dim
    if name == "MaskedLM":
        shapes = _dense("transform", width, config.embedding_dim, True)
        shapes |= {f"transform_norm/{each}": (config.embedding_dim,) for each in ("gamma", "beta")}
        return {**shapes, "output_bias/bias": (config.vocabulary_size,)}
    if name == "QuestionAnswerer":
        return _dense("output", width, 2, True)
    if name not in ("TextClassifier", "TokenClassifier"):
        return {}
    classes = task.get("num_classes")
    if not isinstance(classes, int):
        raise ValueError(f"`num_classes` must be an integer, received {classes!r}.")
    hidden = _dense("hidden", width, width, True) if task.get("hidden_activation") else {}
    # The score of a decoder's last state has no bias.
    return hidden | _dense("output", width, classes, config.kind == "encoder")


def stack_depth(config: TransformerConfig, stack: str) -> int:
    """The number of layers with weights of their own in the `"encoder"` or `"decoder"` stack."""
    decoder_of_two = stack == "decoder" and config.kind == "seq2seq"
    return config.num_decoder_layers if decoder_of_two else config.num_layer_groups


def _stack(config: TransformerConfig, stack: str, depth: int) -> Shapes:
    width = config.embedding_dim
    shapes = {}
    if config.segment_vocabulary_size:
        shapes[f"{stack}/segment_embedding/embeddings"] = (config.segment_vocabulary_size, width)
    if config.position == "learned":
        rows = config.max_sequence_length + config.position_offset
        shapes[f"{stack}/position_embedding/embeddings"] = (rows, width)
    if config.position == "relative":
        buckets = (config.relative_num_buckets, config.num_heads)
        shapes[f"{stack}/relative_bias/embeddings"] = buckets
    if config.embedding_normalization:
        shapes |= _norm(config, f"{stack}/embedding_norm", width)
    if config.embedding_projection:
        shapes |= _dense(f"{stack}/embedding_projection", width, config.hidden_dim, True)
    for i in range(depth):
        layer = f"{stack}/layer_{i}"
        shapes |= _attention(config, f"{layer}/self_attention")
        if stack == "decoder" and config.kind == "seq2seq":
            shapes |= _attention(config, f"{layer}/cross_attention")
        shapes |= _feed_forward(config, f"{layer}/feed_forward")
    if config.final_normalization:
        shapes |= _norm(config, f"{stack}/final_norm")
    return shapes


def _attention(config: TransformerConfig, name: str) -> Shapes:
    width, head = config.hidden_dim, config.head_dim
    inner, shared = config.num_heads * head, config.num_key_value_heads * head
    shapes = _dense(f"{name}/query", width, inner, config.attention_bias)
    shapes |= _dense(f"{name}/key", width, shared, config.attention_bias)
    shapes |= _dense(f"{name}/value", width, shared, config.attention_bias)
    shapes |= _dense(f"{name}/output", inner, width, config.attention_output_bias)
    if config.query_key_norm:
        shapes |= _norm(config, f"{name}/query_norm", head) | _norm(
            config, f"{name}/key_norm", head
        )
    scores = {
        "general": {"kernel": (config.num_heads, head, head)},
        "additive": {"kernel": (config.num_heads, head)},
        "cosine": {"strength": (config.num_heads,)},
        "location": {"kernel": (config.num_heads, head, config.max_sequence_length)},
    }
    for variable, shape in scores.get(config.score, {}).items():
        shapes[f"{name}/score/{variable}"] = shape
    return shapes | _norm(config, f"{name}_norm")


def _feed_forward(config: TransformerConfig, name: str) -> Shapes:
    width, inner = config.hidden_dim, config.intermediate_dim
    shapes = _dense(f"{name}/intermediate", width, inner, config.use_bias)
    if config.gated:
        shapes |= _dense(f"{name}/gate", width, inner, config.use_bias)
    shapes |= _dense(f"{name}/output", inner, width, config.use_bias)
    return shapes | _norm(config, f"{name}_norm")


def _dense(name: str, inputs: int, outputs: int, bias: bool) -> Shapes:
    shapes = {f"{name}/kernel": (inputs, outputs)}
    return {**shapes, f"{name}/bias": (outputs,)} if bias else shapes


def _norm(config: TransformerConfig, name: str, width: int | None = None) -> Shapes:
    names = ("scale",) if config.normalization == "rms_norm" else ("gamma", "beta")
    return {f"{name}/{variable}": (width or config.hidden_dim,) for variable in names}
