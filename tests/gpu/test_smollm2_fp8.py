"""SmolLM2 in FP8 on a GPU: its perplexity, and that of transformers in float32 with numbers rounded to FP8 (fake_fp8.py).

Two right computations in FP8 part after a few layers: what BF16 or another order of sums leaves at the first rounding moves a code by a
step, and that the next ones. A token's log-probability differs by 0.2 or 0.3 then, so the mean over the 12,288 tokens of text.txt by
0.25 %. For a bar of 0.1 % the model writes itself a text of half a million tokens, over which that error is 0.03 %.
"""
import math
import os
from concurrent import futures

import httpx
import torch

import fake_fp8
import gguf_model
from millrace_grpc import connect, pb
from scoring import DEVICE
from test_reference import DATA, REFERENCE, score

SEQUENCES, LENGTH = 512, 1024
BATCH = 16
BAR = 1e-3
SERVER = ["--device", "cuda", "--kv-cache-memory", "16GiB"]


def write_texts(server):
    """Returns the model's own continuations of the reference's prompts."""
    def write(i):
        prompt = DATA["prompts"][i % len(DATA["prompts"])]["prompt"]
        answer = client.post(server.http + "/v1/completions", json={
            "prompt": prompt, "max_tokens": LENGTH - len(prompt), "ignore_eos": True, "temperature": 1, "seed": i,
            "return_token_ids": True}).json()
        return prompt + answer["choices"][0]["token_ids"]

    with futures.ThreadPoolExecutor(256) as threads, httpx.Client(timeout=100, limits=httpx.Limits()) as client:
        return list(threads.map(write, range(SEQUENCES)))


def split_text(stub):
    """Returns text.txt in the reference's windows."""
    tokens = list(stub.Tokenize(pb.TokenizeRequest(
        text=(REFERENCE / "text.txt").read_text(encoding="utf-8"), add_special_tokens=False)).token_ids)
    return [tokens[first:first + LENGTH] for first in range(0, len(tokens) - LENGTH + 1, LENGTH)]


def served(stub, sequences):
    """Returns the mean log-probability of each sequence's tokens but the first."""
    with futures.ThreadPoolExecutor(16) as threads:
        scores = threads.map(lambda tokens: score(stub, tokens), sequences)
        return torch.tensor([sum(logprob for logprob, _ in entries) / (LENGTH - 1) for entries in scores])


@torch.inference_mode()
def computed(model, sequences, fp8_cache):
    means = []
    for first in range(0, len(sequences), BATCH):
        tokens = torch.tensor(sequences[first:first + BATCH], device=DEVICE)
        logits = model(tokens[:, :-1], past_key_values=fake_fp8.Fp8Cache() if fp8_cache else None).logits
        losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        means.append(-losses.view(len(tokens), -1).mean(1))
    return torch.cat(means).cpu()


def test_perplexity_is_that_of_rounded_float32(start_server, show):
    flags = ["--model", os.environ["MILLRACE_MODEL"], *SERVER]
    server = start_server(*flags)
    stub = connect(server.grpc)
    text = split_text(stub)
    sequences = write_texts(server) + text
    assert {len(sequence) for sequence in sequences} == {LENGTH}
    in_bf16 = served(stub, sequences)
    model = gguf_model.load(os.environ["MILLRACE_MODEL"], DEVICE)
    exact = computed(model, sequences, fp8_cache=False)

    def compare(kind, ours, theirs):
        for name, part in (("its own text", slice(0, SEQUENCES)), ("text.txt", slice(SEQUENCES, None))):
            difference = (theirs - ours)[part]
            error = (difference.std() / len(difference) ** 0.5).item()
            cost, cost_there = ((a - b)[part].mean().item() for a, b in ((in_bf16, ours), (exact, theirs)))
            show(f"{kind}, {name}", f"perplexity {math.exp(-ours[part].mean()):.4f}, rounded float32 "
                 f"{math.exp(-theirs[part].mean()):.4f}: {math.expm1(difference.mean()):+.3%} (one standard error: {error:.3%}); "
                 f"over BF16 {math.expm1(cost):+.3%}, over float32 {math.expm1(cost_there):+.3%}")
        return math.expm1((theirs - ours)[:SEQUENCES].mean())

    apart = {"BF16": compare("BF16", in_bf16, exact)}
    cached = connect(start_server(*flags, "--kv-cache-dtype", "fp8").grpc)
    apart["cache"] = compare("FP8 cache", served(cached, sequences), computed(model, sequences, fp8_cache=True))
    head = connect(start_server(*flags, "--quantize-lm-head").grpc)
    apart["head"] = compare("FP8 head", served(head, sequences),
                            computed(fake_fp8.quantize_head(gguf_model.load(os.environ["MILLRACE_MODEL"], DEVICE)), sequences, fp8_cache=False))
    linears = connect(start_server(*flags, "--quantization", "fp8").grpc)
    apart["linears"] = compare("FP8 linears", served(linears, sequences), computed(fake_fp8.quantize(model), sequences, fp8_cache=False))
    assert all(abs(by) <= BAR for by in apart.values()), apart
