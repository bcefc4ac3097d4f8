"""The attention of one head of the real input over its text: softmax(Q K^T / sqrt(d)), causal."""

import base64
import functools
import math
import os
import struct
import zlib
from operator import mul

from .files import ROOT

HEAD = 0  # an induction head: common/data/README.md


def read_npy(path):
    """(shape, values) of a float16 file in C order."""
    with open(path, "rb") as file:
        raw = file.read()
    (length,) = struct.unpack("<H", raw[8:10])
    header = raw[10 : 10 + length].decode()
    if "'<f2'" not in header or "'fortran_order': False" not in header:
        raise ValueError(f"{path}: not float16 in C order")
    shape = tuple(map(int, header.split("(")[1].split(")")[0].replace(" ", "").split(",")))
    return shape, struct.unpack(f"<{math.prod(shape)}e", raw[10 + length :])


def rows_of_head(path, head):
    (_, _, n, d), values = read_npy(path)
    return [values[i : i + d] for i in range(head * n * d, (head + 1) * n * d, d)]


def eighths(Q, K):
    """The rows of P in 8 bits, one after the other: 1 of row 0, 2 of row 1, ... Each entry is
    255 P, rounded: no maximum is taken first, since these scores stay below 20."""
    scale = 1 / math.sqrt(len(Q[0]))
    found = bytearray()
    for r, q in enumerate(Q):
        q = [scale * x for x in q]
        p = [math.exp(sum(map(mul, q, k))) for k in K[: r + 1]]
        share = 255 / sum(p)
        found += bytes([round(share * x) for x in p])
    return bytes(found)


@functools.cache
def attention_map(folder=None):
    """{"head", "text", "rows"} for page/report.js, the rows compressed; None without the data."""
    folder = folder or os.path.join(ROOT, "common", "data")
    try:
        Q, K = (rows_of_head(os.path.join(folder, f"{name}.npy"), HEAD) for name in "qk")
        with open(os.path.join(folder, "text.txt"), encoding="latin-1") as file:
            text = file.read()
    except (OSError, ValueError):
        return None
    n = min(len(text), len(Q))
    rows = zlib.compress(eighths(Q[:n], K[:n]), 9)
    return {"head": HEAD, "text": text[:n], "rows": base64.b64encode(rows).decode()}
