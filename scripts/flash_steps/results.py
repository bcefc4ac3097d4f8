"""JSON of step programs (--json): read it, join it by problem, format it as tables.

Only the simulator has 'counted' and 'estimated', only a GPU has 'measured'; a Row holds one run of
each for the same step, variant, direction and problem.
"""

import glob
import os
import re
from dataclasses import dataclass, field

from .command import BadInput
from .files import read_json
from .gpu_table import model_of, sms_of
from .problems import SIZES, cache_of, in_series, mask_of, own_tiles, problem_text
from .text import Column, bytes_text, count_text, flops_text, for_screen, text_table, time_text


def get(tree, path):
    """tree["a"]["b"] for the path "a.b"; None when anything on the path is absent or null."""
    for key in path.split("."):
        if not isinstance(tree, dict) or tree.get(key) is None:
            return None
        tree = tree[key]
    return tree


def total(counts):
    """The sum of {read, write, atomic} or {load, store, atomic}; None stays None."""
    return None if counts is None else sum(v for v in counts.values() if v)


# The passes of a program's run, in execution order, and their words in a row's label.
PASSES = {"prepare": ["prep"], "forward": [], "backward": ["bwd"]}


@dataclass
class Run:
    """One pass of a run: forward, backward, or a prepare, work on Q, K and V without FLOPs."""

    data: dict  # the program's JSON; except for a forward, with the pass's keys on top
    direction: str  # of PASSES

    def get(self, path):
        return get(self.data, path)

    @property
    def kind(self):
        return self.get("device.kind")

    @property
    def variant(self):
        return self.data["variant"]

    @property
    def heads_differ(self):
        """Are its times estimated for more heads than ran (--estimate-heads)?"""
        p = self.data["problem"]
        return self.get("estimate_heads") not in (None, p["b"] * p["h"])

    @property
    def borrowed(self):
        """Is it another variant's forward or prepare? Tables show those with their owner."""
        return self.direction != "backward" and bool(self.get("forward_of"))

    @property
    def label(self):
        """The step's number, or the name of a user's step, and the variant: "06 swapped",
        "05 standard bwd", "12 blocks prep"."""
        number = re.match(r"\d+(?=_)", self.data["step"])
        words = [number[0] if number else self.data["step"], self.variant]
        return " ".join(words + PASSES[self.direction])

    @property
    def key(self):
        """Equal for runs that moved the same bytes: input and seed do not matter."""
        p = self.data["problem"]
        sizes = tuple(p.get(k) for k in ("b", "h", "hkv", "n", "nk", "d", "causal", "dtype"))
        more = p.get("smem") or 0, *cache_of(p), mask_of(p)
        return (self.data["step"], self.variant, self.direction, (*sizes, *more))


@dataclass
class Row:
    """One line of a table: the simulator's counts beside one GPU's measurements."""

    sim: Run = None
    gpu: Run = None
    any: Run = field(init=False)  # the existing one

    def __post_init__(self):
        self.any = self.gpu or self.sim

    @property
    def heads(self):
        p = self.any.data["problem"]
        return p["b"] * p["h"]

    def sim_get(self, path):
        return self.sim.get(path) if self.sim else None

    def gpu_get(self, path):
        return self.gpu.get(path) if self.gpu else None

    @property
    def estimate(self):
        """The estimate (docs/json.md), a GPU's by --estimate; not for more heads beside a time."""
        fitting = [r for r in (self.sim, self.gpu) if r and not (self.gpu and r.heads_differ)]
        return next((run.get("estimate") for run in fitting if run.get("estimate")), None)

    @property
    def estimated_heads(self):
        """The number of heads of the estimate if more than ran; else None."""
        more = self.estimate and not self.gpu and self.sim.heads_differ
        return self.sim.get("estimate_heads") if more else None

    @property
    def estimated_ms(self):
        return get(self.estimate, "ms")

    @property
    def limiting_kernel(self):
        kernels = get(self.estimate, "kernels")
        return max(kernels, key=lambda kernel: kernel["ms"]) if kernels else None

    @property
    def knows_arithmetic(self):
        return all(kernel["arithmetic"] for kernel in get(self.estimate, "kernels") or [])

    def counted(self, kind):
        return self.sim_get(f"traffic.requested.counted.{kind}")

    @property
    def hbm_modelled(self):
        return total(self.sim_get("traffic.hbm.model"))

    @property
    def hbm_measured(self):
        return total(self.gpu_get("traffic.hbm.measured"))

    @property
    def ms(self):
        """A GPU's median."""
        return self.gpu_get("time.median_ms")

    @property
    def flops_per_s(self):
        """By FlashAttention's convention."""
        flops = self.any.get("flops")
        return flops / (self.ms * 1e-3) if self.ms and flops else None

    @property
    def bytes_per_s(self):
        """HBM bytes, measured or else predicted."""
        moved = self.hbm_measured or total(self.gpu_get("traffic.hbm.predicted"))
        return moved / (self.ms * 1e-3) if self.ms and moved else None


