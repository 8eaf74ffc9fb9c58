"""The soak: random clients of both protocols on real servers, and a look at what is left after they have gone.

    python tests/soak/soak.py [--minutes 30] [--requests N] [--seed N] [--targets fake,cpu,embed,cuda] [--clients 10]
    python tests/soak/soak.py --attacks all [--seconds 60]   attacks beside a light client instead (attacks.py)

Every client draws its requests from its own generator, seeded by --seed, the target and its number: the same seed sends the same
requests, though not at the same moments. --requests makes each client send so many and no more, instead of going on for a time. The
work is divided into rounds, and between two rounds all clients leave and each server must come to rest: every block free, nothing
running, no connection. The first third is for warming up. Ends with status 1 and a list if anything was wrong.
"""
import argparse
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import urllib.request

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # of this process's clients, which tell of each GOAWAY
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent)]

from attacks import names_of, run as run_attacks  # noqa: E402
from clients import GrpcClient, Tally, over_http, perform  # noqa: E402
from conftest import Server  # noqa: E402
from draw import MODELS, Request, draw  # noqa: E402
from millrace_grpc import pb  # noqa: E402
from rest import come_to_rest, inconsistencies, log_faults  # noqa: E402

MOST_GROWTH = 0.02  # of the resident memory, from the end of the first third to the last rest
LEAST_GROWTH = 2 << 20  # bytes that say nothing: the allocator's arenas of a small process
ROUNDS = 6
GRPC_POOLS = {"default-executo", "resolver-execut", "grpc_global_tim"}  # gRPC's threads that come with load, two for each core at most

# Small caches, so that sequences are preempted and all memory has been used after the first round.
FLAGS = {"fake": ["--device", "fake", "--fake-step-us", "2000", "--fake-token-us", "20", "--kv-cache-memory", "4MiB"],
         "cpu": ["--kv-cache-memory", "48MiB", "--max-num-seqs", "24", "--max-waiting", "200"],
         "embed": []}
FLAGS["cuda"] = ["--device", "cuda", *FLAGS["cpu"]]
VARIABLES = {"cpu": "MILLRACE_MODEL", "cuda": "MILLRACE_MODEL", "embed": "MILLRACE_MINILM"}
TENANTS = [{"name": "alice"}, {"name": "bob", "share": 300}, {"name": "low", "priority": [3, 9]}, {"name": "few", "requests_per_minute": 60},
           {"name": "one", "max_streams": 4, "tokens_per_minute": 20000}, {"name": "operator", "scopes": ["metrics", "admin"]}]


def write_keys(path, without=()):
    entries = [{**tenant, "sha256": hashlib.sha256(f"key-{tenant['name']}".encode()).hexdigest()} for tenant in TENANTS if tenant["name"] not in without]
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": entries}))
    new.replace(path)


class Target:
    """A server, its clients and what they saw."""

    def __init__(self, name, folder, options):
        self.name, self.options = name, options
        self.folder = folder / name
        self.folder.mkdir()
        self.keys = self.folder / "keys.json"
        write_keys(self.keys)
        flags = FLAGS[name] + (["--model", os.environ[VARIABLES[name]]] if name in VARIABLES else [])
        self.server = Server(self.folder, *flags, "--keys", str(self.keys), "--log-format", "json")
        self.tally = Tally()
        self.rests = []
        self.generators = [random.Random(f"{options.seed}/{name}/{number}") for number in range(options.clients)]
        self.known = {}  # answers to the requests that are repeated

    def client(self, generator, goes_on):
        grpc_client = GrpcClient(self.server)
        while goes_on():
            if generator.random() < 0.03:
                self.repeat(generator.randrange(8))
                continue
            perform(self.server, grpc_client, draw(generator, self.name, pb), self.tally)
        grpc_client.close()

    def repeat(self, number):
        """The same request has the same answer, whatever else runs."""
        fields = {"input": f"text {number}"} if MODELS[self.name][2] else \
            {"prompt": f"Tell me about the number {number}.", "max_tokens": 40, "seed": number, "temperature": 0.8 * (number % 2)}
        request = Request("http", "/v1/embeddings" if MODELS[self.name][2] else "/v1/completions", fields, "alice")
        answer = json.loads(self.ask(request))
        got = answer["data"][0]["embedding"] if MODELS[self.name][2] else answer["choices"][0]["text"]
        if self.known.setdefault(number, got) != got:
            self.tally.blame(request, f"another answer than before: {got!r} and {self.known[number]!r}"[:1000])

    def ask(self, request):
        headers = {"Authorization": f"Bearer key-{request.key}", "Content-Type": "application/json"}
        post = urllib.request.Request(self.server.http + request.path, json.dumps(request.body).encode(), headers)
        with urllib.request.urlopen(post, timeout=120) as response:
            self.tally.add("repeated", 1)
            return response.read()

    def operate(self, stop):
        """Probes, scrapes, changes keys, and lets the settings be read again. A probe that fails is wrong."""
        generator = random.Random(f"{self.options.seed}/{self.name}/operator")
        while not stop.wait(0.5):
            for path, key in (("/livez", ""), ("/readyz", ""), ("/metrics", "operator"), ("/admin/status", "operator")):
                get = urllib.request.Request(self.server.admin + path, headers={"Authorization": f"Bearer key-{key}"} if key else {})
                try:
                    with urllib.request.urlopen(get, timeout=30) as response:
                        response.read()
                except OSError as error:
                    self.tally.blame(path, f"the operator got {error}")
            draw_of = generator.random()
            if draw_of < 0.1:
                write_keys(self.keys, without=generator.sample(["bob", "low", "few", "one"], 1))
            elif draw_of < 0.3:
                write_keys(self.keys)
            elif draw_of < 0.35:
                self.server.signal(signal.SIGHUP)
            if self.server.process.poll() is not None:
                self.tally.blame("millraced", f"ended with {self.server.process.returncode}")
                return

    def end(self):
        """Ends the server under streams, each of which must have its last event."""
        request = Request("http", "/v1/completions", {"prompt": "x", "max_tokens": 100, "ignore_eos": True, "stream": True}, "alice")
        streams = [] if MODELS[self.name][2] else \
            [threading.Thread(target=perform, args=(self.server, None, request, self.tally)) for _ in range(4)]
        for stream in streams:
            stream.start()
        time.sleep(0.3)
        self.server.signal()
        for stream in streams:
            stream.join()
        status = self.server.wait(120)
        if status != 0:
            self.tally.blame("SIGTERM", f"millraced ended with {status}")


