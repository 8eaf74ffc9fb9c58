"""Measures Millrace and llama.cpp alternately and writes the comparison down (bench/README.md). Run by bench/cpu/run.sh."""
import argparse
import datetime
import gc
import json
import pathlib
import statistics
import sys
import time

import chat
import figures
import machine
import sides
import texts
from machine import BenchError

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1"  # in requests; llama.cpp takes any
START_PROMPT = [{"role": "user", "content": "Say hello."}]


def offline(side, _options, _run):
    return side.offline(side.model)


def of_file(name):
    """Returns a part: decode and prefill of the file of that option."""
    def measure(side, options, _run):
        return {f"{name}_{figure}": value for figure, value in side.offline(getattr(options, name)).items()}
    return measure


def serve(side, options, run):
    """Runs a number of concurrent chat streams against one fresh server; returns {figure: value}. In a run each side gets the
    same requests."""
    prompts = chat.Prompts(seed=run)

    def requests(count, max_tokens):
        return [chat.request(MODEL_NAME, prompts.take(), max_tokens) for _ in range(count)]

    found = {}
    with side.server() as server:
        warm_up = 16
        server.first_answer(requests(1, warm_up)[0]).check(warm_up, chat.PROMPT_TOKENS)
        for streams in options.streams:
            data = requests(streams, chat.ANSWER_TOKENS)
            gc.collect()
            gc.disable()
            cpu, began = time.process_time(), time.perf_counter()
            answers = chat.ask(server.port, data)
            cpu, ended = time.process_time() - cpu, time.perf_counter()
            gc.enable()
            for answer in answers:
                answer.check(chat.ANSWER_TOKENS, chat.PROMPT_TOKENS)
            found |= {f"serve_{streams}_{name}": value for name, value in stream_figures(answers).items()}
            found[f"serve_{streams}_client_percent"] = 100 * cpu / (ended - began) / machine.CORES
        side.check_prefix_hits(server)
    return found


def stream_figures(answers):
    tokens = sum(answer.usage["completion_tokens"] for answer in answers)
    seconds = max(answer.text_times[-1] for answer in answers) - min(answer.sent for answer in answers)
    first = [1e3 * (answer.text_times[0] - answer.sent) for answer in answers]
    gaps = [1e3 * (later - earlier) for answer in answers
            for earlier, later in zip(answer.text_times, answer.text_times[1:])]
    return {"tok_s": tokens / seconds, "ttft_p50_ms": statistics.median(first), "ttft_max_ms": max(first),
            **{f"itl_p{share}_ms": figures.percentile(gaps, share) for share in (50, 95, 99)},
            "tokens_per_event": tokens / sum(len(answer.text_times) for answer in answers)}


def start(side, _options, _run):
    """Measures the time from the creation of the process to the first token of a single chat, and the memory it holds then."""
    with side.server() as server:
        answer = server.first_answer(chat.request(MODEL_NAME, START_PROMPT, max_tokens=1, temperature=0))
        answer.check(max_tokens=1)
        return {"start_ms": 1e3 * (answer.text_times[0] - server.started),
                "start_rss_mb": machine.resident_mb(server.process.pid)}


def scheduler(side, options, _run):
    cases = side.scheduler()
    if side.key == "ours":
        options.scheduler_cases.append(cases)
    medians = [[median for median, _p99 in case.values()] for case in cases.values()]
    return {"scheduler_us": max(max(case) for case in medians),
            "scheduler_growth": max(case[max(case)][0] / case[min(case)][0] for case in cases.values())}


def quantize(side, options, _run):
    """Decode of one model with float weights, and quantized while it is loaded."""
    kinds = {"float": (), "int8": ("--weight-bits", "8"), "int4": ("--weight-bits", "4")}
    return {f"{kind}_{figure}": value for kind, flags in kinds.items()
            for figure, value in side.offline(options.float_folder, *flags).items() if figure.startswith("decode")}


def tokenizer(side, options, _run):
    texts_of = texts.write(options.folder)
    found = {}
    for name in texts.VOCABULARIES:
        vocabulary = options.tokenizers / f"{name}.json"
        for text in ("prose", "code"):
            found[f"tokenizer_{name}_{text}"] = side.tokenizer_rate(vocabulary, texts_of[text])
        if side.key in BUILDS:
            found[f"tokenizer_{name}_growth"] = max(
                side.tokenizer_growth(vocabulary, *(texts_of[f"{text}_{size}"] for size in texts.SIZES)) for text in texts.REPEATED)
    return found


