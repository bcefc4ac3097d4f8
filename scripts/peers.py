#!/usr/bin/env python3
"""This project's steps against PyTorch's attention on one GPU, in one run, as ratios.

    peers.py                                 all steps at two sizes, the last step at more
    peers.py --steps 06 --n "1024 4096" --d "64 128" --causal both

PyTorch's scaled_dot_product_attention is timed with each of its backends that takes the step's
type: math (unfused), efficient, flash, cudnn. A step and the backends take turns, `--rounds` times,
and medians are compared: CUDA events, warmed up, the L2 swept with reads before each run. A ratio
above 1 says that the step is the faster one. fp32: flash and cudnn refuse it; math multiplies on
the CUDA cores like the steps (TF32 is off); efficient uses the tensor cores, three TF32 products
for each of fp32, so it is context and no equal.
Exit status: 0 done, 1 a run was wrong, 2 bad use, 3 no PyTorch, no GPU or no program.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings

from results import (BadInput, Column, flops_text, load, markdown_table, problem_text, text_table,
                     time_text)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BACKENDS = {"math": "MATH", "efficient": "EFFICIENT_ATTENTION", "flash": "FLASH_ATTENTION",
            "cudnn": "CUDNN_ATTENTION"}
DIRECTIONS = ("forward", "backward")
FP32_NOTE = ("fp32: math multiplies on the CUDA cores (no TF32), as the steps do; efficient runs 3 "
             "TF32 products on the tensor cores for each of fp32: context, no equal.")


class NotHere(Exception):
    """One sentence; exit status 3."""


# --- PyTorch ------------------------------------------------------------------------------------


class Torch:
    """PyTorch's side: times its backends as the steps time themselves."""

    def __init__(self, iters):
        try:
            import torch
            from torch.nn.attention import SDPBackend, sdpa_kernel
        except ImportError:
            raise NotHere("this Python has no PyTorch (2.5 or newer): pip install torch, or name "
                          "one that has it") from None
        if not torch.cuda.is_available():
            raise NotHere("PyTorch finds no CUDA GPU")
        warnings.filterwarnings("ignore")  # why a backend refuses; ours says that it does
        self.torch, self.kernel, self.iters = torch, sdpa_kernel, iters
        self.refused = set()  # (backend, type, head dimension)
        self.backends = {name: getattr(SDPBackend, word) for name, word in BACKENDS.items()
                         if hasattr(SDPBackend, word)}
        torch.backends.cuda.matmul.allow_tf32 = False
        properties = torch.cuda.get_device_properties(0)
        self.device = properties.name
        l2_bytes = getattr(properties, "L2_cache_size", 0) or 64 << 20
        self.sweep_bytes = 4 * l2_bytes
        self.sweeper = torch.zeros(self.sweep_bytes // 4, device="cuda")

    def sweep(self):
        """Reads four times the L2: no run finds what the last one left there. Four times over, so
        that the host has queued the run behind it by the time it ends."""
        for _ in range(4):
            self.sweeper.sum()

    def times(self, run):
        """The median of CUDA events, in ms."""
        torch = self.torch
        start = time.monotonic()
        runs = 0
        while runs < 3 or time.monotonic() - start < 0.3:
            run()
            torch.cuda.synchronize()
            runs += 1
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)]
                  for _ in range(self.iters)]
        for begin, end in events:
            self.sweep()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(begin.elapsed_time(end) for begin, end in events)

    def measure(self, name, problem, backward):
        """{"forward": ms, "backward": ms or None, "error": against fp64} of one backend.
        \\raises RuntimeError with PyTorch's words when the backend refuses the problem."""
        torch = self.torch
        attention = torch.nn.functional.scaled_dot_product_attention
        shape = [problem[key] for key in ("b", "h", "n", "d")]
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[problem["dtype"]]
        torch.manual_seed(1)
        q, k, v, do = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(4))
        causal = problem["causal"]
        try:
            with self.kernel([self.backends[name]]):
                with torch.no_grad():
                    out = attention(q, k, v, is_causal=causal)
                    error = self.error(out, q, k, v, causal)
                    del out
                    found = {"error": error, "backward": None,
                             "forward": self.times(lambda: attention(q, k, v, is_causal=causal))}
                if backward:
                    for x in (q, k, v):
                        x.requires_grad_()
                    out = attention(q, k, v, is_causal=causal)
                    found["backward"] = self.times(lambda: torch.autograd.grad(
                        out, (q, k, v), do, retain_graph=True))
            return found
        finally:
            q = k = v = do = out = None
            torch.cuda.empty_cache()  # the step is a process of its own and needs the memory

    def error(self, out, q, k, v, causal):
        """The largest error of a head's last rows against fp64."""
        torch = self.torch
        n, d = q.shape[-2:]
        rows = min(n, 128)
        last = slice(n - rows, n)
        s = q[0, 0, last].double() @ k[0, 0].double().T / d**0.5
        if causal:
            row = torch.arange(n - rows, n, device="cuda")[:, None]
            s = s.masked_fill(torch.arange(n, device="cuda") > row, float("-inf"))
        want = torch.softmax(s, -1) @ v[0, 0].double()
        return (out[0, 0, last].double() - want).abs().max().item()


