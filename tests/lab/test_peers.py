"""peers.py without a GPU: with stubs of a step's library and of PyTorch."""

import contextlib
import io
import json
import operator
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from basis import ROOT, for_all, main, write
from flash_steps.command import BadInput, NotHere
from flash_steps.files import read_json, write_text
from flash_steps.step_library import MASK
from lab import comparison, masks, measured, peers, torch_attention

LIBRARY = r"""
#include <stdlib.h>
#include "common/harness/library/library.h"
const char* fa_describe(void) { return DESCRIPTION; }
const char* fa_last_error(void) { return "the pretended library says no"; }
int fa_check(const FaProblem* p) { return p->d == REFUSED_D ? 2 : 0; }
int fa_workspace_bytes(int v, const FaProblem* p, size_t* bytes) { *bytes = 0; return v - v; }
static int prepared;
int fa_prepare(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  /* Once a problem: more often were timed. */
  return !PREPARES || prepared++ || v != 0 || p->d == 32 || !t->V || stream != (void*)0x77;
}
int fa_forward(int v, const FaProblem* p, const FaTensors* t, void* stream) {
  int called_well = prepared == PREPARES && t->Q != NULL && t->LSE != NULL && stream == (void*)0x77;
  return !called_well || p->d == 32 || v >= MOST;
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
FORWARD = {"backward": False, "prepare": False}
STEPS = {
    "01_naive": [("naive", "fp32", FORWARD)],
    "06_work_partitioning": [
        ("registers", "fp32", FORWARD),
        ("backward", "fp32", {**FORWARD, "backward": True}),
    ],
    # Its prepare runs once, untimed.
    "07_tensor_cores": [("mma", "bf16", {**FORWARD, "prepare": True})],
}
MS = {"ours": 2.0, "math": 3.0, "efficient": 1.0, "flash": 2.4, "cudnn": 2.2}


class OutOfMemoryError(RuntimeError):
    pass


REFUSALS = {
    "flash": RuntimeError("No available kernel. Aborting execution."),
    "cudnn": OutOfMemoryError("CUDA out of memory. Tried to allocate 1 TB\nmore"),
}
GOOD = {name: (2e-7, 0.5) for name in ("O", "LSE", "dQ", "dK", "dV")}


def compiled(folder, name, description, refused_d=0, prepares=False, most=2):
    """A library in plain C, which includes the real interface."""
    source_path = os.path.join(folder, name + ".c")
    path = os.path.join(folder, f"lib{name}.so")
    write_text(source_path, LIBRARY)
    how = ["-std=c99", "-Wall", "-Werror", "-shared", "-fPIC", "-I", ROOT, description]
    how += [f"-DREFUSED_D={refused_d}", f"-DPREPARES={int(prepares)}", f"-DMOST={most}"]
    subprocess.run(["gcc", *how, source_path, "-o", path], check=True)


def described(step, variants, **supports):
    """The flag that defines fa_describe()'s text; `variants`: their names, types and more."""
    about = {"step": step, "idea": "", "kind": "gpu", "needs": "", "supports": supports}
    about["variants"] = [
        {"name": name, "idea": "", "dtype": dtype, "writes_lse": True, **more}
        for name, dtype, more in variants
    ]
    return f"-DDESCRIPTION={json.dumps(json.dumps(about))}"


class Keys(list):
    """The parts of a tensor that masks.counted() needs; one row at a time."""

    def __getitem__(self, _):
        return self

    def split(self, _):
        return list(self)

    def sum(self):
        return sum(self)

    def __rsub__(self, x):
        return Keys(x - key for key in self)

    def __neg__(self):
        return 0 - self

    def __le__(self, x):
        return Keys(key <= x for key in self)

    def __eq__(self, other):
        return Keys(map(operator.eq, self, other))

    def __and__(self, other):
        return Keys(map(operator.and_, self, other))


class PretendedTorch:
    """The modules that peers.py imports, and what was timed, in order. Times are those of MS."""

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
        device = types.SimpleNamespace(name="Pretended GPU", L2_cache_size=1 << 20)
        torch.cuda.get_device_properties.return_value = device
        torch.arange = lambda count, device: Keys(range(count))
        for make in (torch.randn, torch.full):
            make.return_value.data_ptr.return_value = 0x1000
        torch.nn.functional.scaled_dot_product_attention.side_effect = attention
        self.autograd = torch.autograd.grad
        self.autograd.return_value = [mock.MagicMock()] * 3
        names = {word: name for name, word in torch_attention.BACKENDS.items()}
        kinds = types.SimpleNamespace(**names)
        module = types.SimpleNamespace(sdpa_kernel=sdpa_kernel, SDPBackend=kinds)
        self.modules = {"torch": torch, "torch.nn": torch.nn, "torch.nn.attention": module}


