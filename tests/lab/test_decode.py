"""maintain decode without a GPU: with stubs of libraries, a program and PyTorch."""

import contextlib
import io
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

from basis import main, write
from flash_steps import commits
from flash_steps.command import BadInput, NotHere
from flash_steps.files import read_json, read_text, write_text
from lab import decode, estimates, peers, tables, torch_attention
from test_peers import FORWARD, GOOD, REFUSALS, PretendedTorch, compiled, described

STEPS = {
    "07_tensor_cores": ("mma", "lazy"),
    "13_decode": ("warps", "splits", "groups", "pages", "once", "early", "wgmma", "fp8"),
}
# In sh: hundreds of runs. Says how it was called, and a time: pages cost 1%, ragged lengths 50%,
# 8 bits take half.
PROGRAM = """#!/bin/sh
echo "$*" >> "$0.log"
ms=2
for word; do
  case $word in --*=*) export "${word#--}" ;; esac
done
if [ "$page$b" = 6432 ]; then
  echo 'a pretended failure' >&2
  exit 1
fi
IFS=,
for length in $lengths; do
  [ ${#length} = ${first=${#length}} ] || ms=3
done
[ ! $page ] || ms=2.02
[ $variant != fp8 ] || ms=1
problem='{"b": 1, "h": 1, "hkv": 1, "n": 1, "nk": 1, "d": 1, "causal": false, "dtype": "bf16"}'
echo '{"step": "13_decode", "variant": "'$variant'", "ok": true, "problem": '"$problem"',
  "time": {"median_ms": '$ms'}}' > "$json"
"""
MS = {"matmul": 1, "07 lazy": 9, "13 warps": 8, "13 splits": 4, "13 groups": 2, "13 once": 1}
MS |= {
    "13 early": 0.8,
    "13 wgmma": 0.7,
    "kernel": 0.002,
    "torch math": 6,
    "torch flash": 3,
    "copy": 0.5,
}
COPY_RATE = 4e12
NO_EFFICIENT = {"efficient": REFUSALS["flash"], "cudnn": REFUSALS["cudnn"]}


