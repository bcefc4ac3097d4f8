"""docs/claims.toml: reading it, and what its expressions may use.

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
"""

import math
import statistics
import string
import tomllib
from dataclasses import dataclass, field

from .command import BadInput
from .gpu_table import find_model
from .results import total
from .text import bytes_text, time_text

REPRODUCED, DIFFERS = "reproduced", "differs"
COMMANDS = ("build/sim/steps/", "build/gpu/", "./scripts/", "cat ", "mpirun ")
TEXTS = ("id", "group", "says", "source", "found", "claimed", "verdict")


class Tree(dict):
    """A JSON object; tree.a is tree["a"]."""

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(f"there is no '{key}'") from None


def tree_of(json):
    """The same with each object as a Tree."""
    if isinstance(json, dict):
        return Tree({key: tree_of(value) for key, value in json.items()})
    return [tree_of(value) for value in json] if isinstance(json, list) else json


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


def gpu(name):
    """A row of common/data/gpus.json: the vendor's data sheet."""
    return tree_of(find_model(name))


FUNCTIONS = {
    "abs": abs,
    "all": all,
    "bytes_of": bytes_of,
    "columns": lambda rows: list(zip(*rows)),
    "geometric_mean": statistics.geometric_mean,
    "gpu": gpu,
    "len": len,
    "max": max,
    "min": min,
    "one": one,
    "pick": pick,
    "sum": sum,
    "total": total,
}


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
        return any(needs_gpu(command) for command in self.run.values())


def needs_gpu(command):
    """Whether a command line must have a GPU; figure2.py runs in the simulator, too."""
    words = command.split()
    if words[0] == "./scripts/figure2.py":
        return "--backend sim" not in command
    tools = ("./scripts/peers.py", "./scripts/maintain")
    return words[0].startswith("build/gpu/") or words[0] in tools


def load_claims(path):
    r"""All claims of a file. \raises BadInput with one sentence about the first that is wrong."""
    try:
        with open(path, "rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not TOML: {error}") from None
    found = tree.get("claim")
    claims = [claim_of(data, path) for data in found] if isinstance(found, list) else []
    if not claims:
        raise BadInput(f"{path} holds no [[claim]]")
    ids = [claim.id for claim in claims]
    twice = sorted({name for name in ids if ids.count(name) > 1})
    if twice:
        raise BadInput(f"{path}: two claims are called '{twice[0]}'")
    return claims


def claim_of(data, path):
    where = f"{path}: claim '{data.get('id', '?')}'"
    known = Claim.__dataclass_fields__
    for key in data:
        if key not in known:
            raise BadInput(f"{where}: key '{key}': choose from {', '.join(known)}")
    for key in TEXTS:
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise BadInput(f"{where} has no text '{key}'")
    for key in ("run", "figures"):
        if not isinstance(data.get(key, {}), dict):
            raise BadInput(f"{where}: '{key}' is no table of names")
    claim = Claim(**data)
    if not claim.run:
        raise BadInput(f"{where} has no command under 'run'")
    for line in claim.run.values():
        if not line.startswith(COMMANDS):
            raise BadInput(f"{where}: '{line}' begins with none of {', '.join(COMMANDS)}")
    if claim.verdict not in (REPRODUCED, DIFFERS):
        raise BadInput(f"{where}: verdict '{claim.verdict}': choose {REPRODUCED} or {DIFFERS}")
    if (claim.verdict == DIFFERS) != bool(claim.because and claim.here):
        raise BadInput(f"{where}: 'because' and 'here' belong to the verdict '{DIFFERS}'")
    return claim


# --- what a claim's expressions say ---------------------------------------------------------------


class Format(string.Formatter):
    def format_field(self, value, spec):
        special = {"bytes": bytes_text, "time": time_text}
        return special[spec](value) if spec in special else super().format_field(value, spec)


def evaluate(claim, key, expression, names):
    """An expression of our own file: Python without its built-in functions."""
    try:
        return eval(expression, {"__builtins__": {}, **FUNCTIONS, **names})
    except Exception as error:
        raise BadInput(f"claim '{claim.id}': {key} '{expression}': {error}") from None


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
        value = evaluate(claim, f"figure '{name}'", expression, names)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise BadInput(f"claim '{claim.id}': figure '{name}' is {value!r} and no number")
        names[name] = value
    holds = bool(evaluate(claim, "claimed", claim.claimed, names))
    fits = holds
    if claim.verdict == DIFFERS:
        fits = not holds and bool(evaluate(claim, "here", claim.here, names))
    texts = {}
    for key in ("found", "because"):
        words = getattr(claim, key)
        try:
            texts[key] = Format().vformat(words, (), names)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise BadInput(f"claim '{claim.id}': {key} '{words}': {error}") from None
    return Finding(claim, device, texts["found"], fits, texts["because"])
