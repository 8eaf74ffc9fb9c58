#!/usr/bin/env python3
"""Makes model_reference.json: transformers' results for SmolLM2, with which the server is compared.

`make parity` runs it:

    make_model_reference.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf FOLDER

The weights are the GGUF's own, dequantized to float32, so only arithmetic can differ: the
server quantizes activations to int8, and sums in another order.

The file holds
  prompts: 50 of {prompt, tokens, logprobs, gaps}: the greedy continuation of 64 tokens (end-of-text
           does not end it), each token's log-probability, and the gap between the two best logits;
  text:    for each window of text.txt its token ids' count and the mean log-probability of its tokens
           but the first.
"""
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM

import reference_tokenizer

HERE = pathlib.Path(__file__).parent
NEW_TOKENS = 64
WINDOW = 1024

OPENINGS = [
    "The capital of France is", "Once upon a time, in a village by the sea,", "def fibonacci(n):\n",
    "To make a simple tomato soup, first", "Water boils at", "In the year 1969,", "1, 2, 3, 4, 5,",
    "The three laws of motion state that", "My favourite season is autumn because",
    "SELECT name, age FROM users WHERE", "Photosynthesis is the process by which",
    "Dear Sir or Madam,\n\nI am writing to", "The quick brown fox", "Q: What is 17 + 25?\nA:",
    "# Installation\n\nTo install the package, run", "The French word for \"bread\" is",
    "A triangle with sides 3, 4 and 5 is", "for (int i = 0; i < n; i++) {\n",
    "The train was late again, and", "Bees are important because", "List of planets:\n1. Mercury\n2.",
    "HTTP status code 404 means", "The opposite of hot is", "She opened the old wooden box and",
    "import numpy as np\n\n",
]
QUESTIONS = [
    "What is gravity?", "Write a haiku about the rain.", "How do I boil an egg?", "Who wrote Hamlet?",
    "Explain recursion to a child.", "What is the capital of Japan?", "Name three fruits that are red.",
    "Translate 'good morning' into Spanish.", "Why is the sky blue?", "What does a compiler do?",
    "Give me a short workout plan.", "What is 12 times 12?", "Describe a sunset in one sentence.",
    "How does a bicycle stay upright?", "Write a Python function that reverses a string.",
    "What is the largest ocean?", "Suggest a name for a grey cat.", "What is inflation?",
    "How many legs does a spider have?", "Tell me a fact about octopuses.", "What is DNA?",
    "Write a polite email declining a meeting.", "What is the speed of light?",
    "How can I learn to play the guitar?", "Summarize the story of the tortoise and the hare.",
]


@torch.inference_mode()
def continue_greedily(model, prompt):
    """Returns the greedy continuation of 64 tokens, with each token's log-probability and lead over the second."""
    tokens, logprobs, gaps = list(prompt), [], []
    past, feed = None, torch.tensor([prompt])
    for _ in range(NEW_TOKENS):
        out = model(feed, past_key_values=past, use_cache=True)
        past, logits = out.past_key_values, out.logits[0, -1].double()
        best = torch.topk(logits, 2)
        token = int(best.indices[0])
        logprobs.append(round(float(torch.log_softmax(logits, -1)[token]), 5))
        gaps.append(round(float(best.values[0] - best.values[1]), 4))
        tokens.append(token)
        feed = torch.tensor([[token]])
    return {"prompt": prompt, "tokens": tokens[len(prompt):], "logprobs": logprobs, "gaps": gaps}


@torch.inference_mode()
def mean_logprob(model, window):
    logits = model(torch.tensor([window])).logits[0, :-1].double()
    picked = torch.log_softmax(logits, -1).gather(1, torch.tensor(window[1:])[:, None])
    return round(float(picked.mean()), 6)


def main():
    gguf = pathlib.Path(sys.argv[1])
    tokenizer = reference_tokenizer.load(gguf)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.eval()

    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in OPENINGS]
    for question in QUESTIONS:
        prompts.append(tokenizer.apply_chat_template([{"role": "user", "content": question}],
                                                     add_generation_prompt=True, return_dict=True)["input_ids"])
    text = tokenizer((HERE / "text.txt").read_text(encoding="utf-8"), add_special_tokens=False)["input_ids"]
    windows = [text[i:i + WINDOW] for i in range(0, len(text), WINDOW)]

    reference = {
        "prompts": [continue_greedily(model, prompt) for prompt in prompts],
        "text": [{"tokens": len(w), "mean_logprob": mean_logprob(model, w)} for w in windows],
    }
    with open(pathlib.Path(sys.argv[2]) / "model_reference.json", "w", encoding="utf-8") as out:
        json.dump(reference, out, separators=(",", ":"))
        out.write("\n")
    gaps = [gap for prompt in reference["prompts"] for gap in prompt["gaps"]]
    print(f"{len(gaps)} positions, {sum(g >= 0.3 for g in gaps)} with a gap of 0.3 or more; "
          f"{len(text)} tokens of text, mean {[w['mean_logprob'] for w in reference['text']]}")


if __name__ == "__main__":
    main()
