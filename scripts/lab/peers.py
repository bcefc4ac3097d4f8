"""Compares this project's steps with PyTorch's attention on one GPU: same inputs, same clock.

    peers.py                        bf16 steps: d 64 and 128, N 512..16384, with and without the
                                    mask; fp32 steps: two of these problems
    peers.py --steps 07 --backends flash --n "1024 4096" --d 64 --causal both
    peers.py --steps 02 --variants all                 the step's variants beside each other
    peers.py --steps "07 09 10" --together             several steps in the same turns
    peers.py --steps 10 --library mine=./libmine.so    beside a library of your own

Each step's shared library (build/gpu/steps/lib*.so) and the backends of PyTorch's
scaled_dot_product_attention that support its type (math, which is unfused, efficient, flash, cudnn)
read the same tensors. First the results are compared with fp64 on two heads. Then step and backends
take turns, `--rounds` times, in the opposite order every other time, so a GPU that slows down under
load slows down all of them. CUDA events enclose each run, and the L2 is swept with reads before it.
Times are medians. A ratio above 1 means that the step is faster. In fp32, flash and cudnn refuse;
math multiplies on the CUDA cores like the steps (TF32 is off); efficient uses the tensor cores,
three TF32 products for each fp32 one, so it is not a like-for-like comparison. A library of your
own exports fa_forward() as common/harness/library/library.h describes it.
Exit status: 0 done, 1 a step is wrong, 2 bad use, 3 no PyTorch, GPU or library.
"""

import argparse
import datetime
import os
import shlex
import sys

from flash_steps import command
from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.files import require_writable, write_json
from flash_steps.problems import DIRECTIONS, TOKENS, series
from flash_steps.step_library import SIZES, Library, Refused, StepLibrary
from flash_steps.steps import ROOT, chosen_of, find_libraries, library_path
from flash_steps.text import time_text

from .comparison import Comparison
from .peers_table import text_of
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


def find_others(options):
    """The libraries of --library NAME=PATH."""
    others = []
    for word in options.library:
        name, _, path = word.partition("=")
        if not name or not path:
            raise BadInput(f"--library {word}: must have the form NAME=PATH.so")
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
        for causal in causals:
            for n in sizes:
                p = series(n, d, causal, options.tokens)
                problems.append({**p, "hkv": options.hkv or p["h"], "nk": n, "dtype": dtype})
    return problems


def parse():
    parser = command.parser(__doc__)
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

    add("--steps", metavar='"01 06"', help="by number or by name; default: all")
    add(
        "--variants",
        metavar='"shared registers"',
        help="by name, or all; default: each step's last one, its result",
    )
    add(
        "--together",
        action="store_true",
        help="steps of one type share their turns, instead of one step after the other",
    )
    add(
        "--library",
        action="append",
        default=[],
        metavar="NAME=PATH.so",
        help="another library to time, with the C interface of common/harness/library/library.h; "
        "repeatable",
    )
    add(
        "--build",
        metavar="DIR",
        default=os.path.join(ROOT, "build", "gpu"),
        help="default: build/gpu",
    )
    add(
        "--backends",
        type=some_of(list(BACKENDS)),
        default=list(BACKENDS),
        metavar='"flash cudnn"',
        help=f"of PyTorch: {', '.join(BACKENDS)}",
    )
    add(
        "--directions",
        type=some_of(DIRECTIONS),
        default=list(DIRECTIONS),
        metavar='"forward backward"',
    )
    add("--n", type=numbers, metavar='"1024 4096"', help="sequence lengths")
    add("--d", type=numbers, metavar='"64 128"', help="head dimensions")
    add(
        "--hkv",
        type=int,
        metavar="INT",
        help="key/value heads (default: as many as query heads, 2048 / d)",
    )
    add("--causal", choices=("no", "yes", "both"))
    add(
        "--tokens",
        type=int,
        default=TOKENS,
        metavar="INT",
        help="batch times sequence length (default %(default)s)",
    )
    add(
        "--rounds",
        type=int,
        default=10,
        metavar="INT",
        help="turns of each; fewer where they would take long (default %(default)s)",
    )
    add(
        "--iters",
        type=int,
        default=2,
        metavar="INT",
        help="timed runs in each turn (default %(default)s)",
    )
    add("--json", metavar="F.json", help="write the result as JSON")
    options = parser.parse_args()
    sizes = [options.rounds, options.iters, options.tokens, *(options.n or []), *(options.d or [])]
    if min(sizes) < 1 or (options.hkv is not None and options.hkv < 1):
        parser.error("sizes and counts must be at least 1")
    return options


def command_line(words):
    """How peers.py was called, for the result: without the output path and machine paths."""
    kept, skip = [], False
    for word in words:
        if not skip and word != "--json" and not word.startswith("--json="):
            kept.append(word.replace(ROOT + os.sep, ""))
        skip = word == "--json"
    return shlex.join(["./scripts/peers.py", *kept])


def sides_of(options, libraries):
    """[(type, [(library, places of its variants)])]: which ones take turns together."""
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
    raise BadInput("no step here supports that; " + "; ".join(dict.fromkeys(refusals)))


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
                write_json(options.json, result, indent=1)


def main():
    try:
        return measure(parse())
    except RuntimeError as error:  # PyTorch's
        raise Failure(error) from None


def measure(options):
    if options.json:
        require_writable("--json", options.json)
    torch = Torch(options.backends)
    libraries, others = load_libraries(options), find_others(options)
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
