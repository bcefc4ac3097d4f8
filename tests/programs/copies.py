"""Shared by the tests of this folder: paths, copies of the scripts, two lengths of a run.

    test_NAME.py [--for-all] [--update] [BUILD] [CLASS.test ...]

Without --for-all the cases that `./scripts/test.sh` runs; with it those marked @for_all, which only
`./scripts/test.sh --all` runs. --update replaces the outputs on a page by the current ones.
"""

import contextlib
import io
import os
import pty
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
sys.path.insert(0, str(SCRIPTS))  # for `from flash_steps import ...`
HAVE_GIT = shutil.which("git") is not None
_WORDS = [word for word in sys.argv[1:] if not word.startswith("--")]
_FOR_ALL = "--for-all" in sys.argv[1:]
BUILD = ROOT / "build" / "sim"
if _WORDS and os.path.isdir(_WORDS[0]):
    BUILD = Path(_WORDS.pop(0)).absolute()


def for_all(case):
    """Marks a test, or a class of tests, that only `./scripts/test.sh --all` runs."""
    case.for_all = True
    return case


class _Length(unittest.TestLoader):
    def getTestCaseNames(self, cls):
        def chosen(name):
            return any(getattr(x, "for_all", False) for x in (cls, getattr(cls, name))) == _FOR_ALL

        return [name for name in super().getTestCaseNames(cls) if chosen(name)]


def main():
    unittest.main(argv=[sys.argv[0], *_WORDS], testLoader=_Length())


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def write(self, path, text):
        """Writes a file in the folder. Returns its path."""
        path = self.folder / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def program(self, path, text):
        path = self.write(path, text)
        path.chmod(0o755)
        return path

    def terminal(self):
        """Both ends of a pseudo terminal; ours is closed after the test."""
        try:
            ours, its = pty.openpty()
        except OSError:  # a container without /dev/pts
            self.skipTest("this machine gives no pseudo terminal")
        self.addCleanup(os.close, ours)
        return ours, its

    def ended(self, done, status=0):
        self.assertEqual(done.returncode, status, f"{done.args}\n{done.stdout}{done.stderr}")
        return done

    def refused(self, done, status, *words):
        """Checks the status, and that it printed one sentence, with these words."""
        self.ended(done, status)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)


def said(command, **how):
    return subprocess.run([str(word) for word in command], text=True, capture_output=True, **how)


def fake_gpu_compiler():
    """g++ with the flags for sources of a GPU build, whose CUDA runtime is fake_gpu's."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.findall(r"^FA_(?:JSON|FMT)_INCLUDE:PATH=(.+)$", cache, re.M)
    compiler = re.search(r"^CMAKE_CXX_COMPILER:[A-Z]+=(.+)$", cache, re.M)[1]
    fake = ROOT / "tests" / "programs" / "fake_gpu"
    flags = ["-std=c++20", "-O0", "-Wall", "-DFA_GPU", "-DFMT_HEADER_ONLY", f"-I{fake}"]
    return [compiler, *flags, f"-I{ROOT}", *(f"-idirafter{at}" for at in found)]


def on_page(page, name, output):
    """The output of this name on a page. --update replaces it by `output`."""
    block = re.compile(rf"(?s)(<!-- output: {name} -->\n```\n)(.*?)(```\n<!-- /output -->)")
    text = page.read_text(encoding="utf-8")
    if "--update" in sys.argv:
        text = block.sub(lambda found: found[1] + output + found[3], text)
        page.write_text(text, encoding="utf-8")
    return block.search(text)[2]


def typed(script, *words):
    """The output and status of a Python script, without starting another Python."""
    out, errors, status = io.StringIO(), io.StringIO(), 0
    with mock.patch.object(sys, "argv", [script, *map(str, words)]):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            try:
                runpy.run_path(str(SCRIPTS / script), run_name="__main__")
            except SystemExit as end:
                status = end.code or 0
    return subprocess.CompletedProcess(words, status, out.getvalue(), errors.getvalue())


def copy_scripts(root):
    unwanted = shutil.ignore_patterns("__pycache__", "learn*", "new")
    shutil.copytree(SCRIPTS, os.path.join(root, "scripts"), ignore=unwanted, dirs_exist_ok=True)


def git(root, *arguments):
    call = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return said([*call, *arguments], cwd=root, check=True).stdout.strip()


def commit_all(root):
    """Commits all files of a folder in its own history. Returns the commit."""
    if not HAVE_GIT:
        return "unknown"
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")
    return git(root, "rev-parse", "--short=12", "HEAD")


def maintain(*args, root=ROOT, python=(), **environment):
    """The output of ./scripts/maintain, in this tree or in a copy; `python`: options of Python."""
    command = [sys.executable, *python, os.path.join(root, "scripts", "maintain"), *args]
    return said(command, cwd=root, env={**os.environ, **environment})