class Peers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.build = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.json = os.path.join(cls.build, "peers.json")
        steps = os.path.join(cls.build, "steps")
        os.makedirs(steps)
        for step, variants in STEPS.items():
            about = described(step, variants, d=[64], gqa=False, cross=False)
            compiled(steps, step, about, refused_d=128, prepares=variants[0][2]["prepare"])

    def setUp(self):
        if os.path.exists(self.json):
            os.remove(self.json)

    def compare(self, *args, errors=GOOD, refusals=REFUSALS, status=0, **pretended):
        """The output and the result; the stub of PyTorch finds `errors`."""
        self.torch = PretendedTorch(refusals, **pretended)
        argv = ["peers.py", "--build", self.build, "--json", self.json, *args]
        out = io.StringIO()

        def found(_, outputs):
            return {name: errors[name] for name in outputs}

        with (
            mock.patch.dict(sys.modules, self.torch.modules),
            mock.patch.object(sys, "argv", argv),
            mock.patch.object(peers.Torch, "truth"),
            mock.patch.object(peers.Torch, "errors", side_effect=found),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            self.assertEqual(peers.main(), status)
        return " ".join(out.getvalue().split()), read_json(self.json)

    def test_ratios_of_all_steps(self):
        text, result = self.compare()
        self.assertEqual((result["device"], result["torch"]), ("Pretended GPU", "2.99"))
        ours = [row for row in result["rows"] if row["step"]]
        for row in ours:
            self.assertEqual(row["ratios"], {"math": 1.5, "efficient": 0.5})
        labels = {row["direction"]: set() for row in ours}
        for row in ours:
            labels[row["direction"]].add(row["label"])
        forward = {"01 naive", "06 backward", "07 mma"}
        self.assertEqual(labels, {"forward": forward, "backward": {"06 backward bwd"}})
        # B=16 H=32 N=1024 d=64: 137 GFLOP in 2 ms; the stub's matmul makes 550 TFLOP/s.
        self.assertEqual((ours[0]["b"], ours[0]["h"], ours[0]["n"]), (16, 32, 1024))
        self.assertAlmostEqual(ours[0]["flops_per_s"] * 1e-12, 68.7, places=1)
        self.assertAlmostEqual(ours[0]["of_matmul"], 0.125)
        backward = [row for row in ours if row["direction"] == "backward"][0]
        self.assertAlmostEqual(backward["flops_per_s"] * 1e-12, 2.5 * 68.7, places=0)
        sizes = {(r["n"], r["d"], r["causal"]) for r in ours if r["step"] == "07_tensor_cores"}
        self.assertEqual(len(sizes), 12)  # d = 128 is refused
        self.assertEqual(text.count("flash has no kernel for fp32, d=64."), 1)
        self.assertIn("CUDA out of memory. Tried to allocate 1 TB", text)
        self.assertEqual(text.count("07_tensor_cores: the pretended library says no"), 1)
        self.assertIn("07 mma 12 1.5x, least 1.5x (N=512 d=64) 0.5x, least 0.5x (N=512", text)
        self.assertIn("forward, fp32, d=64 TFLOP/s N=1024 N=4096", text)
        about = "GPU: Pretended GPU; PyTorch: 2.99; times: medians of up to 1 repeats of 10"
        self.assertIn(about, text)

    def test_turns(self):
        """All steps of a type beside each other, in an order that each round draws anew."""
        args = ("--n", "512", "--d", "64", "--causal", "no", "--variants", "all")
        _, result = self.compare(*args, "--directions", "forward", refusals={})
        labels = [row["label"] for row in result["rows"]]
        torch = ["torch math", "torch efficient", "torch flash", "torch cudnn"]
        self.assertEqual(labels[:7], ["01 naive", "06 registers", "06 backward", *torch])
        self.assertEqual(labels[7:], ["07 mma", *torch])
        begins = self.torch.timed[::2]
        turn = ["ours", "ours", "ours", "math", "efficient", "flash", "cudnn"]
        chunks = [
            {tuple(begins[i + 14 * k : i + 14 * k + 14]) for k in range(10)}
            for i in range(len(begins) - 140)
        ]
        rounds = [c for c in chunks if all(sorted(each) == sorted(2 * turn) for each in c)]
        self.assertTrue(any(len(c) > 5 for c in rounds), begins)
        self.assertFalse(self.torch.autograd.called)

    def test_masks_are_problems_beside_those_who_know_them(self):
        """The library receives the mask; FLOPs are those of the visible scores."""
        seen, backends = [], {}
        for name in ("flex", "varlen"):
            backends[name] = lambda *_: (lambda *_: mock.MagicMock(), lambda x: x, lambda x: x)
        backends["flash3"] = mock.Mock(side_effect=ImportError("No module named 'flash3'"))

        def counted(torch, problem):
            return {**problem, "scores": 1000}

        def check(library, sizes):
            seen.append(sizes)

        args = ("--steps", "07", "--d", "64", "--causal", "yes", "--directions", "forward")
        args += ("--window", "none 256,0", "--lengths", "512,2x100")
        with (
            mock.patch.object(masks, "counted", counted),
            mock.patch.dict(masks.BACKENDS, backends),
            mock.patch.object(peers.StepLibrary, "check", check),
        ):
            text, result = self.compare(*args, "--backends", "flex varlen flash3", refusals={})
        packed = {"row_starts": [0, 512, 612, 712], "key_starts": [0, 512, 612, 712]}
        self.assertEqual([{k: v for k, v in s.items() if k in MASK} for s in seen], [
            packed, {"window": [256, 0], **packed},
        ])  # fmt: skip
        self.assertEqual({(s["b"], s["n"], s["nk"]) for s in seen}, {(1, 712, 712)})
        (mine, _) = [row for row in result["rows"] if row["step"]]
        self.assertEqual(set(mine["ratios"]), {"flex", "varlen"})
        self.assertAlmostEqual(mine["flops_per_s"], 4 * 32 * 64 * 1000 / 2e-3)
        self.assertIn("forward, bf16, d=64 causal window=256,0 documents=512,2x100", text)
        self.assertIn("flash3, B=1 H=32 N=712 d=64 causal documents=512,2x100 bf16: No mod", text)
        for wrong in ("--window=256", "--lengths=x", "--mask=zebra:3", "--mask=strided"):
            with self.assertRaisesRegex(BadInput, wrong.split("=")[0]):
                self.compare(wrong)

    def test_who_sees_whom(self):
        for name, number, rows in (
            ("prefix", 3, ("xxx...", "xxx...", "xxxxxx")),
            ("strided", 2, ("x.....", "xxx...", ".x.xxx")),
            ("checkered", 2, ("xx..xx", "..xx..", "xx..xx")),
        ):
            sees = masks.PREDICATES[name]
            found = [
                "".join("x" if sees(r, c, number) else "." for c in range(6)) for r in (0, 2, 5)
            ]
            self.assertEqual(tuple(found), rows, name)

    def test_no_mask_beside_others(self):
        """The scores of each problem are counted, even where all rows see all keys."""
        flex = mock.MagicMock()
        flex.create_block_mask = lambda sees, *_, device: self.assertIs(sees(0, 0, 7, 7), True)
        args = ("--steps", "07", "--n", "8", "--d", "64", "--directions", "forward")
        with mock.patch.dict(sys.modules, {"torch.nn.attention.flex_attention": flex}):
            _, result = self.compare(*args, "--window", "2,0 none", "--backends", "flex")
        ours = [row for row in result["rows"] if row["step"]]
        self.assertEqual([row["scores"] for row in ours], [21, 64, 21, 36])
        self.assertEqual([set(row["ratios"]) for row in ours], [{"flex"}] * 4)

    @for_all
    def test_a_slow_step_gets_fewer_rounds_and_a_host_that_is_late_is_told(self):
        late = "torch math, B=32 H=32 N=512 d=64 fp32: {} of {} runs started before"
        for pretended, runs in (({"slower": 50}, 6), ({}, 20)):
            args = ("--steps", "01", "--n", "512", "--causal", "no")
            text, _ = self.compare(*args, late=["math"], **pretended)
            self.assertIn(late.format(runs, runs), text)
            os.remove(self.json)

    def test_a_wrong_step_is_not_timed(self):
        backward = ("--steps", "06", "--n", "1024", "--directions", "backward")
        wrong = ": dK is wrong: its error is 2.50e-01, 1.00e-01 is allowed"
        for args, error, said in (
            (backward, (0.25, 2.5), wrong),
            (backward, (float("nan"),) * 2, "dK has an element that is not a number"),
            (("--steps", "01", "--d", "32", "--n", "1024"), (0, 0), "01_naive, .*library says no"),
        ):
            text, result = self.compare(*args, errors={**GOOD, "dK": error}, status=1)
            self.assertRegex(text, "FAILED: .*" + said)
            self.assertEqual(result["rows"], [])
            self.assertNotIn("math", self.torch.timed)
            os.remove(self.json)

    def test_a_run_continues_another_one(self):
        args = ("--steps", "07", "--n", "512 1024", "--d", "64", "--causal", "no")
        _, first = self.compare(*args, "--turns", "2")
        matmuls = [
            c for c in self.torch.modules["torch"].randn.mock_calls if c.args == (8192, 8192)
        ]
        self.assertEqual(len(matmuls), 2 * 2)  # of two factors: in each turn once
        _, again = self.compare(*args, "--turns", "2")
        self.assertEqual((self.torch.timed, again["rows"]), ([], first["rows"]))
        _, result = self.compare(*args, "--turns", "3", slower=1.5)
        (mine,) = [row for row in result["rows"] if row["step"] and row["n"] == 512]
        self.assertEqual([run["ms"] for run in mine["repeats"]], [2, 2, 3])
        self.assertEqual(mine["ms"], 2)
        mine["repeats"][1]["ratios"] = {"efficient": 0.4}  # the other had too little memory
        self.assertEqual(measured.least_of([mine], "efficient"), (0.4, mine))
        self.assertEqual(measured.least_of([mine], "math"), (1.5, mine))
        text, result = self.compare(*args, "--turns", "4", "--budget", "-1", status=1)
        self.assertEqual(len(result["left_out"]), 2)
        self.assertIn("Left out, there was no time: 4: B=32 H=32 N=512", text)
        write(self.json, {**result, "torch": "2.98"})
        with self.assertRaisesRegex(BadInput, "'torch' 2.98, this run 2.99: one file cannot hold"):
            self.compare(*args)
        mine["commit"] = None  # of other sources: measured again
        done = {text: {**mark, "commit": None} for text, mark in result["done"].items()}
        write(self.json, {**result, "rows": [mine], "done": done})
        _, result = self.compare(*args)
        self.assertEqual({len(row["repeats"]) for row in result["rows"]}, {1})

    def test_a_function_of_ones_own_takes_turns_and_is_checked(self):
        called = []

        def mine(q, k, v, causal):
            called.append(causal)
            return mock.MagicMock(), "its LSE"

        args = ("--steps", "07", "--backends", "flash", "--d", "64", "--n", "1024")
        args += ("--causal", "yes", "--contender", "rivals:mine")
        with mock.patch.dict(sys.modules, rivals=types.SimpleNamespace(mine=mine)):
            _, result = self.compare(*args, refusals={})
            labels = [row["label"] for row in result["rows"]]
            self.assertEqual(labels, ["07 mma", "torch flash", "mine"])
            self.assertEqual(set(result["rows"][0]["ratios"]), {"flash", "mine"})
            self.assertEqual(set(called), {True})
            os.remove(self.json)
            with mock.patch.object(comparison.Comparison, "step", lambda *_: self.good()):
                text, _ = self.compare(*args, errors={**GOOD, "O": (1, 2)}, status=1)
            self.assertIn("mine, B=16 H=32 N=1024 d=64 causal bf16: O is wrong", text)
            with self.assertRaisesRegex(BadInput, "--contender rivals:other: "):
                self.compare("--contender", "rivals:other")

    def good(self):
        return torch_attention.Contender("mma", "07 mma", lambda: None, step="07_tensor_cores")

    def test_bad_use(self):
        broken = os.path.join(self.build, "broken")
        os.makedirs(os.path.join(broken, "steps"))
        write_text(os.path.join(broken, "steps", "lib01_naive.so"), "no library")
        with mock.patch.object(peers, "Torch", side_effect=AssertionError("the GPU's work began")):
            with mock.patch.object(sys, "argv", ["peers.py", "--json", "/nowhere/x.json"]):
                with self.assertRaisesRegex(BadInput, "x.json cannot be written: its folder"):
                    peers.main()
        for args in (("--n", "0"), ("--turns", "0"), ("--directions", "sideways")):
            with self.assertRaises(SystemExit):
                self.compare(*args)
        with mock.patch.dict(sys.modules, {"torch": None}):
            with mock.patch.object(sys, "argv", ["peers.py"]):
                self.assertRaisesRegex(NotHere, "no PyTorch", peers.main)
        for args, kind, word in (
            (["--steps", "77"], BadInput, "no step '77'"),
            (["--build", "/nowhere"], NotHere, "no step is built"),
            (["--build", broken], NotHere, "does not load"),
            (["--d", "128"], NotHere, "nothing was compared: .*07_tensor_cores: the pretended"),
            (["--variants", "naive nope"], BadInput, "no step here has a variant 'nope': 01_naive"),
        ):
            with self.assertRaisesRegex(kind, word):
                self.compare(*args)


if __name__ == "__main__":
    main()
