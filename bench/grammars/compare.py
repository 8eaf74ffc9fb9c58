"""Compares Millrace's grammars with XGrammar's and llguidance's on the 500 schemas of tests/schemas: what each takes, how long a
schema takes to compile, and how long the masks along its instances take. One vocabulary, the same tokens, one thread each, by turns.

    python bench/grammars/compare.py --masks build/grammar_masks --vocabulary ggml-vocab-qwen2.gguf \\
        --tokenizer qwen2.json [--rounds 3] [--every 10] [--hostile]

needs PyPI's xgrammar, llguidance, numpy, pydantic, openai and jsonschema[format]. llama.cpp's sources hold the vocabulary
(scripts/fetch_llama_cpp.sh), and bench/cpu/write_tokenizers.py writes the tokenizer of it. Times are of the thread that computes, as the machine may have other work, and each figure is the least of the rounds.
"""
import argparse
import importlib.metadata
import json
import multiprocessing
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from schemas.corpus import corpus
from schemas.hostile import hostile

LIMIT_S = 60  # of all instances of one schema: a process that takes longer is ended


class Millrace:
    name = "Millrace"

    def __init__(self, options):
        self.process = subprocess.Popen([options.masks, options.vocabulary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.vocabulary = json.loads(self.process.stdout.readline())

    def measure(self, entry):
        self.process.stdin.write(json.dumps({"schema": entry["schema"], "valid": entry["valid"]}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class Python:
    """An engine that Python drives: compile(schema) and matcher() of what it returned, fill() and accept(token) of that."""

    def measure(self, entry):
        begin = time.thread_time()
        try:
            compiled = self.compile(json.dumps(entry["schema"]))
        except Exception as error:
            return {"compile_us": (time.thread_time() - begin) * 1e6, "error": str(error).strip().splitlines()[0][:120]}
        answer = {"compile_us": (time.thread_time() - begin) * 1e6, "accepted": [], "mask_us": []}
        for tokens in entry["tokens"]:
            matcher = self.matcher(compiled)
            answer["accepted"].append(self.follow(matcher, tokens, answer["mask_us"]))
        return answer

    def follow(self, matcher, tokens, micros):
        for at in range(len(tokens) + 1):
            begin = time.thread_time()
            self.fill(matcher)
            micros.append((time.thread_time() - begin) * 1e6)
            wanted = tokens[at] if at < len(tokens) else self.end
            if not self.allows(wanted):
                return False
            if at < len(tokens) and not self.accept(matcher, wanted):
                return False
        return True


class XGrammar(Python):
    name = "xgrammar"

    def __init__(self, vocabulary):
        import xgrammar

        self.library = xgrammar
        self.end = vocabulary["end"][0]
        tokens = [bytes.fromhex(token) for token in vocabulary["tokens"]]
        information = xgrammar.TokenizerInfo(tokens, vocab_size=vocabulary["size"], stop_token_ids=vocabulary["end"])
        self.compiler = xgrammar.GrammarCompiler(information, max_threads=1, cache_enabled=False)
        self.mask = xgrammar.allocate_token_bitmask(1, vocabulary["size"])

    def compile(self, schema):
        # Not strict: a schema that says nothing of other properties allows them.
        return self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)

    def matcher(self, compiled):
        return self.library.GrammarMatcher(compiled)

    def fill(self, matcher):
        matcher.fill_next_token_bitmask(self.mask)

    def allows(self, token):
        return bool(int(self.mask[0, token // 32]) >> (token % 32) & 1)

    def accept(self, matcher, token):
        return matcher.accept_token(token)


class LlGuidance(Python):
    name = "llguidance"

    def __init__(self, vocabulary):
        import llguidance
        import llguidance.numpy

        self.library, self.end = llguidance, vocabulary["end"][0]
        # It asks a tokenizer which tokens a text has where only one text can come, so that it needs a real one.
        self.tokenizer = llguidance.LLTokenizer(vocabulary["tokenizer"], n_vocab=vocabulary["size"], eos_token=self.end)
        self.numpy = llguidance.numpy
        self.mask = llguidance.numpy.allocate_token_bitmask(1, vocabulary["size"])

    def compile(self, schema):
        grammar = self.library.LLMatcher.grammar_from_json_schema(schema)
        matcher = self.library.LLMatcher(self.tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def matcher(self, compiled):
        return compiled.deep_copy()

    def fill(self, matcher):
        self.numpy.fill_next_token_bitmask(matcher, self.mask)

    def allows(self, token):
        return bool(int(self.mask[0, token // 32]) >> (token % 32) & 1)

    def accept(self, matcher, token):
        return matcher.consume_token(token)


def serve(kind, vocabulary, pipe):
    engine = kind(vocabulary)
    pipe.send("ready")
    while True:
        try:
            pipe.send(engine.measure(pipe.recv()))
        except EOFError:  # the comparison has ended
            return


class Apart:
    """An engine in a process of its own, which ends when it hangs or crashes, and is started again."""

    def __init__(self, kind, vocabulary):
        self.kind, self.vocabulary, self.name, self.process = kind, vocabulary, kind.name, None

    def measure(self, entry):
        context = multiprocessing.get_context("spawn")
        if self.process is None:
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=serve, args=(self.kind, self.vocabulary, other), daemon=True)
            self.process.start()
            other.close()
            self.pipe.recv()
        try:
            self.pipe.send(entry)
            if self.pipe.poll(entry.get("limit", LIMIT_S)):
                return self.pipe.recv()
            error = f"no end within {entry.get('limit', LIMIT_S)} s"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            error = "it crashed"
        self.process.kill()
        self.process.join()
        self.process = None
        return {"compile_us": entry.get("limit", LIMIT_S) * 1e6, "error": error}


def least(answers):
    """Returns one answer with the least time of each of its figures."""
    answer = dict(answers[0])
    answer["compile_us"] = min(one["compile_us"] for one in answers)
    if all("mask_us" in one for one in answers):
        answer["mask_us"] = [min(some) for some in zip(*(one["mask_us"] for one in answers))]
    return answer


def at(values, share):
    return values[min(int(share * len(values)), len(values) - 1)]


def figures(name, entries, answers):
    taken = [answer for answer in answers if "error" not in answer]
    compiled = sorted(answer["compile_us"] for answer in taken)
    masks = sorted(micros for answer in taken for micros in answer["mask_us"])
    valid = [accepted for answer in taken for accepted in answer["accepted"]]
    print(f"| {name} | {len(taken) / len(answers):.1%} | {sum(valid) / len(valid):.2%} of {len(valid)} | "
          f"{statistics.median(compiled) / 1e3:.2f} / {at(compiled, 0.99) / 1e3:.1f} / {compiled[-1] / 1e3:.1f} | "
          f"{statistics.mean(masks):.1f} / {at(masks, 0.5):.1f} / {at(masks, 0.9):.0f} / {at(masks, 0.99):.0f} / {masks[-1]:.0f} | {len(masks)} |")


def compare(engines, rounds, every):
    entries = list(corpus())[::every]
    answers = {engine.name: [] for engine in engines}
    for number, entry in enumerate(entries):
        measured = {engine.name: [] for engine in engines}
        for _ in range(rounds):
            for engine in engines:
                measured[engine.name].append(engine.measure(entry))
                if engine.name == "Millrace" and "tokens" in measured["Millrace"][-1]:
                    entry["tokens"] = measured["Millrace"][-1]["tokens"]
            entry.setdefault("tokens", [])
        for name, some in measured.items():
            answers[name].append(least(some))
    print("| engine | schemas taken | their instances accepted | compile ms p50 / p99 / max | mask µs avg / p50 / p90 / p99 / max | masks |")
    print("|---|---|---|---|---|---|")
    for engine in engines:
        figures(engine.name, entries, answers[engine.name])
    both = [i for i in range(len(entries)) if all("error" not in answers[engine.name][i] for engine in engines)]
    print(f"\nThe {len(both)} schemas that all of them take:\n")
    for engine in engines:
        figures(engine.name, entries, [answers[engine.name][i] for i in both])
    for engine in engines:
        print(f"\n{engine.name} refused, or did not accept an instance:")
        for i, answer in enumerate(answers[engine.name]):
            if "error" in answer:
                print(f"  {i} {entries[i]['source']}: {answer['error']}")
        wrong = [i for i, answer in enumerate(answers[engine.name]) if not all(answer.get("accepted", [True]))]
        print(f"  instances not accepted in {len(wrong)} schemas: {wrong[:40]}")
        slow = sorted(((max(answer["mask_us"]), i) for i, answer in enumerate(answers[engine.name]) if answer.get("mask_us")), reverse=True)
        print("  slowest masks: " + ", ".join(f"{micros:.0f} µs in {i}" for micros, i in slow[:8]))


def compare_hostile(engines, limit):
    print("\n| hostile schema | " + " | ".join(engine.name + " ms" for engine in engines) + " |\n|---|" + "---|" * len(engines))
    for name, schema in hostile():
        cells = []
        for engine in engines:
            answer = engine.measure({"schema": schema, "valid": [], "tokens": [], "limit": limit})
            cells.append(f"{answer['compile_us'] / 1e3:.1f} {'refused: ' + answer['error'][:60] if 'error' in answer else 'taken'}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--masks", required=True)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--tokenizer", required=True, help="the vocabulary's tokenizer.json, for llguidance")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="only every N-th schema: XGrammar takes a second or two for one")
    parser.add_argument("--hostile", action="store_true", help="schemas made to be slow, too")
    parser.add_argument("--only", default="Millrace,xgrammar,llguidance")
    options = parser.parse_args()
    os.environ.update({"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})
    ours = Millrace(options)
    ours.vocabulary["tokenizer"] = options.tokenizer
    others = [kind for kind in (XGrammar, LlGuidance) if kind.name in options.only]
    engines = [ours] + [Apart(kind, ours.vocabulary) for kind in others]
    versions = ", ".join(f"{kind.name} {importlib.metadata.version(kind.name)}" for kind in others)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {versions}; {ours.vocabulary['size']} tokens\n")
    compare(engines, options.rounds, options.every)
    if options.hostile:
        compare_hostile(engines, 20)


if __name__ == "__main__":
    main()
