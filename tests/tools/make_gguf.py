#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tiny llama models in GGUF, valid ones and broken ones, for tests. Standard library only.

    make_gguf.py OUT.gguf                           two layers, 128 wide, Q4_1, smollm, ChatML
    make_gguf.py --type F16 --untied OUT.gguf       another weight type, an own output matrix
    make_gguf.py --rope-scaling --gguf 2 OUT.gguf   rope_freqs.weight as Llama 3 has it, GGUF v2
    make_gguf.py --vocab-json tests/data/tokens_gpt2.json OUT.gguf
    make_gguf.py --list-broken                      NAME, row of the case list, what is wrong
    make_gguf.py --broken string-length-huge OUT.gguf
    make_gguf.py --all-broken DIR                   each as DIR/NAME.gguf
    make_gguf.py --cut 1000 OUT.gguf                only the first 1000 bytes

The same arguments give the same bytes on every machine. The weights are drawn from --seed, so a
model says nothing sensible, but each weight is known: see quantise(). The file format is that of
the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import argparse
import bisect
import copy
import functools
import json
import math
import random
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
SCALAR = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?",
          U64: "Q", I64: "q", F64: "d"}

# Element types by name: number in the file, weights of a block, bytes of a block.
DTYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
          "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q2_K": (10, 256, 84),
          "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210),
          "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "BF16": (30, 1, 2), "MXFP4": (39, 32, 17),
          "Q8_K": (15, 256, 292)}
NOT_RUN = ("Q8_K",)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)    # twice the value

CHATML = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
          "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
          "Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + "
          "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\n' }}{% endif %}")
CHATML_PLAIN = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
                "{{ '<|im_start|>assistant\n' }}{% endif %}")
UNKNOWN_TEMPLATE = "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]\nsecond line"
TEMPLATES = {"chatml": CHATML, "chatml-plain": CHATML_PLAIN, "unknown": UNKNOWN_TEMPLATE, "none": None}

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "Ġ a", "i n", "h e", "Ġ Ġ", "r e", "o n", "e r", "Ġt he", "a t", "Ġ s", "Ġ o",
          "e n", "Ġ c", "e s", "Ġ w", "n d", "i t", "o r", "i s", "a l", "Ġ p", "in g", "Ġ f",
          "a n", "e d", "Ġ b", "o u", "a r", "Ġ in", "l l", "H e", "He ll", "Hell o"]


def byte_table():
    """GPT-2's printable stand-in for each of the 256 bytes: printable Latin-1 stays, the others move up."""
    keep = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    moved = [byte for byte in range(256) if byte not in keep]
    return {**{byte: chr(byte) for byte in keep}, **{byte: chr(256 + i) for i, byte in enumerate(moved)}}


def byte_alphabet():
    return list(byte_table().values())


# ---- values of the file -------------------------------------------------------------------------

def bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16 & 0xffff


def clamp(value, low, high):
    return max(low, min(high, value))


@functools.cache
def steps(table):
    """Places of a table's values in ascending order, and the middles between them."""
    order = sorted(set(table))
    return [table.index(v) for v in order], [(a + b) / 2 for a, b in zip(order, order[1:])]


def near(table, value):
    """The place of a table's value nearest to this one."""
    places, middles = steps(table)
    return places[bisect.bisect_left(middles, value)]


def nibbles(q):
    """32 codes in 16 bytes: code i and code 16 + i share one."""
    return bytes(q[i] & 15 | (q[i + 16] & 15) << 4 for i in range(16))


def planes(q, bits, step):
    """Codes in fields of `bits` bits: of each step * 8 / bits codes, those `step` apart share a byte."""
    per_byte, out = 8 // bits, bytearray()
    for at in range(0, len(q), step * per_byte):
        out += bytes(sum((q[at + i + step * j] & (1 << bits) - 1) << bits * j for j in range(per_byte))
                     for i in range(step))
    return bytes(out)


def scales_6(scales, mins):
    """Q4_K, Q5_K: 8 scales and 8 minima of 6 bits in 12 bytes."""
    out = [scales[i] | scales[i + 4] >> 4 << 6 for i in range(4)]
    out += [mins[i] | mins[i + 4] >> 4 << 6 for i in range(4)]
    return bytes(out + [scales[i + 4] & 15 | (mins[i + 4] & 15) << 4 for i in range(4)])


