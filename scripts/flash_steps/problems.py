"""A problem, {"b": ..., "h": ..., "n": ...}: FlashAttention's series, its flags, its text."""

DIRECTIONS = ("forward", "backward")
TOKENS, WIDTH = 16384, 2048  # B*N and H*d of FlashAttention's series


def series(n, d, causal, tokens=TOKENS):
    """A problem of FlashAttention's own series."""
    return dict(b=max(1, tokens // n), h=max(1, WIDTH // d), n=n, d=d, causal=causal)


def in_series(p):
    return p["b"] * p["n"] == TOKENS and p["h"] * p["d"] == WIDTH


def tag(problem):
    """In the names of files."""
    return (
        f"b{problem['b']}_h{problem['h']}_n{problem['n']}_d{problem['d']}"
        + "".join(
            f"_{key}{problem[key]}"
            for key, same in (("hkv", "h"), ("nk", "n"))
            if problem.get(key, problem[same]) != problem[same]
        )
        + ("_causal" if problem["causal"] else "")
        + (f"_m{problem['smem']}" if problem.get("smem") else "")
    )


def flags(problem):
    """Of the command line of a step's program."""
    found = [
        f"--{key}={problem[key]}"
        for key in ("b", "h", "hkv", "n", "nk", "d", "smem")
        if problem.get(key)
    ]
    return found + (["--causal"] if problem.get("causal") else [])


def flops_of(problem, direction):
    """FlashAttention's convention: half of it with the mask, the backward 2.5 times the forward."""
    forward = 4 * problem["b"] * problem["h"] * problem["n"] * problem["nk"] * problem["d"]
    return forward * (0.5 if problem["causal"] else 1) * (2.5 if direction == "backward" else 1)


# The sizes by which problems differ: how they are called, and their text in a table.
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
}


def problem_text(p, omit=()):
    """ "B=1 H=4 N=1024 d=64 causal fp32": Hkv and Nk only where they differ from H and N, and the
    shared memory M of a block only where it was limited."""
    same = {"Hkv": p["hkv"] == p["h"], "Nk": p["nk"] == p["n"], "smem": not p.get("smem")}
    parts = [
        f"{name}={SIZES[name](p)}"
        for name in ("B", "H", "Hkv", "N", "Nk", "d", "smem")
        if name not in omit and not same.get(name)
    ]
    if "causal" not in omit:
        parts += ["causal"] if p["causal"] else []
    return " ".join(parts + ([] if "type" in omit else [p["dtype"]]))
