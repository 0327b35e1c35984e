import keras
import numpy as np
import pytest

from keras_transformer.training import InverseSquareRoot, LinearDecay, transformer_adam


def test_equation_3_of_the_paper():
    schedule = InverseSquareRoot.for_width(512, warmup_steps=4000)
    for step in (1, 2, 1000, 3999, 4000, 4001, 100_000):
        paper = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert float(schedule(step - 1)) == pytest.approx(paper, rel=1e-6)


def test_peak_form():
    schedule = InverseSquareRoot(peak=5e-4, warmup_steps=4000)  # fairseq's usual values
    assert float(schedule(3999)) == pytest.approx(5e-4)
    assert float(schedule(15_999)) == pytest.approx(2.5e-4)
    assert float(schedule(0)) == pytest.approx(5e-4 / 4000)


def test_linear_decay_is_that_of_bert():
    # 0-based steps: transformers.get_linear_schedule_with_warmup(optimizer, 10, 100).
    schedule = LinearDecay(1.0, total_steps=100, warmup_steps=10)
    expected = {0: 0.0, 5: 0.5, 10: 1.0, 55: 0.5, 99: 1 / 90, 100: 0.0, 150: 0.0}
    for step, value in expected.items():
        assert float(schedule(step)) == pytest.approx(value, abs=1e-6)
    assert float(LinearDecay(1.0, total_steps=10)(0)) == 1.0


@pytest.mark.parametrize("schedule", [InverseSquareRoot(1e-3, 10), LinearDecay(1e-3, 100, 10)])
def test_in_an_optimizer_and_back_from_its_config(schedule):
    optimizer = transformer_adam(schedule, clipnorm=1.0)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert (restored.beta_1, restored.beta_2, restored.epsilon) == (0.9, 0.98, 1e-9)
    assert restored.clipnorm == 1.0
    assert restored._learning_rate.get_config() == schedule.get_config()
    variable = keras.Variable(np.ones(2, "float32"))
    restored.build([variable])
    for step in range(3):
        assert float(restored.learning_rate) == pytest.approx(float(schedule(step)))
        restored.apply([keras.ops.ones(2)])


def test_bad_arguments():
    with pytest.raises(ValueError, match="`warmup_steps` must be an integer of at"):
        InverseSquareRoot(1e-3, 0)
    with pytest.raises(ValueError, match="`hidden_dim` must be an integer of at least 1"):
        InverseSquareRoot.for_width(-1)
    with pytest.raises(ValueError, match="`warmup_steps` must be an integer from 0 to 9"):
        LinearDecay(1e-3, 10, 10)
