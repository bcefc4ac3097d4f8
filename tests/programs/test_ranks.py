"""Step 14 on simulated ranks: results, bytes, failures. Skipped without mpirun or MPI."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from copies import BUILD, Folder, for_all, main, said
from flash_steps import mpi

PROGRAM = BUILD / "steps" / "14_ring"

MPIRUN = shutil.which("mpirun")
ENVIRONMENT = mpi.environment(tempfile.gettempdir())


def command(ranks, *args):
    return [MPIRUN, "-n", str(ranks), str(PROGRAM), *map(str, args)]


def run(ranks, *args, **environment):
    return run_command(command(ranks, *args), **environment)


def run_command(line, **environment):
    return said(line, timeout=300, env={**ENVIRONMENT, **environment})


def setUpModule():
    if not mpi.has_mpi(PROGRAM):
        missing = "no mpirun here, or a program without MPI"
        print(f"NOT RUN: step 14 on several ranks: {missing}", flush=True)
        raise unittest.SkipTest(missing)


def sentences(stderr):
    """The program's sentences. Open MPI 5 ends its texts with a NUL, which may precede one."""
    return [line for line in stderr.replace("\0", "").split("\n") if line.startswith("14_ring: ")]


def runs(pid):
    """Is the rank still running?"""
    try:
        return os.readlink(f"/proc/{pid}/exe") == str(PROGRAM)
    except OSError:
        return False


def ranks_of(mpirun):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == mpirun.pid and runs(folder.name):
            found.append(int(folder.name))
    return sorted(found)


class Case(Folder):
    def report(self, ranks, *args):
        path = self.folder / "report.json"
        self.ended(run(ranks, *args, "--json", path))
        return json.loads(path.read_text("utf-8"))

    def refused(self, done, status, *words):
        """The program's one sentence, and its status; mpirun prints more."""
        done.stderr = "\n".join(sentences(done.stderr))
        super().refused(done, status, *words)


class Refused(Case):
    def test_ranks_with_unequal_shapes(self):
        # Not "mpirun -n 2 ... : -n 1 ...", which crashes Debian 13's mpirun.
        shell = f"exec '{PROGRAM}' --n $((OMPI_COMM_WORLD_RANK == 2 ? 128 : 64))"
        done = run_command([MPIRUN, "-n", "3", "sh", "-c", shell])
        self.refused(done, 2, "rank 2", "--n 128", "--n 64")

    def test_more_ranks_than_gpus(self):
        done = run(3, "--n", 64, FLASH_STEPS_SIM_GPUS="2")
        self.refused(done, 3, "3 ranks", "2 GPUs", "build/sim/steps/14_ring")
        self.ended(run(2, "--n", 64, "--predict", FLASH_STEPS_SIM_GPUS="2"))


