"""The page in a browser: Debian's `apt install chromium chromium-driver`, or another Chrome."""

import shutil
import signal
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from keras_transformer.serving import ServedTask, make_app
from tests.cli.conftest import ROOT
from tests.serving.conftest import started
from tests.serving.test_app import Slow, talker  # noqa: F401

pytestmark = [
    pytest.mark.one_backend,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs a browser: apt install chromium chromium-driver",
    ),
]


@pytest.fixture(scope="module")
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    browser = webdriver.Chrome(options=options, service=service)
    browser.set_window_size(1200, 900)
    yield browser
    browser.quit()


class Page:
    """Actions of a person on the page."""

    def __init__(self, browser, port):
        self.browser = browser
        browser.get(f"http://127.0.0.1:{port}/")
        self.wait(lambda: Select(self.at("choice")).options)

    def at(self, name):
        return self.browser.find_element(By.ID, name)

    def wait(self, condition):
        return WebDriverWait(self.browser, 60).until(lambda _: condition())

    def choose(self, text):
        Select(self.at("choice")).select_by_visible_text(text)

    def write(self, field, text):
        element = self.at(f"field-{field}")
        element.clear()
        element.send_keys(text)

    def ask(self, button="ask"):
        self.at(button).click()
        self.wait(lambda: not self.at("stop").is_displayed())
        return self.at("found").text


@pytest.fixture
def page(browser, port):
    page = Page(browser, port)
    yield page
    told = [entry["message"] for entry in browser.get_log("browser")]
    assert not [text for text in told if "422" not in text], told


def test_what_is_asked_is_answered(page, served):
    page.choose("Translate · words")
    page.write("texts", "Two dogs.\nA man.")
    page.write("beams", "1")
    page.write("max_new_tokens", "4")
    assert len(page.ask().splitlines()) <= 2
    page.choose("Classify · classifier")
    page.write("texts", "two dogs")
    found = page.ask()
    ((label, score),) = served["classifier"].task.classify(["two dogs"], top_k=1)[0]
    assert label in found and f"{score:.3f}" in found
    page.choose("Embed and compare · embedder")
    page.write("texts", "two dogs\ntwo dogs\na man")
    cells = [float(cell.text) for cell in page.at("found").find_elements(By.TAG_NAME, "td")]
    assert not cells
    page.ask()
    cells = [float(cell.text) for cell in page.at("found").find_elements(By.TAG_NAME, "td")]
    np.testing.assert_allclose(np.diag(np.reshape(cells, (3, 3))), 1, atol=5e-3)
    assert cells[1] == pytest.approx(1, abs=5e-3)


def test_a_text_is_written_as_it_comes_and_never_as_html(page, served):
    page.choose("Complete · lm")
    page.write("prompt", "<b>two</b> dogs")
    page.write("temperature", "0")
    page.write("max_new_tokens", "6")
    expected = served["lm"].task.generate("<b>two</b> dogs", max_new_tokens=6, sampler="greedy")
    page.ask()
    found = page.at("found").get_attribute("textContent")
    assert found == "<b>two</b> dogs" + expected
    assert not page.at("found").find_elements(By.TAG_NAME, "b")


def test_a_conversation_goes_on(browser, talker):  # noqa: F811
    """Each answer is to all that was said; a new conversation forgets it."""
    port, task = talker
    page = Page(browser, port)
    said = []
    for text in ("<b>two</b> dogs", "a man"):
        page.write("messages", text)
        page.write("temperature", "0")
        page.write("max_new_tokens", "6")
        page.ask()
        said.append({"role": "user", "content": text})
        answer = task.chat(said, max_new_tokens=6, sampler="greedy")
        said.append({"role": "assistant", "content": answer})
        shown = [e.get_attribute("textContent") for e in page.at("found").find_elements(
            By.CLASS_NAME, "text")]  # fmt: skip
        assert shown == [message["content"] for message in said]
        assert page.at("field-messages").get_attribute("value") == ""
    page.at("anew").click()
    assert not page.at("found").text
    page.write("messages", "a man")
    page.ask()
    alone = task.chat([{"role": "user", "content": "a man"}], max_new_tokens=6, sampler="greedy")
    assert page.at("found").find_elements(By.CLASS_NAME, "text")[1].get_attribute(
        "textContent") == alone  # fmt: skip


