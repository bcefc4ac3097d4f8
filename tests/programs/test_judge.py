"""./scripts/judge: right extensions of several styles, mutants, cheats, what it refuses; and
flash_steps.simulate."""

import argparse
import array
import functools
import json
import math
import tempfile
import unittest
from unittest import mock

from copies import ROOT, Folder, for_all, main, said
from flash_steps import attention_search, judge, ladder, simulate
from flash_steps.attention_call import Called, Run
from flash_steps.attention_case import Case, Judge
from flash_steps.command import BadInput
from flash_steps.extension import Program, build
from flash_steps.roles import parsed, role_of, roles_of

FOLDER = ROOT / "tests" / "extensions"
RIGHT = {  # and a part of what is said
    "rows": "causal",
    "tiles": "[B, N, H, d]",
    "wmma": "by its own check: N and d must be multiples of 16",
    "grouped": "also grouped heads",
    "masked": "also with a mask",
    "documents": "documents=[",
    "decode": "[B, N, H, d], float32, one query",
    "backward": "dV: largest error",
}


class Extension:
    """A built file, of which functions are judged."""

    def __init__(self, name):
        self.folder = tempfile.TemporaryDirectory()
        self.files = [str(FOLDER / name)]
        path, self.how = build(self.files, self.folder.name)
        self.program = Program(path, self.how, self.files)
        self.judge, self.cases = Judge(), {}

    def verdict(self, function):
        options = argparse.Namespace(function=function, call=None)
        (index, roles), *_ = judge.choose(self.program, self.how, options)
        called = Called(self.judge, self.program, index, roles)
        with mock.patch.object(attention_search, "look", lambda c: self.look(c, function)):
            return attention_search.judge_function(called, seed=1)

    def look(self, called, function, search=attention_search.look):
        """A style's later mutants are called as the right one is: each search takes its time."""
        if function[-1] in "234":
            return called.run(self.cases[function[:-2]])
        found = search(called)
        self.cases[function] = found.case
        return found

    def close(self):
        self.program.close()
        self.judge.close()
        self.folder.cleanup()


