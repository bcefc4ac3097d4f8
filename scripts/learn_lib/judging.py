"""Decides about a student's program, from outside: it runs the problems and never learns the seed,
the reference and the bounds. Kernels are judged by results and counts, predictions by estimates."""

import math

from flash_steps.checker import Ended, made_by_the_host
from flash_steps.files import ROOT, read_json
from flash_steps.gpu_table import find_model
from flash_steps.text import time_text

ALLOWED_OFF = 0.25  # of a time, as steps/exercise_checker/prediction.h says
WAYS = {"read": "read from", "write": "written to", "atomic": "added atomically to"}
SITES = {"read": "load", "write": "store", "atomic": "atomic"}
NONE = dict.fromkeys(WAYS, 0)
# What a student's words of another shape may raise.
NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


class Fault(Exception):
    """The first thing that is wrong: a few words, and a sentence that says where."""

    def __init__(self, kind, message):
        self.kind, self.message = kind, message


def judge(request, student, checker):
    """{"ok", "problems": what was seen of each, "kind", "message"}; no kind where the student's
    program has ended, or says nothing of sense."""
    problems = []
    try:
        predicts = "expected" in request["problems"][0]
        facts = None if predicts else ask(student, {})
        for wanted in request["problems"]:  # one thing at a time
            problems.append({})
            if predicts:
                try_prediction(wanted, student, checker, problems[-1])
            else:
                try_problem(request, wanted, facts, student, checker, problems[-1])
    except Fault as fault:
        wrong = {"kind": fault.kind, "message": fault.message}
        return {"ok": False, "problems": problems, **wrong}
    except (Ended, OSError, *NONSENSE):
        return {"ok": False, "problems": problems}
    return {"ok": True, "problems": problems}


def ask(student, words, data=b""):
    student.put(words, data)
    said = student.get()
    if not isinstance(said, dict):
        raise Ended
    return said


# --- a kernel -------------------------------------------------------------------------------------


def try_problem(request, wanted, facts, student, checker, seen):
    """One problem; fills in `seen`."""
    sizes = {key: value for key, value in wanted.items() if key != "spec"}
    backward, copies = request["pass"] == "backward", request.get("copies", [])
    case = {"problem": sizes, "type": "bfloat16" if facts["bf16"] else "float32"}
    case |= {"seed": request["seed"], "fp8": facts["fp8"], "latent": facts["latent"]}
    inputs, known = checker.inputs({**case, "as": "float32"}, ("Q", "K", "V", "dO"))
    seen["problem"] = known["problem"]
    asked = {"problem": sizes, "backward": backward, "copies": copies}
    asked["watchdog"] = request["watchdog"]
    got = ask(student, asked, b"".join(inputs.values()))
    if "kind" in got:
        raise Fault(str(got["kind"]), str(got["message"]))
    outputs = {}
    for o in got["outputs"]:
        count = min(o["count"], known["outputs"][o["name"]]["count"])
        outputs[o["name"]] = "float32", student.bytes(4 * count)
    forward = ["O"] + ["LSE"] * facts["writes_lse"]
    made = ["dQ", "dK", "dV"] if backward else forward
    for name in {*forward, *made}:
        if len(outputs[name][1]) != 4 * known["outputs"][name]["count"]:
            raise Ended
    if request["simulated"]:
        # The formulas of several ranks are one rank's.
        spec = None if request.get("any_bytes") else wanted["spec"]
        seen["traffic"], seen["totals"] = table_of(spec, got["buffers"]), got["totals"]
    if got["damage"]:
        left = "is not zero after the run" in got["damage"][0]
        raise Fault("not reset" if left else "out of bounds", got["damage"][0])
    wanted_ones = {name: outputs[name] for name in outputs if name in {*forward, *made}}
    for tensor in checker.check(case, wanted_ones):
        if not tensor["ok"]:
            raise Fault("wrong result", tensor["message"])
    if request["simulated"]:
        made = {name: known["outputs"][name]["bytes"] for name in made}
        faults_of_counts(request, made, seen["traffic"], got, copies)


