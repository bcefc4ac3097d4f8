"""maintain ring without a GPU: with stubs of mpirun and of the program."""

import argparse
import json
import os
from unittest import mock

from basis import Folder, for_all, main, typed
from flash_steps import commits
from flash_steps.command import BadInput
from flash_steps.files import read_text
from lab import ring, ring_picture, tables

# Starts one process, with the number of ranks in its environment.
MPIRUN = """#!/bin/sh
export RANKS=$2
shift 2
exec "$@"
"""
# Two GPUs take 1/1.6 of the time of the slower one, with --causal 1/1.9; 8K tokens of `heads` fail.
PROGRAM = """#!/bin/sh
for word; do
  case $word in
  --causal) causal=yes ;;
  --json=*) json=${word#*=} ;;
  --*=*) export "${word#--}" ;;
  esac
done
call=$*
echo "$RANKS $NCCL_MAX_CTAS ${call% *}" >> "$0.log"
checked=false speed=${causal:+19}
[ $n != 2048 ] || checked=true
if [ $variant$causal$RANKS$checked = headsyes2false ]; then
  echo 'a pretended failure' >&2
  exit 1
fi
us=$((n / 1024 * n / 1024 * 10485760 / 1000))
[ "$CUDA_VISIBLE_DEVICES" != 1 ] || us=$((us * 9 / 10))
[ $RANKS = 1 ] || us=$((us * 10 / ${speed:-16}))
lane='"name": "forward, hop 0", "begin_ms": 0'
way='{"predicted": 1000, "counted": 1000}'
lanes='[{"lane": "compute", '$lane', "end_ms": 4}, {"lane": "messages", '$lane', "end_ms": 2}]'
overlap='{"compute_ms": 4, "messages_ms": 2, "both_ms": 1.5, "total_ms": 4.5}'
rank='{"sent": {"forward": '$way', "backward": '$way'}, "memory_bytes": 3e9,
  "workspace_bytes": 1e9, "overlap": '$overlap', "lanes": '$lanes'}'
[ $RANKS = 1 ] || rank="$rank, $rank"
echo '{"carrier": "nothing", "time": {"median_ms": '${us}'e-3}, "gradients_checked": '$checked',
 "forward_and_backward": {"median_ms": '$((3 * us))'e-3}, "ranks": ['"$rank"']}' > "$json"
"""
SMI = """#!/bin/sh
echo "${DEVICE-NVIDIA H200}"
"""


