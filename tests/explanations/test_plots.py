"""Pictures: figures of matplotlib with the numbers and names of the explanation."""

import io

import numpy as np
import pytest

from tests.explanations.conftest import made

pytest.importorskip("matplotlib")
pytestmark = pytest.mark.backend_independent


def drawn(figure):
    """The figure as PNG, which draws all that is on it."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=60)
    assert file.getvalue().startswith(b"\x89PNG")
    return figure


def test_heads(explanation):
    figure = drawn(explanation.plot_heads())
    assert len(figure.axes) == 6
    shown = [np.asarray(axis.images[0].get_array()) for axis in figure.axes]
    np.testing.assert_array_equal(np.stack(shown).reshape(2, 3, 3, 3), explanation.attention)
    assert len(drawn(explanation.plot_heads(layer=-1)).axes) == 3
    missing = made(seed=1)
    missing.attention[1, 2] = np.nan
    assert not drawn(missing.plot_heads()).axes[5].images


def test_attention(explanation):
    axis, _ = drawn(explanation.plot_attention(0, 1)).axes
    np.testing.assert_array_equal(axis.images[0].get_array(), explanation.attention[0, 1])
    assert [label.get_text() for label in axis.get_yticklabels()] == ["the", "cat", "sat"]
    axis, _ = drawn(explanation.plot_attention()).axes
    np.testing.assert_allclose(axis.images[0].get_array(), explanation.attention[1].mean(0))
    for wrong in ({"layer": 2}, {"head": 3}):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}`"):
            explanation.plot_attention(**wrong)


def test_layers(explanation):
    figure = drawn(explanation.plot_layers())
    spread, lens, scale = figure.axes
    np.testing.assert_allclose(spread.lines[-2].get_ydata(), explanation.entropy().mean(1))
    assert [text.get_text() for text in lens.texts] == ["a"] * 9
    assert scale.get_ylabel() == "probability" and scale.get_ylim() == (0, 1)
    assert_letters_are_readable(figure, lens)
    assert len(drawn(made().plot_layers()).axes) == 1


def test_the_logit_lens_of_a_long_text(explanation):
    """The last tokens, each in a cell that is wider than its letters."""
    count = 30
    long = made(
        tuple(f"token{i}" for i in range(count)),
        logit_lens=((((("abcdefghijk"), 0.5),),) * count,) * 3,
    )
    figure = drawn(long.plot_layers())
    lens = figure.axes[1]
    assert len(lens.texts) == 3 * 24 and "last 24 tokens" in lens.get_title()
    assert lens.get_xticklabels()[-1].get_text() == "token29"
    assert_letters_are_readable(figure, lens)


def assert_letters_are_readable(figure, lens):
    cell = lens.get_window_extent().width / lens.images[0].get_array().shape[1]
    for text in lens.texts:
        assert text.get_fontsize() >= 9
        assert text.get_window_extent(figure.canvas.get_renderer()).width < cell


def test_saliency(explanation):
    (axis,) = drawn(explanation.plot_saliency()).axes
    assert [bar.get_width() for bar in axis.patches] == [0.5, -0.25, 0.0]
    with pytest.raises(ValueError, match="There are no attributions"):
        made().plot_saliency()
    drawn(made(saliency=np.ones((4, 5), "float32"), target="x").plot_saliency())


def test_tokens_that_mean_something_to_matplotlib():
    drawn(made(("$x$", "_a^", "\\n", "a" * 40)).plot_attention())
