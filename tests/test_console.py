"""The console in a headless Chromium, as its users see it: the chat, the operator's part, hostile answers, and accessibility."""
import hashlib
import importlib.resources
import json
import re
import shutil

import httpx
import pytest

from browser import Browser
from daemon import Stream, metrics, wait_until
from test_folder import model_files
from test_hub import byte_tokenizer

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="this distribution has no chromedriver"),
]

HOSTILE = [
    "<img src=x onerror=window.hacked=1>", "<script>window.hacked=1</script>", "[go](javascript:window.hacked=1)",
    "![x](javascript:window.hacked=1)", "[d](data:text/html,<script>alert(1)</script>)", "<a href=javascript:window.hacked=1>x</a>",
    "[f](file:///etc/passwd)", "[v](vbscript:x)", "[n](\njava\tscript:window.hacked=1)", "<iframe srcdoc=x>", "<svg onload=window.hacked=1>",
    "![p](http://192.0.2.1/pixel.png)", "[ok](https://example.com/\"onmouseover=\"window.hacked=1)", "</li></ol><form action=/log>",
    "\n```html\n<b>x</b>\n", "\n| a | b |\n|---|---|\n| <u>1</u> | 2 |\n", "\n> > > > > > > > > > deep\n", "&lt;b&gt;", "\n# <h1>\n", "\u202e\u0000",
]

