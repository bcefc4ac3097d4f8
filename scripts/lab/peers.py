"""Compares this project's steps with PyTorch's attention on one GPU: same inputs, same clock.

    peers.py                        bf16 steps: d 64 and 128, N 512..16384, with and without the
                                    mask; fp32 steps: two of these problems
    peers.py --steps "07 10" --backends flash --n "1024 4096" --d 64 --causal both
    peers.py --steps 02 --variants all                 the step's variants beside each other
    peers.py --steps 10 --contender my_module:flash3   beside a function of yours
    peers.py --steps 15 --lengths "32x512 8192,32x256" --causal yes    packs, beside FlexAttention
    peers.py --steps 15 --window "256,0 1024,0" --d 128                windows, of one sequence

Steps and the backends of PyTorch's scaled_dot_product_attention read the same tensors, are checked
against fp64, and take turns. With a window, lengths or a mask the backends are flex, varlen, flash3
and flash4, as far as this Python has them. A ratio above 1 means that the step is faster. With
--json a run continues the one that the file holds, and --turns repeats each problem: tables show
the medians of its repeats, and the least ratio of all. docs/gpu.md says more.
Exit status: 0 done, 1 a step is wrong or there was no time, 2 bad use, 3 no PyTorch, GPU or
library.
"""

import argparse
import datetime
import statistics

from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.files import require_writable
from flash_steps.problems import DIRECTIONS, mask_text, problem_text, series
from flash_steps.step_library import StepLibrary
from flash_steps.steps import chosen_of, find_libraries, library_path
from flash_steps.text import Column, flops_text

from . import jobs, masks
from .comparison import Comparison
from .jobs import Job, Measurement
from .measured import against_n, least_of, median_row, place_of, repeats_of
from .torch_attention import BACKENDS, Torch


def load_libraries(options):
    known = find_libraries(options.build)
    if not known:
        build = "cmake --preset gpu && cmake --build --preset gpu"
        raise NotHere(f"no step is built in {options.build}: {build}")
    libraries = []
    for name in chosen_of(known, options.steps, f"{options.build} has"):
        path = library_path(options.build, name)
        try:
            libraries.append(StepLibrary(path))
        except OSError as error:  # the simulator's libraries need too much thread-local storage
            raise NotHere(f"{path} does not load: it must be of the preset gpu: {error}") from None
        if libraries[-1].kind != "gpu":
            raise NotHere(f"{path} is a simulator's library: build the preset gpu")
    return libraries


def names_of(library):
    return [variant["name"] for variant in library.variants]


def chosen_variants(options, library):
    """Their indices in the library's list; by default the last one, the step's result."""
    names = names_of(library)
    if options.variants is None:
        return [len(names) - 1]
    if options.variants == "all":
        return list(range(len(names)))
    return [names.index(word) for word in options.variants.split() if word in names]


def sides_of(options, libraries):
    r"""{type: [(library, indices of its variants)]}: those that take turns together.
    \raises BadInput where --variants names what no step has."""
    known = {"all"}.union(*map(names_of, libraries))
    wrong = [word for word in (options.variants or "").split() if word not in known]
    if wrong:
        have = "; ".join(f"{lib.step} has {', '.join(names_of(lib))}" for lib in libraries)
        raise BadInput(f"no step here has a variant '{' '.join(wrong)}': {have}")
    sides = {}
    for library in libraries:
        by_type = {}
        for place in chosen_variants(options, library):
            by_type.setdefault(library.variants[place]["dtype"], []).append(place)
        for dtype, places in by_type.items():
            sides.setdefault(dtype, []).append((library, places))
    return sides


def problems_of(options, dtype):
    """FlashAttention's series, B*N = 16384, H*d = 2048. All of it for the tensor-core steps."""
    sizes, ds, causals = [1024, 4096], [64], [False]
    if dtype != "fp32":
        sizes, ds, causals = [512 << i for i in range(6)], [64, 128], [False, True]
    if options.causal:
        causals = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    ds, ns = options.d or ds, options.n or (sizes[-1:] if options.masks else sizes)
    problems = [
        {**series(n, d, causal), **mask}
        for d in ds
        for causal in causals
        for mask in options.masks or [{}]
        for n in mask.get("row_starts", [])[-1:] or ns
    ]
    one_batch = {"b": 1} if options.masks else {}
    return [{**p, **one_batch, "hkv": p["h"], "nk": p["n"], "dtype": dtype} for p in problems]


