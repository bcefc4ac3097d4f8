"""Counts what each lesson file adds to the one that it changes.

A file's header names the other one: "// Changed   since 06 2_registers: ...". Lines are compared
without white space: `added` lines are in the file and not in the other one, and `share` is their
share of the file. A test holds the limits, and what LEAPS excuses.
Exit status: 0 done, 2 bad use.
"""

import glob
import os
from dataclasses import dataclass
from typing import Optional

from flash_steps import command
from flash_steps.files import read_text
from flash_steps.steps import ROOT
from flash_steps.text import Column, common_lines, text_table

# Files of which more than half is new, and more than SHORT lines are added, or more than MOST.
SHORT, MOST = 100, 200
LEAPS = {
    "02 2_registers": "4 x 4 results per thread turn each statement into two loops",
    "10 2_warpgroup": "no kernel: 09's functions, cut so that none waits for its product",
    "10 3_specialized": "FlashAttention-3's order touches each line around a product",
    "11 3_wgmma": "08's loop, with each copy, product and barrier replaced by Hopper's",
    "11 4_late": "a product is issued in one place and waited for in another",
    "11 15_wide": "a warpgroup per gradient: each loop changes its owner",
    "16 5_pair": "a block has two tiles of rows: each role gets a loop over them",
}


@dataclass
class Neighbour:
    file: str  # "02 1_shared"
    other: Optional[str]  # the one that it changes
    lines: int
    added: int
    removed: int

    @property
    def share(self):
        return self.added / self.lines

    @property
    def is_leap(self):
        return self.added > (SHORT if self.share > 0.5 else MOST)


def lines_of(text):
    """Without white space."""
    return ["".join(line.split()) for line in text.splitlines()]


def lesson_files(root=ROOT, step="[0-9][0-9]_*"):
    """{"02 1_shared": path}, in reading order; `step`: of the folders of such a name."""
    steps = os.path.join(root, "steps", step)
    paths = [
        p for name in ("[0-9]_*.cuh", "[0-9][0-9]_*.cuh") for p in glob.glob(f"{steps}/{name}")
    ]

    def order(path):
        folder, name = path.split(os.sep)[-2:]
        return folder, int(name.partition("_")[0])

    return {
        f"{path.split(os.sep)[-2][:2]} {os.path.basename(path)[: -len('.cuh')]}": path
        for path in sorted(paths, key=order)
    }


def changed_since(text):
    """ "06 2_registers" of a header, or None."""
    for line in text.splitlines():
        words = line.replace(":", " ").replace(",", " ").split()
        if words[:3] == ["//", "Changed", "since"] and "_" in " ".join(words[4:5]):
            return " ".join(words[3:5])
    return None


def neighbours(root=ROOT):
    r"""[Neighbour], in reading order. \raises command.BadInput when a header names no file."""
    texts = {name: read_text(path) for name, path in lesson_files(root).items()}
    found = []
    for name, text in texts.items():
        other, new = changed_since(text), lines_of(text)
        if other is not None and other not in texts:
            raise command.BadInput(f"{name}: its header changes {other}, which is no file")
        old = lines_of(texts[other]) if other else []
        kept = common_lines(old, new)
        found.append(Neighbour(name, other, len(new), len(new) - kept, len(old) - kept))
    return found


def figure(head, of):
    return Column(("", head), lambda n: str(of(n)) if n.other else "-")


COLUMNS = [
    Column(("", "file"), lambda n: n.file, left=True),
    Column(("", "changes"), lambda n: n.other or "-", left=True),
    Column(("", "lines"), lambda n: str(n.lines)),
    figure("added", lambda n: n.added),
    figure("removed", lambda n: n.removed),
    figure("share", lambda n: f"{100 * n.share:.0f}%"),
    Column(("", "why so many"), lambda n: LEAPS.get(n.file, ""), left=True),
]


def main():
    command.parser(__doc__).parse_args()
    print(text_table(COLUMNS, neighbours()))
    return 0
