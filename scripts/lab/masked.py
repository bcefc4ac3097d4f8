"""Measures step 15's masks beside other kernels, on one GPU in one run.

    maintain masked                       writes docs/results/masks_<gpu>.json, prints its tables
    maintain masked --json OUT.json       writes OUT.json instead
    maintain masked --only "window tiles" --d 128     some of: window, packed, tiles; and of d

Windows, packs of documents, and tiles of 128 x 128 that are drawn for each head, forward and
backward. FlexAttention and PyTorch's varlen_attn take turns with step 15, and where they are
installed FlashAttention-3 (flash_attn_interface) and -4 (flash_attn.cute), with tiles also cuDNN's
frontend (cudnn.block_sparse_attention) and FlashInfer; the order is drawn anew in each round. All
outputs are checked against fp64; what a rival refuses or gets wrong is named and left out. Needs
build/gpu and PyTorch.

The result is saved after each problem, a further call continues it, and --turns repeats each
problem: tables show the medians of its repeats.
Exit status: 0 all measured, 1 something is wrong or was left out, 2 bad use, 3 no PyTorch, GPU or
build.
"""

import argparse
import ctypes

from flash_steps.command import Failure
from flash_steps.problems import problem_text, series

from . import jobs, masks, peers, rivals
from .comparison import Comparison
from .jobs import Job
from .torch_attention import Torch

STEP, N, DS = "15_masks", 16384, (128, 64)
WINDOWS = ("256,0", "1024,0", "4096,0")
# The last one: 20 log-normal lengths.
PACKS = (
    "8x2048", "32x512", "8192,32x256",
    "224,328,670,335,1468,701,2638,625,722,1443,396,1588,241,144,265,1948,720,554,312,1062",
)  # fmt: skip
SHARES = (0.1, 0.25, 0.5)  # of the causal tiles
VARIANTS = {"window": ["packed", "wgmma"], "packed": ["packed", "wgmma"], "tiles": ["wgmma_lists"]}


def problems():
    """(what, problem), the most important first."""
    for d in DS:
        one = series(N, d, False)
        one |= {"hkv": one["h"], "nk": N, "dtype": "bf16"}
        for word in WINDOWS:
            yield "window", {**one, **masks.window(word)}
        for word in PACKS:
            yield "packed", {**one, "causal": True, **masks.lengths(word)}
        for share in SHARES if d == 128 else ():
            yield "tiles", {**one, **masks.tiles(share, one["h"], N)}


class Masked(Comparison):
    gaps = (Exception,)  # each package has its own

    def __init__(self, options, torch, side, problem, notes):
        super().__init__(options, torch, [side], problem, notes)
        if "tiles" in problem:
            kept = masks.bytes_of(problem)
            self.kept = ctypes.create_string_buffer(kept, len(kept))  # lives as long as the runs
            self.sizes["tiles"] = problem["tiles"]["heads"], ctypes.addressof(self.kept)

    def backends(self):
        return [*(rivals.TILED if "tiles" in self.problem else masks.BACKENDS)]


class MaskedMeasurement(peers.PeersMeasurement):
    name = "masks"

    def __init__(self, options, torch, library):
        super().__init__(options, torch, {})
        self.library = library

    def jobs(self):
        return [
            self.compared(turn, what, problem)
            for turn in range(self.options.turns)
            for what, problem in problems()
            if what in self.options.only and problem["d"] in self.options.d
        ]

    def compared(self, turn, what, p):
        names = peers.names_of(self.library)
        side = self.library, [names.index(name) for name in VARIANTS[what]]

        def rows():
            self.torch.matmul_rate(p["dtype"])
            one = p if what == "tiles" else masks.counted(self.torch.torch, p)
            return Masked(self.options, self.torch, side, one, self.result["notes"]).rows()

        return Job(f"{turn + 1}: {problem_text(p)}", (STEP,), rows)

    def tables(self, rows):
        return [("masks", *peers.masked(rows))] if rows else []


# --- the command ----------------------------------------------------------------------------------


def main():
    parser = jobs.parser(__doc__, turns=3, budget=480, where="docs/results/masks_<gpu>.json")

    def some_of(*known):
        def chosen(text):
            names = {str(one): one for one in known}
            if wrong := [word for word in text.split() if word not in names]:
                raise argparse.ArgumentTypeError(f"'{wrong[0]}' is not one of {', '.join(names)}")
            return [names[word] for word in text.split()]

        return chosen

    add = parser.add_argument
    add("--only", type=some_of(*VARIANTS), default=[*VARIANTS], metavar='"window tiles"')
    add("--d", type=some_of(*DS), default=DS, metavar='"128 64"')
    options = parser.parse_args()
    options.rounds, options.iters = 10, MaskedMeasurement.iters
    options.directions, options.steps = ["forward", "backward"], STEP
    jobs.require_ready(options, STEP)
    try:
        torch = Torch([*masks.BACKENDS, *rivals.TILED])
        (library,) = peers.load_libraries(options)
        return MaskedMeasurement(options, torch, library).measure()
    except RuntimeError as error:  # from PyTorch
        raise Failure(error) from None
