"""millrace-loadtest against real servers: Millrace over both protocols, llama.cpp's, and servers that misbehave."""
import collections
import datetime
import html.parser
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import pytest

from daemon import metrics, program, wait_until
from tls_clients import Authority, flags

PROGRAM = pathlib.Path(program()).resolve().parent / "millrace-loadtest"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "millrace"
LLAMA_SERVERS = sorted(CACHE.glob("llama.cpp-*/bin/llama-server"))

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="millrace-loadtest was not built")


def loadtest(*arguments, expected=0, env=None):
    """Runs the program. Returns what it printed."""
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **(env or {})})
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def measure(folder, *arguments, expected=0):
    """Returns the run's JSON, with the details of each request."""
    loadtest(*arguments, "--json", folder / "result.json", "--save-detailed", "--quiet", expected=expected)
    return json.loads((folder / "result.json").read_text())


def address(server, protocol):
    return ["--protocol", protocol, "--url", server.http if protocol == "http" else server.grpc]


both = pytest.mark.parametrize("protocol", ["http", "grpc"])


@both
def test_it_counts_the_tokens_that_the_server_counts(fake_server, tmp_path, protocol):
    before = metrics(fake_server)
    result = measure(tmp_path, *address(fake_server, protocol), "--concurrency", 8, "--num-prompts", 40, "--seed", 11,
                     "--input-len", "uniform:20:60", "--output-len", "uniform:5:40", "--no-calibrate", "--temperature", 1)
    after = metrics(fake_server)
    assert (result["completed"], result["failed"], result["num_prompts"]) == (40, 0, 40)
    assert result["total_output_tokens"] == after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    assert result["total_input_tokens"] == after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
    assert len(set(result["output_lens"])) > 5 and max(result["output_lens"]) <= 40
    assert result["max_concurrent_requests"] <= 8
    for ttft, latency, gaps, tokens in zip(result["ttfts"], result["latencies"], result["itls"], result["output_lens"]):
        assert 0 < ttft <= latency
        assert len(gaps) <= tokens - 1
        assert sum(gaps) == pytest.approx(latency - ttft, abs=0.05)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_speaks_tls(start_server, tmp_path, protocol):
    authority = Authority(tmp_path, "ours")
    mine, key = authority.issue("loadtest")
    both_in_one = tmp_path / "both.pem"
    both_in_one.write_bytes(mine.read_bytes() + key.read_bytes())
    server = start_server("--device", "fake", *flags(authority.issue("server")), "--ssl-ca-certs", str(authority.file))
    load = ["--protocol", protocol, "--url", f"https://localhost:{server.ports[protocol]}", "--concurrency", 8, "--num-prompts", 60,
            "--output-len", 20]
    shown = ["--cert", mine, "--key", key]
    trusted = ["--cacert", authority.file]
    for tls in ([*trusted, *shown], ["--insecure", *shown], [*trusted, "--cert", both_in_one]):
        result = measure(tmp_path, *load, *tls)
        assert (result["completed"], result["failed"], result["total_output_tokens"]) == (60, 0, 1200)
    opened = metrics(server)["millrace_http_connections_opened_total" if protocol == "http" else "millrace_grpc_connections_opened_total"]
    assert opened < 100, "connections are kept"
    # A certificate of a stranger, or for another name, and a server that gets none.
    assert "cannot" in loadtest(*load, *shown, expected=1)
    assert "cannot" in loadtest(*load, *trusted, expected=1)
    other = start_server("--device", "fake", *flags(authority.issue("other", names="DNS:other.example")))
    elsewhere = ["--protocol", protocol, "--url", f"https://localhost:{other.ports[protocol]}", "--num-prompts", 5]
    assert "cannot" in loadtest(*elsewhere, *trusted, expected=1)
    assert measure(tmp_path, *elsewhere, "--insecure")["completed"] == 5
    # Files that are none.
    assert "flag --cacert: " in loadtest(*load, "--cacert", "/none", expected=1)
    assert f"flag --cacert: {key} cannot be used" in loadtest(*load, "--cacert", key, expected=1)
    assert f"flag --key: {mine} cannot be used" in loadtest(*load, *trusted, "--cert", mine, "--key", mine, expected=1)


