"""Controls a headless Chromium through its pipe; the browser reaches no
network."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
SECONDS = 60


def found():
    for name in NAMES:
        path = shutil.which(name)
        if path:
            return path
    raise AssertionError("scripts/setup tests brings chromium-headless-shell")


class Browser:
    """One page. `complaints` has its scripts' errors, `requests` its
    requests."""

    def __init__(self, folder, width=1280, height=900, dark=False):
        to_it, ours_out = os.pipe()
        ours_in, from_it = os.pipe()

        def at_three_and_four():
            # Chromium expects its pipe on descriptors 3 and 4. Copy first,
            # since one may already occupy the other's number.
            read, write = os.dup(to_it), os.dup(from_it)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen(
            [found(), "--headless", "--no-sandbox", "--disable-gpu",
             "--disable-dev-shm-usage",  # /dev/shm is small in containers.
             "--hide-scrollbars", "--force-device-scale-factor=1",
             f"--user-data-dir={folder}", f"--window-size={width},{height}",
             *(["--force-dark-mode"] if dark else []),
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=at_three_and_four, close_fds=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        os.close(to_it)
        os.close(from_it)
        self._out, self._in, self._read = ours_out, ours_in, b""
        self._number = self._loads = 0
        self._session = None
        self.complaints, self.requests = [], []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page,
                                  flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        ])
        self.call("Network.emulateNetworkConditions", offline=True, latency=0,
                  downloadThroughput=0, uploadThroughput=0)

    def _message(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self._read:
            ready, _, _ = select.select([self._in], [], [],
                                        max(0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._read += more
        one, self._read = self._read.split(b"\0", 1)
        return json.loads(one)

    def _note(self, message):
        what = message.get("method")
        facts = message.get("params", {})
        if what == "Page.loadEventFired":
            self._loads += 1
        elif what == "Runtime.exceptionThrown":
            self.complaints.append(facts["exceptionDetails"])
        elif what == "Log.entryAdded":
            self.complaints.append(facts["entry"]["text"])
        elif what == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {facts['message']}")
        elif what == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])

    def call(self, what, **facts):
        self._number += 1
        message = {"id": self._number, "method": what, "params": facts}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data):]
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, (what, answer["error"])
                return answer["result"]
            self._note(answer)

    def open(self, path, query=""):
        self._load("Page.navigate", url=path.resolve().as_uri() + query)

    def reload(self):
        self._load("Page.reload")

    def _load(self, what, **facts):
        # Evaluating code in a page that is being replaced is an error, so wait.
        before = self._loads
        self.call(what, **facts)
        while self._loads == before:
            self._note(self._message())

    def run(self, code):
        """Returns the value of an expression."""
        done = self.call("Runtime.evaluate", expression=code, returnByValue=True,
                         awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait(self, code):
        end = time.monotonic() + SECONDS
        while not self.run(code):
            assert time.monotonic() < end, f"never so: {code}"
        # By then the requested frame has been drawn.
        self.run("new Promise(done => requestAnimationFrame("
                 "() => requestAnimationFrame(done)))")

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def box(self, selector):
        return self.run(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView(), "
            f"(({{x, y, width, height}}) => ({{x, y, width, height}}))("
            f"document.querySelector({json.dumps(selector)})"
            ".getBoundingClientRect())"
        )

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1,
                       buttons=int(kind == "mousePressed"))

    def press(self, key):
        code = {"/": "Slash", "+": "Equal", "-": "Minus"}.get(key, key)
        text = {"text": key} if len(key) == 1 else {}
        if key == "Enter":
            text = {"text": "\r", "windowsVirtualKeyCode": 13}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=code,
                  **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=code)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True,
                         clip={"x": 0, "y": 0, "scale": 1,
                               **self.run("({width: document.documentElement."
                                          "scrollWidth, height: document."
                                          "documentElement.scrollHeight})")})
        path.write_bytes(base64.b64decode(data["data"]))

    def close(self):
        for end in (self._out, self._in):
            os.close(end)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def browser(folder, **options):
    one = Browser(folder, **options)
    try:
        yield one
    finally:
        one.close()
