"""Black-box tests of `millraced bench`, on the fake device."""
import json
import os
import subprocess

import pytest

from daemon import environment, program

pytestmark = pytest.mark.serial

FAKE = ["--device", "fake", "--fake-step-us", "1000", "--fake-token-us", "1", "--max-num-batched-tokens", "4096"]


def bench(*flags):
    return subprocess.run([program(), "bench", *flags], env=environment(), capture_output=True, text=True, timeout=120)


def test_tables_and_json(tmp_path):
    path = tmp_path / "figures.json"
    done = bench(*FAKE, "--batch-sizes", "1,8", "--input-len", "32", "--output-lens", "4,104", "--reps", "2",
                 "--json", str(path))
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines()
            if line.startswith("|")]
    assert [row[0] for row in rows[2:]] == ["1", "8"]
    assert {len(row) for row in rows} == {8}

    figures = json.loads(path.read_text())
    assert figures["gpu"] is None
    assert figures["machine"]["cores"] >= 1 and figures["machine"]["cpu"]
    assert "device" in figures["settings"]
    assert figures["model"]["architecture"]
    assert 0 < figures["start"]["load_s"] <= figures["start"]["to_first_token_s"] < 60
    assert [point["batch"] for point in figures["points"]] == [1, 8]
    for point, row in zip(figures["points"], rows[2:]):
        assert point["void_because"] == []
        assert [length["output"] for length in point["lengths"]] == [4, 104]
        assert all(len(length["wall_ms"]) == 2 for length in point["lengths"])
        short, long = (length["median_ms"] for length in point["lengths"])
        assert point["step_ms"] == pytest.approx((long - short) / 100)
        assert point["output_tokens_per_s"] == pytest.approx(point["batch"] * 1000 / point["step_ms"])
        assert float(row[5]) == pytest.approx(point["step_ms"], abs=0.001)


def test_prefill_and_points(tmp_path):
    path = tmp_path / "figures.json"
    done = bench(*FAKE, "--points", "1:1024:1,4:8:2:102", "--reps", "1", "--json", str(path))
    assert done.returncode == 0, done.stderr
    prefill, decode = json.loads(path.read_text())["points"]
    assert prefill["prompt_tokens_per_s"] == pytest.approx(1024 * 1000 / prefill["lengths"][0]["median_ms"])
    assert prefill["step_ms"] is None and prefill["output_tokens_per_s"] is None
    assert decode["step_ms"] > 0 and decode["prompt_tokens_per_s"] is None


def test_a_peer_stands_beside(tmp_path):
    path = tmp_path / "figures.json"
    points = [*FAKE, "--points", "2:8:2:202", "--reps", "1"]
    assert bench(*points, "--json", str(path)).returncode == 0
    peer = json.loads(path.read_text())["points"][0]["output_tokens_per_s"]
    own_path = tmp_path / "own.json"
    done = bench(*points, "--peer", str(path), "--json", str(own_path))
    own = json.loads(own_path.read_text())["points"][0]["output_tokens_per_s"]
    head, _, row = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if line.startswith("|")]
    assert head[-2:] == ["peer tok/s", "ratio"]
    assert row[-2] == f"{peer:.0f}" and float(row[-1]) == pytest.approx(own / peer, abs=0.006)

    path.write_text("{}")
    done = bench(*points, "--peer", str(path))
    assert done.returncode == 1 and "peer: the file has no figures" in done.stderr


def test_a_terminal_sees_how_far_a_point_is():
    terminal, stdout = os.openpty()
    # One length alone: two lengths that are too near are void on a busy machine.
    with subprocess.Popen([program(), "bench", *FAKE, "--points", "1:8:4", "--reps", "2"], env=environment(), stdout=stdout) as running:
        os.close(stdout)
        text = b""
        try:
            while part := os.read(terminal, 65536):
                text += part
        except OSError:  # it has no other end any more
            pass
        os.close(terminal)
    assert running.returncode == 0
    for run in range(1, 4):
        assert f"batch 1, prompt 8: run {run} of 3".encode() in text
    assert text.count(b"\r\x1b[K|") == 1


def test_a_void_point_is_shown_written_and_fails(tmp_path):
    path = tmp_path / "figures.json"
    done = bench("--device", "fake", "--max-num-seqs", "16", "--max-num-batched-tokens", "32", "--batch-sizes", "16",
                 "--input-len", "64", "--output-lens", "2,8", "--reps", "1", "--json", str(path))
    assert done.returncode == 1
    assert "VOID: the whole batch ran in 0 of the 6 steps" in done.stdout
    assert "1 of 1 points are void" in done.stderr
    assert json.loads(path.read_text())["points"][0]["void_because"]


@pytest.mark.parametrize("flags, message", [
    (["--batch-sizes", "0"], 'flag --batch-sizes: got "0", expected whole numbers from 1 to 4096, comma-separated'),
    (["--output-lens", "9,4"], "expected one output length, or two, the shorter first"),
    (["--points", "1:2"], "expected comma-separated points"),
    (["--points", "1:2:3", "--input-len", "5"], "but --points says what to measure"),
    (["--http-port", "8000"], "means nothing to bench"),
    (["--reps", "none"], "expected a whole number from 1 to 1000"),
    (["--trace"], "allowed only with --device cuda"),
    (["--no-such"], "there is no such setting"),
    (["--batch-sizes", "257"], "a batch of 257 sequences is more than --max-num-seqs (256)"),
    (["--max-model-len", "64"], "128 prompt tokens and 144 generated ones are more than --max-model-len (64)"),
    (["--json", "/no/such/folder/file", "--input-len", "1", "--output-lens", "1", "--reps", "1"], "json: cannot write"),
])
def test_refusals(flags, message):
    done = bench("--device", "fake", *flags)
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]


def test_help():
    done = bench("--help")
    assert done.returncode == 0
    assert "--output-lens TOKENS[,TOKENS]" in done.stdout and "--http-port PORT" not in done.stdout
