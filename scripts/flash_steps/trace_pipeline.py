"""Draws pictures of step 10's pipeline from a trace of one block on a GPU.

    maintain trace_pipeline             draws docs/pictures/pipeline_*.svg from pipeline.json
    maintain trace_pipeline --measure   makes pipeline.json first: needs nvcc and an sm_90 GPU
    maintain trace_pipeline --check     fails when a picture does not match the file, or a kernel no
                                        longer makes the calls where the trace reads the clock

In a copy of the kernel's text, a line after each call named below records clock64(); the kernel
itself stays unchanged. Only warp 0 of each warpgroup of block 0 records.
Exit status: 0 done, 1 --check failed, 2 bad use, 3 no nvcc or no GPU.
"""

import os
import subprocess
import tempfile

from . import command
from .command import BadInput, Failure, NotHere
from .files import read_json, read_text, write_json, write_text
from .step_text import without_comments
from .steps import ROOT

STEP = os.path.join("steps", "10_warp_specialized")
RESULTS = os.path.join(ROOT, "docs", "pictures", "pipeline.json")
KEPT = 60000  # clocks of the trace
PICTURES = os.path.join(ROOT, "docs", "pictures")

EVENTS = ("k_issue", "v_issue", "scores_issue", "values_issue", "scores_done", "softmax_done")
EVENTS += ("values_done", "o_ready", "o_stored")  # pipeline.json has their places
# Which event is noted by whom behind which call ("A ... B": the first B behind each A), and how
# often that stands in each kernel. Roles: -1 the producer, -2 the storing thread, wg: consumers.
NOTES = (
    ("k_issue", -1, "fa::tma_load(smem.K[k.stage], K,", {"specialized": 1, "persistent": 1}),
    ("v_issue", -1, "fa::tma_load(smem.V[v.stage], V,", {"specialized": 1, "persistent": 1}),
    ("scores_issue", "wg", "multiply_scores<T>(", {"specialized": 1, "persistent": 1}),
    ("values_issue", "wg", "multiply_values<T>(", {"specialized": 1, "persistent": 1}),
    ("scores_done", "wg", "wait_scores<1>();", {"specialized": 1, "persistent": 2}),
    ("values_done", "wg", "wait_scores<0>();", {"specialized": 1, "persistent": 1}),
    ("values_done", "wg", "fa::wgmma_wait<0>();", {"specialized": 2, "persistent": 2}),
    ("softmax_done", "wg", "softmax();", {"specialized": 2}),
    ("softmax_done", "wg", "raise_maximum( ... compute_p(", {"persistent": 1}),
    ("softmax_done", "wg", "first_softmax();", {"persistent": 2}),
    ("o_ready", "wg", "put_rows<d>(", {"specialized": 1}),
    ("o_stored", "wg", "fa::tma_store_wait_read<0>(", {"specialized": 1}),
    ("o_ready", -2, "fa::mbarrier_wait(&smem.o_full[b][wg]", {"persistent": 1}),
    ("o_stored", -2, "fa::tma_store_wait_read<0>(", {"persistent": 1}),
)
KERNELS = {  # {name of the picture: (file, call)}
    "specialized": ("3_specialized.cuh", "step10_specialized::forward<false>(p, t)"),
    "persistent": ("4_persistent.cuh", "step10_persistent::forward(p, t)"),
}
PROBLEM = dict(b=16, h=16, n=1024, d=128, causal=False)
TILE_KEYS = 128  # Bc at this d

PRELUDE = """
namespace trace {
constexpr int kRoles = 8, kEvents = 4096;
struct Event { long long what, clock; };
__device__ Event events[kRoles][kEvents];
// About 30 clocks: no atomic, and no thread waits for the store.
__device__ inline void note(int role, int what, int i) {
  if (blockIdx.x != 0 || threadIdx.x % 32 != 0 || (role >= 0 && threadIdx.x / 32 % 4 != 0)) return;
  if (i < kEvents) events[role + 2][i] = {what + 1, clock64()};
}
}  // namespace trace
"""