def quantise_32(dtype, block):
    """A block of 32: the bytes of a type with one scale a block."""
    big, low = max(block, key=abs), min(block)
    if dtype == "Q8_0":
        d = abs(big) / 127
        return struct.pack("<e32b", d, *[clamp(round(v / d), -127, 127) if d else 0 for v in block])
    if dtype in ("Q4_0", "Q5_0"):
        top = 15 if dtype == "Q4_0" else 31
        zero = (top + 1) // 2
        d = big / -zero
        q = [clamp(int(v / d + (zero + 0.5)), 0, top) if d else zero for v in block]
        return struct.pack("<e", d) + (planes([c >> 4 for c in q], 1, 1) if top == 31 else b"") + nibbles(q)
    if dtype in ("Q4_1", "Q5_1"):
        top = 15 if dtype == "Q4_1" else 31
        d = (max(block) - low) / top
        q = [clamp(int((v - low) / d + 0.5), 0, top) if d else 0 for v in block]
        return struct.pack("<ee", d, low) + (planes([c >> 4 for c in q], 1, 1) if top == 31 else b"") + nibbles(q)
    if dtype == "IQ4_NL":
        d = abs(big) / 127
        return struct.pack("<e", d) + nibbles([near(IQ4, v / d) if d else 8 for v in block])
    if dtype == "MXFP4":
        e = clamp(math.floor(math.log2(abs(big))) - 1 + 127, 2, 254) if big else 2
        return bytes([e]) + nibbles([near(FP4, v / 2.0 ** (e - 128)) for v in block])
    raise ValueError("cannot make weights of type " + dtype)


def parts_of(block, size, top, has_min):
    """Scale and minimum of each part of a block of 256, as real numbers."""
    parts = [block[at:at + size] for at in range(0, 256, size)]
    if has_min:
        mins = [max(0.0, -min(p)) for p in parts]
        return parts, [(max(p) + m) / top for p, m in zip(parts, mins)], mins
    return parts, [max(map(abs, p)) / top for p in parts], [0.0] * len(parts)


def quantise_256(dtype, block):
    """A block of 256: integer scales of parts of 32 or 16, in units of one d (and dmin)."""
    # Size of a part, top of the codes and of the scales, zero of the codes.
    size, top, scale_top, zero = {"Q2_K": (16, 3, 15, 0), "Q3_K": (16, 3, 31, 4), "Q4_K": (32, 15, 63, 0),
                                  "Q5_K": (32, 31, 63, 0), "Q6_K": (16, 31, 127, 32),
                                  "IQ4_XS": (32, 127, 31, 0)}[dtype]
    has_min = dtype in ("Q2_K", "Q4_K", "Q5_K")
    parts, real, real_min = parts_of(block, size, top, has_min)
    d, dmin = max(real) / scale_top, max(real_min) / scale_top
    scales = [clamp(round(s / d), 0, scale_top) if d else 0 for s in real]
    mins = [clamp(round(m / dmin), 0, scale_top) if dmin else 0 for m in real_min]
    q = []
    for part, scale, low in zip(parts, scales, mins):
        unit = d * scale
        if dtype == "IQ4_XS":
            q += [near(IQ4, v / unit) if unit else 8 for v in part]
        else:
            bottom, high = (0, top) if has_min else (0, 2 * zero - 1)
            q += [clamp(round((v + dmin * low) / unit) + zero, bottom, high) if unit else zero for v in part]
    if dtype == "Q2_K":
        head = bytes(s | m << 4 for s, m in zip(scales, mins))
        return head + planes(q, 2, 32) + struct.pack("<ee", d, dmin)
    if dtype == "Q3_K":
        s = [v + 32 for v in scales]
        six = [s[i] & 15 | (s[i + 8] & 15) << 4 for i in range(8)]
        six += [sum((s[i + 4 * j] >> 4) << 2 * j for j in range(4)) for i in range(4)]
        return planes([c >> 2 for c in q], 1, 32) + planes(q, 2, 32) + bytes(six) + struct.pack("<e", d)
    if dtype == "Q4_K":
        return struct.pack("<ee", d, dmin) + scales_6(scales, mins) + planes(q, 4, 32)
    if dtype == "Q5_K":
        return (struct.pack("<ee", d, dmin) + scales_6(scales, mins) + planes([c >> 4 for c in q], 1, 32)
                + planes(q, 4, 32))
    if dtype == "Q6_K":
        return (planes(q, 4, 64) + planes([c >> 4 for c in q], 2, 32) + struct.pack("<16b", *scales)
                + struct.pack("<e", d))
    s = [v + 32 for v in scales]
    return (struct.pack("<eH", d, sum((v >> 4) << 2 * i for i, v in enumerate(s))) + planes(s, 4, 1)
            + b"".join(nibbles(q[at:at + 32]) for at in range(0, 256, 32)))


def quantise(dtype, values):
    """Row-major values -> the bytes of a tensor, in whole blocks (kernels/dtype.h has the formats)."""
    if dtype == "F32":
        return struct.pack("<%df" % len(values), *values)
    if dtype == "F16":
        return struct.pack("<%de" % len(values), *values)
    if dtype == "BF16":
        return struct.pack("<%dH" % len(values), *[bf16(v) for v in values])
    size = DTYPES[dtype][1]
    make = quantise_32 if size == 32 else quantise_256
    return b"".join(make(dtype, values[at:at + size]) for at in range(0, len(values), size))


