"""The measured figures, their bars, and the report of the comparison."""
import dataclasses
import json
import pathlib
import statistics

import texts

# The peers' figures on the reference machine (2 cores of AMD EPYC Zen 4), {figure: {peer: value}}. A run in which a peer does
# not reach this share of them is void.
KNOWN_PATH = pathlib.Path(__file__).with_name("known.json")
KNOWN = json.loads(KNOWN_PATH.read_text())
KNOWN_SHARE = 0.85
# The share of another build of Millrace that this one must reach in every figure (--baseline).
BASELINE_SHARE = 0.97


@dataclasses.dataclass(frozen=True)
class Figure:
    key: str
    label: str
    unit: str
    higher_is_better: bool = True
    ratio_bars: dict = dataclasses.field(default_factory=dict)  # our value over each peer's
    ratio_aim: float | None = None  # relative to q4_1
    bar: float | None = None  # absolute, for our value
    aim: float | None = None

    def at_least(self, value, bar):
        return value >= bar if self.higher_is_better else value <= bar

    def known_limit(self, peer):
        known = KNOWN.get(self.key, {}).get(peer)
        return known and (known * KNOWN_SHARE if self.higher_is_better else known / KNOWN_SHARE)


def _serve(streams):
    """The figures of a number of concurrent chat streams. Only 16 streams have bars."""
    bars = streams == 16
    name = f"serve_{streams}"
    yield Figure(f"{name}_tok_s", f"{streams} chat stream{'s' * (streams > 1)}, output", "tok/s",
                 ratio_bars={"q4_1": 4.5, "q4_0": 2.2} if bars else {}, ratio_aim=6 if bars else None)
    yield Figure(f"{name}_ttft_p50_ms", "  TTFT p50", "ms", higher_is_better=False,
                 ratio_bars={"q4_1": 1 / 4, "q4_0": 1 / 2} if bars else {}, ratio_aim=1 / 8 if bars else None)
    yield Figure(f"{name}_ttft_max_ms", "  TTFT max", "ms", higher_is_better=False)
    for share in (50, 95, 99):
        yield Figure(f"{name}_itl_p{share}_ms", f"  ITL p{share}", "ms", higher_is_better=False)
    yield Figure(f"{name}_tokens_per_event", "  tokens an event", "")
    yield Figure(f"{name}_client_percent", "  client's CPU, of the machine", "%", higher_is_better=False)


def _quantized():
    """The figures of a model with BF16 weights, unchanged and with --quantization: speed follows the bytes."""
    for kind in ("float", "int8", "int4"):
        title = "BF16 folder" if kind == "float" else f"BF16 folder, {kind}"
        yield Figure(f"{kind}_decode_1", f"{title}, decode, 1 sequence", "tok/s")
        yield Figure(f"{kind}_decode_16", "  decode, 16 sequences", "tok/s")


def _tokenizer(vocabulary, label):
    yield Figure(f"tokenizer_{vocabulary}_prose", f"tokenizer, {label}: prose, one thread", "MB/s", ratio_bars={"hf": 1})
    yield Figure(f"tokenizer_{vocabulary}_code", "  code", "MB/s", ratio_bars={"hf": 1})
    yield Figure(f"tokenizer_{vocabulary}_growth", "  1 MiB of a, spaces, a1a1... against half", "x",
                 higher_is_better=False, bar=2.5)


FIGURES = [
    Figure("decode_1", "decode, 1 sequence", "tok/s", ratio_bars={"q4_1": 1.8, "q4_0": 1.15}, ratio_aim=2.4),
    Figure("decode_16", "decode, 16 sequences", "tok/s", ratio_bars={"q4_1": 5, "q4_0": 2.5}, ratio_aim=7),
    Figure("prefill_512", "prefill 512", "tok/s", ratio_bars={"q4_1": 4, "q4_0": 1.5}, ratio_aim=6),
    Figure("gemma_decode_1", "Gemma 3 270M Q4_K_M, decode, 1 sequence", "tok/s", ratio_bars={"q4_1": 1.3}),
    Figure("gemma_decode_16", "  decode, 16 sequences", "tok/s", ratio_bars={"q4_1": 3}),
    Figure("gemma_prefill_512", "  prefill 512", "tok/s"),
    Figure("experts_decode_1", "OLMoE's widths, 4 layers, Q4_K, decode, 1 sequence", "tok/s", ratio_bars={"q4_1": 1.3}),
    Figure("experts_decode_16", "  decode, 16 sequences", "tok/s", ratio_bars={"q4_1": 2.5}),
    Figure("experts_prefill_512", "  prefill 512", "tok/s", ratio_bars={"q4_1": 3}),
    Figure("qwen35_decode_1", "Qwen3.5-0.8B's shapes, Q4_K, decode, 1 sequence", "tok/s", ratio_bars={"q4_1": 1.4}),
    Figure("qwen35_decode_16", "  decode, 16 sequences", "tok/s", ratio_bars={"q4_1": 3}),
    Figure("qwen35_prefill_512", "  prefill 512", "tok/s", ratio_bars={"q4_1": 3}),
    Figure("lfm25_decode_1", "LFM2.5-1.2B's shapes, Q4_K, decode, 1 sequence", "tok/s", ratio_bars={"q4_1": 1.4}),
    Figure("lfm25_decode_16", "  decode, 16 sequences", "tok/s", ratio_bars={"q4_1": 3}),
    Figure("lfm25_prefill_512", "  prefill 512", "tok/s", ratio_bars={"q4_1": 3}),
    *(figure for streams in (16, 8, 4, 1) for figure in _serve(streams)),
    Figure("start_ms", "start to first token", "ms", higher_is_better=False, bar=300, aim=150),
    Figure("start_rss_mb", "  RSS after it", "MB", higher_is_better=False, bar=250),
    *_quantized(),
    Figure("scheduler_us", "scheduler: plan + commit", "us", higher_is_better=False, bar=200, aim=100),
    Figure("scheduler_growth", "  100,000 waiting against 10", "x", higher_is_better=False, bar=1.5),
    *(figure for name, label in texts.VOCABULARIES.items() for figure in _tokenizer(name, label)),
]


