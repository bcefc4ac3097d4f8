"""What an extension moves, beside the least and beside the steps: which one it resembles, and which
one would help most next."""

import math
from pathlib import Path

from .files import ROOT, read_json
from .text import bytes_text, three_digits, time_text

CHAPTERS = {
    "01": ("01_naive", "naive"),
    "02": ("02_tiled", "registers"),
    "03": ("03_online_softmax", "one_pass"),
    "04": ("04_fused", "fused"),
    "05": ("05_recompute_backward", "recompute"),
    "06": ("06_work_partitioning", "registers"),
    "07": ("07_tensor_cores", "lazy"),
    "08": ("08_tensor_core_backward", "roles"),
    "09": ("09_tma_wgmma", None),
    "10": ("10_warp_specialized", "scheduled"),
    "11": ("11_hopper_backward", "direct"),
    "13": ("13_decode", "splits"),
}


def forward(t):
    """(the step that it resembles, the one that helps most next, why)"""
    if t["decode"] and t["blocks"] <= t["heads"]:
        return "13", "13", "one block per head leaves most SMs idle: split the keys among blocks"
    if t["decode"]:
        why = "decoding is limited by HBM: let the heads of a group share the keys they read"
        return "13", "13", why
    if t["scores_written"] and t["shared"]:
        return "02", "04", "S and P go through HBM: keep one tile of them on the chip"
    if t["scores_written"]:
        return "01", "02", "each score reads its rows from global memory: share tiles"
    conflicts = f"bank conflicts: {t['conflicts']:.1f} times the wavefronts"
    if t["wgmma"]:
        return "09", "10", "producer and consumer warps overlap copies and products"
    if t["tensor_cores"] and t["conflicts"] > 1.3:
        return "07", "07", f"{conflicts}; swizzle"
    if t["tensor_cores"] and not t["copies"]:
        return "07", "07", "no cp.async: a pipeline loads the next tile during the products"
    if t["tensor_cores"]:
        return "07", "09", "on Hopper TMA and wgmma copy and multiply whole tiles"
    if not t["shared"]:
        return "03", "04", "every row reads all of K and V: let a block share tiles"
    if t["rewritten"]:
        return "04", "06", "O moves once per tile of keys: swap the loops, keep O"
    if t["conflicts"] > 1.5:
        return "06", "02", f"{conflicts}; pad a row"
    if t["per_score"] > 2.5 * (per_score("06", t) or math.inf):
        why = "each row requests the keys anew: more rows per block, tiles in registers"
        return "06", "06", why
    return "06", "07", "fp32 products: tensor cores multiply bf16 and fp16"


def backward(t):
    """The same for a backward."""
    if t["scores_written"]:
        return "05", "05", "P or dS goes through HBM: compute it again from Q, K and LSE"
    if t["wgmma"]:
        return "11", "11", "a warpgroup of its own adds dQ"
    if t["tensor_cores"]:
        return "08", "11", "on Hopper products overlap the softmax"
    return "05", "08", "fp32 products: tensor cores multiply bf16 and fp16"


def total(bytes):
    return sum(bytes.values())


def traffic(called, run):
    """Bytes and time of one run, and what of them tells the steps apart."""
    case, report, outputs = run.case, run.answer["report"], run.answer["outputs"]
    kernels, heads, low = report["kernels"], case.b * case.h, called.program.text.lower()
    written, parts = {}, {}
    for k in kernels:
        for name, row in k["buffers"].items():
            written[name] = written.get(name, 0) + total(row["bytes"]) - row["bytes"]["read"]
        for part, share in k["parts"].items():
            parts[part] = parts.get(part, 0) + share * k["estimated_ms"]
    ms = sum(k["estimated_ms"] for k in kernels)
    requested = sum(total(k["bytes"]) for k in kernels)
    wavefronts = sum(k["shared"]["wavefronts"] for k in kernels)
    into = outputs["O"].name if "O" in outputs else ""
    return {
        "problem": str(case),
        "d": case.d,
        "type": case.type,
        "heads": heads,
        "decode": bool(case.one),
        "backward": called.backward,
        "per_score": requested / (heads * case.rows * case.n),
        "rewritten": written.pop(into, 0) > 1.5 * case.bytes_of("O"),
        "scores_written": scores_written(case, written),
        "compulsory": sum(case.bytes_of(name) for name in {*called.tensors(case), *outputs}),
        "requested": requested,
        "hbm": sum(k["hbm"]["read"] + k["hbm"]["write"] for k in kernels),
        "ms": ms,
        "limit": max(parts, key=parts.get) if parts else "",
        "share": max(parts.values()) / ms if parts and ms else 0,
        "conflicts": wavefronts / max(1, sum(k["shared"]["ideal"] for k in kernels)),
        "shared": any(k["shared"]["read"] for k in kernels),
        "blocks": max((k["blocks"] for k in kernels), default=0),
        "tensor_cores": "tensor cores" in parts,
        "wgmma": any(word in low for word in ("wgmma", "cp.async.bulk", "tensormap")),
        "copies": any(word in low for word in ("cp.async", "cp_async", "memcpy_async")),
        "gpu": report["gpu"],
    }


def scores_written(case, written):
    """Is the matrix of scores in device memory? Only known where O is smaller."""
    if case.n <= case.d or case.one:
        return False
    square = f"{case.n}x{case.n}"
    least = case.b * case.h * case.n**2 * 2
    known = ("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV", "qkv", "mask")
    for name, bytes in written.items():
        if bytes < least or name in known:
            continue
        if name.endswith(square) or "x" not in name:
            return True
    return False


def rung(t):
    """{"like", "its_per_score", "next", "why"}"""
    like, then, why = backward(t) if t["backward"] else forward(t)
    return {"like": like, "its_per_score": per_score(like, t), "next": then, "why": why}


def per_score(like, t):
    """Requested bytes per score of the step, from docs/results: at the nearest published sizes."""
    step, variant = CHAPTERS[like]
    best = None
    for name in ("h200.json", "h200_bf16.json"):
        for run in read_json(str(Path(ROOT, "docs", "results", name)))["runs"]:
            p = run["problem"]
            if run["step"] != step or p["causal"] or variant not in (run["variant"], None):
                continue
            part = (run.get("backward") or {}) if t["backward"] else run
            bytes = ((part.get("traffic") or {}).get("requested") or {}).get("predicted")
            if bytes:
                far = abs(p["d"] - t["d"]), p["n"]
                value = total(bytes) / (p["b"] * p["h"] * p["n"] * p["nk"])
                best = min(best or (far, value), (far, value))
    return best[1] if best else None


def chapter(number):
    return f"steps/{CHAPTERS[number][0]}/README.md"


def rows(t, r):
    """Of the screen."""
    name, then = (CHAPTERS[r[key]][0].replace("_", " ") for key in ("like", "next"))
    like = f"step {name}; this one requests {three_digits(t['per_score'])} bytes per score"
    if r["its_per_score"]:
        like += f", that step's published runs {three_digits(r['its_per_score'])}"
    hbm, requested, least = (bytes_text(t[key]) for key in ("hbm", "requested", "compulsory"))
    held = "; of the stores the L2 still holds the rest" if t["hbm"] < t["compulsory"] else ""
    moves = f"{hbm} of HBM, {requested} requested; compulsory {least} ({t['problem']}){held}"
    limit = f"limited by {t['limit']} ({100 * t['share']:.0f}%)"
    time = f"{time_text(t['ms'])} estimated for {t['gpu']}, {limit}"
    why = f"step {then}: {r['why']}. {chapter(r['next'])}"
    return list({"moves": moves, "like": like, "time": time, "next": why}.items())
