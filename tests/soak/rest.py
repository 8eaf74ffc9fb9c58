"""What a server holds when nothing is asked of it: read from /metrics and /proc, and judged."""
import collections
import dataclasses
import json
import os
import pathlib
import re
import time
import urllib.request

REST = 90  # seconds in which all must have come to rest; a client that takes nothing is given up after 40

LINE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def scrape(server):
    """Returns [(name, labels, value)]."""
    request = urllib.request.Request(server.admin + "/metrics", headers={"Authorization": "Bearer key-operator"})
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read().decode()
    found = [LINE.match(line) for line in text.splitlines() if line[0] != "#"]
    return [(match[1], dict(LABEL.findall(match[2] or "")), float(match[3])) for match in found]


def total(samples, name, **labels):
    return sum(value for found, has, value in samples if found == name and labels.items() <= has.items())


@dataclasses.dataclass
class Rest:
    """A server at rest."""

    samples: list
    rss: int  # bytes
    descriptors: collections.Counter  # by kind
    threads: collections.Counter  # by name

    def __str__(self):
        return f"RSS {self.rss / 2**20:7.1f} MiB, {self.descriptors.total()} descriptors, {self.threads.total()} threads"


def busy(samples):
    """Returns what still goes on."""
    gauges = {name: total(samples, name) for name in
              ("vllm:num_requests_running", "vllm:num_requests_waiting", "millrace_tenant_streams", "millrace_grpc_connections", "vllm:kv_cache_usage_perc")}
    gauges["held blocks"] = total(samples, "millrace_kv_cache_blocks", state="held")
    gauges["HTTP connections"] = total(samples, "millrace_http_connections") - 1  # this scrape's own
    gauges["open gRPC connections"] = total(samples, "millrace_grpc_connections_opened_total") - total(samples, "millrace_grpc_connections_closed_total")
    return {name: value for name, value in gauges.items() if value != 0}


def come_to_rest(server):
    """Waits until the server holds nothing. Raises TimeoutError naming what it still holds."""
    deadline = time.monotonic() + REST
    while busy(samples := scrape(server)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{REST} s after the last client left: {busy(samples)}")
        time.sleep(0.2)
    time.sleep(1)  # closed sockets and ended threads go
    process = pathlib.Path(f"/proc/{server.process.pid}")
    rss = int(re.search(r"^VmRSS:\s+(\d+)", (process / "status").read_text(), re.M)[1]) << 10
    descriptors = collections.Counter(re.sub(r"\d+", "N", os.readlink(file)) for file in (process / "fd").iterdir())
    threads = collections.Counter((task / "comm").read_text().strip() for task in (process / "task").iterdir())
    return Rest(scrape(server), rss, descriptors, threads)


def inconsistencies(rest, complete, embeds):
    """Returns what the counters say that cannot be. complete: the choices whose end a client saw."""
    samples = rest.samples
    ended = {reason: total(samples, "vllm:request_success_total", finished_reason=reason) for reason in ("stop", "length", "abort", "error")}
    cancelled = total(samples, "millrace_requests_cancelled_total")
    blocks = {state: total(samples, "millrace_kv_cache_blocks", state=state) for state in ("free", "cached", "held")}
    said = sum(int(labels["num_gpu_blocks"]) for name, labels, _ in samples if name == "vllm:cache_config_info")
    rules = [(f"{ended} ended, and clients saw {complete} ends", embeds or ended["stop"] + ended["length"] >= complete),
             (f"{ended} ended, and {cancelled} were cancelled", ended["abort"] == cancelled),
             (f"{ended} ended with errors", ended["error"] == 0),
             (f"{blocks} of {said} blocks", embeds or sum(blocks.values()) == said),
             ("stalls", total(samples, "millrace_engine_stalls_total") == 0),
             ("log lines dropped", total(samples, "millrace_log_lines_dropped_total") == 0)]
    if not embeds:
        accepted = total(samples, "vllm:request_params_n_sum")
        refused = total(samples, "vllm:admission_rejections_total")
        gone = sum(ended.values())
        rules.append((f"{accepted} choices were accepted, {gone} ended, {refused} requests were refused", gone <= accepted <= gone + 128 * refused))
    return [what for what, holds in rules if not holds]


def log_faults(server):
    """Returns the lines of the log that are errors, or no JSON."""
    faults = []
    for line in server.log.read_text(errors="replace").splitlines():
        try:
            if json.loads(line)["level"] == "error":
                faults.append(line)
        except (ValueError, KeyError):
            faults.append(line)
    return faults