# Texts on which a parser may take for ever: the browser gives a script 30 s.
ENDLESS = [
    "".join(HOSTILE), "[" * 50_000, "*" * 50_000, "`" * 50_001, ">" * 50_000, "- " * 30_000, "| " * 30_000 + "\n" + "-|" * 30_000,
    "[a](" * 10_000, "**a" * 10_000, "\n".join(" " * i + "- x" for i in range(500)), "#" * 10_000,
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("browser"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def console(browser, fake_server):
    """The fake server, whose console the browser can show."""
    yield fake_server
    assert browser.run("return window.hacked ?? null") is None


@pytest.fixture
def page(browser, console):
    """The console's page, fresh, at the size of a desktop."""
    browser.log("browser")
    browser.resize(1280, 900)
    browser.dark(False)
    browser.open(console.admin + "/")
    browser.wait("return document.getElementById('state').textContent.includes('ready')")
    yield browser
    # Not a line in the browser's console: no error, and nothing that the page's policy had to block.
    assert complaints(browser) == []


def complaints(browser):
    """Returns what the browser complains of since this was last asked, but for servers that refuse or have ended."""
    return [line for line in browser.log("browser") if "Failed to load resource" not in line["message"]]


def set_most_tokens(page, number):
    page.run("document.getElementById('sampling').open = true")
    page.clear("#max_tokens")
    page.type("#max_tokens", str(number))


def say(page, text, max_tokens=20):
    """Sends a message and waits for the end of the answer."""
    set_most_tokens(page, max_tokens)
    page.type("#prompt", text)
    page.press("enter")
    page.wait("return !document.getElementById('chat-status').textContent.startsWith('The model') && !document.getElementById('send').disabled")


def roles(page):
    return page.run("return [...document.querySelectorAll('.message')].map((m) => m.classList[1])")


def test_the_page_is_small_and_asks_no_one_else(page, console):
    names = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(names) > 8 and all(name.startswith(console.admin + "/") for name in names)
    size = page.run("return performance.getEntries().filter((e) => e.decodedBodySize).reduce((sum, e) => sum + e.decodedBodySize, 0)")
    assert 10_000 < size < 300_000
    sent = [json.loads(entry["message"])["message"] for entry in page.log("performance")]
    urls = [message["params"]["request"]["url"] for message in sent if message["method"] == "Network.requestWillBeSent"]
    assert urls and all(url.startswith((console.admin, "about:", "data:", "chrome:")) for url in urls)


def test_a_chat_has_timing_and_the_log_probabilities_of_its_tokens(page):
    say(page, "Hello there")
    assert roles(page) == ["user", "assistant"]
    assert page.text(".message.user .plain") == "Hello there"
    answer = page.text(".message.assistant .markdown")
    assert len(answer) > 5
    timing = page.text(".timing")
    assert "first token after" in timing and "20 tokens" in timing and "tokens/s" in timing and "prompt of" in timing
    page.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Tokens').click()")
    assert page.run("return document.querySelectorAll('.token').length") == 20
    page.hover(".token:nth-child(3)")
    tip = page.text(".tip")
    assert "log-probability -" in tip and "Likeliest: " in tip and len(re.findall(r"\d %", tip)) == 6
    # The keyboard gets there, too.
    page.run("document.querySelector('.token').focus()")
    page.press("right", "right")
    page.run("document.querySelector('.tip').textContent = ''")  # Tokens may be alike, and so may what is said of them.
    page.press("right")
    assert page.run("return [...document.querySelectorAll('.token')].indexOf(document.activeElement)") == 3
    assert page.text(".tip") == page.run("return document.activeElement.title") != ""


def test_regenerate_and_edit(page):
    say(page, "one")
    say(page, "two")
    assert roles(page) == ["user", "assistant"] * 2
    before = page.run("return [...document.querySelectorAll('.assistant .markdown')].map((m) => m.textContent)")
    page.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Regenerate').click()")
    page.wait("return !document.getElementById('send').disabled")
    after = page.run("return [...document.querySelectorAll('.assistant .markdown')].map((m) => m.textContent)")
    assert after[0] == before[0] and after[1] != before[1]
    # Editing the first message drops what came after it.
    page.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Edit').click()")
    page.type(".message textarea", " and a half")
    page.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Send again').click()")
    page.wait("return !document.getElementById('send').disabled && document.querySelectorAll('.message').length === 2")
    assert page.text(".message.user .plain") == "one and a half"


def test_stop_ends_the_request(page, console):
    before = metrics(console)["millrace_requests_cancelled_total"]  # client_gone comes last
    set_most_tokens(page, 8000)
    page.type("#prompt", "go on")
    page.press("enter")
    page.wait("return document.querySelector('.assistant .markdown')?.textContent.length > 0")
    page.press("escape")
    page.wait("return document.querySelector('.assistant .error')?.textContent === 'Stopped.'")
    wait_until(lambda: metrics(console)["millrace_requests_cancelled_total"] == before + 1)
    assert page.run("return document.getElementById('stop').disabled") is True


def test_settings_are_the_requests(page):
    page.run("document.getElementById('sampling').open = true")
    page.type("#seed", "7")
    say(page, "again", max_tokens=9)
    first = page.text(".assistant .markdown")
    page.click("#clear")
    say(page, "again", max_tokens=9)
    assert page.text(".assistant .markdown") == first
    assert "9 tokens" in page.text(".timing") and "ended at the most tokens" in page.text(".error")
    # Values out of range are not sent, and the server's refusals are shown.
    page.type("#temperature", "3")
    page.type("#prompt", "x")
    page.press("enter")
    assert page.run("return document.getElementById('temperature').validity.rangeOverflow")
    assert len(roles(page)) == 2
    page.clear("#temperature")
    page.type("#top_p", "0")
    page.run("document.getElementById('prompt').focus()")
    page.press("enter")
    page.wait("return document.getElementById('chat-status').textContent.startsWith('top_p')")
    assert "top_p" in page.run("return [...document.querySelectorAll('.error')].at(-1).textContent")


def test_markdown(page):
    page.run("""return import('/console/markdown.js').then(({markdown}) => {
      document.getElementById('messages').replaceChildren(markdown(arguments[0])); })""", """# Title
Some *em*, **strong**, `code`, ~~gone~~, snake_case_name and [a link](https://example.com/a?b=c).

1. one
2. two
   - inner

> quoted

| a | b |
|---|--:|
| 1 | 2 |

```python
x = "<b>"
```
""")
    shape = page.run("return [...document.querySelector('.markdown').querySelectorAll('*')].map((e) => e.localName).join(' ')")
    assert shape == "h3 p em strong code s a ol li li p ul li blockquote p table thead tr th th tbody tr td td pre code"
    assert page.text("pre code") == 'x = "<b>"'
    assert page.run("return [document.querySelector('.markdown a').href, document.querySelector('.markdown a').rel]") == [
        "https://example.com/a?b=c", "noopener noreferrer nofollow"]


def check_hostile(page):
    assert page.run("return window.hacked ?? null") is None
    names = set(page.run("return [...document.querySelectorAll('#messages *')].map((e) => e.localName)"))
    assert not names & {"img", "script", "iframe", "svg", "form", "object", "style", "b", "u", "h1"}
    assert page.run("return [...document.querySelectorAll('#messages *')].flatMap((e) => [...e.attributes]).filter((a) => /^on|^style$|^src/.test(a.name)).length") == 0
    links = page.run("return [...document.querySelectorAll('#messages a')].map((a) => a.protocol)")
    assert set(links) <= {"http:", "https:", "mailto:"}
    page.run("document.querySelectorAll('#messages a').forEach((a) => { a.removeAttribute('target'); a.addEventListener('click', (e) => e.preventDefault()); a.click(); })")
    assert page.run("return window.hacked ?? null") is None
    return links


def test_hostile_markdown(page):
    for text in (*HOSTILE, *ENDLESS):
        page.run("""return import('/console/markdown.js').then(({markdown}) => {
          document.getElementById('messages').replaceChildren(markdown(arguments[0])); })""", text)
        check_hostile(page)
        assert text in ENDLESS or page.text("#messages").strip() != ""
@pytest.fixture
def hostile_model(tmp_path):
    """A model with random weights, nearly all of whose tokens are hostile texts."""
    vocab = 640
    tokenizer = json.loads(byte_tokenizer())
    spelled = {}
    for byte in range(256):
        level = next(name for name, token in tokenizer["model"]["vocab"].items() if token == byte)
        spelled[byte] = level
    for token in range(257, vocab):
        text = HOSTILE[token % len(HOSTILE)] + " " * (token // len(HOSTILE))
        tokenizer["model"]["vocab"]["".join(spelled[byte] for byte in text.encode())] = token
    files = {**model_files(vocab), "tokenizer.json": json.dumps(tokenizer).encode(),
             "tokenizer_config.json": b'{"eos_token": "<end>", "chat_template": "{{ messages[0].content }}"}'}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_a_hostile_model(browser, start_server, hostile_model):
    server = start_server("--model", str(hostile_model), "--kv-cache-memory", "16MiB", "--api-key", "secret")
    browser.log("browser")
    browser.open(server.admin + "/")
    browser.wait("return document.getElementById('state').textContent.includes('ready')")
    browser.run("document.getElementById('temperature').value = '2'; document.getElementById('seed').value = '1'")
    say(browser, "<img src=x onerror=window.hacked=1>", max_tokens=200)
    answer = browser.text(".message.assistant")
    assert "onerror=window.hacked=1" in answer and "javascript:window.hacked=1" in answer
    assert check_hostile(browser)  # it has links, too
    browser.run("[...document.querySelectorAll('button')].find((b) => b.textContent === 'Tokens').click()")
    assert browser.run("return document.querySelectorAll('.token').length") > 100
    check_hostile(browser)
    assert complaints(browser) == []
    # The page needs no key at its own port, and the public one asks for it.
    assert httpx.post(server.http + "/v1/chat/completions", json={}).status_code == 401


def test_the_page_asks_for_a_key_where_the_server_wants_one(browser, start_server, tmp_path):
    keys = {"keys": [{"name": "operator", "sha256": hashlib.sha256(b"good").hexdigest(), "scopes": ["admin", "metrics", "infer"]}]}
    (tmp_path / "keys.json").write_text(json.dumps(keys))
    server = start_server("--device", "fake", "--keys", str(tmp_path / "keys.json"))
    browser.open(server.admin + "/")
    for key in ("wrong", "good"):
        browser.answer(key)
    browser.wait("return document.getElementById('state').textContent.includes('ready')")
    say(browser, "Hello", max_tokens=5)
    assert browser.text(".message.assistant")


def test_the_operator_sees_what_runs(browser, start_server):
    server = start_server("--device", "fake", "--fake-step-us", "20000")  # so that the request outlives the test
    page = browser
    page.open(server.admin + "/")
    body = {"prompt": "Hello " * 40, "max_tokens": 7000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", server.http + "/v1/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()  # The stream lives as long as this.
        request_id = json.loads(next(lines).removeprefix("data: "))["id"]
        page.click("#tab-operate")
        page.wait("return document.getElementById('sequences').textContent.includes(arguments[0])", request_id)
        row = page.run("return [...document.querySelector('#sequences tr').children].map((cell) => cell.textContent)")
        assert row[0] == request_id and row[1] == "decode" and row[2] == "240" and int(row[5]) >= 15
        tiles = page.run("return Object.fromEntries([...document.querySelectorAll('.tile')].map((t) => [t.children[0].textContent, t.children[1].textContent]))")
        assert tiles["Running"] == "1" and tiles["Waiting"] == "0" and tiles["KV cache held"].endswith("%")
        page.wait("return [...document.querySelectorAll('.tile')].some((t) => /^Decoded.s[^0]/.test(t.textContent))")
        assert page.run("return document.querySelectorAll('#kv-map rect.held').length") > 0
        assert page.run("return document.querySelectorAll('#steps rect').length") > 10
        counts = [int(page.text(f"#steps-{kind}")) for kind in ("decode", "prompts")]
        assert counts[0] > 10 and sum(counts) == page.run("return document.querySelectorAll('#steps rect').length")
        assert "median" in page.text("#steps-text") and "blocks of 16 tokens" in page.text("#kv-text")
        page.wait("return document.querySelectorAll('#latency svg').length >= 2")
    page.wait("return document.getElementById('sequences').textContent === 'Nothing runs.'")


# [µs since its end, µs, tokens, sequences]: of 60 steps that decode, one that took as long as all others, and one with a prompt.
STEPS = [[(60 - i) * 20_000, 1_200_000 if i == 30 else 20_000 + 100 * i, 500 if i == 40 else 6, 6] for i in range(60)]


@pytest.mark.parametrize("width", [1280, 360])
def test_one_long_step_leaves_the_others_visible(page, width):
    page.resize(width, 900)
    page.click("#tab-operate")
    bars, texts, ratio = page.run("""return import('/console/charts.js').then(({hasPrompts, stepsShown, stepTimeline}) => {
      const place = document.getElementById('steps');
      const shown = arguments[0].slice(-stepsShown(place.clientWidth));
      const image = stepTimeline(shown, place.clientWidth);
      place.replaceChildren(image);
      const ratio = image.getBoundingClientRect().width / image.viewBox.baseVal.width;
      return [[...image.querySelectorAll('rect')].map((bar) => [bar.height.baseVal.value, bar.className.baseVal, bar.textContent]),
        [...image.querySelectorAll('text')].map((text) => [text.textContent, parseFloat(getComputedStyle(text).fontSize), text.getBBox().x,
          text.getBBox().y + text.getBBox().height - image.viewBox.baseVal.height]), ratio]; })""", STEPS)
    assert len(bars) == 60
    heights = [height for height, _, _ in bars]
    assert heights[30] == max(heights) and min(heights) > 0.05 * heights[30] and heights[0] < heights[59]
    assert [i for i, (_, kind, _) in enumerate(bars) if kind == "cached"] == [40]
    assert bars[30][2] == "1.20 s: 6 tokens of 6 sequences"
    assert [text for text, *_ in texts] == ["10 ms", "100 ms", "1 s", "2 s"]
    assert all(size * ratio > 10 and x >= 0 and below <= 1 for _, size, x, below in texts)


def test_the_step_charts_axis_takes_any_times(page):
    ticks = page.run("""return import('/console/charts.js').then(({stepTimeline}) => arguments[0].map((times) =>
      [...stepTimeline(times.map((took) => [0, took, 1, 1]), 400).querySelectorAll('text')].map((text) => text.textContent)))""",
                     [[], [0], [1000], [7, 7000], [3, 40_000_000]])
    assert ticks == [["500 µs", "1 ms", "2 ms", "5 ms", "10 ms"], ["0.5 µs", "1 µs"], ["500 µs", "1 ms"],
                     ["2 µs", "10 µs", "100 µs", "1 ms", "10 ms"], ["2 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "50 s"]]


def test_log_levels(page, console):
    page.click("#tab-operate")
    page.wait("return document.getElementById('log').value !== ''")
    for levels, told in (("loud", "loud"), ("info,http=debug", "http=debug")):
        page.run("document.getElementById('log').select()")
        page.press(*levels)
        page.press("enter")
        page.wait("return document.getElementById('log-status').textContent.includes(arguments[0])", told)
    assert "http=debug" in httpx.get(console.admin + "/log").text
    # The field's text can be set as it is.
    page.run("document.getElementById('tab-operate').focus()")
    page.wait("return document.getElementById('log').value.includes('http=debug')")
    page.run("document.querySelector('#log-form button').click()")
    page.wait("return document.getElementById('log-status').textContent.startsWith('The levels are')")
    httpx.put(console.admin + "/log", content="info")


def test_drain(browser, start_server):
    server = start_server("--device", "fake")
    browser.open(server.admin + "/#operate")
    browser.wait("return document.getElementById('state').textContent.includes('ready')")
    browser.click("#drain")
    browser.click("#drain-no")
    assert server.process.poll() is None
    browser.click("#drain")
    browser.click("#drain-yes")
    assert server.wait() == 0
    browser.wait("return document.getElementById('state').className === 'bad'")


def test_a_drain_that_is_asked_for_twice_cuts_no_stream(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "20000")
    stream = Stream(server, {"prompt": "x", "max_tokens": 300, "ignore_eos": True, "stream": True})
    stream.begun.wait()
    with httpx.Client(base_url=server.admin) as client:
        for _ in range(3):
            assert client.post("/admin/drain", json={}).status_code == 202
    assert stream.join()[-1] == "data: [DONE]"
    assert server.wait() == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_nothing(page, console, width, dark):
    axe = importlib.resources.files("axe_core_python").joinpath("axe.min.js").read_text()
    page.resize(width, 900)
    page.dark(dark)
    say(page, "Hello")
    page.run(axe)
    # An answer with all that Markdown has, as models write it.
    page.run("""return import('/console/markdown.js').then(({markdown}) => {
      document.querySelector('.assistant .markdown').replaceWith(markdown(arguments[0])); })""",
             "### Deep\n# High\n#### Skips\n[a](https://example.com) `b`\n\n> q\n\n```c\nx\n```\n```c\ny\n```\n- a\n- b\n\n| a | b |\n|---|---|\n| 1 | 2 |\n")
    for tab in ("chat", "operate"):
        page.click(f"#tab-{tab}")
        page.wait("return document.querySelectorAll('.tile').length > 0 || arguments[0] === 'chat'", tab)
        result = page.run("return axe.run(document)")
        assert len(result["passes"]) > 15
        assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in result["violations"]] == []
        assert page.run("return document.scrollingElement.scrollWidth <= innerWidth"), tab
    page.click("#drain")
    assert [v["id"] for v in page.run("return axe.run(document)")["violations"]] == []
    page.click("#drain-no")


def test_the_keyboard_alone(page):
    page.run("document.body.focus()")
    page.press("tab", "tab")
    assert page.run("return document.activeElement.id") == "tab-chat"
    page.press("right")
    assert page.run("return [document.activeElement.id, document.getElementById('panel-operate').hidden]") == ["tab-operate", False]
    page.press("left", "tab")
    assert page.run("return document.activeElement.id") == "prompt"
    page.press(*"hi", "enter")
    page.wait("return document.querySelector('.timing') !== null && !document.getElementById('send').disabled")


def test_the_figures_of_a_histogram(page):
    figures = page.run("""return import('/console/metrics.js').then(({parse, histogram, quantile}) => {
      const buckets = histogram(parse(arguments[0]), 'h');
      return [buckets.map(({count}) => count), quantile(buckets, 0.5), quantile(buckets, 1), quantile([], 0.5)]; })""",
                       'h_bucket{a="x\\"y",le="1"} 2\nh_bucket{a="z",le="1"} 2\nh_bucket{le="3"} 4\nh_bucket{le="+Inf"} 5\nh_sum 9\n')
    assert figures == [[4, 0, 1], 0.625, 3, None]


def test_other_pages_of_this_machine_change_nothing(console):
    with httpx.Client(base_url=console.admin) as client:
        for origin in ("http://localhost:3000", "null", "https://example.com"):
            assert client.put("/log", content="debug", headers={"Origin": origin}).status_code == 403
            assert client.post("/admin/drain", json={}, headers={"Origin": origin}).status_code == 403
            assert client.post("/v1/chat/completions", json={}, headers={"Origin": origin}).status_code == 403
        assert client.post("/v1/chat/completions", json={}).status_code == 403
        assert "/console/" not in client.get(console.http + "/", headers={"Accept": "text/html"}).text
        assert client.get(console.http + "/console/main.js").status_code == 404