def faults_of_counts(request, made, table, got, copies):
    read = [n for n in ("Q", "K", "V", "dO") if table.get(n, {"spec": NONE})["spec"]["read"]]
    moved = {name: row["by_kernels"] for name, row in table.items() if "by_kernels" in row}
    if host := made_by_the_host(made, read, moved):
        raise Fault("not in a kernel", host)
    too_many_bytes(table, got["sites"])
    if len(copies) == 2:
        right_order(got["copies"], *copies)
    coalesced = tuple(f"{name} " for name in request.get("coalesced", []))
    # Rows of odd length begin anywhere in a sector: twice the ideal is still coalesced.
    worst_site(got["sites"], "coalescing", "sectors", 2, coalesced)
    if request.get("banks"):
        worst_site(got["sites"], "bank conflicts", "wavefronts", 1, "shared ")


def table_of(spec, yours):
    """Yours beside the spec's, per buffer; without a spec, as counted."""
    table = {name: {"spec": due, "yours": NONE} for name, due in (spec or {}).items()}
    for name, row in yours.items():
        table[name] = {**row, "spec": row["yours"] if spec is None else spec.get(name, NONE)}
    return dict(sorted(table.items()))


def too_many_bytes(table, sites):
    for name, row in table.items():
        yours, spec = row["yours"], dict(row["spec"])
        spec["atomic"] += max(0, spec["write"] - yours["write"])  # atomicExch may store them
        for way, words in WAYS.items():
            if yours[way] <= spec[way]:
                continue
            here = [s for s in sites if s["what"].startswith(f"{name} {SITES[way]}")]
            most = max(here, key=lambda s: s["requests"], default=None)
            at = f", most of them at {most['where']}" if most else ""
            what = f"{yours[way]:,} bytes {words} {name}{at}; the spec has {spec[way]:,}"
            raise Fault("traffic", what)


def worst_site(sites, kind, unit, tolerance, begins):
    """The worst of the source lines that must be ideal."""
    bad = [s for s in sites if s["what"].startswith(begins)]
    bad = [s for s in bad if s["transfers"] > tolerance * s["ideal"]]
    if bad:
        s = max(bad, key=lambda s: s["transfers"] - s["ideal"])
        each, ideal = (s[key] / s["requests"] for key in ("transfers", "ideal"))
        what = f"{s['what']} at {s['where']}: {each:.1f} {unit} a request, {ideal:.1f} would do"
        raise Fault(kind, what)


