"""A headless Chromium, driven by WebDriver (https://www.w3.org/TR/webdriver2/) through Debian's chromedriver."""
import base64
import re
import subprocess
import time

import httpx

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's name of an element's reference
KEYS = {"enter": "\ue007", "escape": "\ue00c", "right": "\ue014", "left": "\ue012", "tab": "\ue004"}


def start_driver():
    """Returns a chromedriver's process and its port. It takes a free port of IPv4 and ends if another program has this one on IPv6."""
    said = ""
    for _ in range(10):
        driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in driver.stdout:
            said += line
            if found := re.search(r"started successfully on port (\d+)", line):
                return driver, found[1]
        driver.wait()
    raise RuntimeError(f"chromedriver does not start: {said}")


class Browser:
    def __init__(self, folder):
        self.driver, port = start_driver()
        try:
            self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60)
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking",
                     "--disable-component-update", "--force-prefers-reduced-motion", "--lang=en", f"--user-data-dir={folder}"]
            capabilities = {"browserName": "chrome", "goog:chromeOptions": {"args": flags},
                            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
            answer = self.http.post("/session", json={"capabilities": {"alwaysMatch": capabilities}}).json()["value"]
            self.session = f"/session/{answer['sessionId']}"
        except BaseException:
            self.driver.kill()
            raise

    def close(self):
        try:
            self.http.delete(self.session)
        finally:
            self.driver.kill()
            self.driver.wait()

    def call(self, method, path, **body):
        response = self.http.request(method, self.session + path, json=body if method == "POST" else None)
        value = response.json()["value"]
        assert response.status_code == 200, value
        return value

    def open(self, url):
        self.call("POST", "/url", url="about:blank")  # so that a mere change of the fragment loads the page, too
        self.call("POST", "/url", url=url)

    def run(self, script, *arguments):
        """Runs the body of a function in the page, and returns what it returns; a promise's value."""
        return self.call("POST", "/execute/sync", script=script, args=list(arguments))

    def find(self, css):
        return self.call("POST", "/element", using="css selector", value=css)[ELEMENT]

    def click(self, css):
        self.call("POST", f"/element/{self.find(css)}/click")

    def answer(self, text):
        """Answers what the page asks, as soon as it does."""
        for _ in range(200):
            if self.http.post(self.session + "/alert/text", json={"text": text}).status_code == 200:
                self.call("POST", "/alert/accept")
                return
            time.sleep(0.05)
        raise AssertionError("the page asks nothing")

    def type(self, css, text):
        self.call("POST", f"/element/{self.find(css)}/value", text=text)

    def clear(self, css):
        self.call("POST", f"/element/{self.find(css)}/clear")

    def press(self, *keys):
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", actions=[{"type": "key", "id": "keys", "actions": actions}])

    def hover(self, css):
        origin = {ELEMENT: self.find(css)}
        move = {"type": "pointerMove", "duration": 0, "origin": origin, "x": 0, "y": 0}
        self.call("POST", "/actions", actions=[{"type": "pointer", "id": "mouse", "actions": [move]}])

    def text(self, css):
        return self.run("return document.querySelector(arguments[0])?.textContent ?? null", css)

    def wait(self, script, *arguments, seconds=30):
        """Waits until a script's value is true, and returns it."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)
        return value

    def resize(self, width, height):
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def dark(self, on):
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def devtools(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def log(self, kind):
        return self.call("POST", "/se/log", type=kind)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))
