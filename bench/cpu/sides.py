"""The compared programs: how each is run, and its own metrics."""
import contextlib
import json
import statistics
import time

import chat
import machine
import texts
from machine import BenchError
from texts import ROOT

THREADS = "2"
STREAMS = 16
TIMES = "2"  # repetitions of tokenizing a text; the fastest counts
KV_TOKENS = "8192"
KV_MEMORY = "180MiB"  # as many positions of the default model, in 16-bit floats, as llama.cpp has
NAMES = {"ours": "Millrace", "q4_1": "llama.cpp Q4_1", "q4_0": "llama.cpp Q4_0", "hf": "HF tokenizers", "baseline": "baseline"}


class Side:
    """A program under comparison. `folder` receives its logs."""

    def __init__(self, key, model, folder):
        self.key, self.name, self.model = key, NAMES[key], model
        self.log = folder / f"{key}.log"
        self.log.write_bytes(b"")
        self.commands = {}  # by purpose; shown in the report

    def run(self, purpose, command):
        self.commands[purpose] = " ".join(map(str, command))
        return machine.output_of(command, self.log)

    @contextlib.contextmanager
    def server(self):
        """Runs a server for the duration of the block. It may not be ready yet."""
        port = machine.free_port()
        command = self.server_command(str(port))
        self.commands["server"] = " ".join(map(str, command))
        with open(self.log, "ab") as log:
            server = Server(self, machine.start(command, log, stdout=log), port)
        try:
            yield server
        finally:
            server.stop()

    def check_prefix_hits(self, server):
        """Raises BenchError if the server's metrics report prompt tokens from a cache."""

    def tokenizer_rate(self, vocabulary, text):
        """Returns the MB/s of a tokenizer.json on the text of a file."""
        return texts.megabytes(text) / float(self.run("tokenizer", self.tokenizer_command(vocabulary, text)))


class Server:
    def __init__(self, side, process, port):
        self.side, self.process, self.port = side, process, port
        self.started = time.perf_counter()

    def check_alive(self):
        if self.process.poll() is not None:
            raise BenchError(f"{self.side.name} ended with {self.process.returncode}; see {self.side.log}")

    def first_answer(self, data):
        return chat.ask_when_up(self.port, data, self.check_alive)

    def stop(self):
        self.process.terminate()
        machine.wait(self.process, timeout=60)


class Ours(Side):
    """Millrace out of a build folder; the key tells this tree's from another's, which it is compared with."""

    def __init__(self, model, build, folder, key="ours"):
        super().__init__(key, model, folder)
        self.build = build

    def version(self):
        try:
            git = ["git", "-C", self.build.parent, "describe", "--always", "--dirty", "--abbrev=12"]
            return f"commit {machine.output_of(git, self.log).strip()}"
        except (BenchError, FileNotFoundError):
            return "of no known commit: this is no git checkout"

    def server_command(self, port):
        return [self.build / "millraced", "--model", self.model, "--threads", THREADS, "--max-num-seqs", str(STREAMS),
                "--kv-cache-memory", KV_MEMORY, "--http-port", port, "--grpc-port", "0", "--admin-port", "0"]

    def offline(self, model, *flags):
        report = json.loads(self.run(" ".join(("offline", *flags)), [
            self.build / "executors/executor_bench", "--model", model, "--threads", THREADS, "--repeat", "3",
            "--batches", f"1,{STREAMS}", *flags, "--json"]))
        return {"decode_1": report["decode_tok_s_batch_1"], "decode_16": report["decode_tok_s_batch_16"],
                "prefill_512": report["prefill_512_tok_s"]}

    def check_prefix_hits(self, server):
        hits = [float(line.rsplit(" ", 1)[1]) for line in chat.get(server.port, "/metrics").splitlines()
                if line.startswith("vllm:prefix_cache_hits_total")]
        if len(hits) != 1 or hits[0] != 0:
            raise BenchError(f"{self.name}: vllm:prefix_cache_hits_total is {hits}, wanted one that is 0")

    def scheduler(self):
        """Returns the microseconds of Plan and Commit together, {case: {waiting sequences: (median, p99)}}."""
        report = json.loads(self.run("scheduler", [self.build / "scheduler/scheduler_bench", "--benchmark_format=json"]))
        cases = {}
        for row in report["benchmarks"]:
            case, waiting = row["name"].split("/")[1:3]
            cases.setdefault(case, {})[int(waiting)] = row["median_us"], row["p99_us"]
        return cases

    def tokenizer_command(self, vocabulary, text):
        return [self.build / "tokenize_lines", vocabulary, text, "seconds", TIMES]

    def tokenizer_growth(self, vocabulary, half, whole):
        """Returns the time of a text divided by that of its half."""
        return 2 * self.tokenizer_rate(vocabulary, half) / self.tokenizer_rate(vocabulary, whole)


class HuggingFace(Side):
    """The tokenizers that transformers and vLLM use, on one thread."""

    def __init__(self, model, python, folder):
        super().__init__("hf", model, folder)
        self.python = python

    def version(self):
        return machine.output_of([self.python, "-c", "import tokenizers; print(tokenizers.__version__)"], self.log).strip()

    def tokenizer_command(self, vocabulary, text):
        return [self.python, ROOT / "bench/cpu/hf_tokenizer.py", vocabulary, text, TIMES]


class Peer(Side):
    def __init__(self, key, model, programs, folder):
        super().__init__(key, model, folder)
        self.programs = programs

    def version(self):
        output = machine.output_of([self.programs / "llama-server", "--version"], self.log, with_errors=True)
        return output.splitlines()[0].removeprefix("version: ")

    def server_command(self, port):
        return [self.programs / "llama-server", "-m", self.model, "-t", THREADS, "-np", str(STREAMS), "-cb", "-c", KV_TOKENS,
                "--no-cache-prompt", "--host", "127.0.0.1", "--port", port]

    def _llama_bench(self, purpose, model, *shape):
        (row,) = json.loads(self.run(purpose, [self.programs / "llama-bench", "-m", model, "-t", THREADS, *shape,
                                               "-r", "3", "-o", "json"]))
        return statistics.median(row["samples_ts"])

    def offline(self, model):
        # For one sequence llama-bench is the faster of llama.cpp's two programs, so it is the one compared.
        batched = self.run("decode 16", [self.programs / "llama-batched-bench", "-m", model, "-t", THREADS, "-c", KV_TOKENS,
                                         "-npp", "128", "-ntg", "128", "-npl", str(STREAMS), "--output-format", "jsonl"])
        (row,) = [json.loads(line) for line in batched.splitlines() if line.startswith("{")]
        return {"decode_1": self._llama_bench("decode 1", model, "-p", "0", "-n", "128", "-d", "128"), "decode_16": row["speed_tg"],
                "prefill_512": self._llama_bench("prefill", model, "-p", "512", "-n", "0")}
