"""Measures step 13, decoding from a KV cache, on one GPU in one run.

    maintain decode                       writes docs/results/decode_<gpu>.json, prints its tables
    maintain decode --json OUT.json       writes OUT.json instead

docs/results/decode.md says what it compares and how. Needs build/gpu (steps 07 and 13) and PyTorch.

The result is saved after each problem, and a further call continues it. Problems that have not
begun after --budget seconds are left out; the last lines name them.
Exit status: 0 all measured, 1 something is wrong or was left out, 2 bad use, 3 no PyTorch, GPU or
build.
"""

import statistics

from flash_steps.command import Failure
from flash_steps.commits import here
from flash_steps.problems import flags, problem_text
from flash_steps.steps import program_of, report_of
from flash_steps.text import Column, bytes_text, three_digits, time_text

from . import jobs, peers
from .comparison import Comparison
from .jobs import Job, Measurement
from .measured import column, ratio_text
from .torch_attention import BACKENDS, Contender, Torch

STEP, BEFORE = "13_decode", "07_tensor_cores"
# Of the library: `pages` is `once` with a second launch, and `fp8` needs scales.
VARIANTS = {BEFORE: ("lazy",), STEP: ("warps", "splits", "groups", "once", "early", "wgmma")}
SHARING = ("once", "early", "wgmma")  # a key head's rows share its keys
HEADS = dict(h=32, hkv=8, d=128, causal=False)
BATCHES, CONTEXTS = (1, 8, 32, 128), tuple(1024 << 2 * i for i in range(5))
ROUNDS, PROGRAM_ITERS = 20, 50  # turns of each; timed runs of a program
LARGEST_PROGRAM = 1 << 19  # keys of all batch entries: a program generates its inputs on the CPU
PAGES = (16, 64, 256)
PAGED = ((1, 4096), (32, 4096), (1, 16384), (1, 65536), (1, 262144))  # batch, keys
QUERIES = (1, 2, 4, 8, 16)
ASKED = ((1, 65536), (32, 4096))
GROUPED_KEYS = 16384
# Lengths, repeated over a batch of this size.
RAGGED = (
    (32, (100, 4096, 1, 777, 2048, 0, 33, 16384)),
    (8, (16384, 8192, 4096, 2048, 1024, 512, 256, 128)),
    (8, (65536, 1024, 1024, 1024, 1024, 1024, 1024, 1024)),
)
COPIES = (1 << 28, 1 << 31)  # bytes that a copy reads and writes
MOST_BYTES = 20e9  # of K, V, Q and O; twice as many for a program's problems


def problem(b, nk, **more):
    p = {"b": b, **HEADS, "n": 1, "nk": nk, "dtype": "bf16", "lengths": None, "page": None}
    return {**p, "cache8": False, **more}


def bytes_of(p):
    keys = sum(p["lengths"]) if p["lengths"] else p["b"] * p["nk"]
    cache = 2 * p["hkv"] * p["d"] * keys * (1 if p["cache8"] else 2)
    return cache + 2 * 2 * p["b"] * p["h"] * p["n"] * p["d"]


def equal_lengths(lengths):
    """The same number of lengths with the same sum, as equal as possible."""
    each, more = divmod(sum(lengths), len(lengths))
    return [each + 1] * more + [each] * (len(lengths) - more)


