"""Reproduces FlashAttention-1's Figure 2, left (arXiv 2205.14135).

    figure2.py                                          a GPU, the figure's shape
    figure2.py --backend sim --b 1 --h 1 --n 256        any machine, a small shape

Forward and backward of the standard attention, which stores S and P (05, variant standard), of the
fused one, which recomputes them (05), and of FlashAttention-2's order (06): FLOPs, HBM bytes and
time, with their ratios beside the paper's. HBM bytes are measured on a GPU and modelled in the
simulator; the simulator has no time.
Exit status: 0 done, 1 a run was wrong, 2 bad use, 3 no GPU, memory or program.
"""

import os
import shutil
import textwrap

from flash_steps import command
from flash_steps.command import BadInput
from flash_steps.commits import here
from flash_steps.files import require_writable, write_json
from flash_steps.problems import DIRECTIONS, flags, problem_text
from flash_steps.results import total
from flash_steps.steps import ROOT, program_of, run_program
from flash_steps.text import Column, bytes_text, markdown_table, text_table, three_digits, time_text

RUNS = (
    ("standard", "05_recompute_backward", "standard"),
    ("fused", "05_recompute_backward", "recompute"),
    ("FA-2", "06_work_partitioning", None),
)
# What the paper prints: GFLOPs, GB of HBM, ms of an A100, for the standard attention and its own.
PAPER = {"flops": (66.6e9, 75.2e9), "hbm": (40.3e9, 4.4e9), "ms": (41.7, 7.3)}
OTHER_VERSIONS = "Other versions of the paper print 35.3 / 4.4 GB and 35.1 / 11.7 ms."


def sum_of_both(runs, path, reduce=lambda x: x):
    """Forward and backward together; None when one of them has no such figure."""
    values = [run.get(path) for run in runs]
    return None if None in values else sum(reduce(value) for value in values)


def run_step(options, step, variant):
    """[forward, backward] of a variant; None: the step's last one."""
    found = run_program(
        program_of(options.build, step),
        *flags(dict(b=options.b, h=options.h, n=options.n, d=options.d)),
        "--input=normal",
        f"--iters={options.iters}",
        *([f"--variant={variant}"] if variant else []),
        preset=options.backend,
    )
    runs = [run for run in found if run.direction in DIRECTIONS]
    if len(runs) != 2:
        raise BadInput(f"{step} has no backward in its variant '{runs[0].variant}'")
    return runs


def figures_of(name, runs):
    """One row of the result: forward and backward together."""
    data = runs[0].data
    hbm = "traffic.hbm.measured" if data["device"]["kind"] == "gpu" else "traffic.hbm.model"
    return {
        "name": name,
        "step": data["step"],
        "commit": here(),
        "variant": runs[0].variant,
        "flops": sum_of_both(runs, "flops_executed"),
        "hbm_predicted": sum_of_both(runs, "traffic.hbm.predicted", total),
        "hbm": sum_of_both(runs, hbm, total),
        "ms": sum_of_both(runs, "time.median_ms"),
        "workspace": data["workspace_bytes"],
        "roofs": data.get("roofs"),
    }


def ratio(standard, other):
    return three_digits(standard / other) if standard and other else "-"


def lines_of(result):
    """The rows of the table: (figure, standard, fused, ratio, FA-2, ratio, paper, ratio)."""
    by_name = {row["name"]: row for row in result["rows"]}
    measured = result["kind"] == "gpu"

    def giga(value):
        return "-" if value is None else three_digits(value / 1e9)

    rows = []
    for title, key, text in (
        ("GFLOP executed", "flops", giga),
        ("HBM, predicted", "hbm_predicted", bytes_text),
        ("HBM, measured" if measured else "HBM, modelled", "hbm", bytes_text),
        ("workspace", "workspace", bytes_text),
        ("time", "ms", time_text),
    ):
        standard, fused, fa2 = (by_name[name][key] for name in ("standard", "fused", "FA-2"))
        paper = PAPER.get(key)
        rows.append(
            (
                title,
                text(standard),
                text(fused),
                ratio(standard, fused),
                text(fa2),
                ratio(standard, fa2),
                f"{text(paper[0])} / {text(paper[1])}" if paper else "-",
                ratio(*paper) if paper else "-",
            )
        )
    return rows


COLUMNS = [
    Column(head, lambda row, i=i: row[i], left=i == 0)
    for i, head in enumerate(
        (
            ("forward +", "backward"),
            ("05", "standard"),
            ("05", "fused"),
            ("standard", "/ fused"),
            ("06", "FA-2"),
            ("standard", "/ FA-2"),
            ("paper, A100:", "standard / fused"),
            ("", "ratio"),
        )
    )
]


def notes_of(result):
    p = result["problem"]
    forward = 4 * p["n"] ** 2 * p["d"] * p["b"] * p["h"] / 1e9
    notes = [f"{problem_text(p)}, {result['device']}"]
    if result["kind"] == "sim":
        notes.append(
            "The simulator has no time. Its model of the L2 keeps what fits, so a small problem's "
            "S and P are not read back from HBM, unlike those of a large one."
        )
    notes += [
        f"The paper's figures: N=1024, d=64, 16 heads, batch 64, 16-bit. {OTHER_VERSIONS}",
        f"66.6 GFLOP does not follow from that shape, whose forward alone is "
        f"{4 * 1024**2 * 64 * 1024 / 1e9:.1f} GFLOP (here: {forward:.4g}). So compare the "
        "ratios and their causes, not the absolute figures.",
    ]
    return notes


def text_of(result):
    notes = [textwrap.fill(note, 100) for note in notes_of(result)]
    return "\n".join([text_table(COLUMNS, lines_of(result)), ""] + notes)


def markdown_of(result):
    return "\n\n".join([markdown_table(COLUMNS, lines_of(result))] + notes_of(result))


def parse():
    parser = command.parser(__doc__)
    parser.add_argument(
        "--backend",
        choices=("gpu", "sim"),
        help="default: gpu where nvidia-smi is installed, else sim",
    )
    parser.add_argument("--build", metavar="DIR", help="default: build/gpu or build/sim")
    for flag, value, what in (
        ("--b", 64, "batch"),
        ("--h", 16, "heads"),
        ("--n", 1024, "queries"),
        ("--d", 64, "head dimension"),
        ("--iters", 20, "timed runs"),
    ):
        parser.add_argument(
            flag, type=int, default=value, metavar="INT", help=f"{what} (default %(default)s)"
        )
    parser.add_argument("--json", metavar="F.json", help="write the result as JSON")
    options = parser.parse_args()
    options.backend = options.backend or ("gpu" if shutil.which("nvidia-smi") else "sim")
    options.build = options.build or os.path.join(ROOT, "build", options.backend)
    if options.backend == "sim" and options.b * options.h * options.n**2 > 2**24:
        raise BadInput("this shape needs a GPU; in the simulator try --b 1 --h 1 --n 256")
    if options.json:
        require_writable("--json", options.json)
    return options


def main():
    options = parse()
    found = [(name, run_step(options, step, variant)) for name, step, variant in RUNS]
    first = found[0][1][0].data
    problem = {
        key: first["problem"][key] for key in ("b", "h", "hkv", "n", "nk", "d", "causal", "dtype")
    }
    result = {
        "schema": 1,
        "kind": first["device"]["kind"],
        "device": first["device"]["name"],
        "problem": problem,
        "rows": [figures_of(name, runs) for name, runs in found],
    }
    print(text_of(result))
    if options.json:
        write_json(options.json, result, indent=1)
    return 0
