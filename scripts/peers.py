#!/usr/bin/env python3
"""This project's steps against PyTorch's attention on one GPU: same inputs, same clock, as ratios.

    peers.py                        bf16 steps: d 64 and 128, N 512..16384, with and without the
                                    mask; fp32 steps: two of these problems
    peers.py --steps 07 --backends flash --n "1024 4096" --d 64 --causal both
    peers.py --steps 02 --variants all                 the step's variants beside each other
    peers.py --steps "07 09 10" --together             several steps in the same turns
    peers.py --steps 10 --library mine=./libmine.so    beside a library of your own

Each step's shared library (build/gpu/steps/lib*.so) and the backends of PyTorch's
scaled_dot_product_attention that take its type, math (unfused), efficient, flash and cudnn, read
the same tensors. First the results are compared with fp64 on two heads. Then step and backends take
turns, `--rounds` times, in the opposite order each other time, so a GPU that slows down under load
slows down all alike: CUDA events around each run, the L2 swept with reads before it, medians. A
ratio above 1 says that the step is the faster one. fp32: flash and cudnn refuse it; math multiplies
on the CUDA cores like the steps (TF32 is off); efficient uses the tensor cores, three TF32 products
for each of fp32, so it is context and no equal. A library of your own exports fa_forward() as
common/harness/library/library.h describes it.
Exit status: 0 done, 1 a step is wrong, 2 bad use, 3 no PyTorch, no GPU or no library.
"""

import argparse
import datetime
import json
import math
import os
import re
import shlex
import statistics
import sys
import textwrap

from results import (
    BadInput,
    Column,
    Run,
    flops_text,
    markdown_table,
    matmul_of,
    problem_text,
    repeats_of,
    text_table,
    time_text,
)
from step_library import SIZES, Library, Refused, StepLibrary
from step_text import digest_of
from torch_attention import BACKENDS, GRADIENTS, Contender, NotHere, Torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DIRECTIONS = ("forward", "backward")
FP32_NOTE = (
    "fp32: math multiplies on the CUDA cores (no TF32), as the steps do; efficient runs 3 "
    "TF32 products on the tensor cores for each of fp32: context, no equal."
)


class WrongResult(Exception):
    """One sentence; exit status 1."""


# --- the steps ----------------------------------------------------------------------------------


def find_libraries(options):
    folder = os.path.join(options.build, "steps")
    known = sorted(
        found[1]
        for found in (
            re.fullmatch(r"lib(\d.*)\.so", name)
            for name in (os.listdir(folder) if os.path.isdir(folder) else [])
        )
        if found
    )
    if not known:
        raise NotHere(
            f"no step is built in {options.build}: cmake --preset gpu && cmake --build --preset gpu"
        )
    chosen = []
    for word in options.steps.split() if options.steps else known:
        matching = [name for name in known if name == word or name.startswith(word + "_")]
        if not matching:
            raise BadInput(f"no step '{word}'; {options.build} has {', '.join(known)}")
        chosen += matching
    libraries = []
    for name in dict.fromkeys(chosen):
        path = os.path.abspath(os.path.join(folder, f"lib{name}.so"))
        try:
            libraries.append(StepLibrary(path))
        except OSError as error:  # the simulator's ask for too much thread-local storage
            raise NotHere(f"{path} does not load; is it a GPU's (preset gpu)? {error}") from None
        if libraries[-1].kind != "gpu":
            raise NotHere(f"{path} is a simulator's library: build the preset gpu")
    return libraries


def find_others(options):
    """The libraries of --library NAME=PATH."""
    others = []
    for word in options.library:
        name, _, path = word.partition("=")
        if not name or not path:
            raise BadInput(f"--library {word}: NAME=PATH.so is wanted")
        if name in BACKENDS or name in (other.step for other in others):
            raise BadInput(f"--library {word}: the name '{name}' is taken")
        try:
            others.append(Library(os.path.abspath(path), name))
        except OSError as error:
            raise BadInput(f"--library {word}: {error}") from None
    return others


def require_variants(options, libraries):
    r"""\raises BadInput where --variants names what no step has."""
    if options.variants in (None, "all"):
        return
    known = {variant["name"] for library in libraries for variant in library.variants}
    wrong = [word for word in options.variants.split() if word not in known]
    if wrong or not options.variants.split():
        have = "; ".join(
            f"{library.step} has {', '.join(variant['name'] for variant in library.variants)}"
            for library in libraries
        )
        raise BadInput(f"no step here has a variant '{' '.join(wrong)}': {have}")