class Decode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.build = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.json = os.path.join(cls.build, "decode_h200.json")
        steps = os.path.join(cls.build, "steps")
        os.makedirs(steps)
        for step, names in STEPS.items():
            most = names.index("fp8") if "fp8" in names else len(names)
            about = described(step, [(name, "bf16", FORWARD) for name in names])
            compiled(steps, step, about, most=most)
        cls.program = os.path.join(steps, "13_decode")
        write_text(cls.program, PROGRAM)
        os.chmod(cls.program, 0o755)
        # Everything, for most tests: it runs a hundred programs, and one problem fails.
        cls.text, cls.result = cls.measure(status=1)
        cls.written = read_text(cls.json)
        cls.calls = read_text(cls.program + ".log").splitlines()
        cls.all_turns = cls.turns

    def setUp(self):
        write_text(self.json, self.written)

    @classmethod
    def measure(cls, status=0, named=True):
        """The output and the result; `turns` are the labels of each comparison."""
        cls.turns = []

        def take_turns(clock, contenders, rounds, iters):
            cls.turns.append([c.label for c in contenders])
            found = {}
            for c in contenders:
                with c.context():
                    c.run()
                size = re.fullmatch(r"copy (\d+)", c.label)
                ms = 2e3 * int(size[1]) / COPY_RATE if size else MS[c.label]
                found[c.label] = {"ms": ms, "runs": rounds * iters, "late": 0}
            return found

        argv = ["decode", "--build", cls.build, *["--json", cls.json][: 2 * named]]
        out = io.StringIO()
        with (
            mock.patch.dict(sys.modules, PretendedTorch(NO_EFFICIENT).modules),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(peers.Torch, "truth"),
            mock.patch.object(torch_attention.Clock, "take_turns", take_turns),
            mock.patch.object(peers.Torch, "errors", return_value=GOOD),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            assert decode.main() == status, out.getvalue()
        return " ".join(out.getvalue().split()), read_json(cls.json)

    def rows(self, what, result=None, **keys):
        rows = [row for row in (result or self.result)["rows"] if row["what"] == what]
        return [row for row in rows if all(row[key] == value for key, value in keys.items())]

    def test_shares_and_ratios(self):
        result = self.result
        self.assertEqual((result["copy"]["bytes_per_s"], result["floor_ms"]), (COPY_RATE, 0.002))
        (once,) = self.rows("peers", b=1, nk=16384, variant="once")
        size = 2 * 2 * 8 * 128 * 16384 + 2 * 2 * 32 * 128  # K and V, Q and O, in bf16
        self.assertEqual(once["bytes"], size)
        # 20 problems, without those that are too large for the card, or for a program.
        self.assertEqual((len(self.rows("peers", variant="once")), len(self.rows("fp8"))), (17, 28))
        self.assertAlmostEqual(once["of_copy"], size / 1e-3 / COPY_RATE, places=5)
        self.assertEqual(once["commit"], commits.here())
        self.assertEqual((once["ratios"]["flash"], once["ratios"]["copy"]), (3, 0.5))
        for words in ("3.00x (flash)", "9.00x", "smallest kernel takes 2 us"):
            self.assertIn(words, self.text)

    def test_all_take_the_same_turns(self):
        ours = ["07 lazy", "13 warps", "13 splits", "13 groups", "13 once", "13 early", "13 wgmma"]
        torch = ["torch math", "torch flash", "copy"]
        # Causal: PyTorch's mask differs.
        pair = ["13 once", "13 early", "13 wgmma"]
        for turn in (ours + torch, ["13 splits", *pair, *torch], [*pair, "copy"]):
            self.assertIn(turn, self.all_turns)

    def test_pages_lengths_and_8_bits_run_through_the_program(self):
        for call in self.calls:
            for word in ("--input=normal", "--no-counters", "--iters=50", "--n=1", "--d=128"):
                self.assertIn(word, call.split())
        (page,) = self.rows("pages", b=1, nk=4096, page=16)
        self.assertAlmostEqual(page["ratios"]["none"], 1 / 1.01, places=5)
        self.assertEqual(len(page["each_ms"]), 3)
        of_4k = [call for call in self.calls if "--nk=4096 " in call + " " and "--b=1 " in call]
        paged = [re.findall(r"--page=(\d+)", call) for call in of_4k if "variant=once" in call]
        pages = [["16"], ["64"], ["256"]]  # in both orders in turn
        self.assertEqual(paged[-12:], [[], *pages, *pages[::-1], [], [], *pages])
        (fp8,) = self.rows("fp8", b=1, nk=4096, variant="fp8")
        self.assertEqual((fp8["ratios"], len(fp8["each_ms"])), ({"once": 2}, 3))
        self.assertEqual(fp8["bytes"], 2 * 8 * 128 * 4096 + 2 * 2 * 32 * 128)
        ragged = self.rows("ragged")
        self.assertEqual(len(ragged), 6)
        for equal, uneven in zip(ragged[::2], ragged[1::2]):
            self.assertEqual(sum(equal["lengths"]), sum(uneven["lengths"]))
            self.assertLessEqual(max(equal["lengths"]) - min(equal["lengths"]), 1)
            self.assertEqual(len(equal["lengths"]), uneven["b"])
            self.assertEqual(equal["bytes"], uneven["bytes"])

    def test_a_failure_costs_only_its_problem(self):
        (failure,) = self.result["failures"]
        self.assertIn("a pretended failure", failure)
        self.assertEqual(len([text for text in self.result["done"] if "pages" in text]), 4)
        self.assertEqual(self.rows("pages", b=32), [])
        self.assertTrue(self.rows("ragged"))
        self.assertIn("FAILED:", self.text)

    def test_where_it_cannot_begin(self):
        with mock.patch.object(sys, "argv", ["decode", "--build", "/nowhere"]):
            with self.assertRaisesRegex(NotHere, "13_decode is not built"):
                decode.main()
        with self.assertRaisesRegex(BadInput, "name the file with --json"):
            self.measure(named=False)
        self.assertEqual(self.turns, [])

    # --- the pages ---

    def table(self, spec):
        text = f"<!-- table: decode {spec} -->\n<!-- /table -->"
        return tables.fill(text, tables.Results(self.build))

    def test_what_is_no_table(self):
        for spec, words in (
            ("what=nothing", "choose from peers, variants"),
            ("what=peers b=77", "no result passes"),
            ("what=peers colour=red", "table filter 'colour'"),
        ):
            with self.assertRaisesRegex(BadInput, words):
                self.table(spec)
        rows = [{**r, "commit": r["commit"] and None} for r in self.result["rows"]]
        write(self.json, {**self.result, "rows": rows})
        other = write(os.path.join(self.build, "decode_a100.json"), {**self.result, "device": "A"})
        self.addCleanup(os.remove, other)  # the last one's is shown
        self.assertIn("| Pretended GPU, PyTorch 2.99 |", self.table("what=card"))
        older = "*Of an earlier version of the kernel: 07 lazy, 13 "
        self.assertIn(older, self.table("what=peers"))

    def test_estimates_take_the_short_caches(self):
        """For the clock: all heads are simulated, since the splits depend on them."""
        write(self.json, {**self.result, "device": "NVIDIA H200"})
        with mock.patch.object(estimates, "RESULTS", self.build):
            times = estimates.measured_times()
        key = ("H200", "13_decode", "once", "forward", 1, 32, 1, 128, False, 8, 4096)
        self.assertEqual(times[key], 1)
        sizes = [dict(zip(estimates.SIZES, key[4:])) for key in times if key[1] == "13_decode"]
        wanted = {(p["b"], p["nk"]) for p in sizes if estimates.is_wanted(p)}
        short = {(1, 1024 << i) for i in (0, 2, 4, 6)} | {(8, 1024), (8, 4096), (32, 1024)}
        self.assertEqual(wanted, short)


if __name__ == "__main__":
    main()
