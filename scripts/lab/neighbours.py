"""Counts what each lesson file adds to the one that it changes.

A file's header names the other one: "// Changed   since 06 2_registers: ...". Lines are compared
without white space: `added` lines are in the file and not in the other one, and `share` is their
share of the file. A test holds the limits, and the excuses below.
Exit status: 0 done, 2 bad use.
"""

import glob
import os
from dataclasses import dataclass

from flash_steps import command
from flash_steps.files import read_text
from flash_steps.steps import ROOT
from flash_steps.text import Column, common_lines, text_table

# {file: (its share at most, why it adds more than half)}
EXCUSED = {
    "02 2_registers": (0.73, "4 x 4 results per thread turn each statement into two loops"),
    "05 1_standard": (0.63, "the first backward: two kernels have no counterpart in the forward"),
    "05 3_from_lse": (0.58, "a short kernel: half of it is header and host functions"),
    "08 3_keys": (0.53, "06's loops of one thread become products of tensor cores"),
    "10 2_warpgroup": (0.75, "no kernel: 09's functions, cut so that none waits for its product"),
    "10 3_specialized": (0.81, "FlashAttention-3's order touches each line around a product"),
    "11 1_products": (0.62, "no kernel of products yet: their parts, for fragments of wgmma"),
    "11 2_walk": (0.70, "a short file without a kernel: what a block owns, and dQ's sums"),
    "11 3_wgmma": (0.81, "08's loop, with each copy, product and barrier replaced by Hopper's"),
    "11 4_late": (0.79, "a product is issued in one place and waited for in another"),
    "11 6_augmented": (0.67, "a short file without a kernel of products"),
    "11 8_units": (0.77, "a short file: the kernels that find a row's unit"),
    "11 9_deterministic": (0.66, "a short file: uses 7_columns' kernel"),
    "11 10_copier": (0.76, "no kernel: two threads of one, and the place of each tile"),
    "11 12_own_sums": (0.74, "a short file: dQ's sums for 11_persistent's kernel"),
    "11 13_places": (0.77, "a short file: dQ's sums for 7_columns' kernel"),
    "11 14_resident": (0.74, "a short file: uses 11_persistent's kernel"),
    "11 15_wide": (0.65, "a warpgroup per gradient: each loop changes its owner"),
    "11 17_direct": (0.75, "a short file: dQ's sums for 7_columns' kernel"),
    "12 2_products": (0.60, "a short file without a kernel: operands of one byte"),
    "12 3_roles": (0.55, "a short file without a kernel: scales, and a buffer for O"),
    "12 5_statistics": (0.64, "no kernel: the loads of one, for other results"),
    "12 6_centred": (0.71, "uses 4_tensor's kernel; new are V's means and their order"),
    "12 8_blocks": (0.73, "a kernel's loop over numbers becomes three, over registers"),
    "13 3_warps": (0.64, "a short file: what it keeps of 07's kernel stands in 1_tile"),
    "13 4_splits": (0.55, "a short file: half of what is new is the second kernel"),
    "13 8_e4m3": (0.55, "no kernel: operands of one byte change each tile, copy and product"),
    "15 3_packed": (0.62, "uses 1_window's kernel; new is the table of work tiles"),
    "15 4_packed_backward": (
        0.66,
        "uses 2_window_backward's kernel; new is the table of work tiles",
    ),
    "15 5_lists": (0.73, "uses 1_window's kernel; new is the test by bits"),
    "15 6_lists_backward": (0.62, "uses 2_window_backward's kernel; other own tiles, other bits"),
    "15 7_scores": (0.68, "uses 1_window's kernel; new is what changes a score"),
    "15 8_scores_backward": (0.70, "uses 2_window_backward's kernel; new are the derivatives"),
    "15 9_table": (0.80, "no kernel: an entry of the table, and which keys its rows see"),
    "15 10_producer": (0.57, "a third of a kernel: who copies"),
    "15 11_ends": (0.76, "a third of a kernel: two warps that had no work"),
    "15 13_wgmma_lists": (0.72, "uses 12_wgmma's kernel; what 5_lists has, by other bits"),
    "15 14_wgmma_scores": (0.62, "uses 12_wgmma's kernel; what 7_scores has, with other registers"),
    "15 15_wgmma_rows": (0.80, "a short file: the kernels before and behind the walks"),
    "15 16_wgmma_keys": (0.74, "no kernel: an entry of the table, and which rows see its keys"),
    "15 17_wgmma_walk": (0.54, "a half of a kernel: who copies and multiplies dQ"),
    "15 19_wgmma_lists_backward": (0.70, "uses 18_wgmma_backward's kernel"),
    "16 1_rows": (0.54, "a short file without a kernel: a row of tensor memory, not a fragment"),
    "16 6_exp2": (0.70, "a short file: uses 5_pair's kernel"),
}


@dataclass
class Neighbour:
    file: str  # "02 1_shared"
    other: str | None  # the one that it changes
    lines: int
    added: int
    removed: int

    @property
    def share(self):
        return self.added / self.lines


def lines_of(text):
    """Without white space."""
    return ["".join(line.split()) for line in text.splitlines()]


def lesson_files(root=ROOT):
    """{"02 1_shared": path}, in reading order."""
    steps = os.path.join(root, "steps", "[0-9][0-9]_*")
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
    Column(("", "why more than half"), lambda n: EXCUSED.get(n.file, (0, ""))[1], left=True),
]


def main():
    command.parser(__doc__).parse_args()
    print(text_table(COLUMNS, neighbours()))
    return 0
