"""millrace-loadtest replay: sessions of several turns, against real servers and scripted ones."""
import collections
import json
import pathlib
import subprocess

import pytest

from daemon import program
from test_loadtest import HEAD, Scripted

PROGRAM = pathlib.Path(program()).resolve().parent / "millrace-loadtest"

pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="millrace-loadtest was not built")

SYSTEM = {"role": "system", "content": "You are terse."}
QUESTION = {"role": "user", "content": "What is the time in Rome?"}
CALL = [{"id": "call00001", "type": "function", "function": {"name": "clock", "arguments": "{\"city\": \"Rome\"}"}}]
RECORDED = {"role": "assistant", "content": "I look.", "tool_calls": CALL}
RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "12:05"}
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


def replay(server, *arguments, expected=0):
    """Runs the program. Returns what it printed."""
    done = subprocess.run([PROGRAM, "replay", *map(str, arguments), "--url", getattr(server, "http", None) or server.url, "--quiet"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


def measure(server, folder, *arguments, expected=0):
    """Returns the run's JSON, with the details of each request."""
    replay(server, *arguments, "--json", folder / "result.json", "--save-detailed", expected=expected)
    return json.loads((folder / "result.json").read_text())


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def by_request(result, name):
    """Returns a member of the details by session and turn, of branches in ascending order."""
    values = collections.defaultdict(list)
    for session, turn, value in zip(result["sessions"], result["turns"], result[name]):
        values[session, turn].append(value)
    return {key: sorted(found) for key, found in values.items()}


SYNTHETIC = ["--turns", 3, "--num-prompts", 4, "--concurrency", 2, "--prefix-len", 100, "--input-len", "uniform:20:40", "--output-len", 8]


def test_synthetic_sessions_find_their_history_in_the_cache(start_server, tmp_path):
    server = start_server("--device", "fake", "--fake-step-us", "1000")
    result = measure(server, tmp_path, *SYNTHETIC, "--html", tmp_path / "report.html")
    own = result["millrace_loadtest"]
    assert own["sessions"] == {"begun": 4, "completed": 4, "failed": 0}
    assert [(row["turn"], row["requests"], row["completed"], row["output_tokens"]) for row in own["turns"]] == [
        ("1", 4, 4, 32), ("2", 4, 4, 32), ("3", 4, 4, 32)]
    for before, row in zip([None, *own["turns"]], own["turns"]):
        assert row["computed_tokens"] == row["prompt_tokens"] - row["cached_tokens"]
        assert 0 < row["median_ttft_ms"] <= row["p99_ttft_ms"] <= row["p99_e2el_ms"]
        # Blocks have 16 tokens: of four sessions at most so much of the prompts before is not found.
        assert before is None or row["cached_tokens"] > before["prompt_tokens"] - 4 * 16
        assert before is None or row["new_tokens"] == row["prompt_tokens"] - before["prompt_tokens"]
    everything = own["all_turns"]
    assert everything["prompt_tokens"] == result["total_input_tokens"]
    assert everything["computed_tokens"] < 1.3 * everything["new_tokens"]
    # The server's own count, without the two requests that find out how many tokens a word is.
    sources = own["prompt_tokens_by_source"]
    assert sources["local_compute"] == everything["computed_tokens"]
    assert sources["local_cache_hit"] == everything["cached_tokens"] == own["total_cached_tokens"]
    page = (tmp_path / "report.html").read_text()
    assert "<h2>Turns</h2>" in page and "Time to first token by turn" in page and "local_compute" in page


def test_the_seed_decides_the_sessions_and_a_saved_trace_is_the_same(fake_server, tmp_path):
    trace = tmp_path / "trace.jsonl"
    flags = [*SYNTHETIC, "--recorded-answers", "--branches", 2, "--think-time", "10ms", "--think-sigma", 0.5]
    first = measure(fake_server, tmp_path, *flags, "--seed", 5, "--save-trace", trace)
    again = measure(fake_server, tmp_path, *flags, "--seed", 5, "--threads", 1)
    other = measure(fake_server, tmp_path, *flags, "--seed", 6)
    saved = measure(fake_server, tmp_path, trace, "--recorded-answers", "--concurrency", 4)
    assert by_request(first, "input_lens") == by_request(again, "input_lens") == by_request(saved, "input_lens")
    assert by_request(first, "input_lens") != by_request(other, "input_lens")
    assert saved["millrace_loadtest"]["sessions"]["completed"] == 4
    # Each session branches once, into two that share what was said before.
    last = collections.Counter((session, turn) for session, turn in zip(first["sessions"], first["turns"]) if turn == 2)
    assert set(last.values()) == {2} and len(last) == 4
    parsed = [json.loads(line) for line in trace.read_text().splitlines()]
    assert len(parsed) == 12 and sum("forks" in session["turns"][-1] for session in parsed) == 4
    output = replay(fake_server, trace, "--num-prompts", 1)
    assert "Sessions                             1 completed, 0 failed" in output


@pytest.fixture
def scripted():
    servers = []

    def start(answer):
        servers.append(Scripted(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.listener.close()


DELTAS = [{"reasoning_content": "Hm."}, {"content": "It is "}, {"content": "noon."}]
ANSWER = (HEAD + "\r\n" + "".join("data: " + json.dumps({"choices": [{"delta": delta}]}) + "\n\n" for delta in DELTAS)
          + "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 6,
                                                            "prompt_tokens_details": {"cached_tokens": 30, "local_cached_tokens": 20,
                                                                                      "external_cached_tokens": 10}}})
          + "\n\ndata: [DONE]\n\n")


def bodies(server):
    """The requests' bodies, those of the shortest conversations first."""
    sent = [json.loads(request.split(b"\r\n\r\n", 1)[1]) for request in server.requests if request.startswith(b"POST")]
    return sorted(sent, key=lambda body: len(json.dumps(body["messages"])))


def test_what_a_trace_says_is_what_is_sent(scripted, tmp_path):
    trace = write(tmp_path / "trace.jsonl",
                  {"session_id": "a", "turns": [{"messages": [SYSTEM, QUESTION], "tools": TOOLS, "max_tokens": 9, "extra": {"tool_choice": "auto"}},
                                                {"messages": [RECORDED, RESULT], "max_tokens": 8, "forks": ["b", "c"]}]},
                  {"session_id": "b", "turns": [{"text": "Thanks."}]},
                  {"session_id": "c", "turns": [{"text": "And in Tokyo, please?"}]})
    server = scripted(ANSWER)
    result = measure(server, tmp_path, trace, "--model", "m", "--output-len", 7)
    own = result["millrace_loadtest"]
    assert own["sessions"] == {"begun": 1, "completed": 1, "failed": 0}
    assert [row["requests"] for row in own["turns"]] == [1, 1, 2]
    assert own["all_turns"]["cached_tokens_by_tier"] == {"external": 40, "local": 80}
    said = {"role": "assistant", "content": "It is noon."}
    first = [SYSTEM, QUESTION]
    second = [*first, {**said, "tool_calls": CALL}, RESULT]
    sent = bodies(server)
    assert [body["messages"] for body in sent] == [
        first, second, [*second, said, {"role": "user", "content": "Thanks."}],
        [*second, said, {"role": "user", "content": "And in Tokyo, please?"}]]
    assert all(body["tools"] == TOOLS and body["max_tokens"] == 7 and "seed" not in body for body in sent)
    assert ["tool_choice" in body for body in sent] == [True, False, False, False]

    server = scripted(ANSWER)
    measure(server, tmp_path, trace, "--model", "m", "--recorded-answers", "--temperature", 1, "--seed", 3)
    sent = bodies(server)
    assert [body["max_tokens"] for body in sent] == [9, 8, 128, 128]
    assert sent[1]["messages"] == [*first, RECORDED, RESULT]
    assert {body["seed"] for body in sent} == {3}

    server = scripted(ANSWER)
    measure(server, tmp_path, trace, "--model", "m", "--keep-reasoning")
    assert bodies(server)[1]["messages"][2] == {**said, "reasoning_content": "Hm.", "tool_calls": CALL}


def test_traces_of_other_programs(scripted, tmp_path):
    server = scripted(ANSWER)
    more = {"role": "user", "content": "And in Tokyo?"}
    rows = write(tmp_path / "rows.jsonl",
                 {"session_id": "h", "messages": [QUESTION], "output_length": 5, "timestamp": 0},
                 {"session_id": "h", "messages": [QUESTION, RECORDED, RESULT], "output_length": 6, "delay": 300})
    result = measure(server, tmp_path, rows, "--model", "m")
    assert [body["max_tokens"] for body in bodies(server)] == [5, 6]
    due = [sent - queued for sent, queued in zip(result["start_times"], result["queue_times"])]
    assert due[1] == pytest.approx(result["start_times"][0] + result["latencies"][0] - result["queue_times"][0] + 0.3, abs=1e-6)

    server = scripted(ANSWER)
    vllm = write(tmp_path / "vllm.jsonl", {"id": "v", "messages": [QUESTION, {"role": "assistant", "content": "Noon."}, more]})
    measure(server, tmp_path, vllm, "--model", "m")
    assert bodies(server)[1]["messages"] == [QUESTION, {"role": "assistant", "content": "It is noon."}, more]


def test_a_turn_that_fails_ends_its_session_only(fake_server, tmp_path):
    good = {"text": "Go on.", "max_tokens": 4}
    trace = write(tmp_path / "trace.jsonl",
                  {"session_id": "bad", "turns": [good, {**good, "extra": {"top_p": 7}}, good, good]},
                  {"session_id": "good", "turns": [good, good, good]})
    result = measure(fake_server, tmp_path, trace)
    own = result["millrace_loadtest"]
    assert own["sessions"] == {"begun": 2, "completed": 1, "failed": 1}
    assert [(row["requests"], row["completed"]) for row in own["turns"]] == [(2, 2), (2, 1), (1, 1)]
    assert own["error_counts"] == [{"error": own["error_counts"][0]["error"], "count": 1}] and "top_p" in own["error_counts"][0]["error"]
    # Clients that give up end their sessions, and that is no failure.
    own = measure(fake_server, tmp_path, *SYNTHETIC, "--cancel-ratio", 1, expected=1)["millrace_loadtest"]
    assert own["cancelled"] == 4 and "sessions" not in own


def test_a_bad_trace_names_the_line_and_the_field(fake_server, tmp_path):
    trace = write(tmp_path / "trace.jsonl", {"session_id": "a", "turns": [{"text": "x"}]}, {"session_id": "b", "turns": [{"messages": [{"content": "x"}]}]})
    assert f"{trace}: line 2: turns[0]: messages[0].role: expected a text" in replay(fake_server, trace, expected=1)


@pytest.mark.model
def test_tools_are_sent_to_a_real_model(model_server, tmp_path):
    result = measure(model_server, tmp_path, "--turns", 3, "--num-prompts", 2, "--concurrency", 2, "--tools", 2, "--result-len", 20, "--prefix-len", 40,
                     "--input-len", 20, "--output-len", 6)
    own = result["millrace_loadtest"]
    assert own["sessions"]["completed"] == 2 and result["output_lens"] == [6] * 6
    assert own["turns"][2]["cached_tokens"] > 0.5 * own["turns"][2]["prompt_tokens"]