def percentile(values, share):
    """Returns a percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


def summarize(samples):
    """Returns one row per measured figure, ready for JSON. `samples` is {side: {figure: [value of each run]}}."""
    rows = []
    for figure in FIGURES:
        runs = {side: values[figure.key] for side, values in samples.items() if figure.key in values}
        if not runs:
            continue
        medians = {side: statistics.median(values) for side, values in runs.items()}
        row = {"figure": figure.key, "label": figure.label.strip(), "unit": figure.unit, "median": medians, "runs": runs}
        if "ours" in medians:
            ours = medians.pop("ours")
            row["ratio"] = {peer: ours / value for peer, value in medians.items() if value}
            medians["ours"] = ours
            row["bars"] = dict(_judge(figure, ours, row["ratio"]))
        rows.append(row)
    return rows


def _judge(figure, ours, ratio):
    for peer, bar in figure.ratio_bars.items():
        if peer in ratio:
            yield f"ratio to {peer}", {"value": ratio[peer], "bar": bar, "pass": figure.at_least(ratio[peer], bar)}
    if "baseline" in ratio:
        bar = BASELINE_SHARE if figure.higher_is_better else 1 / BASELINE_SHARE
        yield "ratio to baseline", {"value": ratio["baseline"], "bar": bar, "pass": figure.at_least(ratio["baseline"], bar)}
    if figure.ratio_aim and "q4_1" in ratio:
        yield "aim, ratio to q4_1", {"value": ratio["q4_1"], "bar": figure.ratio_aim,
                                     "pass": figure.at_least(ratio["q4_1"], figure.ratio_aim)}
    for name, bar in (("bar", figure.bar), ("aim", figure.aim)):
        if bar is not None:
            yield name, {"value": ours, "bar": bar, "pass": figure.at_least(ours, bar)}


def slow_peers(rows):
    """Returns a line for each peer's median that falls short of its known figure."""
    for row in rows:
        figure = next(figure for figure in FIGURES if figure.key == row["figure"])
        for peer, value in row["median"].items():
            limit = figure.known_limit(peer)
            if limit and not figure.at_least(value, limit):
                yield (f"{peer}: {row['figure']} is {_number(value)} {figure.unit}; known: {KNOWN[figure.key][peer]}, "
                       f"allowed: {_number(limit)}")


def unknown_peers(rows):
    """Returns {figure: {peer: its median}} for figures that a bar uses and whose known value is missing."""
    found = {}
    for row in rows:
        figure = next(figure for figure in FIGURES if figure.key == row["figure"])
        for peer in figure.ratio_bars:
            if peer in row["median"] and peer not in KNOWN.get(figure.key, {}):
                found.setdefault(figure.key, {})[peer] = row["median"][peer]
    return found


def keep_known(found):
    """Stores the result of unknown_peers(), to three digits. Known figures stay unchanged."""
    known = dict(KNOWN)
    for key, peers in found.items():
        known[key] = known.get(key, {}) | {peer: float(f"{value:.3g}") for peer, value in peers.items()}
    lines = [f' {json.dumps(figure.key)}: {json.dumps(known[figure.key])}' for figure in FIGURES if figure.key in known]
    KNOWN_PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def table(rows):
    """Returns the table as text."""
    sides = [side for side in ("ours", "baseline", "q4_1", "q4_0", "hf") if any(side in row["median"] for row in rows)]
    titles = {"ours": "Millrace", "baseline": "baseline", "q4_1": "same file", "q4_0": "Q4_0", "hf": "HF"}
    lines = [["figure", *(titles[side] for side in sides), "held to"]]
    for row in rows:
        figure = next(figure for figure in FIGURES if figure.key == row["figure"])
        cells = [f"{figure.label}, {figure.unit}" if figure.unit else figure.label]
        cells += [_number(row["median"][side]) if side in row["median"] else "" for side in sides]
        sign = ">=" if figure.higher_is_better else "<="
        cells.append("; ".join(f"{name} {_number(bar['value'])} {sign} {_number(bar['bar'])} {'pass' if bar['pass'] else 'MISS'}"
                               for name, bar in row.get("bars", {}).items()))
        lines.append(cells)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join("  ".join(cell.ljust(width) if column in (0, len(line) - 1) else cell.rjust(width)
                               for column, (cell, width) in enumerate(zip(line, widths))).rstrip() for line in lines)