def chosen_variants(options, library):
    """Their places in the library's list; by default the last one, the step's result."""
    names = [variant["name"] for variant in library.variants]
    if options.variants is None:
        return [len(names) - 1]
    if options.variants == "all":
        return list(range(len(names)))
    return [names.index(word) for word in options.variants.split() if word in names]


def problems_of(options, dtype):
    """FlashAttention's series: B*N = 16384, H*d = 2048. All of it for the tensor-core steps."""
    sizes, ds, causals = [1024, 4096], [64], [False]
    if dtype != "fp32":
        sizes, ds, causals = [512 << i for i in range(6)], [64, 128], [False, True]
    sizes = options.n or sizes
    ds = options.d or ds
    if options.causal:
        causals = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    problems = []
    for d in ds:
        h = max(1, 2048 // d)
        problems += [
            dict(
                b=max(1, options.tokens // n),
                h=h,
                hkv=options.hkv or h,
                n=n,
                nk=n,
                d=d,
                causal=causal,
                dtype=dtype,
            )
            for causal in causals
            for n in sizes
        ]
    return problems


def flops_of(problem, direction):
    """FlashAttention's convention: half of it with the mask, the backward 2.5 times the forward."""
    forward = 4 * problem["b"] * problem["h"] * problem["n"] * problem["nk"] * problem["d"]
    return forward * (0.5 if problem["causal"] else 1) * (2.5 if direction == "backward" else 1)


# --- one comparison -----------------------------------------------------------------------------


class Comparison:
    """Variants of one type, of one step or of several (`sides`: [(library, their places)]), against
    the backends and the libraries of others, on one problem."""

    def __init__(self, options, torch, sides, others, problem, notes):
        self.options, self.torch, self.notes = options, torch, notes
        self.sides, self.others, self.problem = sides, others, problem
        self.sizes = {name: problem[name] for name in SIZES}
        self.text = problem_text(problem)

    def rows(self):
        """The steps' variants, then the others; forward and backward."""
        self.sides = [side for side in self.sides if self.accepts(side[0])]
        if not self.sides:
            return []
        self.others = [other for other in self.others if self.accepts(other)]
        try:
            self.tensors = self.torch.tensors(self.problem)
            self.truth = self.torch.truth(self.problem, self.tensors)
            self.addresses = {name: x.data_ptr() for name, x in self.tensors.items()}
            return sum(map(self.direction, self.options.directions), [])
        except Refused as error:  # of a run that had gone well before
            raise WrongResult(f"{self.text}: {error}") from None
        except self.torch.torch.cuda.OutOfMemoryError as error:
            self.notes.append(f"{self.text}: {first_line(error)}")
        finally:
            self.tensors = self.truth = None
            for library in [library for library, _ in self.sides] + self.others:
                library.release()
            self.torch.torch.cuda.empty_cache()
        return []

    def accepts(self, library):
        """Whether it does this problem; a note where it does not."""
        try:
            library.check(self.sizes)
            return True
        except Refused as error:
            self.refused_by(library, error)
            return False

    def refused_by(self, library, error):
        if error.status == 1:
            raise WrongResult(f"{library.step}, {self.text}: {error}") from None
        where = f", {self.text}" if error.status == 3 else ""
        self.notes.append(f"{library.step}{where}: {error}")

    def direction(self, direction):
        contenders, errors = [], {}
        for library, variants in self.sides:
            for index in variants:
                self.add_variant(library, index, direction, contenders, errors)
        if not contenders:
            return []
        ours = len(contenders)
        for other in self.others:
            self.add_variant(other, len(other.variants) - 1, direction, contenders, errors)
        for name in self.torch.backends:
            try:
                self.add_backend(name, direction, contenders, errors)
            except RuntimeError as error:
                self.refused(name, direction, error)
        found = self.torch.clock.take_turns(contenders, self.options.rounds, self.options.iters)
        for contender in contenders:
            time = found[contender.label]
            if 10 * time["late"] > time["runs"]:
                self.notes.append(
                    f"{contender.label}, {self.text}: {time['late']} of "
                    f"{time['runs']} runs began before the host had queued them."
                )
        return [
            self.row(contender, direction, found, errors, contenders[ours:], is_ours=i < ours)
            for i, contender in enumerate(contenders)
        ]

    def add_variant(self, library, index, direction, contenders, errors):
        variant = library.variants[index]
        if variant["dtype"] != self.problem["dtype"]:
            return
        if direction == "backward" and not variant["backward"]:
            return
        try:
            contender, found = self.step(library, index, variant, direction)
        except Refused as error:
            self.refused_by(library, error)
            return
        contenders.append(contender)
        errors[contender.label] = found

    def step(self, library, index, variant, direction):
        """A Contender of a library and its errors, after a look at its result."""

        def runner(which):
            return library.runner(which, index, self.sizes, self.addresses, self.torch.stream())

        written = ["O"] + ["LSE"] * variant["writes_lse"]
        written = [*GRADIENTS] if direction == "backward" else written
        for name in written:
            self.tensors[name].fill_(float("nan"))
        runner("forward")()  # a backward reads its O and LSE
        if direction == "backward":
            runner("backward")()
        errors = self.torch.errors(self.truth, {name: self.tensors[name] for name in written})
        if library in self.others:
            self.judge_other(library, errors)
            return Contender(library.step, library.step, runner(direction)), errors
        label = Run({"step": library.step, "variant": variant["name"]}, direction).label
        for name, (error, share) in errors.items():
            if not share <= 1:
                raise WrongResult(
                    f"{label}, {self.text}: {name} is wrong, by {error:.2e} where "
                    f"{error / share:.2e} is allowed"
                    if share == share
                    else f"{label}, {self.text}: {name} has an element that is no number, "
                    "or was not written"
                )
        # Timed with these O and LSE, or with those of the next variant: the work is the same.
        return Contender(variant["name"], label, runner(direction), step=library.step), errors

    def judge_other(self, library, errors):
        """It is timed all the same, as PyTorch's backends are; but a note tells."""
        for name, (error, share) in errors.items():
            if not share <= 1:
                self.notes.append(
                    f"{library.step}, {self.text}: {name} is off by {error:.2e}, "
                    f"{share:.3g} times what a step is allowed."
                )

    def add_backend(self, name, direction, contenders, errors):
        if (name, direction, *self.kind()) in self.torch.refused:
            return
        contender, outputs = self.torch.backend(name, self.problem, self.tensors, direction)
        errors[contender.label] = self.torch.errors(self.truth, outputs)
        contenders.append(contender)

    def kind(self):
        """What decides, beside the direction, whether a backend has a kernel."""
        p = self.problem
        return p["dtype"], p["d"], p["h"] != p["hkv"]

    def refused(self, name, direction, error):
        self.torch.torch.cuda.empty_cache()
        if "available kernel" in str(error) or "viable backend" in str(error):
            dtype, d, grouped = self.kind()
            for each in DIRECTIONS[DIRECTIONS.index(direction) :]:  # without a forward no backward
                self.torch.refused.add((name, each, dtype, d, grouped))
            self.notes.append(
                f"PyTorch's {name} has no kernel for {dtype}, d={d}"
                + (", fewer key/value heads" if grouped else "")
                + "."
            )
        else:  # out of memory, mostly
            self.notes.append(f"PyTorch's {name}, {self.text}: {first_line(error)}")

    def row(self, contender, direction, found, errors, peers, is_ours):
        ms = found[contender.label]["ms"]
        rate = flops_of(self.problem, direction) / (ms * 1e-3)
        return {
            **self.problem,
            "problem": self.text,
            "direction": direction,
            "step": contender.step if is_ours else None,
            "text": digest_of(contender.step) if is_ours else None,
            "variant": contender.name,
            "label": contender.label,
            "ms": ms,
            "runs": found[contender.label]["runs"],
            "flops_per_s": rate,
            "ratios": {p.name: found[p.label]["ms"] / ms for p in peers} if is_ours else {},
            "of_matmul": rate / self.torch.matmul_rate(self.problem["dtype"]),
            "errors": {
                name: error if error == error else None
                for name, (error, _) in errors[contender.label].items()
            },
        }


def first_line(error):
    return str(error).strip().splitlines()[0]


# --- the table ----------------------------------------------------------------------------------


def columns_for(rows):
    """For rows of one type."""
    met = dict.fromkeys(name for row in rows for name in row["ratios"])
    backends = [name for name in BACKENDS if name in met]
    backends += [name for name in met if name not in BACKENDS]  # libraries of others

    def ratio(name):
        return lambda row: f"{row['ratios'][name]:.3g}x" if name in row["ratios"] else "-"

    return [
        Column(
            ("", "problem"),
            lambda row: row["problem"],
            left=True,
            short=lambda row: problem_text(row, omit=("B", "H", "type")),
        ),
        Column(
            ("direc-", "tion"),
            lambda row: row["direction"],
            left=True,
            short=lambda row: {"forward": "fwd", "backward": "bwd"}[row["direction"]],
        ),
        Column(
            ("", "who"), lambda row: row["label"], left=True, short=lambda row: short_label(row)
        ),
        Column(("", "time"), lambda row: time_text(row["ms"])),
        Column(("TFLOP", "per s"), lambda row: flops_text(row["flops_per_s"])),
        Column(
            (f"of {rows[0]['dtype']}", "matmul"),
            lambda row: "-" if row["of_matmul"] is None else f"{100 * row['of_matmul']:.1f}%",
        ),
    ] + [Column(("against", name), ratio(name)) for name in backends]


def short_label(row):
    if not row["step"]:
        return row["label"]
    return Run({"step": row["step"], "variant": row["variant"]}, row["direction"]).short_label


def in_order(rows):
    """By type, problem, then direction; PyTorch's backends and other libraries, which each step
    meets anew, once: the median of their times."""
    groups = {}
    for row in rows:
        groups.setdefault(
            (
                row["dtype"],
                row["d"],
                row["causal"],
                row["n"],
                DIRECTIONS.index(row["direction"]),
                row["problem"],
            ),
            {},
        ).setdefault(row["label"], []).append(row)
    ordered = []
    for key in sorted(groups):
        ours = {label for label, same in groups[key].items() if same[0]["step"]}
        if not ours:
            continue
        for label in sorted(groups[key], key=lambda label, ours=ours: label not in ours):
            same = groups[key][label]
            ms = statistics.median(row["ms"] for row in same)
            ordered.append(min(same, key=lambda row: abs(row["ms"] - ms)))
    return ordered


def ratios_of(row, name):
    """Of the runs in which this backend ran: it may have had too little memory in one."""
    return [run["ratios"][name] for run in repeats_of(row) if name in run["ratios"]]


def least_of(rows, name):
    """(the least ratio of all runs, its row, how many runs with this backend each row has at
    least)."""
    found = [ratios_of(row, name) for row in rows]
    ratio, i = min((min(ratios), i) for i, ratios in enumerate(found))
    return ratio, rows[i], min(map(len, found))


def runs_text(count):
    return "1 run" if count == 1 else f"{count} runs"


def means_of(rows):
    """One line for each variant and direction with three problems or more: the geometric means of
    its ratios, and the least."""
    groups = {}
    for row in rows:
        for name in row["ratios"]:
            groups.setdefault((row["label"], row["direction"], row["dtype"]), {}).setdefault(
                name, []
            ).append(row)
    lines = []
    for (label, direction, dtype), backends in groups.items():
        parts = []
        for name, found in backends.items():
            if len(found) > 2:
                mean = statistics.geometric_mean(row["ratios"][name] for row in found)
                least, where, count = least_of(found, name)
                parts.append(
                    f"{mean:.3g}x {name} (least {least:.3g}x in {runs_text(count)}, "
                    f"{problem_text(where, omit=('B', 'H', 'type'))})"
                )
        if parts:
            lines.append(
                f"Geometric mean of {len(found)} problems, {label}, {dtype} {direction}: "
                + ", ".join(parts)
                + "."
            )
    return lines


def errors_of(rows):
    """The largest errors of all outputs, as a sentence."""
    parts = []
    for what, direction in (("O", "forward"), ("gradients", "backward")):
        largest = {}
        for row in rows:
            if row["direction"] == direction:
                name = row["label"] if row["step"] else row["variant"]
                error = max(
                    math.inf if value is None else value
                    for tensor, value in row["errors"].items()
                    if tensor != "LSE"
                )
                largest[name] = max(error, largest.get(name, 0))
        if largest:
            parts.append(f"{what} " + ", ".join(f"{name} {e:.1e}" for name, e in largest.items()))
    return f"Largest error against fp64, {rows[0]['dtype']}: " + "; ".join(parts) + "."


def torch_errors_of(rows):
    """The same of a result of schema 1, which has PyTorch's errors only."""
    errors = {
        name: max(
            (row["error"] for row in rows if not row["step"] and row["variant"] == name),
            default=None,
        )
        for name in BACKENDS
    }
    return (
        "Largest error of PyTorch's outputs against fp64: "
        + ", ".join(f"{name} {e:.1e}" for name, e in errors.items() if e is not None)
        + "."
    )


def runs_of(rows):
    """A sentence where these rows, of one type, are of several runs, each with its own matmul."""
    rates = sorted(matmul_of(run) for row in rows for run in repeats_of(row) if run["of_matmul"])
    runs = [rate for i, rate in enumerate(rates) if i == 0 or rate > rates[i - 1] * (1 + 1e-4)]
    if len(runs) < 2:
        return []
    counts = sorted({len(repeats_of(row)) for row in rows if row["step"]})
    if counts[-1] > 1:
        return [
            f"Medians of {' to '.join(map(str, counts))} runs, in which the {rows[0]['dtype']} "
            f"matmul reached {flops_text(runs[0])} to {flops_text(runs[-1])} TFLOP/s."
        ]
    return [
        f"These rows are of {len(runs)} runs, in which the {rows[0]['dtype']} matmul reached "
        f"{' and '.join(flops_text(rate) for rate in runs)} TFLOP/s. Each ratio is of one run; "
        "times of different runs are not to be compared."
    ]


def tables_and_notes(result):
    """The rows of each type, in order, and what is to be read below them."""
    rows = in_order(result["rows"])
    by_type = {}
    for row in rows:
        by_type.setdefault(row["dtype"], []).append(row)
    errors = [
        (errors_of if "errors" in same[0] else torch_errors_of)(same) for same in by_type.values()
    ]
    return by_type.values(), [
        f"{result['device']}, PyTorch {result['torch']}, {result['rounds']} rounds of "
        f"{result['iters']} runs, medians; above 1x the step is faster. " + " ".join(errors),
        *[note for same in by_type.values() for note in runs_of(same)],
        *([FP32_NOTE] if "fp32" in by_type else []),
        *dict.fromkeys(result["notes"]),
        *means_of(rows),
    ]


def text_of(result):
    tables, notes = tables_and_notes(result)
    return "\n".join(
        [text_table(columns_for(rows), rows) + "\n" for rows in tables]
        + [textwrap.fill(note, 100) for note in notes]
    )


def markdown_of(result):
    tables, notes = tables_and_notes(result)
    return "\n\n".join([markdown_table(columns_for(rows), rows) for rows in tables] + notes)


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def numbers(text):
        return [int(word) for word in text.split()]

    def some_of(known):
        def words(text):
            wrong = [word for word in text.split() if word not in known]
            if wrong or not text.split():
                raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
            return [word for word in known if word in text.split()]

        return words

    parser.add_argument("--steps", metavar='"01 06"', help="by number or by name; default: all")
    parser.add_argument(
        "--variants",
        metavar='"kernel shared"',
        help="by name, or all; default: each step's last one, its result",
    )
    parser.add_argument(
        "--together",
        action="store_true",
        help="steps of one type take turns with each other, too, instead of one after the other",
    )
    parser.add_argument(
        "--library",
        action="append",
        default=[],
        metavar="NAME=PATH.so",
        help="another contender, with the C interface of common/harness/library/library.h; repeatable",
    )
    parser.add_argument(
        "--build",
        metavar="DIR",
        default=os.path.join(ROOT, "build", "gpu"),
        help="default: build/gpu",
    )
    parser.add_argument(
        "--backends",
        type=some_of(list(BACKENDS)),
        default=list(BACKENDS),
        metavar='"flash cudnn"',
        help=f"of PyTorch: {', '.join(BACKENDS)}",
    )
    parser.add_argument(
        "--directions",
        type=some_of(DIRECTIONS),
        default=list(DIRECTIONS),
        metavar='"forward backward"',
    )
    parser.add_argument("--n", type=numbers, metavar='"1024 4096"', help="sequence lengths")
    parser.add_argument("--d", type=numbers, metavar='"64 128"', help="head dimensions")
    parser.add_argument(
        "--hkv",
        type=int,
        metavar="INT",
        help="key/value heads (default: as many as query heads, 2048 / d)",
    )
    parser.add_argument("--causal", choices=("no", "yes", "both"))
    parser.add_argument(
        "--tokens",
        type=int,
        default=16384,
        metavar="INT",
        help="batch times sequence length (default %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        metavar="INT",
        help="turns of all; fewer where they would take long (default %(default)s)",
    )
    parser.add_argument(
        "--iters",
        type=int,
        default=2,
        metavar="INT",
        help="timed runs in each turn (default %(default)s)",
    )
    parser.add_argument("--json", metavar="F.json", help="write the result as JSON")
    options = parser.parse_args()
    if (
        min(
            options.rounds,
            options.iters,
            options.tokens,
            1 if options.hkv is None else options.hkv,
            *(options.n or [1]),
            *(options.d or [1]),
        )
        < 1
    ):
        parser.error("sizes and counts are at least 1")
    return options


def command_line(words):
    """How peers.py was called, for the result: without where that went, and no machine's paths."""
    kept, skip = [], False
    for word in words:
        if not skip and word != "--json" and not word.startswith("--json="):
            kept.append(word.replace(ROOT + os.sep, ""))
        skip = word == "--json"
    return shlex.join(["./scripts/peers.py", *kept])


def sides_of(options, libraries):
    """[(type, [(library, places of its variants)])]: who takes turns with whom."""
    sides = []
    for library in libraries:
        by_type = {}
        for index in chosen_variants(options, library):
            by_type.setdefault(library.variants[index]["dtype"], []).append(index)
        sides += [(dtype, [(library, variants)]) for dtype, variants in by_type.items()]
    if not options.together:
        return sides
    together = {}
    for dtype, side in sides:
        together.setdefault(dtype, []).extend(side)
    return list(together.items())


def require_supported(options, sides):
    r"""\raises BadInput where no step can do any of the problems."""
    refusals = []
    for dtype, side in sides:
        for library, _ in side:
            for problem in problems_of(options, dtype):
                try:
                    library.check({name: problem[name] for name in SIZES})
                    return
                except Refused as error:
                    if error.status != 2:
                        return
                    refusals.append(f"{library.step}: {error}")
    raise BadInput("no step here can do that; " + "; ".join(dict.fromkeys(refusals)))


def compare_all(options, torch, sides, others, result):
    """Adds rows to the result, which is kept as soon as a problem is measured."""
    for dtype, side in sides:
        torch.matmul_rate(dtype)
        for problem in problems_of(options, dtype):
            found = Comparison(options, torch, side, others, problem, result["notes"]).rows()
            for row in found:
                if row["step"]:
                    ratios = ", ".join(
                        f"{value:.3g}x {name}" for name, value in row["ratios"].items()
                    )
                    print(
                        f"{row['label']} {row['problem']}: {time_text(row['ms'])}; {ratios}",
                        file=sys.stderr,
                        flush=True,
                    )
            result["rows"] += found
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(result, file, indent=1)


def require_writable(path):
    r"""\raises BadInput before anything is measured; leaves the file as it was."""
    existed = os.path.exists(path)
    try:
        open(path, "a", encoding="utf-8").close()
    except OSError as error:
        raise BadInput(f"--json {path} cannot be written: {error.strerror}") from None
    if not existed:
        os.remove(os.path.realpath(path))


def main():
    options = parse()
    if options.json:
        require_writable(options.json)
    torch = Torch(options.backends)
    libraries, others = find_libraries(options), find_others(options)
    require_variants(options, libraries)
    sides = sides_of(options, libraries)
    require_supported(options, sides)
    result = {
        "schema": 2,
        "device": torch.device,
        "torch": torch.torch.__version__,
        "rounds": options.rounds,
        "iters": options.iters,
        "run": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commands": [command_line(sys.argv[1:])],
        "notes": [],
        "rows": [],
    }
    compare_all(options, torch, sides, others, result)
    if not result["rows"]:
        raise NotHere("nothing was compared: " + "; ".join(dict.fromkeys(result["notes"])))
    print(text_of(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as error:
        print(f"peers.py: {error}", file=sys.stderr)
        sys.exit(2)
    except NotHere as error:
        print(f"peers.py: {error}", file=sys.stderr)
        sys.exit(3)
    except (WrongResult, RuntimeError) as error:
        print(f"peers.py: {error}", file=sys.stderr)
        sys.exit(1)
