"""./scripts/judge: right extensions of several styles, mutants, cheats, what it refuses; and
flash_steps.simulate."""

import argparse
import array
import contextlib
import functools
import json
import math
import re
import tempfile
import unittest
from unittest import mock

from copies import ROOT, Folder, for_all, main, said
from flash_steps import attention_search, judge, ladder, simulate
from flash_steps.attention_call import Called, Run
from flash_steps.attention_case import Case
from flash_steps.checker import made_by_the_host
from flash_steps.command import BadInput
from flash_steps.extension import Program, build
from flash_steps.files import read_text
from flash_steps.roles import parsed, role_of, roles_of

FILE = str(ROOT / "tests" / "extensions" / "attention.cu")
RIGHT = {  # and a part of what is said
    "rows": "causal",
    "tiles": "[B, N, H, d]",
    "wmma_forward": "by its own check: N and d must be multiples of 16",
    "grouped": "also grouped heads",
    "masked": "also with a mask; also with lengths",
    "documents": "also with documents",
    "decode": "[B, N, H, d], float32, one query",
    "backward": "dV: largest error",
    "wide_backward": "bfloat16, its outputs in float32",
}

SHORT = ("tiles", "decode", "backward")


@functools.cache
def extension(*define):
    """The built file, and the checker."""
    ends = contextlib.ExitStack()
    unittest.addModuleCleanup(ends.close)
    folder = ends.enter_context(tempfile.TemporaryDirectory())
    path, how = build([FILE], folder, define=define)
    program = Program(path, how, [FILE])
    ends.callback(program.close)
    return program, how, ends.enter_context(judge.started())


class Judged(unittest.TestCase):
    define = ("SHORT",)

    def test_a_call_of_a_wrong_type(self):
        options = argparse.Namespace(function=None, call="honest(Q, N, V)")
        what = "--call: argument 2, 'N', of honest must be a tensor"
        with self.assertRaisesRegex(BadInput, what):
            judge.choose(*extension(*self.define)[:2], options)

    def test_all_calls_refused(self):
        verdict = self.verdict("refuses")
        self.assertEqual((verdict["ok"], verdict["kind"]), (False, "refused"))
        self.assertIn("\nrefused   not today (B=1 ", judge.screen(verdict, "attention.cu"))
        page = (ROOT / "docs" / "json.md").read_text()
        for key, found in ("as", verdict["as"]), ("runs", verdict["runs"][0]):
            named = re.search(rf"(?m)^\| `{key}` \| [^{{]*{{(.*?)}}", page)[1]
            self.assertEqual(sorted(named.split(", ")), sorted(found))

    def test_the_host_dereferences_a_tensor_of_the_device(self):
        shown = judge.screen(self.verdict("dereferences", Case()), "attention.cu")
        line = 1 + read_text(FILE).split("Tensor dereferences(")[0].count("\n")
        what = f"\nfinding   host code dereferences a device pointer at attention.cu:{line}"
        self.assertIn(what, shown)

    def verdict(self, function, case=None):
        """`case`: how it is called, which is otherwise looked for."""
        program, how, checker = extension(*self.define)
        options = argparse.Namespace(function=function, call=None)
        (index, roles), *_ = judge.choose(program, how, options)
        called = Called(checker, program, index, roles)
        if not case:
            return attention_search.judge_function(called, seed=1)
        with mock.patch.object(attention_search, "look", lambda called: called.run(case)):
            return attention_search.judge_function(called, seed=1)

    def test_right_ones_and_mutants(self):
        self.judge_each(SHORT, mutants=6)

    @for_all
    def test_other_right_ones_and_mutants(self):
        self.define = ()
        self.judge_each([name for name in RIGHT if name not in SHORT], mutants=12)

    @mock.patch.object(attention_search, "SECONDS", 1000)  # on a busy machine, too
    def judge_each(self, right, mutants):
        names = [f["name"] for f in extension(*self.define)[0].functions]
        wrong = [name for name in names if name[-1].isdigit() and name.rpartition("_")[0] in right]
        self.assertEqual(len(wrong), mutants)
        decide = attention_search.judged
        for name in right:
            with mock.patch.object(attention_search, "judged", wraps=decide) as how:
                verdict = self.verdict(name)
            text = judge.screen(verdict, "attention.cu")
            self.assertTrue(verdict["ok"], text)
            self.assertIn(RIGHT[name], " ".join(text.split()))
            self.assertLessEqual(len(text.splitlines()), 24)
            for mutant in (m for m in wrong if m.rpartition("_")[0] == name):
                verdict = self.verdict(mutant, how.call_args[0][1])  # a search would take time
                self.assertIn(verdict.get("kind"), ("wrong", "finding", "inexact"), mutant)

    @mock.patch.object(attention_search, "SECONDS", 0.1)
    def test_cheats(self):
        self.assertTrue(self.verdict("honest")["ok"])
        names = [f["name"] for f in extension(*self.define)[0].functions]
        names = [name for name in names if name.startswith("cheat_")]
        self.assertEqual(len(names), 14)
        kinds = {"cheat_by_the_host": "cheats", "cheat_changes_inputs": "changed"}
        kinds["cheat_skips_rows"] = "wrong"
        for name in names:
            verdict = self.verdict(name)
            self.assertFalse(verdict["ok"], name)
            self.assertEqual(verdict["kind"], kinds.get(name, verdict["kind"]))


