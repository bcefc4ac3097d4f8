"""peers.py without a GPU: a step's library and a PyTorch that only pretend."""

import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from basis import ROOT, SCRIPTS
from lab import peers, peers_table, tables, torch_attention

LIBRARY = r"""
#include <stdlib.h>
#include "common/harness/library/library.h"
const char* fa_describe(void) { return DESCRIPTION; }
const char* fa_last_error(void) { return "the pretended library says no"; }
int fa_check(const FaProblem* p) { return p->d == 128 ? 2 : p->d == 96 ? 3 : 0; }
int fa_workspace_bytes(int v, const FaProblem* p, size_t* bytes) { *bytes = 0; return v - v; }
static int prepared;
int fa_prepare(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  /* Once a problem: more often were timed. */
  return !PREPARES || prepared++ || v != 0 || p->d == 32 || !t->V || stream != (void*)0x77;
}
int fa_forward(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  int called_well = prepared == PREPARES && t->Q != NULL && t->LSE != NULL && stream == (void*)0x77;
  return !called_well || p->d == 32 || v > 1;
}
int fa_backward(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  return fa_forward(v, p, t, stream) || t->dV == NULL;
}
int fa_release(void) { return prepared = 0; }
int fa_malloc(void** p, size_t bytes) { return (*p = malloc(bytes)) == NULL; }
int fa_free(void* p) { free(p); return 0; }
int fa_upload(void* to, const void* from, size_t bytes) { return to == from; }
int fa_download(void* to, const void* from, size_t bytes) { return to == from; }
"""
# What somebody else needs to write, and what somebody else may.
OTHER = r"""
#include "common/harness/library/library.h"
#ifdef PREPARES
static int prepared;
int fa_prepare(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  return prepared++ || v != 0 || p->B < 1 || t->Q == NULL || stream != (void*)0x77;
}
int fa_release(void) { return prepared = 0; }
#else
static const int prepared = 1;
#endif
int fa_forward(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  return prepared != 1 || v != 0 || p->B < 1 || t->O == NULL || stream != (void*)0x77;
}
"""
FORWARD = {"backward": False, "prepare": False}
STEPS = {
    "01_naive": [("naive", "fp32", FORWARD)],
    "06_work_partitioning": [
        ("registers", "fp32", FORWARD),
        ("backward", "fp32", {**FORWARD, "backward": True}),
    ],
    # Its prepare runs once and is not timed.
    "07_tensor_cores": [("mma", "bf16", {**FORWARD, "prepare": True})],
}
MS = {"ours": 2.0, "math": 3.0, "efficient": 1.0, "flash": 2.4, "cudnn": 2.2}


class OutOfMemoryError(RuntimeError):
    pass


REFUSALS = {
    "flash": RuntimeError("No available kernel. Aborting execution."),
    "cudnn": OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TB\nmore"),
}
JUDGE = peers.Comparison.judge_other
GOOD = {name: (2e-7, 0.5) for name in ("O", "LSE", "dQ", "dK", "dV")}


def compiled(folder, name, source, *flags):
    """A library in plain C: what it includes is the real interface."""
    source_path = os.path.join(folder, name + ".c")
    path = os.path.join(folder, f"lib{name}.so")
    with open(source_path, "w", encoding="utf-8") as file:
        file.write(source)
    how = ["-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", "-I", ROOT, *flags]
    subprocess.run(["gcc", *how, source_path, "-o", path], check=True)
    return path


def described(step, variants, **supports):
    """The flag that defines fa_describe()'s text; `variants`: their names, types and more."""
    about = {"step": step, "idea": "", "kind": "gpu", "needs": "", "supports": supports}
    about["variants"] = [
        {"name": name, "idea": "", "dtype": dtype, "writes_lse": True, **more}
        for name, dtype, more in variants
    ]
    return f"-DDESCRIPTION={json.dumps(json.dumps(about))}"