class Arr:
    """An array value: element type and items (numbers, or byte strings)."""

    def __init__(self, kind, items):
        self.kind, self.items = kind, items


class Raw:
    """A value whose bytes are given, for files that lie."""

    def __init__(self, kind, data):
        self.kind, self.data = kind, data


def as_bytes(text):
    return text.encode() if isinstance(text, str) else text


class Tensor:
    def __init__(self, name, dtype, shape, data):
        self.name, self.dtype_id, self.shape, self.data = name, DTYPES[dtype][0], list(shape), data
        self.offset = None      # set to lie about the place; else the next free one


class File:
    """A GGUF file as lists that a broken variant may edit before bytes() lays it out."""

    def __init__(self, version=3, alignment=32):
        self.magic, self.version, self.alignment = b"GGUF", version, alignment
        self.kv, self.tensors = [], []
        self.n_kv = self.n_tensors = None       # set to lie about the counts
        self.byte_order = "<"
        self.sizes_lie = {}                     # index of a tensor -> number of dimensions to claim

    def put(self, key, kind, value):
        self.kv.append([key, kind, value])

    def index(self, key):
        return next(i for i, entry in enumerate(self.kv) if entry[0] == key)

    def set(self, key, kind, value):
        self.kv[self.index(key)] = [key, kind, value]

    def drop(self, key):
        del self.kv[self.index(key)]

    def tensor(self, name):
        return next(t for t in self.tensors if t.name == name)

    def pack(self, fmt, *values):
        return struct.pack(self.byte_order + fmt, *values)

    def string(self, text):
        data = as_bytes(text)
        return self.pack("Q", len(data)) + data

    def value(self, kind, value):
        if isinstance(value, Raw):
            return self.pack("I", value.kind) + value.data
        head = self.pack("I", kind)
        if kind == STR:
            return head + self.string(value)
        if kind == ARR:
            body = b"".join(self.string(i) if value.kind == STR else self.pack(SCALAR[value.kind], i)
                            for i in value.items)
            return head + self.pack("IQ", value.kind, len(value.items)) + body
        return head + self.pack(SCALAR[kind], value)

    def bytes(self):
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.kv) if self.n_kv is None else self.n_kv
        out = bytearray(self.magic + self.pack("IQQ", self.version, n_tensors, n_kv))
        for key, kind, value in self.kv:
            out += self.string(key) + self.value(kind, value)
        data = bytearray()
        for i, t in enumerate(self.tensors):
            place = len(data) + -len(data) % self.alignment
            data += bytes(place - len(data)) + t.data
            out += self.string(t.name) + self.pack("I", self.sizes_lie.get(i, len(t.shape)))
            out += b"".join(self.pack("Q", d & 2**64 - 1) for d in t.shape)
            out += self.pack("IQ", t.dtype_id, place if t.offset is None else t.offset & 2**64 - 1)
        out += bytes(-len(out) % self.alignment)
        self.data_at = len(out)
        return bytes(out) + bytes(data)


# ---- a valid model ------------------------------------------------------------------------------

def default_vocabulary():
    tokens = SPECIALS + byte_alphabet() + [m.replace(" ", "") for m in MERGES]
    return tokens, MERGES


