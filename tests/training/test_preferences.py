"""Losses, rewards and gradients of preferences against TRL; references, data, runs, errors."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.data.preferences import PAIRS
from keras_transformer.training import DPO, KTO, BradleyTerry, ResumableRun, SimPO, preferences
from keras_transformer.training.log_probabilities import make_reference
from keras_transformer.training.losses.preference_losses import Scores
from keras_transformer.training.preferences import PreferenceTrainer
from tests.training.preferring import (
    LOSSES,
    METRICS,
    RECORDED,
    ROWS,
    TOKENIZER,
    VALUES,
    by_trl,
    columns,
    gradients_by_their_names,
    labelled,
    learn,
    make_backbone,
    make_lm,
    make_reward_model,
)

TRL = json.loads(VALUES.read_text())


@pytest.mark.parametrize("name", LOSSES)
def test_loss_metrics_and_gradient_are_those_of_trl(name):
    task, found, gradients = learn(name)
    expected = dict(TRL[name])
    gradient = gradients_by_their_names(task, gradients)[RECORDED]
    np.testing.assert_allclose(gradient, expected.pop("gradient"), atol=1e-4)
    assert len(expected) >= 3
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-5, rel=1e-5), key


@pytest.mark.one_backend
@pytest.mark.parametrize("name", LOSSES)
def test_the_recorded_values_are_those_of_trl(name):
    """Here the gradients of all weights are compared."""
    model, loss, metrics = by_trl(name)
    recorded = TRL[name]
    assert loss == pytest.approx(recorded["loss"], rel=1e-5)
    for key in recorded.keys() & METRICS.keys():
        theirs = metrics[key if name == "reward" else METRICS[key]]
        assert theirs == pytest.approx(recorded[key], abs=1e-5)
    task, _, gradients = learn(name)
    mine = gradients_by_their_names(task, gradients)
    for key, parameter in model.named_parameters():
        np.testing.assert_allclose(mine[key], parameter.grad.numpy(), atol=1e-5, err_msg=key)


def rate(task, learning_rate=1.0, **options):
    task.compile(keras.optimizers.SGD(learning_rate, **options))
    return task


def weights(task):
    return [np.array(ops.convert_to_numpy(variable)) for variable in task.weights]


def size(variables) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


def adapted():
    """A model with adapters that have learned something, and the same model without them."""
    lm = rate(make_lm(2), 0.1)
    lm.enable_lora(2, targets=("query", "output"))
    random = np.random.default_rng(0)
    for variable in lm.trainable_variables:
        variable.assign(random.normal(size=variable.shape, scale=0.3))
    return lm


def test_without_its_adapters_a_model_is_its_own_reference():
    found = {}
    for reference in ("adapters", make_lm(2)):
        lm = adapted()
        history = lm.fit_preferences(columns(), reference=reference, epochs=2, verbose=0).history
        found[type(reference)] = history["loss"]
    assert found[str] == pytest.approx(found[kt.CausalLM], abs=1e-6)
    assert abs(found[str][0] - np.log(2)) > 1e-4 and found[str][1] < found[str][0]


@pytest.mark.one_backend
def test_what_a_reference_holds_in_memory():
    lm = adapted()
    trainer = PreferenceTrainer(lm, DPO(), make_reference(lm, "adapters"))
    assert size(trainer.variables) == size(lm.variables)
    whole = make_lm(2)
    trainer = PreferenceTrainer(whole, DPO(), make_reference(whole, "copy"))
    assert size(trainer.variables) == 2 * size(whole.variables)
    assert trainer.trainable_variables == whole.trainable_variables


@pytest.mark.one_backend
def test_a_reference_is_computed_once_and_kept_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"epochs": 2, "batch_size": 2, "seed": 1, "verbose": 0}
    options["validation_data"] = (["red is"], [" cold"], [" warm"])
    expected = rate(make_lm(2), 0.1).fit_preferences(columns(), reference="copy", **options)
    lm = rate(make_lm(2), 0.1)
    found = lm.fit_preferences(columns(), reference="cached", **options)
    for key, values in expected.history.items():
        assert found.history[key] == pytest.approx(values, abs=1e-5), key
    files = sorted((tmp_path / "keras_transformer" / "references").iterdir())
    assert len(files) == 2  # of the rows, and of the validation data
    before = [file.stat().st_mtime_ns for file in files]
    rate(make_lm(2), 0.1).fit_preferences(columns(), reference="cached", **options)
    assert [file.stat().st_mtime_ns for file in files] == before
    # Batches that were used with values from disk take another reference too.
    rows = lm.make_preference_dataset(columns())
    for reference in ("cached", make_lm(0)):
        found = lm.fit_preferences(rows, reference=reference, verbose=0)
    assert abs(found.history["loss"][0] - np.log(2)) > 1e-3
    assert len(list(files[0].parent.iterdir())) == 3
    # A trained model is another reference.
    lm.fit_preferences(columns(), reference="cached", **options)
    assert len(list(files[0].parent.iterdir())) == 5
    # Only the latest files are kept.
    monkeypatch.setattr(preferences, "_MOST_FILES", 2)
    rate(make_lm(2), 0.1).fit_preferences(columns(), reference="cached", **options)
    assert len(list(files[0].parent.iterdir())) == 5  # nothing was written
    lm.fit_preferences(columns(), reference="cached", **options)
    assert len(list(files[0].parent.iterdir())) == 2 and not any(f.exists() for f in files)


def test_a_batch_gives_what_single_rows_give():
    for loss in (DPO(beta=0.3), SimPO()):
        lm, other = rate(make_lm(2), 0.0), make_lm(0)
        more = {"reference": other} if loss.reads_reference else {}
        one, three = (
            lm.fit_preferences(columns(), loss=loss, batch_size=size, verbose=0, **more).history
            for size in (1, 3)
        )
        for key, values in three.items():
            assert one[key] == pytest.approx(values, abs=1e-5), key


@pytest.mark.one_backend
def test_accumulated_batches_are_one_batch():
    found = []
    for batch_size, options in ((3, {}), (1, {"gradient_accumulation_steps": 3})):
        lm = rate(make_lm(2), 1.0, **options)
        lm.fit_preferences(columns(), reference=make_lm(0), batch_size=batch_size, verbose=0)
        found.append(weights(lm))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.one_backend
def test_a_run_that_is_resumed_ends_as_one_that_was_not(tmp_path):
    histories = []
    for part in ((2,), (1, 2)):
        for epochs in part:
            lm = rate(make_lm(2), 0.1)
            rows = lm.make_preference_dataset(columns(), batch_size=2, shuffle=True, seed=3)
            run = ResumableRun(tmp_path / str(len(part)), rows, every=1)
            found = lm.fit_preferences(rows, epochs=epochs, callbacks=[run], verbose=0)
        histories.append((found.history["loss"][-1], weights(lm)))
    assert found.epoch == [1]
    assert histories[0][0] == pytest.approx(histories[1][0], abs=1e-6)
    for one, other in zip(histories[0][1], histories[1][1], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.one_backend
def test_pairs_for_kto_are_labelled_completions():
    rows = labelled()
    found = [
        rate(make_lm(2)).fit_preferences(*given, loss=KTO(), reference=make_lm(0), verbose=0)
        for given in ((columns(),), (rows["prompt"], rows["completion"], rows["label"]))
    ]
    pairs, single = (each.history for each in found)
    for key in ("chosen_reward", "rejected_reward", "margin"):
        assert pairs[key] == pytest.approx(single[key], abs=1e-5)


def chats():
    """Rows as conversations, as in TRL's data sets."""
    return {
        "prompt": [[{"role": "user", "content": prompt}] for prompt, *_ in ROWS],
        **{
            side: [[{"role": "assistant", "content": row[place]}] for row in ROWS]
            for place, side in ((1, "chosen"), (2, "rejected"))
        },
    }


