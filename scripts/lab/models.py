"""Measures attention in the shapes that models have, on one GPU in one run, beside other kernels.

    maintain models                       writes docs/results/models_<gpu>.json, prints its tables
    maintain models --json OUT.json       writes OUT.json instead
    maintain models --only "decode wide"  some of: grouped, single, short, ragged, wide, decode,
                                          sustained

Heads that share K and V, one sequence, short, ragged and wide ones, decoding, and runs back to
back (sustained), forward and backward, of steps 10, 11 and 13 as they are by default. PyTorch's
flash and cudnn take turns with them, and where they are installed FlashAttention-3
(flash_attn_interface), FlashAttention-4 (flash_attn.cute) and for decoding FlashInfer; the order is
drawn anew in each round. All outputs are checked against fp64. Needs build/gpu and PyTorch.

The result is saved after each problem, a further call continues it, and --turns repeats each
problem: tables show the medians of its repeats, and the least ratio of all.
Exit status: 0 all measured, 1 something is wrong or was left out, 2 bad use, 3 no PyTorch, GPU or
build.
"""

import argparse
import statistics

from flash_steps.command import Failure
from flash_steps.problems import problem_text
from flash_steps.text import flops_text, time_text

from . import jobs, peers, rivals
from .comparison import Comparison
from .jobs import Job
from .measured import column, ratio_text, repeats_of
from .torch_attention import BACKENDS, Torch

STEPS = {"forward": "10_warp_specialized", "backward": "11_hopper_backward", "decode": "13_decode"}
DENSE = ("flash", "cudnn", "flash3", "flash4")
# B, H, Hkv, N, d
SHAPES = {
    "grouped": [
        (4, 32, 8, 2048, 128), (2, 32, 8, 4096, 128), (1, 64, 8, 8192, 128), (1, 64, 4, 8192, 128),
        (2, 32, 1, 4096, 128), (2, 64, 8, 4096, 64),
    ],
    "single": [
        (1, 16, 16, 1024, 128), (1, 8, 8, 2048, 128), (1, 16, 16, 2048, 128), (1, 32, 32, 2048, 64),
        (1, 32, 32, 4096, 128), (1, 8, 8, 8192, 128),
    ],
    "short": [(128, 16, 16, 128, 128), (64, 16, 16, 256, 128), (64, 32, 32, 256, 64)],
    "ragged": [(4, 16, 16, 3000, 128), (4, 16, 16, 4097, 128), (4, 32, 32, 3000, 64)],
    "wide": [
        (32, 8, 8, 512, 256), (8, 8, 8, 2048, 256), (4, 8, 8, 4096, 256), (1, 8, 8, 16384, 256),
    ],
}  # fmt: skip
SUSTAINED = [(2, 16, 16, 8192, 128), (1, 64, 8, 8192, 128)]
SUSTAINED_MS, SUSTAINED_ROUNDS = 200, 4  # of each contender's runs, back to back
SHARED = ((32, 8), (64, 8), (64, 4), (32, 1))  # H, Hkv of decoding
CACHES = ((1, 4096), (1, 16384), (1, 65536), (1, 262144), (8, 16384), (32, 4096))  # B, keys


def shape(b, h, hkv, n, d, nk=None, causal=False):
    p = {"b": b, "h": h, "hkv": hkv, "n": n, "nk": nk or n, "d": d, "causal": causal}
    return {**p, "dtype": "bf16"}


def problems():
    """(what, direction, problem), the most important first."""
    for h, hkv in SHARED:
        for b, nk in CACHES:
            yield "decode", "decode", shape(b, h, hkv, 1, 128, nk)
    for what, shapes in SHAPES.items():
        for each in shapes:
            for causal in (False, True):
                for direction in ("forward", "backward"):
                    yield what, direction, shape(*each, causal=causal)
    for each in SUSTAINED:
        for causal in (False, True):
            for direction in ("forward", "backward"):
                yield "sustained", direction, shape(*each, causal=causal)


class Shapes(Comparison):
    """One problem in one direction."""

    def __init__(self, what, *comparison):
        super().__init__(*comparison)
        self.what = what

    def backends(self):
        names = ("flash", "cudnn", "flash3", "flashinfer") if self.what == "decode" else DENSE
        return [name for name in names if name in self.torch.backends]

    def times(self, contenders):
        if self.what != "sustained":
            return super().times(contenders)
        return sustained(self.torch, contenders, SUSTAINED_ROUNDS)

    def row(self, *args, **words):
        return {"what": self.what, **super().row(*args, **words)}


