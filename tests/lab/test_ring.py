"""maintain ring without a GPU: a mpirun and a program that only pretend."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from basis import ROOT
from flash_steps import commits, mpi
from flash_steps.command import BadInput
from lab import ring_picture, tables

# Starts one process and tells it how many ranks there would be.
MPIRUN = """#!/bin/sh
export RANKS=$2
shift 2
exec "$@"
"""
# Says when it is asked to end, after it has ended its rank.
SLOW_MPIRUN = """#!/bin/sh
sleep 60 &
trap 'kill $!; echo ended >> "$0.log"; exit 1' TERM
wait
"""
# Two GPUs take 1/1.6 of the time of one, with --causal 1/1.9; 8K tokens of `heads` fail.
PROGRAM = r"""#!{python}
import json, os, sys
flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
ranks = int(os.environ["RANKS"])
with open(__file__ + ".log", "a") as log:
    blocks = os.environ.get("NCCL_MAX_CTAS", "")
    log.write(" ".join([str(ranks), blocks, *sys.argv[1:-1]]) + "\n")
small = flags["n"] == "2048"
if flags["variant"] == "heads" and "--causal" in sys.argv and ranks == 2 and not small:
    sys.exit("a pretended failure")
ms = int(flags["n"]) ** 2 * 1e-8 / (1 if ranks == 1 else 1.9 if "--causal" in sys.argv else 1.6)
way = {{"predicted": 1000, "counted": 1000}}
lane = {{"name": "forward, hop 0", "begin_ms": 0}}
lanes = [{{"lane": "compute", **lane, "end_ms": 4}}, {{"lane": "messages", **lane, "end_ms": 2}}]
overlap = {{"compute_ms": 4, "messages_ms": 2, "both_ms": 1.5, "total_ms": 4.5}}
rank = {{"sent": {{"forward": way, "backward": way}}, "memory_bytes": 3e9, "workspace_bytes": 1e9}}
run = {{"carrier": "nothing", "time": {{"median_ms": ms}}}}
run["gradients_checked"] = small
run["forward_and_backward"] = {{"median_ms": 3 * ms}}
run["ranks"] = [{{**rank, "overlap": overlap, "lanes": lanes}}] * ranks
with open(flags["json"], "w") as out:
    json.dump(run, out)
