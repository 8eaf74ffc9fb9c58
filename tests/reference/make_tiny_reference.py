#!/usr/bin/env python3
"""Makes tiny_reference.json: transformers' results for our tests' Hugging Face folders.

`make parity` runs it:

    make_tiny_reference.py WRITE_TINY_FOLDERS FOLDER

The first is the program of that name.

The file holds the prompt's token ids, and for each folder the log-probabilities of the prompt's
tokens but the first, computed in float64 (transformers computes rotations in float32).
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

PROMPT = [(i * 37 + i * i) % 261 for i in range(60)]


def logprobs(folder):
    # Eager is the plain definition. In float64 only the rotation can still differ.
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0]
    scores = logits.log_softmax(-1)
    return [round(scores[i, token].item(), 6) for i, token in enumerate(PROMPT[1:])]


def main():
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.argv[1], work], check=True)
        folders = sorted(pathlib.Path(work).iterdir())
        reference = {"prompt": PROMPT, "logprobs": {f.name: logprobs(f) for f in folders}}
    out = pathlib.Path(sys.argv[2]) / "tiny_reference.json"
    out.write_text(json.dumps(reference, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
