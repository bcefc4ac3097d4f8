"""mpirun, for programs on several simulated ranks."""

import os
import shutil
import subprocess
import tempfile

from .files import read_json

END_LIMIT = 10  # seconds from SIGTERM to SIGKILL


def environment(folder):
    """The environment of one mpirun. By default Open MPI refuses root, and more ranks than cores,
    and gives two ranks one core each; two mpiruns at once need separate folders for their files."""
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # from Open MPI 5 on
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "TMPDIR": folder,
    }


def run(line, env, limit):
    """(exit status, output) of a line that starts with mpirun. After `limit` seconds the status is
    None, and mpirun gets SIGTERM, which ends its ranks; SIGKILL would leave them."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(line, env=env, **how) as process:
        try:
            said, _ = process.communicate(timeout=limit)
            return process.returncode, said
        except subprocess.TimeoutExpired:
            process.terminate()
        try:
            process.communicate(timeout=END_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
    return None, ""


def report(line, limit=None, **more):
    """(exit status, output, JSON or None) of a step's program, with the environment `more`."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        status, said = run([*line, f"--json={path}"], {**environment(folder), **more}, limit)
        return status, said, read_json(path) if os.path.exists(path) else None


def has_mpi(program):
    """Is mpirun installed, and was the program built with MPI?"""
    call = ["mpirun", "-n", "2", program, "--version"]
    if not shutil.which("mpirun"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        return not subprocess.run(call, capture_output=True, env=environment(folder)).returncode