def run_round(targets, options, seconds, requests):
    """Runs all clients, for a time or for so many requests each, until they have left."""
    stop = threading.Event()
    end = time.monotonic() + seconds

    def goes_on_for():
        left = iter(range(requests))
        return lambda: next(left, None) is not None if requests else time.monotonic() < end

    clients = [threading.Thread(target=target.client, args=(generator, goes_on_for())) for target in targets for generator in target.generators]
    operators = [threading.Thread(target=target.operate, args=(stop,)) for target in targets]
    for thread in clients + operators:
        thread.start()
    for thread in clients:
        thread.join()
    stop.set()
    for thread in operators:
        thread.join()


def rest_of(targets):
    for target in targets:
        write_keys(target.keys)
        try:
            target.rests.append(come_to_rest(target.server))
        except (TimeoutError, OSError) as error:
            target.tally.blame("rest", str(error))
            continue
        for what in inconsistencies(target.rests[-1], target.tally.complete, MODELS[target.name][2]):
            target.tally.blame("metrics", what)
        print(f"{time.strftime('%H:%M:%S')}  {target.name:6} {sum(target.tally.outcomes.values()):8} requests, {target.rests[-1]}, "
              f"{len(target.tally.wrong)} wrong", flush=True)


def judge_rests(target, compare_memory):
    if len(target.rests) < 2:
        return
    first, last = target.rests[(len(target.rests) - 1) // 3], target.rests[-1]
    for what in ("descriptors", "threads"):
        more = getattr(last, what) - getattr(first, what)
        if more := {name: count for name, count in more.items() if name not in GRPC_POOLS}:
            target.tally.blame(what, f"more than at rest before: {more}")
    if compare_memory and abs(last.rss - first.rss) > max(MOST_GROWTH * first.rss, LEAST_GROWTH):
        target.tally.blame("memory", f"{first} became {last}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--requests", type=int, default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--targets", default="fake,cpu,embed", type=lambda names: names.split(","))
    parser.add_argument("--clients", type=int, default=10, help="of each target")
    parser.add_argument("--attacks", type=names_of, help="all, or names separated by commas: only these, beside a light client")
    parser.add_argument("--seconds", type=float, default=60, help="of each attack")
    options = parser.parse_args()
    if options.attacks:
        return 1 if run_attacks(options.attacks, options.seconds) else 0
    print(f"seed {options.seed}: --seed {options.seed} sends the same requests again", flush=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="millrace-soak-"))
    targets = []
    rounds = 2 if options.requests else ROUNDS
    try:
        for name in options.targets:
            targets.append(Target(name, folder, options))
        for _ in range(rounds):
            run_round(targets, options, options.minutes * 60 / rounds, options.requests // rounds)
            rest_of(targets)
        for target in targets:
            judge_rests(target, compare_memory=not options.requests)
            target.end()
            for line in log_faults(target.server):
                target.tally.blame("log", line[:1000])
    finally:
        for target in targets:
            target.server.stop()
    for target in targets:
        outcomes = ", ".join(f"{name} {count}" for name, count in sorted(target.tally.outcomes.items()))
        print(f"{target.name}: {outcomes}")
        for wrong in target.tally.wrong[:20]:
            print(f"  WRONG {wrong}")
    wrong = sum(len(target.tally.wrong) for target in targets)
    print(f"{wrong} wrong; logs in {folder}" if wrong else "nothing wrong")
    if not wrong:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