# --- the steps ----------------------------------------------------------------------------------


def find_programs(options):
    folder = os.path.join(options.build, "steps")
    known = sorted(name for name in (os.listdir(folder) if os.path.isdir(folder) else [])
                   if name[:2].isdigit() and os.path.isfile(os.path.join(folder, name)))
    if not known:
        raise NotHere(f"no step is built in {options.build}: cmake --preset gpu && cmake --build "
                      "--preset gpu")
    if not options.steps:
        return known
    chosen = []
    for word in options.steps.split():
        matching = [name for name in known if name == word or name.startswith(word + "_")]
        if not matching:
            raise BadInput(f"no step '{word}'; {options.build} has {', '.join(known)}")
        chosen += matching
    return chosen


def run_step(options, step, problem, folder):
    """The runs of the program's JSON, or the sentence with which it refuses the problem."""
    path = os.path.join(folder, "run.json")
    command = [os.path.join(options.build, "steps", step), "--input=normal",
               f"--iters={options.iters}", f"--json={path}"]
    command += [f"--{key}={problem[key]}" for key in ("b", "h", "n", "d")]
    command += ["--causal"] if problem["causal"] else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode in (2, 3):
        return None, done.stderr.strip()
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:1] + command[4:])}\n{done.stdout}{done.stderr}")
    runs = load(path)
    os.remove(path)
    if runs[0].kind != "gpu":
        raise NotHere(f"{step} in {options.build} is a simulator's program: build the preset gpu")
    return runs, None


