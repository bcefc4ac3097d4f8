"""docs/claims.md: each figure that it says was found is found in a run of the simulator, or in
docs/results.

Argument: a build folder.
"""

import functools
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import unittest

from basis import ROOT
from flash_steps import mpi
from flash_steps.files import read_json
from flash_steps.gpu_table import find_model
from flash_steps.problems import own_tiles
from flash_steps.results import total
from flash_steps.text import bytes_text

BUILD = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "sim")
H200 = "NVIDIA H200"


# --- where figures come from ----------------------------------------------------------------------


@functools.cache
def sim(line, ranks=1):
    """The JSON of a step's program; of a wrong result, too."""
    program, *flags = shlex.split(line)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run.json")
        call = [os.path.join(BUILD, "steps", program), *flags, "--estimate-heads=0", "--json", path]
        call = ["mpirun", "-n", str(ranks), *call] if ranks > 1 else call
        done = subprocess.run(call, capture_output=True, text=True, env=mpi.environment(folder))
        assert done.returncode in (0, 1), done.stderr
        return read_json(path)


def results(name):
    return read_json(os.path.join(ROOT, "docs", "results", name))


@functools.cache
def runs_on_h200():
    return [run for name in ("h200.json", "h200_bf16.json") for run in results(name)["runs"]]