def right_order(orders, first, second):
    """The first of two buffers should be copied one tile ahead of the second: KKVKV...V."""
    for order in orders:  # of a block
        right = first + (first + second) * (len(order) // 2 - 1) + second
        if order != right:
            words = f"a block issues its copies in the order {order}; a tile of {first} belongs "
            raise Fault("order", f"{words}ahead of {second} of the tile before it: {right}")


# --- a prediction ---------------------------------------------------------------------------------


def rates():
    """Of an H200, in the order of prediction.h's GpuRates."""
    gpu = find_model("H200")
    c = read_json(f"{ROOT}/common/data/clock_h200.json")["figures"]
    lanes = 128  # fp32, of an SM; a multiply-add is two operations
    clock = gpu["fp32_flops"] / (gpu["sms"] * lanes * 2)
    sm = gpu["sms"], clock, c["data_pipe"], c["data_pipe"], c["issue"]
    hbm = c["hbm_share"] * gpu["hbm_bytes_per_s"], c["hbm_latency"]
    return [*sm, *hbm, c["launch_seconds"]]


def try_prediction(wanted, student, checker, seen):
    """One problem; fills in `seen`."""
    problem, expected = dict(wanted), wanted["expected"]
    del problem["expected"]
    said = checker.ask({"problem": problem})
    # Without the type, which is not said.
    sizes = said["problem"].rpartition(" ")[0]
    seen["problem"] = ", ".join([*filter(None, [wanted.get("variant")]), sizes])
    asked = {"problem": problem, "rates": rates()}
    if isinstance(expected, (int, float)):
        yours = ask(student, asked)["bytes"]
        seen["bytes"] = {"yours": yours, "counted": expected}
        return right_bytes(math.nan if yours is None else float(yours), expected)
    if "parts" not in expected:
        seen["measured"] = ", ".join(f"{n}: {time_text(ms)}" for n, ms in sorted(expected.items()))
        yours = str(ask(student, asked)["faster"])
        if yours != min(expected, key=expected.get):
            what = f'"{yours}" is not the faster one; measured were {seen["measured"]}'
            raise Fault("wrong choice", what)
        return None
    # Instructions that keep the schedulers busy for as long as the estimate says.
    _, clock, *_ = gpu = rates()
    seconds = expected["parts"].get("instructions", 0) * expected["ms"] / 1e3
    problem["instructions"] = seconds * clock * gpu[4] * expected["sms"]
    words = ask(student, asked)
    limit, seconds = str(words["limit"]), words["seconds"]  # null where it is NaN
    ms = 1e3 * (math.nan if seconds is None else float(seconds))
    seen["prediction"] = {"limit": limit, "ms": ms, "estimated_ms": expected["ms"]}
    right_limit(limit, expected, said["parts"])
    return right_time(ms, expected, gpu[0])


def right_bytes(yours, counted):
    if math.isnan(yours):
        raise Fault("wrong bytes", f"no number, where the kernels request {counted:,} bytes")
    if abs(yours - counted) >= 0.5:
        shown = f"{int(yours):,}" if 0 <= yours < 1e18 else f"{yours:.3g}"
        times = f"{yours / counted:.4g} times as many"
        what = f"{shown} bytes, where the kernels request {counted:,}: {times}"
        raise Fault("wrong bytes", what)


def right_limit(yours, run, names):
    limit = max(run["parts"], key=run["parts"].get)
    shares = run["parts"].get(yours, 0), 1, run["parts"][limit]
    own, whole, most = (time_text(run["ms"] * share) for share in shares)
    if yours not in names:
        what = f'the limiter is "{yours}", and the parts are called {", ".join(names)}'
        raise Fault("wrong limiter", what)
    if yours != limit:
        what = f"{yours}: {own} of the kernel's {whole}, but {limit}: {most}. "
        why = f"Is {limit} forgotten, or counted too low, or {yours} too high?"
        raise Fault("wrong limiter", what + why)


def right_time(yours, run, sms):
    off = yours / run["ms"] - 1
    if abs(off) <= ALLOWED_OFF:  # not so for NaN
        return
    if not math.isfinite(off) or yours <= 0:
        how = "is no time"
    elif off < 1:
        how = f"is {abs(100 * off):.0f}% too {'short' if off < 0 else 'long'}"
    else:
        how = f"is {1 + off:.3g} times too long"
    said = time_text(yours) if abs(yours) < 1e9 else f"{yours:.3g} ms"
    what = f"{said} {how}: the run is estimated at {time_text(run['ms'])}. "
    raise Fault("wrong time", what + reason(yours, run, sms))


def reason(yours, run, sms):
    """What may have been forgotten."""

    def near(estimate, tolerance):
        return abs(yours - estimate) <= tolerance * estimate

    if near(run["ms"] * run["sms"], 0.5):
        return f"Forgotten: {run['sms']} SMs share the work"
    parts = sorted(((share, name) for name, share in run["parts"].items()), reverse=True)
    shown = [f"{name} {time_text(share * run['ms'])}" for share, name in parts if share >= 0.1]
    shown, shorter = ", ".join(shown), yours < run["ms"]
    for share, name in parts:
        if shorter and near(share * run["ms"], 0.1):
            return f"That is what {name} alone would take. The parts: {shown}"
    few = f"{run['blocks']} blocks for {sms} SMs: the others do nothing. "
    how = "forgotten, or counted too low" if shorter else "counted too high"
    return f"{few if run['sms'] < sms else ''}The parts: {shown}. Is one of them {how}?"
