#!/usr/bin/env python3
"""Measures millraced under ten times the load that it can serve, and a light tenant beside a flood.

  loadtest/overload.py [tenfold|light ...] [--seconds N]     both by default, 60 seconds each (light: at least)

tenfold: what clients beyond the queue wait for their refusals (429), and what is still served of the
throughput that a closed loop gets. light: the time to the first token of a tenant with one request at
a time beside one with a thousand, and the tokens that both get of what the flood gets alone.

The model is the fake executor, whose steps take a known time, so all else is the server's own work.
Server, load generator and probes share the machine. BUILD names the build folder (build).
docs/load-testing.md has figures.
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
STEP_US = 50_000
SLOTS = 64


class Server:
    """A millraced with the fake executor; `port` is that of HTTP."""

    def __init__(self, folder, *flags):
        ready = folder / "ready"
        command = [BUILD / "millraced", "--device", "fake", "--fake-step-us", str(STEP_US), "--http-port", "0"]
        command += ["--grpc-port", "0", "--admin-port", "0", "--max-num-seqs", str(SLOTS), "--ready-file", ready]
        self.process = subprocess.Popen([*command, "--log", "error", *flags])
        while not ready.exists():
            if self.process.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.05)
        self.port = json.loads(ready.read_text())["http"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def load(folder, port, *flags):
    """Runs the load generator to its end and returns its JSON."""
    result = folder / f"result-{threading.get_ident()}.json"
    subprocess.run(
        [BUILD / "millrace-loadtest", "--url", f"http://127.0.0.1:{port}", "--no-calibrate", "--quiet", "--json", result]
        + list(flags),
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return json.loads(result.read_text())


def percentile(values, share):
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else float("nan")


class Refusals(threading.Thread):
    """Sends a request at a time and keeps the times of those that are refused, in milliseconds."""

    def __init__(self, port):
        super().__init__()
        self.port, self.times, self.ends = port, [], threading.Event()

    def run(self):
        body = json.dumps({"prompt": "one more", "max_tokens": 1})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=0.5)
        while not self.ends.wait(0.05):
            try:
                if connection.sock is None:
                    connection.connect()
                begin = time.perf_counter()
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                took = (time.perf_counter() - begin) * 1e3
                answer.read()
                if answer.status == 429:
                    self.times.append(took)
            except OSError:  # it was taken, and waits for its turn
                connection.close()


def tenfold(folder, seconds):
    lengths = ["--input-len", "16", "--output-len", "32"]
    with Server(folder) as server:
        closed = load(folder, server.port, *lengths, "--concurrency", str(SLOTS), "--duration", "20s")
        served = closed["output_throughput"]
        rate = 10 * served / 32
        probe = Refusals(server.port)
        probe.start()
        open_loop = load(folder, server.port, *lengths, "--rate", f"{rate:.0f}", "--duration", f"{seconds}s", "--grace", "60s")
        probe.ends.set()
        probe.join()
    # The queue that is left at the end is served after `seconds`.
    took = open_loop["duration"]
    share = open_loop["total_output_tokens"] / took / served
    print(
        f"tenfold: {rate:.0f} requests a second for {seconds} s where {rate / 10:.0f} can be served: "
        f"{open_loop['completed']} completed, {open_loop.get('failed', 0)} refused; "
        f"{share:.1%} of a closed loop's {served:.0f} tokens a second; "
        f"{len(probe.times)} refusals timed: half within {percentile(probe.times, 0.5):.2f} ms, "
        f"99 % within {percentile(probe.times, 0.99):.2f}, all within {percentile(probe.times, 1):.2f}",
        flush=True,
    )


def light(folder, seconds):
    seconds = max(seconds, 60)  # the flood's answers take 20
    keys = folder / "keys.json"
    names = ("flood", "light")
    entries = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]
    keys.write_text(json.dumps({"keys": entries}))
    flood = ["--api-key", "flood", "--concurrency", "1000", "--input-len", "512", "--output-len", "256", "--seed", "2"]
    little = ["--api-key", "light", "--concurrency", "1", "--input-len", "256", "--output-len", "8", "--duration"]
    cost = ["--fake-token-us", "20", "--keys", str(keys), "--max-connections", "4096", "--max-num-batched-tokens", "2048"]
    with Server(folder, *cost) as server:
        alone = load(folder, server.port, *little, f"{seconds}s")
        flooded = load(folder, server.port, *flood, "--duration", f"{seconds}s", "--grace", "0s")
    (folder / "ready").unlink()
    with Server(folder, *cost) as server:
        beside = {}
        thread = threading.Thread(
            target=lambda: beside.update(load(folder, server.port, *flood, "--duration", f"{seconds}s", "--grace", "0s"))
        )
        thread.start()
        time.sleep(5)
        light_beside = load(folder, server.port, *little, f"{max(seconds - 10, 5)}s")
        thread.join()
    total = beside["output_throughput"] + light_beside["output_throughput"]
    step = beside["median_itl_ms"]
    most = 1.5 * alone["p99_ttft_ms"] + 3 * step
    print(
        f"light: first token after {alone['median_ttft_ms']:.0f} ms (99 % {alone['p99_ttft_ms']:.0f}) alone, "
        f"{light_beside['median_ttft_ms']:.0f} ({light_beside['p99_ttft_ms']:.0f}) beside a flood of 1,000 requests, "
        f"where 1.5 times and three steps of {step:.0f} ms are {most:.0f}; both get {total / flooded['output_throughput']:.1%} of the "
        f"{flooded['output_throughput']:.0f} tokens a second that the flood gets alone",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=["tenfold", "light", []], help="both by default")
    parser.add_argument("--seconds", type=int, default=60, help="of each run (60)")
    arguments = parser.parse_args()
    for name in arguments.loads or ["tenfold", "light"]:
        with tempfile.TemporaryDirectory() as folder:
            {"tenfold": tenfold, "light": light}[name](pathlib.Path(folder), arguments.seconds)


if __name__ == "__main__":
    main()