class PeersMeasurement(Measurement):
    name, iters = "peers", 2

    def __init__(self, options, torch, sides):
        super().__init__(options)
        self.torch, self.sides, self.turn = torch, sides, None
        self.runs_on(torch.device, torch=torch.torch.__version__, rounds=options.rounds)

    def jobs(self):
        return [
            self.job(turn, dtype, side, problem)
            for turn in range(self.options.turns)
            for dtype, side in self.sides.items()
            for problem in problems_of(self.options, dtype)
        ]

    def job(self, turn, dtype, side, problem):
        def rows():
            if turn != self.turn:  # the card may have slowed down
                self.turn = turn
                self.torch.rates.clear()
            self.torch.matmul_rate(dtype)
            one = masks.counted(self.torch.torch, problem) if self.options.masks else problem
            return Comparison(self.options, self.torch, side, one, self.result["notes"]).rows()

        who = "; ".join(
            f"{library.step[:2]} {' '.join(names_of(library)[i] for i in places)}"
            for library, places in side
        )
        against = f"{' '.join(self.torch.backends)}, {' '.join(self.options.directions)}"
        text = f"{turn + 1}: {problem_text(problem)}: {who} | {against}"
        return Job(text, tuple(library.step for library, _ in side), rows)

    def keep(self, row):
        run = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        keys = ("ms", "flops_per_s", "of_matmul", "ratios", "commit")
        before = [r for r in self.result["rows"] if place_of(r) == place_of(row)]
        repeats = [r for other in before for r in other["repeats"]]
        repeats.append({"run": run, **{key: row[key] for key in keys}})
        super().keep(median_row(row, repeats))

    def tables(self, rows):
        groups = {}
        for row in rows:
            mask = " causal" if row["causal"] else ""
            mask = f"{mask} {mask_text(row)}".rstrip()
            title = f"{row['direction']}, {row['dtype']}, d={row['d']}{mask}"
            groups.setdefault(title, []).append(row)
        found = [(title, *speeds(groups[title])) for title in sorted(groups)]
        return [*found, ("ratios", *means(rows))] if rows else []

    def facts(self, result):
        return "; ".join(map(": ".join, card(result)[1]))


# --- tables ---------------------------------------------------------------------------------------


def speeds(rows):
    ours_first = sorted(rows, key=lambda row: (not row["step"], row["step"] or ""))
    entries = [(row["label"], row["n"], flops_text(row["flops_per_s"])) for row in ours_first]
    return against_n("TFLOP/s", entries)


def means(rows):
    """The geometric mean of each variant's ratios, and the least of all repeats."""
    groups = {}
    for row in rows:
        if row["step"]:
            groups.setdefault((row["label"], row["dtype"]), []).append(row)

    def column(name):
        def text(found):
            there = [row for row in found if name in row["ratios"]]
            if not there:
                return "-"
            mean = statistics.geometric_mean(row["ratios"][name] for row in there)
            least, row = least_of(there, name)
            at = problem_text(row, omit=("B", "H", "type"))
            return f"{mean:.3g}x, least {least:.3g}x ({at})"

        return Column(("against", name), text, left=True)

    columns = [
        Column(("", "variant"), lambda found: found[0]["label"], left=True),
        Column(("", "problems"), lambda found: str(len(found))),
    ]
    names = dict.fromkeys(name for row in rows for name in row["ratios"])
    return columns + [column(name) for name in names], list(groups.values())


