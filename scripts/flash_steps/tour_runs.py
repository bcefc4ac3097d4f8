"""Chooses the runs of tour.sh: prints a line for each run, with its backend, step, variant and
arguments between tabs, and "say" before a line for the reader. Only tour.sh calls it.

The simulator runs four heads, and estimates the time of enough heads to fill a GPU. A GPU gets a
problem that fills it, that of the README's picture, or shorter sequences of it on a small card.
Runs that the card cannot do are simulated: one head of the same problem.
"""

from . import command
from .command import BadInput, Failure
from .gpu_table import find_model
from .problems import TOKENS, WIDTH, flags, series
from .results import HERO_N
from .steps import described, program_of, report_of, runs_on
from .text import bytes_text, for_screen

D = 64
# The fastest variants, where they are not the last. Of several the first is the reference.
FASTEST = {"13_decode": ["early", "fp8"]}
LEAST_N = 512
NEEDS_OF_SMS = 128  # positions per SM: with fewer SMs the fp32 steps take a minute
OTHER_TENSORS = 9 * 4 * TOKENS * WIDTH  # of a backward in fp32, and room to clear the L2


def variants_of(step, everything):
    """The tour's variants of a description: a step's result, and the variant whose forward it uses,
    if that is the step's own; of windows, which no other step has, also the first."""
    able = [v for v in step["variants"] if D in v["supports"]["d"]] or step["variants"]
    names = [v["name"] for v in able]
    fastest = [name for name in FASTEST.get(step["step"], []) if name in names]
    if not everything and fastest:
        return [v for v in able if v["name"] in fastest]
    borrowed = (able[-1].get("forward_of") or "").split()[1:]
    first = names[:1] if step["supports"]["window"] else []
    return [v for v in able if everything or v["name"] in first + borrowed + names[-1:]]


def scores_bytes(n):
    return 8 * TOKENS * WIDTH // D * n


def longest(device):
    """(N, a reason or "") for which a card has the memory and the time."""
    n, why = HERO_N, []
    while n > LEAST_N and n > NEEDS_OF_SMS * device["sms"]:
        n //= 2
        why = [f"{device['sms']} SMs"]
    while n > LEAST_N and scores_bytes(n) + OTHER_TENSORS > device["free_bytes"]:
        n //= 2
        why = [*why[:1], f"{bytes_text(device['free_bytes'])} of free memory"]
    return n, " and ".join(why)


def arguments(step, n, device):
    """The sizes of a run: on a GPU FlashAttention's series, otherwise four heads."""
    p = series(n, D, False) if device else {"b": 1, "h": 4, "n": n, "d": D, "causal": True}
    if step["supports"]["lengths"]:  # one query, and a cache long enough to matter
        heads = {"h": 32, "hkv": 8} if device else {"h": 8, "hkv": 2}
        if D not in step["supports"].get("d", [D]):  # one vector of a latent cache for all heads
            heads = {"h": 128 if device else 16, "hkv": 1, "d": step["supports"]["d"][0]}
        p |= {**heads, "n": 1, "nk": n * (8 if device else 32), "causal": True}
    window = step["supports"]["window"]
    p["causal"] |= window
    return flags(p) + [f"--window={n // 4},0"] * window


def one_head(words, heads):
    """The same for the simulator, which estimates times for all heads."""
    if "--hkv=1" in words:  # all heads share one cache: one sequence
        b, h = (int(w.split("=")[1]) for w in words if w.startswith(("--b=", "--h=")))
        rest = [w for w in words if not w.startswith("--b=")]
        return ["--b=1", *rest, f"--estimate-heads={b * h}"]
    kept = [w for w in words if not w.startswith(("--b=", "--h=", "--hkv="))]
    grouped = any(w.startswith("--hkv=") for w in words)
    return ["--b=1", *(["--h=4", "--hkv=1"] if grouped else ["--h=1"]), *kept, heads]


def device_of(programs):
    """(the description of the first of these that runs on this GPU, or None; why not, or "")"""
    why = ""
    for name in programs:
        try:
            return report_of(program_of("build/gpu", name), "--predict", preset="gpu")["device"], ""
        except Failure as refusal:
            why = str(refusal).removeprefix(f"{name}: ").partition(": run build/sim")[0]
    return None, why


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--n", type=int, default=0)
    parser.add_argument("--gpu", action="store_true", help="its programs are built")
    parser.add_argument("--model", metavar="GPU", help="that the simulator models")
    parser.add_argument("programs", nargs="+")
    args = parser.parse_args()
    device, why = device_of(args.programs) if args.gpu else (None, "")
    n, reason = (args.n, "") if args.n or not device else longest(device)
    model = args.model and find_model(args.model)
    lines = []
    for name in args.programs:
        step = described(program_of("build/gpu" if args.gpu else "build/sim", name))
        words = arguments(step, n or 1024, device)
        for variant in variants_of(step, args.all):
            if model and not runs_on(model["arch"], variant["needs"]):
                continue
            there = device and runs_on(device["arch"], variant["needs"])
            if there:
                mine, backend = words + ["--only-hbm"] * (not args.all), "gpu"
            else:
                heads = f"--estimate-heads={TOKENS // n * (WIDTH // D) if device else 128}"
                mine = one_head(words, heads) if device else [*words, heads]
                backend = "sim"
            lines.append("\t".join([backend, name, variant["name"], " ".join(mine)]))
    if not lines:
        raise BadInput(f"--gpu {args.model}: none of these steps runs on {model['arch']}")
    said = f"this machine has a GPU on which nothing runs: {why}" if why and not device else ""
    if device:
        p = series(n, D, False)
        whose = (
            "the problem of README's picture" if n == HERO_N else "shorter than README's picture"
        )
        because = f", for {reason}" if reason else ""
        said = f"on {device['name']}: B={p['b']} H={p['h']} N={n} d={D}, {whose}{because}"
    said = [f"say\t{line}" for line in for_screen(said).splitlines()]
    print(*said, *lines, sep="\n")
    return 0