BUILDS = ("ours", "baseline")
SERVERS = (*BUILDS, "q4_1", "q4_0")

# Other models, a single file each: mixed K-quants, a mixture of experts, gated delta rules, short convolutions.
FILES = ("gemma", "experts", "qwen35", "lfm25")

# name: (measuring function, sides that have it, discarded runs, least runs unless --quick)
PARTS = {"offline": (offline, SERVERS, 0, 1), **{name: (of_file(name), (*BUILDS, "q4_1"), 0, 1) for name in FILES},
         "serve": (serve, SERVERS, 0, 1),
         "quantize": (quantize, BUILDS, 0, 1), "start": (start, SERVERS, 1, 5), "scheduler": (scheduler, BUILDS, 0, 1),
         "tokenizer": (tokenizer, (*BUILDS, "hf"), 0, 1)}


class Comparison:
    def __init__(self, options):
        self.options = options
        self.samples = {side.key: {} for side in options.sides}
        self.disturbed = []
        self.foreign = []  # percent of the machine used by others, for each counted run

    def measure(self, part):
        function, have_it, discarded, least_runs = PARTS[part]
        taking_part = [side for side in self.options.sides if side.key in have_it]
        runs = 2 if self.options.quick else max(self.options.runs, least_runs)
        for run in range(-discarded, runs):
            # The order of the sides rotates between runs.
            for turn in range(len(taking_part)):
                side = taking_part[(run + turn) % len(taking_part)]
                title = f"{part}, {side.name}, " + (f"run {run + 1} of {runs}" if run >= 0 else "not counted")
                values = self.quiet_run(title, lambda: function(side, self.options, run))
                for key, value in values.items() if run >= 0 else ():
                    self.samples[side.key].setdefault(key, []).append(value)

    def quiet_run(self, title, measure):
        """Returns the result of a run during which others left the machine idle. If a few runs in a row are disturbed, it
        returns the last result, and the comparison is void."""
        for attempt in range(self.options.attempts):
            if not machine.wait_until_idle(self.options.max_foreign, self.options.wait):
                raise BenchError(f"others use the machine: in {self.options.wait:.0f} s there were no two seconds in a row in "
                                 f"which they took less than {self.options.max_foreign:g} % of it")
            watch = machine.Watch()
            values = measure()
            quiet = watch.stop().quiet(self.options.max_foreign)
            print(f"{title}: {watch.seconds:.1f} s, others took {watch.percent:.1f} % of the CPU"
                  f"{'' if quiet else ': DISTURBED'}", file=sys.stderr)
            if quiet:
                break
        else:
            self.disturbed.append(f"{title}: disturbed {attempt + 1} times, the last by {watch.percent:.1f} % of the CPU")
        self.foreign.append(watch.percent)
        return values


