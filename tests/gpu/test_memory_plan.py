"""Compares the plan that --dry-run prints with what a load takes of the GPU, which nothing else may use meanwhile."""
import pathlib
import re
import subprocess
import time

import pytest

from daemon import environment, program

ROOT = pathlib.Path(__file__).parent.parent.parent
MODELS = next(folder for folder in (ROOT / "models", ROOT / "deploy/gpu/models") if folder.exists())
SETTINGS = ["--device", "cuda", "--load-format", "dummy", "--max-num-seqs", "64", "--max-model-len", "4096", "--kv-cache-memory", "4GiB"]


def used_mib():
    told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                          check=True, capture_output=True, text=True)
    return int(told.stdout.split()[0])


def most_used_mib(*command):
    """The memory that the command takes at most, beside what was taken before."""
    before = most = used_mib()
    process = subprocess.Popen([program(), *command], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        most = max(most, used_mib())
        time.sleep(0.02)
    assert process.returncode == 0
    return most - before


@pytest.mark.parametrize("model, flags", [
    ("llama-3-8b", ["--quantization", "fp8"]), ("llama-3-8b", []), ("llama-3-8b-gptq", []), ("qwen2.5-7b-fp8-static", []),
    ("qwen3-4b", []), ("qwen3-30b-a3b-fp8", []), ("gpt-oss-20b", []),
], ids=lambda value: value if isinstance(value, str) else "".join(value[1:]))
def test_a_load_takes_what_the_plan_says(model, flags, show):
    settings = ["--model", MODELS / model, *SETTINGS, *flags]
    told = subprocess.run([program(), *settings, "--dry-run"], env=environment(), check=True, capture_output=True, text=True)
    planned = float(re.search(r"^total +([\d.]+) MiB", told.stdout, re.M)[1])
    took = most_used_mib("bench", *settings, "--points", "64:128:8", "--reps", "1")
    show("memory", f"planned {planned:.0f} MiB, took {took} MiB")
    assert planned == pytest.approx(took, rel=0.03)
