"""Step 14 on the page: which rank meets which keys in which hop.

Its data are what `mpirun -n R 14_ring --predict --json` says: rows and scores of each rank.
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

JOBS = 2  # programs at once
SHAPE = ("--n=1024", "--h=4", "--d=64")


def predicted(build, variant, ranks, causal):
    """What the page holds of one run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        call = ["mpirun", "-n", str(ranks), program_of(build, "14_ring"), *SHAPE, "--predict"]
        call += [f"--variant={variant}", *["--causal"] * causal, f"--json={path}"]
        try:
            done = subprocess.run(call, capture_output=True, text=True, env=environment(folder))
        except OSError as error:
            raise NotHere(f"mpirun: {error.strerror}; ./scripts/setup.sh mpi installs it") from None
        if done.returncode:
            raise Failure(f"{' '.join(call)}: {(done.stderr or done.stdout).strip()}")
        report = read_json(path)
    return {
        "variant": variant,
        "idea": report["variant_idea"],
        "run": {"n": ranks, "causal": causal, "smem": 0},
        "ranks": ranks,
        "causal": causal,
        "n": report["problem"]["n"],
        "rows": [rank["rows"] for rank in report["ranks"]],
        # By hop, of which each is a rank further round the ring.
        "scores": [rank["scores"] for rank in report["ranks"]],
    }


def ring_runs(build):
    """{name of a run: its content}"""
    cases = list(itertools.product(("plain", "zigzag"), (2, 4, 8), (False, True)))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        runs = pool.map(lambda case: predicted(build, *case), cases)
        return {
            f"{variant}-r{ranks}" + "-causal" * causal: run
            for (variant, ranks, causal), run in zip(cases, runs)
        }
