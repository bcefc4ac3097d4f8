"""docs/claims.md: finds each figure again, by the row's commands in the simulator or in results.
Not the row that chapter 03 holds, nor that of fit_m.py's tests."""

import dataclasses
import functools
import operator
import os
import re
import shlex
import statistics
import subprocess
import unittest

from basis import BUILD, ROOT, main
from flash_steps import mpi
from flash_steps.files import read_json, read_text
from flash_steps.gpu_table import find_model
from flash_steps.model_cost import SHAPES, rest_ms
from flash_steps.problems import own_tiles
from flash_steps.results import total
from flash_steps.text import bytes_text

# --- sources of figures ---------------------------------------------------------------------------


@functools.cache
def simulated(line):
    """The JSON of a step's program, even for a wrong result."""
    *launcher, program = re.match(r"(?:(mpirun) (-n) (\d+) )?(\S+)", line).groups()
    launcher = [word for word in launcher if word]
    flags = shlex.split(line)[len(launcher) + 1 :]
    call = [*launcher, os.path.join(BUILD, "steps", program), *flags, "--estimate-heads=0"]
    status, said, report = mpi.report(call)
    assert status in (0, 1), said
    return report


@functools.cache
def results(name):
    return read_json(ROOT / "docs" / "results" / name)


def h200(variant, n, causal=False):
    step, name = variant.split()
    wanted = {"b": 16384 // n, "h": 32, "n": n, "d": 64, "causal": causal}
    for run in results("h200.json")["runs"] + results("h200_bf16.json")["runs"]:
        p = run["problem"]
        same = run["step"][:2] == step and run["variant"] == name and own_tiles(p)
        if same and run["device"]["name"] == "NVIDIA H200" and wanted.items() <= p.items():
            return run
    raise LookupError(f"{variant}, {wanted}")


def ms(variant, n, causal=False, way=None):
    run = h200(variant, n, causal)
    return (run[way] if way else run)["time"]["median_ms"]


def rows(name, **wanted):
    """Rows of decode, of ring, or of `peers` in h200_bf16."""
    found = results(name)
    found = found["peers"] if "peers" in found else found
    return [row for row in found["rows"] if wanted.items() <= row.items()]


def peers(variant, direction="forward", **wanted):
    return rows("h200_bf16.json", variant=variant, direction=direction, **wanted)


def best(variant, **wanted):
    """TFLOP/s without a mask, by default at d = 128."""
    wanted = {"d": 128, "causal": False, **wanted}
    return max(row["flops_per_s"] for row in peers(variant, **wanted)) / 1e12


def mean(variant, direction="forward"):
    found = peers(variant, direction)
    return statistics.geometric_mean(row["ratios"]["flash"] for row in found)


def decode(figure, what="peers", variant="once", **wanted):
    (row,) = rows("decode_h100.json", what=what, variant=variant, **wanted)
    return row[figure]


def ring(**wanted):
    (row,) = rows("ring_h200.json", causal=True, **wanted)
    return row["forward"]["share"], row["both"]["share"]


def constant(name):
    return results("microbenchmarks_h200.json")["constants"][name]["value"]


def requested(run, *buffers):
    """Counted bytes, of these buffers or of all."""
    counts = run["traffic"]["requested"]
    there = [counts["buffers"][name] for name in buffers if name in counts["buffers"]]
    return sum(total(each["counted"]) for each in (there if buffers else [counts]))


def written(run, buffer, kind="counted"):
    return run["traffic"]["requested"]["buffers"][buffer][kind]["write"]


def hbm(run, kind="measured"):
    return total(run["traffic"]["hbm"][kind])


# --- figures --------------------------------------------------------------------------------------


def scores_passes(n):
    """Bytes per element of N x N, in HBM."""
    return hbm(h200("02 registers", n)) / (4 * 32 * 16384 * n) - 4 * 64 / n


def textbook():
    run = h200("01 naive", 4096)
    seconds, roofs = ms("01 naive", 4096) * 1e-3, run["roofs"]
    yield hbm(run) / seconds / roofs["copy_bytes_per_s"]
    yield run["flops"] / seconds / roofs["fp32_flops"]
    yield ms("01 naive", 4096) / ms("02 registers", 4096)


def flops_and_errors(naive, fused):
    yield naive["flops_executed"]
    yield fused["flops_executed"] - naive["flops_executed"]
    yield from checked(naive, fused, figure="max_abs_err")


def sram_of_a100():
    gpu = find_model("A100")
    sram, dram = gpu["fp32_flops"], gpu["hbm_bytes_per_s"]  # 128 per clock and SM are both
    size = gpu["memory_bytes"] / (gpu["sms"] * gpu["sm_shared_bytes"])
    return bytes_text(sram), bytes_text(dram), sram / dram, size


def sram_of_h200():
    parts, dram = results("microbenchmarks_h200.json"), constant("hbm_read")
    sram = parts["sms"] * parts["clock_hz"] * 128 / constant("shared_load_w4_dense")
    a100 = find_model("A100")["hbm_bytes_per_s"]
    return bytes_text(sram), bytes_text(dram), sram / dram, dram / a100


def fused_beside_tiled():
    for n in (1024, 16384):
        yield ms("02 registers", n) / ms("04 fused", n)
    fused = h200("04 fused", 16384)
    yield hbm(fused) / hbm(h200("02 registers", 16384))
    yield fused["problem"]["b"] * fused["problem"]["h"]
    yield find_model("H200")["sms"]


def backward_flops(standard, recompute):
    for run in (standard["backward"], recompute):
        yield recompute["backward"]["flops_executed"] / run["flops_executed"]


def smaller(standard, recompute):
    first, last = standard["backward"], recompute["backward"]
    yield requested(first) / requested(last)
    yield hbm(first, "model") / hbm(last, "model")
    yield standard["workspace_bytes"] / recompute["workspace_bytes"]


def backward_speedups():
    for variant in ("06 backward", "05 recompute"):
        for n in (1024, 4096):
            yield ms("05 standard", n, way="backward") / ms(variant, n, way="backward")


def both(run):
    return run["flops_executed"] + run["backward"]["flops_executed"]


def swapped(first, second):
    yield requested(second) / requested(first)
    for run in (second, first):
        yield max(kernel["blocks"] for kernel in run["kernels"])


def peaks():
    a100, h200 = find_model("A100"), find_model("H200")
    rates = a100["bf16_flops"] / 1e12, a100["fp32_flops"] / 1e12
    return *rates, rates[0] / rates[1], h200["bf16_flops"] / h200["fp32_flops"]


def of_peak(variant):
    peak = find_model("H200")["bf16_flops"] / 1e12
    return best(variant), best(variant) / peak, peak


def gain(variant, other):
    mine, others = (best(name, n=8192) for name in (variant, other))
    return mine, others, mine / others - 1


def exponentials():
    gpu, exp = find_model("H100"), constant("rate_ex2") * 32
    flops = 2 * 64 * 256 * 16 / constant("wgmma_n256_ss_wg2")
    clock = gpu["bf16_flops"] / (gpu["sms"] * flops)
    return exp, flops, flops / exp, clock / 1e9, gpu["sms"] * clock * exp / 1e12


def checked(*runs, figure="rmse"):
    return [run["check"][0][figure] for run in runs]


def beside_lazy(variant):
    longest = {"b": 1, "nk": 262144}
    return decode("ms", variant="lazy", **longest) / decode("ms", variant=variant, **longest)


def slower_with_pages():
    found = rows("decode_h100.json", what="pages", page=16)
    slower = [
        row["ms"] / decode("ms", "pages", b=row["b"], nk=row["nk"], page=None) - 1 for row in found
    ]
    return min(slower), max(slower)


def absorbed(run):
    """K of a head has 128 features and 64 of the position, V 128; a block has 64 of 128 heads."""
    per_head, p = 128 + 64 + 128, run["problem"]
    each = run["flops"] / (2 * p["h"] * p["nk"])
    bytes_of_token = requested(run, "K") / 2 / p["nk"]
    return each, each / per_head, 2 * per_head * p["h"] / bytes_of_token


def predicted_and_counted(*runs):
    predicted = sum(total(run["traffic"]["requested"]["predicted"]) for run in runs)
    return predicted, sum(map(requested, runs))


def tile_clocks(run):
    """Clocks of Blackwell's tensor cores, their operands and TMA, for 128 rows and 128 keys."""
    tiles = (run["problem"]["n"] // 128) ** 2
    yield run["flops_executed"] / 8192 / tiles
    yield sum(k["shared"]["wgmma_wavefronts"] for k in run["kernels"]) / tiles
    copies = [site for site in run["sites"] if site["what"].startswith("shared TMA")]
    yield sum(site["transfers"] for site in copies) / tiles


def polynomial():
    """The C++ test's first errors: the largest, rounded to bf16, and of exact exponentials."""
    call = [os.path.join(BUILD, "tests", "test_step16"), "-s", "-r", "xml", "*polynomials*"]
    said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    return map(float, re.findall(r"<Expanded>\s*(\S+) ==", said)[:3])


def twice_the_rows(*runs):
    flops = [run["flops_executed"] for run in runs]
    return flops[1] / flops[0], flops[3] / flops[2]


def strided(dense, sparse, causal):
    yield dense["flops"] / (4 * 64) / (1024 * 1025 // 2)
    for run in (dense, sparse):
        yield requested(run, "K") / requested(causal, "K")


def share_of_ideal(run):
    scores = [rank["scores"] for rank in run["ranks"]]
    return sum(map(sum, scores)) / 4 / sum(map(max, zip(*scores)))


def chunks(run):
    sent, chunk = run["ranks"][0]["sent"], 2 * 2 * 512 // 4 * 64
    forward, backward = (sent[way]["counted"] for way in ("forward", "backward"))
    return forward, forward / chunk, (backward - 2 * chunk) / (2 * chunk), backward


def model(name, n, figure="ms"):
    for row in rows("model_h100.json", what="updates", n=n):
        if row["name"] == name:
            return row[figure]
    raise LookupError(f"{name}, N = {n}")


def rests():
    """Everything but attention, computed: with bytes, as measured, and with GPT-2's vocabulary."""
    gpt2 = SHAPES["gpt2"]
    shapes = dataclasses.replace(gpt2, vocabulary=256), gpt2
    return [rest_ms(shape, 32, 1024, find_model("H100")) for shape in shapes]


def beside_unfused(*others):
    """As measured; then with the computed rest of GPT-2's vocabulary."""
    measured, gpt2 = rests()
    for more in (0, gpt2 - measured):
        for name, n in others:
            yield (model("unfused", 1024) + more) / (model(name, n) + more)


def at_512():
    faster = model("flash", 512) / model("10", 512) - 1
    return faster, model("flash", 512, "attention_ms") / model("flash", 512)


# --- the claims -----------------------------------------------------------------------------------

# In the page's order: its words, and a function of its commands' runs that returns the figures.
HELD = ("", None)
CLAIMS = (
    (
        "{:,} bytes of S are written in fp32, so {:,} in 2 bytes",
        lambda a: [written(a, "S") // i for i in (1, 2)],
    ),
    (
        "{:,} bytes; with P and in fp32 step 01 needs {}",
        lambda a: (written(a, "S", "predicted") // 2, bytes_text(a["workspace_bytes"])),
    ),
    ("{:g} are requested", lambda a: [requested(a, "S", "P") / (4 * 512**2)]),
    ("{:.1f} passes at N = 1024, {:.1f} at", lambda: map(scores_passes, (1024, 4096))),
    ("{} bytes of P, step 04 {} of S", lambda a, b: (requested(a, "P"), requested(b, "S", "P"))),
    ("{:.1%} of the copy rate and {:.1%} of the FMA rate; ... {:.0f} times as fast", textbook),
    # The algorithm.
    ("{:,} FLOP and {} more; ... {:.0e} in step 01, {:.0e} in step 04", flops_and_errors),
    (
        "{:,} bytes at N = 256 and {:,} at N = 512; S and P would take {:,} and {:,}",
        lambda *runs: [
            run[key] for key in ("workspace_bytes", "naive_workspace_bytes") for run in runs
        ],
    ),
    HELD,  # chapter 03
    # Traffic.
    ("{}/s of shared memory beside {}/s: {:.1f} times, at 1/{:.0f}", sram_of_a100),
    ("{}/s of shared memory beside {}/s of HBM: {:.1f} times. ... {:.1f} times", sram_of_h200),
    HELD,  # the tests of fit_m.py
    ("{:.1f} times the requested bytes", lambda a, b: [requested(b) / requested(a)]),
    (
        "{} are requested; {} cross HBM ... H200, {} with that of a T4",
        lambda a, b: map(bytes_text, (requested(a), hbm(a, "model"), hbm(b, "model"))),
    ),
    ("{:.2f} times the ... {:.2f} times at ... only {:.2f} ... {} of {} SMs", fused_beside_tiled),
    (
        "{:.3f} times that at ... {:.3f} times",
        lambda: [
            hbm(h200("06 registers", n)) / (128 * (16384 // n) * (4 * n * 64 + n))
            for n in (1024, 16384)
        ],
    ),
    # The backward.
    ("{:.3g} times the FLOPs of the standard backward, {:.3g} times those", backward_flops),
    ("{:.1f} times fewer bytes, {:.1f} times fewer cross ... {:.0f} times smaller", smaller),
    ("{:.2f} and {:.2f} times as ... {:.2f} and, with too few blocks, {:.2f}", backward_speedups),
    ("Step 05 writes {} numbers", lambda a: [written(a["backward"], "delta") // 4]),
    (
        "{:.2f} times as many: ... alone has {:.1f}.",
        lambda a, b, c: (both(b) / both(a), c["flops"] / 1e9),
    ),
    # FlashAttention-2.
    ("{:.2f} of the requested bytes with the same tiles, and {} blocks instead of {}", swapped),
    ("{:.1%} of the tiles are visited", lambda a, b: [requested(b, "K") / requested(a, "K")]),
    (
        "{:.2f} times at N = 1024, {:.2f} times at N = 4096",
        lambda: [ms("06 registers", n) / ms("06 registers", n, True) for n in (1024, 4096)],
    ),
    ("{:g} / {:g} TFLOP/s = {:.0f}; on an H200 {:.1f}", peaks),
    (
        "{:.1f} times ... {:.1f} at 4096, {:.1f} at",
        lambda: [ms("04 fused", n) / ms("06 registers", n) for n in (1024, 4096, 16384)],
    ),
    # FlashAttention-3.
    ("at best {1:.0%} of {2:.0f} TFLOP/s", lambda: of_peak("flash")),
    ("at best {:.0f} TFLOP/s, {:.0%} of {:.0f}", lambda: of_peak("scheduled")),
    (
        "{:.2f} times in the geometric mean of {} problems; ... {:.2f} times.",
        lambda: (mean("specialized"), len(peers("specialized")), mean("scheduled")),
    ),
    (
        "{:.2f} times in its first variant and {:.2f} times in its last",
        lambda: (mean("wgmma", "backward"), mean("direct", "backward")),
    ),
    ("{:.0f} TFLOP/s instead of {:.0f}: {:.0%}", lambda: gain("specialized", "producer")),
    ("{:.0f} TFLOP/s ... instead of {:.0f} ... {:.0%}", lambda: gain("specialized", "wgmma")),
    (
        "{:.0f} per clock and SM beside {:.0f} FLOP: {:.0f} ... {:.2f} GHz, ... {:.2f} T",
        exponentials,
    ),
    # FP8.
    ("{:.1e}. **Differs**", checked),
    ("{:.1e}. Reproduced.", checked),
    ("{1:.1e} instead of {0:.1e}", checked),
    ("{:.1f} times at 8192 keys", lambda a, b: [operator.truediv(*checked(a, b))]),
    (
        "{:.0%} of the allowed error in `tensor`, and {:.0%} in",
        lambda *runs: checked(*runs, figure="used"),
    ),
    (
        "The peak {:.1f} times, attention {:.2f} times at d = 128 and {:.2f} times at d = 64",
        lambda: [
            find_model("H200")["fp8_flops"] / find_model("H200")["bf16_flops"],
            *(best("late", n=16384, d=d) / best("scheduled", n=16384, d=d) for d in (128, 64)),
        ],
    ),
    ("at best {:,.0f} TFLOP/s", lambda: [best("late")]),
    # Decoding.
    (
        "With 32 heads {} of an H200's 132 SMs have a block, with splits {}",
        lambda *runs: [run["estimate"]["kernels"][0]["sms"] for run in runs],
    ),
    ("{:.1f} times by splits, {:.1f} times in all", lambda: map(beside_lazy, ("splits", "once"))),
    (
        "take {:.2f} times as long as 1,024, ... {:.2f}",
        lambda: [decode("ms", b=1, nk=nk) / decode("ms", b=1, nk=1024) for nk in (4096, 16384)],
    ),
    (
        "{:,} bytes are requested by each head for itself, {:,} once",
        lambda *runs: [requested(run, "K", "V") for run in runs],
    ),
    (
        "{:.2f} times with groups of 4, {:.2f} times with groups of 16",
        lambda: [decode("ms", "groups", hkv=32) / decode("ms", "groups", hkv=n) for n in (8, 2)],
    ),
    ("With pages of 16 keys, {:.1%} to {:.1%} slower", slower_with_pages),
    (
        "{:.0%} of a copy's bandwidth at ... {:.0%} at 4,096 ... but {:.0%} at 4,096",
        lambda: [decode("of_copy", b=b, nk=nk) for b, nk in ((1, 262144), (32, 4096), (1, 4096))],
    ),
    (
        "{:.2f} times as fast at 262,144 keys, {:.2f}",
        lambda: [
            decode("ms", "fp8", b=1, nk=nk) / decode("ms", "fp8", "fp8", b=1, nk=nk)
            for nk in (262144, 4096)
        ],
    ),
    ("{:,} bytes are predicted of three runs, {:,} counted", predicted_and_counted),
    # Masks.
    ("{:.2f} times the FLOPs with a window of 256, and {:.2f} times with", twice_the_rows),
    ("leaves {:.1%} of ... visits {:.1%} of the tiles; with 256, {:.1%}", strided),
    ("{:.2f} times fewer FLOPs", lambda a, b: [b["flops_executed"] / a["flops_executed"]]),
    ("{:,} bytes are predicted of three runs, {:,} counted", predicted_and_counted),
    # Blackwell.
    ("its products need {:,.0f} and {:.0f}. ... {:.0f} clocks per tile", tile_clocks),
    ("{:.1e}, and rounded {:.2e} against {:.2e}", polynomial),
    # Latent attention.
    (
        "{:.0f} FLOP per byte of HBM with 128 heads, {:.0f} with 16",
        lambda *runs: [run["flops"] / hbm(run, "predicted") for run in runs],
    ),
    ("{:,.0f} multiply-adds ... {:.1f} times those ... {:.1f} times fewer bytes", absorbed),
    # In a model.
    (
        "{:.1f} times with step 10, {:.1f} times with PyTorch's ... {:.1f} and {:.1f} times. ... "
        "{:.0f} ms with bytes and {:.0f} ms",
        lambda: (*beside_unfused(("10", 1024), ("flash", 1024)), *rests()),
    ),
    ("{:.1f} times as fast with ... GPT-2's, {:.1f} times", lambda: beside_unfused(("10", 4096))),
    ("to step 10 {:.0%} faster ... only {:.0%} of an update", at_512),
    # Several GPUs.
    (
        "reach {:.0%} of the ideal with 4 chunks and {:.0%} with 8",
        lambda *runs: map(share_of_ideal, runs),
    ),
    ("{:,} bytes, {:g} chunks; ... {:g} of dK and dV in fp32, {:,} bytes", chunks),
    ("{:.1e} with 2 ranks, {:.1e} with 4 and {:.1e} with 8", checked),
    (
        "ranks send {} each and ... rows, {}; in a ring it is {} and {}",
        lambda *runs: [bytes_text(r["ranks"][0]["sent"]["forward"]["predicted"]) for r in runs],
    ),
    ("{:.0%} and {:.0%} with 2 GPUs", lambda: ring(what="share", tokens=8192)),
    ("{:.0%} forward and {:.0%} with the", lambda: ring(variant="plain")),
)


def page_rows():
    """[(claim, found here, the programs' lines)]"""
    for line in read_text(ROOT / "docs" / "claims.md").splitlines():
        if line.startswith("| ") and not line.startswith("| claim"):
            claim, found, how = (cell.strip() for cell in line.strip("| ").split(" | "))
            yield claim, found, re.findall(r"`((?:mpirun -n \d+ )?\d\d_[^`]*)`", how)


class Claims(unittest.TestCase):
    def test_the_page_says_what_is_found(self):
        with_mpi = mpi.has_mpi(os.path.join(BUILD, "steps", "14_ring"))
        found = list(page_rows())
        self.assertEqual(len(found), len(CLAIMS))
        for (claim, said, lines), (template, figures) in zip(found, CLAIMS):
            if not figures or "mpirun" in " ".join(lines) and not with_mpi:
                continue
            with self.subTest(claim=claim):
                words = template.format(*figures(*map(simulated, lines)))
                for part in words.split(" ... "):
                    self.assertIn(part, said)


if __name__ == "__main__":
    main()
