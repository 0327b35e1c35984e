"""Early errors for what a quantized task cannot do, with what to do instead."""

import numpy as np
import pytest

import keras_transformer as kt

IDS = {"token_ids": np.ones((4, 8), "int32")}
LABELS = np.zeros(4, "int32")


def classifier(**config):
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    config = kt.TransformerConfig(kind="encoder", vocabulary_size=20, **sizes, **config)
    return kt.TextClassifier(kt.models.Encoder(config), num_classes=2)


@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_it_is_not_trained_or_made_again(mode, tmp_path):
    task = classifier()
    task.quantize(mode)
    place = tmp_path / "there"
    refused = {
        "its matrices would not learn. Train it before `quantize`": (
            lambda: task.fit(IDS, LABELS),
            lambda: task.fit(["a text"], [0]),  # before it looks for a tokenizer
            lambda: task.train_on_batch(IDS, LABELS),
        ),
        "save or copy it before `quantize`": (
            lambda: task.save_to_preset(place),
            lambda: task.backbone.save_to_preset(place),
            lambda: task.save(place.with_suffix(".keras")),
        ),
        "export it before `quantize`": (
            lambda: kt.export(task, place),
            lambda: kt.export_to_huggingface(task, place),
            lambda: kt.export_to_huggingface(task.backbone, place),
        ),
        "load it again for another mode": (
            lambda: task.quantize(mode),
            lambda: task.quantize("int8"),
        ),
        "give `optimize` the task before": (lambda: kt.optimize(task),),
    }
    for message, calls in refused.items():
        for call in calls:
            with pytest.raises(ValueError, match=f"is quantized to {mode}: {message}"):
                call()
    assert not list(tmp_path.iterdir())
    assert task.predict(IDS, verbose=0).shape == (4, 2)
    assert task.evaluate(IDS, LABELS, verbose=0)


def test_adapters_are_merged_before():
    task = classifier()
    task.enable_lora(2)
    for model in (task, task.backbone):
        with pytest.raises(
            ValueError, match="has adapters beside its weights. Call the task's `me"
        ):
            model.quantize("int8")
    task.merge_lora()
    task.quantize("int8")
    assert task.predict(IDS, verbose=0).shape == (4, 2)


def test_layers_that_are_left_out_are_quantized_later(recwarn):
    task = classifier()
    task.quantize("int8", filters="intermediate")
    assert task.backbone.token_embedding.quantization_mode is None
    task.quantize("int4", filters="query|key")
    modes = {getattr(x, "quantization_mode", None) for x in task._flatten_layers()}
    assert modes == {None, "int8", "int4"}
    assert not [each for each in recwarn if "quantize" in str(each.message)]


def test_a_model_that_was_never_called():
    sizes = {"hidden_dim": 16, "num_layers": 1, "num_heads": 2, "intermediate_dim": 32}
    options = {"vocabulary_size": 20, "position": "rotary", **sizes}
    lm = kt.CausalLM(kt.models.Decoder(kt.TransformerConfig(kind="decoder", **options)))
    lm.quantize("int8")
    assert len(lm.generate([[3, 4, 5]], max_new_tokens=2)) == 1
