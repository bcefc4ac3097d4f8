"""The scripts, and copies of them, for the tests of this folder."""

import os
import shutil
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
SCRIPTS = os.path.join(ROOT, "scripts")
sys.path.insert(0, SCRIPTS)  # for `from flash_steps import ...`


def copy_scripts(root):
    """Into another tree, to be run there."""
    unwanted = shutil.ignore_patterns("__pycache__", "learn*", "new", "template")
    shutil.copytree(SCRIPTS, os.path.join(root, "scripts"), ignore=unwanted, dirs_exist_ok=True)


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
