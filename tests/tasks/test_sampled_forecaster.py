"""Forecasts drawn from tokens: bins, windows, draws, missing values, saving, Chronos's files."""

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.checkpoints.families import FAMILIES
from keras_transformer.checkpoints.weights.safetensors_io import to_numpy
from keras_transformer.processors.bins import UniformBins
from tests.tasks.series import waves

CHRONOS = {
    "tokenizer_class": "MeanScaleUniformBins",
    "tokenizer_kwargs": {"low_limit": -4.0, "high_limit": 4.0},
    "context_length": 24, "prediction_length": 6, "n_tokens": 60, "n_special_tokens": 2,
    "pad_token_id": 0, "eos_token_id": 1, "use_eos_token": True, "model_type": "seq2seq",
    "num_samples": 5, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
}  # fmt: skip


def forecaster(**options):
    config = kt.TransformerConfig(
        kind="seq2seq", vocabulary_size=60, hidden_dim=24, num_layers=1, num_heads=2,
        intermediate_dim=32, position="relative", normalize_first=True, use_bias=False,
        normalization="rms_norm", score="dot", scale_logits=True, head_dim=12,
    )  # fmt: skip
    sizes = {"horizon": 6, "context_length": 24, "low": -4.0, "high": 4.0, "num_samples": 5}
    backbone = kt.models.Seq2Seq(config)
    return kt.SampledForecaster(backbone, kt.SeriesProcessor(), **{**sizes, **options})


@pytest.fixture(scope="module")
def learned():
    keras.utils.set_random_seed(0)
    task = forecaster()
    task.compile(keras.optimizers.Adam(2e-2))
    task.fit(waves()[:, :1], epochs=10, batch_size=16, seed=1, verbose=0)
    return task


@pytest.mark.backend_independent
def test_tokens_are_those_of_chronos():
    """The published tokenizer, as its few lines are in PyTorch."""
    torch = pytest.importorskip("torch")
    low, high, count, special = -15.0, 15.0, 4096, 2
    centers = torch.linspace(low, high, count - special - 1)
    inner = (centers[1:] + centers[:-1]) / 2
    boundaries = torch.concat((torch.tensor([-1e20]), inner, torch.tensor([1e20])))
    random = np.random.default_rng(0)
    values = (random.normal(size=(5, 300)) * [[1], [100], [1e-3], [1], [1]]).astype("float32")
    values[1, 7] = values[2, :40] = np.nan
    values[3] = 0  # no scale
    values[4, :2] = 1e4, -1e5  # beyond the last bins
    context = torch.tensor(values)
    mask = ~torch.isnan(context)
    scale = torch.nansum(torch.abs(context) * mask, dim=-1) / torch.nansum(mask, dim=-1)
    scale[~(scale > 0)] = 1.0
    expected = torch.bucketize(context / scale[:, None], boundaries, right=True) + special
    expected.clamp_(0, count - 1)
    expected[~mask] = 0

    bins = UniformBins(low, high, count, special)
    ids, known, found = bins.encode(values)
    assert np.abs(found / scale.numpy() - 1).max() <= 1e-6 and (known == mask.numpy()).all()
    # On the edge of a bin the last digit of the scale may say which.
    assert (ids != expected.numpy()).mean() <= 1e-3 and np.abs(ids - expected.numpy()).max() <= 1
    drawn = torch.randint(0, count, (5, 3, 7))
    places = torch.clamp(drawn - special - 1, min=0, max=len(centers) - 1)
    values = centers[places] * scale[:, None, None]
    assert np.abs(bins.decode(drawn.numpy(), found) / values.numpy() - 1).max() <= 1e-5


