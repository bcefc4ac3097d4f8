"""docs/claims.toml: reading it, what its expressions may use, and the runs behind it.

Each [[claim]] has

    id         a word; group: the heading under which it stands
    says       the claim, in one sentence; source: who makes it
    run        {NAME = command line}: build/sim/steps/STEP ... or build/gpu/steps/STEP ...,
               mpirun ... build/sim/steps/STEP ..., ./scripts/NAME.py ...,
               ./scripts/maintain decode or ring, build/gpu/microbenchmarks ..., or cat FILE.json
    figures    {NAME = expression}, in Python: of the JSON of these runs (docs/json.md; a.b is
               a["b"]), of the figures before this one, and of FUNCTIONS below
    found      a sentence with {NAME} or {NAME:FORMAT}; FORMAT as in Python, or bytes, time
    claimed    an expression that is true where the claim holds
    verdict    "reproduced", where `claimed` is true, or "differs", where it is false. Then also
    because    why, with figures as in `found`, and
    here       an expression that is true of what is found instead
    wrong      true where a run may end with a wrong result: the claim is about that

What needs a GPU is not run but read from docs/results, unless somebody says that there is a GPU.
"""

import concurrent.futures
import json
import math
import os
import shlex
import statistics
import string
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field

from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.files import ROOT, read_json
from flash_steps.gpu_table import find_model
from flash_steps.mpi import environment
from flash_steps.problems import cache_of
from flash_steps.results import published, total
from flash_steps.standing import runs_of, standing_of
from flash_steps.text import bytes_text, time_text

from . import measured
from .tables import load_extras

REPRODUCED, DIFFERS = "reproduced", "differs"
SIM, GPU, MAINTAIN = "build/sim/", "build/gpu/", "./scripts/maintain"
COMMANDS = ("build/sim/steps/", GPU, "./scripts/", "cat ", "mpirun ")
TEXTS = ("id", "group", "says", "source", "found", "claimed", "verdict")
RESULTS = os.path.join(ROOT, "docs", "results")
DEVICE = "NVIDIA H200"  # whose records the verdicts of claims are about,
MAINTAINED_DEVICE = "NVIDIA H100 80GB HBM3"  # and of what `maintain decode` and `ring` measured


# --- what expressions may use ---------------------------------------------------------------------


class Tree(dict):
    """A JSON object; tree.a is tree["a"]."""

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"there is no '{key}'") from None


def tree_of(found):
    """JSON with each object as a Tree."""
    return json.loads(json.dumps(found), object_hook=Tree)