class Decoding(Comparison):
    """One problem: libraries, backends, and a copy of as many bytes, half read, half written."""

    def __init__(self, what, copy_rate, *comparison):
        super().__init__(*comparison)
        self.what, self.copy_rate = what, copy_rate

    def beside(self):
        return [copy_of(self.torch.torch, bytes_of(self.problem) // 2, "copy")]

    def row(self, *args, **words):
        row = super().row(*args, **words)
        for key in ("direction", "flops_per_s", "of_matmul"):
            row.pop(key)
        return measured(row, self.what, self.copy_rate)


def copy_of(torch, size, name):
    """A Contender that reads and writes `size` bytes."""
    source, target = (torch.empty(max(size, 4), dtype=torch.uint8, device="cuda") for _ in "st")
    return Contender(name, name, lambda: target.copy_(source))


def measured(row, what, copy_rate):
    size = bytes_of(row)
    rate = size / (row["ms"] * 1e-3)
    return {"what": what, **row, "bytes": size, "bytes_per_s": rate, "of_copy": rate / copy_rate}


class DecodeMeasurement(Measurement):
    name, iters = "decode", 2

    def __init__(self, options, torch, libraries):
        super().__init__(options)
        self.torch = torch
        self.libraries = {library.step: library for library in libraries}
        self.runs_on(torch.device, torch=torch.torch.__version__, rounds=ROUNDS)
        self.result |= self.clock()

    def clock(self):
        """{"copy": the largest bandwidth of several copies, "floor_ms": of the smallest kernel}."""
        torch = self.torch.torch
        self.torch.matmul_rate("bf16")  # the card is warm from here on
        small = torch.zeros(1, device="cuda")
        contenders = [Contender("kernel", "kernel", lambda: small.add_(1))]
        contenders += [copy_of(torch, size, f"copy {size}") for size in COPIES]
        found = self.torch.clock.take_turns(contenders, ROUNDS, self.iters)
        torch.cuda.empty_cache()
        copies = [(2 * size / (found[f"copy {size}"]["ms"] * 1e-3), 2 * size) for size in COPIES]
        rate, size = max(copies)
        return {"copy": {"bytes": size, "bytes_per_s": rate}, "floor_ms": found["kernel"]["ms"]}

    def copy_rate(self):
        return self.result["copy"]["bytes_per_s"]

    def jobs(self):
        series = [problem(b, nk) for b in BATCHES for nk in CONTEXTS]
        jobs = [self.compared("peers", p) for p in series if bytes_of(p) <= MOST_BYTES]
        for group in (1, 2, 4, 8, 16):
            grouped = problem(1, GROUPED_KEYS, hkv=HEADS["h"] // group)
            jobs.append(self.compared("groups", grouped, {STEP: ("splits", *SHARING)}))
        for b, nk in ASKED:
            for n in QUERIES:
                asked = problem(b, nk, n=n, causal=True)
                jobs.append(self.compared("queries", asked, {STEP: SHARING}))
        jobs += [
            self.in_8_bits(problem(p["b"], p["nk"], cache8=True))
            for p in series
            if bytes_of(p) <= 2 * MOST_BYTES and p["b"] * p["nk"] <= LARGEST_PROGRAM
        ]
        jobs += [self.paged(b, nk) for b, nk in PAGED]
        return jobs + [self.ragged(b, lengths) for b, lengths in RAGGED]

    def compared(self, what, p, variants=None):
        variants = variants or VARIANTS

        def rows():
            sides = []
            for step, names in variants.items():
                there = peers.names_of(self.libraries[step])
                sides.append((self.libraries[step], [there.index(name) for name in names]))
            place = (self.options, self.torch, sides, p, self.result["notes"])
            return Decoding(what, self.copy_rate(), *place).rows()

        return Job(f"{what}: {problem_text(p)}", tuple(variants), rows)

    def program(self, variant, p):
        """Milliseconds of one checked run of the step's program."""
        path = program_of(self.options.build, STEP)
        how = ["--input=normal", "--no-counters", f"--iters={PROGRAM_ITERS}"]
        report = report_of(path, f"--variant={variant}", *flags(p), *how, preset="gpu")
        if not report["time"]:
            raise Failure(f"13 {variant}, {problem_text(p)}: the program printed no time")
        return report["time"]["median_ms"]

    def in_turns(self, what, sides):
        """A job: rows of these {shape: (variant, problem)}, in both orders in turn. Ratios are to
        the first one, in each turn. `shape` is kept where it differs from the variant."""
        first = next(iter(sides))

        def row(shape, turns):
            variant, p = sides[shape]
            ratios = [a / b for a, b in zip(turns[first], turns[shape])]
            found = {**p, "problem": problem_text(p), "step": STEP, "commit": here()}
            found |= {"variant": variant, "label": f"13 {variant}"}
            found |= {"ms": statistics.median(turns[shape]), "each_ms": turns[shape]}
            found |= {"ratios": {first: statistics.median(ratios)}}
            return found if shape == variant else {**found, "shape": shape}

        def rows():
            turns = {shape: [] for shape in sides}
            for turn in range(self.options.turns):
                for shape in sides if turn % 2 == 0 else reversed(sides):
                    turns[shape].append(self.program(*sides[shape]))
            return [measured(row(shape, turns), what, self.copy_rate()) for shape in sides]

        p = sides[next(reversed(sides))][1]
        return Job(f"{what}: {problem_text({**p, 'page': None})}", (STEP,), rows)

    def in_8_bits(self, p):
        return self.in_turns("fp8", {"once": ("once", {**p, "cache8": False}), "fp8": ("fp8", p)})

    def paged(self, b, nk):
        pages = {"none": None, **{str(page): page for page in PAGES}}
        shapes = {shape: ("once", problem(b, nk, page=page)) for shape, page in pages.items()}
        return self.in_turns("pages", shapes)

    def ragged(self, b, lengths):
        shapes = {
            shape: ("once", problem(b, max(each), lengths=list(each) * (b // len(each))))
            for shape, each in (("equal", equal_lengths(lengths)), ("ragged", lengths))
        }
        return self.in_turns("ragged", shapes)


# --- tables ---------------------------------------------------------------------------------------

ONCE = "13 once"
# {table: the keys of its lines}; `variants` uses the rows of `peers`.
TABLES = dict.fromkeys(("peers", "variants", "fp8", "pages"), ("b", "nk"))
TABLES |= {"queries": ("b", "nk", "n"), "groups": ("group",), "ragged": ("b", "keys")}
TITLES = {"b": "B", "nk": "keys", "n": "queries", "group": "heads of a group"}
TITLES["keys"] = "keys in all"


def rows_for(what, rows):
    return [row for row in rows if row["what"] == ("peers" if what == "variants" else what)]


def rung_rows(rows):
    """Beside PyTorch; by its program's clock what the library does not have."""
    known = VARIANTS[STEP]
    return [r for r in rows if r["what"] == "peers" or r["step"] and r["variant"] not in known]


def keys_text(keys):
    return f"{keys // 1024}K" if keys % 1024 == 0 else f"{keys:,}"


def beside_best(line):
    """The speedup over PyTorch's fastest backend, and its name."""
    torch = [row for name, row in line.items() if name.startswith("torch ")]
    best = min(torch, key=lambda row: row["ms"], default=None)
    return best and f"{ratio_text(line[ONCE]['ratios'][best['variant']])} ({best['variant']})"


def beside_07(line):
    return ratio_text(line["07 lazy"]["ms"] / line[ONCE]["ms"]) if "07 lazy" in line else None


def time_and_share(row):
    return time_text(row["ms"]) + (f", {row['of_copy']:.0%}" if row["step"] else "")


def table(what, rows):
    """A line per problem: times, and shares of a copy's bandwidth; for `peers` more detail."""
    keys, lines, names = TABLES[what], {}, {}
    for row in rows:
        more = {"keys": sum(row["lengths"] or []), "group": row["h"] // row["hkv"]}
        row, name = {**row, **more}, row.get("shape") or row["label"]
        lines.setdefault(tuple(row[key] for key in keys), {})[name] = row
        names[name] = (name == "copy", not row["step"])

    def key_column(key):
        text = keys_text if key == "nk" else "{:,}".format
        return column(TITLES[key], lambda line: text(next(iter(line.values()))[key]))

    def of(name, head, cell):
        return column(head, lambda line: cell(line[name]) if name in line else None)

    columns = [key_column(key) for key in keys]
    if what == "peers":
        columns += [
            of(ONCE, "K, V, Q, O", lambda row: bytes_text(row["bytes"])),
            of(ONCE, "time", lambda row: time_text(row["ms"])),
            of(ONCE, "TB/s", lambda row: three_digits(row["bytes_per_s"] / 1e12, always=True)),
            of(ONCE, "of a copy", lambda row: f"{row['of_copy']:.0%}"),
            Column(("against", "PyTorch's best"), lambda line: beside_best(line) or "-"),
            Column(("against", "07 lazy"), lambda line: beside_07(line) or "-"),
        ]
    else:
        columns += [of(name, name, time_and_share) for name in sorted(names, key=names.get)]
    return columns, [lines[place] for place in sorted(lines)]


def card(result):
    """{heading: text}: where and how the run was measured."""
    rate, copied = (result["copy"][key] for key in ("bytes_per_s", "bytes"))
    floor = time_text(result["floor_ms"])
    return {
        "GPU": f"{result['device']}, PyTorch {result['torch']}",
        "clock": "not recorded",
        "timing": f"CUDA events, medians; the smallest kernel takes {floor}",
        "copy rate": f"{three_digits(rate / 1e12, always=True)} TB/s, with {bytes_text(copied)} "
        "read and written",
        "date": result["run"][:10],
    }


# --- the command ----------------------------------------------------------------------------------


def main():
    parser = jobs.parser(__doc__, turns=3, budget=480, where="docs/results/decode_<gpu>.json")
    options = parser.parse_args()
    options.directions, options.rounds = ["forward"], ROUNDS
    options.iters, options.steps = DecodeMeasurement.iters, " ".join(VARIANTS)
    jobs.require_ready(options, STEP)
    try:
        torch = Torch(list(BACKENDS))
        return DecodeMeasurement(options, torch, peers.load_libraries(options)).measure()
    except RuntimeError as error:  # from PyTorch
        raise Failure(error) from None
