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

import hashlib
import os
import random
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from . import building, checker, command, cuda_program
from .attention_call import Called
from .attention_search import judge_function
from .command import BadInput, Failure, NotHere
from .extension import Program, build
from .files import ROOT, read_json, require_writable, text_of, write_json
from .judge_screen import WIDE, screen
from .roles import GRADIENTS, TENSORS, parsed, roles_of

SOURCES = [end for end in (*cuda_program.CPLUSPLUS, ".c") if end != ".cuh"]


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
        parameters = program.functions[index]["parameters"]
        if len(roles) != len(parameters):
            raise BadInput(f"--call: {name} has {len(parameters)} arguments, not {len(roles)}")
        for i, (role, parameter) in enumerate(zip(roles, parameters), 1):
            tensor = parameter["kind"].startswith("tensor")
            if isinstance(role, str) and tensor != (role in TENSORS):
                what = f"--call: argument {i}, '{role}', of {name} must be a {parameter['kind']}"
                raise BadInput(what)
        return [(index, roles)]
    chosen, errors = {}, []
    names = [options.function] if options.function else [f["name"] for f in program.functions]
    if not how["bound"]:
        names.reverse()  # what calls the others comes last
    for name in names:
        index = index_of(program, name)
        function = program.functions[index]
        try:
            names = spoken.get(plain_name(function["symbol"]), ())
            roles = roles_of(function, names)
            for parameter, known in zip(function["parameters"], names):
                parameter["name"] = parameter["name"] or known
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


def started():
    """The checker, built where it is missing or old."""
    path = Path(ROOT, "build", "sim", "steps", "exercise_checker")
    folders = Path(ROOT, "common"), Path(ROOT, "steps", "exercise_checker")
    files = [file for folder in folders for file in folder.rglob("*.[ch]*")]
    if not building.is_newer(path / "judge_built", files):
        log = os.path.join(ROOT, "build", "judge.log")
        failed = building.build_or_say("sim", ["judge", "any_program"], log, sys.stderr)
        if failed:
            raise NotHere(f"the checker was not built: {failed[1]}")
    return checker.started(path / "checker")


def judge_files(files, options):
    with started() as checks, tempfile.TemporaryDirectory(prefix="judge_") as folder:
        path, how = build(
            files, folder, options.gpu, include=options.include, define=options.define
        )
        program = Program(path, how, files, options.gpu)
        try:
            called = [Called(checks, program, *one) for one in choose(program, how, options)]
            return [judge_function(one, options.seed) for one in called], program.functions
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
    add("--seed", type=int, help="of sizes and inputs (default: random), as a verdict names it")
    add("--gpu", default="H200", help="the GPU that is modelled (H200)")
    add("-I", dest="include", action="append", default=[], metavar="DIR", help="where headers are")
    add("-D", dest="define", action="append", default=[], metavar="NAME[=X]", help="a macro")
    options = parser.parse_args()
    options.seed = random.randrange(1, 1 << 30) if options.seed is None else options.seed
    if bool(options.files) == bool(options.suite):
        raise BadInput("give an extension's files, or --suite with a folder")
    if options.log and options.suite:
        raise BadInput("--log is the work log of one extension, not of a --suite")
    if options.note and not options.log:
        raise BadInput("--note is a row's text: name the work log with --log")
    for path in options.files:  # before the simulator is compiled
        if os.path.isdir(path):
            raise BadInput(f"{path} is a folder: --suite judges each extension in one")
        if not os.path.exists(path):
            raise BadInput(f"there is no file {path}")
    for flag, path in ("--json", options.json), ("--log", options.log):
        if path:
            require_writable(flag, path, *options.files)
    logged(options.log)
    if options.suite:
        return suite(options)
    verdicts, functions = judge_files(options.files, options)
    name = os.path.basename(options.files[0])
    print("\n\n".join(screen(verdict, name) for verdict in verdicts))
    others = [f["name"] for f in functions if f["name"] not in [v["function"] for v in verdicts]]
    if others and not options.function and not options.call:
        print(textwrap.shorten(f"not judged (--function): {', '.join(others)}", WIDE))
    if options.json:
        write_json(options.json, verdicts, indent=1)
    if options.log:
        log(options, verdicts)
    bad = {v["kind"] for v in verdicts if not v["ok"]}
    return 2 if bad == {"refused"} else 1 if bad else 0


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
    write_json(options.log, {"worklog": rows}, indent=1)


def suite(options):
    """A line for each extension of the folder. Returns the exit status."""
    found, bad = {}, 0
    for path in sorted(Path(options.suite).iterdir()):
        files = [f for f in sorted(path.iterdir() if path.is_dir() else [path])
                 if f.suffix in SOURCES]  # fmt: skip
        if not files:
            continue
        try:
            found[path.name] = judge_files([str(f) for f in files], options)[0]
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
    if options.json:
        write_json(options.json, found, indent=1)
    return 1 if bad else 0