class PretendedTorch:
    """The modules that peers.py imports, and who was timed, in order. Times are those of MS."""

    def __init__(self, refusals, slower=1, late=()):
        self.timed = []
        within = ["ours"]

        def attention(*_, **__):
            if within[-1] in refusals:
                raise refusals[within[-1]]
            return mock.MagicMock()

        @contextlib.contextmanager
        def sdpa_kernel(names):
            within.append(names[0])
            try:
                yield
            finally:
                within.pop()

        class Event:
            def __init__(event, enable_timing):
                assert enable_timing

            def record(event):
                event.who = within[-1]
                self.timed.append(event.who)

            def query(event):
                return event.who in late

            def elapsed_time(event, end):
                assert event.who == end.who
                return MS[event.who] * slower

        torch = mock.MagicMock()
        torch.__version__ = "2.99"
        torch.cuda.Event, torch.cuda.OutOfMemoryError = Event, OutOfMemoryError
        torch.cuda.is_available.return_value = True
        torch.cuda.current_stream.return_value.cuda_stream = 0x77
        torch.cuda.get_device_properties.return_value = types.SimpleNamespace(
            name="Pretended GPU", L2_cache_size=1 << 20
        )
        for make in (torch.randn, torch.full):
            make.return_value.data_ptr.return_value = 0x1000
        torch.nn.functional.scaled_dot_product_attention.side_effect = attention
        self.autograd = torch.autograd.grad
        self.autograd.return_value = [mock.MagicMock()] * 3
        attention_module = types.SimpleNamespace(
            sdpa_kernel=sdpa_kernel,
            SDPBackend=types.SimpleNamespace(
                **{word: name for name, word in peers.BACKENDS.items()}
            ),
        )
        self.modules = {
            "torch": torch,
            "torch.nn": torch.nn,
            "torch.nn.attention": attention_module,
        }


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.build, cls.json = folder.name, os.path.join(folder.name, "peers.json")
        steps = os.path.join(cls.build, "steps")
        os.makedirs(steps)
        for step, variants in STEPS.items():
            about = described(step, variants, d=[64], gqa=False, cross=False)
            prepares = f"-DPREPARES={int(variants[0][2]['prepare'])}"
            compiled(steps, step, LIBRARY, about, prepares)
        cls.other = compiled(cls.build, "other", OTHER)

    def compare(self, *args, errors=GOOD, refusals=REFUSALS, **pretended):
        """What it prints and the result; the pretended PyTorch finds `errors`."""
        self.torch = PretendedTorch(refusals, **pretended)
        argv = ["peers.py", "--build", self.build, "--json", self.json, *args]
        out = io.StringIO()
        with (
            mock.patch.dict(sys.modules, self.torch.modules),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(peers.Torch, "truth"),
            mock.patch.object(
                peers.Torch,
                "errors",
                side_effect=lambda _, outputs: {name: errors[name] for name in outputs},
            ),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            self.assertEqual(peers.main(), 0)
        with open(self.json, encoding="utf-8") as file:
            return out.getvalue(), json.load(file)

    def test_ratios_of_all_steps(self):
        text, result = self.compare()
        self.assertEqual((result["device"], result["torch"]), ("Pretended GPU", "2.99"))
        ours = [row for row in result["rows"] if row["step"]]
        for row in ours:
            self.assertEqual(row["ratios"], {"math": 1.5, "efficient": 0.5})
        self.assertEqual(
            {(r["label"], r["direction"]) for r in ours},
            {
                ("01 naive", "forward"),
                ("06 backward", "forward"),
                ("06 backward bwd", "backward"),
                ("07 mma", "forward"),
            },
        )
        # B=16 H=32 N=1024 d=64: 137 GFLOP in 2 ms; the pretended matmul makes 550 TFLOP/s.
        self.assertEqual((ours[0]["b"], ours[0]["h"], ours[0]["n"]), (16, 32, 1024))
        self.assertAlmostEqual(ours[0]["flops_per_s"] * 1e-12, 68.7, places=1)
        self.assertAlmostEqual(ours[0]["of_matmul"], 0.125)
        backward = [row for row in ours if row["direction"] == "backward"][0]
        self.assertAlmostEqual(backward["flops_per_s"] * 1e-12, 2.5 * 68.7, places=0)
        self.assertEqual({r["n"] for r in ours if r["step"] == "01_naive"}, {1024, 4096})
        sizes = {
            (r["b"], r["h"], r["n"], r["d"], r["causal"])
            for r in ours
            if r["step"] == "07_tensor_cores"
        }
        self.assertEqual(len(sizes), 12)  # d = 128 is refused
        self.assertLessEqual({(32, 32, 512, 64, False), (1, 32, 16384, 64, True)}, sizes)
        self.assertIn("PyTorch's flash has no kernel for fp32, d=64.", text)
        self.assertEqual(text.count("flash has no kernel for fp32"), 1)
        self.assertIn("CUDA out of memory. Tried to allocate 1 TB", text)
        words = " ".join(text.split())
        self.assertEqual(text.count("07_tensor_cores: the pretended library says no"), 1)
        self.assertIn("Largest error against fp64, bf16: O 07 mma 2.0e-07, math", words)
        self.assertIn("Largest error against fp64, fp32: O 01 naive 2.0e-07", words)
        self.assertIn(
            "; gradients 06 backward bwd 2.0e-07, math 2.0e-07, efficient 2.0e-07.", words
        )
        self.assertEqual([words.count(f"of {kind} against") for kind in ("bf16", "fp32")], [1, 1])
        self.assertIn("3 TF32 products", words)
        self.assertIn(
            "Geometric mean of 12 problems, 07 mma, bf16 forward: 1.5x math "
            "(least 1.5x in 1 run, N=512 d=64), 0.5x efficient",
            words,
        )

    def test_turns(self):
        args = ("--steps", "06", "--n", "512", "--variants", "all", "--rounds", "3")
        _, result = self.compare(*args, "--directions", "forward", refusals={})
        self.assertEqual({row["runs"] for row in result["rows"]}, {6})
        begins = self.torch.timed[::2]
        turn = ["ours", "ours", "math", "efficient", "flash", "cudnn"]
        forth = [who for who in turn for _ in range(2)]
        self.assertEqual(begins[-len(forth) * 3 :], forth + forth[::-1] + forth)
        self.assertFalse(self.torch.autograd.called)

    def test_a_slow_step_gets_fewer_rounds_and_a_host_that_is_late_is_told(self):
        late = "torch math, B=32 H=32 N=512 d=64 fp32: 20 of 20 runs started before"
        for pretended, runs, said in (
            ({"slower": 100}, 4, False),
            ({"late": ["math"]}, 20, True),
            ({}, 20, False),
        ):
            text, result = self.compare("--steps", "01", "--n", "512", **pretended)
            self.assertEqual({row["runs"] for row in result["rows"]}, {runs})
            self.assertEqual(late in " ".join(text.split()), said)

    def test_a_wrong_step_is_not_timed(self):
        for wrong, words in (
            (
                (0.25, 2.5),
                "06 backward bwd, .*: dK is wrong: its error is 2.50e-01, 1.00e-01 is allowed",
            ),
            ((float("nan"),) * 2, "dK has an element that is not a number"),
        ):
            with self.assertRaisesRegex(peers.Failure, words):
                self.compare(
                    "--steps", "06", "--directions", "backward", errors={**GOOD, "dK": wrong}
                )
            self.assertNotIn("math", self.torch.timed)
        with self.assertRaisesRegex(peers.Failure, "01_naive, .*: the pretended library says"):
            self.compare("--steps", "01", "--d", "32")

    def test_steps_in_the_same_turns(self):
        args = ("--n", "1024", "--d", "64", "--causal", "no", "--rounds", "2", "--iters", "1")
        args += ("--directions", "forward", "--backends", "flash")
        _, result = self.compare("--together", *args, refusals={})
        labels = [row["label"] for row in result["rows"]]
        self.assertEqual(
            labels,
            ["01 naive", "06 backward", "torch flash", "07 mma", "torch flash"],
        )
        turn = ["ours", "ours", "flash"]  # fp32; a round forth and one back
        begins = self.torch.timed[::2]
        self.assertTrue(
            any(begins[i : i + 6] == turn + turn[::-1] for i in range(len(begins))), begins
        )
        _, result = self.compare(*args, refusals={})
        self.assertEqual([row["label"] for row in result["rows"]].count("torch flash"), 3)

    def test_a_library_of_somebody_else(self):
        args = ("--steps", "01 07", "--n", "1024", "--d", "64", "--causal", "no")
        text, result = self.compare(*args, "--library", f"mine={self.other}")
        labels = [row["label"] for row in result["rows"]]
        self.assertEqual(labels[labels.index("07 mma") :][:2], ["07 mma", "mine"])
        self.assertEqual(labels.count("mine"), 1)  # without a description it takes bf16
        ours = {row["label"]: row["ratios"] for row in result["rows"] if row["step"]}
        self.assertEqual(ours["07 mma"]["mine"], 1)
        self.assertNotIn("mine", ours["01 naive"])
        mine = next(row for row in result["rows"] if row["label"] == "mine")
        self.assertEqual((mine["step"], mine["ratios"]), (None, {}))
        prepared = compiled(self.build, "prepared", OTHER, "-DPREPARES")
        _, result = self.compare(*args, "--library", f"mine={prepared}")
        self.assertEqual([row["label"] for row in result["rows"]].count("mine"), 1)
        self.assertIn("mine", text)
        with mock.patch.object(peers.Comparison, "judge_other", autospec=True) as judge:
            judge.side_effect = lambda it, library, _: JUDGE(it, library, {"O": (0.5, 3.0)})
            text, _ = self.compare(*args, "--library", f"mine={self.other}")
        self.assertIn(
            "mine, B=16 H=32 N=1024 d=64 bf16: O is off by 5.00e-01, 3 times what a step is "
            "allowed.",
            " ".join(text.split()),
        )

    def test_chosen_backends(self):
        args = ("--steps", "07", "--backends", "cudnn flash", "--d", "64", "--n", "1024")
        _, result = self.compare(*args, "--hkv", "4", refusals={})
        labels = [row["label"] for row in result["rows"]]
        self.assertEqual(labels, ["07 mma", "torch flash", "torch cudnn"] * 2)
        self.assertEqual({row["hkv"] for row in result["rows"]}, {4})

    def test_tables_that_fit(self):
        text, _ = self.compare("--steps", "01", "--n", "1024", "--causal", "no", "--d", "64")
        lines = [line for line in text.splitlines() if line.startswith("B=")]
        self.assertEqual([line.split()[7] for line in lines], ["naive", "math", "efficient"])
        self.assertEqual(lines[0].split()[-2:], ["1.5x", "0.5x"])
        for steps in ("01", "06", "07"):
            for refusals in (REFUSALS, {}):
                text, _ = self.compare("--steps", steps, "--causal", "yes", refusals=refusals)
                self.assertLessEqual(max(map(len, text.splitlines())), 100, text)

    def test_how_it_was_called_is_kept(self):
        args = ("--steps", "01", "--n", "1024 4096", "--d", "64")
        _, result = self.compare(*args)
        self.assertEqual(
            result["commands"],
            [f"./scripts/peers.py --build {self.build} --steps 01 --n '1024 4096' --d 64"],
        )
        self.assertEqual(
            peers.command_line(
                ["--json=x", "--json", "y", "--build", os.path.join(peers.ROOT, "build", "gpu")]
            ),
            "./scripts/peers.py --build build/gpu",
        )

    def test_rows_of_several_runs_say_so(self):
        args = ("--steps", "07", "--n", "1024", "--d", "64")
        text, result = self.compare(*args)
        self.assertNotIn("runs, in which", text)
        for row in result["rows"][:3]:
            row["of_matmul"] *= 1.1
        words = " ".join(peers_table.text_of(result).split())
        self.assertIn(
            "These rows come from 2 runs, in which the bf16 matmul reached 500 and 550 TFLOP/s.",
            words,
        )
        self.assertIn("These rows come from 2 runs", peers_table.markdown_of(result))

    def test_a_backend_that_failed_in_one_of_three_runs(self):
        _, result = self.compare("--steps", "07", "--n", "512 1024 2048", "--d", "64")
        for row in result["rows"]:
            row["repeats"] = [dict(row, run=str(i)) for i in range(3)]
            row["repeats"][1]["ratios"] = {"efficient": 0.4} if row["step"] else {}
        words = " ".join(peers_table.text_of(result).split())
        self.assertIn("1.5x math (least 1.5x in 2 runs, ", words)
        self.assertIn("0.5x efficient (least 0.4x in 3 runs, ", words)
        rows = [row for row in result["rows"] if row["step"]]
        self.assertEqual(tables.OF_RATIOS["runs"](rows, "math"), "two runs")

    def test_where_the_result_cannot_go_is_found_before_the_run(self):
        with mock.patch.object(peers, "Torch", side_effect=AssertionError("the GPU's work began")):
            with mock.patch.object(sys, "argv", ["peers.py", "--json", "/nowhere/x.json"]):
                with self.assertRaisesRegex(peers.BadInput, "x.json cannot be written: its folder"):
                    peers.main()
            left = os.path.join(self.build, "left.json")
            with mock.patch.object(sys, "argv", ["peers.py", "--json", left]):
                self.assertRaises(AssertionError, peers.main)
        self.assertFalse(os.path.exists(left))

    def test_each_problem_is_kept_as_soon_as_it_is_measured(self):
        with mock.patch.object(peers, "text_of", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.compare("--steps", "01")
        with open(self.json, encoding="utf-8") as file:
            self.assertTrue(json.load(file)["rows"])

    def test_bad_use(self):
        broken, missing = (os.path.join(self.build, name) for name in ("broken", "torch"))
        os.makedirs(os.path.join(broken, "steps"))
        os.makedirs(missing)
        for path, text in (
            (os.path.join(broken, "steps", "lib01_naive.so"), "no library"),
            (os.path.join(missing, "__init__.py"), "raise ImportError"),
        ):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": self.build}
        for args, status, word in (
            (("--rounds", "0"), 2, "at least 1"),
            (("--n", "many"), 2, "--n"),
            (("--causal", "perhaps"), 2, "--causal"),
            (("--directions", "sideways"), 2, "choose from"),
            (("--backends", ""), 2, "empty"),
            (("--hkv", "0"), 2, "at least 1"),
            ((), 3, "no PyTorch"),
        ):
            line = [sys.executable, os.path.join(SCRIPTS, "peers.py"), *args]
            done = subprocess.run(line, capture_output=True, text=True, env=environment)
            self.assertEqual(done.returncode, status, args)
            self.assertIn(word, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)
        for args, kind, word in (
            (["--steps", "77"], peers.BadInput, "no step '77'"),
            (["--build", "/nowhere"], peers.NotHere, "no step is built"),
            (["--build", broken], peers.NotHere, "does not load"),
            (["--d", "128"], peers.BadInput, "07_tensor_cores: the pretended library says no"),
            (
                ["--variants", "naive nope"],
                peers.BadInput,
                "no step here has a variant 'nope': 01_naive has naive; "
                "06_work_partitioning has registers, backward; 07_tensor_cores has mma",
            ),
            (["--library", "mine"], peers.BadInput, "must have the form NAME=PATH.so"),
            (["--library", "mine=/nowhere.so"], peers.BadInput, "cannot open shared object"),
            (["--library", f"flash={self.other}"], peers.BadInput, "the name 'flash' is taken"),
            (["--steps", "01", "--d", "96 128"], peers.NotHere, "nothing was compared: .* says no"),
        ):
            with self.assertRaisesRegex(kind, word):
                self.compare(*args)


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Truth(unittest.TestCase):
    """What outputs are held to, on the CPU; PyTorch's own attention is right."""

    def test_right_and_wrong_outputs(self):
        import torch

        side = torch_attention.Torch.__new__(torch_attention.Torch)
        side.torch = torch
        for dtype, causal in (("fp32", False), ("bf16", True)):
            problem = dict(b=2, h=4, hkv=2, n=130, nk=130, d=64, causal=causal, dtype=dtype)
            tensors = {
                name: torch.randn(2, heads, 130, 64).to(side.type_of(dtype))
                for name, heads in (("Q", 4), ("K", 2), ("V", 2), ("dO", 4))
            }
            truth = side.truth(problem, tensors)
            inputs = [tensors[name].requires_grad_() for name in "QKV"]
            out = torch.nn.functional.scaled_dot_product_attention(
                *inputs, is_causal=causal, enable_gqa=True
            )
            found = torch.autograd.grad(out, inputs, tensors["dO"])
            outputs = {"O": out.detach(), **dict(zip(torch_attention.GRADIENTS, found))}
            for name, (error, share) in side.errors(truth, outputs).items():
                self.assertTrue(0 < error and share <= 1, (dtype, name, error, share))
            for name, right in outputs.items():
                for at, value in (
                    ((0, 0, 7, 3), 0.1),
                    ((1, -1, 129, 63), -0.1),
                    ((1, 0, 5, 5), float("nan")),
                ):  # a head that nobody checks
                    wrong = right.clone()
                    wrong[at] += value
                    share = side.errors(truth, {name: wrong})[name][1]
                    self.assertFalse(share <= 1, (dtype, name, at))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
