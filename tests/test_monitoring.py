"""Dashboard and alerts: Prometheus scrapes a loaded server and answers each panel's query; promtool sees each alert fire."""
import json
import pathlib
import re
import socket
import subprocess
import time

import httpx
import pytest
import yaml

from daemon import Stream, wait_until

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
    readme = (ROOT / "deploy" / "README.md").read_text()
    lines = re.findall(r"^\| `(Millrace\w+)` \| .{20,} \|$", readme, re.M)
    assert lines == [alert["alert"] for alert in ALERTS]
    for alert in ALERTS:
        assert alert["annotations"]["runbook"] == f"deploy/README.md, {alert['alert']}"


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
    """Yields start(target) -> query(expression): a Prometheus that scrapes the target each second."""
    folder = tmp_path_factory.mktemp("prometheus")
    processes = []

    def start(target):
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        configuration = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}, "rule_files": [str(PROMETHEUS / "alerts.yaml")],
            "scrape_configs": [{"job_name": "millrace", "static_configs": [{"targets": [target], "labels": {"namespace": "millrace"}}]}],
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
                return bool(query("up == 1"))
            except httpx.HTTPError:
                assert processes[-1].poll() is None, (folder / "log").read_text()
                return False

        wait_until(up)
        return query

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_each_panels_query_finds_what_a_loaded_server_exposes(start_server, prometheus):
    server = start_server("--device", "fake", "--fake-step-us", "1000")
    query = prometheus(server.http.removeprefix("http://"))
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
    # What alerts look at is there, too, and this server is well.
    for alert in ALERTS:
        for name in re.findall(r"\b(?:vllm:|millrace_|process_)\w+", alert["expr"]):
            assert query(name), f"{alert['alert']}: there is no {name}"
        for value in re.findall(r'(?:reason)="(\w+)"', alert["expr"]):
            assert query(f'{{__name__=~"vllm:.*|millrace_.*",reason="{value}"}} or {{__name__=~"vllm:.*",finished_reason="{value}"}}'), value
    assert query("ALERTS") == []