@pytest.mark.one_backend
@pytest.mark.parametrize("form", ["explicit", "implicit", "conversations"])
def test_rows_are_those_of_trl(form, tmp_path):
    datasets = pytest.importorskip("datasets")
    import transformers
    import trl

    words = TOKENIZER.with_chat_template("zephyr")
    rows = chats() if form == "conversations" else columns()
    if form == "implicit":
        both = {side: zip(rows["prompt"], rows[side], strict=True) for side in PAIRS}
        rows = {side: [p + text for p, text in pairs] for side, pairs in both.items()}
    words.save(str(tmp_path))
    lm = kt.CausalLM(make_lm(2).backbone, words)
    config = trl.DPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", disable_tqdm=True,
        gradient_checkpointing=False, max_length=64,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=300, hidden_size=8, intermediate_size=12, num_hidden_layers=1,
            num_attention_heads=2,
        )
    )  # fmt: skip
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    table = datasets.Dataset.from_dict(rows)
    trainer = trl.DPOTrainer(
        model, model.__class__(model.config), config, train_dataset=table, processing_class=theirs
    )
    expected = sorted(
        [[*row["prompt_ids"], *row[f"{side}_ids"]], row[f"{side}_ids"]]
        for row in trainer.train_dataset
        for side in PAIRS
    )
    rows = lm.make_preference_dataset(table)[0][0]["rows"]
    found = sorted(
        [ids[real].tolist(), targets[counted].tolist()]
        for ids, real, targets, counted in zip(*rows.values(), strict=True)
    )
    assert found == expected


