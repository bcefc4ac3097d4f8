"""The cost of an update of a GPT, by formulas and by the clock's estimates: time and memory.

The GPT is that of gpt.py under autocast: fp32 parameters and residual stream, bf16 products. `w` is
the width, so `6 * w` is six bytes per token and element of the width.
"""

import os
from dataclasses import dataclass

from .files import ROOT, read_json


@dataclass
class Shape:
    layers: int = 6
    width: int = 512
    heads: int = 8
    kv_heads: int = 4
    vocabulary: int = 256  # bytes

    @property
    def d(self):
        return self.width // self.heads

    @property
    def parameters(self):
        """Parameters of the products; the embedding is as large as the head."""
        narrow = 2 * self.kv_heads * self.d
        return self.layers * self.width * (10 * self.width + narrow) + self.width * self.vocabulary


SHAPES = {
    "gpt2": Shape(12, 768, 12, 12, 50257),
    "gpt2-medium": Shape(24, 1024, 16, 16, 50257),
    "gpt2-large": Shape(36, 1280, 20, 20, 50257),
    "gpt2-xl": Shape(48, 1600, 25, 25, 50257),
    "llama-like": Shape(16, 2048, 16, 4, 50257),
    "small": Shape(),
}


@dataclass
class Latent:
    """A model whose cache has one vector per token and layer for all heads (MLA), in bf16."""

    layers: int
    heads: int
    parameters: float
    latent: int = 512
    rope: int = 64
    qk: int = 192  # features of a head's own K: 128 and those of the position
    v: int = 128

    def caches(self):
        """{what a token and layer keeps: bytes}, with grouped heads of as many features as V."""
        grouped = {f"{g} K/V heads": 2 * 2 * g * self.v for g in (16, 8, 4, 2) if g < self.heads}
        own = {f"{self.heads} heads": 2 * self.heads * (self.qk + self.v)}
        return {"latent": 2 * (self.latent + self.rope), **own, **grouped}

    def tokens(self, size, room):
        """How many tokens, of all sequences, fit into `room` bytes beside the parameters."""
        return max(0, int((room - 2 * self.parameters) // (self.layers * size)))


LATENT = {"deepseek-v2-lite": Latent(27, 16, 15.7e9)}

# The parts of a step's forward and backward in training, each with its own FLOP/s.
PARTS = {
    "01": ("01 naive forward", "02 registers forward", "05 standard backward"),  # recomputes P
    "06": ("06 registers forward", "06 backward backward"),
    "08": ("07 lazy forward", "08 roles backward"),
    "10": ("10 scheduled forward", "11 columns backward"),
}
# Shares of the data sheet's rates for such products and kernels: a fit, see docs/model.md.
MATMUL, COPY = 0.65, 0.65


# --- memory ---------------------------------------------------------------------------------------


def kept_per_token(shape):
    """Bytes that a layer keeps for its backward, per token, without N^2."""
    w, kv = shape.width, shape.kv_heads * shape.d
    stream = 2 * 4 * w  # x before each half
    attention = 2 * w + 2 * (w + 2 * kv) + 2 * 2 * w  # norm; q, k, v; O in both layouts
    mlp = 2 * w + 2 * 8 * w  # norm, before and after GELU
    return stream + attention + mlp + 4 * shape.heads


def scores_bytes(shape, batch, n):
    return 8 * batch * shape.heads * n * n


def memory(shape, batch, n, how):
    """Bytes at the peak of an update. `how`: "naive" (autograd keeps P of each layer, in fp32 and
    bf16, and the mask), "kept" (a fused attention), "recomputed" (also recomputes each block).

    Before the backward: parameters and the optimizer's state (12 bytes each), bf16 copies (2), and
    what all layers keep. After it: the gradients (4), and what one layer keeps."""
    tokens, w, layers = batch * n, shape.width, shape.layers
    each = shape.parameters + w * shape.vocabulary
    layer = tokens * kept_per_token(shape)
    head = tokens * (12 * shape.vocabulary + 8 * w)
    work = tokens * 4 * w  # fp32 dQ of the backward of step 11
    if how == "recomputed":
        kept = max(layers * tokens * 4 * w, 4 * each)
        return 12 * each + max(head, layer + tokens * 13 * w) + kept + work
    if how == "naive":
        pairs = batch * shape.heads * n * n
        layer, work = layer + 6 * pairs + n * n, 10 * pairs
    return max(14 * each + layers * layer, 16 * each + layer) + head + work


def longest(shape, how, room):
    """The largest N of one sequence that fits into `room` bytes; 0: none."""
    low, high = 0, 1 << 26
    while high - low > 1:
        n = (low + high) // 2
        low, high = (n, high) if memory(shape, 1, n, how) <= room else (low, n)
    return low


# --- time -----------------------------------------------------------------------------------------


def rates(gpu):
    """{"01 naive forward": {(d, n): FLOP/s}} of causal attention: estimates, else an H200's."""
    found = {}
    results = os.path.join(ROOT, "docs", "results")
    for row in read_json(os.path.join(results, "estimates.json"))["rows"]:
        if row["gpu"] == gpu and row["causal"] and row["n"] >= 512:
            keep(found, row)
    estimated = set(found)
    for row in read_json(os.path.join(results, "h200_bf16.json"))["peers"]["rows"]:
        if row["step"] and row["causal"] and row["direction"] == "backward":
            if name_of(row) not in estimated:
                keep(found, row)
    return found


def name_of(row):
    return f"{row['step'][:2]} {row['variant']} {row['direction']}"


def keep(found, row):
    flops = 2 * row["b"] * row["h"] * row["n"] ** 2 * row["d"]
    flops *= 2.5 if row["direction"] == "backward" else 1
    at = found.setdefault(name_of(row), {})
    key = row["d"], row["n"]
    at[key] = max(at.get(key, 0), flops / row["ms"] * 1e3)


def estimated(shape, name, known):
    """Each N for which all parts of a step have a rate."""
    parts = [known.get(part, {}) for part in PARTS[name]]
    return set.intersection(*({n for d, n in part if d == shape.d} for part in parts))


def attention_ms(shape, batch, n, name, known):
    """Seconds of all layers, forward and backward, by the nearest N's rate; None where unknown."""
    total = 0
    for part in PARTS[name]:
        there = {at: rate for (d, at), rate in known.get(part, {}).items() if d == shape.d}
        if not there:
            return None
        rate = there[min(there, key=lambda at: abs(at.bit_length() - n.bit_length()))]
        flops = 2 * batch * shape.heads * n * n * shape.d
        total += flops * (2.5 if part.endswith("backward") else 1) / rate
    return 1e3 * shape.layers * total


def rest_ms(shape, batch, n, gpu):
    """All but attention: products by FLOPs; other kernels by bytes. `gpu`: a row of gpus.json."""
    tokens, w = batch * n, shape.width
    kv = shape.kv_heads * shape.d
    flops = 6 * tokens * shape.parameters
    forward = 2 * (14 + 10) * w + 16 * w + 18 * (w + kv) + 8 * w  # norms, adds, GELU, RoPE, copies
    backward = 2 * (30 + 12) * w + 24 * w + 20 * (w + kv) + 20 * w
    elements = shape.layers * tokens * (forward + backward) + tokens * 30 * shape.vocabulary
    optimizer = 40 * shape.parameters
    seconds = flops / (MATMUL * gpu["bf16_flops"])
    seconds += (elements + optimizer) / (COPY * gpu["hbm_bytes_per_s"])
    return 1e3 * seconds


def with_attention(rest, before, after):
    """Amdahl: the speedup of an update whose attention takes `after`, not `before`, plus `rest`."""
    return (rest + before) / (rest + after)
