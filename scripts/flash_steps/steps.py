"""The steps of this tree, and of a build folder: finds them and runs their programs."""

import glob
import json
import os
import re
import subprocess
import tempfile

from .command import BadInput, Failure, NotHere
from .files import ROOT, read_json, read_text


def find_steps(wanted=None):
    """All, sorted, or those that a text with numbers or names lists."""
    folder = os.path.join(ROOT, "steps")
    there = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    known = [name for name in there if os.path.exists(os.path.join(folder, name, "main.cu"))]
    return chosen_of(known, wanted, "there are")


def find_libraries(build):
    folder = os.path.join(build, "steps")
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return [found[1] for name in names if (found := re.fullmatch(r"lib(\d.*)\.so", name))]


def library_path(build, step):
    return os.path.abspath(os.path.join(build, "steps", f"lib{step}.so"))


def chosen_of(known, wanted, where):
    r"""Those of `known` that `wanted` lists by number or name; None: all.
    \raises BadInput with `where` before the known ones, where a word is none of them."""
    found = [] if wanted else known
    for word in (wanted or "").split():
        matching = [step for step in known if step == word or step.startswith(word + "_")]
        if not matching:
            raise BadInput(f"no step '{word}'; {where} {', '.join(known)}")
        found += matching
    return list(dict.fromkeys(found))


def number_of(step):
    """6 for "06_work_partitioning", 0 for a user's own step."""
    found = re.match(r"\d+(?=_)", step)
    return int(found[0]) if found else 0


def numbered_steps():
    found = find_steps()
    return [step for step in found if number_of(step)] or found


def lesson_files(step="[0-9][0-9]_*"):
    """{"02 1_shared": path from the tree's top}, in reading order; `step`: only such folders."""
    found = {}
    for path in sorted(glob.glob(os.path.join(ROOT, "steps", step, "[0-9]_*.cuh"))):
        folder, name = path.split(os.sep)[-2:]
        found[f"{folder[:2]} {name[: -len('.cuh')]}"] = os.path.relpath(path, ROOT)
    return found


def changed_since(text):
    """ "06 2_registers" from a lesson's header, or None."""
    for line in text.splitlines():
        words = line.replace(":", " ").replace(",", " ").split()
        if words[:3] == ["//", "Changed", "since"] and "_" in " ".join(words[4:5]):
            return " ".join(words[3:5])
    return None


def listed():
    """{step: the architectures that it needs}, from steps/CMakeLists.txt; ["sm_80", "sm_90a"] where
    some variants run on the first, [] for any GPU. Omits a user's step that was deleted by hand."""
    text = read_text(os.path.join(ROOT, "steps", "CMakeLists.txt"))
    found = {}
    for name, words in re.findall(r"^fa_step\((\w+)([^)]*)\)", text, re.MULTILINE):
        if number_of(name) or os.path.isdir(os.path.join(ROOT, "steps", name)):
            needs = [word for word in words.split() if re.fullmatch(r"sm_\d+a?", word)]
            found[name] = sorted(needs, key=lambda arch: int(arch.strip("sm_a")))
    return found


def all_needs_of(step):
    """As listed(); [] for a folder that is not listed."""
    return listed().get(step, [])


def needs_of(step):
    """The architecture of a step's newest kernels; None: any, or the step is not listed."""
    return (all_needs_of(step) or [None])[-1]


def runs_on(arch, needs):
    """Does a GPU of `arch` ("sm_89") run a step that needs "sm_80", "sm_90a" or None?"""
    has, needed = (int(re.search(r"\d+", text or "0")[0]) for text in (arch, needs))
    return has == needed if needs and needs.endswith("a") else has >= needed


def steps_on(arch):
    """The ladder, without the steps that a GPU of `arch` cannot run."""
    return [s for s in numbered_steps() if runs_on(arch, (all_needs_of(s) or [None])[0])]


def program_of(build, step):
    return os.path.join(build, "steps", step)


def _run(command, preset):
    try:
        return subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        build = f"cmake --preset {preset} && cmake --build --preset {preset}"
        path = os.path.relpath(command[0])
        raise NotHere(f"{path}: {error.strerror}; it is not built: {build}") from None


def described(program, preset="sim"):
    r"""A step's description by its program: docs/json.md.
    \raises NotHere where it is not built, and Failure."""
    done = _run([program, "--describe"], preset)
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise Failure(f"{program} --describe: {said}") from None


def report_of(program, *arguments, preset="sim"):
    r"""The JSON that a step's program writes with --json.
    \raises BadInput, NotHere or Failure, by its exit status, with its words."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        command = [str(word) for word in (program, *arguments, f"--json={path}")]
        done = _run(command, preset)
        if done.returncode in (2, 3):
            raise (BadInput if done.returncode == 2 else NotHere)(done.stderr.strip())
        if done.returncode != 0:
            said = (done.stdout + done.stderr).rstrip()
            raise Failure(f"{' '.join(command[:-1])} was wrong:\n{said}")
        return read_json(path)