HEAD = """#include <torch/extension.h>
torch::Tensor f(torch::Tensor q, torch::Tensor k, torch::Tensor v) """


class Said(Folder):
    def judged(self, body, *words):
        place = tempfile.mkdtemp(dir=self.folder)
        return said([ROOT / "scripts/judge", self.write(f"{place}/f.cu", HEAD + body), *words])

    def lacks(self, body, what):
        self.refused(self.judged(body), 2, f"judge: {what} is not in the simulator's torch")

    def test_no_file_before_anything_is_compiled(self):
        arguments = ["judge", "no_such.cu", str(ROOT)]
        with mock.patch.object(judge, "judge_files", side_effect=AssertionError):
            for words in ("there is no file no_such.cu", "is a folder"):
                with mock.patch("sys.argv", arguments), self.assertRaisesRegex(BadInput, words):
                    judge.main()
                del arguments[1]

    def test_what_the_header_lacks(self):
        self.lacks("{ return torch::matmul(q, k); }", "torch::matmul")

    @for_all
    def test_what_else_the_header_lacks(self):
        self.lacks("{ return q.softmax(-1); }", "Tensor::softmax")
        self.lacks(";\n#include <torch/nn.h>", "torch/nn.h, which f.cu:3 includes,")

    @for_all
    def test_the_status_of_a_refusal(self):
        self.ended(self.judged('{ TORCH_CHECK(false, "not today"); return q; }'), 2)

    def test_which_step_it_resembles(self):
        once = functools.cache(ladder.read_json)
        self.enterContext(mock.patch.object(ladder, "read_json", once))
        plain = {"backward": False, "shared": True, "conflicts": 1.0, "per_score": 1e-6, "d": 64}
        plain |= {"blocks": 6, "heads": 6, **dict.fromkeys(TOLD, False)}
        for line in RESEMBLES.strip().splitlines():
            changes, like, then, why = re.fullmatch(r"(.*?) *: (..) (..) (.*)", line).groups()
            changes = dict(word.partition("=")[::2] for word in changes.split())
            changes = {key: float(value or 1) for key, value in changes.items()}
            said = ladder.rung({**plain, **changes})
            self.assertEqual((said["like"], said["next"]), (like, then), line)
            self.assertTrue(said["why"].startswith(why), said["why"])
        for its, then in ((1, "07"), (0.99, "06"), (None, "07")):  # against 2.5 of this one
            with mock.patch.object(ladder, "per_score", lambda *_: its):
                said = ladder.rung({**plain, "per_score": 2.5})
                self.assertEqual((said["next"], said["its_per_score"]), (then, its))
        self.assertEqual(ladder.chapter("11"), "steps/11_hopper_backward/README.md")

    def test_what_tells_the_steps_apart(self):
        """Beside what the screens of docs/own_kernel.md show (test_new.py)."""
        case = Case(b=2, h=3, n=128, d=64)
        scores, out = 2 * 3 * 128 * 128 * 2, 6 * 128 * 64 * 4

        def told(key, text="", name="O", **buffers):
            of = {n: {"bytes": {"read": 5, "write": x}} for n, x in buffers.items()}
            kernel = {"buffers": of, "parts": {"HBM": 0.75}, "estimated_ms": 1, "blocks": 1}
            kernel |= {"bytes": {}, "hbm": {"read": 3, "write": 4}}
            kernel |= {"shared": {"read": 0, "wavefronts": 6, "ideal": 4}}
            other = {**kernel, "parts": {"tensor cores": 0.5}, "estimated_ms": 3, "blocks": 3}
            other |= {"shared": {**kernel["shared"], "read": 1}}
            called = mock.Mock(backward=False, tensors=lambda case: [])
            called.program.text, made = text, case.tensor("O")
            made.name = name
            answer = {"report": {"kernels": [kernel, other], "gpu": ""}, "outputs": {"O": made}}
            return ladder.traffic(called, Run(case, answer=answer))[key]

        for text, hopper, copies in (
            ("WGMMA", True, False), ("CUtensorMap", True, False), ("cp.async.bulk", True, True),
            ("cp_async", False, True), ("memcpy_async", False, True), ("", False, False),
        ):  # fmt: skip
            self.assertEqual((told("wgmma", text), told("copies", text)), (hopper, copies), text)
        again = 3 * out // 4  # of each kernel
        self.assertEqual([told("rewritten", O=x) for x in (again, again + 1)], [False, True])
        self.assertTrue(told("rewritten", name="out", out=again + 1))
        for key, buffers, known in (
            ("scores_written", {"S": scores // 2}, True),
            ("scores_written", {"S": scores // 2 - 1}, False),
            ("scores_written", {"K": scores}, False),
            ("scores_written", {"f32 6x128x128": scores}, True),
            ("scores_written", {"f32 6x128x64": scores}, False),
        ):
            self.assertEqual(told(key, **buffers), known, buffers)
        self.assertFalse(ladder.scores_written(Case(b=2, h=3, n=64, d=64), {"S": scores}))
        for key, value in (
            *(("hbm", 14), ("blocks", 3), ("conflicts", 1.5), ("shared", True), ("share", 0.375)),
            *(("limit", "tensor cores"), ("tensor_cores", True)),
        ):
            self.assertEqual(told(key), value)
        runs = []
        for d, read in (128, 2), (64, 1):
            problem = {"b": 1, "h": 1, "n": 1, "nk": 1, "d": d, "causal": False}
            runs.append({"step": "06_work_partitioning", "variant": "registers"})
            runs[-1] |= {"problem": problem, "traffic": {"requested": {"predicted": {"r": read}}}}
        with mock.patch.object(ladder, "read_json", lambda _: {"runs": runs}):
            found = [ladder.per_score("06", {"backward": False, "d": d}) for d in (64, 80, 128)]
        self.assertEqual(found, [1, 1, 2])

    def test_what_kernels_wrote_and_read(self):
        """Sums by atomics count, memsets and copies, which have no blocks, do not."""
        reads = {"Q": {"bytes": {"read": 8}}, "qkv": {"bytes": {"read": 2}}}
        bytes = {"read": 90, "write": 5, "atomic": 7}
        kernels = [{"blocks": n, "bytes": bytes, "buffers": reads} for n in (4, 1, 0)]
        for packed, read in (False, [16, 0, 0]), (True, [4, 4, 0]):
            called = mock.Mock(inputs=["Q", "K", "dO"], has=lambda role: packed and role == "qkv")
            moved = Called.by_kernels(called, ["O"], {"report": {"kernels": kernels}})
            self.assertEqual(moved["O"], {"read": 0, "write": 10, "atomic": 14})
            self.assertEqual([moved[name]["read"] for name in called.inputs], read)
        host, none = made_by_the_host, {"read": 1, "write": 0, "atomic": 0}
        for outputs, inputs, moved, what in (
            ({"O": 8}, ["Q"], {"O": {**none, "write": 8}, "Q": none}, ""),
            ({"O": 8}, [], {"O": {**none, "write": 7}}, "O has 8 bytes, and kernels wrote 7 of "
             "them"),
            ({"dQ": 8}, [], {"dQ": {**none, "write": 2, "atomic": 4}}, ""),
            ({"O": 8000}, [], {}, "O has 8,000 bytes, and kernels wrote 0 of them"),
            ({}, ["Q", "K"], {"Q": none, "K": {**none, "read": 0}}, "no kernel read K"),
        ):  # fmt: skip
            self.assertEqual(host(outputs, inputs, moved), what)

    @for_all
    def test_a_work_log(self):
        path = self.folder / "log.json"
        for note in ("one", "two"):
            words = ("--log", path, "--note", note, "--json", self.folder / "f.json")
            self.ended(self.judged("{ v.zero_(); return v; }", *words), 1)
        other = self.judged("{ return v; }", "--log", self.folder / "f.json")
        self.refused(other, 2, f"judge: --log {self.folder}/f.json is no work log")
        rows = json.loads(path.read_text())["worklog"]
        self.assertEqual(
            [(r["verdict"], r["note"]) for r in rows], [("changed", "one"), ("changed", "two")]
        )
        self.assertFalse(json.loads((self.folder / "f.json").read_text())[0]["ok"])
        shown = self.ended(said([ROOT / "scripts/compare.py", path])).stdout
        self.assertRegex(shown, r"f +changed .* two\n$")

    @for_all
    def test_a_suite(self):
        self.write("all/a.cu", HEAD + "{ v.zero_(); return v; }")
        self.write("all/b/b.cu", HEAD + "{ return torch::matmul(q, k); }")
        shown = self.ended(said([ROOT / "scripts/judge", "--suite", self.folder / "all"]), 1).stdout
        self.write("none/kernel.cuh", "")
        none = said([ROOT / "scripts/judge", "--suite", self.folder / "none"])
        self.refused(none, 2, f"judge: --suite {self.folder}/none has no .cu")
        changed = "a.cu: f changed: the call changes its input V"
        self.assertRegex(shown, rf"^{changed}\nb: not judged: torch::matmul is .*\n$")

    def test_arguments(self):
        for line in ROLE_OF.split(";"):
            word, kind, role = line.split()
            self.assertEqual(str(role_of(word, kind)), role, line)
        self.assertEqual([role_of(x, "tensor", alone=True) for x in "lm"], ["LSE", "LSE"])

        def bound(words):
            """Of "name:kind=default", a tensor without a kind."""
            made = []
            for word in words.split():
                name, _, kind = word.partition(":")
                kind, _, default = (kind or "tensor").partition("=")
                known = {"default": int(default)} if default else {}
                made.append({"name": name.strip("-"), "kind": kind, **known})
            return {"name": "f", "parameters": made}

        for words, names, roles in (
            ("grad_out Q K V attn_out softmax_lse sm_scale:float is_causal:bool", "",
             "dO Q K V O LSE scale causal"),
            ("q k v l o", "", "Q K V LSE O"),
            ("q k v l m", "", "Q K V l m"),
            ("a b c n:int", "", "Q K V N"),
            ("a b c w", "", "Q K V O"),
            ("a o b c", "", "Q O K V"),
            ("qkv h:int n:int", "", "qkv H N"),
            ("- - - -:bool", "v q k causal", "V Q K causal"),
            ("q k v dropout:float window_left:int", "", "Q K V 0 -1"),
            ("q k v abc:int=7 abd:tensor?", "", "Q K V 7 None"),
            ("q k v out:tensor? scale:float?", "", "Q K V None scale"),
            ("q k v cu_seqlens:tensor? seqlens:tensor?", "", "Q K V starts lengths"),
        ):  # fmt: skip
            found = roles_of(bound(words), tuple(names.split()))
            found = [str(r["value"]) if isinstance(r, dict) else r for r in found]
            self.assertEqual(found, roles.split(), words)
        for words, what in (
            ("q k", "f has no Q, K and V: say them with --call"),
            ("- -:float", "argument 1, 'tensor', of f is not known"),
            ("q k v abc:int", "argument 4, 'abc', of f is not known"),
            ("- - - -:int", "argument 4, 'int', of f is not known"),
        ):
            with self.assertRaisesRegex(BadInput, what):
                roles_of(bound(words), ("a",) if words[0] == "-" else ())
        said = parsed("g(d**-0.5, true, FALSE, -inf, 1.5, 2e3, softmax_scale, nq, block)")
        numbers = [{"value": x} for x in (True, False, -math.inf, 1.5, 2000.0)]
        self.assertEqual(said, ("g", ["scale", *numbers, "scale", "Nq", "block"]))
        self.assertEqual([type(role["value"]) for role in parsed("g(1, 1.0)")[1]], [int, float])
        name, roles = parsed("f(q, K, v, 1/sqrt(d), causal, 32, None)")
        self.assertEqual((name, roles[:5]), ("f", ["Q", "K", "V", "scale", "causal"]))
        self.assertEqual(roles[5:], [{"value": 32}, {"value": None}])
        with self.assertRaisesRegex(BadInput, "--call: 'what' is no argument that"):
            parsed("f(what)")
        with self.assertRaisesRegex(BadInput, "--call f: its arguments are missing"):
            parsed("f")


TOLD = ("decode", "scores_written", "tensor_cores", "wgmma", "copies", "rewritten")
RESEMBLES = """
decode                          : 13 13 one block per head
decode blocks=7                 : 13 13 decoding is limited by HBM
scores_written                  : 02 04 S and P go through HBM
scores_written shared=0         : 01 02 each score reads
wgmma tensor_cores              : 09 10 producer and consumer
tensor_cores conflicts=1.31     : 07 07 bank conflicts: 1.3 times
tensor_cores conflicts=1.3      : 07 07 no cp.async
tensor_cores copies             : 07 09 on Hopper TMA
shared=0                        : 03 04 every row reads
rewritten                       : 04 06 O moves once
conflicts=1.6                   : 06 02 bank conflicts: 1.6 times
conflicts=1.5                   : 06 07 fp32 products
per_score=1e6                   : 06 06 each row requests the keys anew
backward scores_written         : 05 05 P or dS
backward wgmma                  : 11 11 a warpgroup
backward tensor_cores           : 08 11 on Hopper products
backward                        : 05 08 fp32 products
"""
ROLE_OF = """dk int d; dK tensor dK; d tensor delta; d int d; l tensor l; m tensor m; m int N;
L int None; d_q tensor dQ; q_tensor tensor Q; input_k tensor K; device_v tensor V; p_out tensor? O;
q_gpu int None; block_size int block; tile bool None; is_causal bool causal; xyz tensor None;
stats tensor LSE; B_c int block; num_stages int stages; p_dropout float zero; kq int None"""
INLINE = """
torch::Tensor host(torch::Tensor x) {
  using namespace torch::indexing;
  auto y = x.transpose(0, 1).contiguous();
  auto z = torch::nn::functional::pad(y, torch::nn::functional::PadFuncOptions({0, 1}));
  auto w = z.index({Slice(1, None), "..."}).to(torch::kHalf).cpu().cuda();
  auto added = y.index({"...", None, 0});
  TORCH_CHECK(added.sizes() == at::IntArrayRef({3, 1}), added.sizes());
  TORCH_CHECK(torch::ones({7}).slice(0, 0, 7, 2).numel() == 4, "0, 2, 4, 6");
  TORCH_CHECK(torch::ones({7}).slice(0, 1, 7, 3).numel() == 2, "1, 4");
  auto fifth = torch::full({1}, 1, torch::kInt32) * 0.5 + torch::ones({1}, torch::kInt64);
  TORCH_CHECK(fifth.dtype() == torch::kFloat32 && fifth.item<float>() == 1.5f, fifth.dtype());
  auto half = torch::cat({w.reshape({-1}), w.sum(1)}, 0) * 0.5 + torch::ones({1}, w.options());
  half *= 2;
  return half.to(torch::kInt32);
}
torch::Tensor halves(torch::Tensor x) { return x.fill_(-2).to(torch::kHalf); }
__global__ void scale(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
torch::Tensor twice(torch::Tensor x, bool fail = false, int beyond = 0) {
  TORCH_CHECK(!fail, "it fails with ", 7);
  auto y = x.clone();
  scale<<<1, 32>>>(y.data_ptr<float>(), y.numel() + beyond);
  return y;
}"""


class Simulated(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ext = simulate.load_inline("inline", "", INLINE, ["host", "halves", "twice"])

    def test_tensors_of_the_header(self):
        x = memoryview(array.array("f", range(1, 7)).tobytes()).cast("B").cast("f", (2, 3))
        y = self.ext.host(x)  # w is [[2, 5, 0], [3, 6, 0]]
        self.assertEqual(y.tolist(), [4, 7, 2, 5, 8, 2, 9, 11])

    def test_float16(self):
        x = array.array("f", [1, -2])
        y = self.ext.halves(x)
        self.assertEqual(memoryview(y).tobytes(), array.array("H", [0xC000, 0xC000]).tobytes())
        self.assertEqual(list(x), [-2, -2])

    def test_a_function_of_the_extension(self):
        ext, x = self.ext, array.array("f", [1, 2, 3])
        self.assertEqual(list(memoryview(ext.twice(x, False, 0))), [2, 4, 6])
        self.assertEqual(ext.report()["kernels"][-1]["name"], "scale")
        for error, sentence, call in (
            (RuntimeError, "it fails with 7", lambda: ext.twice(x, True, 0)),
            (RuntimeError, "argument 3 is not of the type int", lambda: ext.twice(x, False, 0.5)),
            (TypeError, "4 arguments are given, not 3", lambda: ext.twice(x, False, 0, 1)),
            (TypeError, "argument 'x' is unknown or given twice", lambda: ext.twice(x, x=x)),
            (AttributeError, "binds no 'thrice', but host, halves, twice", lambda: ext.thrice(x)),
            (simulate.Finding, "kernel scale, .* at byte 12 of buffer f32 3",
             lambda: ext.twice(x, False, 1)),
        ):  # fmt: skip
            with self.assertRaisesRegex(error, sentence):
                call()


if __name__ == "__main__":
    main()