class Judged(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        attention_search.SECONDS = 0.5
        cls.forward, cls.cheats = Extension("forward.cu"), Extension("cheats.cu")

    @classmethod
    def tearDownClass(cls):
        cls.forward.close()
        cls.cheats.close()

    def test_right_ones(self):
        for name, part in RIGHT.items():
            with self.subTest(name):
                verdict = self.forward.verdict(name)
                text = judge.screen(verdict, "forward.cu")
                self.assertTrue(verdict["ok"], text)
                self.assertIn(part, " ".join(text.split()))
                self.assertLessEqual(len(text.splitlines()), 24)

    def test_right_ones_mutants(self):  # after the right ones
        names = [f["name"] for f in self.forward.program.functions]
        mutants = [name for name in names if name[-1].isdigit()]
        self.assertEqual(len(mutants), 16)
        for name in mutants:
            with self.subTest(name):
                self.assertFalse(self.forward.verdict(name)["ok"])

    @mock.patch.object(attention_search, "SECONDS", 0.1)
    def test_cheats(self):
        self.assertTrue(self.cheats.verdict("honest")["ok"])
        helpers = ("honest", "run")
        cheats = [f["name"] for f in self.cheats.program.functions if f["name"] not in helpers]
        self.assertEqual(len(cheats), 14)
        for name in cheats:
            with self.subTest(name):
                self.assertFalse(self.cheats.verdict(name)["ok"])
        self.assertEqual(self.cheats.verdict("by_the_host")["kind"], "host")
        self.assertEqual(self.cheats.verdict("changes_inputs")["kind"], "changed")


HEAD = """#include <torch/extension.h>
torch::Tensor f(torch::Tensor q, torch::Tensor k, torch::Tensor v) """


class Said(Folder):
    def judged(self, body, *words):
        return said([ROOT / "scripts/judge", self.write("f.cu", HEAD + body), *words])

    def test_what_the_header_lacks(self):
        for body, what in (
            ("{ return torch::matmul(q, k); }", "torch::matmul"),
            ("{ return q.softmax(-1); }", "Tensor::softmax"),
            (";\n#include <torch/nn.h>", "torch/nn.h, which f.cu:3 includes,"),
        ):
            said = f"judge: {what} is not in the simulator's torch"
            self.refused(self.judged(body), 2, said)

    def test_the_host_dereferences_a_tensor_of_the_device(self):
        done = self.ended(self.judged("{ q.fill_(q.data_ptr<float>()[0]); return q; }"), 1)
        self.assertIn("finding   host code dereferences a device pointer at f.cu:2", done.stdout)

    def test_all_calls_refused(self):
        done = self.ended(self.judged('{ TORCH_CHECK(false, "not today"); return q; }'), 2)
        self.assertRegex(done.stdout, r"\nrefused   not today \(B=1 ")

    def test_a_call_of_a_wrong_type(self):
        done = self.judged("{ return q; }", "--call", "f(Q, N, V)")
        self.refused(done, 2, "judge: --call: argument 2, 'N', of f must be a tensor")

    def test_an_output_that_each_tile_rescales_is_no_matrix_of_scores(self):
        case = Case(b=1, h=2, n=128, d=64)
        nothing = dict.fromkeys(("read", "write", "wavefronts", "ideal"), 0)
        written = {"bytes": {"read": 0, "written": 9 * case.bytes_of("O")}}
        kernel = {"buffers": {"out": written}, "parts": {}, "estimated_ms": 1, "bytes": {}}
        kernel["blocks"] = 1
        kernel |= {"shared": nothing, "hbm": nothing}
        for name, rewritten in (("out", True), ("", False)):
            outputs = {"O": argparse.Namespace(name=name)}
            answer = {"outputs": outputs, "report": {"kernels": [kernel], "gpu": "H200"}}
            program = argparse.Namespace(text="", functions=[{"name": "f", "parameters": []}])
            called = Called(None, program, 0, [])
            moved = ladder.traffic(called, Run(case, answer=answer))
            self.assertEqual(
                (moved["rewritten"], moved["scores_written"]), (rewritten, not rewritten)
            )

    def test_which_step_it_resembles(self):
        once = functools.cache(ladder.read_json)
        self.enterContext(mock.patch.object(ladder, "read_json", once))
        told = ("decode", "scores_written", "tensor_cores", "wgmma", "copies")
        plain = dict.fromkeys(told, False)
        plain |= {"rewritten": False, "backward": False, "shared": True, "conflicts": 1.0}
        plain |= {"per_score": 1e-6, "d": 64, "blocks": 6, "heads": 6}
        stored, hopper, cores = {"scores_written": True}, {"wgmma": True}, {"tensor_cores": True}
        copied, back = {"copies": True}, {"backward": True}
        for changes, found in (
            ({"decode": True}, ("13", "13", "one block per head")),
            ({"decode": True, "blocks": 7}, ("13", "13", "decoding is limited by HBM")),
            (stored, ("02", "04", "S and P go through HBM")),
            ({**stored, "shared": False}, ("01", "02", "each score reads")),
            ({**hopper, **cores}, ("09", "10", "producer and consumer")),
            ({**cores, "conflicts": 1.31}, ("07", "07", "bank conflicts: 1.3 times")),
            ({**cores, "conflicts": 1.3}, ("07", "07", "no cp.async")),
            ({**cores, **copied}, ("07", "09", "on Hopper TMA")),
            ({"shared": False}, ("03", "04", "every row reads")),
            ({"rewritten": True}, ("04", "06", "O moves once")),
            ({"conflicts": 1.6}, ("06", "02", "bank conflicts: 1.6 times")),
            ({"conflicts": 1.5}, ("06", "07", "fp32 products")),
            ({"per_score": 1e6}, ("06", "06", "each row requests the keys anew")),
            ({**back, **stored}, ("05", "05", "P or dS")),
            ({**back, **hopper}, ("11", "11", "a warpgroup")),
            ({**back, **cores}, ("08", "11", "on Hopper products")),
            (back, ("05", "08", "fp32 products")),
        ):
            said = ladder.rung({**plain, **changes})
            self.assertEqual((said["like"], said["next"]), found[:2], changes)
            self.assertTrue(said["why"].startswith(found[2]), said["why"])
        for its, then in ((1, "07"), (0.99, "06"), (None, "07")):  # against 2.5 of this one
            with mock.patch.object(ladder, "per_score", lambda *_: its):
                said = ladder.rung({**plain, "per_score": 2.5})
                self.assertEqual((said["next"], said["its_per_score"]), (then, its))
        self.assertEqual(ladder.chapter("11"), "steps/11_hopper_backward/README.md")

    def test_bytes_per_score_of_the_nearest_published_size(self):
        def run(d, n, bytes, **more):
            moved = {"traffic": {"requested": {"predicted": {"read": bytes, "write": bytes}}}}
            problem = {"b": 2, "h": 3, "n": n, "nk": 2 * n, "d": d, "causal": False}
            data = {"step": "06_work_partitioning", "variant": "registers", "problem": problem}
            data = {**data, **moved, "backward": None, **more}
            if "causal" in more:
                data["problem"]["causal"] = True
            return data

        later = run(64, 10, 9000, backward=run(64, 10, 60)["traffic"] and run(64, 10, 600))
        runs = [run(128, 10, 1200), run(64, 30, 2700), run(64, 20, 2400), later]
        runs[3]["variant"] = "swapped"
        runs += [run(64, 5, 1, causal=True), run(64, 5, 1, step="07_x"), run(64, 5, None)]
        runs[-1]["traffic"] = None
        forward, backward = ({"d": 64, "backward": way} for way in (False, True))
        with mock.patch.object(ladder, "read_json", lambda _: {"runs": runs}):
            for d, each in ((64, 4800 / 4800), (80, 4800 / 4800), (128, 2400 / 1200)):
                self.assertEqual(ladder.per_score("06", {**forward, "d": d}), each)
            self.assertIsNone(ladder.per_score("06", backward))
            runs[2]["backward"] = run(64, 20, 600)
            self.assertEqual(ladder.per_score("06", backward), 1200 / 4800)

    def test_what_moved(self):
        case = Case(b=2, h=3, n=128, d=64, type="float32")

        def kernel(ms, part, share, **buffers):
            rows = {
                name: {"bytes": {"read": 5, "write": x, "atomic": 1}} for name, x in buffers.items()
            }
            found = {"buffers": rows, "parts": {part: share}, "estimated_ms": ms, "blocks": 4 * ms}
            found |= {"bytes": {"read": 10, "write": 20}, "hbm": {"read": 3, "write": 4}}
            return found | {"shared": {"read": 0, "write": 0, "wavefronts": 6, "ideal": 4}}

        def moved(case, kernels, text="", tensors="QKV", outputs="O", backward=False):
            called = mock.Mock(backward=backward, tensors=lambda case: list(tensors))
            called.program.text = text
            report = {"kernels": kernels, "gpu": "H200"}
            made = {name: case.tensor(name) for name in outputs}
            return ladder.traffic(called, Run(case, answer={"report": report, "outputs": made}))

        scores = 2 * 3 * 128 * 128 * 2
        two = [kernel(1, "HBM", 0.75, S=scores - 2), kernel(3, "tensor cores", 0.5, S=1)]
        two[1]["shared"]["read"] = 1
        found = moved(case, two)
        self.assertEqual(found["problem"], str(case))
        numbers = [found[key] for key in ("per_score", "requested", "hbm", "ms", "conflicts")]
        self.assertEqual(numbers, [60 / (6 * 128 * 128), 60, 14, 4, 1.5])
        self.assertEqual([found[key] for key in ("share", "blocks", "heads")], [1.5 / 4, 12, 6])
        self.assertEqual(found["compulsory"], 6 * 128 * 64 * 4 * 4)
        words = [found[key] for key in ("limit", "shared", "tensor_cores", "scores_written")]
        self.assertEqual(words, ["tensor cores", True, True, True])
        found = moved(case, two[:1], tensors=("Q", "K", "V", "dO"), outputs=("dQ", "dK", "LSE"))
        self.assertEqual(found["compulsory"], 6 * (128 * 64 * 4 * 6 + 4 * 128))
        words = [found[key] for key in ("limit", "shared", "tensor_cores", "scores_written")]
        self.assertEqual(words, ["HBM", False, False, False])
        for text, words in (
            ("WGMMA", (True, False)),
            ("CUtensorMap", (True, False)),
            ("cp.async.bulk", (True, True)),
            ("cp_async", (False, True)),
            ("cuda::memcpy_async", (False, True)),
            ("", (False, False)),
        ):
            found = moved(case, two, text)
            self.assertEqual((found["wgmma"], found["copies"]), words, text)
        for bytes, again in ((1.5 * 6 * 128 * 64 * 4 - 1, False), (1.5 * 6 * 128 * 64 * 4, True)):
            self.assertEqual(moved(case, [kernel(1, "x", 1, O=bytes)])["rewritten"], again)
        for name, bytes, known in (
            ("S", scores, True),
            ("S", scores - 1, False),
            ("K", scores, False),
            ("f32 6x128x128", scores, True),
            ("f32 6x128x64", 9 * scores, False),
        ):
            self.assertEqual(ladder.scores_written(case, {name: bytes}), known, name)
        two[0]["parts"] = {}
        for ms in (1, 0):
            two[0]["estimated_ms"] = ms
            little = moved(case, two[:1], backward=True)
            self.assertEqual((little["limit"], little["share"], little["backward"]), ("", 0, True))
        small = Case(b=2, h=3, n=64, d=64, type="float32")
        self.assertFalse(ladder.scores_written(small, {"S": scores}))
        like = {"like": "05", "next": "08", "its_per_score": 0, "why": "w"}
        found = moved(case, two[1:])
        said = dict(ladder.rows(found, like))
        self.assertNotIn("published", said["like"])
        self.assertIn("tensor cores (50%)", said["time"])
        self.assertIn("the L2 still holds the rest", said["moves"])
        self.assertNotIn("the L2", dict(ladder.rows({**found, "compulsory": 7}, like))["moves"])

    def test_what_kernels_wrote_and_read(self):
        """Sums by atomics count, memsets and copies, which have no blocks, do not."""
        reads = {"Q": {"bytes": {"read": 8}}, "qkv": {"bytes": {"read": 2}}}
        bytes = {"read": 90, "write": 5, "atomic": 7}
        kernels = [{"blocks": n, "bytes": bytes, "buffers": reads} for n in (4, 1, 0)]
        called = mock.Mock(inputs=["Q", "K", "dO"], has=lambda role: False)
        answer = {"report": {"kernels": kernels}}
        table = Called.by_kernels(called, {"O": None}, answer)
        self.assertEqual(table["O"]["by_kernels"], {"read": 0, "write": 10, "atomic": 14})
        read = [table[name]["by_kernels"]["read"] for name in ("Q", "K", "dO")]
        self.assertEqual(read, [16, 0, 0])
        self.assertTrue(all(row["spec"] == {"read": 1} for row in table.values()))
        called.has = lambda role: role == "qkv"
        table = Called.by_kernels(called, {}, answer)
        read = [table[name]["by_kernels"]["read"] for name in ("Q", "K", "dO")]
        self.assertEqual(read, [4, 4, 0])

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
        function = {
            "name": "f",
            "parameters": [{"kind": k, "name": ""} for k in ("tensor", "float")],
        }
        with self.assertRaisesRegex(BadInput, "argument 1, 'tensor', of f is not known"):
            roles_of(function)
        names = ("grad_out", "Q", "K", "V", "attn_out", "softmax_lse", "sm_scale", "is_causal")
        kinds = ["tensor"] * 6 + ["float", "bool"]
        function["parameters"] = [{"kind": k, "name": n} for k, n in zip(kinds, names)]
        self.assertEqual(roles_of(function), ["dO", "Q", "K", "V", "O", "LSE", "scale", "causal"])
        for word, kind, role in (
            *(
                ("dk", "int", "d"),
                ("dK", "tensor", "dK"),
                ("d", "tensor", "delta"),
                ("d", "int", "d"),
            ),
            *(("l", "tensor", "l"), ("m", "tensor", "m"), ("m", "int", "N"), ("L", "int", None)),
            *(("d_q", "tensor", "dQ"), ("q_tensor", "tensor", "Q"), ("input_k", "tensor", "K")),
            *(("device_v", "tensor", "V"), ("p_out", "tensor?", "O"), ("q_gpu", "int", None)),
            *(
                ("block_size", "int", "block"),
                ("tile", "bool", None),
                ("is_causal", "bool", "causal"),
            ),
            *(("xyz", "tensor", None), ("stats", "tensor", "LSE"), ("B_c", "int", "block")),
            *(("num_stages", "int", "stages"), ("p_dropout", "float", "zero"), ("kq", "int", None)),
        ):
            self.assertEqual(role_of(word, kind), role, (word, kind))
        self.assertEqual([role_of(x, "tensor", alone=True) for x in "lm"], ["LSE", "LSE"])

        def bound(*parameters):
            made = [dict(zip(("name", "kind", "default"), words)) for words in parameters]
            return {"name": "f", "parameters": made}

        qkv = [(x, "tensor") for x in "qkv"]
        for function, names, roles in (
            (bound(*qkv, ("l", "tensor"), ("o", "tensor")), (), ["Q", "K", "V", "LSE", "O"]),
            (bound(*qkv, ("l", "tensor"), ("m", "tensor")), (), ["Q", "K", "V", "l", "m"]),
            (bound(*((x, "tensor") for x in "abc"), ("n", "int")), (), ["Q", "K", "V", "N"]),
            (bound(*((x, "tensor") for x in "abcw")), (), ["Q", "K", "V", "O"]),
            (
                bound(("a", "tensor"), ("o", "tensor"), *((x, "tensor") for x in "bc")),
                (),
                ["Q", "O", "K", "V"],
            ),
            (bound(("qkv", "tensor"), ("h", "int"), ("n", "int")), (), ["qkv", "H", "N"]),
            (
                bound(*[("", "tensor")] * 3, ("", "bool")),
                tuple("vqk") + ("causal",),
                ["V", "Q", "K", "causal"],
            ),
            (
                bound(*qkv, ("dropout", "float"), ("window_left", "int")),
                (),
                ["Q", "K", "V", {"value": 0}, {"value": -1}],
            ),
            (
                bound(*qkv, ("abc", "int", 7), ("abd", "tensor?")),
                (),
                ["Q", "K", "V", {"value": 7}, {"value": None}],
            ),
            (
                bound(*qkv, ("out", "tensor?"), ("scale", "float?")),
                (),
                ["Q", "K", "V", {"value": None}, "scale"],
            ),
        ):
            self.assertEqual(roles_of(function, names), roles)
        for function, words in (
            (bound(("q", "tensor"), ("k", "tensor")), "f has no Q, K and V: say them with --call"),
            (bound(*qkv, ("abc", "int")), "argument 4, 'abc', of f is not known"),
            (bound(*[("", "tensor")] * 3, ("", "int")), "argument 4, 'int', of f is not known"),
        ):
            with self.assertRaisesRegex(BadInput, words):
                roles_of(function, ("a",) if not function["parameters"][0]["name"] else ())
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
