import os

import keras
import numpy as np
import pytest

from keras_transformer.data import BucketedDataset
from keras_transformer.training import BLEUCallback, StopAtNaN, Throughput

pytestmark = pytest.mark.one_backend


def small_data(**options):
    rows = [[1 + k % 7] * (1 + k % 3) for k in range(24)]
    return BucketedDataset(
        {"ids": rows},
        lambda arrays, masks: (arrays["ids"], arrays["ids"][:, 0]),
        batch_size=8,
        multiple=8,
        **options,
    )


class Translator(keras.Sequential):
    def generate(self, texts, suffix):
        return [text + suffix for text in texts]


def fitted(callbacks, cls=keras.Sequential, data=None, epochs=2):
    model = cls([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = data or small_data()
    return model.fit(data, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks).history


def test_throughput_counts_real_tokens():
    data = small_data()
    assert data.tokens_per_epoch == 48 and data.num_rows == 24
    history = fitted([Throughput(data)], data=data)
    for tokens, texts in zip(
        history["tokens_per_second"], history["texts_per_second"], strict=True
    ):
        assert tokens == pytest.approx(2 * texts) and texts > 0


def test_bleu_in_the_logs_and_samples_printed(capsys):
    bleu = BLEUCallback(
        ["a b c d e", "x y"],
        ["a b c d e !", "x y !"],
        generate_kwargs={"suffix": " !"},
        tokenize="none",
        samples=1,
    )
    history = fitted([bleu], cls=Translator)
    assert history["val_bleu"] == pytest.approx([100.0, 100.0])
    printed = capsys.readouterr().out
    assert "Epoch 2: BLEU 100.00 (nrefs:1|case:mixed" in printed
    assert "source     a b c d e\n" in printed and "model      a b c d e !\n" in printed
    assert "x y" not in printed


def test_bleu_bad_input():
    with pytest.raises(ValueError, match="2 sources but 1 references"):
        BLEUCallback(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="Sequential has none"):
        fitted([BLEUCallback(["a"], ["a"])])


@pytest.mark.parametrize(
    "every, steps", [(1, "after step 2 and by step 3"), (4, "0 and by step 4")]
)
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, every, steps):
    x = np.ones((6, 2), "float32")
    x[2] = np.nan
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for name in ("old", "new"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (0, 10 if name == "new" else 5))
    stop = StopAtNaN(every, checkpoints=tmp_path)
    fit = {"batch_size": 1, "shuffle": False, "verbose": 0, "callbacks": [stop]}
    with pytest.raises(FloatingPointError, match=f"nan in epoch 1, .*{steps}.*checkpoint is .*new"):
        model.fit(x, np.ones(6), **fit)
    model = keras.models.clone_model(model)
    model.compile("sgd", "mse")
    model.fit(np.ones((6, 2)), np.ones(6), **fit)


def test_a_loss_that_is_no_number_is_found_at_the_end_of_the_epoch():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(FloatingPointError, match="by the end.* No checkpoint was kept"):
        model.fit(np.full((3, 2), np.nan), np.ones(3), verbose=0, callbacks=[StopAtNaN()])
    with pytest.raises(ValueError, match="`every` must be an integer of at least 1, received 0"):
        StopAtNaN(0)
