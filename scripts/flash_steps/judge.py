"""Judges an attention kernel that is a PyTorch extension. Needs neither a GPU nor PyTorch.

    judge flash.cu                      right or wrong, races, bytes, what to do next
    judge flash.cu main.cpp             an extension of several files
    judge flash.cu --call "backward(Q, K, V, O, dO, LSE)"
    judge flash.cu --log worklog.json --note "tiles of 64 keys: half the requests"
    judge --suite submissions           each file, or folder with an extension's files

The files stay unedited. The simulator runs the bound functions on problems that they accept, and
another process compares the results with the fp64 reference.

Exit status: 0 right, 1 wrong or a finding, 2 it does not compile or cannot be called, 3 something
is missing here.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from . import building, command, cuda_program, ladder
from .command import BadInput, Failure, NotHere
from .extension import Program, Refused, Stopped, Tensor, build
from .files import ROOT, read_json, require_writable, text_of, write_text
from .roles import GRADIENTS, OUTPUTS, STATISTICS, TENSORS, parsed, roles_of

JUDGE = Path(ROOT, "build", "sim", "steps", "exercise_checker", "exercise_judge")
SOURCES = [end for end in (*cuda_program.CPLUSPLUS, ".c") if end != ".cuh"]
SECONDS = 20  # to look for what the extension accepts
WIDE = min(shutil.get_terminal_size((100, 24)).columns, 100)
SEED = None  # of sizes and inputs; None: another one each time


class Judge:
    """The process with the reference (steps/exercise_checker/extension.cpp)."""

    def __init__(self):
        folders = Path(ROOT, "common"), Path(ROOT, "steps", "exercise_checker")
        files = [path for folder in folders for path in folder.rglob("*.[ch]*")]
        if not building.is_newer(JUDGE.parent / "judge_built", files):
            log = os.path.join(ROOT, "build", "judge.log")
            failed = building.build_or_say("sim", ["judge"], log, sys.stderr)
            if failed:
                raise NotHere(f"the judge was not built: {failed[1]}")
        self.process = subprocess.Popen(
            [JUDGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, line, data=b""):
        self.process.stdin.write(json.dumps(line).encode() + b"\n" + data)
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failure("the judge ended")
        return json.loads(answer)

    def inputs(self, case, names):
        """{name: its bytes}"""
        self._ask({**case.asked(), "inputs": list(names)})
        sizes = {name: case.bytes_of(name) for name in names}
        return {name: self.process.stdout.read(size) for name, size in sizes.items()}

    def check(self, case, outputs):
        """The verdict on each of {name: Tensor}."""
        line = {"outputs": [{"name": n, "type": t.type} for n, t in outputs.items()]}
        data = b"".join(t.data for t in outputs.values())
        return self._ask({**case.asked(), **line}, data)["tensors"]


# --- a problem ------------------------------------------------------------------------------------

# The order of the axes in memory, and the tensor's sizes.
LAYOUTS = {
    "[B, H, N, d]": ("bhnd", lambda b, h, n, d: [b, h, n, d]),
    "[B, N, H, d]": ("bnhd", lambda b, h, n, d: [b, n, h, d]),
    "[B*H, N, d]": ("bhnd", lambda b, h, n, d: [b * h, n, d]),
    "[N, d]": ("bhnd", lambda b, h, n, d: [n, d]),
    "[N, H, d]": ("bnhd", lambda b, h, n, d: [n, h, d]),
    "[B, N, H*d]": ("bnhd", lambda b, h, n, d: [b, n, h * d]),
    "[B*H*N*d]": ("bhnd", lambda b, h, n, d: [b * h * n * d]),
}
ONE_HEAD, ONE_ENTRY = ("[N, d]",), ("[N, d]", "[N, H, d]")


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, how its tensors lie, and what the extension is taken to compute."""

    b: int = 2
    h: int = 3
    n: int = 64
    d: int = 64
    causal: bool = False
    layout: str = "[B, H, N, d]"
    type: str = "float32"
    unscaled: bool = False  # without 1/sqrt(d)
    block: int = 32
    zeroed: bool = False  # outputs among the arguments are zero, not unwritten
    host: bool = False  # the tensors are the host's, and the extension copies them
    seed: int = 1
    factor: int = 1  # of Q: how far apart the scores of a row are

    def fitted(self):
        b = 1 if self.layout in ONE_ENTRY else self.b
        return dataclasses.replace(self, b=b, h=1 if self.layout in ONE_HEAD else self.h)

    def sizes(self, name):
        b, h, n, d = self.b, self.h, self.n, self.d
        if name in STATISTICS:
            few = {"[B*H, N, d]": [b * h, n], "[N, d]": [n], "[B*H*N*d]": [b * h * n]}
            return few.get(self.layout, [b, h, n])
        return LAYOUTS[self.layout][1](b, h, n, d)

    def tensor(self, name):
        """Unwritten."""
        return Tensor(self.sizes(name), "float32" if name in STATISTICS else self.type, name=name)

    def bytes_of(self, name):
        return self.tensor(name).bytes

    def asked(self):
        problem = {"b": self.b, "h": self.h, "n": self.n, "d": self.d, "causal": self.causal}
        order = LAYOUTS[self.layout][0]
        return {"problem": problem, "seed": self.seed, "type": self.type, "order": order,
                "unscaled": self.unscaled, "factor": self.factor}  # fmt: skip

    def __str__(self):
        causal = " causal" if self.causal else ""
        return f"B={self.b} H={self.h} N={self.n} d={self.d}{causal} {self.type}"