PROGRAM = """
#include <cstdio>
#include <map>
#include <vector>
#include "traced.cuh"

__global__ void fill(fa::bf16* x, size_t n, unsigned seed) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n;
       i += size_t(gridDim.x) * blockDim.x) {
    unsigned z = unsigned(i) * 2654435761u + seed;
    z ^= z >> 16, z *= 0x85ebca6bu, z ^= z >> 13, z *= 0xc2b2ae35u, z ^= z >> 16;
    const unsigned w = z * 1664525u + 1013904223u;
    x[i] = fa::bf16(sqrtf(-2 * logf((z >> 8) * 0x1p-24f + 0x1p-25f)) * cospif((w >> 8) * 0x1p-23f));
  }
}

int main() {
  fa::Problem p;
  p.B = %(b)d, p.H = p.Hkv = %(h)d, p.N = p.Nk = %(n)d, p.d = %(d)d, p.causal = %(causal)d;
  p.dtype = fa::DType::bf16;
  fa::Tensors<fa::bf16> t;
  fa::bf16* x[4];
  for (auto& y : x) fa::cuda_check(cudaMalloc(&y, p.q_size() * 2));
  for (int i = 0; i < 3; ++i) fill<<<1024, 256>>>(x[i], p.q_size(), 77 * i + 1);
  t.Q = x[0], t.K = x[1], t.V = x[2], t.O = x[3];
  fa::cuda_check(cudaMalloc(&t.LSE, p.rows() * 4));
  for (int run = 0; run < 20; ++run) %(call)s;  // the trace is the last one's, with the clock up
  fa::cuda_check(cudaDeviceSynchronize());
  static trace::Event events[trace::kRoles][trace::kEvents];
  fa::cuda_check(cudaMemcpyFromSymbol(events, trace::events, sizeof events));
  cudaDeviceProp device;
  fa::cuda_check(cudaGetDeviceProperties(&device, 0));
  std::printf("%%s\\n", device.name);
  for (int role = 0; role < trace::kRoles; ++role) {
    for (const auto& e : events[role]) {
      if (e.what) std::printf("%%d %%lld %%lld\\n", role - 2, e.what - 1, e.clock);
    }
  }
}
"""


def traced_text(name):
    """The kernel's text with a note behind each call."""
    path = os.path.join(STEP, KERNELS[name][0])
    notes = [(*note, times[name]) for *note, times in NOTES if name in times]
    found = {call: 0 for _, _, call, _ in notes}
    seen = set()  # of "A ... B": those whose A has been there
    out = []
    in_head = False  # of a function
    pending = []  # notes to write at the end of the running statement
    for line in map(str.rstrip, without_comments(read_text(os.path.join(ROOT, path))).splitlines()):
        out.append(line)
        for event, role, call, _ in notes:
            before, _, text = call.rpartition(" ... ")
            if before and before in line:
                seen.add(call)
            elif text in line and (not before or call in seen):
                seen.discard(call)
                found[call] += 1
                pending.append((event, role))
        if pending and line.endswith(";"):
            out += [f"trace::note({role}, {EVENTS.index(e)}, trace_n++);" for e, role in pending]
            pending = []
        in_head = in_head or line.startswith(("__device__", "struct Consumer"))
        if in_head and line.endswith("{"):  # counts what the thread notes: a local, or a member
            out.append("[[maybe_unused]] int trace_n = 0;")
            in_head = False
    for _, _, call, times in notes:
        if found[call] != times:
            raise Failure(
                f"{path} has '{call}' {found[call]} times, not {times}: "
                "trace_pipeline.py names the calls"
            )
    text = "\n".join(out)
    begin = '#pragma once\n#include "common/dialect/cuda.h"' + PRELUDE
    return text.replace("#pragma once", begin, 1)


