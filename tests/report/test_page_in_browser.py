"""The page in Chromium, if that is installed: no errors, no requests, no sideways scrolling, also without scripts."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess

import pytest
from bench.report.frame import Results
from bench.report.page.page import write_page
from bench.report.write import Judged
from bench.store.folder import Store

from .page_records import ALONE, CLOSE, LEADING, POINT, UNSURE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")
TROUBLE = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}


class Browser:
    """Chromium, spoken to over its debugging pipe: JSON messages that end with a null byte."""

    def __init__(self, profile, *options):
        (theirs, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()

        def connect():
            # Chromium reads from 3 and writes to 4, which the pipes here may be.
            os.dup2(theirs, 103), os.dup2(theirs_out, 104)
            os.dup2(103, 3), os.dup2(104, 4)

        command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", *options, "about:blank"]
        self.process = subprocess.Popen(
            command, close_fds=False, preexec_fn=connect, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(theirs), os.close(theirs_out)
        self.out, self.in_, self.left, self.number, self.events = ours_out, ours_in, b"", 0, []

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.out), os.close(self.in_)

    def _next(self):
        while b"\0" not in self.left:
            part = os.read(self.in_, 1 << 20)
            assert part, "Chromium has ended"
            self.left += part
        message, self.left = self.left.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path, width, fragment=""):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", self.session)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", self.session, **size)
        self.events.clear()
        self.call("Page.navigate", self.session, url=path.as_uri() + fragment)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def ask(self, code):
        code = f"(async () => {{ {code} }})()"
        found = self.call("Runtime.evaluate", self.session, expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def named(self, *methods):
        return [event for event in self.events if event.get("method") in methods]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = (LEADING, CLOSE, POINT, UNSURE, ALONE)
    results = Results.of(tuple(record for each in made for record in each.records()))
    return write_page(Judged(Store(root), results), [], root / "report")


@pytest.fixture
def browser(tmp_path):
    found = Browser(tmp_path / "profile")
    yield found
    found.close()


@pytest.fixture
def browser_without_scripts(tmp_path):
    found = Browser(tmp_path / "profile", "--blink-settings=scriptEnabled=false")
    yield found
    found.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_error_no_request_and_no_sideways_scrolling(browser, path, width):
    browser.open(path, width)
    seen = browser.ask("""
        document.getElementById('curves').scrollIntoView();
        await new Promise(done => setTimeout(done, 1500));
        return [document.documentElement.scrollWidth, innerWidth, document.querySelectorAll('.drawn canvas').length];
    """)
    assert seen[0] <= seen[1] == width
    assert seen[2] > 0  # the plotter has drawn
    assert browser.named(*TROUBLE) == []
    requests = [event["params"]["request"]["url"] for event in browser.named("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]


ROWS = "[...document.querySelectorAll('#results-d-table tbody th')]"
FIRST = f"{ROWS}.filter(each => each.offsetParent).map(each => each.textContent)"


def test_tables_are_sorted_by_keyboard_and_filtered(browser, path):
    browser.open(path, 1280)
    assert browser.ask(f"return {FIRST}")[:2] == ["alone", "leading"]
    after = browser.ask(f"""
        const heading = [...document.querySelectorAll('#results-d-table th')].find(th => th.textContent === 'MAP@R');
        heading.focus();
        heading.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true}}));
        await new Promise(done => setTimeout(done, 200));
        return [heading.tabIndex, heading.getAttribute('aria-sort'), {FIRST}];
    """)
    assert after == [0, "ascending", ["unsure", "point", "close", "leading", "alone"]]
    filtered = browser.ask(f"""
        const input = document.querySelector('[data-filter="results-d-table"]');
        input.value = 'DETERMINISTIC alone';
        input.dispatchEvent(new Event('input'));
        return [{FIRST}, document.querySelector('[data-count="results-d-table"]').textContent];
    """)
    assert filtered == [["alone"], "1 of 5 rows"]


def test_curves_answer_hovering(browser, path):
    browser.open(path, 1280)
    x, y = browser.ask("""
        document.getElementById('curves').scrollIntoView();
        await new Promise(done => setTimeout(done, 1500));
        const box = document.querySelector('.drawn .u-over').getBoundingClientRect();
        return [box.x + box.width / 2, box.y + box.height / 2];
    """)
    for place in (0.5, 0.0):
        browser.call("Input.dispatchMouseEvent", browser.session, type="mouseMoved", x=x + place, y=y)
    text = browser.ask("""
        await new Promise(done => setTimeout(done, 500));
        return document.querySelector('.readout').textContent;
    """)
    assert text.endswith("% left out")


def test_a_link_opens_what_is_folded(browser, path):
    browser.open(path, 1280, "#settings-d")
    assert browser.ask("return document.getElementById('settings-d').closest('details').open")


def test_without_scripts_the_curves_are_there_and_nothing_is_offered_that_does_not_work(browser_without_scripts, path):
    browser = browser_without_scripts
    browser.open(path, 390)
    document = browser.call("DOM.getDocument", browser.session)["root"]["nodeId"]

    def boxes(selector):
        found = browser.call("DOM.querySelectorAll", browser.session, nodeId=document, selector=selector)["nodeIds"]
        sizes = []
        for node in found:
            style = browser.call("DOM.describeNode", browser.session, nodeId=node)
            assert style
            try:
                sizes.append(browser.call("DOM.getBoxModel", browser.session, nodeId=node)["model"]["width"])
            except AssertionError:  # it has no box
                sizes.append(0)
        return sizes

    browser.call("DOM.enable", browser.session)
    assert min(boxes(".plot > svg")) > 300
    assert set(boxes("input")) == {0}
    metrics = browser.call("Page.getLayoutMetrics", browser.session)["cssContentSize"]
    assert metrics["width"] == 390


def test_it_prints(browser, path):
    browser.open(path, 1280)
    printed = browser.call("Page.printToPDF", browser.session, preferCSSPageSize=True)["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