"""


SMI = """#!/bin/sh
echo "${DEVICE-NVIDIA H200}"
"""


class Ring(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.program = os.path.join(self.folder, "steps", "14_ring")
        self.mpirun = os.path.join(self.folder, "mpirun")
        os.makedirs(os.path.dirname(self.program))
        smi = os.path.join(self.folder, "nvidia-smi")
        for path, text in ((self.mpirun, MPIRUN), (self.program, PROGRAM), (smi, SMI)):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.format(python=sys.executable) if path == self.program else text)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        self.json = os.path.join(self.folder, "ring_h200.json")

    def maintain(self, *options, json=True, **environment):
        line = ["./scripts/maintain", "ring", "--build", self.folder, "--mpirun", self.mpirun]
        line += ["--json", self.json][: 2 * json] + [*options]
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", **environment}
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=env)

    def result(self):
        with open(self.json, encoding="utf-8") as file:
            return json.load(file)

    def test_shares_turns_and_a_failure(self):
        done = self.maintain("--turns", "2")
        self.assertEqual(done.returncode, 1, done.stderr)
        result = self.result()
        self.assertEqual(len(result["failures"]), 1)
        self.assertIn("a pretended failure", result["failures"][0])
        self.assertIn("FAILED:", done.stdout)
        self.assertEqual(result["left_out"], [])
        shares = [row for row in result["rows"] if row["what"] == "share"]
        self.assertEqual(len(shares), 8)
        for row in shares:
            share = 0.95 if row["causal"] else 0.8
            self.assertAlmostEqual(row["forward"]["share"], share, 4)
            self.assertAlmostEqual(row["both"]["least"], share, 4)
            self.assertEqual((len(row["turns"]), row["sent"]), (2, [2000, 2000]))
            self.assertEqual(row["commit"], commits.here())
        long = [row for row in result["rows"] if row["what"] == "long"]
        self.assertEqual([(row["n"], row["bytes_each"]) for row in long], [(1048576, 4e9)])
        self.assertEqual(len(result["lanes"]["ranks"]), 2)
        with open(self.program + ".log", encoding="utf-8") as log:
            calls = [line.split(" ") for line in log]
        # The order of one GPU and all turns round.
        of_16k = [call[0] for call in calls if "--n=32768" in call and "--causal\n" not in call]
        self.assertIn("1", of_16k)
        blocks = [call[1] for call in calls if call[1]]
        self.assertEqual(blocks, ["4", "4", "16"])  # the first one for its gradients

    def test_the_time_is_up(self):
        done = self.maintain("--budget", "0")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.result()["rows"], [])
        self.assertIn("Left out, there was no time: gradients: fused", done.stdout)
        self.assertEqual(len(set(self.result()["left_out"])), len(self.result()["left_out"]))

    def test_nothing_is_measured(self):
        done = self.maintain("--turns", "1", "--mpirun", "false")
        self.assertEqual((done.returncode, "None" in done.stdout), (1, False), done.stderr)
        self.assertIn("FAILED: false -n 2", done.stdout)
        done = self.maintain(json=False, DEVICE="Pretended GPU")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("'Pretended GPU' is not in common/data/gpus.json: name the", done.stderr)

    def test_a_call_continues(self):
        self.maintain("--turns", "1")
        first = self.result()
        os.remove(self.program + ".log")
        self.maintain("--turns", "1")
        with open(self.program + ".log", encoding="utf-8") as log:
            calls = log.read().splitlines()
        self.assertEqual(len(calls), 3, calls)  # of what had failed
        self.assertEqual(self.result()["rows"], first["rows"])
        self.maintain("--turns", "2")
        turns = {len(row["turns"]) for row in self.result()["rows"] if row["what"] == "share"}
        self.assertEqual(turns, {2})

    def test_mpirun_is_asked_to_end(self):
        with open(self.mpirun, "w", encoding="utf-8") as file:
            file.write(SLOW_MPIRUN)
        begin = time.monotonic()
        self.assertEqual(mpi.run([self.mpirun], os.environ, 0.5), (None, ""))
        with open(self.mpirun + ".log", encoding="utf-8") as log:
            self.assertEqual(log.read(), "ended\n")
        with mock.patch.object(mpi, "END_LIMIT", 0.5):
            line = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
            self.assertEqual(mpi.run(line, os.environ, 0.5)[0], None)
        self.assertLess(time.monotonic() - begin, 10)

    def test_tables(self):
        self.maintain("--turns", "1")
        results = tables.Results(self.folder)

        def table(spec):
            return tables.table(f"ring {spec}", results)

        for spec, cell in (
            ("what=share", "| 8K | causal | 32 |"),
            ("what=share", "| 95.0% |"),
            ("what=share", "| 75.0% |"),  # of the messages
            ("what=variants", "| zigzag | causal | 16K |"),
            ("what=nccl", "| nothing |"),
            ("what=hop", "| 8K | causal | 671 us | 819 |"),
            ("what=long", "| 4.00 GB |"),
            ("what=facts", "2 x NVIDIA H200, nothing; medians of 20 batches"),
        ):
            self.assertIn(cell, table(spec))
        for spec in ("what=share n=7", "what=speed"):
            with self.assertRaises(BadInput):
                table(spec)
        results.of["ring"] = []
        self.assertIn("Not measured yet: run `./scripts/maintain ring`", table("what=share"))

    def test_the_picture(self):
        done = self.maintain("--check")
        self.assertEqual((done.returncode, done.stderr), (0, ""))  # it is that of docs/results
        self.maintain("--turns", "1")
        svg = ring_picture.draw(self.result()["lanes"], "NVIDIA H200")
        self.assertIn("fused on 2 x NVIDIA H200", svg)
        self.assertEqual(svg.count("<title>forward, hop 0</title>"), 4)  # two ranks, two lanes

    def test_bad_use(self):
        for options, words in (
            (("--ranks", "1"), "--ranks: must be at least 2"),
            (("--mpirun", "no_such_mpirun"), "setup.sh mpi"),
            (("--build", "/nowhere"), "is not built"),
        ):
            done = self.maintain(*options)
            self.assertIn(done.returncode, (2, 3))
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=["test"])
