"""The runs behind claims: commands that run here, and what docs/results recorded of a GPU."""

import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import tempfile

from .claims_file import needs_gpu, tree_of
from .command import BadInput, Failure, NotHere
from .files import ROOT, read_json
from .mpi import environment
from .problems import cache_of
from .results import published
from .standing import runs_of, standing, standing_of
from .tables import load_extras

RESULTS = os.path.join(ROOT, "docs", "results")
DEVICE = "NVIDIA H200"  # whose records the verdicts of claims are about
MAINTAIN = "./scripts/maintain"
MAINTAINED = {"decode": "decode_h100.json", "ring": "ring_h100.json"}  # by tools of `maintain`
MAINTAINED_DEVICE = "NVIDIA H100 80GB HBM3"
MICROBENCHMARKS = os.path.join(RESULTS, "microbenchmarks_h200.json")
SIM, GPU = "build/sim/", "build/gpu/"
SIZES = ("b", "h", "n", "d")


class Runner:
    """Runs each command once. `build` stands for build/sim; with `gpu`, GPU commands run, too."""

    def __init__(self, build, gpu=False):
        self.build, self.gpu = build, gpu
        self.records = None
        self.found = {}  # command: Tree
        self.not_here = {}  # command: why it could not run, of GPU commands
        self.standings = []  # (step, why its record is not of this tree's kernel, or None)

    def prepare(self, claims):
        """Runs what these claims need; GPU commands one after the other."""
        wanted = {cmd: claim.wrong for claim in claims for cmd in claim.run.values()}
        here = {cmd: wrong for cmd, wrong in wanted.items() if not needs_gpu(cmd)}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            trees = pool.map(lambda item: self.execute_if_here(*item), here.items())
            self.found.update({cmd: tree for cmd, tree in zip(here, trees) if tree})
        for cmd in wanted:
            if cmd in self.found or cmd in self.not_here:
                continue
            try:
                self.found[cmd] = self.execute(cmd, False) if self.gpu else self.recorded(cmd)
            except NotHere as failure:
                self.not_here[cmd] = str(failure)

    def runs(self, claim):
        return {name: self.found[cmd] for name, cmd in claim.run.items()}

    def why_not(self, claim):
        """Why there is no finding, a sentence, or None: no GPU or PyTorch, or refused counters."""
        for cmd in claim.run.values():
            if cmd in self.not_here:
                return self.not_here[cmd]
            hbm = self.found[cmd].get("traffic", {}).get("hbm", {})
            if self.gpu and needs_gpu(cmd) and "measured" in hbm and hbm["measured"] is None:
                if "hbm.measured" in " ".join(claim.figures.values()):
                    return self.found[cmd].traffic.note or "HBM bytes were not measured"
        return None

    def execute_if_here(self, cmd, may_be_wrong):
        """The same, or None where there is no MPI, which is optional."""
        try:
            return self.execute(cmd, may_be_wrong)
        except NotHere as failure:
            if not cmd.startswith("mpirun "):
                raise
            self.not_here[cmd] = str(failure)
        return None

    def execute(self, cmd, may_be_wrong):
        """What a command writes as JSON.

        \raises BadInput, NotHere or Failure, by its exit status, with what it says."""
        words = shlex.split(cmd)
        if words[0] == "cat":
            return tree_of(read_json(os.path.join(ROOT, words[1])))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            try:
                done = subprocess.run(
                    self.line(words, path),
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    env=environment(folder) if words[0] == "mpirun" else None,
                )
            except OSError as error:
                if words[0] == "mpirun":
                    raise NotHere("mpirun is not here: ./scripts/setup.sh mpi") from None
                preset = "gpu" if words[0].startswith(GPU) else "sim"
                raise NotHere(
                    f"{words[0]}: {error.strerror}; it is not built: "
                    f"cmake --preset {preset} && cmake --build --preset {preset}"
                ) from None
            if done.returncode == 1 and may_be_wrong and os.path.exists(path):
                done.returncode = 0
            if done.returncode != 0:
                kind = {2: BadInput, 3: NotHere}.get(done.returncode, Failure)
                lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
                said = [line for line in lines if line.strip("-\0")] or [""]  # mpirun draws rules
                raise kind(f"'{cmd}' ended with exit status {done.returncode}: {said[-1]}")
            if words[0] == GPU + "microbenchmarks":
                return tree_of(json.loads(done.stdout))
            return tree_of(read_json(path))

    def line(self, words, path):
        """The command line that writes its JSON to `path`, with this build folder."""
        program, *flags = words
        if program == GPU + "microbenchmarks":
            return words
        if program == "mpirun":
            return [
                os.path.join(self.build, word.removeprefix(SIM)) if word.startswith(SIM) else word
                for word in [*words, "--json", path]
            ]
        if program.startswith(SIM):
            return [os.path.join(self.build, program.removeprefix(SIM)), *flags, "--json", path]
        if program.startswith(GPU):
            return [*words, "--json", path]
        if program == "./scripts/fit_m.py":
            flags += ["--program", os.path.join(self.build, "steps", "04_fused")]
        elif program == "./scripts/figure2.py" and "sim" in flags:
            flags += ["--build", self.build]
        return [sys.executable, program, *flags, "--json", path]

    # --- what was recorded ------------------------------------------------------------------------

    def recorded(self, cmd):
        """The same from docs/results, of DEVICE."""
        if self.records is None:
            paths = published(RESULTS)
            self.records = runs_of(paths), load_extras(paths)
        runs, extras = self.records
        program, *flags = shlex.split(cmd)
        if program == GPU + "microbenchmarks":
            return tree_of(read_json(MICROBENCHMARKS))
        if program == MAINTAIN:
            tree = read_json(os.path.join(RESULTS, MAINTAINED[flags[0]]))
            for row in tree["rows"]:
                if row["step"]:
                    self.standings.append((row["step"], standing_of_row(row)))
            return tree_of(tree)
        name = {"./scripts/peers.py": "peers", "./scripts/figure2.py": "figure2"}.get(program)
        if name:
            results = [found for found in extras[name] if found["device"] == DEVICE]
            rows = [row for found in results for row in found["rows"]]
            if name == "peers":
                rows = peers_of(cmd, flags, rows)
            for row in rows:
                self.standings.append((row["step"], standing_of_row(row)))
            return tree_of({"device": DEVICE, "rows": rows})
        step, wanted = os.path.basename(program), wanted_of(cmd, flags)
        for run in reversed(runs):
            p = run.data["problem"]
            same = run.get("device.name") == DEVICE and not p.get("smem")
            here = {key: p[key] for key in (*SIZES, "causal")} | {"variant": run.variant}
            here |= {"cache": cache_of(p)} | ({"nk": p["nk"]} if "nk" in wanted else {})
            if same and (run.data["step"], run.direction, here) == (step, "forward", wanted):
                self.standings.append((step, standing_of(run)))
                return tree_of(run.data)
        raise BadInput(f"docs/results has no run on an {DEVICE} of '{cmd}'")