@dataclasses.dataclass
class Run:
    """What came of one call."""

    case: Case
    kind: str = ""  # "": right; "refused", "wrong", "finding", "changed", "host", "stopped"
    message: str = ""
    tensors: list = dataclasses.field(default_factory=list)
    answer: dict = dataclasses.field(default_factory=dict)

    @property
    def ok(self):
        return not self.kind

    @property
    def settles(self):
        """Is the extension meant to be called so, whether or not it is right?"""
        known = self.ok or self.kind in ("changed", "host")
        return known or any(t["near"] > 0.3 for t in self.tensors)

    @property
    def near(self):
        return max((t["near"] for t in self.tensors), default=0)

    @property
    def rank(self):
        """How far from right; of equals the first counts, which is the plainest."""
        return (not self.ok, self.kind == "refused", self.kind == "stopped", -round(self.near, 1))


class Called:
    """A bound function, its roles, and how it is called."""

    def __init__(self, judge, program, index, roles):
        self.judge, self.program, self.index, self.roles = judge, program, index, roles
        self.function = program.functions[index]
        self.backward = any(role in GRADIENTS or role == "dO" for role in self.named)
        self.places = [role for role in self.named if role in OUTPUTS]  # among the arguments
        if self.backward:
            self.places = [role for role in self.places if role in GRADIENTS]

    @property
    def named(self):
        return [role for role in self.roles if isinstance(role, str)]

    def has(self, role):
        return role in self.named

    def arguments(self, case, inputs):
        values = {"N": case.n, "d": case.d, "B": case.b, "H": case.h, "causal": case.causal}
        values |= {"block": case.block, "stages": 2, "scale": 1 / math.sqrt(case.d)}
        found = []
        for i, role in enumerate(self.roles):
            kind = self.function["parameters"][i]["kind"]
            if isinstance(role, dict):
                value = role["value"]
            elif role == "qkv":
                value = self.packed(case, inputs)
            elif role in TENSORS:
                value = case.tensor(role)
                if role == "l" and self.backward:  # P = exp(S - m) / l, with m = LSE
                    value.data = b"\0\0\x80\x3f" * math.prod(value.sizes)
                elif role in ("Q", "K", "V", "dO") or self.backward and role not in GRADIENTS:
                    value.data = inputs[{"m": "LSE"}.get(role, role)]
                elif case.zeroed:
                    value.data = bytes(value.bytes)
            else:
                value = values[role]
            if kind.startswith("float") and isinstance(value, int):
                value = float(value)
            if kind.startswith("bool") and isinstance(value, int):
                value = bool(value)
            found.append(value)
        return found

    def packed(self, case, inputs):
        """[B, N, 3, H, d] of [B, N, H, d]."""
        row = case.bytes_of("Q") // (case.b * case.n)
        parts = [
            inputs[name][i : i + row]
            for i in range(0, case.bytes_of("Q"), row)
            for name in ("Q", "K", "V")
        ]
        return Tensor([case.b, case.n, 3, case.h, case.d], case.type, b"".join(parts), "QKV")

    def run(self, case, hypotheses=None):
        """One call; with `hypotheses`, cases of the same inputs, the first one that is right."""
        case = case.fitted()
        wanted = [name for name in ("Q", "K", "V", "dO") if name != "dO" or self.backward]
        wanted += ["O", "LSE", "delta"] if self.backward else []
        inputs = self.judge.inputs(case, wanted)
        arguments = self.arguments(case, inputs)
        for given in arguments:
            if isinstance(given, Tensor):
                given.cuda = not case.host
        try:
            results, after, answer = self.program.call(self.index, arguments)
        except Refused as refused:
            found = refused.answer["report"]["findings"]
            if found:
                return Run(case, "finding", found[0]["message"], answer=refused.answer)
            return Run(case, "refused", str(refused), answer=refused.answer)
        except Stopped as stopped:
            if "Assertion `" in str(stopped):
                return Run(case, "refused", str(stopped))
            return Run(case, "stopped", str(stopped))
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        for given, now in zip(tensors, after):
            given.now = now
            read = given.name in ("Q", "K", "V", "QKV", "dO") or self.backward and given.name == "O"
            if read and given.data != now:
                return Run(case, "changed", f"the call changes its input {given.name}", [], answer)
        found = answer["report"]["findings"]
        outputs = self.outputs(case, results, tensors, answer)
        if isinstance(outputs, str):
            best = Run(case, "wrong", outputs, answer=answer)
        else:
            trials = [self.checked(t.fitted(), outputs, answer) for t in hypotheses or [case]]
            best = min(trials, key=lambda run: run.rank)
        if found:
            right = "; its result is right all the same" if best.ok else ""
            best.kind, best.message = "finding", found[0]["message"] + right
        return best

    def tried(self, trials):
        """The run of the case that is right, or nearly. A backward's inputs depend on the case."""
        if not self.backward:
            return self.run(trials[0], trials)
        return min((self.run(trial) for trial in trials), key=lambda run: run.rank)

    def outputs(self, case, results, tensors, answer):
        """{name: Tensor} of what can be judged, or a sentence."""
        found = {
            t.name: Tensor(t.sizes, t.type, t.now, t.name) for t in tensors if t.name in self.places
        }
        results = [r for r in results if isinstance(r, Tensor)]
        names = [n for n in (GRADIENTS if self.backward else ("O", "LSE")) if n not in found]
        if self.backward and results and len(results) < len(names):
            names = names[: len(results)]
        count = math.prod(case.sizes("Q"))
        for name, result in zip(names, results):
            small = name == "LSE"
            if small and (result.type != "float32" or result.bytes != case.bytes_of("LSE")):
                continue
            if not small and math.prod(result.sizes) != count:
                return (f"{name} is of sizes {result.sizes}, which are not those of Q, "
                        f"{case.sizes('Q')}")  # fmt: skip
            found[name] = result
        answer["O"] = found["O"].name if "O" in found else ""
        if not found:
            return "it returns no tensor, and has none to write among its arguments"
        if any(t.type not in ("float32", "float16", "bfloat16") for t in found.values()):
            return f"its result is of type {', '.join(t.type for t in found.values())}"
        return found

    def checked(self, case, outputs, answer):
        tensors = self.judge.check(case, outputs)
        statistic = [t for t in tensors if t["name"] == "LSE" and not t["ok"]]
        if statistic and "LSE" not in self.named:  # m, l or log2: unknown
            tensors = [t for t in tensors if t["name"] != "LSE"]
        wrong = [t for t in tensors if not t["ok"]]
        if wrong:
            near = all(t["error"] is not None and t["error"] < 0.02 for t in wrong)
            return Run(
                case, "inaccurate" if near else "wrong", wrong[0]["message"], tensors, answer
            )
        return Run(case, *self.from_host(case, answer), tensors, answer)

    def from_host(self, case, answer):
        """Did kernels make the result from the inputs?"""
        report = answer["report"]
        size = case.bytes_of("Q")
        if case.host:
            return "", ""
        if answer["to_host"] >= size / 2 and answer["from_host"] >= size / 2:
            copies = f"{answer['to_host']:,} bytes to the host and {answer['from_host']:,} back"
            return "host", f"the result is made by the host: the call copies {copies}"
        if any("is not counted" in remark for remark in report["remarks"]):
            return "", ""  # cuBLAS
        kernels = [k for k in report["kernels"] if k["blocks"]]
        if sum(k["bytes"]["write"] + k["bytes"]["atomic"] for k in kernels) < size:
            return "host", "no kernel wrote the result"
        packed = "qkv" in self.named
        for name in ("QKV",) if packed else ("Q", "K", "V", *(["dO"] if self.backward else [])):
            if not any(
                name in k["buffers"] and k["buffers"][name]["bytes"]["read"] for k in kernels
            ):
                return "host", f"no kernel read {name}"
        return "", ""