def measure():
    results = {"schema": 1, "problem": PROBLEM, "events": list(EVENTS), "kernels": {}}
    for name, (_, call_of_step) in KERNELS.items():
        with tempfile.TemporaryDirectory() as folder:
            write_text(os.path.join(folder, "traced.cuh"), traced_text(name))
            source, program = (os.path.join(folder, part) for part in ("trace.cu", "trace"))
            write_text(source, PROGRAM % {**PROBLEM, "call": call_of_step})
            prefixes = filter(None, os.environ.get("CMAKE_PREFIX_PATH", "").split(":"))
            includes = [ROOT, folder, *(os.path.join(prefix, "include") for prefix in prefixes)]
            call = ["nvcc", "-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a"]
            call += ["-DFA_GPU", *(f"-I{path}" for path in includes), source]
            call += [os.path.join(ROOT, "common", "harness", "problem.cpp"), "-o", program]
            try:
                done = subprocess.run(call, capture_output=True, text=True)
            except OSError:
                raise NotHere("no nvcc: the CUDA toolkit is needed to measure") from None
            if done.returncode:
                raise NotHere(f"nvcc does not compile the traced kernel: {done.stderr[:2000]}")
            ran = subprocess.run([program], capture_output=True, text=True)
            if ran.returncode:
                raise NotHere(f"the traced kernel does not run: {ran.stderr[:300]}")
        device, *rows = ran.stdout.splitlines()
        events = sorted((tuple(map(int, row.split())) for row in rows), key=lambda e: e[2])
        start = events[0][2]
        results["device"] = device
        results["kernels"][name] = [[role, what, clock - start] for role, what, clock in events]
        results["kernels"][name] = [e for e in results["kernels"][name] if e[2] < KEPT]
    write_json(RESULTS, results, separators=(",", ":"))


# --- drawing ------------------------------------------------------------------------------------

WIDTH, LEFT, RIGHT = 1000, 120, 26
LANE, GAP, TOP = 26, 12, 46
COLOURS = {
    "scores": "#3b6fb6",
    "values": "#2a9d6f",
    "softmax": "#d98a29",
    "copy K": "#3b6fb6",
    "copy V": "#2a9d6f",
    "store": "#b5485d",
}
CLOCKS = {"specialized": 30000, "persistent": 36000}  # what a picture shows of the trace


def spans_of(results, name):
    """[(lane, kind, from, to)] in clocks; lanes: copy, store, and two of each warpgroup."""
    what = {event: i for i, event in enumerate(results["events"])}
    spans, by_role = [], {}
    for role, kind, clock in results["kernels"][name]:
        by_role.setdefault(role, []).append((kind, clock))
    for role, events in sorted(by_role.items()):
        if role == -1:
            spans += [
                ("copies", "copy K" if kind == what["k_issue"] else "copy V", clock, clock + 60)
                for kind, clock in events
            ]
        elif role == -2:
            ready = None
            for kind, clock in events:
                if kind == what["o_ready"]:
                    ready = clock
                elif ready is not None:
                    spans.append(("stores", "store", ready, clock))
                    ready = None
        else:
            scores = values = begun = ready = None
            for kind, clock in events:
                if kind == what["scores_issue"]:
                    scores = clock
                elif kind == what["values_issue"]:
                    values = clock
                elif kind == what["scores_done"] and scores is not None:
                    spans.append((f"tensor cores {role}", "scores", scores, clock))
                    begun, scores = clock, None
                elif kind == what["values_done"]:
                    if scores is not None:  # the prologue's Q K^T, or an epilogue
                        spans.append((f"tensor cores {role}", "scores", scores, clock))
                        scores = None
                    elif values is not None:
                        spans.append((f"P V {role}", "values", values, clock))
                    begun, values = (clock if begun is None else begun), None
                elif kind == what["o_ready"]:
                    ready = clock
                elif kind == what["o_stored"]:
                    spans.append(("stores", "store", ready, clock))
                elif kind == what["softmax_done"] and begun is not None:
                    spans.append((f"softmax {role}", "softmax", begun, clock))
                    begun = None
    return spans


