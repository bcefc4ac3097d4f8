"""The explorer's page of step 14: which rank meets which keys in which hop.

Its data are what `mpirun -n R 14_ring --predict --json` says: rows, scores and bytes of each rank.
"""

import concurrent.futures
import itertools
import os
import subprocess
import tempfile

from .command import Failure, NotHere
from .files import read_json
from .mpi import environment
from .steps import program_of

RING = "14_ring"
RING_TITLE = "14 Ring attention"
RING_CAPTION = (
    "Each rank keeps its rows of Q; K and V travel round the ring. Watch who waits: with a causal "
    "mask and the plain cut the first rank is idle; zig-zag gives all the same work in each hop. "
    "Press Play, or step through the hops."
)
RING_NOTE = (
    "Scores and sent bytes are the program's own prediction; on simulated ranks as many bytes are "
    "counted. A hop is as wide as the most scores that a rank computes in it: a proportion, not a "
    "time. N = 1024, d = 64, 4 heads, bf16."
)
VARIANTS, RANKS = ("plain", "zigzag"), (2, 4, 8)
SHAPE = ("--n=1024", "--h=4", "--d=64")


def predicted(build, variant, ranks, causal):
    """What a page holds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        call = ["mpirun", "-n", str(ranks), program_of(build, RING), *SHAPE, "--predict"]
        call += [f"--variant={variant}", *["--causal"] * causal, f"--json={path}"]
        try:
            done = subprocess.run(call, capture_output=True, text=True, env=environment(folder))
        except OSError as error:
            raise NotHere(f"mpirun: {error.strerror}; ./scripts/setup.sh mpi installs it") from None
        if done.returncode:
            raise Failure(f"{' '.join(call)}: {(done.stderr or done.stdout).strip()}")
        report = read_json(path)
    p = report["problem"]
    return {
        "variant": variant,
        "ranks": ranks,
        "causal": causal,
        **{key: p[key] for key in ("n", "hkv", "d", "b")},
        "rows": [rank["rows"] for rank in report["ranks"]],
        "scores": [rank["scores"] for rank in report["ranks"]],
        "sent": [
            [rank["sent"][way]["predicted"] for way in ("forward", "backward")]
            for rank in report["ranks"]
        ],
    }


def ring_runs(build, jobs=2):
    cases = list(itertools.product(VARIANTS, RANKS, (False, True)))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda case: predicted(build, *case), cases))
