"""The measurements on the page "Why is FlashAttention faster?": a series is drawn as a ladder and
below a roof, and listed. One series is from docs/results, a second one from the reader's runs.
"""

import collections
import os

from .files import ROOT
from .gpu_table import find_model
from .problems import SIZES, cache_of, mask_of, own_tiles, problem_text
from .results import (
    columns_for,
    join_for_reading,
    limit_in_words,
    notes_on,
    published,
    total,
    verdict,
)
from .rungs import DRAWN, beside_libraries, ladder
from .standing import SLOWED, runs_of, standing_of
from .tour_runs import FASTEST

FULL_N = 4096  # of the published runs
# Hidden on a narrow screen.
LESS = {"requested read", "requested write", "atomic", "warp requests", "sectors/request"}
LESS |= {"workspace", "limited by", "busy SMs", "estimated/measured"}


def dtype_of(row):
    """The type of the products: "fp32", "bf16" or "e4m3"."""
    return "e4m3" if row.any.get("fp8") else row.any.data["problem"]["dtype"]


def hbm_of(row):
    """(bytes, their source)"""
    for kind, counts in (
        ("measured", row.gpu_get("traffic.hbm.measured")),
        ("modelled", row.sim_get("traffic.hbm.model")),
        ("predicted", row.any.get("traffic.hbm.predicted")),
    ):
        if counts:
            return total(counts), kind
    return None, None


def figures_of(row):
    """One run's figures: HBM bytes per head, FLOPs by FlashAttention's convention, `executed`."""
    heads = row.heads
    hbm, hbm_kind = hbm_of(row)
    ms = row.ms or row.estimated_ms
    timed = heads if row.ms else row.estimated_heads or heads
    flops = row.any.get("flops")
    executed = row.any.get("flops_executed") or flops

    def per_second(count):
        return count * timed / heads / (ms * 1e-3) if count and ms else None

    return {
        "id": row.any.label.removesuffix(" bwd").removesuffix(" prep"),
        "pass": row.any.direction,
        "causal": row.any.data["problem"]["causal"],
        "type": dtype_of(row),
        "verdict": verdict(row),
        "hbm": hbm and hbm / heads,
        "hbm_kind": hbm_kind,
        "ms": ms,
        "time_kind": "measured" if row.ms else "estimated",
        "heads": timed,
        "rate": per_second(flops),
        "executed": per_second(executed),
        "intensity": executed / hbm if executed and hbm else None,
        "limit": limit_in_words(row) if row.estimate and not row.ms else None,
    }


def comparable(rows):
    """The rows of one problem on one device: that with the most steps, then the largest N."""
    groups = collections.defaultdict(list)
    for row in rows:
        p = row.any.data["problem"]
        sizes = tuple(p.get(key) for key in ("b", "h", "hkv", "n", "nk", "d", "causal", "smem"))
        groups[sizes, cache_of(p), mask_of(p)].append(row)

    def size(group):
        p = group[0].any.data["problem"]
        return len({row.any.data["step"] for row in group}), p["n"] * p["nk"], group[0].heads

    chosen = max(groups.values(), key=size)
    device = next((row.gpu_get("device.name") for row in chosen if row.gpu), None)
    return [row for row in chosen if row.gpu_get("device.name") in (None, device)]


def roofs_of(rows):
    """{name: {"hbm": bytes/s, a type: FLOP/s}}: measured, or the data sheet's."""
    found = {}
    for row in rows:
        if roofs := row.gpu_get("roofs"):
            found[f"{row.gpu_get('device.name')}, measured"] = {
                "hbm": roofs["copy_bytes_per_s"],
                "fp32": roofs["fp32_flops"],
                "bf16": roofs["bf16_flops"],
            }
        elif name := row.sim_get("model_gpu"):
            sheet = find_model(name)
            types = {"hbm": "hbm_bytes_per_s", "fp32": "fp32_flops"}
            types |= {"bf16": "bf16_flops", "e4m3": "fp8_flops"}
            found[f"{name}, data sheet"] = {key: sheet.get(types[key]) for key in types}
    return found


def by_problem(rows):
    """(columns, cells): a row with one cell names the problem of the rows below it."""
    columns = [c for c in columns_for(rows)[0] if c.title == "type" or c.title not in SIZES]
    groups = collections.defaultdict(list)
    for row in rows:
        words = problem_text(row.any.data["problem"], {"type"}).replace(" fp8 cache", "")
        groups[words].append([column.cell(row) for column in columns])
    return columns, [line for words, cells in groups.items() for line in ([words], *cells)]


def series(rows, name, drawn):
    """`drawn`: the rows of the ladder; the table has all."""
    common = columns_for(rows)[1]
    columns, cells = by_problem(rows)
    less = LESS | ({"check"} if all(verdict(row) == "ok" for row in rows) else set())
    return {
        "name": name,
        "problem": common,
        "runs": [figures_of(row) for row in drawn],
        "roofs": roofs_of(drawn),
        "head": [column.title for column in columns],
        "cells": cells,
        "less": [i for i, column in enumerate(columns) if column.title in less],
        "notes": notes_on(rows),
        "wrong": [row.any.label for row in rows if verdict(row) != "ok"],
    }


def published_series(n=FULL_N, causal=None):
    """The rows of the GPU with most results at one size, or with `causal`; None without results."""
    of_device = collections.defaultdict(list)
    paths = published(os.path.join(ROOT, "docs", "results"))
    rows = join_for_reading([run for run in runs_of(paths) if standing_of(run) != SLOWED])
    for row in beside_libraries(rows):
        p = row.any.data["problem"]
        same = p["n"] == p["nk"] == n and p["d"] == 64 and p["h"] == p["hkv"]
        if same and own_tiles(p) and causal in (None, p["causal"]):
            if row.gpu:
                of_device[row.gpu_get("device.name")].append(row)
    if not of_device:
        return None
    device = max(of_device, key=lambda name: len(of_device[name]))
    name = f"{device.replace('NVIDIA ', '')}, N = {n}" + ", causal" * bool(causal)
    return series(of_device[device], name, of_device[device])


def whole_series(build):
    """The published one with the steps' results that it lacks. `apart`: the problem of a rung that
    has one of its own; `gpu`: for which GPU another was estimated."""
    found, rungs = published_series(), ladder(build)
    there = {(run["id"], run["pass"]) for run in found["runs"]}
    for section in DRAWN:
        results = {}
        for rung in rungs[section.name]:
            fastest = FASTEST.get(rung.step, [])
            if rung.row and (rung.row.ms or rung.estimated_for):
                if rung.label.split()[1] in fastest or not fastest:
                    key = rung.label if fastest else rung.step
                    results[key] = rung
        for rung in results.values():
            if (rung.label, section.name) not in there:
                run = {**figures_of(rung.row), "pass": section.name, "idea": rung.idea}
                run |= {"apart": section.words} if section.source != "peers" else {}
                run |= {"gpu": rung.estimated_for} if rung.estimated_for else {}
                found["runs"].append(run)
    return found