@both
def test_prompts_have_the_length_that_was_asked_for(fake_server, tmp_path, protocol):
    result = measure(tmp_path, *address(fake_server, protocol), "--num-prompts", 5, "--input-len", 600, "--output-len", 2, "--seed", 12)
    assert result["total_input_tokens"] / 5 == pytest.approx(600, rel=0.05)


def test_ids_have_their_exact_number(fake_server, tmp_path):
    result = measure(tmp_path, *address(fake_server, "http"), "--num-prompts", 5, "--input-len", 77, "--output-len", 2, "--vocab-size", 200)
    assert result["input_lens"] == [77] * 5


@both
def test_a_result_says_what_both_sides_were_and_when_in_local_time(fake_server, tmp_path, protocol):
    flags = [*address(fake_server, protocol), "--num-prompts", 2, "--output-len", 2, "--no-calibrate", "--quiet", "--api-key", "secret",
             "--metadata", "gpu=none at all", "--json", tmp_path / "result.json", "--html", tmp_path / "report.html"]
    begun = int(time.time())
    loadtest(*flags, env={"TZ": "Asia/Kolkata"})
    result = json.loads((tmp_path / "result.json").read_text())
    own = result["millrace_loadtest"]
    time_of = datetime.datetime.strptime(own["time"], "%Y-%m-%d %H:%M:%S %z")
    assert begun <= time_of.timestamp() <= time.time() and own["time"].endswith("+05:30")
    assert result["date"] == time_of.strftime("%Y%m%d-%H%M%S")
    generator, server = own["setup"]["load_generator"], own["setup"]["server"]
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    assert generator["version"] == version and generator["machine"].endswith("GiB of memory")
    assert "--num-prompts 2 " in generator["flags"] and "secret" not in json.dumps(own)
    assert server["version"] == version.split()[1] and server["gpu"] == "none at all"
    assert protocol == "grpc" or int(server["max_model_len"]) > 0
    page = (tmp_path / "report.html").read_text()
    assert own["time"] in page and "2 of 2 requests were completed" in page and "none at all" in page and "secret" not in page
    assert "flag --metadata: got" in loadtest("--metadata", "gpu", expected=1)


@both
def test_the_seed_decides_what_is_sent_and_when(fake_server, tmp_path, protocol):
    flags = [*address(fake_server, protocol), "--rate", 100, "--num-prompts", 20, "--input-len", "lognormal:30:0.5",
             "--output-len", "uniform:2:9", "--no-calibrate", "--threads", 1]
    first, again, other = (measure(tmp_path, *flags, "--seed", seed) for seed in (5, 5, 6))
    assert first["input_lens"] == again["input_lens"] and first["output_lens"] == again["output_lens"]
    assert first["generated_texts"] == again["generated_texts"]
    assert first["input_lens"] != other["input_lens"]
    due = [[sent - queued for sent, queued in zip(run["start_times"], run["queue_times"])] for run in (first, again, other)]
    assert due[0] == pytest.approx(due[1], abs=1e-6)
    assert due[0] != pytest.approx(due[2], abs=1e-6)


def test_late_answers_count_from_when_the_request_was_due(start_server, tmp_path):
    """A server that stands still for a second delays all that was due in it, and the figures show each."""
    server = start_server("--device", "fake", "--fake-step-us", "1000")
    run = subprocess.Popen([PROGRAM, *address(server, "http"), "--rate", "100", "--arrival", "constant", "--num-prompts", "300",
                            "--concurrency", "4", "--output-len", "2", "--input-len", "5", "--no-calibrate", "--quiet", "--save-detailed",
                            "--json", tmp_path / "result.json"], stdout=subprocess.DEVNULL)
    while metrics(server).get("vllm:generation_tokens_total", 0) < 20:
        time.sleep(0.01)
    server.signal(signal.SIGSTOP)
    time.sleep(1)
    server.signal(signal.SIGCONT)
    assert run.wait(60) == 0
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["completed"] == 300
    # Only 4 were on their way, but about 70 were due more than 0.3 s before the server went on.
    assert sum(ttft > 0.3 for ttft in result["ttfts"]) > 40
    assert max(result["queue_times"]) > 0.5