def draw(results, name):
    """SVG text."""
    clocks = CLOCKS[name]
    spans = [span for span in spans_of(results, name) if span[2] < clocks]
    groups = sorted({role for role, _, _ in results["kernels"][name] if role >= 0})
    lanes = ["copies"]
    for wg in groups:
        lanes += [f"tensor cores {wg}", f"P V {wg}", f"softmax {wg}"]
    if any(lane == "stores" for lane, *_ in spans):
        lanes.append("stores")
    labels = {"copies": "copies", "stores": "O stored"}
    for wg in groups:
        labels |= {
            f"tensor cores {wg}": f"warpgroup {wg + 1}: S",
            f"P V {wg}": "P V",
            f"softmax {wg}": "softmax",
        }
    y, tops = TOP, {}
    for lane in lanes:
        if lane.startswith("tensor") or lane in ("copies", "stores"):
            y += GAP
        tops[lane] = y
        y += LANE
    height = y + 38
    scale = (WIDTH - LEFT - RIGHT) / clocks
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{name}: the first {clocks} clocks of one block '
        f"on an {results['device']}, d = {results['problem']['d']}, "
        f"N = {results['problem']['n']}</text>",
    ]
    for lane in lanes:
        out.append(
            f'<text x="{LEFT - 8}" y="{tops[lane] + LANE / 2 + 4:.0f}" '
            f'text-anchor="end">{labels[lane]}</text>'
        )
        out.append(
            f'<rect x="{LEFT}" y="{tops[lane]}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{LANE - 4}" fill="#f3f3f3"/>'
        )
    for tick in range(0, clocks + 1, 2000):
        x = LEFT + tick * scale
        if x <= WIDTH - RIGHT:
            out.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{y}" stroke="#cccccc" '
                f'stroke-width="0.5"/>'
            )
            out.append(
                f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle" fill="#555555">{tick}</text>'
            )
    for lane, kind, begin, end in spans:
        if lane in tops:
            width = max(1.0, (min(end, clocks) - begin) * scale)
            out.append(
                f'<rect x="{LEFT + begin * scale:.1f}" y="{tops[lane]}" '
                f'width="{width:.1f}" height="{LANE - 4}" fill="{COLOURS[kind]}" '
                f'stroke="white" stroke-width="0.5"/>'
            )
    for wg in groups:  # where a work tile ends and the next one begins
        begins = [
            begin
            for lane, kind, begin, _ in spans
            if lane == f"tensor cores {wg}" and kind == "scores"
        ]
        tiles = results["problem"]["n"] // TILE_KEYS
        for begin in begins[tiles::tiles]:
            x = LEFT + begin * scale - 2
            out.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{tops[f"tensor cores {wg}"] - 6}" '
                f'y2="{tops[f"softmax {wg}"] + LANE}" stroke="#222222" '
                f'stroke-dasharray="4 3"/>'
            )
    x = LEFT
    for kind, words in (
        ("copy K", "copy of K issued, S from issue to completion"),
        ("copy V", "copy of V issued, P V from issue to completion"),
        ("softmax", "softmax"),
    ):
        out.append(f'<rect x="{x}" y="{y + 22}" width="10" height="10" fill="{COLOURS[kind]}"/>')
        out.append(f'<text x="{x + 15}" y="{y + 31}">{words}</text>')
        x += 30 + 6.2 * len(words)
    out.append(
        f'<text x="{WIDTH - RIGHT}" y="{y + 31}" text-anchor="end" fill="#555555">'
        f"clocks</text></svg>"
    )
    return "\n".join(out) + "\n"


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--measure", action="store_true", help="trace the kernels on this GPU")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    try:
        if options.measure:
            measure()
        for name in KERNELS:
            traced_text(name)
        results = read_json(RESULTS)
        for name in KERNELS:
            draw_or_check(name, draw(results, name), options.check)
    except (OSError, BadInput) as error:
        raise Failure(error) from None
    return 0


def draw_or_check(name, text, check):
    path = os.path.join(PICTURES, f"pipeline_{name}.svg")
    if not check:
        write_text(path, text)
    elif read_text(path) != text:
        raise Failure(
            f"docs/pictures/pipeline_{name}.svg is not what docs/pictures/pipeline.json says: "
            "./scripts/maintain trace_pipeline"
        )