# --- what it accepts ------------------------------------------------------------------------------


def types_of(text):
    """In the order in which to try them."""
    low = text.lower()
    small = [t for t, word in (("float16", "half"), ("bfloat16", "bfloat16")) if word in low]
    first = "data_ptr<float>" in text or "AT_DISPATCH" in text or not small
    types = ["float32", *small] if first else [*small, "float32"]
    return types + [t for t in ("float16", "bfloat16") if t not in types]


def layouts_of(called, text):
    """Those with as many axes as the text asks sizes of, first."""
    axes = [n + 1 for n in range(4) if f"size({n})" in text or f"sizes()[{n}]" in text]
    axes = max(axes, default=4)
    named = sorted(LAYOUTS, key=lambda name: name.count(",") + 1 != axes)
    if called.has("qkv"):
        return ["[B, N, H, d]"]
    if not called.has("H"):
        named.remove("[B, N, H*d]")
    if not (called.has("N") and called.has("d")):
        named.remove("[B*H*N*d]")
    return named


SHAPES = ((64, 64, 32), (64, 128, 16), (128, 128, 64), (32, 64, 32), (128, 64, 32), (64, 256, 64),
          (16, 32, 16))  # fmt: skip


def look(called, text):
    """The case that is right, or else the one that says most; and the best run."""
    first = best = None
    begun = time.monotonic()
    dead = set()  # (layout, type) that no sizes help
    for d, n, block in SHAPES:
        for type, layout in itertools.product(types_of(text), layouts_of(called, text)):
            if (layout, type) in dead or time.monotonic() - begun > SECONDS:
                continue
            start = Case(b=1, h=2, n=n, d=d, layout=layout, type=type, block=block)
            causal = (False,) if called.has("causal") else (False, True)
            unscaled = (False,) if called.has("scale") else (False, True)
            trials = [
                dataclasses.replace(start, causal=c, unscaled=u)
                for u, c in itertools.product(unscaled, causal)
            ]
            run = called.tried(trials)
            if called.places and run.kind in ("wrong", "finding"):
                again = called.tried([dataclasses.replace(t, zeroed=True) for t in trials])
                run = again if again.ok else run
            if "the source is device memory" in run.message:
                run = called.tried([dataclasses.replace(t, host=True) for t in trials])
            if run.settles:
                return run
            if run.kind == "refused" and "scalar type" in run.message:
                dead.add((layout, type))
            if not best or run.rank < best.rank:
                best = run
        if best and best.kind != "refused":
            first, best = first or best, None
    return first or best