def rope_factors(head_dim, base, factor=8.0, low=1.0, high=4.0, context=64):
    """Llama 3's scaling: a divisor for each rotation frequency (here with a tiny original context)."""
    out = []
    for i in range(0, head_dim, 2):
        wave = 2 * math.pi * base ** (i / head_dim)
        if wave < context / high:
            out.append(1.0)
        elif wave > context / low:
            out.append(factor)
        else:
            smooth = (context / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out


def make_file(layers=2, embd=128, heads=2, kv_heads=1, ffn=256, ctx=256, vocab=0, type="Q4_1",
              embd_type=None, output_type=None, untied=False, rope_scaling=False, rope_base=10000.0,
              eps=1e-5, pre="smollm", template="chatml", add_bos=False, gguf=3, seed=1, scale=1.0,
              alignment=32, vocab_json=None, name="tiny", poison=None):
    rng = random.Random(seed)
    file = File(gguf, alignment)
    tokens, merges = default_vocabulary()
    if vocab_json:
        with open(vocab_json, encoding="utf-8") as stream:
            given = json.load(stream)
        tokens, merges, pre = given["vocabulary"], given["merges"], given["pre"]
    n_special = sum(t in SPECIALS for t in tokens)
    types = [3 if t in SPECIALS else 1 for t in tokens]
    while len(tokens) < vocab:
        tokens = tokens + ["<unused%d>" % len(tokens)]
        types.append(5)
    n_vocab, head_dim = len(tokens), embd // heads

    file.put("general.architecture", STR, "llama")
    file.put("general.name", STR, name)
    if alignment != 32:
        file.put("general.alignment", U32, alignment)
    for key, value in (("block_count", layers), ("context_length", ctx), ("embedding_length", embd),
                       ("feed_forward_length", ffn), ("attention.head_count", heads),
                       ("attention.head_count_kv", kv_heads), ("rope.dimension_count", head_dim),
                       ("vocab_size", n_vocab)):
        file.put("llama." + key, U32, value)
    file.put("llama.rope.freq_base", F32, rope_base)
    file.put("llama.attention.layer_norm_rms_epsilon", F32, eps)
    file.put("tokenizer.ggml.model", STR, "gpt2")
    if pre:
        file.put("tokenizer.ggml.pre", STR, pre)
    file.put("tokenizer.ggml.tokens", ARR, Arr(STR, tokens))
    file.put("tokenizer.ggml.token_type", ARR, Arr(I32, types))
    file.put("tokenizer.ggml.merges", ARR, Arr(STR, list(merges)))
    if n_special:
        file.put("tokenizer.ggml.bos_token_id", U32, tokens.index("<|im_start|>"))
        file.put("tokenizer.ggml.eos_token_id", U32, tokens.index("<|im_end|>"))
    file.put("tokenizer.ggml.add_bos_token", BOOL, add_bos)
    if TEMPLATES[template] is not None:
        file.put("tokenizer.chat_template", STR, TEMPLATES[template])

    def matrix(tensor, dtype, cols, rows):
        bound = scale * math.sqrt(3 / cols)
        values = [(2 * rng.random() - 1) * bound for _ in range(cols * rows)]
        file.tensors.append(Tensor(tensor, dtype, [cols, rows], quantise(dtype, values)))

    def norm(tensor):
        file.tensors.append(Tensor(tensor, "F32", [embd],
                                   quantise("F32", [0.75 + rng.random() / 2 for _ in range(embd)])))

    matrix("token_embd.weight", embd_type or type, embd, n_vocab)
    if poison is not None:
        row_bytes = len(file.tensors[0].data) // n_vocab
        infinite = quantise(embd_type or type, [math.inf] * embd)
        file.tensors[0].data = (file.tensors[0].data[:poison * row_bytes] + infinite
                                + file.tensors[0].data[(poison + 1) * row_bytes:])
    for i in range(layers):
        blk = "blk.%d." % i
        norm(blk + "attn_norm.weight")
        matrix(blk + "attn_q.weight", type, embd, heads * head_dim)
        matrix(blk + "attn_k.weight", type, embd, kv_heads * head_dim)
        matrix(blk + "attn_v.weight", type, embd, kv_heads * head_dim)
        matrix(blk + "attn_output.weight", type, heads * head_dim, embd)
        norm(blk + "ffn_norm.weight")
        matrix(blk + "ffn_gate.weight", type, embd, ffn)
        matrix(blk + "ffn_up.weight", type, embd, ffn)
        matrix(blk + "ffn_down.weight", type, ffn, embd)
    norm("output_norm.weight")
    if untied:
        matrix("output.weight", output_type or type, embd, n_vocab)
    if rope_scaling:
        file.tensors.append(Tensor("rope_freqs.weight", "F32", [head_dim // 2],
                                   quantise("F32", rope_factors(head_dim, rope_base))))
    return file


# ---- broken files -------------------------------------------------------------------------------
# Each edits a valid file, or returns other bytes. The order and the numbers are those of the list
# of cases: 22 pre-tokenizer, 47 cut, 48 header, 49 dimensions, 50 counts, 51 alignment, 52 places,
# 53 hyperparameters, 54 duplicates, 55 tokens.

BROKEN = {}


def broken(case, says, name=None):
    """Registers a broken file; `says` is what a good message names."""

    def register(make):
        BROKEN[name or make.__name__.replace("_", "-")] = (case, says, make)
        return make

    return register


def small():
    """The valid file that the broken ones start from: about 20 KB."""
    return make_file(layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=64, type="Q4_0")


def edits(case, says, name, edit):
    BROKEN[name] = (case, says, edit)


def key_value(name, key, kind, value, case=53, says=None):
    edits(case, says or key, name, lambda f: f.set(key, kind, value))


def missing(name, key, case=53):
    edits(case, key, name, lambda f: f.drop(key))


edits(22, "tokenizer.ggml.pre", "pre-missing", lambda f: f.drop("tokenizer.ggml.pre"))
key_value("pre-unknown", "tokenizer.ggml.pre", STR, "nobody-knows-this", 22)
key_value("tokenizer-unknown", "tokenizer.ggml.model", STR, "runes", 22)
missing("tokenizer-missing", "tokenizer.ggml.model", 22)


@broken(47, "cut in the header")
def cut_header(f):
    return f.bytes()[:15]


@broken(47, "cut in the metadata")
def cut_metadata(f):
    whole = f.bytes()
    return whole[:whole.index(b"tokenizer.ggml.merges") + 40]


@broken(47, "cut in the list of tensors")
def cut_tensor_list(f):
    whole = f.bytes()
    return whole[:whole.index(b"blk.0.ffn_up.weight") + 25]


@broken(47, "no tensor data at all")
def cut_before_data(f):
    whole = f.bytes()
    return whole[:f.data_at]


@broken(47, "cut in the middle of the data")
def cut_data(f):
    whole = f.bytes()
    return whole[:(f.data_at + len(whole)) // 2]


@broken(47, "the last byte is missing")
def cut_last_byte(f):
    return f.bytes()[:-1]


@broken(48, "empty file")
def empty(f):
    return b""


@broken(48, "the magic and nothing else")
def magic_only(f):
    return b"GGUF"


@broken(48, "magic")
def magic_wrong(f):
    f.magic = b"GGML"


@broken(48, "big endian")
def big_endian(f):
    f.byte_order = ">"


for number in (0, 1, 4, 99):
    edits(48, "version %d" % number, "version-%d" % number,
          lambda f, number=number: setattr(f, "version", number))


def shape(name, says, edit, tensor="blk.0.attn_q.weight"):
    edits(49, tensor, name, lambda f: edit(f.tensor(tensor)))


shape("dimension-zero", "0", lambda t: t.shape.__setitem__(0, 0))
shape("dimension-zero-rows", "0", lambda t: t.shape.__setitem__(1, 0))
shape("dimension-minus-one", "-1", lambda t: t.shape.__setitem__(0, -1))
shape("dimension-wraps", "2^60", lambda t: t.shape.__setitem__(1, 2**60))
shape("dimension-product-wraps", "2^32", lambda t: t.shape.__setitem__(slice(0, 2), [2**32, 2**32]))
shape("dimension-not-whole-blocks", "33", lambda t: t.shape.__setitem__(0, 33))
shape("dimensions-five", "5", lambda t: t.shape.extend([1, 1, 1]))
shape("dimensions-none", "0", lambda t: t.shape.clear())
shape("type-unknown", "200", lambda t: setattr(t, "dtype_id", 200))
shape("type-near-2-32", "4294967295", lambda t: setattr(t, "dtype_id", 2**32 - 1))
shape("type-removed", "4", lambda t: setattr(t, "dtype_id", 4))


@broken(49, "blk.0.attn_q.weight")
def dimensions_2_31(f):
    f.sizes_lie[[t.name for t in f.tensors].index("blk.0.attn_q.weight")] = 2**31


@broken(49, "blk.0.attn_q.weight")
def rows_not_whole_blocks_of_256(f):
    f.tensor("blk.0.attn_q.weight").dtype_id = DTYPES["Q4_K"][0]


@broken(49, "token_embd.weight")
def rows_not_whole_blocks_of_32(f):
    t = f.tensor("token_embd.weight")
    t.dtype_id, t.shape = DTYPES["MXFP4"][0], [t.shape[0] - 16, t.shape[1]]


@broken(47, "blk.0.ffn_up.weight")
def rows_of_more_bits_than_there_are(f):
    """The last tensor claims Q5_1 where the bytes of Q4_0 are."""
    f.tensors.append(f.tensors.pop([t.name for t in f.tensors].index("blk.0.ffn_up.weight")))
    f.tensors[-1].dtype_id = DTYPES["Q5_1"][0]


@broken(49, "Q8_K")
def type_not_run_here(f):
    """A type that GGUF knows and this engine does not run: 256 weights a block, so widths of 256."""
    g = make_file(layers=1, embd=256, heads=4, kv_heads=1, ffn=32, ctx=64, type="Q4_0")
    t = g.tensor("blk.0.ffn_up.weight")
    t.dtype_id, t.data = DTYPES["Q8_K"][0], bytes(t.shape[1] * DTYPES["Q8_K"][2])
    return g.bytes()


edits(50, "number of keys", "key-count-huge", lambda f: setattr(f, "n_kv", 2**63 - 1))
edits(50, "number of keys", "key-count-2-64", lambda f: setattr(f, "n_kv", 2**64 - 1))
edits(50, "number of keys", "key-count-one-more", lambda f: setattr(f, "n_kv", len(f.kv) + 1))
edits(50, "number of tensors", "tensor-count-huge", lambda f: setattr(f, "n_tensors", 2**63 - 1))
edits(50, "number of tensors", "tensor-count-2-64", lambda f: setattr(f, "n_tensors", 2**64 - 1))
edits(50, "number of tensors", "tensor-count-zero",
      lambda f: (f.tensors.clear(), setattr(f, "n_tensors", 0)) and None)


@broken(50, "length of a key")
def key_length_huge(f):
    whole = bytearray(f.bytes())
    whole[24:32] = struct.pack("<Q", 2**63 - 8)
    return bytes(whole)


@broken(50, "length of a key")
def key_length_wraps(f):
    whole = bytearray(f.bytes())
    whole[24:32] = struct.pack("<Q", 2**64 - 24)
    return bytes(whole)


@broken(50, "general.name")
def string_length_huge(f):
    f.set("general.name", STR, Raw(STR, struct.pack("<Q", 2**63 - 1) + b"x"))


@broken(50, "tokenizer.ggml.tokens")
def array_length_huge(f):
    f.set("tokenizer.ggml.tokens", ARR, Raw(ARR, struct.pack("<IQ", STR, 2**63 - 1)))


@broken(50, "tokenizer.ggml.token_type")
def array_length_wraps(f):
    f.set("tokenizer.ggml.token_type", ARR, Raw(ARR, struct.pack("<IQ", I32, 2**62 + 1)))


@broken(50, "tokenizer.ggml.tokens")
def array_of_huge_strings(f):
    body = b"".join(struct.pack("<Q", 2**62) for _ in range(100))
    f.set("tokenizer.ggml.tokens", ARR, Raw(ARR, struct.pack("<IQ", STR, 100) + body))


@broken(50, "general.name")
def array_nested_deeply(f):
    f.set("general.name", ARR, Raw(ARR, struct.pack("<IQ", ARR, 1) * 2000 + struct.pack("<IQ", U8, 0)))


@broken(50, "general.name")
def array_element_type_unknown(f):
    f.set("general.name", ARR, Raw(ARR, struct.pack("<IQ", 77, 3) + b"abc"))


@broken(50, "general.name")
def value_type_unknown(f):
    f.set("general.name", STR, Raw(13, struct.pack("<Q", 0)))


def alignment(name, kind, value):
    edits(51, "general.alignment", name, lambda f: f.kv.insert(1, ["general.alignment", kind, value]))


alignment("alignment-zero", U32, 0)
alignment("alignment-not-a-power-of-two", U32, 48)
alignment("alignment-huge", U32, 2**31)
alignment("alignment-wrong-type", U64, 32)
alignment("alignment-a-string", STR, "32")


def place(name, edit, tensor="output_norm.weight"):
    edits(52, tensor, name, lambda f: edit(f.tensor(tensor), f))


place("tensor-past-end", lambda t, f: setattr(t, "offset", 1 << 20))
place("tensor-offset-wraps", lambda t, f: setattr(t, "offset", 2**64 - 32))
place("tensor-offset-2-63", lambda t, f: setattr(t, "offset", 2**63))
place("tensor-unaligned", lambda t, f: setattr(t, "offset", 4))
place("tensor-overlaps", lambda t, f: setattr(t, "offset", 32), "blk.0.attn_k.weight")
place("tensor-same-place", lambda t, f: setattr(t, "offset", 0), "blk.0.ffn_up.weight")

for key in ("block_count", "context_length", "embedding_length", "feed_forward_length",
            "attention.head_count", "attention.head_count_kv"):
    short = key.split(".")[-1].replace("_", "-")
    key_value(short + "-zero", "llama." + key, U32, 0)
    if key != "context_length":                 # a long context is no lie, only more than we may grant
        key_value(short + "-huge", "llama." + key, U32, 2**32 - 1)
    if key != "attention.head_count_kv":        # without it every head has its own keys and values
        missing(short + "-missing", "llama." + key)
key_value("block-count-one-more", "llama.block_count", U32, 2, says="blk.1.attn_norm.weight")
key_value("head-count-not-a-divisor", "llama.attention.head_count", U32, 3)
key_value("head-count-kv-not-a-divisor", "llama.attention.head_count_kv", U32, 2)
key_value("head-count-a-string", "llama.attention.head_count", STR, "1")
key_value("head-count-negative", "llama.attention.head_count", I32, -1)
key_value("vocab-size-other", "llama.vocab_size", U32, 1000)
key_value("feed-forward-length-other", "llama.feed_forward_length", U32, 96, says="blk.0.ffn_gate.weight")
key_value("rope-dimension-count-odd", "llama.rope.dimension_count", U32, 63)
key_value("rope-dimension-count-huge", "llama.rope.dimension_count", U32, 2**31)
key_value("rope-base-zero", "llama.rope.freq_base", F32, 0.0)
key_value("rope-base-nan", "llama.rope.freq_base", F32, math.nan)
key_value("rope-base-infinite", "llama.rope.freq_base", F32, math.inf)
key_value("epsilon-nan", "llama.attention.layer_norm_rms_epsilon", F32, math.nan)
key_value("epsilon-negative", "llama.attention.layer_norm_rms_epsilon", F32, -1.0)
missing("epsilon-missing", "llama.attention.layer_norm_rms_epsilon")
key_value("architecture-unknown", "general.architecture", STR, "mystery")
key_value("architecture-a-number", "general.architecture", U32, 7)
missing("architecture-missing", "general.architecture")
edits(53, "blk.0.ffn_gate.weight", "tensor-missing",
      lambda f: f.tensors.remove(f.tensor("blk.0.ffn_gate.weight")))
edits(53, "output_norm.weight", "norm-missing",
      lambda f: f.tensors.remove(f.tensor("output_norm.weight")))


@broken(53, "expected 96")
def embedding_length_other(f):
    f.drop("llama.rope.dimension_count")        # it would tell first
    f.set("llama.embedding_length", U32, 96)


@broken(53, "token_embd.weight")
def vocabulary_smaller_than_embedding(f):
    f.drop("llama.vocab_size")
    for key, kind in (("tokens", STR), ("token_type", I32)):
        items = f.kv[f.index("tokenizer.ggml." + key)][2].items
        f.set("tokenizer.ggml." + key, ARR, Arr(kind, items[:-5]))


@broken(53, "token_embd.weight")
def vocabulary_larger_than_embedding(f):
    f.drop("llama.vocab_size")
    items = f.kv[f.index("tokenizer.ggml.tokens")][2].items
    f.set("tokenizer.ggml.tokens", ARR, Arr(STR, items + ["<more%d>" % i for i in range(5)]))
    items = f.kv[f.index("tokenizer.ggml.token_type")][2].items
    f.set("tokenizer.ggml.token_type", ARR, Arr(I32, items + [1] * 5))


edits(54, "llama.block_count", "key-duplicate",
      lambda f: f.kv.append(["llama.block_count", U32, 1]))
edits(54, "empty key", "key-empty", lambda f: f.kv.append(["", U32, 1]))
edits(54, "blk.0.attn_q.weight", "tensor-duplicate",
      lambda f: f.tensors.append(f.tensor("blk.0.attn_q.weight")))
edits(54, "empty name", "tensor-name-empty",
      lambda f: setattr(f.tensor("blk.0.attn_q.weight"), "name", ""))
edits(54, "name of a tensor", "tensor-name-long",
      lambda f: setattr(f.tensor("blk.0.attn_q.weight"), "name", "n" * 5000))


def tokens_edited(name, says, key, edit):
    def make(f):
        kind, items = f.kv[f.index(key)][2].kind, list(f.kv[f.index(key)][2].items)
        edit(items)
        f.set(key, ARR, Arr(kind, items))

    edits(55, says, name, make)


TOKENS, TYPES, JOINS = ("tokenizer.ggml." + k for k in ("tokens", "token_type", "merges"))
tokens_edited("token-outside-the-byte-alphabet", TOKENS, TOKENS, lambda i: i.__setitem__(290, "日本"))
tokens_edited("token-not-utf8", TOKENS, TOKENS, lambda i: i.__setitem__(290, b"\xff\xfe"))
tokens_edited("token-huge", TOKENS, TOKENS, lambda i: i.__setitem__(290, "x" * 70000))
tokens_edited("token-types-fewer", TYPES, TYPES, lambda i: i.pop())
tokens_edited("token-types-more", TYPES, TYPES, lambda i: i.append(1))
tokens_edited("token-type-unknown", TYPES, TYPES, lambda i: i.__setitem__(5, 99))
tokens_edited("merge-without-space", JOINS, JOINS, lambda i: i.__setitem__(3, "he"))
tokens_edited("merge-of-unknown-token", JOINS, JOINS, lambda i: i.__setitem__(3, "h zzz"))
tokens_edited("merge-with-unknown-result", JOINS, JOINS, lambda i: i.__setitem__(3, "q q"))
tokens_edited("merge-empty", JOINS, JOINS, lambda i: i.__setitem__(3, ""))
missing("tokens-missing", TOKENS, 55)
missing("merges-missing", JOINS, 55)
edits(55, TOKENS, "tokens-of-numbers", lambda f: f.set(TOKENS, ARR, Arr(U32, list(range(293)))))
edits(55, JOINS, "merges-of-numbers", lambda f: f.set(JOINS, ARR, Arr(U32, [1, 2, 3])))
key_value("eos-outside-the-vocabulary", "tokenizer.ggml.eos_token_id", U32, 293, 55)
key_value("bos-outside-the-vocabulary", "tokenizer.ggml.bos_token_id", U32, 2**32 - 1, 55)


def make_broken(name, start=[]):
    if not start:
        start.append(small())       # the same for all, so made once
    file = copy.deepcopy(start[0])
    result = BROKEN[name][2](file)
    return result if isinstance(result, bytes) else file.bytes()


def add_all_types(file):
    """A row of 256 of each type, which is no part of a model: something to damage."""
    for name in DTYPES:
        data = bytes(DTYPES[name][2]) if name in NOT_RUN else quantise(name, [i / 256 for i in range(-128, 128)])
        file.tensors.append(Tensor("row." + name, name, [256], data))


def make_bytes(all_types=False, **options):
    """The bytes of a valid model; the options are those of make_file(). With all_types also a row of each."""
    file = make_file(**options)
    if all_types:
        add_all_types(file)
    return file.bytes()


def main():
    parser = argparse.ArgumentParser(
        description="Makes tiny llama models in GGUF, valid ones and broken ones, for tests.",
        epilog="The same arguments give the same bytes. See the head of this file for examples.")
    parser.add_argument("out", nargs="?", metavar="OUT.gguf", help="file to write")
    parser.add_argument("--broken", metavar="NAME", choices=sorted(BROKEN), help="make this broken file")
    parser.add_argument("--list-broken", action="store_true",
                        help="print name, row of the case list and what is wrong, and end")
    parser.add_argument("--all-broken", metavar="DIR", help="make every broken file in this directory, and end")
    parser.add_argument("--cut", type=int, metavar="N", help="write only the first N bytes")
    shape_of = parser.add_argument_group("shape")
    for option, value, text in (("layers", 2, "blocks"), ("embd", 128, "width"), ("heads", 2, "query heads"),
                                ("kv-heads", 1, "key and value heads"), ("ffn", 256, "width of the MLP"),
                                ("ctx", 256, "context length"),
                                ("vocab", 0, "fill up with unused tokens to this number")):
        shape_of.add_argument("--" + option, type=int, default=value, help="%s (%d)" % (text, value))
    weights = parser.add_argument_group("weights")
    kinds = [k for k in DTYPES if k not in NOT_RUN]
    weights.add_argument("--type", choices=kinds, default="Q4_1", help="of the matrices (Q4_1)")
    weights.add_argument("--embd-type", choices=kinds, help="of token_embd (as --type)")
    weights.add_argument("--output-type", choices=kinds, help="of output (as --type)")
    weights.add_argument("--untied", action="store_true", help="with an output matrix of its own")
    weights.add_argument("--all-types", action="store_true", help="and a row of 256 of each type, as tensors to damage")
    weights.add_argument("--seed", type=int, default=1, help="of the weights (1)")
    weights.add_argument("--poison", type=int, metavar="ID",
                         help="the embedding of this token is infinite (F32 or F16)")
    weights.add_argument("--scale", type=float, default=1.0, help="of the matrices (1.0)")
    weights.add_argument("--rope-scaling", action="store_true", help="with rope_freqs.weight as Llama 3 has")
    weights.add_argument("--rope-base", type=float, default=10000.0, help="(10000)")
    text = parser.add_argument_group("text")
    text.add_argument("--pre", default="smollm", help="pre-tokenizer; '' leaves the key out (smollm)")
    text.add_argument("--template", choices=sorted(TEMPLATES), default="chatml", help="(chatml)")
    text.add_argument("--add-bos", action="store_true", help="the tokenizer puts BOS first")
    text.add_argument("--vocab-json", metavar="FILE", help="take vocabulary, merges and pre from this file")
    layout = parser.add_argument_group("layout")
    layout.add_argument("--gguf", type=int, choices=(2, 3), default=3, help="version of the format (3)")
    layout.add_argument("--alignment", type=int, default=32, help="of tensor data (32)")
    layout.add_argument("--name", default="tiny", help="general.name (tiny)")
    args = vars(parser.parse_args())

    out, name, cut = args.pop("out"), args.pop("broken"), args.pop("cut")
    if args.pop("list_broken"):
        for key, (case, says, _) in BROKEN.items():
            print("%s\t%d\t%s" % (key, case, says))
        return 0
    directory = args.pop("all_broken")
    if directory:
        for key in BROKEN:
            with open("%s/%s.gguf" % (directory, key), "wb") as stream:
                stream.write(make_broken(key))
        return 0
    if not out:
        parser.error("OUT.gguf is missing")
    data = make_broken(name) if name else make_bytes(**args)
    with open(out, "wb") as stream:
        stream.write(data[:cut])
    return 0


if __name__ == "__main__":
    sys.exit(main())
