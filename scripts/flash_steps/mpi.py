"""mpirun, for what runs on several simulated ranks."""

import os
import shutil
import subprocess
import tempfile


def environment(folder):
    """Of one mpirun. Open MPI refuses root, and more ranks than cores, unless it is told otherwise;
    two that run at a time need a folder each for their files."""
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # from Open MPI 5 on
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "TMPDIR": folder,
    }


def has_mpi(program):
    """Whether mpirun is here and the program was built with MPI."""
    call = ["mpirun", "-n", "2", program, "--version"]
    if not shutil.which("mpirun"):
        return False
    with tempfile.TemporaryDirectory() as folder:
        return not subprocess.run(call, capture_output=True, env=environment(folder)).returncode