def test_learns_and_is_saved(learned, tmp_path):
    known = waves(280)
    found = learned.forecast(known, horizon=20, num_samples=9, seed=3)  # more than at once
    assert found.shape == (20, 2) and np.isfinite(found).all()
    first = learned.forecast(known, num_samples=9, seed=3)
    assert np.abs(first - found[:6]).max() <= 1e-4
    scores = learned.evaluate(waves(100)[:, :1], verbose=0, return_dict=True)
    assert scores["loss"] <= 2.4  # of 4.1 for guessing, 3.6 for the frequencies
    learned.save_to_preset(tmp_path / "preset")
    learned.save_to_preset(tmp_path / "preset")  # over what is there
    learned.save(tmp_path / "model.keras")
    for again in (
        kt.Task.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.task_values() == learned.task_values()
        assert np.abs(again.forecast(known, num_samples=9, seed=3) - first).max() <= 1e-4


def test_draws_and_quantiles(learned):
    series = [waves(60), waves(31)[:, 0]]
    drawn = learned.generate(series, num_samples=7, seed=5)
    assert [each.shape for each in drawn] == [(7, 6, 2), (7, 6)]
    assert np.std(drawn[1], axis=0).max() > 0
    found = learned.forecast(series, num_samples=7, seed=5, quantiles=[0.25, 0.5])
    for mine, paths in zip(found, drawn, strict=True):
        expected = np.moveaxis(np.quantile(paths, [0.25, 0.5], axis=0), 0, -1)
        assert np.abs(mine - expected).max() <= 1e-4
    # A row is drawn as if it were alone, whatever is longer beside it.
    alone = learned.generate(series[0][:, :1], num_samples=7, seed=5)
    assert alone.shape == (7, 6, 1)
    alone = learned.generate(series[0][:, 0], num_samples=7, seed=5)
    assert alone.shape == (7, 6) and np.abs(alone - drawn[0][..., 0]).max() <= 1e-5


@pytest.mark.one_backend
def test_missing_values(learned):
    """Missing values are masked, as input and as target."""
    series = waves(80)
    series[40:44, 0] = np.nan
    batch = learned.make_dataset(series, shuffle=False)
    inputs, targets, weights = batch[0]
    assert set(inputs) == {"encoder_token_ids", "encoder_padding_mask", "decoder_token_ids"}
    assert inputs["encoder_token_ids"].shape[1] == 25 and targets.shape[1] == 7
    assert (inputs["encoder_token_ids"][:, -1] == 1).all() and (targets[:, -1] == 1).all()
    assert (targets[weights == 0] == 0).all() and (inputs["decoder_token_ids"][:, 0] == 0).all()
    assert ((inputs["encoder_token_ids"] == 0) == ~inputs["encoder_padding_mask"]).all()
    before = to_numpy(learned(inputs))
    changed = np.where(inputs["encoder_padding_mask"], inputs["encoder_token_ids"], 9)
    assert np.abs(to_numpy(learned({**inputs, "encoder_token_ids": changed})) - before).max() < 1e-4
    assert np.isfinite(learned.evaluate(series, verbose=0)[0])
    assert np.isfinite(learned.forecast(series[:43], seed=1)).all()
    assert learned.make_dataset(waves(12)[:, 0]).num_rows == 1  # shorter than a window


def published(tmp_path, **values):
    """A random T5 of Transformers with the config of a Chronos."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.T5Config(
        vocab_size=60, d_model=16, d_kv=6, d_ff=24, num_layers=2, num_heads=3,
        dropout_rate=0.0, chronos_config={**CHRONOS, **values},
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(tmp_path)
    return model


def test_published_files_there_and_back(tmp_path):
    """Logits of a context with a gap, as Transformers', and the config written as it was."""
    torch = pytest.importorskip("torch")
    reference = published(tmp_path / "theirs")
    task = kt.Task.from_preset(tmp_path / "theirs")
    assert type(task) is kt.SampledForecaster
    assert (task.horizon, task.context_length, task.low, task.num_samples) == (6, 24, -4.0, 5)
    series = waves(60)
    series[33:36, 1] = np.nan
    inputs, _, _ = task.make_dataset(series, shuffle=False)[0]
    names = {
        "encoder_token_ids": "input_ids",
        "encoder_padding_mask": "attention_mask",
        "decoder_token_ids": "decoder_input_ids",
    }
    theirs = {names[name]: torch.tensor(np.asarray(x)).long() for name, x in inputs.items()}
    with torch.no_grad():
        expected = reference(**theirs).logits.numpy()
    assert np.abs(to_numpy(task(inputs)) - expected).max() <= 1e-4
    assert task.forecast(series, num_samples=2, seed=1).shape == (6, 2)

    kt.export_to_huggingface(task, tmp_path / "ours")
    again, info = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values()), info
    assert again.config.chronos_config == CHRONOS
    assert again.generation_config.decoder_start_token_id == 0
    with torch.no_grad():
        assert np.abs(again.eval()(**theirs).logits.numpy() - expected).max() <= 1e-5
    back = kt.Task.from_preset(tmp_path / "ours")
    assert back.task_values() == task.task_values()


@pytest.mark.one_backend
def test_greedy_draws_are_those_of_transformers(tmp_path):
    """With the likeliest token alone there is nothing to draw."""
    torch = pytest.importorskip("torch")
    reference = published(tmp_path, top_k=1)
    task = kt.SampledForecaster.from_preset(tmp_path)
    rows = waves(24).T.astype("float32")
    rows[0, 5] = np.nan
    inputs, scale = task._read(rows)
    drawn = reference.generate(
        torch.tensor(inputs["encoder_token_ids"]).long(),
        attention_mask=torch.tensor(inputs["encoder_padding_mask"]).long(),
        min_new_tokens=6, max_new_tokens=6, do_sample=False, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )[:, 1:]  # fmt: skip
    expected = task.bins.decode(drawn.numpy(), scale)
    found = task.forecast([rows[0], rows[1]], num_samples=1)
    assert np.abs(np.stack(found) - expected).max() <= 1e-4


@pytest.mark.backend_independent
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokenizer_class": "Words"}, "tokenizer_class='Words' in chronos_config is not"),
        ({"model_type": "causal"}, "model_type='causal' in chronos_config is not supported"),
        ({"use_eos_token": False}, "use_eos_token=False in chronos_config"),
        ({"tokenizer_kwargs": None}, "chronos_config must be an object with tokenizer_kwargs"),
        ({"prediction_length": "far"}, "prediction_length must be a number"),
    ],
)
def test_wrong_published_values(values, message):
    config = {"architectures": ["T5ForConditionalGeneration"]}
    with pytest.raises(ValueError, match=message):
        FAMILIES["t5"].task({**config, "chronos_config": {**CHRONOS, **values}})


@pytest.mark.one_backend
def test_wrong_values(learned):
    for options, message in (
        ({"high": -5.0}, "`high` must be a number above -4"),
        ({"num_tokens": 61}, "`num_tokens` must be an integer from 6 to 60"),
        ({"num_special": 1}, "`num_special` must be an integer from 2"),
        ({"top_k": 0}, "`top_k`"),
        ({"horizon": 0}, "`horizon` must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            forecaster(**options)
    for options, message in (
        ({"quantiles": [0.9, 0.1]}, "`quantiles` must be rising numbers"),
        ({"num_samples": 0}, "`num_samples` must be an integer"),
        ({"seed": -1}, "`seed` must be an integer"),
    ):
        with pytest.raises(ValueError, match=message):
            learned.forecast(waves(), **options)
    with pytest.raises(ValueError, match="Series 0 has 6 values; a window takes 1 and 6"):
        learned.fit(waves(6), verbose=0)