def load(path):
    """The runs in one file: a program's object, a list of them, or {"runs": [...]}."""
    return runs_of(read_json(path), path)


def runs_of(tree, path):
    objects = tree.get("runs", [tree]) if isinstance(tree, dict) else tree
    runs = []
    for data in objects if isinstance(objects, list) else [objects]:
        keys = ("step", "variant", "problem.n")
        if not isinstance(data, dict) or not all(get(data, key) for key in keys):
            raise BadInput(f"{path} holds no run of a step: make it with a step's --json")
        if data.get("ok", True) is None:
            raise BadInput(f"{path} holds a prediction and no run: make it without --predict")
        runs.append(Run(data, "forward"))  # the first: it holds the others
        for direction in ("prepare", "backward"):
            if data.get(direction):  # older files have no key "prepare"
                runs.append(Run({**data, **data[direction]}, direction))
    return runs


def published(folder):
    """The files of docs/results that hold runs of steps on a GPU."""
    paths = sorted(glob.glob(os.path.join(folder, "*.json")))
    others = ("decode_", "ring_", "model_", "rivals_", "masks_", "microbenchmarks_")
    others += ("estimates.", "times.", "equal_code.", "occasions_", "models_", "latent_")
    return [path for path in paths if not os.path.basename(path).startswith(others)]


def load_folder(folder):
    """The runs of all JSON files in a folder, in the order of the file names."""
    return [run for path in sorted(glob.glob(os.path.join(folder, "*.json"))) for run in load(path)]


def join(runs):
    """Rows in reading order: by step, by the place of the variant (`variant_index`), then by size.
    A later run of the same step, problem and device replaces an earlier one."""
    sims, gpus, places = {}, {}, {}
    for run in runs:
        if run.get("variant_index") is not None:
            places[run.data["step"], run.variant] = run.get("variant_index")
        if run.kind == "sim":
            sims[run.key] = run
        else:
            gpus.setdefault(run.key, {})[run.get("device.name")] = run

    def reading_order(key):
        step, variant, direction, sizes = key
        place = places.get((step, variant), 0)
        return step, place, variant, list(PASSES).index(direction), sizes

    rows = []
    for key in sorted({run.key for run in runs}, key=reading_order):
        measured = list(gpus.get(key, {}).values()) or [None]
        rows += [Row(sims.get(key), gpu) for gpu in measured]
    return rows


def join_for_reading(runs):
    """The same without forwards that another row shows."""
    return [row for row in join(runs) if not row.any.borrowed]


HERO_N = 4096
HERO = {  # the forwards of the README's picture, in words
    "01 naive": ("Textbook", "S and P go through HBM"),
    "02 registers": ("Tiled", "tiles in shared memory"),
    "03 one_pass": ("Online softmax", "P is never written"),
    "04 fused": ("FlashAttention-1", "S is gone, but O goes back and forth"),
    "06 registers": ("FlashAttention-2", "loops swapped: O stays on chip"),
    "07 lazy": ("Tensor cores", "bf16: mma.sync and cp.async"),
    "09 wgmma": ("TMA and wgmma", "Hopper copies and multiplies tiles"),
    "10 scheduled": ("FlashAttention-3", "copy and compute in separate warps"),
    "12 late": ("fp8", "8 bits"),
}


