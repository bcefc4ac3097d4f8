"""A problem, {"b": ..., "h": ..., "n": ...}: FlashAttention's series, its flags, its text."""

import itertools

DIRECTIONS = ("forward", "backward")
TOKENS, WIDTH = 16384, 2048  # B*N and H*d of FlashAttention's series


def series(n, d, causal):
    return dict(b=max(1, TOKENS // n), h=max(1, WIDTH // d), n=n, d=d, causal=causal)


def in_series(p):
    return p["b"] * p["n"] == TOKENS and p["h"] * p["d"] == WIDTH


def cache_of(problem):
    """What distinguishes problems of equal sizes that decode from a cache: the lengths of the batch
    entries, in order, and the keys per page. ((), 0) for other problems, and for old files."""
    lengths = tuple(problem.get("lengths") or ())
    for turns in range(1, len(lengths) + 1):
        if len(lengths) % turns == 0 and lengths[:turns] * (len(lengths) // turns) == lengths:
            lengths = lengths[:turns]
            break
    return lengths, problem.get("page") or 0


def own_tiles(problem):
    """Is it an ordinary problem: the step's own tile size, keys in one piece, no mask?"""
    return not problem.get("smem") and cache_of(problem) == ((), 0) and not mask_of(problem)


def mask_of(problem):
    """What distinguishes problems of equal sizes by their masks; () without a mask."""
    keys = ("window", "row_starts", "key_starts", "mask", "tiles", "cap", "alibi", "sinks")
    return tuple((key, str(problem[key])) for key in keys if problem.get(key))


def documents_of(problem):
    """ "8192,32x256", the rows of documents in order; "7..2048 (20)" for many lengths."""
    starts = problem["row_starts"]
    lengths = [end - start for start, end in zip(starts, starts[1:])]
    parts = [(length, len(list(same))) for length, same in itertools.groupby(lengths)]
    if len(parts) > 4:
        return f"{min(lengths)}..{max(lengths)} ({len(lengths)})"
    return ",".join(f"{count}x{length}" if count > 1 else str(length) for length, count in parts)


def mask_text(problem):
    """What hides keys beyond `causal`, or changes scores; "" without such."""
    parts = [f"window={','.join(map(str, problem['window']))}"] if problem.get("window") else []
    parts += [f"documents={documents_of(problem)}"] if problem.get("row_starts") else []
    parts += [f"{key}={problem[key]}" for key in ("mask", "cap") if problem.get(key)]
    if tiles := problem.get("tiles"):
        share = tiles["kept"] / (tiles["heads"] * tiles["rows"] * tiles["keys"])
        parts.append(f"tiles={100 * share:.3g}%")
    return " ".join(parts + [key for key in ("alibi", "sinks") if problem.get(key)])


def lengths_text(problem):
    """ "0,1,700", or "0..1024 (9)" for nine."""
    lengths, _ = cache_of(problem)
    if len(lengths) > 4:
        return f"{min(lengths)}..{max(lengths)} ({len(lengths)})"
    return ",".join(map(str, lengths))


def tag(problem):
    """For file names."""
    words = [f"{key}{problem[key]}" for key in "bhnd"]
    for key, same in (("hkv", "h"), ("nk", "n")):
        if problem.get(key, problem[same]) != problem[same]:
            words.append(f"{key}{problem[key]}")
    words += ["causal"] * problem["causal"]
    words += [f"m{problem['smem']}"] if problem.get("smem") else []
    words += ["l" + "-".join(map(str, cache_of(problem)[0]))] if problem.get("lengths") else []
    return "_".join(words + ([f"p{problem['page']}"] if problem.get("page") else []))


def flags(problem):
    """For the command line of a step's program."""
    found = [
        f"--{key}={problem[key]}"
        for key in ("b", "h", "hkv", "n", "nk", "d", "smem", "page")
        if problem.get(key)
    ]
    if problem.get("lengths"):
        found.append("--lengths=" + ",".join(map(str, cache_of(problem)[0])))
    return found + (["--causal"] if problem.get("causal") else [])


def flops_of(problem, direction):
    """FlashAttention's convention: half with the mask, backward 2.5 times; or by `scores`."""
    way = 2.5 if direction == "backward" else 1
    if problem.get("scores"):
        return 4 * problem["b"] * problem["h"] * problem["d"] * problem["scores"] * way
    keys = sum(problem.get("lengths") or [problem["b"] * problem["nk"]])  # of all batch entries
    forward = 4 * problem["h"] * problem["n"] * keys * problem["d"]
    return forward * (0.5 if problem["causal"] else 1) * way


# The sizes by which problems differ: names, and text in a table.
SIZES = {
    "B": lambda p: str(p["b"]),
    "H": lambda p: str(p["h"]),
    "Hkv": lambda p: str(p["hkv"]),
    "N": lambda p: str(p["n"]),
    "Nk": lambda p: str(p["nk"]),
    "d": lambda p: str(p["d"]),
    "causal": lambda p: "yes" if p["causal"] else "no",
    "type": lambda p: p["dtype"],
    "smem": lambda p: str(p["smem"]) if p.get("smem") else "-",
    "lengths": lambda p: lengths_text(p) or "-",
    "page": lambda p: str(p["page"]) if p.get("page") else "-",
    "mask": lambda p: mask_text(p) or "-",
}


def problem_text(p, omit=()):
    """ "B=1 H=4 N=1024 d=64 causal fp32": Hkv and Nk only where they differ from H and N, the
    shared memory M of a block only where it was limited, and a cache's properties."""
    same = {
        "Hkv": p["hkv"] == p["h"],
        "Nk": p["nk"] == p["n"],
        **{name: not p.get(name) for name in ("smem", "lengths", "page")},
    }
    parts = [
        f"{name}={SIZES[name](p)}"
        for name in ("B", "H", "Hkv", "N", "Nk", "d", "smem", "lengths", "page")
        if name not in omit and not same.get(name)
    ]
    if "causal" not in omit:
        parts += ["causal"] if p["causal"] else []
    parts += [mask_text(p)] if mask_of(p) and "mask" not in omit else []
    parts += [] if "type" in omit else [p["dtype"]]
    return " ".join(parts + (["fp8 cache"] if p.get("cache8") else []))
