"""Masks of peers.py and `maintain masked`: problems with them, which keys a row sees, and attention
functions that support masks. A row sees its own key: documents have as many rows as keys."""

import functools
import inspect
import itertools
import random

from flash_steps.command import BadInput
from flash_steps.step_library import TILE

# A mask by its name in steps/15_masks/predicates.h: a function of rows r, keys c and a number.
PREDICATES = {
    "prefix": lambda r, c, n: (c < n) | (c <= r),
    "strided": lambda r, c, n: (c <= r) & ((r - c < n) | ((r - c) % n == 0)),
    "checkered": lambda r, c, n: (r // n + c // n) % 2 == 0,
}


def window(word):
    """ "256,0" """
    left, right = map(int, word.split(","))
    return {"window": [left, right]}


def lengths(word):
    """ "8192,32x256": one document of 8192 rows, and 32 of 256."""
    parts = [part.rpartition("x") for part in word.split(",")]
    found = [int(rows) for count, _, rows in parts for _ in range(int(count or 1))]
    starts = [0, *itertools.accumulate(found)]
    return {"row_starts": starts, "key_starts": starts}


def predicate(word):
    """ "strided:64" """
    name, number = word.split(":")
    if name not in PREDICATES:
        raise ValueError(name)
    return {"mask": f"{name}:{int(number)}"}


@functools.cache
def drawn(heads, rows, count):
    """A byte for each tile, [heads, rows, rows]: `count` causal tiles, drawn anew for each head;
    those of the diagonal are among them."""
    draw, kept = random.Random(count), bytearray(heads * rows * rows)
    below = [(i, j) for i in range(rows) for j in range(i)]
    for head in range(heads):
        chosen = draw.sample(below, count - rows) + [(i, i) for i in range(rows)]
        for i, j in chosen:
            kept[(head * rows + i) * rows + j] = 1
    return bytes(kept)


def tiles(share, heads, n):
    """A problem's keys: this share of the causal tiles, as drawn(); all of a tile is seen."""
    rows = n // TILE
    count = round(share * rows * (rows + 1) / 2)
    kept = {"heads": heads, "rows": rows, "keys": rows, "kept": heads * count}
    return {"tiles": kept, "scores": count * TILE**2}


def bytes_of(problem):
    kept = problem["tiles"]
    return drawn(kept["heads"], kept["rows"], kept["kept"] // kept["heads"])


def tensor_of(torch, problem):
    """bool [heads, rows, keys]"""
    shape = [problem["tiles"][key] for key in ("heads", "rows", "keys")]
    return torch.tensor(list(bytes_of(problem)), dtype=torch.bool, device="cuda").view(shape)


def masks_of(options):
    r"""[keys of a problem] for each --window, --lengths, --mask and "none". \raises BadInput"""
    ways = []
    for flag, parse in (("window", window), ("lengths", lengths), ("mask", predicate)):
        given = (getattr(options, flag) or "none").split()
        try:
            ways.append([{} if word == "none" else parse(word) for word in given])
        except ValueError as error:
            raise BadInput(f"--{flag} {' '.join(given)}: {error}") from None
    return [{**a, **b, **c} for a, b, c in itertools.product(*ways)]


def sees_of(torch, problem, head=0):
    """Which rows of a query head see which keys: sees(r, c) for tensors that broadcast."""
    n, nk, causal = problem["n"], problem["nk"], problem["causal"]
    left, right = problem.get("window", (-1, -1))
    right = 0 if causal else right
    starts = problem.get("row_starts")
    name, _, number = problem.get("mask", "").partition(":")
    document = None
    if starts:
        rows = torch.tensor(starts, device="cuda").diff()
        document = torch.arange(len(rows), device="cuda").repeat_interleave(rows)
    kept = tensor_of(torch, problem)[head] if problem.get("tiles") else None

    def sees(r, c):
        back = r + nk - n - c  # also for documents, which have as many rows as keys
        seen = back == back
        if left >= 0:
            seen = seen & (back <= left)
        if right >= 0:
            seen = seen & (-back <= right)
        if document is not None:  # not `starts`: FlexAttention would compile again for each pack
            seen = seen & (document[r] == document[c])
        if kept is not None:
            seen = seen & kept[r // TILE, c // TILE]
        return seen & PREDICATES[name](r, c, int(number)) if name else seen

    return sees


def counted(torch, problem):
    """The problem, with the number of scores that a head computes."""
    sees = sees_of(torch, problem)
    keys = torch.arange(problem["nk"], device="cuda")
    rows = torch.arange(problem["n"], device="cuda")[:, None].split(1024)
    return {**problem, "scores": sum(int(sees(some, keys).sum()) for some in rows)}


# --- attention that supports masks ----------------------------------------------------------------
# Each: (a function of Q, K, V that returns O; its tensors from [B, H, N, d], and back).


def flex_of(torch, tiles):
    """FlexAttention with a BlockMask, compiled in the first turn for each d, direction and mask.
    Past its limit Dynamo would run the attention that stores all scores; with fullgraph it raises.
    """
    from torch.nn.attention.flex_attention import flex_attention

    torch._dynamo.config.cache_size_limit = 256
    attention = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda q, k, v: attention(q, k, v, block_mask=tiles), lambda x: x, lambda x: x


def flex(torch, problem):
    from torch.nn.attention.flex_attention import create_block_mask

    sees, sizes = sees_of(torch, problem), (problem["n"], problem["nk"])
    tiles = create_block_mask(lambda b, h, r, c: sees(r, c), None, None, *sizes, device="cuda")
    return flex_of(torch, tiles)


def of_packs(load):
    """FlashAttention's form: [rows, H, d], and where sequences begin. `load`: a function of a
    window (left, right) that returns one of (q, k, v, these starts, the longest)."""

    def backend(torch, problem):
        if problem.get("mask"):
            raise ValueError("it knows windows and documents only")
        left, right = problem.get("window", (-1, -1))
        attention = load(left, 0 if problem["causal"] else right)
        starts = problem.get("row_starts", [0, problem["n"]])
        places = torch.tensor(starts, device="cuda", dtype=torch.int32)
        longest = max(end - start for start, end in zip(starts, starts[1:]))

        def run(q, k, v):
            out = attention(q, k, v, places, longest)
            return out[0] if isinstance(out, tuple) else out

        return run, lambda x: x[0].transpose(0, 1).contiguous(), lambda x: x.transpose(0, 1)[None]

    return backend


def varlen(left, right):
    from torch.nn.attention.varlen import varlen_attn

    more = {"window_size": (left, right)}
    if "is_causal" in inspect.signature(varlen_attn).parameters:  # PyTorch 2.10
        if left >= 0 or right > 0:
            raise ValueError("it has no window in this PyTorch")
        more = {"is_causal": right == 0}
    return lambda q, k, v, places, n: varlen_attn(q, k, v, places, places, n, n, **more)


def flash3(left, right):
    from flash_attn_interface import flash_attn_varlen_func

    def run(q, k, v, places, n):
        return flash_attn_varlen_func(q, k, v, places, places, n, n, window_size=(left, right))

    return run


def flash4(left, right):
    from flash_attn.cute import flash_attn_varlen_func

    window = tuple(None if limit < 0 else limit for limit in (left, right))

    def run(q, k, v, places, n):
        return flash_attn_varlen_func(
            *(q, k, v), cu_seqlens_q=places, cu_seqlens_k=places, max_seqlen_q=n, max_seqlen_k=n,
            window_size=window,
        )  # fmt: skip

    return run


BACKENDS = {
    "flex": flex,
    "varlen": of_packs(varlen),
    "flash3": of_packs(flash3),
    "flash4": of_packs(flash4),
}
