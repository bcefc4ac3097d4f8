"""Measures step 14, ring attention, on the GPUs of one host in one run.

    maintain ring                     writes docs/results/ring_<gpu>.json, prints its tables
    maintain ring --json OUT.json     writes OUT.json instead
    maintain ring --draw              draws docs/pictures/ring.svg from the results

docs/results/ring.md says what it compares. O and LSE are checked in each run, a variant's gradients
in a small problem before its times. Needs mpirun, build/gpu with step 14, two GPUs.

A result is saved after each run, and a further call continues it. All --turns of 16K tokens are
first, second and later turns of the others last; what has not begun after --budget seconds is left
out, and the last lines name it.
Exit status: 0 all measured, 1 something is wrong or was left out, 2 bad use, 3 no GPUs, mpirun or
build.
"""

import concurrent.futures
import os
import shutil
import statistics

from flash_steps import mpi
from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.commits import here
from flash_steps.files import write_text
from flash_steps.problems import flags, flops_of, problem_text
from flash_steps.rungs import RESULTS
from flash_steps.standing import measured
from flash_steps.steps import ROOT
from flash_steps.text import bytes_text, flops_text, percent_text, three_digits, time_text

from . import jobs, ring_picture
from .jobs import Job, Measurement
from .measured import column, place_of
from .session import ask_gpu

STEP = "14_ring"
VARIANT, OTHERS = "fused", ("zigzag", "plain", "heads")
TOKENS = (16384, 8192, 32768, 65536)  # per GPU; the lanes of the first are drawn
HEADS, GROUP = 32, 4
LONG = 524288
HOPS = ((8192, True), (8192, False), (16384, True), (16384, False))
CHANNELS = (4, 16)  # blocks of NCCL
SMALL = 1024  # rows per GPU: gradients are checked
RUN_LIMIT = 200  # seconds
WAIT_LIMIT = 60  # seconds that a rank waits for another


