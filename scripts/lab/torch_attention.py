"""PyTorch's attention on a GPU, and the one clock for it and for the steps beside it (peers.py)."""

import contextlib
import importlib
import random
import statistics
import warnings

from flash_steps.command import BadInput, NotHere
from flash_steps.problems import mask_of

from . import masks, rivals

BACKENDS = {
    "math": "MATH",
    "efficient": "EFFICIENT_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
GRADIENTS = ("dQ", "dK", "dV")
LONGEST_S = 2.0  # of timed runs in one comparison; slow rounds are fewer
LEAST_ROUNDS = 2
MATMUL_SIZE = 8192
FLOORS = {"fp32": 2**-14, "bf16": 2**-9}  # of a tensor's largest value


# --- one clock for all --------------------------------------------------------------------------


class Contender:
    """A participant of a comparison, a variant or a backend of PyTorch, with a unique label."""

    def __init__(self, name, label, run, context=contextlib.nullcontext, step=None):
        self.name, self.label, self.step = name, label, step
        self.run = run  # queues one forward or backward
        self.context = context  # entered around it, outside the timing


class Clock:
    def __init__(self, torch):
        self.torch = torch
        l2_bytes = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 << 20
        self.sweeper = torch.zeros(4 * l2_bytes // 4, device="cuda")  # four times the L2
        self.sweeps = 4

    def timed(self, contender):
        """Queues one run after a sweep, so no run finds the data of the previous one in the L2. The
        sweep also gives the host time to queue the run, else the events would time the host.
        Returns the events and whether the host was late."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        with contender.context():
            for _ in range(self.sweeps):
                self.sweeper.sum()
            begin.record()
            contender.run()
            end.record()
            return begin, end, begin.query()

    def warm_up(self, contender):
        """Returns the ms of one run. Sweeps more from now on if the host would be late."""
        for _ in range(2):
            with contender.context():
                contender.run()
        self.torch.cuda.synchronize()
        while True:
            begin, end, late = self.timed(contender)
            self.torch.cuda.synchronize()
            if not late or self.sweeps >= 64:
                return begin.elapsed_time(end)
            self.sweeps *= 2

    def take_turns(self, contenders, rounds, iters):
        """{label: {"ms": median, "runs", "late"}}."""
        round_s = sum(self.warm_up(c) for c in contenders) * iters * 1e-3
        rounds = min(rounds, max(LEAST_ROUNDS, int(LONGEST_S / max(round_s, 1e-6))))
        found = {contender.label: [] for contender in contenders}
        drawn = random.Random(1)
        for _ in range(rounds):
            for contender in drawn.sample(contenders, len(contenders)):
                found[contender.label] += [self.timed(contender) for _ in range(iters)]
        self.torch.cuda.synchronize()
        return {
            label: {
                "ms": statistics.median(begin.elapsed_time(end) for begin, end, _ in runs),
                "runs": len(runs),
                "late": sum(late for *_, late in runs),
            }
            for label, runs in found.items()
        }


# --- PyTorch ------------------------------------------------------------------------------------


HEADROOMS = (1, 1.26, 1.59)  # of fp8 baselines, in thirds of an octave, as in the checker


def quantised(torch, x, headroom):
    """Rounds a tensor to e4m3 with one scale: its largest number becomes 448 / headroom."""
    scale = x.abs().max().float() * headroom / 448
    return (x.float() / scale).to(torch.float8_e4m3fn).float() * scale


def unfused(torch, q, k, v, do, sees, working, rounded):
    """{"O", "LSE", "dQ", "dK", "dV"} of one key/value head and the G query heads that read it.

    q, do: [G, N, d]; k, v: [Nk, d]; sees: from masks.sees_of. Computed in the type `working`; what
    an unfused attention stores (S, P, O, dP, dS and the gradients) passes through `rounded`. LSE is
    of the unrounded scores: a kernel that writes LSE does not store S."""
    q, k, v, do = (x.to(working) for x in (q, k, v, do))
    n, scale = q.shape[1], q.shape[2] ** -0.5
    parts = {name: [] for name in ("O", "LSE", "dQ")}
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for first in range(0, n, 1024):  # rows of S at a time
        rows = slice(first, min(n, first + 1024))
        exact = q[:, rows] @ k.T
        s = rounded(exact) * scale
        exact *= scale
        row = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
        hidden = ~sees(row, torch.arange(k.shape[0], device=q.device))
        s, exact = (x.masked_fill(hidden, float("-inf")) for x in (s, exact))
        lse = torch.logsumexp(exact, -1)
        p = rounded(torch.exp(s - torch.logsumexp(s, -1)[..., None]))
        o = rounded(p @ v)
        dp = rounded(do[:, rows] @ v.T)
        ds = rounded(p * (dp - (do[:, rows] * o).sum(-1, keepdim=True)))
        for name, part in (("O", o), ("LSE", lse), ("dQ", rounded(ds @ k * scale))):
            parts[name].append(part)
        dk += (ds.transpose(1, 2) @ q[:, rows]).sum(0) * scale
        dv += (p.transpose(1, 2) @ do[:, rows]).sum(0)
    return {
        **{name: torch.cat(part, 1) for name, part in parts.items()},
        "dK": rounded(dk),
        "dV": rounded(dv),
    }


def function_of(name):
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"--contender {name}: {error}") from None


class Torch:
    """PyTorch's side: the tensors, the reference, and the backends. `contenders`: functions of
    (Q, K, V, causal) that return O, or a tuple that begins with it, as "module:function"."""

    def __init__(self, backends, contenders=()):
        try:
            import torch
            from torch.nn.attention import SDPBackend, sdpa_kernel
        except ImportError:
            words = "this Python has no PyTorch (2.5 or newer): pip install torch, or name one"
            raise NotHere(f"{words} that has it") from None
        if not torch.cuda.is_available():
            raise NotHere("PyTorch finds no CUDA GPU")
        warnings.filterwarnings("ignore")  # why a backend refuses; our note says that it does
        self.torch, self.kernel = torch, sdpa_kernel
        self.backends = {
            name: getattr(SDPBackend, word)
            for name, word in BACKENDS.items()
            if name in backends and hasattr(SDPBackend, word)
        }
        self.contenders = {name.partition(":")[2]: function_of(name) for name in contenders}
        others = masks.BACKENDS | rivals.BACKENDS
        self.backends |= {name: name for name in others if name in backends}
        self.backends |= self.contenders
        torch.backends.cuda.matmul.allow_tf32 = False
        self.device = torch.cuda.get_device_properties(0).name
        self.clock = Clock(torch)
        self.rates = {}

    def stream(self):
        """The cudaStream_t on which PyTorch currently queues work."""
        return self.torch.cuda.current_stream().cuda_stream

    def type_of(self, dtype):
        return {"fp32": self.torch.float32, "bf16": self.torch.bfloat16}[dtype]

    def matmul_rate(self, dtype):
        """FLOP/s of this card's matmul in that type, by the same clock. Also warms the card up."""
        if dtype not in self.rates:
            a, b = (
                self.torch.randn(MATMUL_SIZE, MATMUL_SIZE, device="cuda", dtype=self.type_of(dtype))
                for _ in range(2)
            )
            found = self.clock.take_turns([Contender("matmul", "matmul", lambda: a @ b)], 50, 1)
            self.rates[dtype] = 2 * MATMUL_SIZE**3 / (found["matmul"]["ms"] * 1e-3)
        return self.rates[dtype]

    def tensors(self, problem, directions):
        """{"Q": ..., "LSE": ...}, inputs N(0, 1), outputs NaN; gradients only for a backward."""
        torch = self.torch
        torch.manual_seed(1)
        q, kv = (
            [problem["b"], problem[heads], problem[length], problem["d"]]
            for heads, length in (("h", "n"), ("hkv", "nk"))
        )
        kind = dict(device="cuda", dtype=self.type_of(problem["dtype"]))
        tensors = {
            name: torch.randn(shape, **kind)
            for name, shape in (("Q", q), ("K", kv), ("V", kv), ("dO", q))
        }
        gradients = (("dQ", q), ("dK", kv), ("dV", kv)) if "backward" in directions else ()
        for name, shape in (("O", q), *gradients):
            tensors[name] = torch.full(shape, float("nan"), **kind)
        tensors["LSE"] = torch.full(q[:3], float("nan"), device="cuda")
        return tensors

    def truth(self, problem, tensors, fp8=False):
        """[(batch, key/value head, its query heads, {tensor: (fp64, allowed error)})] of the first
        and the last head. Allowed is twice (gradients: three times) the largest error of an unfused
        attention in the step's type, plus a floor for that type's rounding. fp8: three times the
        largest error with quantised inputs, over several scales; the step's program checks LSE."""
        torch = self.torch
        dtype = self.type_of(problem["dtype"])
        group = problem["h"] // problem["hkv"]
        found = []
        for batch, head in sorted({(0, 0), (problem["b"] - 1, problem["hkv"] - 1)}):
            heads = slice(head * group, (head + 1) * group)
            places = {"Q": heads, "K": head, "V": head, "dO": heads}
            sees = masks.sees_of(torch, problem, heads.start)
            args = *(tensors[x][batch, at] for x, at in places.items()), sees
            exact = unfused(torch, *args, torch.float64, lambda x: x)
            inputs = [args]
            if fp8:
                inputs = [
                    (*(quantised(torch, x, headroom) for x in args[:3]), *args[3:])
                    for headroom in HEADROOMS
                ]
            baselines = [
                unfused(torch, *x, torch.float32, lambda x: x.to(dtype).float()) for x in inputs
            ]
            allowed = {}
            for name, want in exact.items():
                floor = FLOORS["fp32" if name == "LSE" else problem["dtype"]]
                error = max((b[name].double() - want).abs().max().item() for b in baselines)
                factor = 3 if fp8 or name in GRADIENTS else 2
                allowed[name] = factor * error + floor * want.abs().max().item()
            if fp8:
                allowed["LSE"] = float("inf")
            found.append((batch, head, heads, {x: (exact[x], allowed[x]) for x in exact}))
        return found

    def errors(self, truth, outputs):
        """{tensor: (largest error, its share of the allowed one)}; NaN where not finite."""
        found = {}
        for name, output in outputs.items():
            whole = 0.0 if self.torch.isfinite(output).all().item() else float("nan")
            pairs = [(whole, whole)]
            for batch, head, heads, exact in truth:
                want, allowed = exact[name]
                got = output[batch, head if name in ("dK", "dV") else heads]
                error = (got.double() - want).abs()
                pairs.append((error.max().item(), (error / allowed).max().item()))
            found[name] = tuple(
                float("nan") if any(x != x for x in column) else max(column)
                for column in zip(*pairs)
            )
        return found

    def backend(self, name, problem, tensors, direction, require):
        """A Contender after a first run; require(label, outputs) checks those of `contenders`.
        \\raises RuntimeError with PyTorch's words when the backend refuses the problem."""
        torch, mine = self.torch, self.contenders.get(name)
        label = name if mine else f"torch {name}"
        lay = back = lambda x: x
        others = masks.BACKENDS | ({} if mask_of(problem) else rivals.BACKENDS)
        others = rivals.TILED if problem.get("tiles") else others
        if name in others:
            label, (mine, lay, back) = name, others[name](torch, problem)
        inputs, gradient = [lay(tensors[x].detach()) for x in "QKV"], lay(tensors["dO"])
        words = {"is_causal": problem["causal"]}
        if problem["hkv"] != problem["h"]:
            words["enable_gqa"] = True

        def attention():
            if not mine:
                return torch.nn.functional.scaled_dot_product_attention(*inputs, **words)
            out = mine(*inputs, *[problem["causal"]] * (name in self.contenders))
            return out[0] if isinstance(out, tuple) else out

        def context():
            return contextlib.nullcontext() if mine else self.kernel([self.backends[name]])

        def forward():
            with torch.no_grad():
                return attention()

        def backward():
            return torch.autograd.grad(out, inputs, gradient, retain_graph=True)

        if direction == "backward":
            inputs = [x.requires_grad_() for x in inputs]
            with context():
                out = attention()
        run = {"forward": forward, "backward": backward}[direction]
        with context():
            found = run()
        if mine:
            outputs = {"O": found} if run is forward else dict(zip(GRADIENTS, found))
            require(label, {name: back(output) for name, output in outputs.items()})
        return Contender(name, label, run, context)