# --- the verdict ----------------------------------------------------------------------------------


def judged(called, first):
    """The runs that decide: new inputs at the same sizes, other sizes, causal."""
    draw = random.Random(SEED)
    case = first.case
    causal = (False, True) if called.has("causal") else (case.causal,)
    sizes = [
        {},  # as before: a result that is kept would be wrong
        {"b": 2, "h": 3, "factor": 8},  # large scores: without a maximum exp overflows
        {"n": case.n + draw.randrange(1, 32)},
        {"n": 2 * case.n},
        {"n": draw.randrange(2, case.n), "b": draw.randrange(2, 4), "h": 1},
    ]
    runs = []
    for size, mask in itertools.product(sizes, causal):
        seed = draw.randrange(1, 1 << 30)
        runs.append(called.run(dataclasses.replace(case, **size, causal=mask, seed=seed)))
        if runs[-1].kind not in ("", "refused"):
            break
    if "AT_DISPATCH" in called.program.text and all(r.ok or r.kind == "refused" for r in runs):
        for type in ("float32", "float16", "bfloat16"):
            if type != case.type:
                runs.append(called.run(dataclasses.replace(case, type=type)))
    return runs


def judge_function(called, text):
    """The verdict as JSON."""
    first = look(called, text)
    found = {"function": called.function["name"], "roles": called.roles, "ok": False}
    case = first.case
    found["as"] = {"layout": case.layout, "type": case.type, "unscaled": case.unscaled,
                   "causal": "argument" if called.has("causal") else case.causal,
                   "zeroed": case.zeroed, "host": case.host}  # fmt: skip
    runs = judged(called, first) if first.ok else [first]
    bad = next((r for r in runs if r.kind not in ("", "refused")), None)
    right = [r for r in runs if r.ok]
    found["ok"] = bool(right) and not bad
    found["refused"] = [
        {"problem": str(r.case), "message": r.message}
        for r in runs
        if r.kind == "refused" and r.case.type == case.type
    ]
    found["runs"] = [
        {"problem": str(r.case), "kind": r.kind}
        | {key: getattr(r.case, key) for key in ("n", "d", "causal", "type")}
        for r in runs
    ]
    found["errors"] = {}
    for run in right:
        for t in run.tensors:
            now = found["errors"].setdefault(t["name"], {"error": 0, "allowed": 0})
            if t["error"] is not None and t["error"] >= now["error"]:
                now.update(error=t["error"], allowed=t["allowed"])
    if bad or not right:
        bad = bad or first
        found["kind"], found["message"], found["problem"] = bad.kind, bad.message, str(bad.case)
        report = bad.answer.get("report", {})
        found["findings"] = report.get("findings", [])
    if right:
        last = max(right, key=lambda run: run.case.n)
        found["traffic"] = ladder.traffic(last.case, last.answer, called.backward)
        found["rung"] = ladder.rung(found["traffic"], last.answer["report"], text, called.backward)
    return found


