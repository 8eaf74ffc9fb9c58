#!/usr/bin/env python3
"""Sweeps a server over numbers of clients and rates of requests, each load after each other one.

  bench/load/sweep.py                                   `millraced --device fake`, one run for each shape of SHAPES
  bench/load/sweep.py --shape fixed4                    one of them
  bench/load/sweep.py --url http://127.0.0.1:8080       a server that runs
  bench/load/sweep.py -- --device cuda --model DIR ...  a server that is started with these flags
  bench/load/sweep.py --pin 0 -- ...                    the same on one core, beside a process that keeps that core busy

What a scheduler has learned under one load must not hurt under the next. So the loads follow each other in every
order of two: a closed circle through all pairs. A visit lasts --seconds.
Prints the least and the most of each figure over the visits of a load, writes --json, and fails where
  - fewer tokens came at a load than at a smaller one of its kind: than 95 % by the medians, or 80 % at some visit, or
  - half of the first tokens at some visit came later than 2.5 times the best visit's, and 10 ms.
Server and load generator share the machine: figures of the fake device hold where neither lacks time.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
CLIENTS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
RATES = (5, 15, 35, 50, 65)

# Of a GPU that runs 8 billion parameters in FP8, with fixed costs of a step with a prompt from none to a slow host's;
# and of a mixture, whose small chunks read all experts.
SHAPES = {
    "fixed0": ("--fake-step-us", 2300, "--fake-token-us", 15, "--fake-prompt-us", 0, "--fake-token-tile", 128),
    "fixed1": ("--fake-step-us", 2300, "--fake-token-us", 15, "--fake-prompt-us", 1000, "--fake-token-tile", 128),
    "fixed4": ("--fake-step-us", 2300, "--fake-token-us", 15, "--fake-prompt-us", 4000, "--fake-token-tile", 128),
    "fixed6": ("--fake-step-us", 2300, "--fake-token-us", 15, "--fake-prompt-us", 6000, "--fake-token-tile", 128),
    "mixture": ("--fake-step-us", 3000, "--fake-token-us", 8, "--fake-prompt-us", 9000, "--fake-token-tile", 128),
}
FIGURES = ("output_throughput", "median_ttft_ms", "p99_ttft_ms", "p99_itl_ms")


class Server:
    """A millraced; `url` is that of HTTP. With `core` it shares that core with a process that is always busy."""

    def __init__(self, folder, flags, core):
        ready = folder / "ready"
        command = [BUILD / "millraced", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
        command += ["--ready-file", ready, "--log", "error", *map(str, flags)]
        pin = [] if core is None else ["taskset", "-c", str(core)]
        self.busy = None if core is None else subprocess.Popen([*pin, sys.executable, "-c", "while True: pass"])
        self.process = subprocess.Popen([*pin, *command])
        while not ready.exists():
            if self.process.poll() is not None:
                self.__exit__()
                sys.exit("the server did not start")
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{json.loads(ready.read_text())['http']}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.process, self.busy):
            if process is not None:
                process.kill()
                process.wait()


def circle(loads):
    """Returns a closed walk that takes each ordered pair of different loads once (Hierholzer, 1873)."""
    left = {a: [b for b in reversed(loads) if b != a] for a in loads}
    stack, walk = [loads[0]], []
    while stack:
        if left[stack[-1]]:
            stack.append(left[stack[-1]].pop())
        else:
            walk.append(stack.pop())
    return walk[::-1]


def visit(folder, url, load, seed, arguments):
    """Puts a load on the server and returns the result's figures."""
    kind, size = load
    result = folder / "result.json"
    command = [BUILD / "millrace-loadtest", "--url", url, "--quiet", "--json", result, "--seed", str(seed)]
    command += ["--duration", f"{arguments.seconds}s", "--grace", "0s"]
    command += ["--concurrency" if kind == "clients" else "--rate", str(size)]
    command += ["--input-len", arguments.input_len, "--output-len", arguments.output_len]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    read = json.loads(result.read_text())
    return {figure: read[figure] for figure in FIGURES}


def faults(visits):
    """Returns a line for each load that is worse than its neighbours, or than itself at another time."""
    found = []
    for kind in ("clients", "rate"):
        most = 0
        for load in sorted(load for load in visits if load[0] == kind):
            tokens = [figures["output_throughput"] for figures in visits[load]]
            firsts = [figures["median_ttft_ms"] for figures in visits[load]]
            if statistics.median(tokens) < 0.95 * most or min(tokens) < 0.8 * most:
                found.append(f"{kind} {load[1]}: {min(tokens):.0f} tokens a second at some visit, {most:.0f} at a smaller load")
            if max(firsts) > 2.5 * min(firsts) + 10:
                found.append(f"{kind} {load[1]}: the first token after {min(firsts):.0f} to {max(firsts):.0f} ms")
            most = max(most, statistics.median(tokens))
    return found


def sweep(name, folder, url, arguments):
    loads = [("clients", size) for size in arguments.clients] + [("rate", size) for size in arguments.rates]
    visits = {load: [] for load in loads}
    for seed, load in enumerate(circle(loads) if arguments.orders == "all" else loads + loads[::-1]):
        visits[load].append(visit(folder, url, load, seed + 1, arguments))
    print(f"\n{name}\n{'load':>12}  visits  tokens a second    first token, 50 %    99 %, ms        between tokens, 99 %")
    for (kind, size), of_load in visits.items():
        ranges = [(min(f[k] for f in of_load), max(f[k] for f in of_load)) for k in FIGURES]
        columns = "  ".join(f"{low:8.1f} to {high:8.1f}" for low, high in ranges)
        print(f"{kind + ' ' + str(size):>12}  {len(of_load):6}  {columns}", flush=True)
    found = faults(visits)
    print("\n".join(found) or "no load is below its neighbours", flush=True)
    return {"name": name, "visits": [{"load": list(load), "figures": of} for load, of in visits.items()], "faults": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a server that runs")
    parser.add_argument("--shape", choices=[*SHAPES], action="append", help="of the fake device; all by default")
    parser.add_argument("--clients", type=int, nargs="*", default=CLIENTS)
    parser.add_argument("--rates", type=int, nargs="*", default=RATES, help="requests a second")
    parser.add_argument("--seconds", type=float, default=5, help="of a visit (5)")
    parser.add_argument("--orders", choices=["all", "updown"], default="all", help="updown: two visits a load")
    parser.add_argument("--input-len", default="512")
    parser.add_argument("--output-len", default="uniform:64:192")
    parser.add_argument("--pin", type=int, metavar="CORE", help="the server shares this core with a busy process")
    parser.add_argument("--json", type=pathlib.Path, help="every visit's figures")
    parser.add_argument("flags", nargs="*", help="of the server, after --")
    arguments = parser.parse_args()
    fake = ("--device", "fake", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--kv-cache-memory", "4GiB")
    servers = {name: (*fake, *SHAPES[name]) for name in arguments.shape or SHAPES}
    if arguments.flags:
        servers = {" ".join(arguments.flags): arguments.flags}
    results = []
    with tempfile.TemporaryDirectory() as path:
        folder = pathlib.Path(path)
        if arguments.url:
            results.append(sweep(arguments.url, folder, arguments.url, arguments))
        else:
            for name, flags in servers.items():
                with Server(folder, flags, arguments.pin) as server:
                    results.append(sweep(name, folder, server.url, arguments))
                (folder / "ready").unlink()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.exit(1 if any(result["faults"] for result in results) else 0)


if __name__ == "__main__":
    main()
