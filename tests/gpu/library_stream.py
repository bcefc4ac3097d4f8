#!/usr/bin/env python3
"""The steps' libraries on a GPU, from PyTorch: stream order, CUDA graphs, lengths, a lost context.

    python3 tests/gpu/library_stream.py [build/gpu]

Needs PyTorch and the preset gpu. Exit status: 0 all right, 1 not, 3 no PyTorch or no GPU.
"""

import gc
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from flash_steps.step_library import Refused, StepLibrary  # noqa: E402

try:
    import torch
except ImportError:
    torch = None


class Wrong(Exception):
    """One sentence."""


def require(right, sentence):
    if not right:
        raise Wrong(sentence)


class Case:
    """One variant of one library, with tensors and references; a decoding step also has pages."""

    def __init__(self, library, index, n=1024):
        self.library, self.index = library, index
        self.variant = library.variants[index]
        self.name = f"{library.step} {self.variant['name']}"
        d, nk, supports = 64, n, self.variant["supports"]
        n = supports["n"] or n
        self.sizes = dict(b=2, h=4, hkv=4, n=n, nk=nk, d=d, causal=True)
        dtype = torch.float32 if self.variant["dtype"] == "fp32" else torch.bfloat16
        q, k = (2, 4, n, d), (2, 4, nk, d)
        torch.manual_seed(3)
        self.tensors = {}
        if supports["pages"]:
            self.sizes |= {"page": 64, "lengths": [nk, 300]}
            k = (2 * nk // 64, 4, 64, d)
            table = torch.randperm(k[0], device="cuda", dtype=torch.int32)
            self.tensors["table"] = table.view(2, -1)
        for name, shape in {"Q": q, "K": k, "V": k, "dO": q}.items():
            self.tensors[name] = torch.randn(shape, device="cuda", dtype=dtype)
        for name, shape in {"O": q, "dQ": q, "dK": k, "dV": k}.items():
            self.tensors[name] = torch.empty(shape, device="cuda", dtype=dtype)
        self.tensors["LSE"] = torch.empty(q[:3], device="cuda")
        self.written = ["O"] + ["dQ", "dK", "dV"] * self.variant["backward"]
        torch.cuda.synchronize()

    def run(self, stream):
        at = {name: x.data_ptr() for name, x in self.tensors.items()}
        prepare, backward = (self.variant[name] for name in ("prepare", "backward"))
        for direction in ["prepare"] * prepare + ["forward"] + ["backward"] * backward:
            self.library.runner(direction, self.index, self.sizes, at, stream.cuda_stream)()

    def keys(self, name):
        x = self.tensors[name]
        if "table" not in self.tensors:
            return x
        return x[self.tensors["table"].long()].transpose(1, 2).flatten(2, 3)

    def forget(self):
        for name in self.written:
            self.tensors[name].fill_(float("nan"))

    def require_right(self, when):
        torch.cuda.synchronize()
        inputs = [self.tensors["Q"], *map(self.keys, "KV")]
        inputs = [x.double().requires_grad_() for x in inputs]
        n, nk = self.sizes["n"], self.sizes["nk"]
        keys = torch.tensor(self.sizes.get("lengths") or [nk], device="cuda").view(-1, 1, 1, 1)
        row, key = torch.arange(n, device="cuda")[:, None], torch.arange(nk, device="cuda")
        out = torch.nn.functional.scaled_dot_product_attention(*inputs, key <= row + keys - n)
        want = [out, *torch.autograd.grad(out, inputs, self.tensors["dO"].double())]
        for name, exact in zip(("O", "dQ", "dK", "dV"), want):
            if name in self.written:
                error = (self.tensors[name].double() - exact).abs().max().item()
                bound = (2e-4 if self.variant["dtype"] == "fp32" else 4e-2) * max(
                    1.0, exact.abs().max().item()
                )
                require(error <= bound, f"{self.name}, {when}: {name} is off by {error:.2e}")


def on_a_stream(case):
    """A busy stream writes the inputs, then the step runs: another stream would be too early."""
    stream = torch.cuda.Stream()
    right = {name: case.tensors[name].clone() for name in ("Q", "K", "V", "dO")}
    case.run(torch.cuda.current_stream())  # allocates the workspace
    torch.cuda.synchronize()
    for name in right:
        case.tensors[name].zero_()
    case.forget()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # about 0.1 s
        for name, x in right.items():
            case.tensors[name].copy_(x)
        case.run(stream)
    require(not stream.query(), f"{case.name}: the stream was idle too early to prove anything")
    case.require_right("after work of its stream")


def in_a_graph(case):
    case.run(torch.cuda.current_stream())
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    case.forget()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        case.run(torch.cuda.current_stream())
    torch.cuda.synchronize()
    require(
        torch.isnan(case.tensors["O"]).all().item(), f"{case.name}: the capture ran the step itself"
    )
    for when in ("replayed", "replayed again"):
        case.forget()
        graph.replay()
        case.require_right(when)
    for name in ("Q", "K", "V", "dO"):
        case.tensors[name].normal_()
    case.forget()
    graph.replay()
    case.require_right("replayed with other inputs")


def other_lengths(case):
    """Two runs wait on a stream: each must use its own lengths, whenever the host gave them."""
    if "lengths" not in case.sizes:
        return
    case.run(torch.cuda.current_stream())
    stream, found = torch.cuda.Stream(), []
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        for lengths in ([500, 17], [64, 900]):
            case.sizes["lengths"] = lengths
            case.run(stream)
            found.append((lengths, case.tensors["O"].clone()))
    require(not stream.query(), f"{case.name}: the stream was idle too early to prove anything")
    for case.sizes["lengths"], case.tensors["O"] in found:
        case.require_right(f"lengths {case.sizes['lengths']}")


def first_run_under_capture(case):
    """Must be refused: nothing can be allocated. A step without workspace may run."""
    case.run(torch.cuda.current_stream())  # loads the kernels
    torch.cuda.synchronize()
    case.library.release()
    graph = torch.cuda.CUDAGraph()
    refused = None
    try:
        with torch.cuda.graph(graph):
            torch.empty(1, device="cuda").zero_()  # an empty graph warns
            try:
                case.run(torch.cuda.current_stream())
            except Refused as error:
                refused = error
    except RuntimeError as error:
        raise Wrong(f"{case.name}: the refusal broke the capture: {error}") from None
    if case.library.workspace_bytes(case.index, case.sizes) > 0:
        require(refused is not None, f"{case.name}: allocated under capture")
        require("before the capture" in str(refused), f"{case.name}: {refused}")


def chosen(library):
    """The variants' indices, except those with an 8-bit cache, which the library refuses."""
    return [i for i, variant in enumerate(library.variants) if not variant["cache8"]]


def illegal_address(path):
    """In a separate process: the context is lost. Prints the library's words."""
    library = StepLibrary(path)
    case = Case(library, chosen(library)[-1])
    stream = torch.cuda.current_stream()
    case.run(stream)
    torch.cuda.synchronize()
    at = {name: x.data_ptr() for name, x in case.tensors.items()}
    for name in "QKVO":
        at[name] = 1 << 46  # aligned, but not allocated
    sentences = []
    for _ in range(3):
        try:
            library.runner("forward", case.index, case.sizes, at, stream.cuda_stream)()
            library.free(library.malloc(16))
            torch.cuda.synchronize()
        except Refused as error:
            sentences.append(str(error))
        except RuntimeError:
            pass  # PyTorch saw it first; the library's next call must report it
    print("\n".join(sentences))


def main():
    if torch is None or not torch.cuda.is_available():
        print("library_stream.py: needs PyTorch and a GPU", file=sys.stderr)
        return 3
    build = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "gpu"
    paths = sorted((build / "steps").glob("lib[0-9][0-9]_*.so"))
    if not paths:
        print(f"library_stream.py: no libraries in {build}/steps: build gpu", file=sys.stderr)
        return 3
    wrong = []
    for path in paths:
        library = StepLibrary(str(path))
        for index in chosen(library):
            case = Case(library, index)
            for test in (first_run_under_capture, on_a_stream, in_a_graph, other_lengths):
                gc.collect()  # destroying an old graph during a capture breaks it
                try:
                    test(case)
                except (Wrong, Refused, RuntimeError) as error:
                    wrong.append(f"{case.name}, {test.__name__}: {error}")
            print(f"{case.name}: stream, graph", flush=True)
        library.release()
        done = subprocess.run(
            [sys.executable, __file__, "--illegal", str(path)], capture_output=True, text=True
        )
        for words in ("CUDA reports '", "context is lost", "last run here was fa_forward"):
            if words not in done.stdout:
                wrong.append(f"{path.name}: no '{words}' in {done.stdout + done.stderr[-300:]}")
        print(f"{library.step}: {done.stdout.splitlines()[:1]}", flush=True)
    print("\n".join(wrong) or "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--illegal"]:
        illegal_address(sys.argv[2])
        sys.exit(0)
    sys.exit(main())