# --- the screen -----------------------------------------------------------------------------------


def ran(runs):
    """The problems of these runs in short: "N = 64, 128; d = 64; causal and not; float32"."""
    each = {key: list(dict.fromkeys(r[key] for r in runs)) for key in ("n", "d", "causal", "type")}
    words = [
        f"{name} = {', '.join(map(str, sorted(each[key])))}"
        for name, key in (("N", "n"), ("d", "d"))
    ]
    words += {(False,): [], (True,): ["causal"]}.get(tuple(each["causal"]), ["causal and not"])
    return "; ".join([*words, ", ".join(each["type"])])


def screen(verdict, name):
    """At most a screen of a function's verdict."""
    rows = []
    how = verdict["as"]
    roles = ", ".join(r if isinstance(r, str) else str(r["value"]) for r in verdict["roles"])
    notes = [how["layout"], how["type"]]
    notes += ["always causal"] if how["causal"] is True else []
    notes += ["without the scale 1/sqrt(d)"] if how["unscaled"] else []
    notes += ["with tensors of the host"] if how["host"] else []
    notes += ["its outputs must be zero before the call"] if how["zeroed"] else []
    head = f"{name}: {verdict['function']}({roles}): {', '.join(notes)}"
    right = [r for r in verdict["runs"] if not r["kind"]]
    tried = ran(right)
    if verdict["ok"]:
        errors = "; ".join(
            f"{n}: largest error {e['error']:.1e}, allowed there {e['allowed']:.1e}"
            for n, e in verdict["errors"].items()
        )
        rows.append(("right", f"{len(right)} runs with new inputs: {tried}. {errors}"))
        rows.append(("findings", "none: no race, no uninitialised read, no access out of bounds"))
    else:
        words = {
            "wrong": "wrong",
            "inaccurate": "inexact",
            "finding": "finding",
            "changed": "wrong",
            "host": "cheats",
        }
        words |= {"refused": "refused", "stopped": "stopped"}
        rows.append((words[verdict["kind"]], f"{verdict['message']} ({verdict['problem']})"))
        for finding in verdict["findings"][1:4]:
            rows.append(("", finding["message"]))
        if right:
            rows.append(("right", f"before that: {tried}"))
    said = {r["message"]: r["problem"] for r in verdict["refused"]}
    for message, problem in list(said.items() if right else [])[:2]:
        rows.append(("refuses", f"{problem}, by its own check: {message}"))
    if "traffic" in verdict:
        rows += ladder.rows(verdict["traffic"], verdict["rung"])
    lines = [textwrap.fill(head, WIDE, subsequent_indent=" " * 10)]
    for word, text in rows:
        lines.append(textwrap.fill(text, WIDE, initial_indent=f"{word:<10}",
                                   subsequent_indent=" " * 10))  # fmt: skip
    return "\n".join(lines)