@for_all
class Ranks(Case):
    def test_right_through_mpi(self):
        """Once per variant; ranks that are threads have all shapes (steps/14_ring/test.cu)."""
        small = ("--n", 101, "--h", 2, "--hkv", 1)
        causal = ("--n", 192, "--h", 2, "--hkv", 2, "--causal")
        # With 3 ranks late rows begin a tile of 128 rows, and fused reads them in place.
        longer = ("--n", 770, "--h", 2, "--hkv", 1, "--d", 128, "--causal")
        for variant, ranks, shape in (
            ("mma", 2, small),
            ("plain", 8, small),
            ("zigzag", 1, small),
            ("zigzag", 8, causal),
            ("fused", 3, longer),
            ("fused", 4, causal),
            ("heads", 2, causal),
            ("fp32", 3, causal),
        ):
            with self.subTest(variant=variant, ranks=ranks, shape=shape):
                report = self.report(ranks, *shape, "--variant", variant)
                self.assertTrue(report["ok"])
                checked = [c["tensor"] for c in report["check"]]
                self.assertEqual(checked, ["O", "LSE", "dQ", "dK", "dV"])
                for rank in report["ranks"]:
                    for sent in rank["sent"].values():
                        self.assertEqual(sent["counted"], sent["predicted"])
                if variant == "fp32":
                    self.assertLess(max(c["rmse"] for c in report["check"]), 1e-6)
                if variant == "heads":
                    scores = {sum(rank["scores"]) for rank in report["ranks"]}
                    self.assertEqual(len(scores), 1)

    def test_error_does_not_grow_with_the_ranks(self):
        error = {}
        for ranks in (2, 4, 8):
            report = self.report(ranks, "--n", 512, "--h", 1, "--input", "normal")
            error[ranks] = {c["tensor"]: c["rmse"] for c in report["check"]}
        for tensor in ("O", "dQ", "dK", "dV"):
            self.assertLess(error[8][tensor], 1.25 * error[2][tensor], (tensor, error))

    def test_what_ranks_send_and_request(self):
        """What each cut sends and computes: docs/claims.md, steps/14_ring/test.cu."""
        plain, zigzag, fused = (
            self.report(4, "--n", 512, "--h", 1, "--d", 128, "--causal", "--variant", variant)
            for variant in ("plain", "zigzag", "fused")
        )
        for p, z, f in zip(*(report["ranks"] for report in (plain, zigzag, fused))):
            self.assertEqual(p["sent"], z["sent"])
            self.assertEqual(f["sent"], z["sent"])
            self.assertEqual(f["scores"], z["scores"])
            self.assertLess(f["requested"]["forward"], 0.85 * z["requested"]["forward"])
            self.assertLess(f["workspace_bytes"], z["workspace_bytes"])
        least, most = (
            [
                f(rank["requested"]["forward"] for rank in report["ranks"])
                for report in (plain, zigzag)
            ]
            for f in (min, max)
        )
        self.assertGreater(most[0], 5 * least[0])
        self.assertLess(most[1], 2 * least[1])

    def test_same_bits_in_each_run_and_the_written_output(self):
        args = ("--n", 150, "--causal", "--h", 2)
        outputs = [self.folder / name for name in ("a.npy", "b.npy")]
        for path in outputs:
            self.report(3, *args, "--out", path)
        self.assertEqual(*(path.read_bytes() for path in outputs))
        self.assertEqual(self.report(2, *args, "--analyse")["findings"], [])

    def test_predict_runs_nothing(self):
        done = self.ended(run(8, "--n", 1 << 20, "--causal", "--predict", "--details"))
        self.assertIn("rows per rank", done.stdout)
        self.assertIn("0-65535, 983040-1048575", done.stdout)

    # --- failures ---

    def test_one_sentence_for_bad_use(self):
        self.refused(run(4, "--n", 7), 2, "--n 7", "at least 8 rows")
        self.refused(run(3, "--n", 64, "--variant", "heads"), 2, "--hkv 4", "multiple of 3")
        self.refused(run(3, "--n", 64, "--variant", "fp32"), 2, "--n 64", "a multiple of 3")
        self.refused(run(2, "--n", 64, "--trace", self.folder / "t.json"), 2, "--trace", "one rank")
        self.refused(run(2, "--no-such-flag"), 2, "--no-such-flag")
        self.refused(run(2, "--json", "/nowhere/x.json"), 2, "--json /nowhere/x.json")

    def test_a_gpu_without_wgmma_runs_the_older_kernels(self):
        report = self.report(2, "--n", 64, "--gpu", "A100", "--causal")
        self.assertEqual((report["variant"], report["model_gpu"]), ("mma", "A100"))
        done = run(2, "--n", 64, "--gpu", "A100", "--variant", "zigzag")
        self.refused(done, 2, "--gpu A100: variant zigzag needs sm_90a, and this GPU is sm_80")

    def started(self, ranks, *args):
        """A run that takes long once it computes."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        line = command(ranks, "--n", 4096, "--h", 4, *args)
        mpirun = subprocess.Popen(line, env=ENVIRONMENT, **pipes)
        self.addCleanup(mpirun.kill)
        deadline = time.monotonic() + 60
        while len(ranks_of(mpirun)) < ranks and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(3)
        running = ranks_of(mpirun)
        self.assertEqual(len(running), ranks)
        return mpirun, running

    def nothing_left(self, running):
        deadline = time.monotonic() + 10
        while any(map(runs, running)) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertEqual([pid for pid in running if runs(pid)], [])

    def test_a_rank_that_is_killed(self):
        mpirun, running = self.started(3)
        os.kill(running[1], signal.SIGKILL)
        _, stderr = mpirun.communicate(timeout=60)
        self.assertNotEqual(mpirun.returncode, 0)
        self.assertIn("signal 9", stderr)  # mpirun's own sentence: it saw the signal
        self.nothing_left(running)

    def test_a_rank_that_hangs(self):
        mpirun, running = self.started(3, "--limit", 2)
        os.kill(running[1], signal.SIGSTOP)
        _, stderr = mpirun.communicate(timeout=120)
        self.assertNotEqual(mpirun.returncode, 0)
        said = sentences(stderr)  # both of the others wait; the second may end before it says so
        self.assertTrue(said)
        for words in said:
            self.assertIn("has waited 2 s for another rank", words)
        self.nothing_left(running)


if __name__ == "__main__":
    main()
