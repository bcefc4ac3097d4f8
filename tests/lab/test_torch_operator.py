"""flash_steps.attention() as PyTorch sees it. Skipped without PyTorch.

On a GPU the libraries of the preset gpu run. Elsewhere one of the simulator's runs, on CPU tensors:
preload it, since its shared memory is thread-local storage, and use one, for device memory:

    LD_PRELOAD=build/sim/steps/lib06_work_partitioning.so \\
        python3 tests/lab/test_torch_operator.py build/sim
"""

import math
import os
import unittest
from unittest import mock

from basis import ROOT, main

try:
    import flash_steps
    import torch
    from flash_steps import torch_operator
    from flash_steps.step_library import Refused
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
            inputs = [*self.inputs(step, problem), problem[-1], step, None]
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

    def test_autocast(self):
        for step in self.some("06", "08", "10"):
            inputs = [x.detach().float() for x in self.inputs(step, (1, 2, 2, 9, 9, 64, True))]
            inputs = [x.requires_grad_() for x in inputs]
            with torch.autocast(self.device, torch.bfloat16):
                out = flash_steps.attention(*inputs, causal=True, step=step)
            self.assertEqual(out.dtype, torch.float32 if step == "06" else torch.bfloat16)
            self.near(out, exact(*inputs, True))
            for x in torch.autograd.grad(out.float().sum(), inputs):
                self.assertEqual(x.dtype, torch.float32)

    def test_steps_by_number(self):
        for step in self.some("06", "08", "10"):
            inputs = self.inputs(step, (1, 2, 2, 9, 9, 64, True), grad=False)
            want = flash_steps.attention(*inputs, True, step)
            for name in (int(step), str(int(step))):
                self.assertTrue(torch.equal(want, flash_steps.attention(*inputs, True, name)))

    def test_strides_and_alignment(self):
        for step in self.some("06", "08", "10"):
            q, k, v = self.inputs(step, (2, 2, 2, 8, 8, 64, True), grad=False)
            want = flash_steps.attention(q, k, v, causal=True, step=step)
            across = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
            flat = torch.empty(q.numel() + 1, device=self.device, dtype=q.dtype)[1:].view_as(q)
            flat.copy_(q)  # off by one element
            self.assertFalse(across[0].is_contiguous())
            for inputs in (across, [flat, k, v]):
                self.assertTrue(torch.equal(want, flash_steps.attention(*inputs, True, step)))

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

    def test_errors_are_sentences(self):
        for step in self.some("08", "10"):
            q, k, v = self.inputs(step, (1, 2, 2, 4, 4, 64, True), grad=False)
            wide = torch.zeros(1, 2, 4, 80, device=self.device, dtype=q.dtype)
            three = torch.zeros(1, 3, 4, 64, device=self.device, dtype=q.dtype)
            for inputs, told in (
                ((q.float(), k, v), f"step {step}: q is float32, the step reads bf16"),
                ((q[0], k, v), "q has 3 dimensions"),
                ((wide, wide, wide), "d 80: "),
                ((q, three, three), r"q, k, v do not fit: \(1, 2, 4, 64\), \(1, 3, 4, 64\)"),
                *[((q, k.cpu(), v), "k is on cpu: all must be on GPU 0")] * GPU,
            ):
                with self.assertRaisesRegex((ValueError, RuntimeError), told):
                    flash_steps.attention(*inputs, True, step)
            with self.assertRaisesRegex(ValueError, "no step '77' in .*, which has .*: cmake"):
                flash_steps.attention(q, k, v, True, "77")
            with self.assertRaisesRegex(ValueError, "has no variant 'nope': "):
                flash_steps.attention(q, k, v, True, step + " nope")
            library = torch_operator._variant(step)[0]
            for told, kind in (
                ("S: the device cannot allocate 9.0 GB", torch.OutOfMemoryError),
                ("no GPU found", RuntimeError),
            ):
                run = mock.Mock(side_effect=Refused(3, told))
                with mock.patch.object(library, "runner", return_value=run):
                    with self.assertRaisesRegex(RuntimeError, told) as caught:
                        flash_steps.attention(q, k, v, True, step)
                self.assertIs(type(caught.exception), kind)
        for step in self.some("06"):
            q, k, _ = self.inputs(step, (1, 2, 2, 4, 5, 64, True), grad=False)
            with self.assertRaisesRegex(ValueError, "Nk 5: "):
                flash_steps.attention(q, k, k, True, step)


if __name__ == "__main__":
    main()