def plain_name(symbol):
    """`forward` of "at::Tensor ns::forward<float, 2>"."""
    depth, name = 0, ""
    for c in symbol:
        depth += (c == "<") - (c == ">")
        name += c if depth == 0 and c != ">" else ""
    return name.split(" ")[-1].split("::")[-1]


def choose(program, how, options):
    """[(index, roles)] of the functions to judge: one that is named, else the first forward and the
    first backward whose arguments are known."""
    spoken = {f["name"]: f["parameters"] for f in how["functions"]}
    if options.call:
        name, roles = parsed(options.call)
        index = index_of(program, options.function or name)
        if len(roles) != len(program.functions[index]["parameters"]):
            count = len(program.functions[index]["parameters"])
            raise BadInput(f"--call: {name} has {count} arguments, not {len(roles)}")
        return [(index, roles)]
    chosen, errors = {}, []
    names = [options.function] if options.function else [f["name"] for f in program.functions]
    if not how["bound"]:
        names.reverse()  # what calls the others comes last
    for name in names:
        index = index_of(program, name)
        function = program.functions[index]
        try:
            roles = roles_of(function, spoken.get(plain_name(function["symbol"]), ()))
            backward = any(role in (*GRADIENTS, "dO") for role in roles if isinstance(role, str))
            chosen.setdefault(backward, (index, roles))
        except BadInput as error:
            errors.append(error)
    if not chosen:
        said = "it has no function that takes tensors"
        raise errors[0] if errors else BadInput("it binds no function" if how["bound"] else said)
    return [chosen[key] for key in sorted(chosen)]


def index_of(program, name):
    names = [f["name"] for f in program.functions]
    if name not in names:
        raise BadInput(f"it binds no '{name}'; it has {', '.join(names) or 'none'}")
    return names.index(name)


def judge_files(files, options, judge):
    with tempfile.TemporaryDirectory(prefix="judge_") as folder:
        path, how = build(
            files, folder, options.gpu, include=options.include, define=options.define
        )
        program = Program(path, how, files, options.gpu)
        program.text = "\n".join(text_of(path) for path in files)
        try:
            called = [Called(judge, program, *one) for one in choose(program, how, options)]
            return [judge_function(one, program.text) for one in called], program.functions
        finally:
            program.close()


