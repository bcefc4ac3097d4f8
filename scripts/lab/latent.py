"""Measures step 17, decoding from a latent cache, on one GPU in one run, beside other kernels.

    maintain latent                       writes docs/results/latent_<gpu>.json, prints its table
    maintain latent --json OUT.json       writes OUT.json instead

32 problems in pages of 64 in random order. FlashMLA (Python's flash_mla), FlashAttention-3
(flash_attn_interface, with qv) and FlashInfer (flashinfer) take turns with the step where they are
installed; a note names those that are not. All outputs are checked against fp64 first; planning
(metadata, plan()) is outside the times, and our launches of two kernels are in them. `read` sums
the cache's bytes. Needs build/gpu (step 17) and PyTorch.

The result is saved after each problem, and a further call continues it.
Exit status: 0 all measured, 1 something is wrong or was left out, 2 bad use, 3 no PyTorch, GPU or
build.
"""

import importlib
import statistics

from flash_steps.command import Failure
from flash_steps.commits import here
from flash_steps.problems import problem_text
from flash_steps.text import flops_text, time_text

from . import jobs, masks, peers
from .jobs import Job, Measurement
from .measured import column, ratio_text
from .torch_attention import Contender, Torch, unfused

STEP, VARIANTS = "17_latent", ("splits", "resident", "pairs")
D, DV, PAGE = 576, 512, 64
HEADS = (16, 32, 64, 128)
SIZES = ((1, 4096), (1, 16384), (1, 65536), (8, 16384), (32, 4096), (64, 8192), (128, 4096))
FLOOR = 2.0**-8  # of the largest result, beside twice the error of an unfused bf16 attention


def problem(b, nk, h, n=1):
    p = {"b": b, "h": h, "hkv": 1, "n": n, "nk": nk, "d": D, "dtype": "bf16"}
    return {**p, "causal": n > 1, "lengths": None, "page": PAGE}


PROBLEMS = [problem(b, nk, h) for h in HEADS for b, nk in SIZES]
PROBLEMS += [problem(32, 4096, h, n=2) for h in HEADS]


# --- rivals: each returns a function that computes O, [B, N, H, 512]; planning precedes it --------


def flashmla(torch, p, q, pool, pages, lengths):
    module = importlib.import_module("flash_mla")
    plan, _ = module.get_mla_metadata()
    cache = pool.unsqueeze(2)
    return lambda: module.flash_mla_with_kvcache(
        q, cache, pages, lengths, DV, plan, softmax_scale=D**-0.5, causal=True
    )[0]


def flash3(torch, p, q, pool, pages, lengths):
    module = importlib.import_module("flash_attn_interface")
    cache = pool.unsqueeze(2)
    plan = module.get_scheduler_metadata(
        p["b"], p["n"], p["nk"], p["h"], 1, D - DV, lengths, torch.bfloat16,
        headdim_v=DV, page_size=PAGE, causal=True, has_softcap=False,
    )  # fmt: skip
    return lambda: module.flash_attn_with_kvcache(
        q[..., DV:], cache[..., DV:], cache[..., :DV], qv=q[..., :DV], cache_seqlens=lengths,
        page_table=pages, softmax_scale=D**-0.5, causal=True, scheduler_metadata=plan,
    )  # fmt: skip


