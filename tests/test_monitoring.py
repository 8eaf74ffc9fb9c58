"""Dashboard and alerts: Prometheus scrapes a loaded server and answers each panel's query; promtool sees each alert fire."""
import http.server
import json
import pathlib
import re
import socket
import subprocess
import threading
import time

import httpx
import pytest
import yaml

from daemon import Stream, gpu_exposition, wait_until

pytestmark = pytest.mark.deploy

ROOT = pathlib.Path(__file__).parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())
ALERTS = [rule for group in yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments):
    return subprocess.run(["promtool", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)


def test_each_alert_fires_and_none_without_reason():
    for command in ("check", "test"):
        file = "alerts.yaml" if command == "check" else "alerts_test.yaml"
        done = promtool(command, "rules", PROMETHEUS / file)
        assert done.returncode == 0, done.stdout
    tests = yaml.safe_load((PROMETHEUS / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case.get("exp_alerts")}
    quiet = {case["alertname"] for case in tests[0]["alert_rule_test"] if not case.get("exp_alerts")}
    names = {alert["alert"] for alert in ALERTS}
    assert len(names) == len(ALERTS)
    assert fired == quiet == names


def test_each_alert_has_a_line_in_the_runbook():
    page = (ROOT / "docs" / "runbook.md").read_text()
    lines = re.findall(r"^\| `(Millrace\w+)` \| .{20,} \|$", page, re.M)
    assert lines == [alert["alert"] for alert in ALERTS]
    for alert in ALERTS:
        assert alert["annotations"]["runbook"] == f"docs/runbook.md, {alert['alert']}"


def test_the_operators_rules_are_the_same():
    rule = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "extras" / "rules" / "prometheusrule.yaml").read_text())
    assert rule["spec"] == yaml.safe_load((PROMETHEUS / "alerts.yaml").read_text())


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_the_dashboard_is_well_formed():
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    assert len({panel["title"] for panel in panels()}) == len(panels()) > 20
    cells = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not covered & cells, f"{panel['title']} lies over another panel"
        cells |= covered
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]+)", json.dumps(panels()))) <= variables


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory):
    """Yields start(*targets) -> query(expression): a Prometheus that scrapes the targets each second."""
    folder = tmp_path_factory.mktemp("prometheus")
    processes = []

    def start(*targets):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": [str(PROMETHEUS / "alerts.yaml")],
            "scrape_configs": [{"job_name": "millrace", "static_configs": [{"targets": [*targets], "labels": {"namespace": "millrace"}}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        with open(folder / "log", "w") as log:
            processes.append(subprocess.Popen(
                ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"],
                stdout=log, stderr=log))

        def query(expression):
            response = httpx.get(f"http://{address}/api/v1/query", params={"query": expression}, timeout=10)
            response.raise_for_status()  # 503 until it has read its files
            answer = response.json()
            assert answer["status"] == "success", f"{expression}: {answer}"
            return answer["data"]["result"]

        def up():
            try:
                return {one["metric"]["instance"] for one in query("up == 1")} >= set(targets)
            except httpx.HTTPError:
                assert processes[-1].poll() is None, (folder / "log").read_text()
                return False

        wait_until(up)
        return query

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def gpu_exporter():
    """The address of a page with the metrics that only servers on a GPU have."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(gpu_exposition().encode())

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


def test_each_panels_query_finds_what_a_loaded_server_exposes(start_server, secured_server, gpu_exporter, prometheus):
    server = start_server("--device", "fake", "--fake-step-us", "1000")
    query = prometheus(server.http.removeprefix("http://"), f"127.0.0.1:{secured_server.ports['metrics']}", gpu_exporter)
    deadline = time.monotonic() + 5  # some scrapes lie within it
    while time.monotonic() < deadline:
        streams = [Stream(server, {"prompt": "Hello" * 50, "max_tokens": 50, "ignore_eos": True, "stream": True}) for _ in range(4)]
        for stream in streams:
            stream.join()
    wait_until(lambda: query("count_over_time(up[1m]) >= 5"))
    checked = 0
    for panel in panels():
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "30s").replace("$model", ".*").replace("$instance", ".*")
            series = query(expression)
            assert series, f"{panel['title']}: {expression} finds nothing"
            if "/" in expression or "histogram_quantile" in expression:
                assert all(one["value"][1] != "NaN" for one in series), f"{panel['title']}: {expression}"
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                assert all(label in one["metric"] for one in series), f"{panel['title']} has no label {label}"
            checked += 1
    assert checked > 35
    # The alerts' series are there, too, and these servers are well, but for certificates of two days.
    for alert in ALERTS:
        for name in re.findall(r"\b(?:vllm:|millrace_|process_)\w+", alert["expr"]):
            assert query(name), f"{alert['alert']}: there is no {name}"
        for value in re.findall(r'(?:reason)="(\w+)"', alert["expr"]):
            assert query(f'{{__name__=~"vllm:.*|millrace_.*",reason="{value}"}} or {{__name__=~"vllm:.*",finished_reason="{value}"}}'), value
    assert {alert["metric"]["alertname"] for alert in query("ALERTS")} == {"MillraceCertificateExpires"}


# The queries of vLLM's own boards select these (examples/observability of its repository, November 2026): service status, overview, KV cache,
# performance and query statistics. Left out are the panels that vLLM fills only with --kv-cache-metrics or a KV connector.
VLLM_HISTOGRAMS = ["time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
                   "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
                   "iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens", "request_prefill_kv_computed_tokens",
                   "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens"]
VLLM_SELECTORS = [
    *(f"vllm:{name}_{part}" for name in VLLM_HISTOGRAMS for part in ("bucket", "sum", "count")),
    *(f'vllm:engine_sleep_state{{sleep_state="{state}"}}' for state in ("awake", "weights_offloaded", "discard_all")),
    *(f'vllm:request_success_total{{finished_reason="{reason}"}}' for reason in ("stop", "length", "abort", "error")),
    *(f'vllm:num_requests_waiting_by_reason{{reason="{reason}"}}' for reason in ("capacity", "deferred")),
    *(f'vllm:prompt_tokens_by_source_total{{source="{source}"}}' for source in ("local_compute", "local_cache_hit", "external_kv_transfer")),
    *(f"vllm:{name}_total" for name in ("prompt_tokens", "prompt_tokens_cached", "prompt_tokens_cached_by_source", "generation_tokens",
                                        "num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries",
                                        "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits", "spec_decode_num_drafts",
                                        "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "spec_decode_num_accepted_tokens_per_pos")),
    *(f"vllm:{name}" for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info", "lora_requests_info")),
    # Objectives are chosen by their bucket's text.
    *(f'vllm:time_to_first_token_seconds_bucket{{le="{bound}"}}' for bound in ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0")),
    *(f'vllm:request_time_per_output_token_seconds_bucket{{le="{bound}"}}' for bound in ("0.025", "0.05", "0.1", "0.2", "0.5", "1.0")),
    'http_requests_total{status="2xx",handler="/v1/completions",method="POST"}', "http_request_duration_highr_seconds_bucket",
    'http_request_duration_seconds_bucket{handler="/v1/completions",le="1.0"}', "http_request_size_bytes_count", "http_response_size_bytes_sum",
    "process_start_time_seconds", "process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds",
]


def test_what_vllms_boards_select_is_there(start_server, prometheus):
    server = start_server("--device", "fake", "--fake-step-us", "1000")
    query = prometheus(server.http.removeprefix("http://"))
    body = {"prompt": "Hello" * 50, "max_tokens": 20, "ignore_eos": True, "stream": True}
    selected = '{instance="' + server.http.removeprefix("http://") + '"'
    rate = f"rate(vllm:time_to_first_token_seconds_bucket{selected}}}[1m])"

    def measured():
        """Serves some requests. Returns whether Prometheus has seen the number of requests grow."""
        for stream in [Stream(server, body) for _ in range(4)]:
            stream.join()
        median = query(f"histogram_quantile(0.5, sum by (le) ({rate}))")
        return median and float(median[0]["value"][1]) > 0

    wait_until(measured)
    for selector in VLLM_SELECTORS:
        name, _, labels = selector.rstrip("}").partition("{")
        one = f"{name}{selected}{',' + labels if labels else ''}}}"
        assert query(one), f"vLLM's boards select {selector}, which is not there"