@both
def test_cancels_deadlines_and_slow_readers(start_server, tmp_path, protocol):
    server = start_server("--device", "fake", "--fake-step-us", "2000")
    flags = [*address(server, protocol), "--concurrency", 16, "--num-prompts", 60, "--input-len", 10, "--output-len", 60, "--no-calibrate"]
    result = measure(tmp_path, *flags, "--cancel-ratio", 0.5)
    own = result["millrace_loadtest"]
    assert 15 <= own["cancelled"] <= 45
    assert result["completed"] + own["cancelled"] == 60 and result["failed"] == 0
    # One that is cancelled may have got its last tokens meanwhile.
    assert sum(60 == tokens for tokens in result["output_lens"]) >= result["completed"]

    result = measure(tmp_path, *flags, "--slow-ratio", 0.3, "--slow-rate", 20000)
    assert result["completed"] == 60 and set(result["output_lens"]) == {60}

    before = metrics(server)["vllm:generation_tokens_total"]
    result = measure(tmp_path, *flags, "--deadline", "60ms", "--output-len", 5000, expected=1)
    own = result["millrace_loadtest"]
    # On a busy machine the server may refuse one that would only expire in its queue.
    refused = sum(error["count"] for error in own["error_counts"] if "the request's deadline is in" in error["error"])
    assert own["past_deadline"] + refused == 60 and refused < 30, own["error_counts"]
    assert httpx.get(server.http + "/health").status_code == 200
    # Requests that were given up are no longer computed.
    wait_until(lambda: metrics(server)["vllm:num_requests_running"] == 0)
    assert metrics(server)["vllm:generation_tokens_total"] - before < 60 * 5000 / 2


@both
def test_sessions_send_what_was_said(fake_server, tmp_path, protocol):
    result = measure(tmp_path, *address(fake_server, protocol), "--endpoint", "/v1/chat/completions", "--num-prompts", 4, "--turns", 3,
                     "--concurrency", 2, "--input-len", 60, "--output-len", 10, "--seed", 21)
    assert result["completed"] == 12
    lengths = sorted(result["input_lens"])
    assert lengths[4] > lengths[3] + 40 and lengths[8] > lengths[7] + 40  # turn for turn
    assert result["millrace_loadtest"]["total_cached_tokens"] > 0


def test_prefixes_are_shared(fake_server, tmp_path):
    flags = [*address(fake_server, "http"), "--num-prompts", 10, "--output-len", 2, "--input-len", 16]
    assert measure(tmp_path, *flags, "--seed", 31)["millrace_loadtest"]["total_cached_tokens"] == 0
    shared = measure(tmp_path, *flags, "--seed", 32, "--prefix-len", 200)
    assert shared["millrace_loadtest"]["total_cached_tokens"] > 0.5 * shared["total_input_tokens"]


def test_a_data_set_and_a_trace(fake_server, tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps({"conversations": [{"from": "human", "value": "Hello \u2028\"there\""},
                                                                       {"from": "gpt", "value": "x" * 28}]}) + "\n"
                                         + json.dumps({"prompt": "And now?", "output_tokens": 3}) + "\n")
    result = measure(tmp_path, *address(fake_server, "http"), "--dataset", tmp_path / "data.jsonl", "--num-prompts", 4)
    assert sorted(result["output_lens"]) == [3, 3, 7, 7]

    (tmp_path / "trace.jsonl").write_text("".join(json.dumps({"timestamp": 5000 + 40 * i, "input_length": 10 + i, "output_length": 2 + i}) + "\n"
                                                  for i in range(5)))
    result = measure(tmp_path, *address(fake_server, "http"), "--arrival", "trace", tmp_path / "trace.jsonl", "--threads", 2)
    assert result["completed"] == 5
    assert result["output_lens"] == [2, 3, 4, 5, 6]
    due = [sent - queued for sent, queued in zip(result["start_times"], result["queue_times"])]
    assert due == pytest.approx([0, 0.04, 0.08, 0.12, 0.16], abs=1e-6)


