"""Fits how the fused forward's traffic depends on the shared memory M: Theta(N^2 d^2 / M).

    fit_m.py                                   step 04 in the simulator, for the M of each tile
    fit_m.py --smem 40000,65536,160000 --d 128
    fit_m.py --program build/gpu/steps/04_fused --h 32 --b 16

Runs the step for each M and prints the requested bytes, predicted and counted. Then it fits
a + b * N^2 d^2 / M by least squares, per head and in elements: once with all of M, once with the
part of M that holds K_j and V_j, beside the constants of the step's formula. On a GPU the table
also has the time and the HBM bytes.
Exit status: 0 done, 1 a run was wrong, 2 bad use, 3 no memory, device or program.
"""

import argparse
import os

from . import command
from .command import BadInput
from .problems import flags, problem_text
from .results import total
from .steps import ROOT, program_of, run_program
from .text import Column, bytes_text, text_table, time_text

SIM = os.path.join(ROOT, "build", "sim")
# The tiles of steps/04_fused/2_fused.cuh; every run is checked against them.
KEYS = (16, 32, 64, 128)
PAD, PAD_P = 4, 16


def run_step(options, smem):
    """The run of the step with `smem` bytes of shared memory."""
    sizes = dict(b=options.b, h=options.h, n=options.n, d=options.d, smem=smem)
    # HBM as of the heads that run.
    return run_program(options.program, *flags(sizes), "--estimate-heads=0")[0]


def kv_floats(keys, d):
    """What K_j and V_j take of M."""
    return 2 * keys * (d + PAD)


def smem_of(keys, d):
    """The bytes that the tiles take: K_j, V_j, the larger one of Q_i and P_ij, and m and l."""
    rows = 64 if d <= 64 else 32
    return 4 * (kv_floats(keys, d) + rows * (max(d + PAD, keys + PAD_P) + 2))


def keys_of(smem, d):
    """Bc as the step chooses it: the widest tile that fits; 0 when none does."""
    return max((keys for keys in KEYS if smem_of(keys, d) <= smem), default=0)


def point(run):
    """What one run says, per head and in elements."""
    p = run.data["problem"]
    buffers = run.get("traffic.requested.buffers")
    tiles = buffers["Q"]["predicted"]["read"] // buffers["K"]["predicted"]["read"]
    keys = keys_of(p["smem"], p["d"])
    wanted = -(-p["n"] // keys) if keys else 0
    if wanted != tiles:
        raise BadInput(
            f"--smem {p['smem']}: {tiles} K/V tiles, step 04 has {wanted}; this is another step"
        )
    return {
        "smem": p["smem"],
        "bc": keys,
        "tc": tiles,
        "predicted": total(run.get("traffic.requested.predicted")),
        "counted": total(run.get("traffic.requested.counted")),
        "hbm": total(run.get("traffic.hbm.model") or run.get("traffic.hbm.measured")),
        "ms": run.get("time.median_ms"),
    }


def least_squares(xs, ys):
    """(a, b, R^2) of y = a + b x."""
    n = len(xs)
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    b = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / spread
    a = mean_y - b * mean_x
    left = sum((y - a - b * x) ** 2 for x, y in zip(xs, ys))
    all_of_it = sum((y - mean_y) ** 2 for y in ys)
    return a, b, 1 - left / all_of_it if all_of_it else 1.0


def fits(points, heads, n, d):
    """Against 1/M, against 1 / (what K_j and V_j take of it), and what the formula says."""
    ys = [p["predicted"] / (4 * heads) for p in points]
    work = n * n * d * d
    whole = least_squares([work / (p["smem"] / 4) for p in points], ys)
    part = least_squares([work / kv_floats(p["bc"], d) for p in points], ys)
    # K, V once, O = 0 once; m, l and LSE 5 N. Per K/V tile: Q, O read, O written; m, l both ways.
    # Tc = N / Bc, and a key takes 2 (d + pad) floats of shared memory.
    formula = 3 * n * d + 5 * n, (3 + 4 / d) * (2 + 2 * PAD / d)
    return {"M": whole, "K, V": part}, formula


def table(points, n, d):
    columns = [
        Column(("", "M"), lambda p: f"{p['smem']:,} B"),
        Column(("", "Bc"), lambda p: str(p["bc"])),
        Column(("", "Tc"), lambda p: str(p["tc"])),
        Column(("requested", "predicted"), lambda p: f"{p['predicted']:,} B"),
        Column(
            ("requested", "counted"),
            lambda p: "-" if p["counted"] is None else f"{p['counted']:,} B",
        ),
        Column(("N^2 d^2 / M", "elements"), lambda p: f"{n * n * d * d / (p['smem'] / 4):,.0f}"),
        Column(
            ("HBM", "modelled" if points[0]["ms"] is None else "measured"),
            lambda p: bytes_text(p["hbm"]),
        ),
        Column(("", "time"), lambda p: time_text(p["ms"])),
    ]
    shown = [c for c in columns if any(c.cell(p) != "-" for p in points)]
    return text_table(shown, points)


def fit_lines(found, formula):
    lines = [
        "requested elements per head = a + b * N^2 d^2 / divisor; M in elements",
        f"{'':<14}{'divisor':<12}{'a':>14}{'b':>8}{'R^2':>10}",
    ]
    for name, (a, b, r2) in found.items():
        lines.append(f"{'  fit':<14}{name:<12}{a:>14,.0f}{b:>8.2f}{r2:>10.5f}")
    a, b = formula
    lines.append(
        f"{'  formula':<14}{'K, V':<12}{a:>14,.0f}{b:>8.2f}"
        f"   (3 + 4/d) (2 + {2 * PAD}/d), towards 6"
    )
    return "\n".join(lines)


def sizes(text):
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not a list like 16384,65536") from None
    if len(found) < 3:
        raise argparse.ArgumentTypeError("a fit of two constants needs at least three values of M")
    return found


def main():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("--program", default=program_of(SIM, "04_fused"), metavar="PATH")
    add(
        "--smem",
        type=sizes,
        metavar="M,M,...",
        help="bytes (default: what the tiles of 16, 32, 64 and 128 keys take)",
    )
    add("--b", type=int, default=1)
    add("--h", type=int, default=1)
    add("--n", type=int, default=512)
    add("--d", type=int, default=64)
    options = parser.parse_args()
    options.smem = options.smem or [smem_of(keys, options.d) for keys in KEYS]
    runs = [run_step(options, smem) for smem in options.smem]
    points = [point(run) for run in runs]
    heads = options.b * options.h
    found, formula = fits(points, heads, options.n, options.d)
    common = problem_text({**runs[0].data["problem"], "smem": None})
    print(f"{runs[0].data['step']}, {common}, {runs[0].get('device.name')}\n")
    print(table(points, options.n, options.d))
    print()
    print(fit_lines(found, formula))
    return 0
