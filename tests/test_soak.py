"""A short soak of the fake device and the faults that take little time: tests/soak/ has both at length."""
import os
import pathlib
import subprocess
import sys

import pytest

from daemon import environment, on_a_gpu, program, sanitized

SOAK = pathlib.Path(__file__).parent / "soak"
DEVICE = "cuda" if on_a_gpu() else "cpu"


def run(script, *flags):
    done = subprocess.run([sys.executable, SOAK / script, *flags], env={**os.environ, "MILLRACED": program()}, capture_output=True, text=True,
                          timeout=280)
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_left_after_random_clients():
    status, output = run("soak.py", "--requests", "120", "--clients", "4", "--targets", "fake", "--seed", "22")
    assert status == 0, output


def test_a_seed_draws_the_same_requests():
    """In a process of its own, since a hash of text differs from one to the next."""
    script = f"import sys; sys.path[:0] = [{str(SOAK)!r}, {str(SOAK.parent)!r}]; import random; from draw import draw; from millrace_grpc import pb; " \
        "rng = random.Random('22/fake/0'); print([str(draw(rng, 'fake', pb)) for _ in range(200)])"
    outputs = {subprocess.run([sys.executable, "-c", script], env=environment(), capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert len(outputs) == 1 and len(outputs.pop()) > 10_000


@pytest.mark.parametrize("fault", ["log_disk_full", "log_file_limit", "ready_file_disk_full", "no_descriptors", "stopped"])
def test_a_fault_does_no_more_harm_than_it_must(fault):
    status, output = run("faults.py", "--only", fault)
    assert status == 0, output
    if "| not tried: " in output:
        pytest.skip(output)


@pytest.mark.skipif(sanitized(), reason="a sanitizer needs more address space")
def test_too_little_address_space_ends_no_server():
    status, output = run("faults.py", "--only", "address_space")
    assert status == 0, output


@pytest.mark.model
@pytest.mark.parametrize("fault", ["truncated_while_serving", f"row_{DEVICE}", f"device_{DEVICE}", f"hang_{DEVICE}"])
def test_a_fault_under_a_model_does_no_more_harm_than_it_must(fault):
    status, output = run("faults.py", "--only", fault)
    assert status == 0, output


@pytest.mark.parametrize("attack", ["rebinding", "strange_key_files"])
def test_an_attack_beside_a_light_client_runs_and_is_judged(attack):
    """A look at the attacks' own harness: their bars are those of a minute, and are held to on a machine of its own."""
    status, output = run("soak.py", "--attacks", attack, "--seconds", "1")
    assert f"{attack}: memory +" in output and "SIGTERM" in output, output
    # A second says little of latencies, and a sanitizer keeps freed memory for a while.
    unjudged = ("p99", "MiB") if sanitized() else ("p99",)
    wrong = [line for line in output.splitlines() if "WRONG" in line and not any(word in line for word in unjudged)]
    assert not wrong, output
    assert status == (1 if "WRONG" in output else 0)


def test_an_unknown_attack_is_named():
    status, output = run("soak.py", "--attacks", "none")
    assert status == 2 and "none is no attack; allowed: all, many_submessages" in output
