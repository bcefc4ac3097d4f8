"""Modules of the commands in scripts/. A command is a module with main().

command.py           how commands start, their sentences, their exit status
files.py             whole files, text and JSON; the folder of this tree
steps.py             finds steps and runs their programs
problems.py          a problem: FlashAttention's series, flags, text
results.py           JSON of the programs: runs, and rows that join them
standing.py          is a result of this tree's sources, measured at full speed?
commits.py           the commit of a result, and what has changed since
text.py              figures and tables for people
picture.py           SVG of results
gpu_table.py         the GPUs that the simulator models
nvcc.py              finds the compiler
step_library.py      a step's shared library
torch_operator.py    attention() and latent_decode(), steps in a PyTorch model
gpt.py               a GPT whose attention is a step, or PyTorch's
model_cost.py        the cost of an update of it, by formulas

compare.py           scripts/compare.py
fit_m.py             scripts/fit_m.py
model.py             scripts/model, with model.py of ../lab
ptxas.py             scripts/ptxas
cuda_program.py      scripts/sim: cuda_translator.py, inline_ptx.py, ptx_table.py,
                     host_calls.py, sarif.py
tour_table.py        scripts/tour.sh, with tour_runs.py
all others           tools of ./scripts/maintain

../lab has what measures, and what fills the documentation from results.
"""

import os
import sys


def require_python(*oldest):
    """Ends a command with one sentence and status 3 where this Python is too old."""
    if sys.version_info < oldest:
        needs, here = (".".join(map(str, version[:3])) for version in (oldest, sys.version_info))
        name = os.path.basename(sys.argv[0])
        print(f"{name}: needs Python {needs} or newer, and python3 is {here}", file=sys.stderr)
        sys.exit(3)


require_python(3, 9)


def __getattr__(name):
    """attention() and latent_decode(), which alone need PyTorch."""
    if name not in ("attention", "latent_decode"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from . import torch_operator

    return getattr(torch_operator, name)