def rows_of_hero(rows):
    """One problem of FlashAttention's series, with one forward per step that has an idea for it."""
    found = {}
    for row in rows:
        p = row.any.data["problem"]
        shown = in_series(p) and p["d"] == 64 and p["n"] == HERO_N and row.any.label in HERO
        if shown and row.flops_per_s and not p["causal"] and own_tiles(p):
            found.setdefault((row.gpu.get("device.name"), row.any.label), row)
    return sorted(found.values(), key=lambda row: list(HERO).index(row.any.label))


# The rows that each picture in docs/pictures shows.
PICTURES = {f"hero_{theme}.svg": rows_of_hero for theme in ("light", "dark")}


# --- columns ------------------------------------------------------------------------------------


def sectors_per_request(row):
    for source in (row.sim_get, row.gpu_get):
        requests, sectors = total(source("traffic.requests")), total(source("traffic.sectors"))
        if requests and sectors is not None:
            return f"{sectors / requests:.1f}"
    return "-"


def copied_without_requests(row):
    """Did TMA (or a memset) move bytes of a buffer that no warp requested?"""
    for buffer in (row.sim_get("traffic.requested.buffers") or {}).values():
        for way, kind in (("read", "load"), ("write", "store")):
            if get(buffer, f"counted.{way}") and get(buffer, f"requests.{kind}") == 0:
                return True
    return False


def steps_where(rows, holds):
    """ "09, 10": the steps with such rows."""
    return ", ".join(dict.fromkeys(row.any.label.split()[0] for row in rows if holds(row)))


def notes_on_estimates(rows):
    """Sentences for below a table with the column of estimated times."""
    estimated = [row for row in rows if row.estimate]
    unverified = {row.estimate["gpu"] for row in estimated if not row.estimate["verified"]}
    notes = []
    if unverified:
        notes.append(f"~: times estimated for {', '.join(sorted(unverified))} were never measured")
    steps = steps_where(estimated, lambda row: not row.knows_arithmetic)
    if steps:
        notes.append(f"~ in {steps}: without plain arithmetic, so a GPU may take longer")
    steps = steps_where(rows, lambda row: row.sim and row.gpu and row.sim.heads_differ)
    if steps:
        notes.append(f"{steps}: estimated for more heads than were measured, so not shown")
    return notes


def notes_on(rows):
    """The same, and one for the column of requests."""
    steps = steps_where(rows, copied_without_requests)
    said = f"{steps}: what TMA copies counts as requested bytes, not as warp requests"
    return [said] * bool(steps) + notes_on_estimates(rows)


def requests(row):
    counted = row.sim_get("traffic.requests") or row.gpu_get("traffic.requests")
    return count_text(total(counted))


def estimated_time(row):
    """ "~": less is known about it, see notes_on_estimates."""
    if row.estimate is None:
        return "-"
    certain = row.estimate["verified"] and row.knows_arithmetic
    return ("" if certain else "~") + time_text(row.estimated_ms)


def limited_by(row):
    return get(row.estimate, "limit") or "-"


def busy_sms(row):
    """SMs with a block of the kernel that has the longest estimate."""
    kernel = row.limiting_kernel
    return str(kernel["sms"]) if kernel and kernel["sms"] else "-"


def limit_in_words(row):
    """ "waiting, 4 of 132 SMs": the number of SMs where some have no block."""
    busy, there = busy_sms(row), row.estimate and sms_of(row.estimate["gpu"])
    few = busy != "-" and there and int(busy) < there
    return limited_by(row) + (f", {busy} of {there} SMs" if few else "")


