"""Opens the pages of --html in a headless Chromium, wide and narrow, light and
dark: nothing is complained of on the console, every chart is drawn, nothing
sticks out sideways, nothing is fetched.

usage: page_test.py FSDP_PROGRAM [FOLDER]    leaves screenshots in FOLDER
Ends with 77 where there is no Chromium."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

NO_CHROMIUM = 77
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SCREENS = {"wide": (1280, 900), "phone": (390, 844)}
NASTY = "</script><script>console.error('broke out')</script><b>&amp;'\"\u00e9"
LOOK = """(() => {
  const canvases = [...document.querySelectorAll("canvas")];
  const sections = [...document.querySelectorAll("section")];
  const colors = (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size;
  };
  const texts = [...document.querySelectorAll("body *")].filter(
    (e) => e.children.length === 0 && e.textContent.trim() && e.getClientRects().length > 0);
  return JSON.stringify({
    width: innerWidth,
    scroll: document.documentElement.scrollWidth,
    boxes: [...document.querySelectorAll(".table, .frame")].filter(
      (e) => e.scrollWidth > e.clientWidth).map((e) => e.closest("section").id),
    colors: canvases.map(colors),
    sections: sections.length,
    rows: sections.map((s) => s.querySelectorAll("tbody tr").length),
    fonts: Math.min(Chart.defaults.font.size,
      ...texts.map((e) => parseFloat(getComputedStyle(e).fontSize))),
    background: getComputedStyle(document.body).backgroundColor,
    title: document.querySelector("h1").textContent,
    bold: document.querySelectorAll("b").length,
    scripts: document.scripts.length,
    // Bars that begin elsewhere than at zero mislead.
    begins: canvases.map((c) => Chart.getChart(c)).filter((c) => c.config.type === "bar").flatMap(
      (c) => Object.values(c.scales)).filter((s) => s.type === "linear").map((s) => s.min),
  });
})()"""


class Browser:
    """Chromium over its debugging pipe: messages that end in a zero byte."""

    def __init__(self, program, profile):
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()

        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        command += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads from 3 and writes to 4.
        pipes = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", pipes, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.read, self.number, self.events = b"", 0, []

    def message(self):
        while b"\0" not in self.read:
            chunk = os.read(self.input, 1 << 20)
            if not chunk:
                raise RuntimeError("Chromium has closed its pipe")
            self.read += chunk
        message, self.read = self.read.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if session:
            request["sessionId"] = session
        os.write(self.output, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait_for(self, method):
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.message())

    def close(self):
        try:
            self.call("Browser.close")
        except (OSError, RuntimeError):
            self.process.kill()
        self.process.wait(timeout=30)
        os.close(self.output)
        os.close(self.input)

    def look(self, page, screen, scheme, shot=None):
        """What the page looks like, and what it logged and fetched."""
        width, height = SCREENS[screen]
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", session, features=media)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": screen == "phone"}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        self.events = []
        self.call("Page.navigate", session, url=page.as_uri())
        self.wait_for("Page.loadEventFired")
        # Charts take their size in the frame after the load.
        frames = "new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))"
        self.call("Runtime.evaluate", session, expression=frames, awaitPromise=True)
        seen = self.call("Runtime.evaluate", session, expression=LOOK, returnByValue=True)["result"]
        if shot:
            picture = self.call(
                "Page.captureScreenshot", session, captureBeyondViewport=True, format="png",
                clip=self.whole_page(session, width))
            shot.write_bytes(base64.b64decode(picture["data"]))
        found = json.loads(seen["value"])
        found["complaints"], found["fetched"] = self.complaints(), self.fetched()
        self.call("Target.closeTarget", targetId=target)
        return found

    def whole_page(self, session, width):
        height = self.call("Page.getLayoutMetrics", session)["cssContentSize"]["height"]
        return {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}

    def complaints(self):
        bad = []
        for event in self.events:
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                bad.append(params["exceptionDetails"].get("exception", params))
            elif event["method"] == "Runtime.consoleAPICalled":
                bad.append(params["args"])
            elif event["method"] == "Log.entryAdded":
                bad.append(params["entry"]["text"])
        return bad

    def fetched(self):
        requests = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in requests if not url.startswith("data:")]


class Pages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="fsdp_page_"))
        cls.browser = Browser(BROWSER, cls.folder / "profile")

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(cls.folder, ignore_errors=True)

    def page(self, name, *arguments):
        path = self.folder / f"{name}.html"
        command = [PROGRAM, *map(str, arguments), "--html", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path

    def check(self, page, num_charts):
        """Every screen and scheme; what was seen last."""
        backgrounds = set()
        for screen, (width, _) in SCREENS.items():
            for scheme in ("light", "dark"):
                with self.subTest(page=page.name, screen=screen, scheme=scheme):
                    shot = SHOTS and SHOTS / f"{page.stem}_{screen}_{scheme}.png"
                    seen = self.browser.look(page, screen, scheme, shot)
                    self.assertEqual(seen["complaints"], [])
                    self.assertEqual(seen["fetched"], [page.as_uri()])
                    self.assertEqual(seen["width"], width)
                    self.assertLessEqual(seen["scroll"], width)
                    self.assertEqual(seen["boxes"], [])
                    self.assertEqual(seen["sections"], num_charts)
                    self.assertEqual(len(seen["colors"]), num_charts)
                    self.assertGreater(min(seen["colors"]), 8, "an empty chart")
                    self.assertGreaterEqual(seen["fonts"], 12)
                    self.assertEqual(seen["scripts"], 3)
                    self.assertEqual(set(seen["begins"]), {0})
                    backgrounds.add(seen["background"])
        self.assertEqual(len(backgrounds), 2, "light and dark look alike")
        return seen

    def test_the_documents_pictures_and_a_loss(self):
        log = self.folder / "log.jsonl"
        losses = [9.35 * 0.95**step for step in range(30)]
        log.write_text("".join(json.dumps({"step": s, "loss": l}) + "\n" for s, l in enumerate(losses)))
        seen = self.check(self.page("seed", "plan", "--loss", log), 6)
        self.assertGreater(min(seen["rows"]), 0)

    def test_a_plan_over_nodes(self):
        page = self.page("plan", "plan", "--model", "llama3-8b", "--nodes", 4, "--checkpointing", "selective")
        seen = self.check(page, 9)
        self.assertEqual(seen["title"], "llama3-8b on 32 x H100-SXM-80GB")

    def test_a_large_plan(self):
        self.check(self.page("large", "plan", "--model", "llama3-405b", "--nodes", 512, "--seq", 8192), 9)

    def test_a_recorded_trace(self):
        trace = self.folder / "trace.json"
        command = [PROGRAM, "simulate", "--model", "gpt2", "--nodes", "2", "--trace", str(trace)]
        subprocess.run([*command, "--html", str(self.folder / "step.html")], check=True, stdout=subprocess.DEVNULL)
        self.check(self.folder / "step.html", 3)
        self.check(self.page("trace", "trace", trace), 3)

    def test_names_stay_text(self):
        # "/" ends a file's name, so it stands in the unit's.
        events = [
            {"ph": "X", "cat": cat, "name": "n", "ts": ts, "dur": 5, "pid": 0, "tid": 0, "args": {"unit": NASTY}}
            for cat, ts in (("compute", 0), ("unshard", 4), ("reduce", 12))
        ]
        trace = self.folder / NASTY.replace("/", ";")
        trace.write_text(json.dumps({"traceEvents": events}))
        seen = self.check(self.page("names", "trace", trace), 3)
        self.assertEqual(seen["bold"], 0)
        self.assertEqual(seen["title"], f"Timeline {trace}")


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv[1])
    SHOTS = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
    if BROWSER is None:
        print(f"skipped: none of {', '.join(BROWSERS)} is installed, so no page was opened")
        sys.exit(NO_CHROMIUM)
    unittest.main(argv=sys.argv[:1])