def standing_of_row(row):
    """Of a row of peers.py, which mark_peers has marked, or of figure2.py."""
    return row["standing"] if "standing" in row else standing(row["step"], row.get("commit"))


def peers_of(cmd, flags, rows):
    """The rows that a call of peers.py has, of all recorded ones."""
    asked = dict(zip((flag.removeprefix("--") for flag in flags[::2]), flags[1::2]))
    missing = [key for key in ("steps", "variants", "directions", "backends") if key not in asked]
    if missing:
        raise BadInput(f"'{cmd}' names no --{missing[0]}")
    asked = {key: value.split() for key, value in asked.items()}

    def has(row):
        number = row["step"] and row["step"].split("_")[0]
        kind = ("yes" if row["causal"] else "no", "both")
        return (
            (number in asked["steps"] if number else True)
            and row["variant"] in (asked["variants"] if number else asked["backends"])
            and row["direction"] in asked["directions"]
            and all(str(row[key]) in asked[key] for key in ("n", "d") if key in asked)
            and asked.get("causal", ["both"])[0] in kind
        )

    found = [row for row in rows if has(row)]
    if not found:
        raise BadInput(f"docs/results has nothing on an {DEVICE} of '{cmd}'")
    return found


def wanted_of(cmd, flags):
    """{"variant": ..., "n": ...} of a step's command line, which names them all."""
    values, cache = {"causal": "--causal" in flags}, {}
    words = [word for word in flags if word != "--causal"]
    if len(words) % 2:
        raise BadInput(f"'{cmd}': a flag has no value")
    for flag, value in zip(words[::2], words[1::2]):
        key = flag.removeprefix("--")
        if key in (*SIZES, "nk"):
            values[key] = int(value)
        elif key == "lengths":
            cache["lengths"] = [int(length) for length in value.split(",")]
        elif key == "page":
            cache["page"] = int(value)
        elif key == "variant":
            values[key] = value
    values["cache"] = cache_of(cache)
    missing = [key for key in ("variant", *SIZES) if key not in values]
    if missing:
        raise BadInput(f"'{cmd}' names no --{missing[0]}")
    return values
