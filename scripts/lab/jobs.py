"""Shared by peers.py and `maintain decode`, `latent`, `ring`: one run, which performs jobs within a
budget and prints tables of their results.

Each job's result is written at once. A run with the file of an earlier one continues it and repeats
no job whose steps have the same sources. A failed job costs only itself; jobs that have not begun
after --budget seconds are left out. The last lines name both.
"""

import argparse
import datetime
import os
import sys
import textwrap
import time
from dataclasses import dataclass

from flash_steps import command
from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.commits import here, is_current
from flash_steps.files import read_json, require_writable, write_rows
from flash_steps.gpu_table import model_of
from flash_steps.steps import ROOT, program_of
from flash_steps.text import text_table

from .measured import place_of
from .publish import slim


@dataclass
class Job:
    text: str
    steps: tuple  # the job is repeated when their sources change
    rows: object  # a function that returns the results


class Measurement:
    """A subclass has `name`, of the command and its files, `iters`, the timed runs in a turn, and

    jobs()         [Job], the most important first
    tables(rows)   [(title, columns, lines)] for the screen
    facts(result)  a sentence: where and how it was measured

    By default the last two use TABLES, rows_for(), table() and card() of its module.
    """

    def __init__(self, options):
        self.options, self.path, self.start = options, options.json, time.monotonic()
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.result = {"device": None, "run": now, "iters": self.iters, "turns": options.turns}
        self.result |= {"notes": [], "failures": [], "left_out": [], "done": {}, "rows": []}

    def tables(self, rows):
        page = sys.modules[self.__module__]
        found = [(what, page.rows_for(what, rows)) for what in page.TABLES]
        return [(what, *page.table(what, mine)) for what, mine in found if mine]

    def facts(self, result):
        about = sys.modules[self.__module__].card(result)
        return "; ".join(f"{head}: {text}" for head, text in about.items())

    def runs_on(self, device, **about):
        r"""To be called as soon as the device is known. \raises BadInput"""
        self.path = self.path or default_path(device, self.name)
        self.result |= {"device": device, **about}
        if not self.path or not os.path.exists(self.path):
            return
        before = read_json(self.path)
        for key in ("device", *about):
            if before.get(key) != self.result[key]:
                raise BadInput(
                    f"{self.path} has '{key}' {before.get(key)}, this run {self.result[key]}: "
                    "one file cannot hold both, so name another one or remove it"
                )
        self.result |= {k: v for k, v in before.items() if self.result.get(k) is None}
        self.result["notes"] = before.get("notes", [])
        self.result["done"] = {
            text: mark
            for text, mark in before.get("done", {}).items()
            if all(is_current(step, mark["commit"]) for step in mark["steps"])
        }
        self.result["rows"] = [
            row
            for row in before["rows"]
            if not row["step"] or is_current(row["step"], row.get("commit"))
        ]

    def measure(self):
        result = self.result
        for job in self.jobs():
            if job.text in result["done"]:
                continue
            if self.seconds() > self.options.budget:
                result["left_out"].append(job.text)
                continue
            try:
                rows = job.rows()
                for row in rows:
                    self.keep(row)
                result["done"][job.text] = {"steps": job.steps, "commit": here()}
                print(f"{self.seconds():4.0f} s  {job.text}", file=sys.stderr, flush=True)
            except Failure as error:  # the others may be right
                result["failures"].append(str(error))
                print(error, file=sys.stderr, flush=True)
            result["notes"][:] = dict.fromkeys(result["notes"])
            self.write()
        self.write()
        print(self.text())
        return 1 if result["failures"] or result["left_out"] else 0

    def text(self):
        result = self.result
        parts = [f"{title}\n{text_table(*table)}" for title, *table in self.tables(result["rows"])]
        said = [self.facts(result)] if result["rows"] else []
        said += dict.fromkeys(result["notes"])
        said += [f"FAILED: {line}" for line in dict.fromkeys(result["failures"])]
        if left := result["left_out"]:
            more = f", and {len(left) - 1} more" if len(left) > 1 else ""
            said.append(f"Left out, there was no time: {left[0]}{more}.")
        return "\n\n".join([*parts, "\n".join(textwrap.fill(line, 100) for line in said)])

    def keep(self, row):
        rows = self.result["rows"]
        rows[:] = [other for other in rows if place_of(other) != place_of(row)] + [row]

    def seconds(self):
        return time.monotonic() - self.start

    def write(self):
        if self.path:  # else no file was requested, or the device is still unknown
            write_rows(self.path, slim(self.result))


def default_path(device, what):
    """None where a file is written only on request."""
    if what == "peers":
        return None
    model = model_of(device)
    if not model:
        raise BadInput(f"'{device}' is not in common/data/gpus.json: name the file with --json")
    return os.path.join(ROOT, "docs", "results", f"{what}_{model.lower()}.json")


# --- the command ----------------------------------------------------------------------------------


def count(least=1):
    """The type of an option."""

    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}")
        return int(text)

    return number


def parser(doc, turns, budget, where):
    """A parser with the common options. `where`: the file written without --json."""
    found = command.parser(doc)
    add = found.add_argument
    add("--json", metavar="F.json", help=f"continue and write this file; default: {where}")
    add("--build", metavar="DIR", default=os.path.join(ROOT, "build", "gpu"))
    add("--turns", metavar="INT", type=count(), default=turns, help="of each problem (%(default)s)")
    help_text = "no problem begins after this time (%(default)s)"
    add("--budget", type=float, default=budget, metavar="SECONDS", help=help_text)
    return found


def require_ready(options, step):
    r"""The path of the step's program. \raises BadInput or NotHere before anything is measured."""
    if options.json:
        require_writable("--json", options.json)
    program = program_of(options.build, step)
    if not os.path.exists(program):
        raise NotHere(f"{program} is not built: cmake --preset gpu && cmake --build --preset gpu")
    return program