def problems_of(options, step, is_last):
    """FlashAttention's series: B*N = 16384, H*d = 2048."""
    sizes, ds, causals = [1024, 4096], [64], [False]
    if is_last:
        sizes, ds, causals = [1024, 4096, 16384], [64, 128], [False, True]
    sizes = options.n or sizes
    ds = options.d or ds
    if options.causal:
        causals = {"no": [False], "yes": [True], "both": [False, True]}[options.causal]
    return [dict(b=max(1, options.tokens // n), h=max(1, 2048 // d), n=n, d=d, causal=causal)
            for d in ds for causal in causals for n in sizes]


# --- one comparison -----------------------------------------------------------------------------


def with_kv(problem):
    return {**problem, "hkv": problem["h"], "nk": problem["n"]}


def median(values):
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def compare(options, torch, step, problem, folder, notes):
    """The rows of one step and problem: the step, then the backends, forward and backward."""
    step_runs, peers = [], {}
    for _ in range(options.rounds):
        runs, refusal = run_step(options, step, problem, folder)
        if refusal:
            notes.append(refusal)
            return []
        step_runs.append(runs)
        problem = {**problem, "dtype": runs[0].data["problem"]["dtype"]}
        for name in torch.backends:
            kind = (name, problem["dtype"], problem["d"])
            if kind in torch.refused:
                continue
            try:
                peers.setdefault(name, []).append(torch.measure(name, problem, len(runs) > 1))
            except RuntimeError as error:
                peers.pop(name)
                if "available kernel" in str(error) or "viable backend" in str(error):
                    torch.refused.add(kind)
                    notes.append(f"PyTorch's {name} has no kernel for {kind[1]}, d={kind[2]}.")
                else:  # out of memory, mostly
                    notes.append(f"PyTorch's {name}, {problem_text(with_kv(problem))}: "
                                 f"{str(error).strip().splitlines()[0]}")
    sizes = with_kv(problem)
    rows = []
    for i, direction in enumerate(DIRECTIONS[:len(step_runs[0])]):
        first = step_runs[0][i]
        flops = first.get("flops")
        ms = median(runs[i].get("time.median_ms") for runs in step_runs)
        if ms is None:
            raise RuntimeError(f"{first.label} was not timed: {first.get('traffic.note')}")
        others = {name: median(found[direction] for found in rounds)
                  for name, rounds in peers.items()}
        others = {name: value for name, value in others.items() if value}
        matmul = first.get("roofs.fp32_matmul_flops") if problem["dtype"] == "fp32" else None
        common = {**sizes, "problem": problem_text(sizes), "direction": direction}
        rows.append({**common, "step": step, "variant": first.variant, "label": first.label,
                     "ms": ms, "flops_per_s": flops / (ms * 1e-3),
                     "ratios": {name: value / ms for name, value in others.items()},
                     "of_matmul": flops / (ms * 1e-3) / matmul if matmul else None})
        rows += [{**common, "step": None, "variant": name, "label": f"torch {name}",
                  "ms": value, "flops_per_s": flops / (value * 1e-3), "ratios": {},
                  "of_matmul": flops / (value * 1e-3) / matmul if matmul else None,
                  "error": max(found["error"] for found in peers[name])}
                 for name, value in others.items()]
    return rows


# --- the table ----------------------------------------------------------------------------------


def columns_for(rows):
    backends = [name for name in BACKENDS if any(name in row["ratios"] for row in rows)]

    def ratio(name):
        return lambda row: f"{row['ratios'][name]:.3g}x" if name in row["ratios"] else "-"

    return [Column(("", "problem"), lambda row: row["problem"], left=True),
            Column(("", "direction"), lambda row: row["direction"], left=True),
            Column(("", "who"), lambda row: row["label"], left=True),
            Column(("", "time"), lambda row: time_text(row["ms"])),
            Column(("TFLOP", "per s"), lambda row: flops_text(row["flops_per_s"])),
            Column(("of fp32", "matmul"), lambda row: "-" if row["of_matmul"] is None
                   else f"{100 * row['of_matmul']:.1f}%")] + [
                Column(("against", name), ratio(name)) for name in backends]


def in_order(rows):
    """By problem, then direction; PyTorch's backends, which each step meets anew, once: the median
    of their times."""
    groups = {}
    for row in rows:
        groups.setdefault((row["d"], row["causal"], row["n"], row["direction"], row["problem"]),
                          {}).setdefault(row["label"], []).append(row)
    ordered = []
    for key in sorted(groups, key=lambda key: (key[0], key[1], key[2],
                                               DIRECTIONS.index(key[3]), key[4])):
        if all(label.startswith("torch ") for label in groups[key]):
            continue
        for label in sorted(groups[key], key=lambda label: label.startswith("torch ")):
            same = groups[key][label]
            ms = median(row["ms"] for row in same)
            ordered.append(min(same, key=lambda row: abs(row["ms"] - ms)))
    return ordered


def notes_of(result, rows):
    errors = {name: max((row["error"] for row in rows
                         if not row["step"] and row["variant"] == name), default=None)
              for name in BACKENDS}
    return [f"{result['device']}, PyTorch {result['torch']}, {result['rounds']} rounds of "
            f"{result['iters']} runs, medians; above 1x the step is faster. Largest error of "
            "PyTorch's outputs against fp64: "
            + ", ".join(f"{name} {e:.1e}" for name, e in errors.items() if e is not None) + ".",
            *([FP32_NOTE] if any(row["dtype"] == "fp32" for row in rows) else []),
            *dict.fromkeys(result["notes"])]


def text_of(result):
    rows = in_order(result["rows"])
    notes = [textwrap.fill(note, 100) for note in notes_of(result, rows)]
    return "\n".join([text_table(columns_for(rows), rows), "", *notes])


def markdown_of(result):
    rows = in_order(result["rows"])
    return "\n\n".join([markdown_table(columns_for(rows), rows), *notes_of(result, rows)])


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)

    def numbers(text):
        return [int(word) for word in text.split()]

    parser.add_argument("--steps", metavar='"01 06"', help="by number or by name; default: all")
    parser.add_argument("--build", metavar="DIR", default=os.path.join(ROOT, "build", "gpu"),
                        help="default: build/gpu")
    parser.add_argument("--n", type=numbers, metavar='"1024 4096"', help="sequence lengths")
    parser.add_argument("--d", type=numbers, metavar='"64 128"', help="head dimensions")
    parser.add_argument("--causal", choices=("no", "yes", "both"))
    parser.add_argument("--tokens", type=int, default=16384, metavar="INT",
                        help="batch times sequence length (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=2, metavar="INT",
                        help="turns of the step and PyTorch (default %(default)s)")
    parser.add_argument("--iters", type=int, default=10, metavar="INT",
                        help="timed runs in each turn (default %(default)s)")
    parser.add_argument("--json", metavar="F.json", help="write the result as JSON")
    options = parser.parse_args()
    if min(options.rounds, options.iters, options.tokens, *(options.n or [1]),
           *(options.d or [1])) < 1:
        parser.error("sizes and counts are at least 1")
    return options


def main():
    options = parse()
    torch = Torch(options.iters)
    steps = find_programs(options)
    rows, notes = [], []
    result = {"schema": 1, "device": torch.device, "torch": torch.torch.__version__,
              "rounds": options.rounds, "iters": options.iters, "notes": notes, "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            for problem in problems_of(options, step, step == steps[-1]):
                found = compare(options, torch, step, problem, folder, notes)
                for row in found:
                    if row["step"]:
                        ratios = ", ".join(f"{value:.3g}x {name}"
                                           for name, value in row["ratios"].items())
                        print(f"{row['label']} {row['problem']}: {time_text(row['ms'])}; {ratios}",
                              file=sys.stderr, flush=True)
                rows += found
                if options.json:  # after each problem: what is measured is not lost
                    with open(options.json, "w", encoding="utf-8") as file:
                        json.dump(result, file, indent=1)
    if not rows:
        raise NotHere("nothing was compared: " + "; ".join(dict.fromkeys(notes)))
    print(text_of(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BadInput as error:
        print(f"peers.py: {error}", file=sys.stderr)
        sys.exit(2)
    except NotHere as error:
        print(f"peers.py: {error}", file=sys.stderr)
        sys.exit(3)
    except RuntimeError as error:
        print(f"peers.py: a run was wrong: {error}", file=sys.stderr)
        sys.exit(1)