def flashinfer(torch, p, q, pool, pages, lengths):
    module = importlib.import_module("flashinfer.mla")
    work = torch.empty(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = module.BatchMLAPagedAttentionWrapper(work, backend="fa3")
    starts = torch.arange(p["b"] + 1, device="cuda", dtype=torch.int32)
    wrapper.plan(
        starts * p["n"], starts * pages.shape[1], pages.flatten(), lengths, p["h"], DV, D - DV,
        PAGE, True, D**-0.5, torch.bfloat16, torch.bfloat16,
    )  # fmt: skip
    rows = q.flatten(0, 1)
    parts = rows[..., :DV], rows[..., DV:], pool[..., :DV], pool[..., DV:]
    return lambda: wrapper.run(*parts).view(*q.shape[:3], DV)


RIVALS = {"flashmla": flashmla, "flash3": flash3, "flashinfer": flashinfer}


class LatentMeasurement(Measurement):
    name, iters = "latent", 1

    def __init__(self, options, torch, library):
        super().__init__(options)
        self.torch, self.library = torch, library
        self.runs_on(torch.device, torch=torch.torch.__version__, rounds=options.turns)
        self.result["matmul"] = torch.matmul_rate("bf16")  # warms the card up, too

    def jobs(self):
        def job(p):
            return Job(problem_text(p), (STEP,), lambda: self.rows(p))

        return [job(p) for p in PROBLEMS]

    def rows(self, p):
        torch = self.torch.torch
        torch.manual_seed(1)
        kind = dict(device="cuda", dtype=torch.bfloat16)
        b, h, n, columns = p["b"], p["h"], p["n"], p["nk"] // PAGE
        q, pool = torch.randn(b, n, h, D, **kind), torch.randn(b * columns, PAGE, D, **kind)
        pages = torch.randperm(b * columns, device="cuda").view(b, columns).int()
        lengths = torch.full((b,), p["nk"], device="cuda", dtype=torch.int32)
        truth = self.truth(p, q, pool, pages)
        contenders = [self.ours(variant, p, q, pool, pages, truth) for variant in VARIANTS]
        for name, prepare in RIVALS.items():
            try:
                run = prepare(torch, p, q, pool, pages, lengths)
                self.require(name, p, run(), truth)
                contenders.append(Contender(name, name, run))
            except Failure as error:  # a rival that is wrong is said, and has no time
                self.result["notes"].append(str(error))
            except Exception as error:  # also a version of another interface
                said = f"{type(error).__name__}: {error}".splitlines()[0]
                self.result["notes"].append(f"{name}: {said}")
        words = pool.view(torch.int32)
        contenders.append(Contender("read", "read", lambda: words.sum(dtype=torch.int32)))
        found = self.torch.clock.take_turns(contenders, self.options.turns, self.iters)
        self.library.release()
        return [row_of(p, contender, found) for contender in contenders]

    def truth(self, p, q, pool, pages):
        """[(entry, O in fp64 as [N, H, 512], the error that is allowed)] of the first and last."""
        torch, found = self.torch.torch, []
        sees = masks.sees_of(torch, p)
        for entry in sorted({0, p["b"] - 1}):
            k = pool[pages[entry].long()].flatten(0, 1)
            args = q[entry].transpose(0, 1), k, k[:, :DV], torch.zeros_like(q[entry, :, :, :DV])
            args = *args[:3], args[3].transpose(0, 1), sees
            want = unfused(torch, *args, torch.float64, lambda x: x)["O"]
            base = unfused(torch, *args, torch.float32, lambda x: x.bfloat16().float())["O"]
            allowed = 2 * (base.double() - want).abs().max() + FLOOR * want.abs().max()
            found.append((entry, want.transpose(0, 1), allowed.item()))
        return found

    def require(self, label, p, out, truth):
        r"""\raises Failure where O, [B, N, H, 512], is wrong."""
        if not self.torch.torch.isfinite(out).all().item():
            raise Failure(f"{label}, {problem_text(p)}: O has an element that is not a number")
        for entry, want, allowed in truth:
            error = (out[entry].double() - want).abs().max().item()
            if error > allowed:
                said = f"error {error:.2e}, {allowed:.2e} is allowed"
                raise Failure(f"{label}, {problem_text(p)}: O of entry {entry} is wrong: {said}")

    def ours(self, variant, p, q, pool, pages, truth):
        torch = self.torch.torch
        q = q.transpose(1, 2).contiguous()
        out = torch.full((*q.shape[:3], DV), float("nan"), device="cuda", dtype=q.dtype)
        tensors = {"Q": q, "K": pool, "O": out, "table": pages}
        tensors["LSE"] = torch.empty(q.shape[:3], device="cuda")
        addresses = {name: x.data_ptr() for name, x in tensors.items()}
        place = peers.names_of(self.library).index(variant)
        forward = self.library.runner("forward", place, p, addresses, self.torch.stream())

        def run(_=tensors):  # which keeps their memory
            forward()

        run()
        self.require(f"17 {variant}", p, out.transpose(1, 2), truth)
        return Contender(variant, f"17 {variant}", run, step=STEP)


def row_of(p, contender, found):
    ms = found[contender.label]["ms"]
    size, flops = 2 * p["b"] * p["nk"] * D, 2 * p["b"] * p["h"] * p["n"] * p["nk"] * (D + DV)
    rivals = {name: found[name]["ms"] / ms for name in (*RIVALS, "read") if name in found}
    row = {**p, "problem": problem_text(p), "what": "latent", "step": contender.step}
    row |= {"commit": here() if contender.step else None, "variant": contender.name}
    row |= {"label": contender.label, "ms": ms, "bytes_per_s": size / ms * 1e3}
    row |= {"flops_per_s": flops / ms * 1e3, "late": found[contender.label]["late"]}
    return {**row, "ratios": rivals if contender.step else {}}


# --- tables ---------------------------------------------------------------------------------------

TABLES = {"latent": ("b", "nk", "n", "h")}


def rows_for(what, rows):
    return [row for row in rows if row["what"] == what]


def default_of(line):
    """The step's default variant, its last: (row, its least ratio to the rivals or None)."""
    *_, ours = (row for row in line.values() if row["step"])
    return ours, min((ours["ratios"][name] for name in RIVALS if name in line), default=None)


def table(what, rows):
    lines = {}
    for row in rows:
        place = tuple(row[key] for key in TABLES[what])
        lines.setdefault(place, {})[row["variant"]] = row
    columns = [
        column(head, lambda line, key=key: next(iter(line.values()))[key], "{:,}".format)
        for head, key in (("B", "b"), ("keys", "nk"), ("queries", "n"), ("heads", "h"))
    ]
    for name in dict.fromkeys(row["variant"] for row in rows):
        columns.append(column(name, lambda r, n=name: r[n]["ms"] if n in r else None, time_text))
    columns.append(column("against the best", lambda line: default_of(line)[1], ratio_text))
    columns.append(
        column("of a read", lambda r: default_of(r)[0]["ratios"]["read"], "{:.0%}".format)
    )
    columns.append(column("TFLOP/s", lambda r: flops_text(default_of(r)[0]["flops_per_s"])))
    return columns, [lines[place] for place in sorted(lines)]


def card(result):
    """{heading: text}: how it was measured, and the mean of the ratios."""
    _, lines = table("latent", rows_for("latent", result["rows"]))
    ratios = [ratio for _, ratio in map(default_of, lines) if ratio]
    about = {"GPU": f"{result['device']}, PyTorch {result['torch']}", "date": result["run"][:10]}
    about["times"] = f"medians of {result['rounds']} rounds in turns, L2 swept before each run"
    if ratios:
        mean = statistics.geometric_mean(ratios)
        about["against the best"] = f"geometric mean {mean:.3f}x, least {min(ratios):.3f}x"
    return about


# --- the command ----------------------------------------------------------------------------------


def main():
    parser = jobs.parser(__doc__, turns=20, budget=480, where="docs/results/latent_<gpu>.json")
    options = parser.parse_args()
    options.steps = STEP
    jobs.require_ready(options, STEP)
    try:
        torch = Torch([])
        (library,) = peers.load_libraries(options)
        return LatentMeasurement(options, torch, library).measure()
    except RuntimeError as error:  # from PyTorch
        raise Failure(error) from None
