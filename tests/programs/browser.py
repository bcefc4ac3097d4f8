"""A headless Chromium, driven through its debugging pipe: no package is needed."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
TIMEOUT = 60  # seconds, for an answer


def find_chromium():
    """Its path; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page at a time; `problems` has what its console and its network complained of."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()

        def connect():  # in the child: Chromium reads from 3 and writes to 4
            ends = [os.dup(end) for end in (to_read, back_write)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        flags = ["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"]
        flags += ["--hide-scrollbars", "--no-first-run", "--disable-dev-shm-usage"]
        flags += [f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(
            [find_chromium(), *flags],
            preexec_fn=connect,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(back_write)
        self.number, self.waiting, self.problems = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()

    def message(self, until):
        """The next one from the browser."""
        while b"\0" not in self.waiting:
            if not select.select([self.back], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            part = os.read(self.back, 1 << 20)
            if not part:
                raise ConnectionError("Chromium has ended")
            self.waiting += part
        text, self.waiting = self.waiting.split(b"\0", 1)
        found = json.loads(text)
        self.note(found)
        return found

    def note(self, event):
        kind, params = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            what = details.get("exception", {}).get("description", details["text"])
            self.problems.append(what)
        elif kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.problems.append(str(params["args"]))
        elif kind == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif kind == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.problems.append(f"asks the network for {url}")

    def call(self, method, **params):
        self.number += 1
        text = {"id": self.number, "method": method, "params": params}
        if getattr(self, "session", None):
            text["sessionId"] = self.session
        os.write(self.to, json.dumps(text).encode() + b"\0")
        until = time.monotonic() + TIMEOUT
        while True:
            answer = self.message(until)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    # --- what a reader does

    def open(self, path, width=1200, height=900, dark=False, query=""):
        """A file, when its first picture is drawn. Returns milliseconds, as the page saw them."""
        self.open_plain(path, width, height, dark, query)
        return self.until("document.documentElement?.dataset.ready")

    def open_plain(self, path, width=1200, height=900, dark=False, query=""):
        """A page that draws nothing."""
        self.problems.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}{query}")
        self.until("document.readyState === 'complete'")

    def value(self, expression):
        """Of JavaScript in the page."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise AssertionError(details.get("exception", {}).get("description", details["text"]))
        return answer["result"].get("value")

    def until(self, expression, seconds=TIMEOUT):
        """Its value, as soon as it is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.02)
        raise TimeoutError(f"never true: {expression}; {self.problems}")

    def key(self, key, code=None, shift=False):
        text = {" ": " "}.get(key)
        keys = {" ": 32, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35, "Tab": 9}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code or ("Space" if key == " " else key),
                windowsVirtualKeyCode=keys[key],
                modifiers=8 if shift else 0,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def mouse(self, x, y, click=False):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.call(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )

    def click(self, selector):
        box = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'nearest'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        self.mouse(*box, click=True)

    def screenshot(self, path, whole=False):
        picture = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
