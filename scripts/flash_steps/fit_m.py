"""Fits how the fused forward's traffic depends on the shared memory M: Theta(N^2 d^2 / M).

    fit_m.py            step 04 in the simulator, for the M of each tile
    fit_m.py --n 256    of a shorter sequence

Runs the step for each M and prints the requested bytes, predicted and counted. Then it fits
a + b * N^2 d^2 / M by least squares, per head and in elements: once with all of M, once with the
part of M that holds K_j and V_j, beside the constants of the step's formula.
Exit status: 0 done, 1 a run was wrong, 2 bad use, 3 no memory or program.
"""

import os
import statistics

from . import command
from .problems import problem_text
from .results import Run, total
from .steps import ROOT, program_of, report_of
from .text import Column, bytes_text, text_table

SIM = os.path.join(ROOT, "build", "sim")
D = 64
# The tiles of steps/04_fused/2_fused.cuh.
KEYS = (16, 32, 64, 128)
ROWS = 64
PAD, PAD_P = 4, 16


def kv_floats(keys):
    """The floats of K_j and V_j in M."""
    return 2 * keys * (D + PAD)


def smem_of(keys):
    """The bytes of the tiles: K_j, V_j, the larger of Q_i and P_ij, and m and l."""
    return 4 * (kv_floats(keys) + ROWS * (max(D + PAD, keys + PAD_P) + 2))


def least_squares(xs, ys):
    """(a, b, R^2) of y = a + b x."""
    x, y = statistics.fmean(xs), statistics.fmean(ys)
    xx, yy = (sum((value - of) ** 2 for value in values) for values, of in ((xs, x), (ys, y)))
    xy = sum((p - x) * (q - y) for p, q in zip(xs, ys))
    return y - xy / xx * x, xy / xx, xy * xy / (xx * yy)


def fits(points, n):
    """Fits against 1/M and against 1 / (the floats of K_j and V_j); and the formula's constants."""
    ys = [run.get("traffic.requested.predicted") for _, run in points]
    ys = [total(counts) / 4 for counts in ys]
    work = n * n * D * D
    whole = least_squares([work / (smem_of(keys) / 4) for keys, _ in points], ys)
    part = least_squares([work / kv_floats(keys) for keys, _ in points], ys)
    # K, V once, O = 0 once; m, l and LSE 5 N. Per K/V tile: Q, O read, O written; m, l both ways.
    # Tc = N / Bc, and a key takes 2 (d + pad) floats of shared memory.
    formula = 3 * n * D + 5 * n, (3 + 4 / D) * (2 + 2 * PAD / D)
    return {"M": whole, "K, V": part}, formula


def table(points, n):
    """`points`: [(keys of a tile, the run)]."""

    def requested(which):
        return lambda p: f"{total(p[1].get(f'traffic.requested.{which}')):,} B"

    columns = [
        Column(("", "M"), lambda p: f"{smem_of(p[0]):,} B"),
        Column(("", "Bc"), lambda p: str(p[0])),
        Column(("", "Tc"), lambda p: str(-(-n // p[0]))),
        Column(("requested", "predicted"), requested("predicted")),
        Column(("requested", "counted"), requested("counted")),
        Column(
            ("N^2 d^2 / M", "elements"), lambda p: f"{n * n * D * D / (smem_of(p[0]) / 4):,.0f}"
        ),
        Column(("HBM", "modelled"), lambda p: bytes_text(total(p[1].get("traffic.hbm.model")))),
    ]
    return text_table(columns, points)


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


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--n", type=int, default=512)
    n = parser.parse_args().n
    points = []
    for keys in KEYS:
        sizes = ["--h=1", f"--n={n}", f"--d={D}", f"--smem={smem_of(keys)}"]
        # HBM of the head that runs.
        report = report_of(program_of(SIM, "04_fused"), *sizes, "--estimate-heads=0")
        points.append((keys, Run(report, "forward")))
    run = points[0][1]
    common = problem_text({**run.data["problem"], "smem": None})
    print(f"{run.data['step']}, {common}, {run.get('device.name')}\n")
    print(table(points, n))
    print()
    print(fit_lines(*fits(points, n)))
    return 0