@pytest.mark.one_backend
def test_long_rows_lose_the_end_of_completions_or_are_left_out():
    lm = make_lm(2)
    rows = ["red is", "a colour for you"], [" warm", " red"], [" cold as ice", " blue"]
    length = len(TOKENIZER.encode(rows[0][0])) + 4
    with pytest.warns(UserWarning, match="1 of 2 rows are left out"):
        data = lm.make_preference_dataset(*rows, max_length=length)
    assert data.num_rows == 1
    (batch,) = data[0]
    assert batch["rows"]["completion"].sum(axis=1).tolist() == [4, 4]
    with pytest.raises(ValueError, match="no token of a completion is left"):
        lm.make_preference_dataset(*rows, max_length=3)


def test_a_reward_model_learns_is_saved_and_ranks(tmp_path):
    model = rate(make_reward_model(), 0.3)
    history = model.fit_preferences(columns(), epochs=8, verbose=0).history
    assert history["loss"][-1] < 0.5 * history["loss"][0] and history["accuracy"][-1] == 1
    texts = [prompt + text for prompt, *both in ROWS for text in both]
    rewards = model.predict(texts, verbose=0)
    assert (rewards[::2] > rewards[1::2]).all()
    model.save_to_preset(tmp_path)
    again = kt.TextClassifier.from_preset(str(tmp_path))
    assert again.num_classes == 1
    np.testing.assert_allclose(again.predict(texts, verbose=0), rewards, atol=1e-6)
    conversations = rate(
        kt.TextClassifier(model.backbone, TOKENIZER.with_chat_template("zephyr"), num_classes=1)
    )
    found = conversations.fit_preferences(chats(), validation_data=columns(), verbose=0).history
    assert "val_accuracy" in found


@pytest.mark.one_backend
def test_what_cannot_be_trained_on_preferences():
    lm, rewards = make_lm(2), make_reward_model()
    cases = [
        (lm, {"loss": BradleyTerry()}, "must be one of DPO"),
        (rewards, {"loss": DPO()}, "must be one of BradleyTerry"),
        (lm, {"loss": SimPO(), "reference": "copy"}, "leave `reference` out"),
        (lm, {"loss": KTO(), "reference": "cached"}, "cannot be computed ahead"),
        (lm, {"loss": KTO(), "batch_size": 1}, "a `batch_size` of at least 2"),
        (lm, {"reference": "frozen"}, "'auto', 'adapters', 'copy', 'cached'"),
        (lm, {"reference": "adapters"}, "no adapters"),
        (lm, {"max_length": 1}, "max_length"),
    ]
    for task, options, message in cases:
        with pytest.raises(ValueError, match=message):
            task.fit_preferences(columns(), **options)
    with pytest.raises(ValueError, match="num_classes=1"):
        kt.TextClassifier(make_backbone(), TOKENIZER, num_classes=2).fit_preferences(columns())
    with pytest.raises(ValueError, match="learns from pairs"):
        lm.fit_preferences(labelled())
    with pytest.raises(ValueError, match="must be one of DPO.* received 'dpo'"):
        lm.make_preference_dataset(columns(), loss="dpo")
    with pytest.raises(ValueError, match="same `loss`"):
        lm.fit_preferences(lm.make_preference_dataset(columns()), loss=KTO())
    for name, value in (("beta", 0), ("label_smoothing", 0.5)):
        with pytest.raises(ValueError, match=name):
            DPO(**{name: value})


def test_a_smoothed_loss_is_that_of_pairs_which_are_partly_the_wrong_way_round():
    totals, reference = np.array([[-3.0, -5.0]], "float32"), np.array([[-4.0, -4.5]], "float32")
    lengths = np.ones_like(totals)
    right, wrong, smoothed = (
        float(DPO(0.5, smoothing)(Scores(x, lengths), y).losses[0])
        for x, y, smoothing in (
            (totals, reference, 0.0),
            (totals[:, ::-1].copy(), reference[:, ::-1].copy(), 0.0),
            (totals, reference, 0.1),
        )
    )
    assert smoothed == pytest.approx(0.9 * right + 0.1 * wrong, abs=1e-6)
