#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/blocks.json: what gguf-py says that blocks of every integer type hold.

    make_blocks.py OUT.json

Each case has 512 weights: random bytes in finite scales, then the same with all bytes of the codes
at their ends. The weights are gguf-py's dequantize(), as the bits of their float32, so that a test
can ask for equality. Needs numpy and gguf (tests/tools/requirements.txt).
"""

import json
import sys

import gguf
import numpy as np
from gguf.quants import dequantize

# Type and where its halves stand in a block; an MXFP4 block begins with its exponent.
TYPES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
         "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
         "MXFP4": ()}
N_WEIGHTS = 512
EXPONENTS = (0, 1, 2, 127, 128, 120, 253, 254, 255)    # 0 and 1: subnormal scales


def half(rng):
    while True:
        bits = rng.integers(0, 65536, dtype=np.uint16)
        if bits & 0x7c00 != 0x7c00:
            return bits.tobytes()


def make_bytes(name, rng):
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    out = []
    for i in range(N_WEIGHTS // block):
        data = bytearray(rng.bytes(block_bytes))
        if i == N_WEIGHTS // block - 1:
            data = bytearray(b"\xff" * block_bytes)
        elif i == N_WEIGHTS // block - 2 and block == 32:
            data = bytearray(block_bytes)
        for at in TYPES[name]:
            data[at:at + 2] = half(rng)
        if name == "MXFP4":
            data[0] = EXPONENTS[i % len(EXPONENTS)]
        out.append(bytes(data))
    return b"".join(out)


def main():
    from importlib.metadata import version
    rng, cases = np.random.default_rng(1), []
    for name in TYPES:
        data = make_bytes(name, rng)
        qtype = gguf.GGMLQuantizationType[name]
        with np.errstate(over="ignore"):
            weights = dequantize(np.frombuffer(data, np.uint8), qtype).astype("<f4")
        assert weights.size == N_WEIGHTS
        cases.append({"name": name, "type": int(qtype), "bytes": data.hex(),
                      "weights": weights.tobytes().hex()})
    with open(sys.argv[1], "w", encoding="utf-8") as stream:
        json.dump({"about": "Blocks of GGUF and the float32 bits (little endian) of their weights.",
                   "source": {"by": "tests/tools/make_blocks.py", "gguf": version("gguf"),
                              "numpy": np.__version__}, "cases": cases}, stream, indent=1)
        stream.write("\n")


if __name__ == "__main__":
    main()