@pytest.mark.parametrize("arrival", [["burst", "--burst-size", "5"], ["ramp", "--ramp-up-start-rps", "5"], ["poisson", "--burstiness", "0.5"]])
def test_arrivals(fake_server, tmp_path, arrival):
    result = measure(tmp_path, *address(fake_server, "http"), "--rate", 40, "--duration", "1s", "--output-len", 2, "--input-len", 5,
                     "--no-calibrate", "--arrival", *arrival)
    assert result["failed"] == 0
    assert 5 <= result["completed"] <= 100
    due = [round(sent - queued, 6) for sent, queued in zip(result["start_times"], result["queue_times"])]
    assert max(due) < 1
    if arrival[0] == "burst":
        assert set(collections.Counter(due).values()) == {5}


def test_keys_and_headers(start_server, tmp_path):
    server = start_server("--device", "fake", "--api-key", "sesame")
    for protocol in ("http", "grpc"):
        flags = [*address(server, protocol), "--num-prompts", 2, "--output-len", 2, "--quiet"]
        assert "1 x" not in loadtest(*flags, "--api-key", "sesame")
        assert "2 completed" in loadtest(*flags, env={"OPENAI_API_KEY": "sesame"})
        output = loadtest(*flags, expected=1)
        assert "cannot ask for the model's name" in output and "key" in output
        assert "sesame" not in output


def test_usage_in_each_event_or_none(fake_server, tmp_path):
    flags = [*address(fake_server, "http"), "--num-prompts", 3, "--output-len", 20, "--no-calibrate", "--input-len", 5]
    assert measure(tmp_path, *flags, "--usage", "continuous")["output_lens"] == [20] * 3
    result = measure(tmp_path, *flags, "--usage", "none")
    assert result["completed"] == 3 and result["total_input_tokens"] == 0
    assert any("not counted by the server" in warning for warning in result["millrace_loadtest"]["warnings"])


def test_a_sweep_finds_the_rate_that_holds(start_server, tmp_path):
    """A server that runs two requests at once, each for some 50 ms, serves less than 60 in a second."""
    server = start_server("--device", "fake", "--fake-step-us", "5000", "--max-num-seqs", "2")
    output = loadtest("sweep", "--slo", "ttft:300", *address(server, "http"), "--rate", 8, "--duration", "2s", "--output-len", 10,
                      "--input-len", 8, "--no-calibrate", "--steps", 5, "--quiet", "--json", tmp_path / "sweep.json",
                      "--html", tmp_path / "sweep.html")
    result = json.loads((tmp_path / "sweep.json").read_text())
    rates = [run["request_rate"] for run in result["runs"]]
    held = [run["millrace_loadtest"]["slo_attainment"] >= 0.99 for run in result["runs"]]
    assert len(rates) == 5 and rates[0] == 8
    assert any(held) and not all(held)
    assert rates[result["best"]] == max(rate for rate, is_held in zip(rates, held) if is_held)
    assert f"Highest load that holds ttft:300: {rates[result['best']]:.2f}" in output
    assert "Throughput against rate" in (tmp_path / "sweep.html").read_text()


def test_a_sweep_of_concurrencies(fake_server, tmp_path):
    loadtest("sweep", "--concurrencies", "1,4", *address(fake_server, "grpc"), "--num-prompts", 8, "--output-len", 5, "--input-len", 5,
             "--no-calibrate", "--quiet", "--json", tmp_path / "sweep.json", "--html", tmp_path / "sweep.html")
    runs = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert [run["max_concurrency"] for run in runs] == [1, 4]
    assert "Throughput against concurrency" in (tmp_path / "sweep.html").read_text()


