"""The page in Chromium, if that is installed: no errors, no requests, no sideways scrolling, also without scripts."""

import base64
import json
import os
import shutil
import subprocess

import pytest
from bench.report.page.page import write_page

from .shown import judged
from .test_page import MADE

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")]
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe")


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
    return write_page(judged(root, *MADE), [], root / "report")


@pytest.fixture
def browser(tmp_path, request):
    found = Browser(tmp_path / "profile", *getattr(request, "param", ()))
    yield found
    found.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_no_error_no_request_and_no_sideways_scrolling(browser, path, width):
    browser.open(path, width)
    needed, shown = browser.ask("return [document.documentElement.scrollWidth, innerWidth]")
    assert needed <= shown == width
    assert browser.named("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled") == []
    requests = [event["params"]["request"]["url"] for event in browser.named("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]


NAMES = "[...document.querySelectorAll('#results-d tbody th')].map(each => each.textContent)"


def test_tables_are_sorted_by_keyboard_with_gaps_last(browser, path):
    browser.open(path, 1280)
    assert browser.ask(f"return {NAMES}")[:2] == ["alone", "leading (point)"]

    def sorted_by(title):
        return browser.ask(f"""
            const heading = [...document.querySelectorAll('#results-d th')].find(th => th.textContent === '{title}');
            heading.focus();
            heading.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true}}));
            return [heading.tabIndex, heading.getAttribute('aria-sort'), {NAMES}];
        """)

    best_first = ["alone", "leading (point)", "close (point)", "point", "unsure (point)"]
    assert sorted_by("MAP@R") == [0, "descending", best_first]
    assert sorted_by("MAP@R") == [0, "ascending", best_first[::-1]]
    assert sorted_by("rank")[2][-1] == "alone"  # it has none


def test_a_link_opens_what_is_folded(browser, path):
    browser.open(path, 1280, "#settings-d")
    assert browser.ask("return document.getElementById('settings-d').closest('details').open")


@pytest.mark.parametrize("browser", [["--blink-settings=scriptEnabled=false"]], indirect=True)
def test_without_scripts_all_is_there_and_what_is_folded_is_on_paper(browser, path):
    browser.open(path, 390)
    document = browser.call("DOM.getDocument", browser.session)["root"]["nodeId"]

    def widths(selector):
        found = browser.call("DOM.querySelectorAll", browser.session, nodeId=document, selector=selector)["nodeIds"]
        return [browser.call("DOM.getBoxModel", browser.session, nodeId=each)["model"]["width"] for each in found]

    browser.call("DOM.enable", browser.session)
    assert min(widths("#results .plot")) > 300
    assert min(widths("#matrix table")) > 100
    assert browser.call("Page.getLayoutMetrics", browser.session)["cssContentSize"]["width"] == 390
    browser.call("Emulation.setEmulatedMedia", browser.session, media="print")
    assert min(widths("#reading dl")) > 100  # which are folded on the screen
    printed = browser.call("Page.printToPDF", browser.session, preferCSSPageSize=True)["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
