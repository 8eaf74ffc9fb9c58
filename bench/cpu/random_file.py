"""Writes a GGUF file of random Q4_K weights in the shapes of a model, for both sides (bench/README.md). Run by run.sh.

    random_file.py MODEL FILE

The speed of a model depends on its shapes, and of a mixture on how its router spreads the tokens as well: a random router spreads them
evenly, as trained ones nearly do.
"""
import math
import pathlib
import random
import struct
import sys

import shapes

BLOCK, BLOCK_BYTES = 256, 144  # of Q4_K
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9  # GGUF's types of values
ALIGNMENT = 32
PATTERN_BLOCKS = 8191  # a prime: rows differ


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def pair(key, value):
    if isinstance(value, str):
        return text(key) + struct.pack("<I", STRING) + text(value)
    if isinstance(value, list):
        return text(key) + struct.pack(f"<IIQ{len(value)}i", ARRAY, INT32, len(value), *value)
    return text(key) + (struct.pack("<If", FLOAT32, value) if isinstance(value, float) else struct.pack("<II", UINT32, value))


def padded(size):
    return -(-size // ALIGNMENT) * ALIGNMENT


def quantized_pattern(draw):
    """Random codes and scales. The minimum of a block is about 7.5 times its scale, so that weights lie on both sides of 0."""
    return b"".join(struct.pack("<ee", 0.001, 0.0075) + draw.randbytes(BLOCK_BYTES - 4) for _ in range(PATTERN_BLOCKS))


def main(model, path):
    draw = random.Random(1)
    pattern = quantized_pattern(draw)
    metadata, tensors = shapes.MODELS[model]
    tensors, infos, offset = list(tensors), b"", 0
    for name, kind, shape, _ in tensors:
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        elements = math.prod(shape)
        offset += padded(elements * 4 if kind == shapes.F32 else elements // BLOCK * BLOCK_BYTES)
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(pair(*item) for item in metadata.items())
    header += infos
    with open(path, "wb") as file:
        file.write(header.ljust(padded(len(header)), b"\0"))
        for _, kind, shape, number in tensors:
            elements = math.prod(shape)
            if kind == shapes.F32:
                data = struct.pack(f"<{elements}f", *(number(draw) for _ in range(elements)))
            else:
                size = elements // BLOCK * BLOCK_BYTES
                data = (pattern * (size // len(pattern) + 1))[:size]
            file.write(data.ljust(padded(len(data)), b"\0"))


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
