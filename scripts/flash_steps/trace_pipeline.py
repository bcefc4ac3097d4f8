"""Draws pictures of the pipelines of steps 10 and 11 from a trace of one block on a GPU.

    maintain trace_pipeline             draws docs/pictures/pipeline_*.svg from pipeline.json
    maintain trace_pipeline --measure   makes pipeline.json first: needs nvcc and an sm_90 GPU
    maintain trace_pipeline --measure backward   measures one kernel, and keeps the others' traces
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

RESULTS = os.path.join(ROOT, "docs", "pictures", "pipeline.json")
KEPT = 60000  # clocks of the trace
PICTURES = os.path.join(ROOT, "docs", "pictures")

EVENTS = ("k_issue", "v_issue", "scores_issue", "values_issue", "scores_done", "softmax_done")
EVENTS += ("values_done", "o_ready", "o_stored")  # pipeline.json has their places
EVENTS += ("dk_issue", "dk_done", "dp_dv_issue", "dp_done", "dv_done", "ds_written")
EVENTS += ("rows_issue", "dq_issue", "dq_done", "dq_added")
# Which event is noted by whom behind which call ("A ... B": the first B behind each A), and how
# often that stands in each kernel. Roles: -1 the producer, -2 the storing thread, wg: consumers, 2
# the warpgroup that multiplies dQ.
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
    ("scores_issue", "wg", "issue_scores(rS);", {"backward": 2}),
    ("dk_issue", "wg", "issue_dk(n - 1);", {"backward": 2}),
    ("scores_done", "wg", "wait_for<1>(rS);", {"backward": 1}),
    ("scores_done", "wg", "wait_for<0>(rS);", {"backward": 1}),
    ("softmax_done", "wg", "softmax(rS);", {"backward": 2}),
    ("dk_done", "wg", "wait_for<0>(rdK);", {"backward": 2}),
    ("dp_dv_issue", "wg", "multiply_rows<d>(rP, first_tile() + kDoRows", {"backward": 1}),
    ("dp_done", "wg", "wait_for<1>(rdP);", {"backward": 1}),
    ("dv_done", "wg", "wait_for<0>(rdV);", {"backward": 1}),
    ("ds_written", "wg", "put_ds(", {"backward": 1}),
    ("rows_issue", 2, "copier.load_rows(", {"backward": 2}),
    ("dq_issue", 2, "multiply_keys<d>(", {"backward": 1}),
    ("dq_done", 2, "fa::wgmma_wait<0>();", {"backward": 1}),
    ("dq_added", 2, ".add(rdQ);", {"backward": 1}),
)
KERNELS = {  # {name of the picture: (file, call)}
    "specialized": (
        "steps/10_warp_specialized/3_specialized.cuh",
        "step10_specialized::forward<false>(p, t)",
    ),
    "persistent": (
        "steps/10_warp_specialized/4_persistent.cuh",
        "step10_persistent::forward(p, t)",
    ),
    "backward": ("steps/11_hopper_backward/6_columns.cuh", "step11_columns::backward(p, t)"),
}
HEADS = ("__device__", "struct Consumer", "struct Group")  # of what counts a thread's notes
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
#include <string>
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

void* allocate(size_t bytes) {
  void* x;
  fa::cuda_check(cudaMalloc(&x, bytes));
  return x;
}

int main() {
  fa::Problem p;
  p.B = %(b)d, p.H = p.Hkv = %(h)d, p.N = p.Nk = %(n)d, p.d = %(d)d, p.causal = %(causal)d;
  p.dtype = fa::DType::bf16;
  fa::Tensors<fa::bf16> t;
  fa::bf16* x[8];
  for (int i = 0; i < 8; ++i) {
    x[i] = static_cast<fa::bf16*>(allocate(p.q_size() * 2));
    fill<<<1024, 256>>>(x[i], p.q_size(), 77 * i + 1);
  }
  t.Q = x[0], t.K = x[1], t.V = x[2], t.O = x[3];
  t.dO = x[4], t.dQ = x[5], t.dK = x[6], t.dV = x[7];
  const std::vector<float> lse(p.rows(), logf(p.Nk) + 0.5f);  // about what these scores have
  t.LSE = static_cast<float*>(allocate(p.rows() * 4));
  fa::cuda_check(cudaMemcpy(t.LSE, lse.data(), p.rows() * 4, cudaMemcpyHostToDevice));
  const std::map<std::string, void*> workspace = {{"columns", allocate(p.rows() * 16)},
                                                  {"dQ_sum", allocate(p.q_size() * 4)}};
  t.workspace = &workspace;
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
    path = KERNELS[name][0]
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
        in_head = in_head or line.startswith(HEADS)
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


def measure(only):
    """All kernels, or one beside what the file has of the others."""
    results = {"schema": 1, "problem": PROBLEM, "events": list(EVENTS), "kernels": {}}
    if only:
        before = read_json(RESULTS)
        results |= {key: before[key] for key in ("kernels", "device")}
    for name in [only] if only else KERNELS:
        with tempfile.TemporaryDirectory() as folder:
            write_text(os.path.join(folder, "traced.cuh"), traced_text(name))
            source, program = (os.path.join(folder, part) for part in ("trace.cu", "trace"))
            write_text(source, PROGRAM % {**PROBLEM, "call": KERNELS[name][1]})
            prefixes = filter(None, os.environ.get("CMAKE_PREFIX_PATH", "").split(":"))
            includes = [ROOT, folder, *(os.path.join(prefix, "include") for prefix in prefixes)]
            call = ["nvcc", "-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a"]
            call += ["-DFA_GPU", *(f"-I{path}" for path in includes), source]
            harness = os.path.join(ROOT, "common", "harness")
            call += [os.path.join(harness, part) for part in ("problem.cpp", "step.cpp")]
            call += ["-o", program]
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
        if results.setdefault("device", device) != device:
            raise Failure(f"the other traces are of an {results['device']}, this is an {device}")
        results["kernels"][name] = [[role, what, clock - start] for role, what, clock in events]
        results["kernels"][name] = [e for e in results["kernels"][name] if e[2] < KEPT]
    write_json(RESULTS, results, separators=(",", ":"))


# --- drawing ------------------------------------------------------------------------------------

WIDTH, RIGHT = 1000, 26
LEFT = {"specialized": 120, "persistent": 120, "backward": 140}  # where the lanes begin
LANE, GAP, TOP = 26, 12, 46
COLOURS = {
    "scores": "#3b6fb6",
    "values": "#2a9d6f",
    "softmax": "#d98a29",
    "copy K": "#3b6fb6",
    "copy V": "#2a9d6f",
    "store": "#b5485d",
    "S": "#3b6fb6",
    "dP": "#8a63b0",
    "dK": "#97a83a",
    "dV": "#2a9d6f",
    "P": "#d98a29",
    "dS": "#e3bd4f",
    "dQ": "#b5485d",
    "addition": "#8c6650",
    "copy": "#777777",
}
# What a picture shows of the trace; for the backward, from the sixth tile on.
CLOCKS = {"specialized": 30000, "persistent": 36000, "backward": 12000}
FIRST_TILE = 5
BACKWARD = (  # (lane, kind, event at the beginning, event at the end)
    ("S, dP", "S", "scores_issue", "scores_done"),
    ("S, dP", "dP", "dp_dv_issue", "dp_done"),
    ("dK, dV", "dK", "dk_issue", "dk_done"),
    ("dK, dV", "dV", "dp_dv_issue", "dv_done"),
    ("P, dS", "P", "scores_done", "softmax_done"),
    ("P, dS", "dS", "dp_done", "ds_written"),
    ("dQ", "dQ", "dq_issue", "dq_done"),
    ("additions", "addition", "dq_done", "dq_added"),
)
COPY = 60  # clocks: what a copy's bar is wide


def backward_spans_of(results):
    """As spans_of(), but from the picture's first clock on."""
    clocks = {}  # of each role and event
    for role, kind, clock in results["kernels"]["backward"]:
        clocks.setdefault((role, results["events"][kind]), []).append(clock)
    start = clocks[0, "scores_issue"][FIRST_TILE]
    spans = [("copies", "copy", clock, clock + COPY) for clock in clocks[2, "rows_issue"]]
    spans += [
        (f"{lane} {role}", kind, *span)
        for lane, kind, begin, end in BACKWARD
        for role in range(3)
        for span in zip(clocks.get((role, begin), []), clocks.get((role, end), []))
    ]
    spans = [(lane, kind, begin - start, end - start) for lane, kind, begin, end in spans]
    spans = [(lane, kind, max(0, begin), end) for lane, kind, begin, end in spans if end > 0]
    return sorted(spans, key=lambda span: span[2])


