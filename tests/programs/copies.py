"""The scripts, and copies of them, for the tests of this folder."""

import os
import shutil
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)  # for `from flash_steps import ...`
HAVE_GIT = shutil.which("git") is not None


def copy_scripts(root):
    """Into another tree, to be run there."""
    unwanted = shutil.ignore_patterns("__pycache__", "learn*", "new", "template")
    shutil.copytree(SCRIPTS, os.path.join(root, "scripts"), ignore=unwanted, dirs_exist_ok=True)


def git(root, *arguments):
    call = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run([*call, *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_all(root):
    """All files of a folder, in a history of its own: the commit."""
    if not HAVE_GIT:
        return "unknown"
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")
    return git(root, "rev-parse", "--short=12", "HEAD")


def maintain(*args, root=ROOT, python=(), **environment):
    """What ./scripts/maintain says, in this tree or in a copy; `python`: options of Python."""
    script = os.path.join(root, "scripts", "maintain")
    return subprocess.run(
        [sys.executable, *python, script, *args],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, **environment},
    )
