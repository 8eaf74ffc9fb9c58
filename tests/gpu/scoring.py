"""Log-probabilities of one model by the server and by transformers, and their distance.

At each position its own token and the server's 20 likeliest ones are compared. The distance is the root mean square of the
differences over the deviation of the position's logits: the relative error of the logits at any scale.
"""
import dataclasses
import json

import torch

from millrace_grpc import pb

DEVICE = "cuda"
TOP = 20


@dataclasses.dataclass
class Scored:
    """A sequence of n tokens, prompt and answer. Row i of the arrays, [n - 1, 1 + TOP], is of token i + 1: itself, then the likeliest."""
    tokens: list
    ids: torch.Tensor
    logprobs: torch.Tensor

    def same(self, other):
        return self.tokens == other.tokens and torch.equal(self.ids, other.ids) and torch.equal(self.logprobs, other.logprobs)


def score(stub, prompt, answer_tokens=0):
    """Returns the server's log-probabilities of the prompt's tokens and of those that it samples after it."""
    request = pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt), echo=True, logprobs=TOP, sampling=pb.SamplingOptions(temperature=1, seed=7),
        stopping=pb.StopOptions(max_tokens=answer_tokens, ignore_eos=True))
    entries = [entry for response in stub.Generate(request) for entry in response.logprobs]
    tokens = [entry.token for entry in entries]
    assert tokens[:len(prompt)] == prompt and len(tokens) == len(prompt) + answer_tokens
    rows = [[(entry.token, entry.logprob)] + [(top.token, top.logprob) for top in entry.top] for entry in entries[1:]]
    return Scored(tokens, torch.tensor([[token for token, _ in row] for row in rows], device=DEVICE),
                  torch.tensor([[logprob for _, logprob in row] for row in rows], device=DEVICE))


@torch.inference_mode()
def reference(model, scored, cache=None):
    """Returns the same numbers by transformers' `model`, and the deviation of each position's logits."""
    logits = model(torch.tensor([scored.tokens[:-1]], device=DEVICE), past_key_values=cache).logits[0]
    logprobs, deviations = [], []
    for first in range(0, len(logits), 512):
        rows = logits[first:first + 512].float().log_softmax(-1)
        logprobs.append(rows.gather(1, scored.ids[first:first + 512]))
        deviations.append(rows.std(-1))
    return torch.cat(logprobs), torch.cat(deviations)


def relative(ours, theirs, deviations):
    return ((ours - theirs).pow(2).mean().sqrt() / deviations.pow(2).mean().sqrt()).item()


def change_config(folder, changes):
    """Replaces numbers in a folder's config.json, at any depth."""
    path = folder / "config.json"
    left = dict(changes)

    def change(value):
        if isinstance(value, dict):
            return {name: left.pop(name) if name in left else change(inner) for name, inner in value.items()}
        return value

    config = change(json.loads(path.read_text()))
    assert not left, f"config.json has no {list(left)}"
    path.write_text(json.dumps(config))
