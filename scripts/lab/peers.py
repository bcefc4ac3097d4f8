"""Compares this project's steps with PyTorch's attention on one GPU: same inputs, same clock.

    peers.py                        bf16 steps: d 64 and 128, N 512..16384, with and without the
                                    mask; fp32 steps: two of these problems
    peers.py --steps "07 10" --backends flash --n "1024 4096" --d 64 --causal both
    peers.py --steps 02 --variants all                 the step's variants beside each other

Each step's shared library (build/gpu/steps/lib*.so) and the backends of PyTorch's
scaled_dot_product_attention that support its type (math, which is unfused, efficient, flash, cudnn)
read the same tensors. First the results are compared with fp64 on two heads. Then all steps of the
type and the backends take turns, `--rounds` times, in the opposite order every other time, so a GPU
that slows down under load slows down all of them. CUDA events enclose each run, and the L2 is swept
with reads before it. Times are medians. A ratio above 1 means that the step is faster. In fp32,
flash and cudnn refuse; math multiplies on the CUDA cores like the steps (TF32 is off); efficient
uses the tensor cores, three TF32 products for each fp32 one, so it is not a like-for-like
comparison. With --json a run continues the one that the file holds, and --turns repeats each
problem: tables show the medians of its repeats, and the least ratio of all.
Exit status: 0 done, 1 a step is wrong or there was no time, 2 bad use, 3 no PyTorch, GPU or
library.
"""

import argparse
import datetime
import shlex
import sys

from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.files import require_writable
from flash_steps.problems import DIRECTIONS, problem_text, series
from flash_steps.step_library import StepLibrary
from flash_steps.steps import ROOT, chosen_of, find_libraries, library_path
from flash_steps.text import time_text

from . import jobs
from .comparison import Comparison
from .jobs import Job, Measurement
from .measured import median_row, place_of
from .torch_attention import BACKENDS, Torch


def load_libraries(options):
    known = find_libraries(options.build)
    if not known:
        raise NotHere(
            f"no step is built in {options.build}: cmake --preset gpu && cmake --build --preset gpu"
        )
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


def require_variants(options, libraries):
    r"""\raises BadInput where --variants names what no step has."""
    if options.variants in (None, "all"):
        return
    known = {name for library in libraries for name in names_of(library)}
    wrong = [word for word in options.variants.split() if word not in known]
    if wrong or not options.variants.split():
        have = "; ".join(
            f"{library.step} has {', '.join(names_of(library))}" for library in libraries
        )
        raise BadInput(f"no step here has a variant '{' '.join(wrong)}': {have}")


def chosen_variants(options, library):
    """Their places in the library's list; by default the last one, the step's result."""
    names = names_of(library)
    if options.variants is None:
        return [len(names) - 1]
    if options.variants == "all":
        return list(range(len(names)))
    return [names.index(word) for word in options.variants.split() if word in names]


def sides_of(options, libraries):
    """{type: [(library, places of its variants)]}: which ones take turns together."""
    sides = {}
    for library in libraries:
        by_type = {}
        for index in chosen_variants(options, library):
            by_type.setdefault(library.variants[index]["dtype"], []).append(index)
        for dtype, variants in by_type.items():
            sides.setdefault(dtype, []).append((library, variants))
    return sides


def problems_of(options, dtype):
    """FlashAttention's series: B*N = 16384, H*d = 2048. All of it for the tensor-core steps."""
    sizes, ds, causals = [1024, 4096], [64], [False]
    if dtype != "fp32":
        sizes, ds, causals = [512 << i for i in range(6)], [64, 128], [False, True]
    if options.causal:
        causals = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    problems = [
        series(n, d, causal)
        for d in options.d or ds
        for causal in causals
        for n in options.n or sizes
    ]
    return [{**p, "hkv": options.hkv or p["h"], "nk": p["n"], "dtype": dtype} for p in problems]