class Ring(Folder):
    def setUp(self):
        super().setUp()
        self.mpirun = self.program("mpirun", MPIRUN)
        self.ring = self.program("steps/14_ring", PROGRAM)
        self.program("nvidia-smi", SMI)
        self.json = self.folder / "ring_h200.json"

    def maintain(self, *options, json=True, **environment):
        words = ["--build", self.folder, "--mpirun", self.mpirun]
        words += ["--json", self.json][: 2 * json]
        environment["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, environment):
            return typed("maintain", "ring", *words, *options)

    def calls(self):
        return (self.folder / "steps/14_ring.log").read_text().splitlines()

    def result(self):
        return json.loads(self.json.read_text())

    def rows(self, what):
        return [row for row in self.result()["rows"] if row["what"] == what]

    def test_shares_turns_and_a_failure(self):
        done = self.ended(self.maintain("--turns", "2"), 1)
        result = self.result()
        self.assertEqual((len(result["failures"]), result["left_out"]), (1, []))
        self.assertIn("a pretended failure", result["failures"][0])
        self.assertIn("FAILED:", done.stdout)
        shares = self.rows("share")
        self.assertEqual(len(shares), 8)
        for row in shares:
            share = 0.95 if row["causal"] else 0.8
            self.assertAlmostEqual(row["forward"]["share"], share, 4)
            self.assertAlmostEqual(row["both"]["least"], share, 4)
            self.assertEqual((len(row["turns"]), row["sent"]), (2, [2000, 2000]))
            self.assertEqual(row["commit"], commits.here())
        self.assertEqual([(r["n"], r["bytes_each"]) for r in self.rows("long")], [(1048576, 4e9)])
        self.assertEqual(len(result["lanes"]["ranks"]), 2)
        calls = [line.split(" ") for line in self.calls()]
        alone = [call[0] for call in calls if "--n=32768" in call]
        self.assertIn("1", alone)
        blocks = [call[1] for call in calls if call[1]]
        self.assertEqual(blocks, ["4", "4", "16"])  # the first one for its gradients
        self.tables_and_the_picture()

    @for_all
    def test_a_call_continues_and_says_what_there_was_no_time_for(self):
        self.maintain("--turns", "1")
        first = self.result()
        (self.folder / "steps/14_ring.log").unlink()
        self.maintain("--turns", "1")
        self.assertEqual(len(self.calls()), 3)  # of the failed runs
        for key in ("rows", "lanes", "carrier"):
            self.assertEqual(self.result()[key], first[key])
        self.maintain("--turns", "2")
        self.assertEqual({len(row["turns"]) for row in self.rows("share")}, {2})
        self.json.unlink()
        done = self.maintain("--budget", "0")
        self.assertEqual((done.returncode, self.result()["rows"]), (1, []))
        self.assertIn("Left out, there was no time: gradients: fused", done.stdout)

    def tables_and_the_picture(self):
        results = tables.Results(self.folder)
        for what, words in (
            (
                "share",
                "| 32K | full | 16 | 26.8 s | 80.0% | 80.5 s | 80.0% | 2 | 80.0% | 80.0% | 75.0",
            ),
            ("hop", "| 8K | full | 671 ms | 1.64 | 2.01 s | 1.91 |"),
            ("card", "the GPUs differ by up to 11.1%"),
        ):
            self.assertIn(words, tables.value("table", f"ring what={what}", results)[0])
        for spec in ("what=share n=7", "what=speed"):
            with self.assertRaises(BadInput):
                tables.value("table", f"ring {spec}", results)
        svg = ring_picture.draw(self.result()["lanes"], "NVIDIA H200")
        self.assertIn("fused on 2 x NVIDIA H200", svg)
        self.assertEqual(svg.count("<title>forward, hop 0</title>"), 4)  # two ranks, two lanes

    def test_the_picture_is_of_these_results(self):
        self.assertEqual(ring.picture(), read_text(ring.PICTURE))

    def test_medians_and_the_least_of_turns(self):
        """The first turn begins with each GPU alone, the second with all. The slower GPU counts,
        and the last rank's messages."""
        ms = {"alone": [1.7, 1.9, 1.9, 1.8], "together": [1, 2]}
        calls = []

        def launched(ranks, variant, p, channels=None, **environment):
            calls.append(environment.get("CUDA_VISIBLE_DEVICES", "all"))
            time = ms["alone" if ranks == 1 else "together"].pop(0)
            rank = {"sent": dict.fromkeys(("forward", "backward"), {"counted": 5}), "lanes": []}
            of_ranks = [{**rank, "overlap": i, "memory_bytes": 9 - i} for i in range(2)]
            run = {"time": {"median_ms": time}, "forward_and_backward": {"median_ms": 4 * time}}
            return {
                **run,
                "carrier": "nothing",
                "ranks": [{**r, "workspace_bytes": 1} for r in of_ranks],
            }

        options = argparse.Namespace(ranks=2, turns=2, json=None, device="NVIDIA H200")
        with mock.patch.object(ring.RingMeasurement, "runs_on"):
            measurement = ring.RingMeasurement(options, "program")
        measurement.launched = launched
        p = ring.problem(8192, 2, True)
        for turn in range(2):
            (row,) = measurement.timed("share", "fused", p, turn=turn).rows()
            measurement.keep(row)
        self.assertEqual(
            (sorted(calls[:2]), calls[2:4], sorted(calls[4:])),
            (["0", "1"], ["all"] * 2, ["0", "1"]),
        )
        wanted = {"ms": 1.5, "one_ms": 1.9, "share": (0.95 + 0.475) / 2, "least": 0.475}
        for key, value in wanted.items():
            self.assertAlmostEqual(row["forward"][key], value, msg=key)
        self.assertAlmostEqual(row["both"]["ms"], 6)
        self.assertEqual((row["overlap"], row["sent"], row["bytes_each"]), (1, [10, 10], 10))

    def test_bad_use(self):
        for options, status, words in (
            (("--ranks", "1"), 2, "--ranks: must be at least 2"),
            (("--mpirun", "no_such_mpirun"), 3, "setup.sh mpi"),
            (("--build", "/nowhere"), 3, "is not built"),
        ):
            done = self.maintain(*options)
            self.assertEqual((done.returncode, words in done.stderr), (status, True), done.stderr)
        done = self.maintain("--turns", "1", "--mpirun", "false")
        self.assertEqual((done.returncode, "None" in done.stdout), (1, False), done.stderr)
        self.assertIn("FAILED: false -n 2", done.stdout)
        done = self.maintain(json=False, DEVICE="Pretended GPU")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("'Pretended GPU' is not in common/data/gpus.json: name the", done.stderr)


main()
