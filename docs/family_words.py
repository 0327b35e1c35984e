"""Descriptions of a family in docs/families.md: its paper, and its config in words."""

import contextlib
import importlib
import pkgutil
import re
from collections.abc import Iterable

from keras_transformer import TransformerConfig
from keras_transformer.checkpoints import families
from keras_transformer.checkpoints.families.base.family import Family
from keras_transformer.checkpoints.families.base.shared import SWITCHED_WINDOW
from keras_transformer.checkpoints.families.encoders.deberta_v2 import RELATIVE_SCORES
from keras_transformer.config import (
    ROTARY_SCALINGS,
    Chunks,
    ContinuousWindowBias,
    DecomposedBias,
    GridRotary,
    GridWindows,
    LatentAttention,
    QueryGrowth,
    RelativeKeys,
    RelativeSinusoids,
    Rotary,
    Router,
    WindowBias,
)

# "Name: Authors year", then where the paper is, as the families' modules start.
PAPER = re.compile(
    r'(?P<name>[A-Z][\w-]*): (?P<authors>[A-Z][^,:"]* \d{4})'
    r'(?:, (?P<url>https://[^\s,;]+)|, "(?P<title>[^"]+)")?'
)
ACTIVATIONS = {"gelu_tanh": "gelu (tanh form)", "relu_squared": "squared relu"}
# What a config may say although the published defaults do not, by their names.
_SWITCHES = {
    **dict.fromkeys(
        ("qk_layernorm", "use_qk_norm"), "norms of queries and keys, if the config says so"
    ),
    "audio_config": "states of sound too, of Conformers that attend to the last few, if it says so",
    "alibi": "ALiBi in bfloat16 in place of rotary positions, if the config says so",
    "do_stable_layer_norm": "normalization first, if the config says so",
    "num_kv_shared_layers": "last layers with the keys and values of others, if the config has any",
    "enable_moe_block": "experts beside the feed-forward layers, if the config says so",
    "attention_k_eq_v": "keys as values, if the config says so",
    "conv_L_cache": "a gated short convolution in place of attention, in layers that it names",
    "conv_kernel_size": "a convolution beside the first layer, if the config has one",
    "rope_theta": "rotary positions in place of learned ones, if the config says so",
    "token_dropout": "masks without an embedding, if the config says so",
    "word_embed_proj_dim": "narrower tokens, projected before positions and logits, if it says so",
}
_MIXERS = {
    "state_space": "a state space in place of attention",
    "parallel": "a state space beside attention",
    "gated_delta": "a gated delta rule in place of most attentions",
    "linear_recurrence": "a gated linear recurrence in place of most attentions",
    "fourier": "Fourier transforms without weights in place of attention",
    "token_mixing": "a feed-forward layer over the pieces in place of attention",
}
NORMALIZATIONS = {
    "layer_norm": "LayerNorm",
    "layer_norm_no_bias": "LayerNorm without bias",
    "layer_norm_plus_one": "LayerNorm by 1 + weight",
    "rms_norm": "RMSNorm",
    "rms_norm_plus_one": "RMSNorm by 1 + weight",
    "rms_norm_no_weight": "RMSNorm without weight",
    "batch_norm": "batch normalization",
}


def paper(family: Family) -> str:
    """The paper of a family, from the docstrings of the modules that have it.

    Raises:
        ValueError: If the docstring does not name one.
    """
    modules = [
        module
        for module in map(
            importlib.import_module,
            (
                found.name
                for found in pkgutil.walk_packages(families.__path__, f"{families.__name__}.")
            ),
        )
        if any(value is family for value in vars(module).values())
    ]
    papers = [found for module in modules for found in PAPER.finditer(module.__doc__ or "")]
    if not papers:
        raise ValueError(
            f"The docstring of {modules[0].__name__} must start with 'Name: Authors year, URL'."
        )
    mine = _letters(family.model_type)
    best = max(papers, key=lambda found: (_fit(found, mine), -found.start()))
    text = best["authors"]
    if not _fit(best, mine):
        text = f"as {best['name']}: {text}"
    if best["title"]:
        return f"{text}, {best['title']}"
    return f"[{text}]({best['url'].rstrip('.')})" if best["url"] else text


def _fit(found: re.Match, mine: str) -> int:
    """How well the name of a paper fits a model_type: as many letters as are its start or end."""
    name = _letters(found["name"])
    return len(name) * (mine.startswith(name) or mine.endswith(name))


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def defaults(family: Family) -> TransformerConfig:
    """The config of a family when a published config says nothing."""
    return family.config({})