def sustained(torch, contenders, rounds):
    """As Clock.take_turns, of runs back to back: the power limit sets the clock."""
    found = {contender.label: [] for contender in contenders}
    runs = {c.label: max(1, int(SUSTAINED_MS / torch.clock.warm_up(c))) for c in contenders}
    begin, end = (torch.torch.cuda.Event(enable_timing=True) for _ in range(2))
    for i in range(rounds):
        for contender in contenders if i % 2 == 0 else reversed(contenders):
            with contender.context():
                begin.record()
                for _ in range(runs[contender.label]):
                    contender.run()
                end.record()
            end.synchronize()
            found[contender.label].append(begin.elapsed_time(end) / runs[contender.label])
    return {
        label: {"ms": statistics.median(each), "runs": rounds, "late": 0}
        for label, each in found.items()
    }


class ModelsMeasurement(peers.PeersMeasurement):
    name = "models"

    def __init__(self, options, torch, libraries):
        super().__init__(options, torch, {})
        self.libraries = {library.step: library for library in libraries}

    def jobs(self):
        return [
            self.compared(turn, *about)
            for turn in range(self.options.turns)
            for about in problems()
            if about[0] in self.options.only
        ]

    def compared(self, turn, what, direction, p):
        library = self.libraries[STEPS[direction]]

        def rows():
            self.torch.matmul_rate(p["dtype"])
            self.options.directions = ["backward" if direction == "backward" else "forward"]
            sides = [(library, peers.chosen_variants(self.options, library))]
            return Shapes(what, self.options, self.torch, sides, p, self.result["notes"]).rows()

        return Job(f"{turn + 1}: {what}: {problem_text(p)} {direction}", (library.step,), rows)

    def tables(self, rows):
        found = [(what, rows_for(what, rows)) for what in TABLES]
        return [(what, *table(what, mine)) for what, mine in found if mine]

    def facts(self, result):
        return "; ".join(f"{head}: {text}" for head, text in card(result).items())


# --- tables ---------------------------------------------------------------------------------------

TABLES = ("decode", *SHAPES, "sustained")
RIVALS = ("flash", "cudnn", "flash3", "flash4", "flashinfer")


def rows_for(what, rows):
    return [row for row in rows if row["what"] == what]


def best_of(row):
    """(the ratio to the fastest rival, its name), of the medians; None without rivals."""
    return min(((ratio, name) for name, ratio in row["ratios"].items()), default=None)


def least_of(row):
    """The least ratio to the fastest rival of any repeat."""
    return min(min(run["ratios"].values()) for run in repeats_of(row) if run["ratios"])


def table(what, rows):
    """A line per problem and direction of the steps' rows."""
    ours = [row for row in rows if row["step"] and row["ratios"]]
    columns = [
        column("problem", lambda row: problem_text(row, omit=("type",)), left=True),
        column("direction", lambda row: "decode" if what == "decode" else row["direction"]),
        column("variant", lambda row: row["label"].removesuffix(" bwd")),
        column("time", lambda row: time_text(row["ms"])),
        column("TFLOP/s", lambda row: flops_text(row["flops_per_s"])),
    ]
    for name in RIVALS:
        if any(name in row["ratios"] for row in ours):
            columns.append(column(name, lambda row, n=name: row["ratios"].get(n), ratio_text))
    columns.append(column("fastest rival", lambda row: f"{best_of(row)[0]:.3f}x"))
    columns.append(column("least", lambda row: f"{least_of(row):.3f}x"))
    return columns, ours


def card(result):
    """{heading: text}: how it was measured."""
    about = {"GPU": f"{result['device']}, PyTorch {result['torch']}", "date": result["run"][:10]}
    count = max(len(repeats_of(row)) for row in result["rows"])
    runs = result["rounds"] * result["iters"]
    about["times"] = f"medians of {count} repeats of {runs} runs in turns, order drawn anew"
    for dtype, rates in result.get("matmul", {}).items():
        about[f"{dtype} matmul"] = " to ".join(dict.fromkeys(map(flops_text, rates))) + " TFLOP/s"
    return about


# --- the command ----------------------------------------------------------------------------------


def main():
    parser = jobs.parser(__doc__, turns=1, budget=480, where="docs/results/models_<gpu>.json")

    def some(text):
        if wrong := [word for word in text.split() if word not in TABLES]:
            raise argparse.ArgumentTypeError(f"'{wrong[0]}' is not one of {', '.join(TABLES)}")
        return text.split()

    parser.add_argument("--only", type=some, default=[*TABLES], metavar='"decode wide"')
    parser.add_argument("--variants", metavar='"early wgmma"', help="by name; default: each last")
    options = parser.parse_args()
    options.rounds, options.iters = 10, ModelsMeasurement.iters
    options.steps = " ".join(STEPS.values())
    jobs.require_ready(options, STEPS["decode"])
    try:
        torch = Torch([*BACKENDS, *rivals.BACKENDS])
        return ModelsMeasurement(options, torch, peers.load_libraries(options)).measure()
    except RuntimeError as error:  # from PyTorch
        raise Failure(error) from None
