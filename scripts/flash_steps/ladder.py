"""What an extension moves, beside the least and beside the steps: which one it resembles, and which
one would help most next."""

from pathlib import Path

from .extension import SIZES
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
}


def total(bytes):
    return sum(bytes.values())


def traffic(case, answer, backward):
    """Bytes and time of one run."""
    report = answer["report"]
    size = SIZES[case.type]
    kernels = report["kernels"]
    heads = case.b * case.h
    written = {}
    for k in kernels:
        for name, row in k["buffers"].items():
            written[name] = written.get(name, 0) + total(row["bytes"]) - row["bytes"]["read"]
    parts = {}
    for k in kernels:
        for part, share in k["parts"].items():
            parts[part] = parts.get(part, 0) + share * k["estimated_ms"]
    ms = sum(k["estimated_ms"] for k in kernels)
    wavefronts = sum(k["shared"]["wavefronts"] for k in kernels)
    return {
        "problem": str(case),
        "scores": heads * case.n**2,
        "d": case.d,
        "type": case.type,
        "rewritten": written.pop(answer.get("O"), 0) > 1.5 * case.bytes_of("O"),
        "scores_written": scores_written(case, written),
        "compulsory": heads * (case.n * case.d * size * (8 if backward else 4) + 4 * case.n),
        "requested": sum(total(k["bytes"]) for k in kernels),
        "hbm": sum(k["hbm"]["read"] + k["hbm"]["write"] for k in kernels),
        "ms": ms,
        "limit": max(parts, key=parts.get) if parts else "",
        "share": max(parts.values()) / ms if parts and ms else 0,
        "conflicts": wavefronts / max(1, sum(k["shared"]["ideal"] for k in kernels)),
        "shared": any(k["shared"]["read"] for k in kernels),
        "tensor_cores": "tensor cores" in parts,
        "gpu": report["gpu"],
    }


def scores_written(case, written):
    """Is the matrix of scores in device memory? Only known where O is smaller."""
    if case.n <= case.d:
        return False
    square = f"{case.n}x{case.n}"
    least = case.b * case.h * case.n**2 * 2
    known = ("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV", "QKV")
    for name, bytes in written.items():
        if bytes < least or name in known:
            continue
        if name.endswith(square) or "x" not in name:
            return True
    return False


def rung(t, report, text, backward):
    """{"like", "per_score", "its_per_score", "next", "why"}"""
    low = text.lower()
    wgmma, tma = "wgmma" in low, "cp.async.bulk" in low or "tensormap" in low
    copies = "cp.async" in low or "cp_async" in low or "memcpy_async" in low
    if backward:
        like, then, why = backward_rung(t, wgmma)
    elif t["scores_written"]:
        if t["shared"]:
            like, then, why = (
                "02",
                "04",
                "S and P go through HBM: keep one tile of them on the chip",
            )
        else:
            like, then, why = (
                "01",
                "02",
                "each score reads its rows from global memory: share tiles",
            )
    elif wgmma or tma:
        like, then, why = "09", "10", "producer and consumer warps overlap copies and products"
    elif t["tensor_cores"]:
        like, then = "07", "09"
        why = "on Hopper TMA and wgmma copy and multiply whole tiles"
        if t["conflicts"] > 1.3:
            then, why = "07", f"bank conflicts: {t['conflicts']:.1f} times the wavefronts; swizzle"
        elif not copies:
            then, why = "07", "no cp.async: a pipeline loads the next tile during the products"
    elif not t["shared"]:
        like, then, why = "03", "04", "every row reads all of K and V: let a block share tiles"
    elif t["rewritten"]:
        like, then, why = "04", "06", "O moves once per tile of keys: swap the loops, keep O"
    else:
        like, then, why = "06", "07", "fp32 products: tensor cores multiply bf16 and fp16"
        if t["conflicts"] > 1.5:
            then, why = (
                "02",
                f"bank conflicts: {t['conflicts']:.1f} times the wavefronts; pad a row",
            )
    mine, its = t["requested"] / t["scores"], per_score(like, t["d"], t["type"], backward)
    if like == "06" and its and mine > 2.5 * its and then == "07":
        then, why = "06", "each row requests the keys anew: more rows per block, tiles in registers"
    return {"like": like, "per_score": mine, "its_per_score": its, "next": then, "why": why}


def backward_rung(t, wgmma):
    if t["scores_written"]:
        return "05", "05", "P or dS goes through HBM: compute it again from Q, K and LSE"
    if wgmma:
        return "11", "11", "a warpgroup of its own adds dQ"
    if t["tensor_cores"]:
        return "08", "11", "on Hopper products overlap the softmax"
    return "05", "08", "fp32 products: tensor cores multiply bf16 and fp16"


def per_score(like, d, type, backward):
    """Requested bytes per score of the step, from docs/results: at the nearest published sizes."""
    step, variant = CHAPTERS[like]
    best = None
    for name in ("h200.json", "h200_bf16.json"):
        for run in read_json(str(Path(ROOT, "docs", "results", name)))["runs"]:
            p = run["problem"]
            if run["step"] != step or p["causal"] or variant not in (run["variant"], None):
                continue
            part = (run.get("backward") or {}) if backward else run
            bytes = ((part.get("traffic") or {}).get("requested") or {}).get("predicted")
            if bytes:
                far = abs(p["d"] - d), p["n"]
                value = total(bytes) / (p["b"] * p["h"] * p["n"] * p["nk"])
                best = min(best or (far, value), (far, value))
    return best[1] if best else None


def chapter(number):
    return f"steps/{CHAPTERS[number][0]}/README.md"


def rows(t, r):
    """Of the screen."""
    name = CHAPTERS[r["like"]][0].replace("_", " ")
    then = CHAPTERS[r["next"]][0].replace("_", " ")
    like = f"step {name}; this one requests {three_digits(r['per_score'])} bytes per score"
    if r["its_per_score"]:
        like += f", that step's published runs {three_digits(r['its_per_score'])}"
    hbm, requested, least = (bytes_text(t[key]) for key in ("hbm", "requested", "compulsory"))
    share = f"({100 * t['share']:.0f}%)"
    return [
        ("moves", f"{hbm} of HBM, {requested} requested; compulsory {least} ({t['problem']})"),
        ("like", like),
        ("time", f"{time_text(t['ms'])} estimated for {t['gpu']}, limited by {t['limit']} {share}"),
        ("next", f"step {then}: {r['why']}. {chapter(r['next'])}"),
    ]