def positions(family: Family) -> str:
    """The positions of a family, in words."""
    config = defaults(family)
    beside = config.relative_bias and config.position != "relative"
    buckets = f"; relative, {config.relative_num_buckets} buckets" if beside else ""
    if config.disentangled or RELATIVE_SCORES in family.conversions:
        buckets += "; relative in the scores, if the config has them"
    return absolute_positions(family) + buckets


def absolute_positions(family: Family) -> str:
    """The value `position` of a family, in words."""
    config = defaults(family)
    if config.position == "learned":
        if config.position_padding_id is not None:
            return "learned, counted without padding, from row `pad_token_id + 1`"
        return (
            f"learned, from row {config.position_offset}" if config.position_offset else "learned"
        )
    if config.position == "relative":
        own = " in each layer" if config.relative_tables == "own" else ""
        return f"relative, {config.relative_num_buckets} buckets{own}"
    if config.position == "sinusoidal":
        words = "sinusoidal" if config.sinusoidal_interleaved else "sinusoidal, sines first"
        words += ", of Tensor2Tensor" if config.sinusoidal_inclusive else ""
        return words + f", from position {config.position_offset}" * (config.position_offset > 0)
    if isinstance(config.last_side.score_bias, RelativeSinusoids):
        return "sinusoids of distances in the scores"
    rotary = _rotary(config)
    if rotary is None:
        return "rotary, by row and column" if on_grid(config) else config.position
    scaling = rotary.scaling
    share = ""
    if rotary.dim is not None:
        share = f" on {rotary.dim / config.head_dim:.0%} of a head"
    share += ", not rounded" if scaling is not None and not scaling.truncate else ""
    share += ", of neighbouring features" if rotary.interleaved else ""
    axes = rotary.position_axes
    if axes is not None:
        share += f" of {len(axes.pairs)} axes" + ", in turns" * (axes.order == "alternating")
    share += ", clockwise" if rotary.direction == "clockwise" else ""
    growing = scaling is not None and scaling.query_growth is not None
    share += ", queries growing with the position" if growing else ""
    stretched = scalings(family)
    return f"rotary{share}" + (f"; scaling {', '.join(stretched)}" if stretched else "")


def on_grid(config: TransformerConfig) -> bool:
    """Return whether the rotation of the last side is over the grid of an image."""
    mixers = (block.mixer for block in config.last_side.every_block)
    return any(isinstance(getattr(mixer, "position", None), GridRotary) for mixer in mixers)


def _rotary(config: TransformerConfig) -> Rotary | None:
    """The rotation in the last side's mixers, if there is one."""
    positions = (getattr(each.mixer, "position", None) for each in config.last_side.every_block)
    return next((position for position in positions if isinstance(position, Rotary)), None)


def _rotated(config: TransformerConfig) -> int:
    """The number of rotated features of a head, 0 without a rotation."""
    rotary, mixer = _rotary(config), _latent(config)
    if rotary is None:
        return 0
    if rotary.dim is not None:
        return rotary.dim
    return config.head_dim if mixer is None else mixer.qk_rope_head_dim


def _latent(config: TransformerConfig) -> LatentAttention | None:
    """The latent attention of a model, if it has one."""
    mixers = (block.mixer for block in config.last_side.every_block)
    return next((mixer for mixer in mixers if isinstance(mixer, LatentAttention)), None)


