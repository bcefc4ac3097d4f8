"""What `maintain decode` and `maintain ring` share: one run, which does jobs within a budget.

What a job found is written at once, so that a run that is cut short loses one job. A job that fails
costs only itself; what has not begun after --budget seconds is left out. The result and the last
lines name both.
"""

import argparse
import datetime
import os
import sys
import time

from flash_steps import command
from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.files import require_writable, write_rows
from flash_steps.gpu_table import model_of
from flash_steps.steps import ROOT, program_of

from .measured import text_of
from .merge import slim


class UnknownGpu(BadInput):
    """No file is named for it: this ends the run, before it measures what it could not keep."""


class Measurement:
    """A subclass has `name`, of the command and of its files, and

    jobs()           [(what it is, a function that gives rows)]: what matters most comes first;
                     a row that was there before has had one more turn
    said(text, row)  a line of the run, of a row and of what its job is
    """

    def __init__(self, options):
        self.options, self.path, self.start = options, options.json, time.monotonic()
        self.result = {
            "schema": 1,
            "device": None,
            "iters": options.iters,
            "turns": options.turns,
            "run": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "commands": [f"./scripts/maintain {self.name}"],
            "notes": [],
            "failures": [],
            "left_out": [],
            "rows": [],
        }

    def runs_on(self, device):
        r"""To be called as soon as the device is known. \raises UnknownGpu"""
        self.path = self.path or default_path(device, self.name)
        self.result["device"] = device

    def measure(self):
        """Does all jobs and prints the tables. Returns the exit status."""
        result = self.result
        for text, job in self.jobs():
            if self.seconds() > self.options.budget:
                result["left_out"] += [text] * (text not in result["left_out"])
                continue
            try:
                rows = job()
                result["rows"] += [row for row in rows if row not in result["rows"]]
                for line in [self.said(text, row) for row in rows] or [text]:
                    print(f"{self.seconds():4.0f} s  {line}", file=sys.stderr, flush=True)
            except UnknownGpu:
                raise
            except Failure as error:  # the others may be right
                result["failures"].append(str(error))
                print(error, file=sys.stderr, flush=True)
            self.write()
        self.write()
        print(text_of(self.name, result))
        return 1 if result["failures"] or result["left_out"] else 0

    def seconds(self):
        return time.monotonic() - self.start

    def write(self):
        if self.path:  # else no run has told the device yet
            write_rows(self.path, slim(self.result))


def default_path(device, what):
    model = model_of(device)
    if not model:
        raise UnknownGpu(f"'{device}' is not in common/data/gpus.json: name the file with --json")
    return os.path.join(ROOT, "docs", "results", f"{what}_{model.lower()}.json")


# --- the command ----------------------------------------------------------------------------------


def count(least=1):
    """The type of an option."""

    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return int(text)

    return number


def parser(doc, what, iters):
    """With the options that both have."""
    found = command.parser(doc)
    add = found.add_argument
    add("--json", metavar="F.json", help=f"default: docs/results/{what}_<gpu>.json")
    add("--build", metavar="DIR", default=os.path.join(ROOT, "build", "gpu"))
    counts = {"metavar": "INT", "type": count()}
    add("--iters", default=iters, help="timed runs in a turn (%(default)s)", **counts)
    add("--turns", default=3, help="of each problem, of programs (%(default)s)", **counts)
    add(
        "--budget",
        type=float,
        default=480,
        metavar="SECONDS",
        help="no problem begins after this time (%(default)s)",
    )
    return found


def require_ready(options, step):
    r"""The path of the step's program. \raises BadInput or NotHere before anything is measured."""
    if options.json:
        require_writable("--json", options.json)
    program = program_of(options.build, step)
    if not os.path.exists(program):
        raise NotHere(f"{program} is not built: cmake --preset gpu && cmake --build --preset gpu")
    return program
