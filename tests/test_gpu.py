"""Black-box tests of the daemon's GPU settings and errors, with the default model. conftest.py leaves this file out unless
MILLRACED_ARGS contains --device cuda."""
import concurrent.futures
import os
import subprocess
import time

import httpx

from daemon import LONG, Stream, program, run, status, wait_until

BODY = {"prompt": "Hello", "max_tokens": 8, "ignore_eos": True, "temperature": 0}


def gpu_flags(*flags):
    return ["--device", "cuda", "--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "512MiB", *flags]


def complete(server):
    return httpx.post(server.http + "/v1/completions", json=BODY, timeout=60)


def test_an_error_of_the_gpu_ends_the_process_by_its_own_status(start_server):
    server = start_server(*gpu_flags("--faults", "cuda.device_error@50"))
    streams = [Stream(server) for _ in range(3)]
    assert server.wait() == 70
    for stream in streams:
        assert "device has failed" in stream.join()[-1]


def test_a_kernel_that_never_ends_fails_health_and_then_the_process(start_server):
    server = start_server(*gpu_flags("--stall-timeout", "300ms", "--step-timeout", "3s", "--faults", "cuda.hang@50"))
    assert status(server, "/livez") == 200
    stream = Stream(server)
    wait_until(lambda: status(server, "/livez") == 503)
    assert server.wait() == 70
    assert "device has failed" in stream.join()[-1]
    assert "did not end in 3 s" in server.log.read_text()


def test_a_bench_ends_when_a_kernel_does_not():
    begin = time.monotonic()
    done = subprocess.run([program(), "bench", *gpu_flags("--step-timeout", "1s", "--faults", "cuda.hang@5")],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "did not end in 1 s" in done.stderr
    assert time.monotonic() - begin < 30


def test_a_row_of_nan_fails_alone(start_server):
    server = start_server(*gpu_flags("--faults", "cuda.nan_row"))
    assert complete(server).status_code == 500
    assert complete(server).status_code == 200
    assert status(server, "/livez") == 200


def test_memory_that_is_not_there_ends_the_start_by_its_name():
    code, log = run(*gpu_flags()[:-1], "16TiB")
    assert code == 1
    assert "KV cache (kv_cache_memory) 16777216" in log and "MiB of" in log  # in MiB


def test_a_graph_that_cannot_be_captured_is_done_without(start_server):
    whole = complete(start_server(*gpu_flags())).json()["choices"][0]["text"]
    server = start_server(*gpu_flags("--faults", "cuda.graph_capture=1000"))
    assert complete(server).json()["choices"][0]["text"] == whole
    assert "decode steps of 1 sequences have no graph of their own" in server.log.read_text()
    metrics = httpx.get(server.admin + "/metrics").text
    graphs = {state: [float(line.split()[-1]) for line in metrics.splitlines()
                      if line.startswith("millrace_cuda_graphs{") and f'"{state}"' in line] for state in ("captured", "failed")}
    assert graphs["captured"] == [0]
    assert graphs["failed"][0] >= 4


def test_all_kernels_and_only_portable_ones_say_the_same(start_server):
    answers = []
    for kernels in ["auto", "portable"]:
        server = start_server(*gpu_flags("--quantization", "fp8", "--kernels", kernels))
        stream = Stream(server, {**LONG, "max_tokens": 100, "temperature": 0})
        answers.append([line.split('"choices"')[-1] for line in stream.join()])
        assert stream.status == 200
    assert len(answers[0]) > 50
    assert answers[0] == answers[1]


def test_models_say_whether_numbers_depend_on_the_batch(start_server):
    for flag, invariant in [("--exact", True), ("--no-exact", False)]:
        (model,) = httpx.get(start_server(*gpu_flags(flag)).http + "/v1/models").json()["data"]
        assert model["batch_invariant"] is invariant


RANKS = ["--tensor-parallel-size", "2", "--virtual-ranks"]


def scored(server, body):
    (choice,) = httpx.post(server.http + "/v1/completions", json={**body, "logprobs": 1}, timeout=60).json()["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_answers_depend_on_the_number_of_ranks_alone(start_server):
    one, two = start_server(*gpu_flags()), start_server(*gpu_flags(*RANKS))
    for server, size in [(one, 1), (two, 2)]:
        (model,) = httpx.get(server.http + "/v1/models").json()["data"]
        assert (model["tensor_parallel_size"], model["batch_invariant"]) == (size, True)
    greedy = {**BODY, "prompt": "The capital of France is", "max_tokens": 24}
    alone = scored(two, greedy)
    apart = [abs(a - b) for a, b in zip(alone[1][:4], scored(one, greedy)[1][:4], strict=True)]
    assert max(apart) < 0.1
    others = [{"prompt": "One, two, " * n, "max_tokens": 30, "seed": n, "ignore_eos": True} for n in range(1, 12)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: scored(two, body), [*others, greedy, greedy]))
    assert answers[-2:] == [alone, alone]
    again = start_server(*gpu_flags(*RANKS, "--max-num-batched-tokens", "64", "--max-num-seqs", "8", "--enforce-eager"))
    assert scored(again, greedy) == alone


def test_a_rank_that_stalls_ends_the_process_by_its_own_status(start_server):
    server = start_server(*gpu_flags(*RANKS, "--step-timeout", "2s", "--faults", "cuda.rank_stall=1000@50"))
    stream = Stream(server, LONG)
    assert server.wait() == 70
    assert "device has failed" in stream.join()[-1]
    assert "--step-timeout" in server.log.read_text()
