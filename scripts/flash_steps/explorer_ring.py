"""Step 14 on the page: which rank meets which keys in which hop.

Its data come from `mpirun -n R 14_ring --predict --json`: rows and scores of each rank.
"""

import concurrent.futures
import itertools

from . import mpi
from .command import Failure, NotHere
from .steps import program_of

JOBS = 2  # programs in parallel
SHAPE = ("--n=1024", "--h=4", "--d=64")


def predicted(build, variant, ranks, causal):
    call = ["mpirun", "-n", str(ranks), program_of(build, "14_ring"), *SHAPE, "--predict"]
    call += [f"--variant={variant}", *["--causal"] * causal]
    try:
        status, said, report = mpi.report(call)
    except OSError as error:
        raise NotHere(f"mpirun: {error.strerror}; ./scripts/setup.sh mpi installs it") from None
    if status:
        raise Failure(f"{' '.join(call)}: {said.strip()}")
    found = {"variant": variant, "idea": report["variant_idea"]}
    found["run"] = {"n": ranks, "causal": causal, "smem": 0}
    found |= {"ranks": ranks, "causal": causal, "n": report["problem"]["n"]}
    for key in ("rows", "scores"):  # scores by hop, each hop's from a rank further round the ring
        found[key] = [rank[key] for rank in report["ranks"]]
    return found


def ring_runs(build):
    """{name of a run: its content}"""
    cases = list(itertools.product(("plain", "zigzag"), (2, 4, 8), (False, True)))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        runs = pool.map(lambda case: predicted(build, *case), cases)
        return {
            f"{variant}-r{ranks}" + "-causal" * causal: run
            for (variant, ranks, causal), run in zip(cases, runs)
        }
