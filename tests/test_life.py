"""Black-box tests of the daemon's start and end, and of a device that fails or hangs, with the fake executor."""
import json
import os
import signal
import threading
import time

import grpc
import httpx
import pytest

import tiny_qwen3
from daemon import LONG, Stream, metrics, run, status, wait_until
from millrace_grpc import connect, pb


def test_the_ready_file_tells_the_ports(start_server):
    server = start_server("--device", "fake")
    assert set(server.ports) == {"http", "grpc", "admin"}
    assert all(isinstance(port, int) and port > 0 for port in server.ports.values())
    assert status(server, "/readyz") == 200
    assert set(os.listdir(server.ready_file.parent)) == {"log.txt", "ready.json"}


def test_a_ready_file_of_an_earlier_run_goes_first(tmp_path):
    stale = tmp_path / "ready.json"
    stale.write_text('{"http": 1, "grpc": 1, "admin": 1}')
    code, _ = run("--model", str(tmp_path / "none.gguf"), "--ready-file", str(stale))
    assert code == 1
    assert not stale.exists()


def test_a_ready_file_replaces_nothing_but_a_file(tmp_path):
    """A file that is renamed would take the place of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("pipe", "folder", "link"):
        code, log = run("--device", "fake", "--ready-file", str(tmp_path / name))
        assert code == 1 and f"ready-file: {tmp_path / name} is there and is no regular file" in log
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "folder", "link"}


def test_a_path_that_leads_nowhere_is_named_with_its_setting(tmp_path):
    model = str(tiny_qwen3.write(tmp_path / "tiny", modules=False))
    assert f"tokenizer: {tmp_path / 'none'}: " in run("--model", model, "--tokenizer", str(tmp_path / "none"))[1]
    code, log = run("--model", model, "--generation-config", str(tmp_path))
    assert code == 1 and f"generation-config: {tmp_path} has no generation_config.json" in log


def test_a_config_that_is_a_pipe_is_read_once(start_server, tmp_path):
    """To read it again would wait for who writes it, and the server would be deaf to SIGTERM."""
    pipe = tmp_path / "config"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("log: info\n",))
    writer.start()
    server = start_server("--device", "fake", "--config", str(pipe))
    writer.join()
    server.signal(signal.SIGHUP)
    wait_until(lambda: "reload: nothing changes: flag --config: " in server.log.read_text())
    server.stop()


def test_without_the_default_model_it_says_how_to_fetch_it(tmp_path):
    code, log = run(env={"XDG_CACHE_HOME": str(tmp_path)})
    assert code == 1
    assert "scripts/fetch_model.sh" in log and "--model" in log


def test_a_damaged_model_ends_the_start_by_its_name(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"GGUF" + bytes(100))
    code, log = run("--model", str(model))
    assert code == 1
    assert "broken.gguf" in log


def test_what_cuda_lacks_is_named():
    code, log = run("--device", "cuda", "--model", "none.gguf")
    assert code == 1
    # Without CUDA or a GPU the error names the device; on a GPU it names the model.
    lacks = "model: none.gguf" if os.path.exists("/dev/nvidia0") else "device: cuda"
    assert f"cannot start: {lacks}" in log


def test_a_taken_port_is_named(start_server):
    port = str(start_server("--device", "fake").ports["http"])
    code, log = run("--device", "fake", "--http-port", port)
    assert code == 1
    assert port in log


def test_the_name_can_be_chosen(start_server):
    server = start_server("--device", "fake", "--served-model-name", "mine")
    assert httpx.get(server.http + "/v1/models").json()["data"][0]["id"] == "mine"


def test_logs_are_json_lines_with_the_request_id_and_without_the_prompt(start_server):
    server = start_server("--device", "fake", "--log-format", "json")
    answer = httpx.post(server.http + "/v1/completions", json={"prompt": "a secret", "max_tokens": 2}).json()
    wait_until(lambda: answer["id"] in server.log.read_text())
    lines = [json.loads(line) for line in server.log.read_text().splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == answer["id"]]
    assert "completion_tokens=2" in line["message"]
    assert "secret" not in server.log.read_text()


def test_prompts_are_logged_when_asked_for(start_server):
    server = start_server("--device", "fake", "--log-prompts")
    httpx.post(server.http + "/v1/completions", json={"prompt": "a secret", "max_tokens": 2})
    wait_until(lambda: "a secret" in server.log.read_text())


def test_at_debug_the_engine_and_grpc_say_what_they_do(start_server):
    # Three answers of 500 tokens do not fit into 1,024 tokens at once.
    server = start_server("--device", "fake", "--log", "warning,engine=debug,grpc=debug", "--kv-cache-memory", "1MiB")
    assert Stream(server, {**LONG, "max_tokens": 500, "n": 3}).join()[-1] == "data: [DONE]"
    stub = connect(server.grpc)
    stub.ListModels(pb.ListModelsRequest())
    with pytest.raises(grpc.RpcError):
        stub.Tokenize(pb.TokenizeRequest(model="nobody", text="x"))
    wait_until(lambda: "/Tokenize" in server.log.read_text())
    log = server.log.read_text()
    assert "debug engine a step of 3 sequences, 3 tokens" in log and "debug engine preempted 1 sequences" in log
    assert "debug grpc /millrace.v1.Inference/ListModels OK " in log
    assert "debug grpc /millrace.v1.Inference/Tokenize NOT_FOUND " in log
    assert " http " not in log


def test_a_drain_ends_what_waits_too(start_server):
    server = start_server("--device", "fake", "--max-num-seqs", "1", "--fake-step-us", "10000")
    streams = [Stream(server, {**LONG, "max_tokens": 400})]
    streams[0].begun.wait()
    streams += [Stream(server, {**LONG, "max_tokens": 10}) for _ in range(3)]
    wait_until(lambda: any(line.startswith("vllm:num_requests_waiting{") and line.endswith(" 3")
                           for line in httpx.get(server.admin + "/metrics").text.splitlines()))
    server.signal()
    for stream in streams:
        assert stream.join()[-1] == "data: [DONE]"
    assert server.wait() == 0


def test_what_a_drain_has_no_time_for_is_cancelled(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "20000", "--drain-timeout", "500ms")
    stream = Stream(server)
    stream.begun.wait()
    begin = time.monotonic()
    server.signal()
    assert server.wait() == 0
    assert time.monotonic() - begin < 20
    lines = stream.join()
    assert "shutting down" in lines[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_now(start_server, number):
    server = start_server("--device", "fake", "--fake-step-us", "20000")
    stream = Stream(server)
    stream.begun.wait()
    server.signal(number)
    wait_until(lambda: "draining" in server.log.read_text())
    server.signal(number)
    assert server.wait() == 128 + number
    stream.join()


def test_a_signal_of_no_meaning_leaves_it_able_to_end(start_server):
    server = start_server("--device", "fake")
    server.signal(signal.SIGUSR1)
    wait_until(lambda: "SIGUSR1" in server.log.read_text())
    server.signal()
    assert server.wait() == 0


def test_a_device_that_fails_ends_the_process_by_its_own_status(start_server):
    server = start_server("--device", "fake", "--fake-step-us", "2000", "--faults", "fake.device_error@200")
    streams = [Stream(server) for _ in range(3)]
    assert server.wait() == 70
    for stream in streams:
        assert "device has failed" in stream.join()[-1]


def test_a_row_that_fails_fails_alone(start_server):
    server = start_server("--device", "fake", "--faults", "fake.row_error")
    body = {"prompt": "Hello", "max_tokens": 4}
    assert httpx.post(server.http + "/v1/completions", json=body).status_code == 500
    assert httpx.post(server.http + "/v1/completions", json=body).status_code == 200
    assert status(server, "/livez") == 200


def test_a_step_without_memory_fails_its_requests_alone(start_server, tmp_path):
    model = str(tiny_qwen3.write(tmp_path / "tiny", modules=False))
    # The first pass is the step that warms the model up.
    server = start_server("--model", model, "--kv-cache-memory", "16MiB", "--faults", "cpu.small_arena@1")
    body = {"prompt": "Hello", "max_tokens": 4}
    failed = httpx.post(server.http + "/v1/completions", json=body, timeout=60)
    assert failed.status_code == 500 and "more memory for activations" in failed.json()["error"]["message"]
    assert "a step's requests fail" in server.log.read_text()
    assert httpx.post(server.http + "/v1/completions", json=body, timeout=60).status_code == 200
    assert status(server, "/livez") == 200


def test_health_fails_while_the_device_hangs_and_recovers(start_server):
    server = start_server("--device", "fake", "--stall-timeout", "300ms", "--faults", "fake.hang=300@20")
    assert status(server, "/livez") == 200
    stream = Stream(server, {**LONG, "max_tokens": 100})
    wait_until(lambda: status(server, "/livez") == 503)
    assert status(server, "/readyz") == 503
    wait_until(lambda: status(server, "/livez") == 200)
    assert stream.join()[-1] == "data: [DONE]"
    assert metrics(server)["millrace_engine_stalls_total"] == 1


def test_a_hanging_device_does_not_hold_up_the_end_for_ever(start_server):
    server = start_server("--device", "fake", "--drain-timeout", "200ms", "--faults", "fake.hang=100000@5")
    stream = Stream(server)
    stream.begun.wait()
    server.signal()
    assert server.wait() == 0
    assert "shutting down" in stream.join()[-1]