class PeersMeasurement(Measurement):
    name = "peers"

    def __init__(self, options, torch, sides):
        super().__init__(options)
        self.torch, self.sides, self.turn = torch, sides, None
        about = {"rounds": options.rounds, "iters": options.iters}
        self.runs_on(torch.device, torch=torch.torch.__version__, **about)

    def jobs(self):
        return [
            self.job(turn, dtype, side, problem)
            for turn in range(self.options.turns)
            for dtype, side in self.sides.items()
            for problem in problems_of(self.options, dtype)
        ]

    def job(self, turn, dtype, side, problem):
        def rows():
            if turn != self.turn:  # the card may be slower by now
                self.turn = turn
                self.torch.rates.clear()
            self.torch.matmul_rate(dtype)
            return Comparison(self.options, self.torch, side, problem, self.result["notes"]).rows()

        steps = tuple(library.step for library, _ in side)
        who = "; ".join(
            f"{library.step[:2]} {' '.join(names_of(library)[i] for i in places)}"
            for library, places in side
        )
        against = f"{' '.join(self.options.backends)}, {' '.join(self.options.directions)}"
        return Job(f"{turn + 1}: {problem_text(problem)}: {who} | {against}", steps, rows)

    def said(self, text, row):
        ratios = ", ".join(f"{value:.3g}x {name}" for name, value in row["ratios"].items())
        return f"{row['label']} {row['problem']}: {time_text(row['ms'])}; {ratios}"

    def keep(self, row):
        """One more repeat."""
        run = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        keys = ("ms", "flops_per_s", "of_matmul", "ratios", "commit")
        before = [r for r in self.result["rows"] if place_of(r) == place_of(row)]
        repeats = [r for other in before for r in other["repeats"]]
        repeats.append({"run": run, **{key: row[key] for key in keys}})
        super().keep(median_row(row, repeats))


def parse():
    parser = jobs.parser(__doc__, iters=2, turns=1, budget=float("inf"), where="none")
    add = parser.add_argument

    def numbers(text):
        return [int(word) for word in text.split()]

    def some_of(known):
        def words(text):
            wrong = [word for word in text.split() if word not in known]
            if wrong or not text.split():
                raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}")
            return [word for word in known if word in text.split()]

        return words

    def add_words(flag, known, metavar):
        add(flag, type=some_of(known), default=list(known), metavar=metavar)

    add("--steps", metavar='"01 06"', help="by number or by name; default: all")
    add(
        "--variants",
        metavar='"shared registers"',
        help="by name, or all; default: each step's last one, its result",
    )
    add_words("--backends", BACKENDS, '"flash cudnn"')
    add_words("--directions", DIRECTIONS, '"forward backward"')
    add("--n", type=numbers, metavar='"1024 4096"', help="sequence lengths")
    add("--d", type=numbers, metavar='"64 128"', help="head dimensions")
    add("--hkv", type=jobs.count(), metavar="INT", help="key/value heads (default: 2048 / d)")
    add("--causal", choices=("no", "yes", "both"))
    add(
        "--rounds",
        type=jobs.count(),
        default=10,
        metavar="INT",
        help="turns of each; fewer where they would take long (default %(default)s)",
    )
    options = parser.parse_args()
    if min([*(options.n or []), *(options.d or [])], default=1) < 1:
        parser.error("sizes must be at least 1")
    return options


def command_line(words):
    """How peers.py was called, for the result: what it measures, and no machine's paths."""
    kept, skip = [], False
    elsewhere = ("--json", "--budget", "--build")
    for word in words:
        flag, value = word.partition("=")[::2]
        if not skip and flag not in elsewhere:
            kept.append(word.replace(ROOT + "/", ""))
        skip = word in elsewhere and not value
    return shlex.join(["./scripts/peers.py", *kept])


def main():
    options = parse()
    if options.json:
        require_writable("--json", options.json)
    try:
        torch = Torch(options.backends)
        libraries = load_libraries(options)
        require_variants(options, libraries)
        sides = sides_of(options, libraries)
        measurement = PeersMeasurement(options, torch, sides)
        status = measurement.measure(command_line(sys.argv[1:]))
    except RuntimeError as error:  # PyTorch's
        raise Failure(error) from None
    result = measurement.result
    if not result["rows"] and not result["failures"] and not result["left_out"]:
        raise NotHere("nothing was compared: " + "; ".join(dict.fromkeys(result["notes"])))
    return status
