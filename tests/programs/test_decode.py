"""maintain decode without a GPU: libraries, a program and a PyTorch that only pretend."""

import contextlib
import copy
import io
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import test_peers
from flash_steps import (
    commits,
    decode,
    decode_tables,
    estimates,
    measurement,
    measurement_tables,
    peers,
    tables,
)
from flash_steps.command import BadInput, NotHere
from flash_steps.results import published
from test_peers import GOOD, REFUSALS, ROOT, PretendedTorch

STEPS = {
    "07_tensor_cores": ("mma", "lazy"),
    "13_decode": ("warps", "splits", "groups", "pages", "once", "fp8"),
}
# Refuses 7 keys, and does 13 keys wrong.
LIBRARY = r"""
#include <stdlib.h>
#include "common/harness/library/library.h"
const char* fa_describe(void) { return DESCRIPTION; }
const char* fa_last_error(void) { return "the pretended library says no"; }
int fa_check(const FaProblem* p) { return p->Nk == 7 ? 2 : 0; }
int fa_workspace_bytes(int v, const FaProblem* p, size_t* bytes) { *bytes = 0; return v - v; }
int fa_forward(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  return v >= MOST || p->N > 16 || t->O == NULL || t->dV != NULL || stream != (void*)0x77;
}
int fa_release(void) { return 0; }
int fa_malloc(void** p, size_t bytes) { return (*p = malloc(bytes)) == NULL; }
int fa_free(void* p) { free(p); return 0; }
int fa_upload(void* to, const void* from, size_t bytes) { return to == from; }
int fa_download(void* to, const void* from, size_t bytes) { return to == from; }
"""
# Says how it was called, and a time: pages cost 1%, ragged lengths 50%, 8 bits take half.
PROGRAM = r"""#!{python}
import json, sys
flags = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:] if "=" in word)
with open(__file__ + ".log", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\n")
if flags.get("page") == "64" and flags.get("b") == "32":
    sys.exit("a pretended failure")
lengths = flags.get("lengths", "").split(",")
ms = 2.0 if len(set(map(len, lengths))) < 2 else 3.0
ms *= 1.01 if "page" in flags else 1
ms /= 2 if flags["variant"] == "fp8" else 1
problem = {{"b": 1, "h": 1, "hkv": 1, "n": 1, "nk": 1, "d": 1, "causal": False, "dtype": "bf16"}}
run = {{"step": "13_decode", "variant": flags["variant"], "problem": problem, "ok": True}}
with open(flags["json"], "w") as out:
    json.dump({{**run, "time": {{"median_ms": ms}}}}, out)
"""
MS = {
    "matmul": 1,
    "07 lazy": 9,
    "13 warps": 8,
    "13 splits": 4,
    "13 groups": 2,
    "13 once": 1,
    "kernel": 0.002,
}
MS |= {"torch math": 6, "torch flash": 3, "copy": 0.5}
COPY_RATE = 4e12
NO_EFFICIENT = {"efficient": REFUSALS["flash"], "cudnn": REFUSALS["cudnn"]}


def build_library(folder, step, names):
    about = {"step": step, "idea": "", "kind": "gpu", "needs": "", "supports": {}}
    about["variants"] = [
        {"name": name, "idea": "", "dtype": "bf16", "writes_lse": True, "backward": False}
        | {"prepare": False}
        for name in names
    ]
    source = os.path.join(folder, "library.c")
    with open(source, "w", encoding="utf-8") as file:
        file.write(LIBRARY)
    most = names.index("fp8") if "fp8" in names else len(names)
    flags = ["-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", "-I", ROOT, f"-DMOST={most}"]
    flags += [f"-DDESCRIPTION={json.dumps(json.dumps(about))}", source, "-o"]
    subprocess.run(["gcc", *flags, os.path.join(folder, f"lib{step}.so")], check=True)


