"""The commit of a result, and whether a step has changed since.

A step has changed where the code of a file that its program includes has changed: a file of a step,
of common/dialect, of common/ranks, or tiles.h and ranks.h of common/harness. The compiler removes
comments. White space, #include lines and file names do not count, nor does the rest of the harness:
tests require the same results of it. Where a source changes but not the machine code, as with a new
description, docs/results/equal_code.json may say so (equal_code.py).
"""

import functools
import os
import subprocess

from .files import read_json, read_text
from .steps import ROOT

EQUAL_CODE = os.path.join(ROOT, "docs", "results", "equal_code.json")
DECIDES = ("steps/", "common/dialect/", "common/ranks/")
DECIDES += ("common/harness/tiles.h", "common/harness/ranks.h")
UNCOMMITTED = "+"  # after a commit: the tree had changes
UNKNOWN = "unknown"  # without git, and without a given commit


def git(*arguments):
    """The output of git; None where there is no git, no history or no such commit."""
    command = ["git", "-C", ROOT, "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


@functools.cache
def here():
    """This tree's commit, "+" if steps/ or common/ changed. Without git: FLASH_STEPS_COMMIT."""
    told = os.environ.get("FLASH_STEPS_COMMIT")
    head = told or git("rev-parse", "--short=12", "HEAD")
    if not head:
        return UNKNOWN
    changes = None if told else git("status", "--porcelain", "--", "steps", "common")
    return head.strip() + (UNCOMMITTED if changes else "")


def code_of(text):
    """The lines of a file's code, without comments and white space."""
    command = ["g++", "-x", "c++", "-fpreprocessed", "-dD", "-E", "-P", "-w", "-"]
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    except (OSError, subprocess.CalledProcessError):  # no compiler: comments count
        pass
    lines = (" ".join(line.split()) for line in text.splitlines())
    return [line for line in lines if line]


@functools.cache
def files_since(commit):
    """{path: its path in the commit, or None} of the files that differ; None if git cannot tell."""
    text = git("diff", "-M", "--name-status", commit, "--", "steps", "common")
    if text is None:
        return None
    rows = [line.split("\t") for line in text.splitlines()]
    return {row[-1]: None if row[0] == "A" else row[1] for row in rows}


@functools.cache
def has_changed(path, before, commit):
    there = git("show", f"{commit}:{before}") if before else None
    now = os.path.join(ROOT, path)
    if there is None or not os.path.exists(now):
        return True
    before, after = (
        [line for line in code_of(text) if not line.startswith("#include")]
        for text in (there, read_text(now))
    )
    return before != after


@functools.cache
def files_of(step):
    """The files that the step's program includes for nvcc; None without a compiler."""
    main = os.path.join("steps", step, "main.cu")
    if not os.path.exists(os.path.join(ROOT, main)):
        return None
    # -MG: missing headers are only named; so are the system's, at no cost.
    command = ["g++", "-std=c++20", "-x", "c++", "-D__CUDACC__", "-I.", "-MM", "-MG"]
    command += ["-nostdinc", main]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    except (OSError, subprocess.CalledProcessError):  # no compiler: only the step's folder
        folder = os.path.join(ROOT, "steps", step)
        return {os.path.join("steps", step, name) for name in os.listdir(folder)}
    words = {os.path.normpath(word) for word in done.stdout.split()[1:] if word != "\\"}
    return {word for word in words if word.startswith(("steps/", "common/"))}


@functools.cache
def has_same_code(step, commit):
    """Has the step's code at the commit? A copy without git accepts any commit."""
    files = files_of(step)
    if files is None or not commit:
        return False
    if commit == here() or here() == UNKNOWN:
        return True
    differing = None if commit.endswith(UNCOMMITTED) else files_since(commit)
    if differing is None:
        return False
    paths = [path for path in files & {*differing} if path.startswith(DECIDES)]
    return not any(has_changed(path, differing[path], commit) for path in paths)


@functools.cache
def is_current(step, commit):
    """Is the step the same for a GPU as at the commit?"""
    return proof_of(step, commit, equal_code()) is not None


def proof_of(step, commit, entries):
    """The entries that show that the step is the same as at the commit; None if it is not."""
    if has_same_code(step, commit):
        return []
    for entry in entries:
        if entry["since"] == commit and step in entry["steps"]:
            more = proof_of(step, entry["at"], entries)
            if more is not None:
                return [entry, *more]
    return None


@functools.cache
def equal_code():
    """[{since, at, steps, how}]: commits between which steps changed, but not for a GPU."""
    return read_json(EQUAL_CODE) if os.path.exists(EQUAL_CODE) else []
