"""flash_steps.attention() as PyTorch sees it. Skipped without PyTorch.

On a GPU the libraries of the preset gpu run. Elsewhere one of the simulator's runs, on CPU tensors:
preload it, since its shared memory is thread-local storage, and use one, for device memory:

    LD_PRELOAD=build/sim/steps/lib06_work_partitioning.so \\
        python3 tests/lab/test_torch_operator.py build/sim
"""

import importlib
import math
import os
import sys
import unittest
from unittest import mock

from basis import ROOT, for_all, main
from flash_steps.step_library import Refused

try:
    import flash_steps
    import torch
    from flash_steps import torch_operator
except ImportError:
    torch = None

GPU = torch is not None and torch.cuda.is_available()
PRELOADED = os.environ.get("LD_PRELOAD", "")
CASES = {  # step: sizes b h hkv n nk d, causal
    "01": [(1, 2, 2, 5, 5, 32, True), (1, 2, 2, 5, 5, 32, False)],
    "04": [(1, 2, 2, 5, 5, 32, True)],
    "05": [(1, 2, 2, 5, 5, 32, True)],
    "06": [(1, 2, 1, 5, 5, 32, True), (1, 2, 2, 5, 5, 64, False)],
    "07": [(1, 2, 1, 4, 7, 64, True)],
    "08": [(1, 2, 1, 4, 7, 64, True), (1, 2, 2, 5, 5, 64, False)],
    "09": [(1, 2, 1, 4, 7, 64, True)],
    "10": [(1, 2, 1, 4, 7, 64, True), (1, 2, 2, 3, 3, 128, False)],
    "11": [(1, 2, 1, 4, 7, 64, True)],
}


class Simulated:
    """A library whose kernels may touch only its own memory: a run copies there and back."""

    def __init__(self, library):
        self.library, self.kind, self.variants = library, library.kind, library.variants

    def runner(self, direction, place, sizes, addresses, stream):
        queries, keys = (sizes["b"] * sizes[h] * sizes[n] for h, n in (("h", "n"), ("hkv", "nk")))
        wide = sizes["d"] * (4 if self.variants[place]["dtype"] == "fp32" else 2)
        size = dict.fromkeys(("Q", "O", "dO", "dQ"), queries * wide)
        size |= dict.fromkeys(("K", "V", "dK", "dV"), keys * wide) | {"LSE": queries * 4}

        def run():
            lib = self.library
            at = {name: lib.malloc(size[name]) for name in addresses}
            for name, to in at.items():
                lib._require(lib._c.fa_upload(to, addresses[name], size[name]))
            try:
                lib.runner(direction, place, sizes, at)()
                for name, to in at.items():
                    lib._require(lib._c.fa_download(addresses[name], to, size[name]))
            finally:
                for to in at.values():
                    lib.free(to)

        return run


