"""A headless Chromium for tests of pages: Python's standard library, and DevTools over a pipe.

    with browser.Browser() as chromium:
        page = chromium.open("report.html", width=400, dark=True)
        page.click("#ladder a")
        page.key("ArrowRight")
        assert page.errors() == []

Skip a test without Chromium by `@unittest.skipUnless(browser.FOUND, browser.MISSING)`.
"""

import itertools
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")  # as in scripts/setup.sh
FOUND = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
MISSING = "no Chromium: apt install chromium, or set CHROMIUM to its path"
PATIENCE = 60  # seconds for one answer, on a busy machine

# Codes of keys that are not letters.
KEYS = {" ": 32, "End": 35, "Home": 36, "ArrowRight": 39}


class BrowserError(Exception):
    """Chromium refused a command, a script on the page threw, or there was no answer in time."""


class Browser:
    """One Chromium process; the end of the `with` stops it."""

    def __enter__(self):
        if not FOUND:
            raise BrowserError(MISSING)
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, to_chromium = os.pipe()
        from_chromium, to_us = os.pipe()
        # DevTools on file descriptors 3 and 4; no sandbox as root in a container.
        options = "headless=new remote-debugging-pipe no-sandbox disable-gpu disable-dev-shm-usage"
        options += " disable-background-networking no-first-run hide-scrollbars"
        options = [f"--{option}" for option in f"{options} force-color-profile=srgb".split()]
        options += [f"--user-data-dir={self.folder.name}", "about:blank"]
        command = ["sh", "-c", f'exec "$0" "$@" 3<&{from_us} 4>&{to_us}', FOUND, *options]
        ends = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=(from_us, to_us), **ends)
        os.close(from_us)
        os.close(to_us)
        self.to_chromium, self.from_chromium = to_chromium, from_chromium
        self.unread, self.numbers, self.events = b"", itertools.count(1), []
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (BrowserError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.to_chromium)
        os.close(self.from_chromium)
        self.folder.cleanup()

    def open(self, path, width=1200, height=800, dark=False, query=""):
        """A new page with a file, loaded. `query`: "?step=06", after its address."""
        page = Page(self)
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        page.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", features=[scheme])
        page.go_to(pathlib.Path(path).resolve().as_uri() + query)
        return page

    def call(self, method, session=None, **params):
        """The result of one DevTools command; keeps events that arrive before it."""
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        unsent = json.dumps(message).encode() + b"\0"
        while unsent:
            unsent = unsent[os.write(self.to_chromium, unsent) :]
        while True:
            answer = self.read(method)
            if answer.get("id") == number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def wait_for(self, event, session):
        """The first unread event of this name in a session."""
        while True:
            for i, seen in enumerate(self.events):
                if seen.get("method") == event and seen.get("sessionId") == session:
                    return self.events.pop(i)["params"]
            self.events.append(self.read(event))

    def read(self, awaited):
        end = time.monotonic() + PATIENCE
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.from_chromium], [], [], end - time.monotonic())
            more = os.read(self.from_chromium, 1 << 20) if ready else b""
            if not more:
                why = "Chromium has ended" if ready else f"no answer in {PATIENCE} s"
                raise BrowserError(f"{awaited}: {why}")
            self.unread += more
        message, self.unread = self.unread.split(b"\0", 1)
        return json.loads(message)


class Page:
    """One tab. A `selector` is CSS; a click is in the middle of its first element."""

    def __init__(self, browser):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def go_to(self, url):
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserError(f"{url}: {failed}")
        self.browser.wait_for("Page.loadEventFired", self.session)

    def eval(self, script):
        """The value of a JavaScript expression, or of its promise."""
        how = {"returnByValue": True, "awaitPromise": True}
        found = self.call("Runtime.evaluate", expression=script, **how)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return found["result"].get("value")

    def until(self, script):
        """The value of an expression, as soon as it is true."""
        end = time.monotonic() + PATIENCE
        while not (found := self.eval(script)):
            if time.monotonic() > end:
                raise BrowserError(f"never true: {script}; {self.errors()}")
            time.sleep(0.02)
        return found

    def errors(self):
        """Errors written or thrown by the page, and its network requests so far."""
        self.eval("0")  # earlier events have arrived
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, params = event.get("method"), event.get("params")
            if method == "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                found.append(details.get("exception", {}).get("description", details["text"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
                words = (str(arg.get("value", arg.get("description"))) for arg in params["args"])
                found.append(" ".join(words))
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                found.append(params["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = params["request"]["url"]
                if not url.startswith(("file:", "data:", "blob:", "about:")):
                    found.append(f"asks the network for {url}")
        return found

    def overflow(self):
        """By how many pixels the page is wider than its window; 0: no sideways scrolling."""
        return self.eval(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def click(self, selector):
        x, y = self.middle(selector)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def middle(self, selector):
        found = self.eval(
            f"""(async () => {{
              const element = document.querySelector({json.dumps(selector)});
              if (!element) return null;
              element.scrollIntoView({{block: "center", inline: "center", behavior: "instant"}});
              await new Promise(requestAnimationFrame);  // the page hears that it was scrolled
              const box = element.getBoundingClientRect();
              return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        if found is None:
            raise BrowserError(f"nothing on the page is {selector}")
        return found

    def key(self, key):
        event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        typed = {"text": key} if key == " " else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def close(self):
        self.call("Page.close")