def test_attention_is_shown_beside_it(page):
    page.choose("Classify · classifier")
    page.write("texts", "two dogs")
    page.ask("look")
    frame = page.at("view")
    assert frame.is_displayed()
    page.browser.switch_to.frame(frame)
    try:
        page.wait(lambda: "dogs" in page.browser.find_element(By.TAG_NAME, "body").text)
        assert page.browser.find_elements(By.TAG_NAME, "svg")
    finally:
        page.browser.switch_to.default_content()


def test_what_is_wrong_is_on_the_page(page):
    page.choose("Fill the mask · masked")
    page.write("texts", "no mask here")
    page.ask()
    assert "[MASK]" in page.at("state").text
    assert page.at("state").get_attribute("class") == "wrong"


def test_by_keyboard_alone(page):
    """Each control is reached by Tab, in their order, and Ctrl-Enter asks."""
    page.choose("Fill the mask · masked")
    page.at("choice").send_keys(Keys.TAB)
    active = page.browser.switch_to.active_element
    assert active.get_attribute("id") == "field-texts"
    active.send_keys("a [MASK] dog", Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: page.at("found").find_elements(By.TAG_NAME, "tr"))
    labels = page.browser.find_elements(By.TAG_NAME, "label")
    fields = page.browser.find_elements(By.CSS_SELECTOR, "input, textarea, select")
    assert {label.get_attribute("for") for label in labels} >= {
        field.get_attribute("id") for field in fields
    }


def test_on_a_phone_nothing_is_cut_off(page):
    def wider(element):
        """Whether an element is wider than its place, which would show a scroll bar."""
        return page.browser.execute_script(
            "return arguments[0].scrollWidth > arguments[0].clientWidth", element
        )

    metrics = {"width": 360, "height": 640, "deviceScaleFactor": 1, "mobile": False}
    assert not page.at("preset").is_displayed()
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.choose("Classify · classifier")
        # The list may be too narrow for the name, which stands below it in full.
        assert page.at("preset").text == "classifier" and not wider(page.at("preset"))
        page.write("texts", "two dogs " * 30)
        page.ask()
        root = page.browser.find_element(By.TAG_NAME, "html")
        assert page.browser.execute_script("return innerWidth") == 360 and not wider(root)
        page.write("texts", "two dogs run")
        page.at("look").click()
        page.wait(lambda: page.at("view").is_displayed() and page.at("view").get_attribute("src"))
        page.browser.switch_to.frame(page.at("view"))
        page.wait(lambda: page.browser.find_elements(By.CSS_SELECTOR, ".heads, table, p"))
        assert not wider(page.browser.find_element(By.TAG_NAME, "html"))
    finally:
        page.browser.switch_to.default_content()
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_long_text_is_stopped_and_another_tab_goes_on(browser, served):
    slow = Slow()
    app = make_app({"slow": ServedTask(slow), "classifier": served["classifier"]})
    with started(app) as port:
        page = Page(browser, port)
        page.write("prompt", "a")
        page.at("ask").click()
        page.wait(lambda: "word word" in page.at("found").text)
        first = browser.current_window_handle
        browser.switch_to.new_window("tab")
        other = Page(browser, port)
        other.choose("Classify · classifier")
        other.write("texts", "two dogs")
        assert "hot" in other.ask()
        browser.close()
        browser.switch_to.window(first)
        assert not slow.closed.is_set()
        page.at("stop").click()
        page.wait(lambda: page.at("state").text == "Stopped.")
        assert slow.closed.wait(20)


def test_the_command(folder_of_one, browser):
    """It says where it is, serves the page, and ends by Ctrl-C."""
    command = [sys.executable, "-m", "keras_transformer", "serve", folder_of_one, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        told = process.stdout.readline()
        address = told.split(" on ")[1].split()[0]
        with urllib.request.urlopen(f"{address}/api", timeout=60) as answer:
            assert b"classify" in answer.read()
        browser.get(address)
        assert browser.title == "keras_transformer"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 130)


@pytest.fixture
def folder_of_one(folder):
    return str(folder / "classifier")
