"""Each rung's figures at one problem per section of the ladder. README's picture, the explorer's
ladder and roofline, and steps/README.md show these: a rung has the same figure everywhere.

A time is that of peers.py, in turns with the libraries, where docs/results has one; otherwise that
of the program alone. Of steps that no GPU has run it is what the simulator estimates.
"""

import os
from dataclasses import dataclass

from .files import ROOT, read_json
from .gpu_table import find_model
from .problems import flags, own_tiles, series
from .results import Row, Run, published
from .standing import measured, rows_of
from .steps import described, numbered_steps, program_of, report_of

RESULTS = os.path.join(ROOT, "docs", "results")
DEVICE = "NVIDIA H200"
SIZES = ("b", "h", "hkv", "n", "nk", "d", "causal")


def sized(**sizes):
    """All SIZES; hkv and nk are h and n unless given."""
    return {"b": 1, "hkv": sizes["h"], "nk": sizes["n"], "causal": False, **sizes}


@dataclass(frozen=True)
class Section:
    """A part of the ladder: the pass that it times, its problem, and this in words. Times are
    those of `source` (standing.measured), in rows with `what`, the first of which counts."""

    name: str
    direction: str
    problem: dict
    words: str
    source: str = "peers"
    what: tuple = (None,)
    documents: tuple = ()  # rows of each
    page: int = 0  # of a measured cache

    def shows(self, variant):
        """Does a variant of --describe belong here?"""
        able = variant["supports"]
        for name, special in (
            ("ring", variant["ranks"]),
            ("latent", variant["supports"]["d"] == [576]),
            ("decode", able["n"]),  # at most so many queries
            ("masks", able["window"]),
        ):
            if special:
                return self.name.startswith(name)
        return self.name == ("backward" if variant["backward"] else "forward")

    def predicted(self, program, variant):
        """The JSON of --predict, or None where the variant does not support the problem."""
        able, p = variant["supports"], self.problem
        if p["d"] not in able["d"] or (p["h"] != p["hkv"] and not able["gqa"]):
            return None
        if self.documents and not able["documents"]:
            return None
        given = [f"--variant={variant['name']}", *flags(self.problem)]
        given += [f"--lengths={','.join(map(str, self.documents))}"] * bool(self.documents)
        return report_of(program, "--predict", *given)


LADDER = sized(**series(4096, 64, False))
DENSE = "B = 4, H = 32, N = 4,096, d = 64, not causal"
DOCUMENTS = (2048,) * 8
PACKED = sized(h=16, n=sum(DOCUMENTS), d=128, causal=True)
PACKS = "8 documents of 2,048 rows, packed, causal, B = 1, H = 16, d = 128"
CACHED = sized(h=32, hkv=8, n=1, nk=65536, d=128)
CACHE = "one query, 65,536 keys, B = 1, H = 32, Hkv = 8, d = 128"
LATENT_CACHED = sized(b=32, h=64, hkv=1, n=1, nk=4096, d=576)
LATENT = "one query, 4,096 keys of 576 features, B = 32, H = 64"
RANKS = "two GPUs, B = 1, H = 32, Hkv = 8, N = 32,768, d = 128, not causal"
SECTIONS = (
    Section("forward", "forward", LADDER, DENSE),
    Section("backward", "backward", LADDER, DENSE),
    Section("decode", "forward", CACHED, CACHE, "decode", ("peers", "fp8")),
    Section("masks", "forward", PACKED, PACKS, "masks", documents=DOCUMENTS),
    Section("masks bwd", "backward", PACKED, PACKS, "masks", documents=DOCUMENTS),
    Section("latent", "forward", LATENT_CACHED, LATENT, "latent", ("latent",), page=64),
    Section("ring", "forward", sized(h=32, hkv=8, n=32768, d=128), RANKS, "ring", ("share",)),
)
DRAWN = SECTIONS[:-1]  # on the explorer's page: those of one GPU


def sizes_of(problem):
    """SIZES of a problem or a row, which may omit hkv and nk."""
    p = sized(**{key: problem[key] for key in SIZES if key in problem})
    return tuple(p[key] for key in SIZES)


# --- times ----------------------------------------------------------------------------------------


def measured_rows(name, folder=RESULTS):
    """The rows of standing.measured(), each with its `device` and all SIZES."""
    return [
        {**row, **dict(zip(SIZES, sizes_of(row))), "device": result["device"]}
        for result in measured(name, folder)
        for row in result["rows"]
    ]


