"""Prints how many seconds Hugging Face's tokenizers take for a text on one thread, the fastest of N times:
    hf_tokenizer.py tokenizer.json TEXT N
Run with the Python of the group bench (scripts/pypi/bench.in)."""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer  # noqa: E402: reads the variable at import


def main():
    tokenizer = Tokenizer.from_file(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        text = file.read()
    seconds = []
    for _ in range(int(sys.argv[3])):
        begin = time.perf_counter()
        tokenizer.encode_batch_fast([text])  # without token offsets: its fastest method
        seconds.append(time.perf_counter() - begin)
    print(f"{min(seconds):.6f}")


if __name__ == "__main__":
    main()
