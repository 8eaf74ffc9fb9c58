#!/usr/bin/env python3
"""Makes family_reference.json: what transformers makes of a tiny twin of every model family.

Build write_tiny_folders, and run in an environment with tests/reference/requirements.txt:

    python tests/reference/make_family_reference.py build/write_tiny_folders

The file holds the prompt's token ids, and for each twin its largest logit and the
log-probabilities of the prompt's tokens but the first, computed in float64 (transformers turns
positions in float32): "logprobs", and "half_kv_logprobs" of keys and values rounded to float16.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

PROMPT = [(i * 37 + i * i) % 128 for i in range(48)]


def logprobs(model):
    with torch.no_grad():
        logits = model.eval()(torch.tensor([PROMPT])).logits[0]
    scores = logits.log_softmax(-1)
    return (round(logits.abs().max().item(), 4),
            [round(scores[i, token].item(), 6) for i, token in enumerate(PROMPT[1:])])


def reference(folder):
    # Eager: the definition itself, and the only one that knows of soft caps.
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
    wrong = {kind: names for kind, names in loading.items() if names}
    if wrong:
        raise SystemExit(f"{folder.name}: {wrong}")
    largest, exact = logprobs(model)
    # The function that every attention layer of the family looks up when it is called.
    module = sys.modules[type(model).__module__]
    exact_attention = module.eager_attention_forward
    module.eager_attention_forward = lambda layer, q, k, v, *rest, **named: exact_attention(
        layer, q, k.half().double(), v.half().double(), *rest, **named)
    _, half_kv = logprobs(model)
    module.eager_attention_forward = exact_attention
    return {"largest": largest, "logprobs": exact, "half_kv_logprobs": half_kv}


def main():
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([sys.argv[1], work, "families"], check=True)
        folders = sorted(pathlib.Path(work).iterdir())
        twins = {folder.name: reference(folder) for folder in folders}
    out = pathlib.Path(__file__).parent / "family_reference.json"
    lines = [f'{json.dumps(name)}: {json.dumps(twin, separators=(",", ":"))}'
             for name, twin in twins.items()]
    out.write_text(f'{{"prompt": {json.dumps(PROMPT)},\n"twins": {{\n' + ",\n".join(lines) + "\n}}\n")


if __name__ == "__main__":
    main()