def peers_of(folder):
    """{(device, step, variant, direction, sizes): the row of peers.py}"""
    return {
        (*(row[key] for key in ("device", "step", "variant", "direction")), sizes_of(row)): row
        for row in measured_rows("peers", folder)
        if row["step"]
    }


def key_of(run):
    key = run.data["step"], run.variant, run.direction, sizes_of(run.data["problem"])
    return (run.get("device.name"), *key)


def beside_libraries(rows, folder=RESULTS):
    """These rows with the times of peers.py in a folder, where it has one."""
    timed, found = peers_of(folder), []
    for row in rows:
        plain = row.gpu and own_tiles(row.gpu.data["problem"])
        if beside := plain and timed.get(key_of(row.gpu)):
            row = Row(row.sim, timed_as(row.gpu, beside["ms"], beside["commit"]))
        found.append(row)
    return found


def timed_as(run, ms, commit):
    """This run with another time, whose commit standing_of() looks at."""
    return Run({**run.data, "time": {"median_ms": ms}, "time_commit": commit}, run.direction)


def times_of(section):
    """{(step, variant): (milliseconds, commit)} of a section on DEVICE, beside others."""
    starts = [sum(section.documents[:i]) for i in range(len(section.documents) + 1)]
    rows = [row for row in measured_rows(section.source) if row["device"] == DEVICE]
    found = {}
    for what in section.what:
        for row in rows:
            same = sizes_of(row) == sizes_of(section.problem)
            same &= row.get("row_starts", [0]) == starts
            same &= (row.get("page") or 0) == section.page
            same &= row.get("direction", section.direction) == section.direction
            if same and row["step"] and row.get("what") == what:
                ms = row["ms"] if "ms" in row else row[section.direction]["ms"]
                found.setdefault((row["step"], row["variant"]), (ms, row["commit"]))
    return found


def estimate_of(step, variant, section):
    """Of estimates.json, for a GPU of the variant's own architecture; None without one."""
    for row in read_json(os.path.join(RESULTS, "estimates.json"))["rows"]:
        mine = row["step"], row["variant"], row["direction"], sizes_of(row)
        same = mine == (step, variant["name"], section.direction, sizes_of(section.problem))
        if same and variant["needs"] == find_model(row["gpu"])["arch"] + "a":
            return row
    return None


# --- rungs ----------------------------------------------------------------------------------------


@dataclass
class Rung:
    label: str  # "10 scheduled"
    step: str
    idea: str
    row: Row = None  # what the program predicts, and what was measured; None: nothing
    estimated_for: str = None  # a GPU that was not there to measure


def rung_of(build, section, step, variant, timed, published_run):
    rung = Rung(f"{step[:2]} {variant['name']}", step, variant["idea"])
    data = section.predicted(program_of(build, step), variant)
    if not data:
        return rung
    if section.direction == "backward":
        data |= data["backward"]
    if variant["ranks"]:
        data["traffic"] = {"hbm": {}, "requested": {}}  # predicted of a single rank
    estimate = None if timed or published_run else estimate_of(step, variant, section)
    if estimate:
        rung.estimated_for = estimate["gpu"]
        kept = {"gpu": estimate["gpu"], "verified": False, "kernels": []}
        data["estimate"] = {**kept, "ms": estimate["ms"], "limit": estimate["limit"]}
        data["commit"] = estimate["commit"]
        rung.row = Row(sim=Run(data, section.direction))
        return rung
    data["device"] = {"kind": "gpu", "name": DEVICE}
    if published_run:
        data |= {key: published_run.data.get(key) for key in ("time", "commit", "slowed", "roofs")}
        data["traffic"]["hbm"]["measured"] = published_run.get("traffic.hbm.measured")
    run = Run(data, section.direction)
    rung.row = Row(gpu=timed_as(run, *timed) if timed else run)
    return rung


def ladder(build):
    """{a section's name: its rungs in reading order}, of all steps, from the programs in `build`
    and docs/results."""
    steps = [(step, described(program_of(build, step))) for step in numbered_steps()]
    rows = beside_libraries(rows_of(published(RESULTS)))
    runs = {key_of(row.gpu): row.gpu for row in rows if row.gpu and plain(row)}
    found = {}
    for section in SECTIONS:
        times, sizes = times_of(section), sizes_of(section.problem)
        found[section.name] = [
            rung_of(
                build,
                section,
                step,
                variant,
                times.get((step, variant["name"])),
                runs.get((DEVICE, step, variant["name"], section.direction, sizes)),
            )
            for step, about in steps
            for variant in about["variants"]
            if section.shows(variant)
        ]
    return found


def plain(row):
    return own_tiles(row.gpu.data["problem"])
