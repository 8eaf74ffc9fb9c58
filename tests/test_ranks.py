"""Black-box tests of tensor parallelism: SmolLM2 on several ranks of the CPU, whose 9 heads and 3 kv heads no two ranks divide."""
import concurrent.futures
import os

import httpx
import pytest

from daemon import LONG, Stream, on_a_gpu, run, status, wait_until

pytestmark = [pytest.mark.model, pytest.mark.skipif(on_a_gpu(), reason="these ranks are threads on the CPU")]

GREEDY = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "logprobs": 2, "ignore_eos": True}
SCORED = {"prompt": "The capital of France is Paris, and the capital of Italy is Rome. One, two, three, four, five, six, seven, eight.",
          "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}


def ranks(size, *flags):
    return ["--model", os.environ["MILLRACE_MODEL"], "--kv-cache-memory", "256MiB", "--tensor-parallel-size", str(size), *flags]


def complete(server, body=GREEDY):
    (choice,) = httpx.post(server.http + "/v1/completions", json=body, timeout=60).json()["choices"]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def test_answers_depend_on_the_number_of_ranks_alone(start_server):
    one = start_server(*ranks(1))
    two = start_server(*ranks(2, "--threads", "2"))
    for server, size in [(one, 1), (two, 2)]:
        (model,) = httpx.get(server.http + "/v1/models").json()["data"]
        assert (model["tensor_parallel_size"], model["expert_parallel"], model["batch_invariant"]) == (size, False, True)
    # Ranks add in another order, which moves some eight-bit inputs of linears by a step.
    scored = [complete(server, SCORED)[1][1:] for server in (one, two)]
    apart = [abs(a - b) for a, b in zip(*scored, strict=True)]
    assert 0 < sum(apart) / len(apart) < 0.1
    alone = complete(two)
    others = [{"prompt": "One, two, " * n, "max_tokens": 30, "seed": n, "logprobs": 1} for n in range(1, 12)]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda body: complete(two, body), [*others, GREEDY, GREEDY]))
    assert answers[-2:] == [alone, alone]
    again = start_server(*ranks(2, "--threads", "3", "--max-num-batched-tokens", "8", "--max-num-seqs", "8"))
    assert complete(again) == alone


def test_a_rank_that_hangs_fails_health_and_then_the_process(start_server):
    server = start_server(*ranks(2, "--stall-timeout", "300ms", "--step-timeout", "2s", "--faults", "cpu.rank_hang=1000000@2000"))
    assert status(server, "/livez") == 200
    streams = [Stream(server) for _ in range(3)]
    wait_until(lambda: status(server, "/livez") == 503)
    assert server.wait() == 70
    for stream in streams:
        assert "device has failed" in stream.join()[-1]
    assert "rank 1 of 2 got no further for 2 s (--step-timeout)" in server.log.read_text()


def test_a_rank_that_fails_ends_the_process_by_its_own_status(start_server):
    server = start_server(*ranks(3, "--faults", "cpu.rank_error@2000"))
    stream = Stream(server, LONG)
    assert server.wait() == 70
    assert "device has failed" in stream.join()[-1]


def test_experts_of_their_own_need_experts():
    code, log = run(*ranks(2, "--enable-expert-parallel"))
    assert code == 1
    assert "enable_expert_parallel is true, but llama is no mixture of experts; allowed: false" in log