def problem(tokens, ranks, causal, **more):
    heads = min(HEADS, HEADS * TOKENS[0] // tokens)  # fewer with more tokens: equal sizes
    n = tokens * ranks
    p = {"b": 1, "h": heads, "hkv": heads // GROUP, "n": n, "nk": n, "d": 128, "causal": causal}
    return {**p, "dtype": "bf16", **more}


class RingMeasurement(Measurement):
    name, iters = "ring", 20

    def __init__(self, options, program):
        super().__init__(options)
        self.program = program
        self.alone_ms = {}
        self.result |= {"carrier": None, "lanes": None}
        self.runs_on(options.device, ranks=options.ranks)

    def jobs(self):
        ranks = self.options.ranks
        problems = [problem(n, ranks, causal) for n in TOKENS for causal in (True, False)]
        sixteen = problems[:2]
        small = problem(SMALL, ranks, causal=True)
        shares = [
            [self.timed("share", VARIANT, p, turn=turn) for p in problems]
            for turn in range(self.options.turns)
        ]
        first = [self.right(VARIANT, small)]
        first += [job for turn in shares for job in turn[:2]] + shares[0][2:]
        # One rank's rows with its own keys: as long as a hop, without messages.
        hops = [problem(tokens, 1, causal) for tokens, causal in HOPS]
        first += [self.timed("hop", VARIANT, p, sides=("one",)) for p in hops]
        first += [self.right(v, small) for v in OTHERS]
        first += [self.timed("variants", v, p) for v in OTHERS for p in sixteen]
        first.append(self.right(VARIANT, small, CHANNELS[0]))
        first += [self.timed("nccl", VARIANT, sixteen[0], channels=c) for c in CHANNELS]
        long = problem(LONG, ranks, True, h=2, hkv=1)
        first.append(self.timed("long", VARIANT, long, sides=("all",)))  # too long for one
        return first + [job for turn in shares[1:] for job in turn[2:]]

    # --- jobs ---

    def launched(self, ranks, variant, p, channels=None, **more_environment):
        """The JSON of the program, started on this many GPUs."""
        by_nccl = {"FLASH_STEPS_MESSAGES": "nccl", "NCCL_MAX_CTAS": str(channels)}
        small = p["n"] == SMALL * self.options.ranks
        iters = 1 if small or p["n"] >= LONG else self.iters
        line = [*self.options.mpirun.split(), "-n", str(ranks), self.program]
        line += [f"--variant={variant}", *flags(p), "--input=normal", f"--iters={iters}"]
        line += [f"--limit={WAIT_LIMIT}"]
        more = {**(by_nccl if channels else {}), **more_environment}
        status, said, report = mpi.report(line, RUN_LIMIT, **more)
        if status is None:
            raise Failure(f"{' '.join(line)}: not ready after {RUN_LIMIT} s")
        if status != 0:
            raise Failure(f"{' '.join(line)}: exit status {status}:\n{said.strip()}")
        return report

    def row_of(self, what, variant, p, channels):
        ranks = self.options.ranks
        row = {"what": what, **p, "problem": problem_text(p), "tokens": p["n"] // ranks}
        row |= {"ranks": ranks, "step": STEP, "commit": here(), "variant": variant}
        row |= {"channels": channels} if channels else {}
        row["turns"] = []
        before = [old for old in self.result["rows"] if place_of(old) == place_of(row)]
        return before[0] if before else row

    def all_gpus(self, row, variant, p, channels):
        run = self.launched(self.options.ranks, variant, p, channels)
        row["carrier"] = run["carrier"]
        if not channels:
            self.result["carrier"] = run["carrier"]
        row["overlap"] = run["ranks"][-1]["overlap"]
        row["sent"] = [
            sum(rank["sent"][way]["counted"] for way in ("forward", "backward"))
            for rank in run["ranks"]
        ]
        row["bytes_each"] = max(r["memory_bytes"] + r["workspace_bytes"] for r in run["ranks"])
        if not self.result["lanes"]:
            lanes = [rank["lanes"] for rank in run["ranks"]]
            self.result["lanes"] = {"problem": row["problem"], "variant": variant, "ranks": lanes}
        return times_of(run)

    def one_gpu(self, p, turn):
        """The whole problem on each GPU alone, in parallel: the slowest time, of any variant."""
        key = (turn, *p.values())
        if key not in self.alone_ms:
            with concurrent.futures.ThreadPoolExecutor() as pool:
                runs = list(pool.map(lambda gpu: self.on_gpu(gpu, p), range(self.options.ranks)))
            times = [times_of(run) for run in runs]
            self.alone_ms[key] = {
                way: max(each[way] for each in times) for way in ("forward", "both")
            }
            self.alone_ms[key]["each"] = times
        return self.alone_ms[key]

    def on_gpu(self, gpu, p):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = visible.split(",") if visible else [str(i) for i in range(self.options.ranks)]
        return self.launched(1, VARIANT, p, CUDA_VISIBLE_DEVICES=names[gpu])

    def right(self, variant, p, channels=None):
        """Checks the gradients, without timing."""

        def rows():
            run = self.launched(self.options.ranks, variant, p, channels)
            if not run["gradients_checked"]:
                raise Failure(f"{variant}, {problem_text(p)}: the gradients were not checked")
            return []

        return Job(f"gradients: {self.name_of(variant, p, channels)}", (STEP,), rows)

    def name_of(self, variant, p, channels):
        return f"{variant} {problem_text(p)}" + (f" NCCL_MAX_CTAS={channels}" if channels else "")

    def timed(self, what, variant, p, channels=None, sides=("one", "all"), turn=0):
        """All GPUs together, or each alone, or both in an order that alternates between turns."""

        def rows():
            row = self.row_of(what, variant, p, channels)
            if sides == ("one",):
                row["tokens"], row["ranks"] = p["n"], 1
            found = {}
            for side in sides if turn % 2 == 0 else sides[::-1]:
                if side == "all":
                    found[side] = self.all_gpus(row, variant, p, channels)
                else:
                    found[side] = self.one_gpu(p, turn)
            row["turns"].append(found)
            for way in ("forward", "both"):
                times = [[each[side][way] for each in row["turns"]] for side in sides]
                row[way] = {"ms": statistics.median(times[-1])}
                if len(sides) == 2:
                    shares = [one / self.options.ranks / ms for one, ms in zip(*times)]
                    row[way]["one_ms"] = statistics.median(times[0])
                    row[way] |= {"share": statistics.median(shares), "least": min(shares)}
            return [row]

        name = f"{what}: {self.name_of(variant, p, channels)}"
        return Job(name + f", turn {turn + 1}" * bool(turn), (STEP,), rows)


def times_of(run):
    return {"forward": run["time"]["median_ms"], "both": run["forward_and_backward"]["median_ms"]}


# --- tables ---------------------------------------------------------------------------------------


def rate_of(way, factor):
    return lambda row: factor * flops_of(row, "forward") / row["ranks"] / (row[way]["ms"] * 1e-3)


def hidden(row):
    """The share of the last rank's messages, forward and backward, that overlap with compute."""
    overlap = row["overlap"]
    return overlap["both_ms"] / overlap["messages_ms"] if overlap["messages_ms"] else 1


WAYS = (("forward", "forward", 1), ("both", "with backward", 3.5))
SHARES = [
    column(f"{name} {head}", f"{way}.{key}", text)
    for way, name, _ in WAYS
    for head, key, text in (("time", "ms", time_text), ("of ideal", "share", percent_text))
]
TURNS = [column("turns", lambda row: len(row["turns"]))]
TURNS += [column(f"{name} least", f"{way}.least", percent_text) for way, name, _ in WAYS]
TIMES = [
    column(head, what, text)
    for way, name, factor in WAYS
    for head, what, text in (
        (name, f"{way}.ms", time_text),
        (f"{name} TFLOP/s per GPU", rate_of(way, factor), flops_text),
    )
]
TOKENS_EACH = column("tokens per GPU", lambda row: f"{row['tokens'] // 1024}K")
MASK = column("mask", lambda row: "causal" if row["causal"] else "full", left=True)
HIDDEN = column("messages hidden", hidden, percent_text)
SENT = column("sent per GPU", lambda row: max(row["sent"]), bytes_text)
TABLES = {
    "share": [TOKENS_EACH, MASK, column("H", "h"), *SHARES, *TURNS, HIDDEN],
    "variants": [column("variant", "variant", left=True), MASK, TOKENS_EACH, *SHARES, SENT],
    "nccl": [column("messages by", "carrier", left=True), *SHARES, HIDDEN],
    "hop": [TOKENS_EACH, MASK, *TIMES],
    "long": [TOKENS_EACH, *TIMES, column("memory per GPU", "bytes_each", bytes_text)],
}


def rows_for(what, rows):
    """The rows of a table; `variants` also has the rows of the shares with as many tokens."""
    beside = TOKENS[0] if what == "variants" else None
    return [
        row
        for row in rows
        if row["what"] == what or (row["what"] == "share" and row["tokens"] == beside)
    ]


def rung_rows(rows):
    """The forward of each variant, with the speed of one GPU."""
    for row in rows_for("variants", rows):
        label, rate = f"{STEP[:2]} {row['variant']}", rate_of("forward", 1)(row)
        yield {**row, **row["forward"], "label": label, "flops_per_s": rate}


def table(what, rows):
    def order(row):
        return row["n"], not row["causal"], row["variant"], str(row.get("channels") or "")

    return TABLES[what], sorted(rows, key=order)


def card(result):
    """{heading: text}: where and how the run was measured."""
    rates = [
        max(row["sent"]) / (row["overlap"]["messages_ms"] * 1e-3)
        for row in rows_for("share", result["rows"])
    ]  # the greatest is that of messages straight from GPU to GPU
    return {
        "GPU": f"{result['ranks']} x {result['device']}",
        "clock": "not recorded",
        "timing": f"medians of {result['iters']} batches of runs; on the same work the GPUs differ "
        f"by up to {percent_text(difference(result['rows']))}",
        "copy rate": f"{three_digits(max(rates) / 1e12, always=True)} TB/s from GPU to GPU, by "
        f"{result['carrier']}",
        "date": result["run"][:10],
    }


def difference(rows):
    """How much slower the slowest GPU is than the fastest, each alone on the same problem."""
    alone = [turn["one"]["each"] for row in rows for turn in row["turns"] if "one" in turn]
    times = [[gpu[way] for gpu in each] for each in alone for way in ("forward", "both")]
    return max((max(each) / min(each) for each in times), default=1) - 1


# --- the command ----------------------------------------------------------------------------------

PICTURE = os.path.join(ROOT, "docs", "pictures", "ring.svg")


def picture():
    found = measured("ring", RESULTS)
    if not found:
        raise BadInput("nothing was measured yet: ./scripts/maintain ring")
    return ring_picture.draw(found[-1]["lanes"], found[-1]["device"])


def main():
    where = "docs/results/ring_<gpu>.json"
    parser = jobs.parser(__doc__, turns=3, budget=480, where=where)
    add, ranks = parser.add_argument, jobs.count(least=2)
    add("--draw", action="store_true", help="the picture, of what was measured")
    add("--ranks", type=ranks, default=2, metavar="INT", help="GPUs (%(default)s)")
    add("--mpirun", default="mpirun", metavar="COMMAND", help="with flags of your MPI")
    options = parser.parse_args()
    if options.draw:
        write_text(PICTURE, picture())
        return 0
    program = jobs.require_ready(options, STEP)
    if not shutil.which(options.mpirun.split()[0]):
        raise NotHere(f"{options.mpirun.split()[0]} is missing: ./scripts/setup.sh mpi")
    options.device = ask_gpu("name")
    return RingMeasurement(options, program).measure()
