"""What the figures of compare.py and of report.html have in common: which rows form one line, the
roofline's points and roofs."""

from .gpu_table import gpu_table
from .problems import in_series, lengths_text


def family(row):
    """What the points of one panel have in common: FlashAttention's series, or B and H."""
    p = row.any.data["problem"]
    sizes = f"B={p['b']} H={p['h']}"
    if in_series(p):
        sizes = "B·N=16384 H·d=2048"
    more = [f"Hkv={p['hkv']}"] if p["hkv"] != p["h"] else []
    more += [f"Nk={p['nk']}"] if p["nk"] != p["n"] else []
    more += [f"M={p['smem']}"] if p.get("smem") else []
    more += [f"lengths={lengths_text(p)}"] if p.get("lengths") else []
    more += [f"page={p['page']}"] if p.get("page") else []
    more += ["causal"] if p["causal"] else []
    more += [f"estimated for {row.estimated_heads} heads"] if row.estimated_heads else []
    return " ".join([sizes, f"d={p['d']}", *more]) + f", {row.any.direction}"


def machines(rows):
    """{name: (bytes per s, {dtype: FLOP/s})}: measured roofs, or the data sheet."""
    table = {gpu["name"]: gpu for gpu in gpu_table()}
    found = {}
    for row in rows:
        roofs = row.gpu_get("roofs")
        if roofs:
            found[f"{row.gpu.get('device.name')} (measured roofs)"] = (
                roofs["copy_bytes_per_s"],
                {"fp32": roofs["fp32_flops"], "bf16": roofs["bf16_flops"]},
            )
        sheet = table.get(row.sim_get("model_gpu"))
        if sheet:
            found[f"{sheet['name']} (data sheet)"] = (
                sheet["hbm_bytes_per_s"],
                {
                    "fp32": sheet["fp32_flops"],
                    "bf16": sheet.get("bf16_flops"),
                    "e4m3": sheet.get("fp8_flops"),
                },
            )
    return found


def roofline_points(rows, labels):
    """[(label, FLOP per HBM byte, FLOP/s, measured)]"""
    points = []
    for row in rows:
        flops = row.any.get("flops_executed") or row.any.get("flops")
        p = row.any.data["problem"]
        heads = p["b"] * p["h"]
        for hbm, ms, measured in (
            (row.hbm_measured, row.ms, True),
            (row.hbm_modelled, row.estimated_ms, False),
        ):
            if hbm and ms and flops:
                times = 1 if measured else (row.estimated_heads or heads) / heads
                rate = times * flops / (ms * 1e-3)
                points.append((labels[id(row)], flops / hbm, rate, measured))
    return points


def flop_rate_text(value):
    for unit, name in ((1e15, "P"), (1e12, "T")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value / 1e9:g} G"