def spans_of(results, name):
    """[(lane, kind, from, to)] in clocks; lanes: copy, store, and some of each warpgroup."""
    if name == "backward":
        return backward_spans_of(results)
    what = {event: i for i, event in enumerate(results["events"])}
    spans, by_role = [], {}
    for role, kind, clock in results["kernels"][name]:
        by_role.setdefault(role, []).append((kind, clock))
    for role, events in sorted(by_role.items()):
        if role == -1:
            spans += [
                ("copies", "copy K" if kind == what["k_issue"] else "copy V", clock, clock + COPY)
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


def lanes_of(name, spans):
    """[[(lane, label)]]: the groups of lanes, from top to bottom."""
    warpgroups, first = 2 * [("tensor cores", "P V", "softmax")], 1  # 0 copies
    if name == "backward":
        warpgroups, first = 2 * [("S, dP", "dK, dV", "P, dS")] + [("dQ", "additions")], 0
    groups = [[("copies", "copies")]]
    for wg, lanes in enumerate(warpgroups):
        labels = ["S" if lane == "tensor cores" else lane for lane in lanes]
        labels[0] = f"warpgroup {first + wg}: {labels[0]}"
        groups.append([(f"{lane} {wg}", label) for lane, label in zip(lanes, labels)])
    if any(lane == "stores" for lane, *_ in spans):
        groups.append([("stores", "O stored")])
    return groups


def legend_of(name):
    """[(kind, words)]"""
    if name == "backward":
        return (
            *((kind, kind) for kind in ("S", "dP", "dK", "dV")),
            ("dQ", "dQ (products: issue to end)"),
            *((kind, kind) for kind in ("P", "dS")),
            ("addition", "additions to dQ"),
            ("copy", "copies of Q, dO"),
        )
    return (
        ("copy K", "copy of K issued, S from issue to completion"),
        ("copy V", "copy of V issued, P V from issue to completion"),
        ("softmax", "softmax"),
    )


def draw(results, name):
    """SVG text."""
    clocks, left = CLOCKS[name], LEFT[name]
    spans = [span for span in spans_of(results, name) if span[2] < clocks]
    y, tops, labels = TOP, {}, {}
    for group in lanes_of(name, spans):
        y += GAP
        for lane, label in group:
            tops[lane], labels[lane] = y, label
            y += LANE
    height = y + 38
    scale = (WIDTH - left - RIGHT) / clocks
    part = f"the first {clocks} clocks of one block"
    if name == "backward":
        part = f"{clocks} clocks in the middle of one block"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="20" font-size="14">{name}: {part} '
        f"on an {results['device']}, d = {results['problem']['d']}, "
        f"N = {results['problem']['n']}</text>",
    ]
    for lane in tops:
        out.append(
            f'<text x="{left - 8}" y="{tops[lane] + LANE / 2 + 4:.0f}" '
            f'text-anchor="end">{labels[lane]}</text>'
        )
        out.append(
            f'<rect x="{left}" y="{tops[lane]}" width="{WIDTH - left - RIGHT}" '
            f'height="{LANE - 4}" fill="#f3f3f3"/>'
        )
    for tick in range(0, clocks + 1, 2000):
        x = left + tick * scale
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
                f'<rect x="{left + begin * scale:.1f}" y="{tops[lane]}" '
                f'width="{width:.1f}" height="{LANE - 4}" fill="{COLOURS[kind]}" '
                f'stroke="white" stroke-width="0.5"/>'
            )
    for wg in range(2):  # where a work tile ends and the next one begins
        begins = [
            begin
            for lane, kind, begin, _ in spans
            if lane == f"tensor cores {wg}" and kind == "scores"
        ]
        tiles = results["problem"]["n"] // TILE_KEYS
        for begin in begins[tiles::tiles]:
            x = left + begin * scale - 2
            out.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{tops[f"tensor cores {wg}"] - 6}" '
                f'y2="{tops[f"softmax {wg}"] + LANE}" stroke="#222222" '
                f'stroke-dasharray="4 3"/>'
            )
    x = left
    for kind, words in legend_of(name):
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
    parser.add_argument(
        "--measure",
        nargs="?",
        const="all",
        choices=("all", *KERNELS),
        help="trace the kernels, or one, on this GPU",
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    try:
        if options.measure:
            measure(None if options.measure == "all" else options.measure)
        for name in KERNELS:
            traced_text(name)
        results = read_json(RESULTS)
        for name in results["kernels"]:
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
