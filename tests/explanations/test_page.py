"""The page of an explanation: its size, what it may do, and what a browser makes of it."""

import base64
import html
import json
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest

from tests.explanations.conftest import HOSTILE, made

pytestmark = pytest.mark.backend_independent

TOKENS = tuple(f"token{i}" for i in range(30))


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def numbers(text):
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "uint8")


@pytest.mark.parametrize("dim", [32, 64])
def test_small(dim):
    """A sentence of 30 tokens, a model of 6 layers of 12 heads: MiniLM's, and as wide as BERT's."""
    page = made(TOKENS, layers=6, heads=12, dim=dim).to_html()
    assert len(page.encode()) < 300_000


def test_weights_and_vectors(explanation):
    (view,) = data_of(explanation.to_html())["views"]
    weights = numbers(view["weights"]).reshape(explanation.attention.shape) / 255
    assert np.abs(weights - explanation.attention).max() <= 1 / 255
    for name in ("queries", "keys"):
        scales = np.array(view[name]["scales"])[:, :, None, None]
        found = (numbers(view[name]["data"]).reshape(2, 3, 3, 4) - 128.0) / 127 * scales
        assert np.abs(found - explanation.vectors[name]).max() <= 1e-2 * scales.max()


def test_vectors_of_a_large_model_are_in_half_bytes():
    given = made(TOKENS, layers=6, heads=12, dim=64)
    (view,) = data_of(given.to_html())["views"]
    assert view["bits"] == 4
    pairs = numbers(view["keys"]["data"])
    found = np.stack([pairs >> 4, pairs & 15], axis=-1).reshape(6, 12, 30, 64) - 8.0
    scales = np.array(view["keys"]["scales"])[:, :, None, None]
    assert np.abs(found / 7 * scales - given.vectors["keys"]).max() <= scales.max() / 13


def test_no_text_is_code():
    page = made(HOSTILE, text="<b>x</b>", target="<i>").to_html()
    assert page.count("<script") == 2 and "<img" not in page and "<b>x" not in page
    assert data_of(page)["views"][0]["rows"] == list(HOSTILE)
    assert re.search(r"<title>TextClassifier: &lt;/script&gt;", page)
    assert "default-src 'none'" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_in_a_notebook(explanation):
    shown = explanation._repr_html_()
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert page == explanation.to_html() and 'sandbox="allow-scripts"' in shown
    long = made([f"<{i}>" for i in range(130)], layers=1, heads=1)
    table = long._repr_html_()
    assert table.startswith("<pre>") and "<129>" not in table and "... 70 more" in table


def test_chosen_layers_and_files(tmp_path, explanation):
    explanation.to_html(tmp_path / "page.html", layers=[-1])
    (view,) = data_of((tmp_path / "page.html").read_text("utf-8"))["views"]
    assert view["layers"] == [1]
    with pytest.raises(ValueError, match="`layers`"):
        explanation.to_html(layers=[2])


def in_browser(page, script, folder):
    """Run a script on a page in Chromium and return its result, a JSON value."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if browser is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    script = f"setTimeout(() => {{document.title = JSON.stringify((() => {{{script}}})())}}, 500)"
    path = folder / "page.html"
    path.write_text(page.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    command = [
        browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return json.loads(html.unescape(re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)[1]))


def test_in_a_browser(tmp_path, explanation):
    found = in_browser(
        explanation.to_html(),
        """
        const tabs = [...document.querySelectorAll('[role=tab]')], seen = {};
        const press = (name, value) => {
          const node = document.getElementById(name);
          node.value = value; node.dispatchEvent(new Event('change'));
        };
        press('layer', 1); press('head', 2);
        document.querySelectorAll('.from .token')[1].focus();
        seen.numbers = [...document.querySelectorAll('.to .token span')].map(x => x.textContent);
        seen.note = document.querySelector('.note').textContent;
        tabs[1].click();
        seen.maps = document.querySelectorAll('canvas').length;
        document.querySelectorAll('.model button')[4].click();
        seen.chosen = ['layer', 'head'].map(name => document.getElementById(name).value);
        tabs[2].click(); press('query', 2);
        seen.products = [...document.querySelectorAll('.list tr')].slice(1)
          .map(row => row.cells[4].textContent);
        tabs[3].click();
        seen.lens = document.querySelectorAll('.list td').length;
        tabs[3].dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
        seen.added = [...document.querySelectorAll('.words small')].map(x => x.textContent);
        return {...seen, tabs: tabs.map(x => x.textContent)};
        """,
        tmp_path,
    )
    assert found["tabs"] == ["Heads", "Model", "Neurons", "Layers' guesses", "What counts"]
    weights = explanation.attention[1, 2, 1]
    assert np.abs(np.array(found["numbers"], float) - weights).max() <= 0.01
    assert found["note"].startswith("cat attends to")
    assert found["maps"] == 6 and found["chosen"] == ["1", "1"]
    keys, query = explanation.vectors["keys"][1, 1], explanation.vectors["queries"][1, 1, 2]
    assert np.abs(np.array(found["products"], float) - keys @ query).max() < 0.1
    assert found["lens"] == 9 and found["added"] == ["+0.5", "-0.25", "0"]


def test_a_hostile_text_in_a_browser(tmp_path):
    page = made(HOSTILE, logit_lens=tuple(tuple(((t, 0.5),) for t in HOSTILE) for _ in range(3)))
    found = in_browser(
        page.to_html(),
        """
        const tabs = document.querySelectorAll('[role=tab]'), seen = [document.title];
        for (const tab of tabs) {
          tab.click(); seen.push(document.querySelectorAll('main script, main img').length);
        }
        tabs[0].click();
        return [...seen, document.querySelector('.from .token').textContent];
        """,
        tmp_path,
    )
    assert found[0].startswith("TextClassifier: </script>")  # no script gave it another
    assert found[1:] == [0, 0, 0, 0, HOSTILE[0]]
