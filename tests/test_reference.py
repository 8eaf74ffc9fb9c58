"""Compares SmolLM2 through the whole server with transformers on the same weights (tests/reference).

The CPU quantizes activations to int8, a GPU computes in bfloat16: where the reference's two best logits nearly tie, the best
token may differ.
"""
import json
import pathlib

import pytest

from daemon import on_a_gpu
from millrace_grpc import connect, pb

REFERENCE = pathlib.Path(__file__).parent / "reference"
DATA = json.loads((REFERENCE / "model_reference.json").read_text())

pytestmark = pytest.mark.model

# Where the gap between the two best logits is at least `near`, this share of best tokens must agree; from `wide` on, all must.
BARS = dict(near=0.1, share=0.995, wide=0.4) if on_a_gpu() else dict(near=0.3, share=0.99, wide=1.0)


def score(stub, tokens):
    """Returns, for each token but the first, its log-probability and the likeliest token at its position."""
    responses = list(stub.Generate(pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=tokens), echo=True, logprobs=1, stopping=pb.StopOptions(max_tokens=0))))
    entries = [entry for response in responses if response.echo for entry in response.logprobs]
    assert [entry.token for entry in entries] == tokens
    return [(entry.logprob, entry.top[0].token) for entry in entries[1:]]


def test_best_tokens_and_logprobs_agree_with_transformers(model_server, record_property):
    stub = connect(model_server.grpc)
    compared = equal = wide = wide_equal = positions = 0
    differences = []
    for prompt in DATA["prompts"]:
        ours = score(stub, prompt["prompt"] + prompt["tokens"])[len(prompt["prompt"]) - 1:]
        for (logprob, best), token, reference, gap in zip(
                ours, prompt["tokens"], prompt["logprobs"], prompt["gaps"], strict=True):
            positions += 1
            differences.append(abs(logprob - reference))
            if gap >= BARS["near"]:
                compared += 1
                equal += best == token
            if gap >= BARS["wide"]:
                wide += 1
                wide_equal += best == token
    figures = (f"{positions} positions, {compared / positions:.1%} compared (gap of {BARS['near']} or more), "
               f"{equal / compared:.3%} of them equal; {wide_equal} of {wide} with a gap of {BARS['wide']} or more; "
               f"mean |difference of logprobs| {sum(differences) / positions:.4f}")
    print(figures)
    record_property("figures", figures)
    assert positions == 50 * 64
    assert equal / compared >= BARS["share"], figures
    assert wide_equal == wide, figures


def test_mean_logprob_of_a_text_agrees_with_transformers(model_server, record_property):
    stub = connect(model_server.grpc)
    tokens = list(stub.Tokenize(pb.TokenizeRequest(
        text=(REFERENCE / "text.txt").read_text(encoding="utf-8"), add_special_tokens=False)).token_ids)
    ours = reference = count = 0
    for window in DATA["text"]:
        part, tokens = tokens[:window["tokens"]], tokens[window["tokens"]:]
        ours += sum(logprob for logprob, _ in score(stub, part))
        reference += window["mean_logprob"] * (len(part) - 1)
        count += len(part) - 1
    figures = f"mean log-probability {ours / count:.5f}, transformers {reference / count:.5f}, over {count} tokens"
    print(figures)
    record_property("figures", figures)
    assert not tokens
    assert abs(ours - reference) <= 0.005 * abs(reference), figures