def masked(rows):
    """A row per mask and variant: TFLOP/s, and the speedup over each backend."""
    lines = {}
    for row in rows:
        if row["step"]:
            place = mask_text(row), row["d"], row["variant"]
            lines.setdefault(place, {})[row["direction"]] = row

    def both(head, text):
        def cell(line):
            found = [lines[line].get(way) for way in DIRECTIONS]
            return " / ".join(text(row) if row else "-" for row in found)

        return Column(("", head), cell)

    def against(name):
        def text(row):
            return f"{row['ratios'][name]:.2f}x" if name in row["ratios"] else "-"

        return both(f"against {name}", text)

    names = dict.fromkeys(name for row in rows for name in row["ratios"])
    columns = [
        Column(("", "mask"), lambda line: line[0], left=True),
        *[Column(("", "d"), lambda line: str(line[1]))] * (len({d for _, d, _ in lines}) > 1),
        Column(("", "variant"), lambda line: line[2], left=True),
        both("TFLOP/s", lambda row: flops_text(row["flops_per_s"])),
        *map(against, names),
    ]
    return columns, list(lines)


def card(result):
    """A table of how it was measured."""
    count = max(len(repeats_of(row)) for row in result["rows"])
    how = f"medians of up to {count} repeats of {result['rounds']} rounds of {result['iters']} runs"
    lines = [("GPU", result["device"]), ("PyTorch", result["torch"]), ("times", how)]
    for dtype, rates in result.get("matmul", {}).items():
        span = " to ".join(dict.fromkeys(map(flops_text, rates)))
        lines.append((f"{dtype} matmul", f"{span} TFLOP/s"))
    columns = [Column(("", ""), lambda line, i=i: line[i], left=True) for i in (0, 1)]
    return columns, lines


# --- the command ----------------------------------------------------------------------------------


def parse():
    parser = jobs.parser(__doc__, turns=1, budget=float("inf"), where="none")
    add = parser.add_argument

    def numbers(text):
        return [int(word) for word in text.split()]

    def some_of(known):
        def words(text):
            wrong = [word for word in text.split() if word not in known]
            if wrong:
                raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
            return [word for word in known if word in text.split()]

        return words

    add("--steps", metavar='"01 06"', help="by number or by name; default: all")
    said = "by name, or all; default: each step's last one, its result"
    add("--variants", metavar='"shared registers"', help=said)
    known = [*BACKENDS, *masks.BACKENDS]
    add("--backends", type=some_of(known), metavar='"flash cudnn"')
    said = "a Python function of (Q, K, V, causal), each [B, H, N, d], that returns O; repeatable"
    add("--contender", action="append", default=[], metavar="MODULE:FUNCTION", help=said)
    both = '"forward backward"'
    add("--directions", type=some_of(DIRECTIONS), default=[*DIRECTIONS], metavar=both)
    add("--n", type=numbers, metavar='"1024 4096"', help="sequence lengths")
    add("--d", type=numbers, metavar='"64 128"', help="head dimensions")
    add("--causal", choices=("no", "yes", "both"))
    add("--window", metavar='"256,0 none"', help="keys before and after a row's position; -1: all")
    add("--lengths", metavar='"512,30,9 8x64"', help="rows of documents, one after another")
    add("--mask", metavar='"strided:64"', help=f"{', '.join(masks.PREDICATES)}, and a number")
    options = parser.parse_args()
    options.masks = (
        masks.masks_of(options) if options.window or options.lengths or options.mask else []
    )
    if options.masks and options.contender:
        parser.error("a --contender knows no mask but causal")
    options.backends = options.backends or list(masks.BACKENDS if options.masks else BACKENDS)
    if min([*(options.n or []), *(options.d or [])], default=1) < 1:
        parser.error("sizes must be at least 1")
    options.rounds, options.iters = 10, PeersMeasurement.iters
    return options


def main():
    options = parse()
    if options.json:
        require_writable("--json", options.json)
    try:
        torch = Torch(options.backends, options.contender)
        measurement = PeersMeasurement(options, torch, sides_of(options, load_libraries(options)))
        status = measurement.measure()
    except RuntimeError as error:  # from PyTorch
        raise Failure(error) from None
    result = measurement.result
    if not result["rows"] and not result["failures"] and not result["left_out"]:
        raise NotHere("nothing was compared: " + "; ".join(dict.fromkeys(result["notes"])))
    return status