def pick(rows, **wanted):
    """The rows, objects of a list, that have all these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def one(rows, **wanted):
    """The only row that has these values."""
    found = pick(rows, **wanted)
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows have {wanted}")
    return found[0]


def bytes_of(run, *buffers):
    """Counted bytes that are requested of these buffers; 0 of one that the step does not have."""
    there = run.traffic.requested.buffers
    return sum(total(there[name].counted) for name in buffers if name in there)


FUNCTIONS = {function.__name__: function for function in (abs, all, len, max, min, sum)}
FUNCTIONS |= {function.__name__: function for function in (bytes_of, one, pick, total)}
FUNCTIONS |= {
    "columns": lambda rows: list(zip(*rows)),
    "geometric_mean": statistics.geometric_mean,
    "gpu": lambda name: tree_of(find_model(name)),  # the vendor's data sheet
}


class Format(string.Formatter):
    def format_field(self, value, spec):
        special = {"bytes": bytes_text, "time": time_text}
        return special[spec](value) if spec in special else super().format_field(value, spec)


# --- claims ---------------------------------------------------------------------------------------


@dataclass
class Claim:
    id: str
    group: str
    says: str
    source: str
    run: dict
    found: str
    claimed: str
    verdict: str
    figures: dict = field(default_factory=dict)
    because: str = ""
    here: str = ""
    wrong: bool = False

    @property
    def needs_gpu(self):
        return any(map(needs_gpu, self.run.values()))

    def evaluate(self, key, expression, names):
        """An expression of our own file: Python without its built-in functions."""
        try:
            return eval(expression, {"__builtins__": {}, **FUNCTIONS, **names})
        except Exception as error:
            raise BadInput(f"claim '{self.id}': {key} '{expression}': {error}") from None

    def text(self, key, names):
        words = getattr(self, key)
        try:
            return Format().vformat(words, (), names)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"claim '{self.id}': {key} '{words}': {error}") from None


def needs_gpu(command):
    """Whether a command line must have a GPU; figure2.py runs in the simulator, too."""
    program = command.split()[0]
    if program == "./scripts/figure2.py":
        return "--backend sim" not in command
    return program.startswith(GPU) or program in ("./scripts/peers.py", MAINTAIN)


def load_claims(path):
    r"""All claims of a file. \raises BadInput with one sentence about the first that is wrong."""
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file).get("claim")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from None
    claims = {}
    for data in found if isinstance(found, list) else []:
        sentence = fault_of(data)
        if sentence:
            raise BadInput(f"{path}: claim '{data.get('id', '?')}'{sentence}")
        if data["id"] in claims:
            raise BadInput(f"{path}: two claims are called '{data['id']}'")
        claims[data["id"]] = Claim(**data)
    if not claims:
        raise BadInput(f"{path} holds no [[claim]]")
    return list(claims.values())


def fault_of(data):
    """What is wrong with a [[claim]], behind its name; None where it is right."""
    known = Claim.__dataclass_fields__
    run, verdict = data.get("run"), data.get("verdict")
    for key in data:
        if key not in known:
            return f": key '{key}': choose from {', '.join(known)}"
    for key in TEXTS:
        if not isinstance(data.get(key), str) or not data[key].strip():
            return f" has no text '{key}'"
    for key in ("run", "figures"):
        if not isinstance(data.get(key, {}), dict):
            return f": '{key}' is no table of names"
    if not run:
        return " has no command under 'run'"
    for line in run.values():
        if not line.startswith(COMMANDS):
            return f": '{line}' begins with none of {', '.join(COMMANDS)}"
    if verdict not in (REPRODUCED, DIFFERS):
        return f": verdict '{verdict}': choose {REPRODUCED} or {DIFFERS}"
    if (verdict == DIFFERS) != bool(data.get("because") and data.get("here")):
        return f": 'because' and 'here' belong to the verdict '{DIFFERS}'"
    return None


@dataclass
class Finding:
    claim: Claim
    device: str
    text: str  # what was found
    fits: bool  # its claim's verdict; None where nothing was found
    because: str = ""  # the claim's, with the figures


def finding_of(claim, runs, device):
    """What the JSON of a claim's runs, {name: Tree}, says of it."""
    names = dict(runs)
    for name, expression in claim.figures.items():
        value = claim.evaluate(f"figure '{name}'", expression, names)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise BadInput(f"claim '{claim.id}': figure '{name}' is {value!r} and no number")
        names[name] = value
    fits = bool(claim.evaluate("claimed", claim.claimed, names))
    if claim.verdict == DIFFERS:
        fits = not fits and bool(claim.evaluate("here", claim.here, names))
    return Finding(claim, device, claim.text("found", names), fits, claim.text("because", names))


# --- runs -----------------------------------------------------------------------------------------