def scalings(family: Family) -> list[str]:
    """The kinds of rotary scaling that a family reads."""
    read = []
    config = defaults(family)
    rotated = _rotated(config)
    ones = [1.0] * (rotated // 2)
    for kind in ROTARY_SCALINGS:
        options = {
            "rope_type": kind,
            "factor": 2.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "short_factor": ones,
            "long_factor": ones,
        }
        with contextlib.suppress(ValueError):  # of one that the family refuses
            rotary = _rotary(family.config({"rope_scaling": options}))
            if rotary is not None and getattr(rotary.scaling, "method", None) == kind:
                read.append(kind)
    return read


def normalization(family: Family) -> str:
    """Describe the norm and its place, in words."""
    config = defaults(family)
    place = "first" if config.normalize_first else "last"
    if config.normalize_output:
        outputs = "on the output of each sub-layer"
        place = f"first, {outputs}" if config.normalize_first else outputs
    parts = [f"{NORMALIZATIONS[config.normalization]} {place}"]
    if config.embedding_normalization:
        parts.append("on the embeddings")
    if not all(config.attention_normalization for config in config.sides[0].layers):
        parts.append("none at some attentions")
    if config.query_key_norm:
        across = " across heads" if config.query_key_norm_across_heads else ""
        across += " of each head" if config.query_key_norm_per_head else ""
        across += " after their rotation" if config.query_key_norm_after_rotation else ""
        parts.append(f"on queries and keys{across}")
    if config.final_normalization != config.normalize_first:
        parts.append("at the end" if config.final_normalization else "none at the end")
    return ", ".join(parts)


def pattern_words(config: TransformerConfig) -> list[str]:
    """Which tokens see which, in words, of a side."""
    words = []
    if config.global_projection:
        words.append("a window, and tokens that see all by projections of their own")
    elif config.global_block_size is not None:
        words.append("a window, and sums of groups of tokens")
    elif config.window is not None:
        words.append("a window, if the config has one")
    if config.window_dilation > 1:
        words.append("dilated")
    if config.global_tokens:
        words.append("first tokens that see all")
    if config.block_size is not None:
        words.append("blocks of tokens" + (", some at random" if config.random_blocks else ""))
    if config.only_side.global_states:
        words.append("chunks that every second layer moves, and trained states that see all")
    return words


def mixer_words(config: TransformerConfig) -> list[str]:
    """Describe values of attention that have no keyword, in words."""
    mixers = [block.mixer for block in config.last_side.every_block]
    positions = [getattr(mixer, "position", None) for mixer in mixers]
    words = []
    if any(getattr(mixer, "value_norm", None) for mixer in mixers):
        words.append("normalized values")
    if config.last_side.causal:
        words.append("a state sees itself and those before it")
    if any(getattr(mixer, "query_scale", False) for mixer in mixers):
        words.append("a trained factor of each feature of queries")
    if any(getattr(position, "pairs", None) for position in positions):
        words.append("few pairs rotated in layers that see all tokens")
    if config.last_side.layer_inputs is not None:
        words.append("vectors of each token for each layer, if the config says so")
    block = config.last_side.block
    if block.merged_attention:
        words.append("one softmax over a decoder's own tokens and the encoder's states")
    if getattr(config.last_side.input, "replaced_id", None) is not None:
        words.append("a token with a vector beside the table")
    if block.altup is not None:
        words.append("copies of the states, predicted and corrected (AltUp)")
    if block.laurel is not None:
        words.append("a narrow residual beside attention (LAuReL)")
    if any(getattr(each.feed_forward, "sparsity", 0) for each in config.last_side.every_block):
        words.append("the largest values of gates alone, in layers that it names")
    if any(isinstance(getattr(mixer, "pattern", None), Chunks) for mixer in mixers):
        words.append("attention within chunks in layers with a rotation")
    patterns = [getattr(mixer, "pattern", None) for mixer in mixers]
    windows = [pattern for pattern in patterns if isinstance(pattern, GridWindows)]
    if windows:
        shifted = any(pattern.shift for pattern in windows)
        where = ", shifted in every second layer" if shifted else " in most layers"
        words.append(f"attention within windows of the grid of patches{where}")
    if any(each.bottleneck is not None for each in config.last_side.every_block):
        words.append("convolutions behind some blocks")
    if config.last_side.of_videos:
        words.append("attention within each frame, then over time at each place")
    if block.conformer is not None:
        words.append("a second feed-forward layer and a convolution in each block (Conformer)")
    if any(isinstance(getattr(mixer, "score_bias", None), RelativeKeys) for mixer in mixers):
        words.append("trained vectors of the distances to keys in the scores")
    if any(isinstance(getattr(mixer, "score_bias", None), DecomposedBias) for mixer in mixers):
        words.append("distances in rows and in columns in the scores")
    biases = [getattr(mixer, "score_bias", None) for mixer in mixers]
    if any(isinstance(bias, WindowBias) for bias in biases):
        network = any(isinstance(bias, ContinuousWindowBias) for bias in biases)
        by = "by a small network " if network else ""
        words.append(f"a bias for each distance in a window, {by}of each layer")
    if any(getattr(mixer, "score", None) == "scaled_cosine" for mixer in mixers):
        words.append("scores that are cosines, times a trained strength of each head")
    if any(isinstance(position, QueryGrowth) for position in positions):
        words.append("queries that grow with the position in the others")
    return words


def _words_of_series(stem) -> str:
    """Describe the parts of a series stem other than its pieces, in words."""
    if not stem.reads_observed:
        return ", behind a class token if the config says so"
    known = " with what is known of them, projected by two layers and one beside them"
    if stem.running_scale:
        return f"{known}, each scaled by the values up to its end"
    return f"{known}, before a last token if the config says so"


def special(family: Family) -> list[str]:
    """Describe other differences of a family from the original Transformer, in words."""
    config = defaults(family)
    read = {field.ours for field in family.fields.values()}
    joined = getattr(family.of_config, "__self__", None)
    # The one conversion of a model that is joined of two, or is another one's, gives every value.
    if family.fields and family.of_config is None and config.placeholder_id is None:
        read |= {name for conversion in family.conversions for name in conversion.read({})}
    activation = ACTIVATIONS.get(config.activation, config.activation)
    parts = [f"gated {activation}" if config.gated else activation]
    if not config.intermediate_dim:
        parts = ["no feed-forward layers"]
    mixers = [block.mixer.kind for block in config.last_side.every_block]
    parts += [words for kind, words in _MIXERS.items() if kind in mixers]
    parts += mixer_words(config)
    if config.attention_gate:
        parts.append("gates on the outputs of attention")
    if config.gate_limit is not None:
        parts.append("cut gates")
    if config.softmax_gate:
        parts.append("gates by softmax on the outputs of feed-forward layers")
    if config.num_experts:
        experts = f"{config.num_experts} experts, {config.experts_per_token} a token"
        optional = "" if config.shared_expert_dim else ", if the config has one"
        if config.shared_expert_dim or "shared_expert_dim" in read:
            gate = "" if config.shared_expert_gate else ", which has no gate"
            experts += f" and a shared one{optional}{gate}"
        weights = "together" if config.normalize_expert_weights else "of all"
        biased = ", with a bias" if config.router_bias else ""
        router = Router(**config.router or {})
        biased += ", chosen with a bias" if router.correction_bias else ""
        by = {"sparse_mixer": "softmax over those near the best, one after the other,"}
        by = by.get(router.activation, router.activation)
        biased += ", which multiply the inputs" * (router.weighted == "inputs")
        parts.append(f"{experts}, weights by {by} {weights}{biased}")
        stated = {*family.published_config(config)}
        if stated & {"n_group", "num_expert_group"}:
            group = {"max": "best expert", "top_two": "best two experts"}
            parts.append(f"experts of few groups, by the {group[router.group_score]} of each")
        if "routed_scaling_factor" in stated:
            parts.append("a factor of the experts' weights")
    latent = _latent(config)
    if latent is not None:
        narrow = "keys and values" if latent.q_lora_rank is None else "queries, keys and values"
        sizes = (latent.qk_nope_head_dim, latent.qk_rope_head_dim, latent.v_head_dim)
        widths = "{} and {} rotated features, and values of {}".format(*sizes)
        parts.append(f"{narrow} by narrow latent vectors, heads of {widths}")
    if config.attention_sinks:
        parts.append("attention to nothing")
    if config.kind == "dual":
        kinds = {"folded_frames": "sound", "tubes": "videos"}
        first = kinds.get(config.sides[0].stem.kind, "images")
        for what, side in zip((first, "texts"), config.sides, strict=True):
            parts.append(f"{what} pooled by {side.vector_pooling!r}".replace("'", ""))
        parts += ["texts read in both directions"] * config.sides[1].bidirectional
        parts += ["a tanh layer before the vectors of texts"] * config.vector_pooler
        parts += ["two layers for each vector"] * (config.vector_activation is not None)
        parts += ["a scale of similarities for each direction"] * config.similarity_text_scale
        parts += ["a bias of similarities"] * config.similarity_bias
        if config.similarity.fixed_scale is not None:
            parts.append("similarities with a fixed scale")
        if config.sides[1].only_side.input.class_token:
            parts.append("a class token behind each text")
    elif config.vector_pooling:
        normalized = "a normalized vector" if config.vector_normalization else "a vector"
        parts.append(f"{normalized}, pooled by {config.vector_pooling}")
    if config.placeholder_id is not None:
        seen = {"states": ", which see each other", "prompt": ", and see the prompt, as it them"}
        whose = seen.get(config.placeholder_visibility, "")
        ways = {
            "mlp": "two layers",
            "normalized": "a layer and a norm",
            "pooled": "a norm and a layer on the means of squares",
            "merged": "a norm, and two layers on squares side by side",
            "merged_mlp": "a norm, and three layers on squares side by side",
            "merged_mean": "a norm without weights and a layer on the means of squares",
            "shuffled": "a layer on the joined states of squares",
            "shuffled_mlp": "a norm and two layers on the joined states of squares",
            "norm_around": "a layer between two norms",
        }
        by = ways.get(config.flat["projector"], "one layer")
        kind = "states of images"
        if config.queries is not None:
            kind = "trained queries that attend to images in some layers"
        where = " of the encoder" * (config.placeholder_side == "encoder")
        parts.append(f"{kind}, projected by {by}, in the place of tokens{where}{whose}")
        parts += ["positions count these places too"] * config.placeholders_counted
        parts += ["an OPT, or a T5 that has them in its encoder"] * (config.queries is not None)
        parts += ["without that of the class token"] * (not config.place_class_token)
        if config.stacked_layers:
            parts.append(
                "with states of further layers, added behind the first layers of the decoder"
            )
        parts += ["a trained state behind each row of patches"] * config.projector_separator
    if family.published_type is not None:
        parts.append(f"`{family.published_type}` in configs, which name its class")
    biases = (config.use_bias,)
    if latent is not None:
        biases += (latent.bias, latent.bias)
    elif config.last_side.attention is not None:
        biases += (config.attention_bias, config.attention_output_bias)
    if not any(biases):
        words = "no biases"
    elif biases == (False, True, False):
        words = "biases on query, key and value only"
    else:
        words = "" if all(biases) else "some biases"
    if latent is not None or {"use_bias", "attention_bias", "attention_output_bias"} & read:
        words = f"{words or 'biases'} unless the config says otherwise"
    if config.feed_forward_output_bias and not config.use_bias:
        words += ", in feed-forward layers only on the output"
    parts.append(words)
    if "num_key_value_heads" in read:
        parts.append("grouped key and value heads")
    if config.parallel_residual or "parallel_residual" in read:
        norm = " behind one norm" if config.share_normalization else ""
        norm += " or two" if norm and "share_normalization" in read else ""
        other = ", unless the config says otherwise"
        other = other if config.parallel_residual else ", if the config says so"
        other = "" if "parallel_residual" in family.constants else other
        parts.append(f"attention and feed-forward side by side{norm}{other}")
    stem = config.stem or config.sides[0].stem
    if stem is not None and stem.kind == "patches":
        tokens = ["a class token"] * stem.class_token
        tokens += ["one of distillation"] * stem.distillation_token
        # A value of the stem of which the usual number may be 0.
        tokens += ["registers"] * ("num_register_tokens" in family.published_config(config))
        what = "a spectrogram" if stem.num_channels == 1 else "images"
        parts.append(f"patches of {what}" + (f", behind {' and '.join(tokens)}" if tokens else ""))
        if stem.num_detection_tokens:
            parts.append("detection tokens behind the patches")
        if config.last_side.merges:
            parts.append("stages, of which each merges patches to fewer and wider ones")
        if config.last_side.block.feed_forward.on_grid:
            parts.append("keys of merged patches, and convolutions in feed-forward layers")
        if stem.mid_positions:
            parts.append("positions that are added again behind each block but the last")
    if stem is not None and stem.kind == "tubes":
        token = ", behind a class token" if stem.class_token else ""
        over = f"over {stem.tube_frames} frames" if stem.tube_frames > 1 else "of single frames"
        parts.append(f"tubes of videos, patches {over}{token}")
    if stem is not None and stem.kind == "patch_sequence":
        windows = ", in windows in most layers" if stem.window else ""
        grid = ", with trained positions that are interpolated" if stem.position_grid else ""
        grid += ", with a trained vector of each row and column" if stem.axis_positions else ""
        parts.append(f"patches of images of any size{windows}{grid}")
    if stem is not None and stem.kind == "series":
        parts.append("pieces of series" + _words_of_series(stem))
    if stem is not None and stem.kind == "frames":
        behind = "behind two convolutions" if stem.strides else "normalized and projected"
        parts.append(f"an encoder of frames of sound, {behind}")
    if stem is not None and stem.kind == "folded_frames":
        parts.append("patches of a spectrogram, which is folded to a square")
        parts.append("windows of patches, and stages, of which each merges patches")
    if stem is not None and stem.kind == "subsampled_frames":
        parts.append("an encoder of frames of sound, behind convolutions that halve them")
    if stem is not None and stem.kind == "resnet":
        maps = ", whose maps of several stages its head reads" if stem.num_maps else ""
        parts.append(f"an encoder of images, behind a ResNet{maps}")
    if stem is not None and stem.kind == "hgnet":
        maps = ", whose maps of several stages its head reads" if stem.num_maps else ""
        parts.append(f"an encoder of images, behind an HGNet{maps}")
    if stem is not None and stem.kind == "mobilenet_v5":
        parts.append("images of one size, read by a MobileNetV5 without blocks behind it")
    if stem is not None and stem.kind == "queries":
        parts.append("an encoder of images, behind a ResNet, and a decoder of object queries")
        parts.append("positions that each attention adds to queries and keys")
    if stem is not None and stem.kind == "waveform":
        parts.append(f"an encoder of samples, behind {len(stem.filters)} convolutions")
        if stem.position_size:
            parts.append("another one whose outputs are the positions")
    if config.attention_bias and not config.key_bias:
        parts.append("no bias of keys")
    if config.grid_bias or config.mean_pooler:
        parts.append("biases of the distances on the grid of patches, of each layer or of all")
    if config.trained_residual_scale:
        parts.append("a trained factor of what a sub-layer gives")
    if config.embedding_projection:
        narrower = config.embedding_dim != config.hidden_dim
        parts.append("narrower embeddings, projected" if narrower else "projected embeddings")
    if joined is not None and joined.projects:
        sides = [
            names_of(f.model_type for f in each) for each in (joined.encoders, joined.decoders)
        ]
        parts.append(f"an encoder of {sides[0]}, a decoder of {sides[1]}")
        projected = "" if config.projector is not None else ", where their widths differ"
        parts.append(f"a layer between them{projected}")
    names = [name for task in family.heads for name in family.classes(task)]
    if any(
        config.source and config.placeholders is None
        for config in (family.config({"architectures": [n]}) for n in names)
    ):
        parts.append("for questions a further encoder that reads them and attends to the image")
    if config.output_transform:
        bias = "" if config.output_transform_bias else " without bias"
        parts.append(f"a dense layer{bias} and a norm before the logits")
    theirs = family.published_config(config)
    turned = config.position == "rotary" or on_grid(config)
    said = {"rope_theta": turned, "conv_kernel_size": config.last_side.block.conformer is not None}
    switches = {n: w for n, w in _SWITCHES.items() if not said.get(n)}
    parts += [words for name, words in switches.items() if name in theirs]
    if config.num_layer_groups * config.layers_per_group < config.num_layers:
        parts.append("layers share their weights")
    if config.segment_vocabulary_size:
        compared = getattr(config.last_side.input, "segment_use", "added") == "compared"
        parts.append("token types" + ", compared in the scores" * compared)
    parts += pattern_words(config.sides[0])
    named = any(field.ours == "window" for field in family.fields.values())
    if SWITCHED_WINDOW in family.conversions or (named and config.window is None):
        parts.append("a window, if the config has one")
    varied = sorted({name for own in config.layer_pattern or () for name in own})
    if varied and not config.last_side.of_videos:
        parts.append(f"layers that differ by turns in {names_of(varied)}")
    overrides = config.flat["encoder"] or config.flat["decoder"]
    if overrides or config.share_embeddings is False:
        parts.append("sides that differ")
    if config.attention_soft_cap or config.logit_soft_cap:
        parts.append("caps on scores or logits")
    score_factors = {"attention_multiplier", "query_pre_attn_scalar"}
    stated = score_factors & {*family.published_config(config)}
    if config.score_scale == 1 and not stated:
        parts.append("scores not scaled")
    elif config.score_scale or stated:
        parts.append("a factor of the scores, if the config has one")
    if config.scale_embedding or "scale_embedding" in read:
        always = family.constants.get("scale_embedding", False)
        parts.append("scaled embeddings" + ("" if always else ", if the config says so"))
    factors = {
        "the embeddings": "embedding_scale",
        "what sub-layers give": "residual_scale",
        "the logits": "logit_scale",
    }
    named = [words for words, name in factors.items() if name in read]
    if named:
        parts.append(f"factors of {', '.join(named)}")
    if config.scale_logits:
        parts.append("scaled logits; in version 1.1 gated gelu instead, and logits as they are")
    if "use_bidirectional_attention" in {*family.published_config(config)} - {*family.required}:
        parts.append("an encoder, if the config says so (EmbeddingGemma)")
    if family.pooler:
        parts.append("a pooler, if the weights have one")
    if family.output_bias:
        parts.append("a bias on the logits, if the weights have one")
    return [part for part in parts if part]


def names_of(names: Iterable[str]) -> str:
    """Names as code."""
    return ", ".join(f"`{name}`" for name in names)