def test_an_interrupted_sweep_writes_what_it_has(fake_server, tmp_path):
    flags = ["--concurrencies", "1,2,1", *address(fake_server, "http"), "--duration", "1s", "--output-len", "5", "--no-calibrate", "--quiet"]
    sweep = subprocess.Popen([PROGRAM, "sweep", *flags, "--json", tmp_path / "sweep.json"], stdout=subprocess.PIPE, text=True)
    while "concurrency" not in sweep.stdout.readline() and sweep.poll() is None:
        pass
    sweep.stdout.readline()
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(60) != 0
    assert 1 <= len(json.loads((tmp_path / "sweep.json").read_text())["runs"]) < 3


@pytest.mark.parametrize("descriptors", [10, 24, 40])
def test_few_descriptors_end_in_no_crash(fake_server, descriptors):
    done = subprocess.run(["prlimit", f"--nofile={descriptors}", PROGRAM, *address(fake_server, "http"), "--concurrency", "100",
                           "--num-prompts", "200", "--output-len", "3", "--no-calibrate", "--quiet"], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 1), done


def test_two_results_are_compared(fake_server, tmp_path):
    for name, tokens in (("a", 5), ("b", 40)):
        loadtest(*address(fake_server, "http"), "--num-prompts", 5, "--output-len", tokens, "--label", name, "--quiet", "--no-calibrate",
                 "--json", tmp_path / f"{name}.json")
    output = loadtest("compare", tmp_path / "a.json", tmp_path / "b.json", "--html", tmp_path / "c.html", "--json", tmp_path / "c.json")
    assert "They differ in tokens a request" in output
    assert "End-to-end latency, mean, ms" in output and "worse" in output
    assert "a and b" in (tmp_path / "c.html").read_text()
    assert len(json.loads((tmp_path / "c.json").read_text())["figures"]) > 10
    failing = json.loads((tmp_path / "b.json").read_text())
    failing["failed"] = 50
    (tmp_path / "b.json").write_text(json.dumps(failing))
    output = loadtest("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert re.search("Requests failed .* worse", output)
    (tmp_path / "bad.json").write_text("{}")
    assert "bad.json: expected a result of" in loadtest("compare", tmp_path / "a.json", tmp_path / "bad.json", expected=1)


def interrupt(server, folder, *flags):
    """Interrupts a run after 60 tokens. Returns its exit status, its output and its JSON."""
    before = metrics(server).get("vllm:generation_tokens_total", 0)
    run = subprocess.Popen([PROGRAM, *address(server, "http"), *flags, "--quiet", "--no-calibrate", "--json", folder / "result.json"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while metrics(server)["vllm:generation_tokens_total"] < before + 60:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    return run.returncode, output, json.loads((folder / "result.json").read_text())


def test_a_signal_ends_a_run_with_its_figures(fake_server, tmp_path):
    status, _, result = interrupt(fake_server, tmp_path, "--duration", "1h", "--output-len", "20")
    assert status == 0 and result["completed"] >= 1
    status, output, result = interrupt(fake_server, tmp_path, "--num-prompts", "1", "--output-len", "3000")
    assert status == 1 and "1 unfinished" in output
    assert result["completed"] == 0 and result["millrace_loadtest"]["unfinished"] == 1


@pytest.mark.parametrize("arguments, message", [
    (["--url", "http://127.0.0.1:1"], "Connection refused"),
    (["--url", "http://127.0.0.1:1", "--model", "m"], "cannot connect: Connection refused"),
    (["--url", "127.0.0.1:1", "--protocol", "grpc"], "cannot ask for the model's name"),
    (["--dataset", "/nowhere.jsonl"], "cannot open /nowhere.jsonl: No such file"),
    (["--concurrency", "x"], 'flag --concurrency: got "x", expected a whole number'),
])
def test_what_cannot_run_says_why(arguments, message):
    assert message in loadtest(*arguments, "--num-prompts", 1, "--quiet", expected=1)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'`[x](javascript:alert(3))\u202e\x1b[2J"
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(text):
    return "data: " + json.dumps({"choices": [{"text": text, "finish_reason": None}]}) + "\n\n"


def chunks(text, size):
    data = text.encode()
    pieces = [data[i:i + size] for i in range(0, len(data), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}}\n\n'
GOOD = event("a") + ": ping\n\n" + event("b") + event(HOSTILE) + USAGE + "data: [DONE]\n\n"


class Scripted:
    """A server that answers each request with the same bytes, in pieces of `size` bytes, and then closes."""

    def __init__(self, answer, size=None):
        self.answer = answer if isinstance(answer, bytes) else answer.encode()
        self.size = size or len(self.answer) or 1
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.requests = []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = b""
            while b"\r\n\r\n" not in request or len(request.split(b"\r\n\r\n", 1)[1]) < int((re.search(rb"content-length: (\d+)", request.lower()) or [0, 0])[1]):
                data = connection.recv(65536)
                if not data:
                    return
                request += data
            self.requests.append(request)
            try:
                for at in range(0, len(self.answer), self.size):
                    connection.sendall(self.answer[at:at + self.size])
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
            except OSError:
                pass


@pytest.fixture
def scripted():
    servers = []

    def start(answer, size=None):
        servers.append(Scripted(answer, size))
        return servers[-1]

    yield start
    for server in servers:
        server.listener.close()


@pytest.mark.parametrize("answer, size", [
    (HEAD + "\r\n" + GOOD, None),
    (HEAD + "Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD, 7),
    (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(GOOD, 10_000), 1),
    (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(GOOD, 1), 13),
    (HEAD.replace("200 OK", "200 ").replace("Content-Type: text/event-stream", "content-type:TEXT/Event-Stream;charset=x").encode()
     + b"Transfer-Encoding: chunked\r\n\r\n" + chunks(GOOD.replace("\n", "\r\n"), 50), None),
])
def test_a_stream_in_any_pieces_is_the_same(scripted, tmp_path, answer, size):
    server = scripted(answer, size)
    result = measure(tmp_path, "--url", server.url, "--model", "m", "--num-prompts", 2, "--no-calibrate")
    assert result["completed"] == 2
    assert result["output_lens"] == [6, 6] and result["input_lens"] == [4, 4]
    assert result["generated_texts"][0] == "ab" + HOSTILE


@pytest.mark.parametrize("usage", ["final", "continuous"])
@pytest.mark.parametrize("events", ["", event(""), event("").replace("null", '"stop"')], ids=["none", "empty", "finish"])
def test_tokens_without_text_are_counted_by_the_servers_usage(scripted, tmp_path, events, usage):
    server = scripted(HEAD + "\r\n" + events + USAGE + "data: [DONE]\n\n")
    result = measure(tmp_path, "--url", server.url, "--model", "m", "--num-prompts", 2, "--no-calibrate", "--usage", usage)
    assert (result["completed"], result["failed"]) == (2, 0)
    assert result["output_lens"] == [6, 6] and result["total_output_tokens"] == 12
    assert result["max_output_tokens_per_s"] == 12
    assert min(result["ttfts"]) > 0 and result["mean_ttft_ms"] > 0


@pytest.mark.parametrize("answer, message", [
    (HEAD + "\r\n" + event("a"), "the stream ended without [DONE]"),
    (HEAD + "Content-Length: 9999\r\n\r\n" + event("a"), "the connection ended within the response"),
    (HEAD + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "not HTTP"),
    (HEAD + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffffff\r\n", "not HTTP"),
    (HEAD + "Transfer-Encoding: chunked\r\n\r\n5;" + "x" * 200_000, "not HTTP"),
    (HEAD + "x: " + "y" * 200_000 + "\r\n\r\n", "not HTTP"),
    ("hello\r\n\r\n", "not HTTP"),
    ("", "the connection ended before a response"),
    (HEAD + "\r\ndata: {nonsense\n\n", "an event is not JSON: {nonsense"),
    (HEAD + "\r\ndata: " + "[" * 100_000 + "\n\n", "an event is not JSON"),
    (HEAD + "\r\ndata: " + "x" * (17 << 20), "too long"),
    (HEAD + "\r\n" + event("a") + 'data: {"error": {"message": "' + "out of paper" + '"}}\n\ndata: [DONE]\n\n', "out of paper"),
    ("HTTP/1.1 503 Busy\r\nContent-Length: 36\r\n\r\n" + '{"error": {"message": "come back"}}  ', "HTTP 503: come back"),
    ("HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\n<b>x\x1b", "HTTP 500: <b>x\\x1b"),
    ("HTTP/1.1 500 Oops\r\n\r\n" + "x" * 100_000, "too long"),
    ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "application/json in place of a stream"),
])
def test_broken_answers_are_failures_with_a_reason(scripted, answer, message):
    server = scripted(answer)
    output = loadtest("--url", server.url, "--model", "m", "--num-prompts", 2, "--no-calibrate", "--quiet", expected=1)
    assert "0 completed, 2 failed" in output
    assert message in output
    assert "\x1b" not in output


class Elements(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags = collections.Counter()
        self.attributes = set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attributes}


def test_a_report_shows_hostile_texts_as_texts(scripted, tmp_path):
    server = scripted(HEAD + "\r\n" + GOOD)
    failing = scripted("HTTP/1.1 500 Oops\r\n\r\n" + json.dumps({"error": {"message": HOSTILE}}))
    for url, rc in ((server.url, 0), (failing.url, 1)):
        loadtest("--url", url, "--model", HOSTILE, "--label", HOSTILE, "--num-prompts", 3, "--no-calibrate", "--quiet",
                 "--html", tmp_path / "report.html", expected=rc)
        page = (tmp_path / "report.html").read_text()
        elements = Elements(page)
        assert elements.tags["svg"] == 6
        assert not elements.tags.keys() & {"script", "img", "a", "link", "iframe", "object", "form", "base"}
        assert not any(name.startswith("on") for name in elements.attributes)
        assert not elements.attributes & {"src", "href", "style", "action"}
        assert "Content-Security-Policy" in page and "default-src 'none'" in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "\x1b" not in page and "\u202e" not in page


def test_the_replay_server_is_read_at_full_speed(tmp_path):
    replay = subprocess.Popen([PROGRAM.parent / "loadtest_replay"], stdout=subprocess.PIPE, text=True)
    try:
        port = replay.stdout.readline().strip()
        result = measure(tmp_path, "--url", f"http://127.0.0.1:{port}", "--concurrency", 200, "--num-prompts", 400, "--output-len", 300)
        assert result["completed"] == 400
        assert result["total_output_tokens"] == 400 * 300
        assert result["millrace_loadtest"]["generator"]["events"] == 400 * 302
    finally:
        replay.kill()
        replay.wait()


@pytest.mark.model
@pytest.mark.skipif(not LLAMA_SERVERS, reason="llama.cpp's server is not in the cache")
@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_llama_cpps_server_is_measured_too(tmp_path, endpoint):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = open(tmp_path / "llama.log", "wb")
    server = subprocess.Popen([LLAMA_SERVERS[-1], "-m", os.environ["MILLRACE_MODEL"], "--port", str(port), "-np", "2", "-c", "2048", "-t", "2"],
                              stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 120
        while True:
            try:
                if httpx.get(url + "/health", timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "llama.log").read_text(errors="replace")
            time.sleep(0.1)
        result = measure(tmp_path, "--url", url, "--endpoint", endpoint, "--concurrency", 2, "--num-prompts", 4, "--input-len", 100, "--output-len", 8)
        assert result["completed"] == 4 and result["output_lens"] == [8] * 4
        assert result["total_input_tokens"] / 4 == pytest.approx(100, rel=0.15)
    finally:
        server.kill()
        server.wait()
