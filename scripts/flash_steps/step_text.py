"""The digest of the text that decides the results of a step. Results carry it.

    maintain step_text                    each step of this tree and its digest
    maintain step_text --root DIR 07 10   some steps of another copy of the repository

The digest covers the step's own .cu and .cuh files and what they include from other steps, from
common/dialect and common/harness/tiles.h, as nvcc sees them: without the simulator's branches. It
ignores comments, white space, the names of files and #include lines, which do not change a result.
It ignores the harness (HARNESS below, launch() in cuda.h): tests require the same results of it. Of
step.cuh, a step's description (main.cu where there is none), only the functions that each variant
runs count; test.cu does not count.
Exit status: 0 done, 2 bad use.
"""

import functools
import hashlib
import os
import re

from . import command
from .files import read_text
from .steps import ROOT, find_steps

HARNESS = ("common/harness/", "common/dialect/errors.h")
FORMULAS = "common/harness/tiles.h"
SIMULATOR = "common/sim/"
KNOWN = {
    "defined(__CUDACC__)": "1",
    "defined(FA_GPU)": "0",
    "defined(FA_NO_WGMMA)": "0",
    "FA_BACKEND_GPU": "1",
}

# A number may hold ' between its digits, so it is taken before a character.
TOKEN = re.compile(
    r"""//(?:\\\n|[^\n])*|/\*.*?\*/                     # comments
      | (?P<kept>R"(?P<mark>\w*)\(.*?\)(?P=mark)"      # a raw string
      | "(?:\\.|[^"\\\n])*" | \d[\w']* | '(?:\\.|[^'\\\n])*')""",
    re.DOTALL | re.VERBOSE,
)
INCLUDE = re.compile(r'#\s*include\s*(?:"(.+?)"|<.+?>)')
CONDITION = re.compile(r"#\s*(ifdef|ifndef|if|elif|else|endif)\b(.*)")
# Of common/dialect/cuda.h what a kernel uses: macros, constants, and the heads of __device__
# functions. The launch and the checks around it are the harness.
DEVICE = re.compile(r"^#define.*$|\bconstexpr [\w ]+=[^;]*;|\b__device__[^;{]*", re.MULTILINE)
# Of step.cuh, or main.cu where there is none: which functions a variant runs.
VARIANT = re.compile(
    r'\.(?:name|prepare|forward|backward|workspace)=(?:"\w+"|[\w:<>,]+?(?=,\.|\}))'
)


def without_comments(text):
    """Lines stay where they were."""
    text = TOKEN.sub(lambda m: m["kept"] or " " + "\n" * m[0].count("\n"), text)
    return text.replace("\\\n", " ")


def value_of(kind, condition):
    """True, False, or None where it is of something else than the compiler."""
    if kind in ("ifdef", "ifndef"):
        condition = ("!" if kind == "ifndef" else "") + f"defined({condition.strip()})"
    condition = re.sub(r"\bdefined\((\w+)\)", r"defined\1", re.sub(r"\s", "", condition))
    for name, value in KNOWN.items():
        condition = condition.replace(re.sub(r"[()]", "", name), value)
    if not re.fullmatch(r"(?:[01!()]|&&|\|\|)+", condition):
        return None
    python = condition.replace("!", " not ").replace("&&", " and ").replace("||", " or ")
    try:
        return bool(eval(python))  # of 0, 1, not, and, or and brackets
    except (SyntaxError, TypeError):  # no compiler takes it either
        return None


def lines_of_nvcc(text):
    """The lines that nvcc compiles. A condition on anything else stays, with all that it holds."""
    branches = []  # of each open #if: [kept now, one was true before, stays as it is]
    for line in text.split("\n"):
        found = CONDITION.match(line.strip())
        if not found:
            if all(branch[0] for branch in branches):
                yield line
            continue
        kind, condition = found.groups()
        if kind.startswith("if"):
            value = value_of(kind, condition)
            branches.append([value is not False, value is True, value is None])
        elif branches[-1][2]:
            pass
        elif kind == "elif":
            value = not branches[-1][1] and value_of(kind, condition)
            branches[-1][:2] = [value is not False, branches[-1][1] or value is True]
        elif kind == "else":
            branches[-1][:2] = [not branches[-1][1], True]
        plain = branches[-1][2]
        if kind == "endif":
            branches.pop()
        if plain and all(branch[0] for branch in branches):
            yield line


