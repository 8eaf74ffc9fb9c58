"""Makes the pictures of docs/images anew: MILLRACE_MODEL=FILE python tests/console_images.py, in the tests' Python, on an idle machine.

The server runs the default model on the CPU under a load that it holds: prompts of a few hundred tokens, a new one every second.
"""
import os
import pathlib
import tempfile
import threading
import time

import httpx

from browser import Browser
from conftest import Server

IMAGES = pathlib.Path(__file__).parent.parent / "docs" / "images"
WORDS = ("A water wheel turns the flow of a river into work: it lifts water to fields, grinds grain, saws wood and drives looms. "
         "The miller opens a gate, the race fills, and the wheel begins to turn. ")


def chat(browser, server):
    browser.resize(900, 680)
    browser.open(server.admin + "/")
    browser.wait("return document.getElementById('state').textContent.includes('ready')")
    browser.run("document.getElementById('temperature').value = '0'; document.getElementById('max_tokens').value = '96'")
    browser.type("#prompt", "List three uses of a water wheel, in Markdown.")
    browser.press("enter")
    browser.wait("return document.querySelector('.timing') !== null && !document.getElementById('send').disabled")
    browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Tokens').click()")
    browser.hover(".token:nth-child(16)")
    browser.run("window.scrollTo(0, 0)")
    browser.screenshot(IMAGES / "console-chat.png")


def operate(browser, server):
    ended = threading.Event()

    def request(number):
        body = {"prompt": f"{number}. " + WORDS * (2 + number % 5), "max_tokens": 120 + 20 * (number % 4), "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.http + "/v1/completions", json=body, timeout=120) as response:
            for _ in response.iter_lines():
                if ended.is_set():
                    return

    browser.resize(900, 1180)
    browser.open(server.admin + "/#operate")
    browser.wait("return document.querySelectorAll('.tile').length > 0")
    clients = []
    for number in range(20):
        clients.append(threading.Thread(target=request, args=(number,)))
        clients[-1].start()
        time.sleep(1)
    browser.screenshot(IMAGES / "console-operate.png")
    ended.set()
    for client in clients:
        client.join()


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        server = Server(folder, "--model", os.environ["MILLRACE_MODEL"], "--max-model-len", "2048", "--kv-cache-memory", "128MiB")
        browser = Browser(folder / "browser")
        try:
            browser.dark(False)
            browser.devtools("Emulation.setScrollbarsHidden", hidden=True)
            chat(browser, server)
            operate(browser, server)
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
