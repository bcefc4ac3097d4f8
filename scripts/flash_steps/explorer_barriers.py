"""The page's tab "barriers": the phases of a program's mbarriers, step by step."""

import json
import os
import subprocess
import sys
import tempfile

from .command import Failure
from .files import ROOT, read_json, read_text

PROGRAM = "docs/asynchrony/mbarriers.cu"
PATH = os.path.join(ROOT, "docs", "explorer", "barriers.js")
WARP = 32


def recorded():
    """The steps that ./scripts/sim records of the program's mbarriers (docs/json.md)."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [sys.executable, os.path.join(ROOT, "scripts", "sim"), "--barriers", "--json"]
        command += [report, os.path.join(ROOT, PROGRAM)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{PROGRAM}: {done.stderr.strip().splitlines()[-1]}")
        return read_json(report)["barriers"]


def together(steps):
    """Of a warp's lanes, which the simulator runs one after the other, equal steps become one."""
    found, shared, before = [], {}, None
    for step in steps:
        warp = step["thread"] // WARP  # -1: bytes that landed
        if warp != before:
            shared, before = {}, warp
        what = step["what"], step["barrier"], step["line"]
        again = sum(step["thread"] in one["threads"] for key, one in shared.items() if what in key)
        if (what, again) not in shared:
            shared[what, again] = {"threads": []}
            found.append(shared[what, again])
        one = shared[what, again]
        one["threads"].append(step["thread"])
        one |= {key: step[key] for key in ("what", "barrier", "phase", "arrivals", "bytes")}
        one["line"] = int(step["line"].rpartition(":")[2] or 0)
    return found


def file_text():
    """barriers.js: the steps, and the program's lines."""
    steps = [{**s, "threads": [s["threads"][0], len(s["threads"])]} for s in together(recorded())]
    source = read_text(os.path.join(ROOT, PROGRAM)).splitlines()
    tree = {"path": PROGRAM, "source": source, "steps": steps}
    return f'flashSteps["barriers"] = {json.dumps(tree, separators=(",", ":"))};\n'
