"""Messages by way of the host's memory, between processes whose GPU is fake_gpu's. Skipped without
mpirun or MPI. The rest of copy_world.cpp needs GPUs."""

import re
import shutil
import tempfile
import unittest

from copies import BUILD, ROOT, Folder, fake_gpu_compiler, main, said
from flash_steps import mpi

RANKS = ROOT / "common" / "ranks"


def mpi_flags():
    """Of g++, as CMake found them."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    found = dict(re.findall(r"^(MPI_\w+?):\w+=(.*)$", cache, re.M))
    folders = found.get("MPI_CXX_COMPILER_INCLUDE_DIRS", "").split(";")
    names = [n for n in found.get("MPI_CXX_LIB_NAMES", "").split(";") if n]
    libraries = [found[f"MPI_{name}_LIBRARY"] for name in names]
    return [f"-I{folder}" for folder in folders if folder], libraries


class Messages(Folder):
    def test_each_rank_receives_what_its_neighbour_sent(self):
        flags, libraries = mpi_flags()
        if not libraries or not shutil.which("mpirun"):
            print("NOT RUN: messages by way of the host: no mpirun here, or no MPI", flush=True)
            raise unittest.SkipTest("no MPI")
        names = ("copy_world", "gpu_world", "mpi_world", "devices")
        sources = [*(RANKS / f"{name}.cpp" for name in names)]
        sources += [ROOT / "tests/programs/fake_gpu/messages.cpp"]
        program = self.folder / "messages"
        how = ["-include", "several.h", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
        self.ended(said([*fake_gpu_compiler(), *how, *flags, *sources, *libraries, "-o", program]))
        for ranks in (2, 3):
            environment = mpi.environment(tempfile.gettempdir())
            self.ended(said(["mpirun", "-n", ranks, program], timeout=60, env=environment))


main()