def parse_options():
    parser = argparse.ArgumentParser(prog="make bench-cpu ARGS=...", description="Millrace and llama.cpp side by side.")
    parser.add_argument("--quick", action="store_true", help="two runs of each, 16 streams only: a look, not a figure to quote")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated (default: %(default)s)")
    parser.add_argument("--sides", help="who takes part (default: ours and all peers, or ours and the baseline)")
    parser.add_argument("--baseline", type=pathlib.Path, metavar="BUILD_FOLDER",
                        help="compare with another build of Millrace instead of with peers")
    parser.add_argument("--runs", type=int, default=5, help="of each side and part, at least 5 of starts (default: %(default)s)")
    parser.add_argument("--max-foreign", type=float, default=3, metavar="PERCENT",
                        help="of the machine's CPU that others may take in a run (default: %(default)s)")
    parser.add_argument("--wait", type=float, default=600, metavar="SECONDS", help="for an idle machine (default: %(default)s)")
    parser.add_argument("--attempts", type=int, default=4, help="at a run that others disturb (default: %(default)s)")
    parser.add_argument("--other-machine", action="store_true",
                        help="this is not the machine of llama.cpp's known figures: do not hold it to them")
    parser.add_argument("--keep-known", action="store_true",
                        help="of a whole run that is not void: write down what peers reach of whom nothing is known yet")
    parser.add_argument("--peer", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--model", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--q4-0", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    for name in FILES:
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--float-folder", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--tokenizers", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.parts = options.only.split(",")
    peers = [key for key in sides.NAMES if key != "baseline"]
    keys = (options.sides or ",".join(BUILDS if options.baseline else peers)).split(",")
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"--only: {unknown}; allowed: {', '.join(PARTS)}")
    if unknown := [key for key in keys if key not in sides.NAMES]:
        parser.error(f"--sides: {unknown}; allowed: {', '.join(sides.NAMES)}")
    if "baseline" in keys and not options.baseline:
        parser.error("--sides: baseline needs --baseline BUILD_FOLDER")
    if options.keep_known and (options.quick or options.other_machine or options.only != ",".join(PARTS)
                               or keys != peers):
        parser.error("--keep-known: only of all parts and sides, and without --quick and --other-machine: what is known already "
                     "says whether the machine is at its best")
    if options.runs < 1 or options.attempts < 1:
        parser.error("--runs and --attempts are at least 1")
    options.folder = folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    make = {"ours": lambda: sides.Ours(options.model, ROOT / "build", folder),
            "baseline": lambda: sides.Ours(options.model, options.baseline.resolve(), folder, "baseline"),
            "q4_1": lambda: sides.Peer("q4_1", options.model, options.peer, folder),
            "q4_0": lambda: sides.Peer("q4_0", options.q4_0, options.peer, folder),
            "hf": lambda: sides.HuggingFace(options.model, options.python, folder)}
    options.sides = [make[key]() for key in keys]
    options.streams = [16] if options.quick else [16, 8, 4, 1]
    options.scheduler_cases = []
    return options


def print_scheduler(cases):
    print("\nscheduler, us of plan + commit with 256 rows at 4k context, last run: median (p99) by sequences waiting")
    for name, case in cases.items():
        print(f"  {name:10}" + "".join(f"  {waiting:>7,}: {median:6.1f} ({p99:.1f})" for waiting, (median, p99) in case.items()))


def main():
    options = parse_options()
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    versions = {side.name: side.version() for side in options.sides}
    comparison = Comparison(options)
    failure = None
    try:
        for part in options.parts:
            comparison.measure(part)
    except BenchError as error:
        failure = str(error)

    rows = figures.summarize(comparison.samples)
    void = comparison.disturbed + ([] if options.other_machine else list(figures.slow_peers(rows)))
    unknown = figures.unknown_peers(rows)
    print(f"\n{machine.describe()}; {when}; {sides.THREADS} threads each")
    for side in options.sides:
        print(f"{side.name}: {versions[side.name]}")
        for purpose, command in side.commands.items():
            print(f"  {purpose}: {command}")
    foreign = comparison.foreign or [0]
    print(f"others took {statistics.median(foreign):.1f} % of the CPU (median of the runs), {max(foreign):.1f} % at most\n")
    print(figures.table(rows))
    if options.scheduler_cases:
        print_scheduler(options.scheduler_cases[-1])
    for line in void:
        print(f"VOID: {line}")
    if failure:
        print(f"FAILED: {failure}")
    if unknown and options.keep_known and not void and not failure:
        figures.keep_known(unknown)
        print(f"KEPT in {figures.KNOWN_PATH.name}, to hold later runs to: {', '.join(unknown)}")
    elif unknown:
        print(f"UNKNOWN, so this run does not say whether the peer was at its best: {', '.join(unknown)}")
    report = {"when": when, "machine": machine.describe(), "threads": int(sides.THREADS), "quick": options.quick,
              "versions": versions, "commands": {side.name: side.commands for side in options.sides},
              "foreign_percent": {"median": statistics.median(foreign), "max": max(foreign)},
              "figures": rows, "scheduler": options.scheduler_cases, "void": void, "unknown": unknown, "failure": failure}
    path = ROOT / "build" / "bench-cpu.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten: {path.relative_to(ROOT)}")
    return 1 if void or failure else 0


if __name__ == "__main__":
    sys.exit(main())