def squeezed(line):
    """Without white space that parts no two words and no two signs that would be one together."""
    parts = re.split(r'("(?:\\.|[^"\\])*")', line)
    for i in range(0, len(parts), 2):
        text = re.sub(r"\s+", " ", parts[i])
        parts[i] = re.sub(r"(?<![\w+\-<>&|=:]) | (?![\w+\-<>&|=:])", "", text)
        parts[i] = re.sub(r"(?<=\w) (?=\W)|(?<=\W) (?=\w)", "", parts[i])
    return "".join(parts).strip()


def code_of(text):
    """(what is compiled, the files that it includes by "...")."""
    code, included, plain = [], [], []

    def flush():
        if plain:
            code.append(squeezed("\n".join(plain)))
            plain.clear()

    for line in lines_of_nvcc(without_comments(text)):
        found = INCLUDE.match(line.strip())
        if found:
            included += [found[1]] if found[1] else []
        elif line.strip().startswith("#"):  # a directive ends with its line
            if not re.fullmatch(r"#\s*pragma\s+once", line.strip()):
                flush()
                code.append(" ".join(line.split()))  # `#define A (b)` is not `#define A(b)`
        elif line.strip():
            plain.append(line)
    flush()
    return "\n".join(code), included


@functools.cache  # most files are of several steps
def code_of_file(path):
    return code_of(read_text(path))


def device_part(code):
    found = []
    for match in DEVICE.finditer(code):
        end, depth = match.end(), 0
        if match[0].startswith("__device__"):
            while end < len(code):  # its body
                depth += {"{": 1, "}": -1}.get(code[end], 0)
                end += 1
                if depth <= 0:
                    break
        found.append(code[match.start() : end])
    return "\n".join(found)


def counts(path):
    return path == FORMULAS or not path.startswith((*HARNESS, SIMULATOR))


def text_of(step, root=ROOT):
    """The code of each file that is hashed of one step; None where there is no such step."""
    folder = os.path.join(root, "steps", step)
    if not os.path.exists(os.path.join(folder, "main.cu")):
        return None
    names = [name for name in sorted(os.listdir(folder)) if name.endswith((".cu", ".cuh", ".h"))]
    unread = {"test.cu"} | ({"main.cu"} if "step.cuh" in names else set())
    waiting = [f"steps/{step}/{name}" for name in names if name not in unread]
    seen, texts = set(waiting), []
    while waiting:
        path = waiting.pop()
        try:
            code, included = code_of_file(os.path.join(root, path))
        except FileNotFoundError:
            continue  # it would not compile either
        if os.path.basename(path) in ("step.cuh", "main.cu"):
            texts.append("".join(VARIANT.findall(code)) or code)
        elif path == "common/dialect/cuda.h":
            texts.append(device_part(code))
        else:
            texts.append(code)
            found = {name for name in included if counts(name)} - seen
            seen |= found
            waiting += found
    return texts


@functools.cache
def digest_of(step, root=ROOT):
    """Of one step's folder; None where there is no such step."""
    texts = text_of(step, root)
    if texts is None:
        return None
    # Sorted by what they hold: a file that is only renamed or moved changes nothing.
    return hashlib.sha256("\0".join(sorted(filter(None, texts))).encode()).hexdigest()[:16]


def source_digest():
    """Of everything that decides what a step counts, the simulator included: equal sources count
    equally. What a GPU measures is decided by less: digest_of()."""
    digest = hashlib.sha256()
    for top in ("steps", "common"):
        for folder, folders, files in os.walk(os.path.join(ROOT, top)):
            folders[:] = sorted(set(folders) - {"exercises"})  # no step depends on them
            for name in sorted(set(files) - {"test.cu"}):
                if name.endswith((".cuh", ".cu", ".h", ".cpp", ".json")):
                    path = os.path.join(folder, name)
                    digest.update(os.path.relpath(path, ROOT).encode())
                    with open(path, "rb") as file:
                        digest.update(file.read())
    return digest.hexdigest()


def main():
    parser = command.parser(__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="by number or by name")
    parser.add_argument("--root", default=ROOT, metavar="DIR")
    args = parser.parse_args()
    chosen = find_steps(" ".join(args.steps), args.root)
    if not chosen:
        raise command.BadInput(f"no step in {args.root}/steps")
    for step in chosen:
        print(digest_of(step, args.root), step)
    return 0
