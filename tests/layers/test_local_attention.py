"""Attention to the last few states, against a formula for each pair, and its stem and projector."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import config as parts
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.config.structure import variable_shapes
from keras_transformer.layers.mixers.local_attention import LocalAttentionMixer
from keras_transformer.layers.normalization import CumulativeGroupNormalization

HEADS, WIDTH, CAP = 2, 8, 1.5


def softplus(x):
    return np.log1p(np.exp(x))


def by_pairs(layer, x, size):
    """The outputs of one row, in float64, query by query."""
    kernels = {
        name: to_numpy(getattr(layer, f"{name}_dense").kernel).astype("float64")
        for name in ("query", "key", "value", "output", "position_key")
    }
    head = WIDTH // HEADS
    scale = softplus(to_numpy(layer.query_scale).astype("float64")) / np.log(2) / head**0.5
    waves = 10_000.0 ** (-np.arange(WIDTH // 2) / (WIDTH // 2 - 1))
    made = np.zeros(x.shape)
    for place in range(len(x)):
        seen = range(max(place - size + 1, 0), place + 1)
        for n in range(HEADS):
            own = slice(n * head, (n + 1) * head)
            query = (x[place] @ kernels["query"])[own] * scale
            scores = []
            for other in seen:
                key = (x[other] @ kernels["key"])[own]
                key *= softplus(1) / np.log(2) if layer.part.scale_keys else 1
                angles = (place - other) * waves
                sinusoid = np.concatenate([np.sin(angles), np.cos(angles)])
                score = query @ (key + (sinusoid @ kernels["position_key"])[own])
                scores.append(CAP * np.tanh(score / CAP))
            weights = np.exp(scores) / np.exp(scores).sum()
            values = [(x[other] @ kernels["value"])[own] for other in seen]
            made[place, own] = weights @ np.array(values)
    return made @ kernels["output"]


@pytest.mark.each_backend
@pytest.mark.parametrize("length", [1, 4, 5, 23])
@pytest.mark.parametrize("size", [1, 5])
def test_each_pair(length, size):
    scales = {"scale_keys": length != 4}  # which Gemma 3n does not
    part = parts.LocalAttention(num_heads=HEADS, size=size, soft_cap=CAP, **scales)
    layer = LocalAttentionMixer(part)
    random = np.random.default_rng(length)
    x = random.normal(size=(2, length, WIDTH)).astype("float32")
    layer.build(x.shape)
    layer.query_scale.assign(random.normal(size=WIDTH // HEADS))
    real = np.ones((2, length), "bool")
    real[1, length // 2 + 1 :] = False
    found = to_numpy(layer(x, mask=real))
    for row, mask, made in zip(x, real, found, strict=True):
        expected = by_pairs(layer, row[mask].astype("float64"), size)
        assert np.abs(made[mask] - expected).max() <= 2e-5


@pytest.mark.one_backend
def test_what_it_cannot_do_is_refused():
    part = parts.LocalAttention(num_heads=HEADS)
    with pytest.raises(ValueError, match="causal=False"):
        LocalAttentionMixer(part, causal=True)
    with pytest.raises(ValueError, match="even and divisible by `num_heads`"):
        LocalAttentionMixer(part).build((None, None, 9))
    with pytest.raises(ValueError, match="size"):
        parts.LocalAttention(num_heads=2, size=0)
    with pytest.raises(ValueError, match="packed documents"):
        x = np.zeros((1, 4, WIDTH), "float32")
        pack = np.array([[0, 0, 1, 1]])
        visibility = kt.layers.AttentionMask(query_pack=pack, key_pack=pack)
        LocalAttentionMixer(part)(x, visibility=visibility)


# The stem of Gemma 3n.
CUMULATIVE = {"norm": "cumulative_group", "norm_epsilon": 1e-2, "padding": "reverse_causal"}


def tower(of_stem=None, **options):
    block = parts.Block(
        mixer=parts.LocalAttention(num_heads=2, size=3, clipped=True),
        feed_forward=parts.Dense(dim=12, activation="silu", bias=False, clipped=True),
        norm=parts.Norm(type="rms_norm"),
        residual=parts.Residual(order="sandwich"),
        conformer=parts.Conformer(size=3, causal=True),
    )
    stem = parts.ConvolvedFrameStemConfig(num_bins=7, filters=(4, 3), **(of_stem or {}))
    side = parts.Side(input=stem, hidden_dim=WIDTH, num_layers=2, block=block, final_norm=False)
    return kt.TransformerConfig(encoder=side.replace(**options))


@pytest.mark.each_backend
def test_norms_of_all_frames_so_far():
    """Against the formula in float64: the variance is around the mean that each frame had."""
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 5, 3, 4)).astype("float32") + 2
    layer = CumulativeGroupNormalization(epsilon=1e-2)
    layer.build(x.shape)
    layer.gamma.assign(gamma := random.normal(size=4))
    expected = np.zeros(x.shape)
    for row, made in zip(x.astype("float64"), expected, strict=True):
        means = [row[: i + 1].mean() for i in range(5)]
        squares = [((row[i] - means[i]) ** 2).mean() for i in range(5)]
        for i in range(5):
            scale = (np.mean(squares[: i + 1]) + 1e-2) ** -0.5
            made[i] = (row[i] - means[i]) * scale * gamma
    assert np.abs(to_numpy(layer(x)) - expected).max() <= 2e-6
    again = CumulativeGroupNormalization.from_config(layer.get_config())
    assert again.epsilon == 1e-2


@pytest.mark.each_backend
@pytest.mark.parametrize("of_stem", [{}, CUMULATIVE], ids=["gemma4", "gemma3n"])
def test_a_tower_of_them(tmp_path, of_stem):
    """Its weights are described, padding changes nothing, it learns, and files give it back."""
    backbone = kt.models.Encoder(tower(of_stem))
    shapes = {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.variables}
    assert shapes == variable_shapes(backbone.config)
    random = np.random.default_rng(0)
    frames = random.normal(size=(1, 13, 7)).astype("float32")
    alone = to_numpy(backbone({"frames": frames, "padding_mask": np.ones((1, 13), "bool")}))
    padded = np.concatenate([frames, random.normal(size=(1, 8, 7))], axis=1).astype("float32")
    given = {"frames": padded, "padding_mask": np.arange(21)[None] < 13}
    assert alone.shape == (1, 4, WIDTH)
    assert np.abs(to_numpy(backbone(given))[:, :4] - alone).max() <= 1e-5
    backbone.save_to_preset(tmp_path / "tower")
    again = kt.Backbone.from_preset(tmp_path / "tower")
    assert again.config == backbone.config
    assert np.abs(to_numpy(again(given)) - to_numpy(backbone(given))).max() <= 1e-6
    # Each block sees two more frames of states than the mixer and the convolution did before it.
    changed = padded.copy()
    changed[:, 12] += 1
    difference = np.abs(to_numpy(backbone(given | {"frames": changed})) - to_numpy(backbone(given)))
    first = 2 if of_stem else 3  # convolutions that look ahead see frames 8 to 14
    assert difference[:, :first].max() <= 1e-6 < difference[:, first].max()


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"filters": ()}, "1 to 16 positive integers"),
        ({"filters": (4, 0)}, "1 to 16 positive integers"),
        ({"filters": (4, "5")}, "1 to 16 positive integers"),
        ({"num_bins": 0}, "num_bins"),
        ({"norm": "group"}, "norm"),
        ({"norm_epsilon": 0.0}, "norm_epsilon"),
        ({"padding": "causal"}, "padding"),
    ],
)
def test_stems_that_cannot_be(change, told):
    with pytest.raises(ValueError, match=told):
        parts.ConvolvedFrameStemConfig(**change)


def hearing(**changes):
    """A config of images and sound, with changed parts."""
    base = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=20, hidden_dim=8, num_layers=1, num_heads=2,
        intermediate_dim=8, position="rotary", normalize_first=True, placeholder_id=3,
        projector="merged_mean", projector_bias=False,
        encoder={
            "vocabulary_size": 0, "position": "none",
            "stem": {"kind": "patch_sequence", "patch_size": 2, "num_frames": 1},
        },
    )  # fmt: skip
    between = parts.Projector(type="norm_between", inner_dim=6)
    return base.replace(**{"sound": tower().encoder, "sound_projector": between, **changes})


def without_images(**changes):
    """A config whose encoder hears, and whose last three tokens have embeddings of its width."""
    around = parts.Projector(type="norm_around", bias=False, stride=2, hard_tokens=3)
    given = {
        "encoder": tower(CUMULATIVE).encoder, "decoder": hearing().decoder,
        "placeholders": parts.Placeholders(token_id=18), "projector": around,
    }  # fmt: skip
    return kt.TransformerConfig(**{**given, **changes})


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"encoder": tower(input=parts.PatchStemConfig()).encoder}, "an encoder of sound whose"),
        ({"placeholders": parts.Placeholders(token_id=18, visibility="prompt")}, "'causal'"),
        (
            {"decoder": hearing().decoder.replace(position=parts.Sinusoidal())},
            "without positions that are added",
        ),
        (
            {"projector": parts.Projector(type="norm_around", bias=False, hard_tokens=21)},
            "which has 20 tokens, received 21",
        ),
    ],
)
def test_recordings_that_have_no_place(changes, told):
    assert without_images().hearing_side == "encoder" and hearing().hearing_side == "sound"
    with pytest.raises(ValueError, match=told):
        without_images(**changes)


@pytest.mark.each_backend
def test_hard_tokens_and_the_state_behind_a_recording():
    """Both are what the projector makes of the table, and what is placed is every second state."""
    backbone = kt.models.Seq2Seq(without_images())
    shapes = {v.path.split("/", 1)[1]: tuple(v.shape) for v in backbone.variables}
    assert shapes == variable_shapes(backbone.config)
    projector, random = backbone.projector, np.random.default_rng(0)
    frames = random.normal(size=(2, 9, 7)).astype("float32")
    mask = np.arange(9) < np.array([[9], [4]])
    heard = to_numpy(backbone.encode(frames=frames, padding_mask=mask))
    assert heard.shape == (2, 2, 8)  # of three states
    table = to_numpy(projector.hard_embeddings)
    table = table / np.sqrt((table**2).mean(-1, keepdims=True) + 1e-6)
    hard = table @ to_numpy(projector.dense.kernel)
    hard = hard / np.sqrt((hard**2).mean(-1, keepdims=True) + 1e-6)
    assert np.abs(to_numpy(projector.further_state) - hard[-1]).max() <= 1e-5
    plain = random.normal(size=(1, 4, 8)).astype("float32")
    found = to_numpy(projector.with_hard_tokens(np.array([[16, 17, 5, 19]]), plain))
    expected = np.stack([plain[0, 0], hard[0], plain[0, 2], hard[2]])
    assert np.abs(found[0] - expected).max() <= 1e-5

    def states(ids, placed):
        given = {"encoder_states": heard.astype("float32")}
        given["decoder_placed_states"] = np.array([placed], "int32")
        return to_numpy(backbone({"decoder_token_ids": np.array([ids]), **given}))

    # Behind the four states of both recordings is that of the last token.
    by_number, by_id = states([18, 18, 5], [0, 4]), states([18, 19, 5], [0])
    assert np.abs(by_number - by_id).max() <= 1e-5
    assert np.abs(states([18, 17, 5], [0]) - by_id).max() > 1e-3


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"placeholders": parts.Placeholders(token_id=3, visibility="windows")}, "'causal'"),
        ({"sound": None}, "A `sound_projector` needs `sound`"),
        (
            {"sound": tower(input=parts.PatchStemConfig()).encoder},
            "a stem of frames with a mask",
        ),
        ({"sound_projector": parts.Projector(type="merged")}, "needs a stem of the kind"),
        ({"sound": tower(hidden_dim=10).encoder, "sound_projector": None}, "give a `projector`"),
    ],
)
def test_sound_that_has_no_place(changes, told):
    assert hearing().side_names == ("encoder", "sound", "decoder")
    with pytest.raises(ValueError, match=told):
        hearing(**changes)


@pytest.mark.backend_independent
def test_projectors_that_cannot_be():
    for change in ({"type": "norm_between"}, {"type": "mlp", "inner_dim": 4}):
        with pytest.raises(ValueError, match="needs an `inner_dim`, and no other has"):
            parts.Projector(**change)
    for change in ({"type": "mlp", "stride": 2}, {"type": "mlp", "hard_tokens": 3}):
        with pytest.raises(ValueError, match="need the type 'norm_around'"):
            parts.Projector(**change)
    for change in ({}, {"bias": False, "separator": True}):
        with pytest.raises(ValueError, match="has neither biases nor a separator"):
            parts.Projector(type="norm_around", **change)
    with pytest.raises(ValueError, match="`sound` needs kind='seq2seq'"):
        kt.TransformerConfig(decoder=hearing().decoder, sound=tower().encoder)


@pytest.mark.each_backend
def test_states_behind_those_of_images():
    """Only sound, only images, and both: each place gets the state of its number."""
    backbone = kt.models.Seq2Seq(hearing())
    config = kt.TransformerConfig.from_json(backbone.config.to_json())
    assert config == backbone.config
    random = np.random.default_rng(0)
    patches = random.normal(size=(2, 3, 12)).astype("float32")
    positions = np.zeros((2, 3, 2), "int32")
    frames = random.normal(size=(2, 9, 7)).astype("float32")
    mask = np.arange(9) < np.array([[9], [4]])
    ids = np.array([[3, 3, 5, 3]])
    images = {"encoder_patches": patches, "encoder_patch_positions": positions}
    sound = {"sound_frames": frames, "sound_padding_mask": mask}

    def states(placed, **given):
        return to_numpy(
            backbone({"decoder_token_ids": ids, "decoder_placed_states": placed[None], **given})
        )

    one = {"encoder_states": to_numpy(backbone.encode(patches=patches, patch_positions=positions))}
    heard, _ = backbone._heard({"frames": frames, "padding_mask": mask}, (), False)
    two = {"encoder_states": to_numpy(heard)}
    both = np.concatenate([x["encoder_states"].reshape(1, 6, 8) for x in (one, two)], axis=1)
    for placed, given, whole in (
        (np.array([0, 1, 4]), images, one["encoder_states"]),
        (np.array([0, 1, 3]), sound, two["encoder_states"]),
        (np.array([4, 6, 9]), images | sound, both),
    ):
        placed = placed.astype("int32")
        found = states(placed, **given)
        expected = states(placed, encoder_states=whole.astype("float32"))
        assert np.abs(found - expected).max() <= 1e-5
    assert keras.ops.shape(both) == (1, 12, 8)