def main():
    parser = command.parser(__doc__)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help=".cu and .cpp of one extension")
    add("--suite", metavar="DIR", help="a line for each extension of a folder")
    add("--function", metavar="NAME", help="of several bound functions")
    add(
        "--call", metavar='"NAME(Q, K, ...)"', help="what its arguments are, where names do not say"
    )
    add("--json", metavar="FILE", help="write the verdicts, too")
    add("--log", metavar="FILE", help="append a row; ./scripts/compare.py FILE shows them")
    add("--note", default="", help="what you expect of this version, for the row")
    add("--gpu", default="H200", help="the GPU that is modelled (H200)")
    add("-I", dest="include", action="append", default=[], metavar="DIR", help="where headers are")
    add("-D", dest="define", action="append", default=[], metavar="NAME[=X]", help="a macro")
    options = parser.parse_args()
    if bool(options.files) == bool(options.suite):
        raise BadInput("give an extension's files, or --suite with a folder")
    if options.log and options.suite:
        raise BadInput("--log is the work log of one extension, not of a --suite")
    if options.note and not options.log:
        raise BadInput("--note is a row's text: name the work log with --log")
    for path in filter(os.path.isdir, options.files):
        raise BadInput(f"{path} is a folder: --suite judges each extension in one")
    for flag, path in ("--json", options.json), ("--log", options.log):
        if path:
            require_writable(flag, path, *options.files)
    logged(options.log)
    judge = Judge()
    try:
        if options.suite:
            return suite(options, judge)
        verdicts, functions = judge_files(options.files, options, judge)
    finally:
        judge.close()
    name = os.path.basename(options.files[0])
    print("\n\n".join(screen(verdict, name) for verdict in verdicts))
    others = [f["name"] for f in functions if f["name"] not in [v["function"] for v in verdicts]]
    if others and not options.function and not options.call:
        print(textwrap.shorten(f"not judged (--function): {', '.join(others)}", WIDE))
    write(options.json, verdicts)
    if options.log:
        log(options, verdicts)
    bad = {v["kind"] for v in verdicts if not v["ok"]}
    return 2 if bad == {"refused"} else 1 if bad else 0


def write(path, data):
    if path:
        write_text(path, json.dumps(data, indent=1) + "\n")


def logged(path):
    """The rows of the work log. Raises BadInput where the file is another one."""
    found = read_json(path) if path and os.path.exists(path) else {"worklog": []}
    if not isinstance(found, dict) or not isinstance(found.get("worklog"), list):
        raise BadInput(f"--log {path} is no work log; give it another name")
    return found["worklog"]


def log(options, verdicts):
    """Appends a row for each function to the work log."""
    rows = logged(options.log)
    text = "".join(text_of(path) for path in options.files)
    for verdict in verdicts:
        moved = verdict.get("traffic", {})
        rows.append({
            "date": time.strftime("%Y-%m-%d %H:%M"),
            "hash": hashlib.sha256(text.encode()).hexdigest()[:12],
            "function": verdict["function"],
            "verdict": "right" if verdict["ok"] else verdict["kind"],
            **{key: moved.get(key) for key in ("problem", "hbm", "requested", "ms", "limit")},
            "note": options.note,
        })  # fmt: skip
    write(options.log, {"worklog": rows})


def suite(options, judge):
    """A line for each extension of the folder. Returns the exit status."""
    found, bad = {}, 0
    for path in sorted(Path(options.suite).iterdir()):
        files = [f for f in sorted(path.iterdir() if path.is_dir() else [path])
                 if f.suffix in SOURCES]  # fmt: skip
        if not files:
            continue
        try:
            found[path.name] = judge_files([str(f) for f in files], options, judge)[0]
            said = "; ".join(
                f"{v['function']} {'right' if v['ok'] else v['kind'] + ': ' + v['message']}"
                for v in found[path.name]
            )
            bad += not all(v["ok"] for v in found[path.name])
        except Failure as failure:
            said, bad = f"not judged: {str(failure).splitlines()[0]}", bad + 1
            found[path.name] = {"refused": str(failure)}
        print(textwrap.shorten(f"{path.name}: {said}", WIDE), flush=True)
    if not found:
        raise BadInput(f"--suite {options.suite} has no {', '.join(SOURCES)}")
    write(options.json, found)
    return 1 if bad else 0
