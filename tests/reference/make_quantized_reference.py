"""Makes quantized_reference.json: the values that gguf-py (ggml's own Python) dequantizes from blocks of every quantized type, and
iq_grids.inc (iq_grids.py).

  make_quantized_reference.py FOLDER

The file holds for each type 256 elements of random bytes, with scales in plausible ranges, and their float32 values, both as
hexadecimal bytes.
"""

import json
import pathlib
import random
import struct
import sys

import numpy
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

import iq_grids

# Name: (elements, bytes of a block, offsets of its f16 numbers)
KINDS = {
    "Q4_0": (32, 18, [0]),
    "Q4_1": (32, 20, [0, 2]),
    "Q5_0": (32, 22, [0]),
    "Q5_1": (32, 24, [0, 2]),
    "Q8_0": (32, 34, [0]),
    "Q2_K": (256, 84, [80, 82]),
    "Q3_K": (256, 110, [108]),
    "Q4_K": (256, 144, [0, 2]),
    "Q5_K": (256, 176, [0, 2]),
    "Q6_K": (256, 210, [208]),
    "IQ4_NL": (32, 18, [0]),
    "MXFP4": (32, 17, []),
    "IQ4_XS": (256, 136, [0]),
    "IQ3_S": (256, 110, [0]),
    "IQ3_XXS": (256, 98, [0]),
    "IQ2_S": (256, 82, [0]),
    "IQ2_XS": (256, 74, [0]),
    "IQ2_XXS": (256, 66, [0]),
    "IQ1_S": (256, 50, [0]),
    "IQ1_M": (256, 56, []),
}


def main() -> None:
    generator = random.Random(6)
    kinds = {}
    for name, (elements, size, halves) in KINDS.items():
        data = bytearray()
        for index in range(256 // elements):
            block = bytearray(generator.randbytes(size))
            for at in halves:
                block[at : at + 2] = struct.pack("<e", generator.uniform(-1, 1))
            if name == "MXFP4":
                block[0] = (0, 1, 2, 100, 127, 128, 129, 140)[index]
            if name == "IQ1_M":  # the upper four bits of each word of scales are its f16 number
                d = int.from_bytes(struct.pack("<e", generator.uniform(-1, 1)), "little")
                for word in range(4):
                    block[49 + 2 * word] = block[49 + 2 * word] & 15 | (d >> 4 * word & 15) << 4
            data += block
        values = dequantize(numpy.frombuffer(data, numpy.uint8), GGMLQuantizationType[name])
        assert values.size == 256 and numpy.isfinite(values).all()
        kinds[name] = {"bytes": data.hex(), "values": values.astype("<f4").tobytes().hex()}
    path = pathlib.Path(sys.argv[1]) / "quantized_reference.json"
    path.write_text(json.dumps(kinds, indent=0) + "\n")
    path.with_name("iq_grids.inc").write_text(iq_grids.text())


if __name__ == "__main__":
    main()