def exact(q, k, v, causal):
    """In the type of its tensors; rows end at the last key."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
    if causal:
        n, nk = s.shape[2:]
        s = s.masked_fill(~torch.ones(n, nk, dtype=bool, device=q.device).tril(nk - n), -math.inf)
    return torch.softmax(s, 3) @ v


CARD = mock.Mock(type="cuda", index=0)


class Tensor:
    """What the operators ask of a tensor."""

    def __init__(self, *shape, dtype="bfloat16", device=CARD, address=32):
        self.shape, self.dtype, self.device, self.address = shape, dtype, device, address
        self.is_cuda, self.done = device.type == "cuda", []

    def dim(self):
        return len(self.shape)

    def data_ptr(self):
        return self.address

    def contiguous(self):
        return self

    def is_contiguous(self):
        return self.address != 48  # as if strided

    def clone(self):
        return Tensor(*self.shape, dtype=self.dtype, address=64)

    def new_empty(self, shape, dtype=None):
        return Tensor(*shape, dtype=dtype or self.dtype, address=128)

    def zero_(self):
        self.done.append("zero")

    def to(self, dtype):
        self.done.append(dtype)
        return self

    def repeat_interleave(self, times, axis):
        self.done.append((times, axis))
        return self


def variant(name, dtype="bf16", backward=False, lse=True, prepare=False, gqa=True, cache8=False):
    known = {"name": name, "dtype": dtype, "backward": backward, "writes_lse": lse}
    return {**known, "prepare": prepare, "supports": {"gqa": gqa}, "cache8": cache8}


class Calls(unittest.TestCase):
    """What the operators call, with stand-ins for PyTorch and the libraries."""

    LIBRARIES = {
        "01": [variant("naive", "fp32", lse=False, gqa=False)],
        "05": [variant("standard", "fp32", True, lse=False), variant("recompute", "fp32", True)],
        "10": [variant("fp8", cache8=True), variant("first"), variant("last")],
        "11": [variant("columns", backward=True)],
        "12": [variant("late", prepare=True)],
        "15": [variant("lists", backward=True), variant("wgmma_lists", backward=True)],
        "17": [variant("splits"), variant("resident"), variant("pairs")],
    }

    def setUp(self):
        self.impl, torch = {}, mock.MagicMock()
        torch.float32, torch.bfloat16, torch.int32 = "float32", "bfloat16", "int32"
        torch.bool = "bool"
        torch.OutOfMemoryError = MemoryError
        torch.compiler.assume_constant_result = lambda f: f
        torch.library.impl = lambda name, key: lambda f: self.impl.setdefault(name[13:], f)
        torch.library.register_fake = lambda name: lambda f: self.impl.setdefault("fake " + name, f)
        torch.is_autocast_enabled.return_value = False
        torch.cuda.current_stream.return_value = self.stream = mock.Mock(cuda_stream=7)
        torch.cuda.is_current_stream_capturing.return_value = False
        torch.empty_like = lambda x: Tensor(*x.shape, address=256)
        self.torch, name = torch, "flash_steps.torch_operator"
        self.enterContext(mock.patch.dict(sys.modules, {"torch": torch}))
        sys.modules.pop(name, None)
        self.operator = importlib.import_module(name)
        self.calls, self.fails, self.libraries = [], [], {}
        self.find_library = self.operator._library.__wrapped__
        self.enterContext(mock.patch.object(self.operator, "_library", self.library))

    def library(self, step):
        return self.libraries.setdefault(
            step, mock.Mock(kind="gpu", variants=self.LIBRARIES[step], runner=self.runner(step))
        )

    def runner(self, step):
        def runner(direction, place, sizes, addresses, stream):
            def run():
                self.calls.append((step, direction, place, sizes, addresses, stream))
                if self.fails:
                    raise self.fails.pop(0)

            return run

        return runner

    def qkv(self, **how):
        return [Tensor(2, h, n, 64, **how) for h, n in ((4, 5), (2, 7), (2, 7))]

    def test_a_forward(self):
        q, k, v = self.qkv()
        k.address = 40  # not aligned
        o, lse = self.impl["forward"](q, k, v, True, "10", None, None)
        ((step, direction, place, sizes, addresses, stream),) = self.calls
        self.assertEqual((step, direction, place, stream), ("10", "forward", 2, 7))
        told = dict(b=2, h=4, hkv=2, n=5, nk=7, d=64, causal=True, lengths=None)
        self.assertEqual(sizes, told)
        self.assertEqual(addresses, {"Q": 32, "K": 64, "V": 32, "O": 128, "LSE": 128})
        self.assertEqual(
            (o.shape, lse.shape, lse.dtype, lse.done), ((2, 4, 5, 64), (2, 4, 5), "float32", [])
        )
        self.calls.clear()
        self.impl["forward"](*self.qkv(), False, "12", [1, 2], None)
        self.assertEqual([call[1] for call in self.calls], ["prepare", "forward"])
        self.assertEqual([call[3]["lengths"] for call in self.calls], [None, [1, 2]])
        self.assertEqual(list(self.calls[0][4]), ["Q", "K", "V"])
        fp32 = self.qkv(dtype="float32")
        _, lse = self.impl["forward"](fp32[0], fp32[1], fp32[2], True, "01", None, None)
        self.assertEqual(lse.done, ["zero"])

    def test_a_backward(self):
        q, k, v = self.qkv()
        o, lse, do = Tensor(2, 4, 5, 64), Tensor(2, 4, 5), Tensor(2, 4, 5, 64, address=24)
        grads = self.impl["backward"](q, k, v, o, lse, do, None, True, "10")
        self.assertEqual([x.shape for x in grads], [q.shape, k.shape, v.shape])
        ((step, direction, place, _, addresses, _),) = self.calls
        self.assertEqual((step, direction, place), ("11", "backward", 0))
        self.assertEqual(list(addresses), ["Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV"])
        self.assertEqual(addresses["dO"], 64)
        self.calls.clear()
        self.impl["backward"](q, k, v, o, lse, do, None, True, "01")  # keeps P
        self.assertEqual(
            [call[:3] for call in self.calls], [("05", "forward", 0), ("05", "backward", 0)]
        )
        self.assertEqual([call[4]["O"] for call in self.calls], [256, 256])
        self.assertEqual(list(self.calls[0][4]), ["Q", "K", "V", "O"])
        with self.assertRaisesRegex(ValueError, "step 12 has no backward"):
            self.impl["backward"](q, k, v, o, lse, do, None, True, "12")
        self.assertEqual(self.operator.BACKWARD["07"], "08")

    def test_attention(self):
        forward = self.operator._forward = mock.Mock(return_value=["o", "lse"])
        q, k, v = self.qkv()
        self.assertEqual(self.operator.attention(q, k, v, True, 11, lengths=[1]), "o")
        self.assertEqual(forward.call_args.args, (q, k, v, True, "11", [1], None))
        self.assertEqual((q.done, k.done), ([], []))
        for tiles, step in ((None, "10"), ("tiles", "15 wgmma_lists")):
            self.operator.attention(q, k, v, tiles=tiles)
            self.assertEqual(forward.call_args.args[3:], (False, step, None, tiles))
        self.torch.is_autocast_enabled.return_value = True
        self.operator.attention(q, k, v, step="1")
        self.assertEqual(forward.call_args.args[3:], (False, "01", None, None))
        self.assertEqual(
            (q.done, k.done, v.done), (["float32"], ["float32", (2, 1)], ["float32", (2, 1)])
        )

    def test_tiles(self):
        q, k, v = Tensor(2, 4, 129, 64), Tensor(2, 2, 257, 64), Tensor(2, 2, 257, 64)
        self.enterContext(mock.patch.object(self.operator, "_differ", lambda *_: False))
        for shape, heads in (((2, 3), 1), ((4, 2, 3), 4), ((2, 4, 2, 3), 8)):
            tiles = Tensor(*shape, dtype="bool", address=96)
            tiles.cpu = lambda it=tiles: it
            o, lse = self.impl["forward"](q, k, v, False, "15 lists", None, tiles)
            self.impl["backward"](q, k, v, o, lse, q, tiles, False, "15 wgmma_lists")
            found = [(way, place, sizes["tiles"]) for _, way, place, sizes, *_ in self.calls]
            told = heads, 96
            self.assertEqual(found, [("forward", 0, told), ("backward", 1, told)])
            self.calls.clear()
        for wrong in (Tensor(2, 4, dtype="bool"), Tensor(2, 3, dtype="int32"), Tensor(8, 2, 3)):
            said = r"tiles must be .*bool of shape \(2, 3\), \(4, 2, 3\) or \(2, 4, 2, 3\), not "
            with self.assertRaisesRegex(ValueError, said):
                self.impl["forward"](q, k, v, False, "15 lists", None, wrong)
        self.assertEqual(self.calls, [])

    def test_refusals(self):
        def refused(words, q, k, v, step="10"):
            with self.assertRaisesRegex(ValueError, words):
                self.impl["forward"](q, k, v, True, step, None, None)
            self.assertEqual(self.calls, [])

        q, k, v = self.qkv()
        refused("step 10: k has 3 dim", q, Tensor(2, 7, 64), v)
        refused(
            "v is float32, the step reads bf16", q, k, Tensor(2, 2, 7, 64, dtype="torch.float32")
        )
        second = mock.Mock(type="cuda", index=1)
        refused("k is on .*: all must be on GPU 0", q, Tensor(2, 2, 7, 64, device=second), v)
        other = self.qkv(device=second)
        host = self.qkv(device=mock.Mock(type="cpu", index=None))
        refused("q is on .*: all must be on GPU 0", *other)
        refused("q is on .*: the steps run on a CUDA GPU", *host)
        for k_shape, v_shape in (
            ((2, 2, 7, 64), (2, 2, 8, 64)),
            *((x, x) for x in ((1, 2, 7, 64), (2, 2, 7, 32), (2, 3, 7, 64), (2, 8, 7, 64))),
        ):
            tensors = Tensor(2, 4, 5, 64), Tensor(*k_shape), Tensor(*v_shape)
            refused("q, k, v do not fit: .2, 4, 5, 64., ", *tensors)
        refused("step 10 has no variant 'fp8': first, last", q, k, v, "10 fp8")
        self.impl["forward"](q, k, v, True, "10 first", None, None)
        self.assertEqual(self.calls[-1][2], 1)

    def test_a_latent_cache(self):
        q, cache = Tensor(2, 16, 1, 576), Tensor(2, 300, 576, address=96)
        pool, pages = Tensor(9, 64, 576, address=96), Tensor(2, 4, dtype="int32", address=160)
        decode = self.impl["latent_decode"]
        self.assertEqual(decode(q, cache, None, None).shape, (2, 16, 1, 512))
        decode(q, pool, [1, 200], pages)
        told = dict(b=2, h=16, hkv=1, n=1, d=576, causal=True)
        for (step, direction, place, sizes, addresses, _), more in zip(
            self.calls,
            (dict(nk=300, lengths=None, page=0), dict(nk=256, lengths=[1, 200], page=64)),
        ):
            self.assertEqual((step, direction, place, sizes), ("17", "forward", 2, told | more))
            table = {"table": 160} if sizes["page"] else {}
            self.assertEqual(addresses, {"Q": 32, "K": 96, "O": 128, "LSE": 128, **table})
        self.calls.clear()
        other = mock.Mock(type="cuda", index=1)
        for words, inputs in (
            ("q .2, 16, 576.: .B, H, N, 576.", (Tensor(2, 16, 576), cache, None, None)),
            ("q .2, 16, 1, 512.: ", (Tensor(2, 16, 1, 512), cache, None, None)),
            ("cache .*, contiguous", (q, Tensor(2, 300, 576, address=48), None, None)),
            ("cache .9, 64, 576.: 2 batch entries", (q, pool, None, None)),
            ("pages .2, 4.: int32", (q, pool, None, Tensor(2, 4, dtype="int64"))),
            ("pages .3, 4.: int32", (q, pool, None, Tensor(3, 4, dtype="int32"))),
            ("the step reads bf16", (q, Tensor(2, 300, 576, dtype="torch.half"), None, None)),
            ("is on .*: all must be on GPU 0", (q, Tensor(2, 3, 576, device=other), None, None)),
        ):
            with self.assertRaisesRegex(ValueError, f"flash_steps.latent_decode: .*{words}"):
                decode(*inputs)
        self.assertEqual(self.calls, [])

    def test_what_a_run_that_fails_raises(self):
        q, k, v = self.qkv()
        none, room = "the device cannot allocate 5 B", Refused(3, "no room")
        for fails, raises, runs in (
            ([Refused(2, "n 5")], ValueError, 1),
            ([Refused(1, "wrong")], RuntimeError, 1),
            ([room], None, 2),
            ([room, Refused(3, "no GPU")], RuntimeError, 2),
            ([room, Refused(3, none)], MemoryError, 2),
        ):
            self.calls.clear()
            self.torch.cuda.empty_cache.reset_mock()
            self.fails = list(fails)
            if raises:
                with self.assertRaisesRegex(raises, f"step 10: {fails[-1]}"):
                    self.impl["forward"](q, k, v, True, "10", None, None)
            else:
                self.impl["forward"](q, k, v, True, "10", None, None)
            self.assertEqual(len(self.calls), runs)
            self.assertEqual(self.torch.cuda.empty_cache.call_count, runs - 1)

    def test_another_stream_waits_for_the_last(self):
        def forward():
            self.impl["forward"](*self.qkv(), True, "10", None, None)

        first, second = self.stream, mock.Mock(cuda_stream=8)
        forward()
        forward()
        first.wait_stream.assert_not_called()
        self.torch.cuda.current_stream.return_value = second
        self.torch.cuda.is_current_stream_capturing.return_value = True
        forward()
        second.wait_stream.assert_not_called()
        self.torch.cuda.is_current_stream_capturing.return_value = False
        forward()
        second.wait_stream.assert_called_once_with(first)
        forward()
        second.wait_stream.assert_called_once_with(first)

    def test_libraries_are_found(self):
        find, library = self.operator, self.find_library
        for name, value in (("find_libraries", lambda _: ["02_x", "10_y"]), ("StepLibrary", str)):
            self.enterContext(mock.patch.object(find, name, value))
        folder = os.path.join(ROOT, "build", "gpu")
        with mock.patch.object(find, "INSTALLED", "/none"):
            self.assertEqual(library("10"), f"{folder}/steps/lib10_y.so")
            self.assertEqual(library("02_x"), f"{folder}/steps/lib02_x.so")
            said = f"no step '11' in {folder}, which has 02_x, 10_y: cmake --preset gpu"
            with self.assertRaisesRegex(ValueError, said):
                library("11")
        here = os.path.dirname(os.path.abspath(__file__))
        with mock.patch.object(find, "INSTALLED", here):
            with self.assertRaisesRegex(
                ValueError, 'STEPS="02 10 1" pip install . in the checkout'
            ):
                library("1")


@for_all
@unittest.skipUnless(torch and (GPU or PRELOADED), "needs PyTorch with a GPU, or preloaded steps")
class Operator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.device = "cuda" if GPU else "cpu"
        if GPU:
            return
        real = torch_operator._library.__wrapped__
        torch_operator._folder = lambda: os.path.join(ROOT, "build", "sim")
        cls.simulated = {}

        def library(step):
            return cls.simulated.setdefault(step, Simulated(real(step)))

        torch_operator._library = library

    def cases(self):
        for step, problems in CASES.items():
            if GPU or f"lib{step}_" in PRELOADED:
                for problem in problems:
                    with self.subTest(step=step, problem=problem):
                        yield step, problem

    def some(self, *names):
        return [step for step in names if GPU or f"lib{step}_" in PRELOADED]

    def inputs(self, step, problem, grad=True):
        b, h, hkv, n, nk, d, _ = problem
        torch.manual_seed(n + d)
        dtype = torch_operator.TYPES[torch_operator._reads(step)[0]]
        kind = dict(device=self.device, dtype=dtype, requires_grad=grad)
        shapes = (b, h, n, d), (b, hkv, nk, d), (b, hkv, nk, d)
        return [torch.randn(shape, **kind) for shape in shapes]

    def near(self, got, want, scale=1.0):
        bound = scale * (2e-5 if got.dtype == torch.float32 else 2e-2)
        error = (got.double() - want.double()).abs().max().item()
        self.assertLessEqual(error, bound * max(1.0, want.abs().max().item()))

    def test_results_and_gradients(self):
        for step, problem in self.cases():
            for size in (1, 64):  # scores reach 200
                q, k, v = self.inputs(step, problem)
                inputs = [(q * size).detach().requires_grad_(), k, v]
                out = flash_steps.attention(*inputs, causal=problem[-1], step=step)
                doubles = [x.detach().double().requires_grad_() for x in inputs]
                want = exact(*doubles, problem[-1])
                self.near(out, want)
                do = torch.randn_like(out)
                got = torch.autograd.grad(out, inputs, do)
                want = torch.autograd.grad(want, doubles, do.double())
                for x, y, bound in zip(got, want, (2, 2 * size, 2)):  # dK is a sum of rows of Q
                    self.near(x, y, bound)

    def test_opcheck(self):
        """PyTorch's own tests of an operator: schema, autograd, fake tensors, compiled."""
        for step, problem in self.cases():
            inputs = [*self.inputs(step, problem), problem[-1], step, None, None]
            if torch_operator._reads(step)[1] or problem[1] == problem[2]:
                torch.library.opcheck(torch_operator._forward, inputs, rtol=2e-2, atol=2e-2)

    def test_compiled(self):
        for step in self.some("06", "08", "10"):
            inputs = self.inputs(step, (1, 4, 2, 33, 33, 64, True))

            def layer(q, k, v):
                return flash_steps.attention(q * 2, k, v, causal=True, step=step).sin()

            backend = "inductor" if GPU else "aot_eager"
            compiled = torch.compile(layer, fullgraph=True, backend=backend)
            self.near(compiled(*inputs), layer(*inputs))
            got, want = (
                torch.autograd.grad(f(*inputs).float().sum(), inputs) for f in (compiled, layer)
            )
            for x, y in zip(got, want):
                self.near(x, y, 2)

    @unittest.skipUnless(GPU, "the simulator has no streams")
    def test_a_side_stream(self):
        inputs = self.inputs("11", (2, 4, 4, 1024, 1024, 64, True))
        want = torch.autograd.grad(flash_steps.attention(*inputs, True, "11").sum(), inputs)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # work on another stream would be too early
            late = [(x * 1).detach().requires_grad_() for x in inputs]
            got = torch.autograd.grad(flash_steps.attention(*late, True, "11").sum(), late)
        again = torch.autograd.grad(flash_steps.attention(*inputs, True, "11").sum(), inputs)
        torch.cuda.synchronize()
        for x, y, z in zip(want, got, again):
            self.near(y, x)
            self.near(z, x)

    def test_a_cache_with_lengths(self):
        for step in self.some("13"):
            q, k, v = self.inputs(step, (2, 4, 2, 1, 40, 64, True), grad=False)
            out = flash_steps.attention(q, k, v, True, step, lengths=[40, 7])
            self.near(out[1:], exact(q[1:], k[1:, :, :7], v[1:, :, :7], True))
            with self.assertRaisesRegex(ValueError, "no backward"):
                flash_steps.attention(q.requires_grad_(), k, v, True, step).sum().backward()

    def test_tiles(self):
        for step in self.some("15"):
            for variant in ("15 lists", "15 wgmma_lists"):
                inputs = self.inputs(step, (2, 4, 2, 200, 300, 64, False))
                tiles = torch.rand(2, 2, 2, 3) < 0.6
                tiles[0, 0, 0] = False  # 128 rows of two heads see nothing
                if variant == "15 lists":  # else heads that share keys have different tiles
                    tiles = tiles.repeat_interleave(2, 1)
                else:
                    tiles = torch.cat((tiles, torch.rand(2, 2, 2, 3) < 0.6), 1)
                seen = tiles.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :200, :300]
                seen = seen.to(self.device)
                given = [*inputs, False, variant, None, tiles]
                torch.library.opcheck(torch_operator._forward, given, rtol=2e-2, atol=2e-2)
                out = flash_steps.attention(*inputs, step=variant, tiles=tiles)
                q, k, v = (x.detach().double().requires_grad_() for x in inputs)
                k2, v2 = (x.repeat_interleave(2, 1) for x in (k, v))
                s = (q @ k2.transpose(2, 3) / 8).masked_fill(~seen, -math.inf)
                want = torch.softmax(s, 3).nan_to_num() @ v2
                self.near(out, want)
                do = torch.randn_like(out)
                gradients = torch.autograd.grad(want, (q, k, v), do.double())
                for x, y in zip(torch.autograd.grad(out, inputs, do), gradients):
                    self.near(x, y.nan_to_num(), 2)

    @unittest.skipUnless(GPU, "needs a GPU")
    def test_a_latent_cache(self):
        for _ in self.some("17"):
            torch.manual_seed(1)
            q, pool = (
                torch.randn(*shape, device=self.device, dtype=torch.bfloat16)
                for shape in ((2, 16, 2, 576), (9, 64, 576))
            )
            pages = torch.randperm(9, device=self.device)[:8].view(2, 4).int()
            out = flash_steps.latent_decode(q, pool, [200, 65], pages)
            self.assertEqual(out.shape, (2, 16, 2, 512))
            for b, keys in enumerate((200, 65)):
                k = pool[pages[b].long()].view(1, 1, 256, 576)[:, :, :keys]
                self.near(out[b : b + 1], exact(q[b : b + 1], k, k[..., :512], True))


if __name__ == "__main__":
    main()