class Decode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.build = folder.name
        cls.json = os.path.join(folder.name, "decode_h200.json")
        steps = os.path.join(cls.build, "steps")
        os.makedirs(steps)
        for step, names in STEPS.items():
            build_library(steps, step, names)
        cls.program = os.path.join(steps, "13_decode")
        with open(cls.program, "w", encoding="utf-8") as file:
            file.write(PROGRAM.format(python=sys.executable))
        os.chmod(cls.program, os.stat(cls.program).st_mode | stat.S_IXUSR)

    kept = {}  # the two calls that most tests read: they run a hundred programs

    def full(self):
        """What all of it prints, the result and the calls of the program. One problem fails."""
        return self.once(status=1)

    def quick(self):
        return self.once("--quick", "--turns=1")

    def once(self, *args, status=0):
        if args not in self.kept:
            said = self.measure(*args, status=status)
            with open(self.program + ".log", encoding="utf-8") as file:
                self.kept[args] = *said, file.read().splitlines(), self.turns
        *found, self.turns = copy.deepcopy(self.kept[args])
        return found

    def measure(self, *args, status=0, errors=GOOD, named=True):
        """What it prints and the result; `self.turns` are the labels of each comparison."""
        self.turns = []
        for path in (self.program + ".log", self.json):
            if os.path.exists(path):
                os.remove(path)

        def take_turns(clock, contenders, rounds, iters):
            self.turns.append([c.label for c in contenders])
            found = {}
            for c in contenders:
                with c.context():
                    c.run()
                size = re.fullmatch(r"copy (\d+)", c.label)
                ms = 2e3 * int(size[1]) / COPY_RATE if size else MS[c.label]
                found[c.label] = {"ms": ms, "runs": rounds * iters, "late": 0}
            return found

        argv = ["decode", "--build", self.build, *["--json", self.json][: 2 * named], *args]
        out = io.StringIO()
        with (
            mock.patch.dict(sys.modules, PretendedTorch(NO_EFFICIENT).modules),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(peers.Torch, "truth"),
            mock.patch.object(test_peers.torch_attention.Clock, "take_turns", take_turns),
            mock.patch.object(
                peers.Torch,
                "errors",
                side_effect=lambda _, outputs: {name: errors[name] for name in outputs},
            ),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            self.assertEqual(decode.main(), status)
        with open(self.json, encoding="utf-8") as file:
            return out.getvalue(), json.load(file)

    def rows(self, result, what, **keys):
        return [
            row
            for row in result["rows"]
            if row["what"] == what and all(row[key] == value for key, value in keys.items())
        ]

    def test_shares_and_ratios(self):
        text, result, _ = self.quick()
        self.assertEqual(result["copy"]["bytes_per_s"], COPY_RATE)
        self.assertEqual(result["floor_ms"], 0.002)
        self.assertEqual((result["device"], result["torch"]), ("Pretended GPU", "2.99"))
        (once,) = self.rows(result, "peers", b=1, nk=16384, variant="once")
        size = 2 * 2 * 8 * 128 * 16384 + 2 * 2 * 32 * 128  # K and V, Q and O, in bf16
        self.assertEqual(once["bytes"], size)
        self.assertAlmostEqual(once["bytes_per_s"], size / 1e-3, delta=1e6)
        self.assertAlmostEqual(once["of_copy"], size / 1e-3 / COPY_RATE, places=5)
        self.assertEqual(once["commit"], commits.here())
        self.assertEqual((once["ratios"]["flash"], once["ratios"]["copy"]), (3, 0.5))
        self.assertEqual(set(once["errors"]), {"O", "LSE"})
        for words in ("3.00x (flash)", "9.00x", "4.00 TB/s", "smallest kernel takes 2 us by"):
            self.assertIn(words, " ".join(text.split()))
        self.assertLessEqual(max(map(len, text.splitlines())), 100)

    def test_all_take_the_same_turns(self):
        self.quick()
        self.assertIn(
            ["07 lazy", "13 warps", "13 splits", "13 groups", "13 once", "torch math"]
            + ["torch flash", "copy"],
            self.turns,
        )
        self.assertIn(["13 splits", "13 once", "torch math", "torch flash", "copy"], self.turns)
        self.assertIn(["13 once", "copy"], self.turns)  # causal: PyTorch's mask is another one

    def test_which_problems(self):
        _, quick, _ = self.quick()
        _, result, _ = self.full()

        def sizes(result, what):
            rows = self.rows(result, what, variant="fp8" if what == "fp8" else "once")
            return {(row["b"], row["nk"]) for row in rows}

        of_peers = sizes(result, "peers")
        self.assertEqual({nk for b, nk in of_peers if b == 1}, {1024 << 2 * i for i in range(5)})
        self.assertEqual(max(nk for b, nk in of_peers if b == 8), 262144)
        self.assertEqual(max(nk for b, nk in of_peers if b == 32), 65536)
        self.assertEqual(max(nk for b, nk in of_peers if b == 128), 16384)
        self.assertLess(sizes(quick, "peers"), of_peers)
        self.assertLess(sizes(quick, "fp8"), sizes(result, "fp8"))
        self.assertEqual({b for b, _ in sizes(result, "fp8")}, {1, 8, 32, 128})
        self.assertEqual({row["hkv"] for row in self.rows(result, "groups")}, {32, 16, 8, 4, 2})
        asked = {(r["b"], r["nk"], r["n"], r["causal"]) for r in self.rows(result, "queries")}
        self.assertIn((1, 65536, 16, True), asked)
        self.assertEqual(len(asked), 10)
        self.assertEqual([p["nk"] for p in decode.series(5e6) if p["b"] == 1], [1024])

    def test_pages_lengths_and_8_bits_run_through_the_program(self):
        text, result, calls = self.full()
        for call in calls:
            for word in ("--input=normal", "--no-counters", "--iters=50", "--n=1", "--d=128"):
                self.assertIn(word, call.split())
        (page,) = self.rows(result, "pages", b=1, nk=4096, page=16)
        self.assertAlmostEqual(page["ratios"]["none"], 1 / 1.01, places=5)
        self.assertEqual(len(page["each_ms"]), 3)
        paged = [call for call in calls if "--nk=4096" in call and "--b=1 " in call]
        paged = [re.findall(r"--page=(\d+)", call) for call in paged if "variant=once" in call]
        pages = [["16"], ["64"], ["256"]]
        self.assertEqual(paged[-12:], [[], *pages, *pages[::-1], [], [], *pages])
        (fp8,) = self.rows(result, "fp8", b=1, nk=4096, variant="fp8")
        self.assertEqual(fp8["ratios"], {"once": 2})
        self.assertEqual(len(fp8["each_ms"]), 3)
        in8 = [c for c in calls if "--nk=4096 " in c and "--b=1 " in c and "--page" not in c]
        in8 = [re.search(r"--variant=(\w+)", call)[1] for call in in8]
        self.assertEqual(in8[:6], ["once", "fp8", "fp8", "once", "once", "fp8"])
        self.assertEqual(fp8["bytes"], 2 * 8 * 128 * 4096 + 2 * 2 * 32 * 128)
        ragged = self.rows(result, "ragged")
        self.assertEqual(len(ragged), 6)
        for equal, uneven in zip(ragged[::2], ragged[1::2]):
            self.assertEqual(sum(equal["lengths"]), sum(uneven["lengths"]))
            self.assertLessEqual(max(equal["lengths"]) - min(equal["lengths"]), 1)
            self.assertEqual(len(equal["lengths"]), uneven["b"])
            self.assertEqual(equal["bytes"], uneven["bytes"])
        self.assertIn("--lengths=100,4096,1,777,2048,0,33,16384", "\n".join(calls))
        self.assertIn("1.010", text)

    def test_a_failure_costs_only_its_problem(self):
        text, result, _ = self.full()
        (failure,) = result["failures"]
        self.assertIn("a pretended failure", failure)
        self.assertEqual(self.rows(result, "pages", b=32), [])
        self.assertTrue(self.rows(result, "ragged"))
        self.assertIn("FAILED:", text)
        _, result, _ = self.quick()  # which has no such problem
        self.assertEqual(result["failures"], [])
        wrong = {**GOOD, "O": (0.25, 2.5)}
        _, result = self.measure("--quick", "--turns=1", errors=wrong, status=1)
        self.assertEqual(self.rows(result, "peers"), [])
        self.assertIn("O is wrong: its error is 2.50e-01", result["failures"][0])

    def test_what_there_was_no_time_for_is_said(self):
        text, result = self.measure("--budget", "-1", status=1)
        self.assertEqual(result["rows"], [])
        self.assertIn("peers: B=1 H=32 Hkv=8 N=1 Nk=1024 d=128 bf16", result["left_out"])
        self.assertIn("Left out, there was no time: peers: B=1", text)

    def test_what_is_missing(self):
        with mock.patch.object(sys, "argv", ["decode", "--build", "/nowhere"]):
            with self.assertRaisesRegex(NotHere, "13_decode is not built"):
                decode.main()
        with self.assertRaisesRegex(BadInput, "name the file with --json"):
            self.measure(named=False)
        self.assertEqual(self.turns, [])
        path = measurement.default_path("NVIDIA H200", "decode")
        self.assertTrue(path.endswith("results/decode_h200.json"))

    # --- the pages ---

    def filled(self, text, result):
        with open(self.json, "w", encoding="utf-8") as file:
            json.dump(result, file)
        found = {"decode": measurement_tables.load("decode", self.build)}
        return tables.fill(text, [], found, run=False)

    def table(self, spec, result):
        return self.filled(f"<!-- table: {spec} -->\n<!-- /table -->", result)

    def figure(self, spec, result):
        text = self.filled(f"About <!-- figure: {spec} --><!-- /figure -->.", result)
        return re.fullmatch(r"About <!-- .*? -->(.*)<!-- /figure -->\.", text)[1]

    def test_tables(self):
        _, result, _ = self.full()
        for what in decode_tables.TABLES:
            text = self.table(f"decode what={what}", result)
            self.assertNotIn("older text", text)
            self.assertGreater(len(text.splitlines()), 4, what)
        text = self.table("decode what=peers b=1 nk=4096,16384", result)
        self.assertEqual(len(text.splitlines()), 6)
        self.assertIn(
            "| 1 | 4K | 16.8 MB | 1.00 ms | 0.0168 | 0.4% | 500 us | 3.00x (flash) | 9.00x |", text
        )
        text = self.table("decode what=variants b=1", result)
        self.assertIn("| 07 lazy | 13 warps | 13 splits | 13 groups | 13 once | torch math |", text)
        self.assertIn("| 9.00 ms | 8.00 ms | 4.00 ms | 2.00 ms | 1.00 ms |", text)
        self.assertIn(
            "| 2.00 ms | 1.010 | 1.010 | 1.010 |", self.table("decode what=pages", result)
        )
        self.assertIn("| 3.00 ms |", self.table("decode what=ragged", result))
        for spec, words in (
            ("decode what=nothing", "choose from peers, variants"),
            ("decode what=peers b=77", "no row of what=peers"),
            ("decode what=peers colour=red", "table filter 'colour'"),
            ("decode what=peers device=other", "no result passes"),
        ):
            with self.assertRaisesRegex(BadInput, words):
                self.table(spec, result)

    def test_figures(self):
        _, result, _ = self.full()
        for spec, text in (
            ("show=time b=1 nk=4096", "1.00 ms"),
            ("show=share b=1 nk=4096,16384", "0.4% to 1.7%"),
            ("show=bandwidth b=1 nk=4096", "0.0168"),
            ("show=ratio against=best b=1 nk=4096", "3.00x"),
            ("show=ratio against=07 b=1 nk=4096", "9.00x"),
            ("show=ratio against=splits b=1 nk=4096", "4.00x"),
            ("show=ratio against=once what=fp8 variant=fp8", "2.00x"),
            ("show=overhead against=none what=pages page=16 b=1", "1.0%"),
            ("show=copy", "4.00"),
            ("show=floor", "2 us"),
        ):
            self.assertEqual(self.figure(f"decode {spec}", result), text, spec)
        for spec, words in (
            ("show=colour", "choose from time"),
            ("show=ratio", "need against="),
            ("show=ratio against=nobody b=1", "no 'nobody' beside it"),
            ("show=time b=77", "no row passes"),
        ):
            with self.assertRaisesRegex(BadInput, words):
                self.figure(f"decode {spec}", result)

    def test_rows_of_an_older_text_say_so(self):
        _, result, _ = self.quick()
        for row in result["rows"]:
            if row["step"] == "13_decode":
                row["commit"] = None
        older = "of an older text of the kernel: 13_decode"
        self.assertIn(older.capitalize(), self.table("decode what=peers", result))
        self.assertIn(f"({older})", self.figure("decode show=share b=1 nk=4096", result))

    def test_before_anything_was_measured(self):
        with tempfile.TemporaryDirectory() as empty:
            found = {"decode": measurement_tables.load("decode", empty)}
            page = "<!-- table: decode what=peers -->\n<!-- /table -->"
            self.assertIn("Not measured yet: run", tables.fill(page, [], found, run=False))

    def test_estimates_take_the_short_caches(self):
        """Of the clock: all heads are simulated, since the splits depend on them."""
        _, result, _ = self.quick()
        self.filled("", {**result, "device": "NVIDIA H200"})
        options = mock.Mock(min_n=0, max_n=4096)
        with mock.patch.object(estimates, "RESULTS", self.build):
            times = estimates.measured_times()
        keys = {key for key in times if key[1] == "13_decode"}
        self.assertEqual({key[2] for key in keys}, {"warps", "splits", "groups", "once"})
        key = ("H200", "13_decode", "once", "forward", 1, 32, 1, 128, False, 8, 4096)
        self.assertEqual(times[key], 1)
        sizes = [dict(zip(estimates.SIZES, key[4:])) for key in keys]
        wanted = {(p["b"], p["nk"]) for p in sizes if estimates.is_wanted(p, options)}
        self.assertEqual(
            wanted, {(1, 1024 << i) for i in (0, 2, 4, 6)} | {(8, 1024), (8, 4096), (32, 1024)}
        )

        def program(call, **_):
            flags = dict(zip(call[1::2], call[2::2]))
            self.assertEqual((flags["--h"], flags["--hkv"], flags["--nk"]), ("32", "8", "4096"))
            self.assertNotIn("--estimate-heads", flags)
            estimate = {"ms": 0.01, "limit": "HBM"}
            with open(flags["--json"], "w", encoding="utf-8") as file:
                json.dump({"estimate": estimate, "variant_index": 4}, file)
            return mock.Mock(returncode=0)

        with (
            mock.patch.object(estimates.subprocess, "run", side_effect=program),
            mock.patch.object(estimates.os.path, "exists", return_value=True),
        ):
            found = estimates.simulate((*key[:3], *key[4:]))
        self.assertEqual((found["forward"]["ms"], found["forward"]["limit"]), (0.01, "HBM"))

    def test_its_files_hold_no_runs_of_programs(self):
        self.filled("", self.quick()[1])
        self.assertEqual(published(self.build), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