class Runner:
    """Runs each command once. `build` stands for build/sim; with `gpu`, GPU commands run, too."""

    def __init__(self, build, gpu=False):
        self.build, self.gpu = build, gpu
        self.records = None
        self.found = {}  # command: Tree
        self.not_here = {}  # command: why it could not run: no GPU or PyTorch, or no MPI
        self.standings = []  # (step, why its record is not of this tree's kernel, or None)

    def prepare(self, claims):
        """Runs what these claims need; GPU commands one after the other."""
        wanted = {cmd: claim.wrong for claim in claims for cmd in claim.run.values()}
        here = {cmd: wrong for cmd, wrong in wanted.items() if not needs_gpu(cmd)}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda item: self.find(*item), here.items()))
        for cmd in [cmd for cmd in wanted if cmd not in here]:
            if self.gpu:
                self.find(cmd, False)
            else:
                self.found[cmd] = self.recorded(cmd)

    def find(self, cmd, may_be_wrong):
        try:
            self.found[cmd] = self.execute(cmd, may_be_wrong)
        except NotHere as failure:
            if not (needs_gpu(cmd) or cmd.startswith("mpirun ")):  # MPI is optional
                raise
            self.not_here[cmd] = str(failure)

    def runs(self, claim):
        return {name: self.found[cmd] for name, cmd in claim.run.items()}

    def why_not(self, claim):
        """Why there is no finding, a sentence, or None; also where counters were refused."""
        for cmd in claim.run.values():
            if cmd in self.not_here:
                return self.not_here[cmd]
            hbm = self.found[cmd].get("traffic", {}).get("hbm", {})
            if self.gpu and needs_gpu(cmd) and "measured" in hbm and hbm["measured"] is None:
                if "hbm.measured" in " ".join(claim.figures.values()):
                    return self.found[cmd].traffic.note or "HBM bytes were not measured"
        return None

    def execute(self, cmd, may_be_wrong):
        """What a command writes as JSON.

        \raises BadInput, NotHere or Failure, by its exit status, with what it says."""
        words = shlex.split(cmd)
        mpi = words[0] == "mpirun"
        if words[0] == "cat":
            return tree_of(read_json(os.path.join(ROOT, words[1])))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.json")
            how = {"cwd": ROOT, "capture_output": True, "text": True}
            how["env"] = environment(folder) if mpi else None
            try:
                done = subprocess.run(self.line(words, path), **how)
            except OSError as error:
                if mpi:
                    raise NotHere("mpirun is not here: ./scripts/setup.sh mpi") from None
                preset = "gpu" if words[0].startswith(GPU) else "sim"
                raise NotHere(
                    f"{words[0]}: {error.strerror}; it is not built: "
                    f"cmake --preset {preset} && cmake --build --preset {preset}"
                ) from None
            if done.returncode and not (
                done.returncode == 1 and may_be_wrong and os.path.exists(path)
            ):
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
        if program == "./scripts/fit_m.py":
            flags += ["--program", os.path.join(self.build, "steps", "04_fused")]
        elif program == "./scripts/figure2.py" and "sim" in flags:
            flags += ["--build", self.build]
        if program.startswith("./scripts/"):
            return [sys.executable, program, *flags, "--json", path]
        here = os.path.join(self.build, "")
        words = [here + w.removeprefix(SIM) if w.startswith(SIM) else w for w in words]
        return [*words, "--json", path]

    # --- what was recorded ------------------------------------------------------------------------

    def recorded(self, cmd):
        """The same from docs/results, of DEVICE."""
        if self.records is None:
            paths = published(RESULTS)
            self.records = runs_of(paths), load_extras(paths)
        runs, extras = self.records
        program, *flags = shlex.split(cmd)
        if program == GPU + "microbenchmarks":
            return tree_of(read_json(os.path.join(RESULTS, "microbenchmarks_h200.json")))
        if program in (MAINTAIN, "./scripts/peers.py", "./scripts/figure2.py"):
            if program == MAINTAIN:
                (tree,) = measured.load(flags[0], RESULTS)
            else:
                name = os.path.basename(program).removesuffix(".py")
                results = [found for found in extras[name] if found["device"] == DEVICE]
                rows = [row for found in results for row in found["rows"]]
                rows = peers_of(cmd, flags, rows) if name == "peers" else rows
                tree = {"device": DEVICE, "rows": rows}
            self.standings += [
                (row["step"], row["standing"]) for row in tree["rows"] if row["step"]
            ]
            return tree_of(tree)
        step, wanted = os.path.basename(program), wanted_of(cmd, flags)
        for run in reversed(runs):
            p = run.data["problem"]
            here = {**p, "variant": run.variant, "cache": cache_of(p)}
            same = run.get("device.name") == DEVICE and not p.get("smem")
            if same and (run.data["step"], run.direction) == (step, "forward"):
                if all(here[key] == value for key, value in wanted.items()):
                    self.standings.append((step, standing_of(run)))
                    return tree_of(run.data)
        raise BadInput(f"docs/results has no run on an {DEVICE} of '{cmd}'")


def flags_of(cmd, words, *needed):
    """{"variant": "once"} of a command line's flags, each with a value."""
    if len(words) % 2:
        raise BadInput(f"'{cmd}': a flag has no value")
    found = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2])}
    missing = [key for key in needed if key not in found]
    if missing:
        raise BadInput(f"'{cmd}' names no --{missing[0]}")
    return found


def peers_of(cmd, words, rows):
    """The rows that a call of peers.py has, of all recorded ones."""
    asked = flags_of(cmd, words, "steps", "variants", "directions", "backends")
    asked = {key: value.split() for key, value in asked.items()}
    masks = {"no": (False,), "yes": (True,), "both": (False, True)}

    def has(row):
        number = row["step"] and row["step"].split("_")[0]
        return (
            (number in asked["steps"] if number else True)
            and row["variant"] in (asked["variants"] if number else asked["backends"])
            and row["direction"] in asked["directions"]
            and all(str(row[key]) in asked[key] for key in ("n", "d") if key in asked)
            and row["causal"] in masks[asked.get("causal", ["both"])[0]]
        )

    found = [row for row in rows if has(row)]
    if not found:
        raise BadInput(f"docs/results has nothing on an {DEVICE} of '{cmd}'")
    return found


def wanted_of(cmd, words):
    """{"variant": ..., "n": ...} of a step's command line, which names them all."""
    flags = flags_of(cmd, [w for w in words if w != "--causal"], "variant", "b", "h", "n", "d")
    found = {key: int(flags[key]) for key in ("b", "h", "n", "d", "nk") if key in flags}
    lengths = [int(length) for length in flags.get("lengths", "").split(",") if length]
    cache = cache_of({"lengths": lengths, "page": int(flags.get("page", 0))})
    return {**found, "variant": flags["variant"], "causal": "--causal" in words, "cache": cache}