def h200(variant, n, causal=False):
    """A run of FlashAttention's series with d = 64."""
    step, name = variant.split()
    wanted = {"b": 16384 // n, "h": 32, "n": n, "d": 64, "causal": causal}
    for run in runs_on_h200():
        p = run["problem"]
        same = run["step"][:2] == step and run["variant"] == name and own_tiles(p)
        if same and run["device"]["name"] == H200 and wanted.items() <= p.items():
            return run
    raise LookupError(f"{variant}, {wanted}")


def ms(run):
    return run["time"]["median_ms"]


def rows(name, **wanted):
    """Of decode, of ring, or of `peers` in h200_bf16."""
    found = results(name)
    found = found["peers"] if "peers" in found else found
    return [row for row in found["rows"] if wanted.items() <= row.items()]


def peers(variant, direction="forward", **wanted):
    return rows("h200_bf16.json", variant=variant, direction=direction, **wanted)


def speed(*found):
    return max(row["flops_per_s"] for row in found) / 1e12


def mean(found, name="flash"):
    return statistics.geometric_mean(row["ratios"][name] for row in found)


def decode(what="peers", **wanted):
    (row,) = rows("decode_h100.json", what=what, **wanted)
    return row


def ring(what, **wanted):
    (row,) = rows("ring_h100.json", what=what, causal=True, **wanted)
    return row["forward"]["share"], row["both"]["share"]


def requested(run, *buffers):
    """Counted bytes, of these buffers or of all."""
    counts = run["traffic"]["requested"]
    if not buffers:
        return total(counts["counted"])
    return sum(
        total(counts["buffers"][name]["counted"]) for name in buffers if name in counts["buffers"]
    )


def hbm(run, kind="measured"):
    return total(run["traffic"]["hbm"][kind])


def rmse(line, ranks=1):
    return sim(line, ranks)["check"][0]["rmse"]


# --- what the page says ---------------------------------------------------------------------------


def the_problem():
    naive = sim("01_naive --h 1 --n 512 --d 32")
    written = naive["traffic"]["requested"]["buffers"]["S"]["counted"]["write"]
    yield f"{written:,} bytes of S are written in fp32, so {written // 2:,} in 2 bytes"
    layer = sim("01_naive --predict --h 32 --n 4096")
    scores = layer["traffic"]["requested"]["buffers"]["S"]["predicted"]["write"] // 2
    both = bytes_text(layer["workspace_bytes"])
    yield f"{scores:,} bytes; with P and in fp32 step 01 needs {both}"
    yield f"{requested(sim('02_tiled --h 1 --n 512'), 'S', 'P') / (4 * 512**2):g} are requested"
    passes = [
        hbm(h200("02 registers", n)) / (4 * 32 * 16384 * n) - 4 * 64 / n for n in (1024, 4096)
    ]
    yield "{:.1f} passes at N = 1024, {:.1f} at N = 4096".format(*passes)
    one_pass = sim("03_online_softmax --variant one_pass --h 1 --n 256")
    fused = sim("04_fused --h 1 --n 256")
    p, both = requested(one_pass, "P"), requested(fused, "S", "P")
    yield f"Step 03 moves {p} bytes of P, step 04 {both} of S and P, and both are right"
    naive, tiled = h200("01 naive", 4096), h200("02 registers", 4096)
    copy = hbm(naive) / (ms(naive) * 1e-3) / naive["roofs"]["copy_bytes_per_s"]
    fma = naive["flops"] / (ms(naive) * 1e-3) / naive["roofs"]["fp32_flops"]
    yield f"{copy:.1%} of the copy rate and {fma:.1%} of the FMA rate"
    yield f"with the same HBM traffic, is {ms(naive) / ms(tiled):.0f} times as fast"


def the_algorithm():
    naive, fused = (sim(f"{step} --h 1 --n 512 --d 32") for step in ("01_naive", "04_fused"))
    more = fused["flops_executed"] - naive["flops_executed"]
    yield f"{naive['flops_executed']:,} FLOP and {more} more"
    a, b = (run["check"][0]["max_abs_err"] for run in (naive, fused))
    yield f"largest error of O against fp64 {a:.0e} in step 01, {b:.0e} in step 04"
    half, whole = (sim(f"04_fused --h 1 --n {n}") for n in (256, 512))
    a, b = half["workspace_bytes"], whole["workspace_bytes"]
    yield f"{a:,} bytes at N = 256 and {b:,} at N = 512"
    a, b = half["naive_workspace_bytes"], whole["naive_workspace_bytes"]
    yield f"S and P would take {a:,} and {b:,}"
    accesses = [
        sim(f"03_online_softmax --variant {variant} --h 1 --n 128")["traffic"]["per_element"][0]
        for variant in ("safe", "online", "naive")
    ]
    accesses = [each["counted"] for each in accesses]
    yield "{:g} safe, {:g} online, {:g} without a maximum".format(*accesses)


def traffic():
    a100, gpu = find_model("A100"), find_model("H200")
    sram, dram = a100["fp32_flops"], a100["hbm_bytes_per_s"]  # 128 per clock and SM are both
    size = a100["memory_bytes"] / (a100["sms"] * a100["sm_shared_bytes"])
    yield (
        f"{bytes_text(sram)}/s of shared memory beside {bytes_text(dram)}/s: {sram / dram:.1f} "
        f"times, at 1/{size:.0f} of the size"
    )
    parts = results("microbenchmarks_h200.json")
    constants = parts["constants"]
    sram = parts["sms"] * parts["clock_hz"] * 128 / constants["shared_load_w4_dense"]["value"]
    now = constants["hbm_read"]["value"]
    yield f"{bytes_text(sram)}/s of shared memory beside {bytes_text(now)}/s of HBM"
    yield f"{sram / now:.1f} times. **Differs**"
    yield f"HBM became {now / dram:.1f} times as fast as an A100's"
    half, whole = (requested(sim(f"04_fused --h 1 --n {n}")) for n in (256, 512))
    yield f"Twice the N, {whole / half:.1f} times the requested bytes"
    large, small = (sim(f"04_fused --n 256 --h 16 --d 128 --gpu {name}") for name in ("H200", "T4"))
    a, b = (bytes_text(hbm(run, "model")) for run in (large, small))
    yield f"{bytes_text(requested(large))} are requested; {a} cross HBM with the modelled L2 of an"
    yield f"H200, {b} with that of a T4"
    short, long = ((h200("02 registers", n), h200("04 fused", n)) for n in (1024, 16384))
    a, b = (ms(tiled) / ms(fused) for tiled, fused in (short, long))
    yield f"Step 04 runs at {a:.2f} times the speed of step 02 at N = 1024, and at {b:.2f} times at"
    yield f"it moves only {hbm(long[1]) / hbm(long[0]):.2f} of step 02's HBM bytes there"
    heads = long[1]["problem"]["b"] * long[1]["problem"]["h"]
    yield f"{heads} of {gpu['sms']} SMs work at N = 16384"
    a, b = (
        hbm(h200("06 registers", n)) / (4 * 32 * (16384 // n) * (4 * n * 64 + n))
        for n in (1024, 16384)
    )
    yield f"FlashAttention-2's order {a:.3f} times that at N = 1024, {b:.3f} times at N = 16384"


def the_backward():
    standard, recompute = (
        sim(f"05_recompute_backward --variant {variant} --h 1 --n 256")
        for variant in ("standard", "recompute")
    )
    first, last = standard["backward"], recompute["backward"]
    ratio = last["flops_executed"] / first["flops_executed"]
    forward = last["flops_executed"] / recompute["flops_executed"]
    yield f"{ratio:.3g} times the FLOPs of the standard backward, {forward:.3g} times those of the"
    fewer, crossing = requested(first) / requested(last), hbm(first, "model") / hbm(last, "model")
    smaller = standard["workspace_bytes"] / recompute["workspace_bytes"]
    yield f"it requests {fewer:.1f} times fewer bytes, {crossing:.1f} times fewer cross"
    yield f"its workspace is {smaller:.0f} times smaller"
    numbers = last["traffic"]["requested"]["buffers"]["delta"]["counted"]["write"] // 4
    yield f"Step 05 writes {numbers} numbers for N = 256 and d = 64"
    found = []
    for variant in ("06 backward", "05 recompute"):
        for n in (1024, 4096):
            found.append(ms(h200("05 standard", n)["backward"]) / ms(h200(variant, n)["backward"]))
    yield "{:.2f} and {:.2f} times as fast in FlashAttention-2's order, {:.2f} and".format(*found)
    yield f"with too few blocks, {found[3]:.2f} times in FlashAttention-1's"
    all_of = [
        run["flops_executed"] + run["backward"]["flops_executed"] for run in (recompute, standard)
    ]
    yield f"{all_of[0] / all_of[1]:.2f} times as many: seven products for six"
    shape = sim("01_naive --predict --b 64 --h 16 --n 1024 --d 64")
    yield f"whose forward alone has {shape['flops'] / 1e9:.1f}"


def flash_attention_2():
    first, second = (
        sim(f"{step} --h 1 --n 512")
        for step in ("04_fused", "06_work_partitioning --variant swapped")
    )
    blocks = [max(kernel["blocks"] for kernel in run["kernels"]) for run in (second, first)]
    yield (
        f"{requested(second) / requested(first):.2f} of the requested bytes with the same tiles, "
        "and {} blocks instead of {} for one head".format(*blocks)
    )
    causal = sim("06_work_partitioning --variant swapped --h 1 --n 512 --causal")
    yield f"{requested(causal, 'K') / requested(second, 'K'):.1%} of the tiles are visited"
    short, long = (
        ms(h200("06 registers", n)) / ms(h200("06 registers", n, causal=True)) for n in (1024, 4096)
    )
    yield f"{short:.2f} times at N = 1024, {long:.2f} times at N = 4096"
    a100, new = find_model("A100"), find_model("H200")
    rates = a100["bf16_flops"] / 1e12, a100["fp32_flops"] / 1e12
    ratio = new["bf16_flops"] / new["fp32_flops"]
    yield f"{rates[0]:g} / {rates[1]:g} TFLOP/s = {rates[0] / rates[1]:.0f}; on an H200 {ratio:.1f}"
    times = [ms(h200("04 fused", n)) / ms(h200("06 registers", n)) for n in (1024, 4096, 16384)]
    yield "{:.1f} times at N = 1024, {:.1f} at 4096, {:.1f} at 16384".format(*times)


def flash_attention_3():
    peak = find_model("H200")["bf16_flops"] / 1e12
    share = speed(*peers("flash", d=128, causal=False)) / peak
    yield f"PyTorch's, at d = 128, at best {share:.0%} of {peak:.0f} TFLOP/s"
    best = speed(*peers("scheduled", d=128, causal=False))
    yield f"Step 10, at d = 128, at best {best:.0f} TFLOP/s, {best / peak:.0%} of {peak:.0f}"
    papers, ours = peers("specialized"), peers("scheduled")
    yield f"(`specialized`) {mean(papers):.2f} times in the geometric mean of {len(papers)}"
    yield f"with step 10's further ones {mean(ours):.2f} times"
    first, last = (peers(variant, "backward") for variant in ("wgmma", "columns"))
    yield f"Step 11 {mean(first):.2f} times in its first variant and {mean(last):.2f} times in its"
    at_8k = {"n": 8192, "d": 128, "causal": False}
    without, with_it, alike = (
        speed(*peers(variant, **at_8k)) for variant in ("producer", "specialized", "wgmma")
    )
    gain = with_it / without - 1
    yield f"At N = 8192 {with_it:.0f} TFLOP/s instead of {without:.0f}: {gain:.0%}"
    gain = with_it / alike - 1
    yield f"{with_it:.0f} TFLOP/s in step 10 instead of {alike:.0f} in step 09: {gain:.0%}"
    constants, h100 = results("microbenchmarks_h200.json")["constants"], find_model("H100")
    exp = constants["rate_ex2"]["value"] * 32
    flops = 2 * 64 * 256 * 16 / constants["wgmma_n256_ss_wg2"]["value"]
    clock = h100["bf16_flops"] / (h100["sms"] * flops)
    yield f"{exp:.0f} per clock and SM beside {flops:.0f} FLOP: {flops / exp:.0f} times fewer"
    rate = h100["sms"] * clock * exp / 1e12
    yield f"at {clock / 1e9:.2f} GHz, where an H100 has its peak, {rate:.2f} T per second"


def fp8():
    outliers = "--input outliers --h 2 --n 256 --nk 8192 --d 128"
    yield f"{rmse('10_warp_specialized ' + outliers):.1e}. **Differs**: the paper has fp16"
    tensor, blocks, rotated = (
        rmse(f"12_fp8 --variant {variant} {outliers}")
        for variant in ("tensor", "blocks", "rotated")
    )
    yield f"| {rotated:.1e}. Reproduced. |"
    yield f"{blocks:.1e} instead of {tensor:.1e}"
    yield f"{tensor / rotated:.1f} times at 8192 keys"
    plain, centred = (
        sim(f"12_fp8 --variant {variant} --h 1 --n 64 --nk 16384")["check"][0]["used"]
        for variant in ("tensor", "centred")
    )
    yield f"has {plain:.0%} of the allowed error in `tensor`, and {centred:.0%} in `centred`"
    gpu = find_model("H200")
    yield f"The peak {gpu['fp8_flops'] / gpu['bf16_flops']:.1f} times, attention"
    wide, narrow = (
        speed(*peers("late", n=16384, causal=False, d=d))
        / speed(*peers("scheduled", n=16384, causal=False, d=d))
        for d in (128, 64)
    )
    yield f"attention {wide:.2f} times at d = 128 and {narrow:.2f} times at d = 64, N = 16384"
    best = speed(*peers("late", d=128, causal=False))
    yield f"Step 12, at d = 128, at best {best:,.0f} TFLOP/s"


def decoding():
    heads = "--n 1 --nk 4096 --h 32 --hkv 8 --d 128"
    flash = sim(f"07_tensor_cores --variant lazy {heads}")
    splits, groups = (sim(f"13_decode --variant {v} {heads}") for v in ("splits", "groups"))
    a, b = (run["estimate"]["kernels"][0]["sms"] for run in (flash, splits))
    sms = find_model("H200")["sms"]
    yield f"With 32 heads {a} of an H200's {sms} SMs have a block, with splits {b}"
    each, once = requested(splits, "K", "V"), requested(groups, "K", "V")
    yield f"{each:,} bytes are requested by each head for itself, {once:,} once for the 4 heads"
    others = ("once --b 3 --lengths 0,1,700 --page 16", "fp8 --b 2 --lengths 900,33 --page 64")
    runs = [sim(f"13_decode --variant once {heads}")]
    runs += [sim(f"13_decode --variant {other} --h 8 --hkv 2 --d 128") for other in others]
    predicted = sum(total(run["traffic"]["requested"]["predicted"]) for run in runs)
    counted = sum(map(requested, runs))
    yield f"{predicted:,} bytes are predicted of three runs, {counted:,} counted"

    long = [decode(b=1, nk=262144, variant=name)["ms"] for name in ("lazy", "splits", "once")]
    a, b = long[0] / long[1], long[0] / long[2]
    yield f"at B = 1 and 262,144 keys: {a:.1f} times by splits, {b:.1f} times in all"
    first, second, third = (decode(b=1, nk=nk, variant="once")["ms"] for nk in (1024, 4096, 16384))
    a, b = second / first, third / first
    yield f"4,096 keys take {a:.2f} times as long as 1,024, 16,384 keys {b:.2f}"
    apart, four, sixteen = (decode("groups", hkv=hkv, variant="once")["ms"] for hkv in (32, 8, 2))
    a, b = apart / four, apart / sixteen
    yield f"{a:.2f} times with groups of 4, {b:.2f} times with groups of 16"
    slower = [
        row["ms"] / decode("pages", b=row["b"], nk=row["nk"], page=None)["ms"] - 1
        for row in rows("decode_h100.json", what="pages", page=16)
    ]
    yield f"With pages of 16 keys, {min(slower):.1%} to {max(slower):.1%} slower than without"
    long, batch, short = (
        decode(b=b, nk=nk, variant="once")["of_copy"]
        for b, nk in ((1, 262144), (32, 4096), (1, 4096))
    )
    yield (
        f"{long:.0%} of a copy's bandwidth at 262,144 keys and {batch:.0%} at 4,096 keys of 32 "
        f"sequences, but {short:.0%} at 4,096 keys of one"
    )
    long, short = (
        decode("fp8", b=1, nk=nk, variant="once")["ms"]
        / decode("fp8", b=1, nk=nk, variant="fp8")["ms"]
        for nk in (262144, 4096)
    )
    yield f"{long:.2f} times as fast at 262,144 keys, {short:.2f} times at 4,096"


def measured_rings():
    yield "{:.0%} and {:.0%} with 2 GPUs, variant fused".format(*ring("share", tokens=8192))
    yield "{:.0%} forward and {:.0%} with the backward".format(*ring("variants", variant="plain"))


def simulated_rings():
    plain, zigzag = (
        sim(f"14_ring --h 1 --n 512 --causal --variant {variant}", ranks=4)
        for variant in ("plain", "zigzag")
    )

    def share(run):
        scores = [rank["scores"] for rank in run["ranks"]]
        return sum(map(sum, scores)) / 4 / sum(map(max, zip(*scores)))

    yield f"reach {share(plain):.0%} of the ideal with 4 chunks and {share(zigzag):.0%} with 8"
    sent, chunk = zigzag["ranks"][0]["sent"], 2 * 2 * 512 // 4 * 64
    forward, backward = (sent[way]["counted"] for way in ("forward", "backward"))
    yield f"{forward:,} bytes, {forward / chunk:g} chunks; the backward sends"
    sums = (backward - 2 * chunk) / (2 * chunk)
    yield f"2 such chunks and {sums:g} of dK and dV in fp32, {backward:,}"
    errors = [rmse("14_ring --h 1 --n 512 --input normal", ranks) for ranks in (2, 4, 8)]
    yield "{:.1e} with 2 ranks, {:.1e} with 4 and {:.1e} with 8".format(*errors)
    sent = [
        sim(f"14_ring --h 8 --n {4096 * ranks} --predict --variant {variant}", ranks)["ranks"][0]
        for variant in ("heads", "zigzag")
        for ranks in (4, 8)
    ]
    sent = [bytes_text(rank["sent"]["forward"]["predicted"]) for rank in sent]
    yield "4 ranks send {} each and 8 ranks, with twice the rows, {}".format(*sent)
    yield "in a ring it is {2} and {3}".format(*sent)


class Claims(unittest.TestCase):
    def test_the_page_says_what_is_found(self):
        with open(os.path.join(ROOT, "docs", "claims.md"), encoding="utf-8") as file:
            page = file.read()
        groups = [the_problem, the_algorithm, traffic, the_backward, flash_attention_2]
        groups += [flash_attention_3, fp8, decoding, measured_rings]
        if mpi.has_mpi(os.path.join(BUILD, "steps", "14_ring")):
            groups.append(simulated_rings)
        for group in groups:
            for words in group():
                with self.subTest(group=group.__name__):
                    self.assertIn(words, page)


if __name__ == "__main__":
    unittest.main(argv=["test"])
