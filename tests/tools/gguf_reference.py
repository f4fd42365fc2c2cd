#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An independent float32 forward pass of a llama model in GGUF, for tests to be compared with.

Written from the model's definition, not from the engine: weights are dequantised to float32 once,
every matrix product is float32 without quantised activations, keys and values stay float32.
Needs numpy and gguf (tests/tools/requirements.txt); nothing of it runs in tools/check.
"""

import platform

import gguf
import numpy as np
from gguf.quants import dequantize


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Reference:
    """The model, and the keys and values of one sequence."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.fields = {key: field.contents() for key, field in reader.fields.items()}
        self.weights = {t.name: np.ascontiguousarray(dequantize(t.data, t.tensor_type), dtype=np.float32)
                        for t in reader.tensors}
        get = lambda key: self.fields["llama." + key]
        self.n_layer, self.n_embd = get("block_count"), get("embedding_length")
        self.n_head = get("attention.head_count")
        self.n_kv = self.fields.get("llama.attention.head_count_kv", self.n_head)
        self.head_dim = self.n_embd // self.n_head
        self.eps = np.float32(get("attention.layer_norm_rms_epsilon"))
        base = self.fields.get("llama.rope.freq_base", 10000.0)
        self.frequency = base ** (-np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim)
        if "rope_freqs.weight" in self.weights:
            self.frequency = self.frequency / self.weights["rope_freqs.weight"]
        self.head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        self.reset()

    def reset(self):
        empty = np.zeros((self.n_kv, 0, self.head_dim), np.float32)
        self.keys = [empty] * self.n_layer
        self.values = [empty] * self.n_layer
        self.position = 0

    def rotate(self, x, position):
        """x: [heads][n][head_dim]. GGUF stores llama's q and k so that the pairs are (2i, 2i + 1)."""
        angle = position[:, None] * self.frequency[None, :]
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cos - odd * sin
        out[..., 1::2] = even * sin + odd * cos
        return out

    def attend(self, layer, x, position):
        w = lambda name: self.weights["blk.%d.attn_%s.weight" % (layer, name)]
        n = len(x)
        heads = lambda y, count: y.reshape(n, count, self.head_dim).transpose(1, 0, 2)
        q = self.rotate(heads(x @ w("q").T, self.n_head), position)
        k = self.rotate(heads(x @ w("k").T, self.n_kv), position)
        v = heads(x @ w("v").T, self.n_kv)
        k = self.keys[layer] = np.concatenate([self.keys[layer], k], axis=1)
        v = self.values[layer] = np.concatenate([self.values[layer], v], axis=1)
        out = np.empty((self.n_head, n, self.head_dim), np.float32)
        hidden = np.arange(k.shape[1])[None, :] > position[:, None]
        for h in range(self.n_head):
            kv = h // (self.n_head // self.n_kv)
            score = q[h] @ k[kv].T / np.float32(np.sqrt(self.head_dim))
            score[hidden] = -np.inf
            score = np.exp(score - score.max(axis=1, keepdims=True))
            out[h] = (score / score.sum(axis=1, keepdims=True)) @ v[kv]
        return out.transpose(1, 0, 2).reshape(n, -1) @ w("output").T

    def forward(self, ids, all_rows=False):
        """Appends ids to the sequence; logits [n][n_vocab] of all of them, or [n_vocab] of the last."""
        position = np.arange(self.position, self.position + len(ids))
        x = self.weights["token_embd.weight"][np.asarray(ids)]
        for i in range(self.n_layer):
            w = lambda name: self.weights["blk.%d.%s.weight" % (i, name)]
            x = x + self.attend(i, rms_norm(x, w("attn_norm"), self.eps), position)
            y = rms_norm(x, w("ffn_norm"), self.eps)
            gate = y @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (y @ w("ffn_up").T)) @ w("ffn_down").T
        self.position += len(ids)
        x = rms_norm(x if all_rows else x[-1], self.weights["output_norm.weight"], self.eps)
        return x @ self.head.T

    def prefill(self, ids, chunk=256):
        """Log-probabilities after the last id; chunks bound the memory of the attention scores."""
        for at in range(0, len(ids), chunk):
            logits = self.forward(ids[at:at + chunk])
        return log_softmax(logits)

    def greedy(self, ids, n_max, eos, n_top=5):
        """Greedy ids (the lowest among equals) without EOS, and for each step, EOS's too, the best n_top."""
        self.reset()
        logp, out, tops = self.prefill(ids), [], []
        while True:
            best = np.argsort(-logp, kind="stable")[:n_top]
            tops.append([[int(i), round(float(logp[i]), 4)] for i in best])
            if best[0] == eos:
                return out, tops, "stop"
            out.append(int(best[0]))
            if len(out) == n_max:
                return out, tops, "length"
            logp = log_softmax(self.forward([out[-1]]))

    def nll(self, ids, window):
        """Negative log-likelihoods of consecutive windows; the first id of each is not scored."""
        out = []
        for at in range(0, len(ids), window):
            part = ids[at:at + window]
            if len(part) < 2:
                break
            self.reset()
            logp = log_softmax(self.forward(part, all_rows=True))
            out += [-float(logp[i, part[i + 1]]) for i in range(len(part) - 1)]
        return out


def versions():
    from importlib.metadata import version
    return {"python": platform.python_version(), "numpy": np.__version__, "gguf": version("gguf")}