def modelled_gpu(row):
    """ "H200 (132 SMs)", "128 heads on H200 (132 SMs)" """
    if row.estimate is None:
        return "-"
    heads, sms = row.estimated_heads, sms_of(row.estimate["gpu"])
    words = f"{heads} heads on " if heads else ""
    return words + row.estimate["gpu"] + (f" ({sms} SMs)" if sms else "")


def factor(row):
    """Estimated over measured; "-" where the two GPUs differ."""
    if row.estimated_ms is None or not row.ms:
        return "-"
    same = model_of(row.gpu_get("device.name")) == row.estimate["gpu"]
    return f"{row.estimated_ms / row.ms:.2f}x" if same else "-"


def moves_a_cache(row):
    """Is it bound by memory, with a rate in bytes?"""
    return row.gpu_get("rate_of") == "a copy" and bool(row.bytes_per_s)


def speed(row):
    """ "563" for TFLOP/s; "4.00 TB/s"."""
    if moves_a_cache(row):
        return f"{bytes_text(row.bytes_per_s)}/s"
    return flops_text(row.flops_per_s)


def verdict(row):
    runs = [run for run in (row.sim, row.gpu) if run]
    if all(run.get("ok") for run in runs):
        return "ok"
    undecided = all(run.get("ok") or run.get("checkable") is False for run in runs)
    return "not checkable" if undecided else "WRONG"


STEP = Column(("", "step"), lambda r: r.any.label, left=True)
MODEL = Column(("", "estimated for"), modelled_gpu, left=True)
DEVICE = Column(("", "measured on"), lambda r: r.gpu_get("device.name") or "-", left=True)
COLUMNS = (
    Column(("requested", "read"), lambda r: bytes_text(r.counted("read"))),
    Column(("requested", "write"), lambda r: bytes_text(r.counted("write"))),
    Column(("", "atomic"), lambda r: bytes_text(r.counted("atomic") or None)),
    Column(("warp", "requests"), requests),
    Column(("sectors/", "request"), sectors_per_request),
    Column(("HBM", "modelled"), lambda r: bytes_text(r.hbm_modelled)),
    Column(("HBM", "measured"), lambda r: bytes_text(r.hbm_measured)),
    Column(("work-", "space"), lambda r: bytes_text(r.any.get("workspace_bytes"))),
    Column(("estimated", "time"), estimated_time),
    Column(("limited", "by"), limited_by, left=True),
    Column(("busy", "SMs"), busy_sms),
    Column(("measured", "time"), lambda r: time_text(r.ms)),
    Column(("estimated/", "measured"), factor),
    Column(("", "TFLOP/s"), speed),
    Column(("", "check"), verdict),
)


def columns_for(rows):
    """The columns that distinguish these rows, and what all rows share."""
    problems = [row.any.data["problem"] for row in rows]
    varying = [name for name, text in SIZES.items() if len({text(p) for p in problems}) > 1]
    # Where Hkv equals H, and Nk equals N, one column is enough.
    for follower, leader, same in (("Hkv", "H", "h hkv"), ("Nk", "N", "n nk")):
        x, y = same.split()
        if follower in varying and leader in varying and all(p[x] == p[y] for p in problems):
            varying.remove(follower)
    columns = [STEP] + [
        Column(("", name), lambda r, text=SIZES[name]: text(r.any.data["problem"]))
        for name in varying
    ]
    omit = {*varying, *["Nk"] * ("N" in varying), *["Hkv"] * ("H" in varying)}
    common = [problem_text(problems[0], omit)] if problems else []
    for column in (MODEL, DEVICE):
        names = {column.cell(row) for row in rows} - {"-"}
        if len(names) > 1:
            columns.append(column)
        elif names:
            common.append(f"{column.title} {names.pop()}")
    keep = [c for c in COLUMNS if any(c.cell(row) != "-" for row in rows)]
    return columns + keep, ", ".join(text for text in common if text)


def screen_of(rows):
    """What all rows share, the table, and notes."""
    columns, common = columns_for(rows)
    notes = [for_screen(note) for note in notes_on(rows)]
    return "\n".join([for_screen(common), "", text_table(columns, rows), *notes]).lstrip("\n")
