"""Makes a Markdown table of ncu's measurements: one row per kernel and shape, with means over its launches.

ncu_table.py FILE.csv, as `ncu --csv --page raw` with the sections SpeedOfLight, WarpStateStats, LaunchStats and Occupancy writes it.
"""
import csv
import re
import sys

COLUMNS = {  # title: metric
    "µs": "gpu__time_duration.sum",
    "MB of DRAM": "dram__bytes.sum",
    "DRAM %": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "L2 %": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "SM %": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "registers": "launch__registers_per_thread",
    "warps an SM": "sm__warps_active.avg.per_cycle_active",
}
STALL = re.compile(r"smsp__average_warps?_issue_stalled_(\w+?)_per_issue_active\.ratio$|smsp__average_warp_latency_issue_stalled_(\w+)\.ratio$")
SCALE = {"nsecond": 1e-3, "usecond": 1, "msecond": 1e3, "ns": 1e-3, "us": 1, "ms": 1e3,
         "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1, "Gbyte": 1e3}


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def main(path):
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file if line.startswith('"')]
    rows = list(csv.DictReader(lines))
    units, rows = rows[0], rows[1:]  # the second line holds units
    kernels = {}
    for row in rows:
        name = re.sub(r"(\w+|<unnamed>)::", "", row["Kernel Name"].removeprefix("void ").split("(")[0])
        kernels.setdefault((name[:60], row["Grid Size"], row["Block Size"]), []).append(row)
    print("| kernel | grid x block | launches |", *(f" {title} |" for title in COLUMNS), " waits most for |", sep="")
    print("|---|---|--:|" + "--:|" * len(COLUMNS) + "---|")
    for (name, grid, block), launches in kernels.items():
        cells = []
        for title, metric in COLUMNS.items():
            values = [value * SCALE.get(units[metric], 1) for row in launches if (value := number(row[metric])) is not None]
            cells.append(f"{sum(values) / len(values):.1f}" if values else "")
        stalls = {}
        for metric in units:
            if match := STALL.match(metric):
                values = [number(row[metric]) or 0 for row in launches]
                reason = next(group for group in match.groups() if group)
                if reason != "selected":
                    stalls[reason] = max(stalls.get(reason, 0), sum(values) / len(values))
        most = sorted(stalls, key=stalls.get, reverse=True)[:2]
        total = sum(stalls.values()) or 1
        waits = ", ".join(f"{reason} {stalls[reason] / total:.0%}" for reason in most)
        print(f"| {name} | {grid} x {block} | {len(launches)} |", *(f" {cell} |" for cell in cells), f" {waits} |", sep="")


main(sys.argv[1])
