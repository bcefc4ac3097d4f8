"""Finds how somebody's attention function wants to be called, and judges it on new problems."""

import itertools
import random
import time
from dataclasses import replace

from . import ladder
from .attention_case import LAYOUTS, MASKS, Case

SECONDS = 20  # to look for what the extension accepts
SHAPES = ((64, 64, 32), (64, 128, 16), (128, 128, 64), (32, 64, 32), (128, 64, 32), (64, 256, 64),
          (16, 32, 16))  # fmt: skip


def types_of(text):
    """In the order in which to try them."""
    low = text.lower()
    small = [t for t, word in (("float16", "half"), ("bfloat16", "bfloat16")) if word in low]
    first = "data_ptr<float>" in text or "AT_DISPATCH" in text or not small
    types = ["float32", *small] if first else [*small, "float32"]
    return types + [t for t in ("float16", "bfloat16") if t not in types]


def layouts_of(called):
    """Those with as many axes as the text asks sizes of, first."""
    text = called.program.text
    axes = [n + 1 for n in range(4) if f"size({n})" in text or f"sizes()[{n}]" in text]
    axes = max(axes, default=4)
    if called.has("qkv"):
        return ["[B, N, H, d]"]
    if called.must("starts"):
        return ["[N, H, d]"]
    named = sorted(LAYOUTS, key=lambda name: name.count(",") + 1 != axes)
    if not called.has("H"):
        named.remove("[B, N, H*d]")
    if not (called.has("N") and called.has("d")):
        named.remove("[B*H*N*d]")
    return named


def forms_of(called):
    """What the names of the arguments leave open: one query or many, and how a mask is written."""
    base = Case(b=1, h=2, packed=called.must("starts"), ragged=called.must("lengths"))
    bases = with_optional(base, "mask") if called.must("mask") else [base]
    ones = ["[1]", "[]", ""] if called.decodes and not base.packed else [""]
    return [replace(form, one=one) for one in ones for form in bases]


OPTIONAL = ("mask", "starts", "lengths")


def with_optional(case, role):
    """The forms in which a function may take an argument that this case leaves out."""
    if role == "mask":
        return [replace(case, mask=form, mask_axes=n) for n in (2, 4, 3) for form in MASKS]
    if role == "lengths":  # documents have theirs
        return [] if case.packed else [replace(case, ragged=True, b=2)]
    if case.ragged:
        return []
    packed = replace(case, packed=True, b=1, one="")
    return [replace(packed, layout=name) for name in ("[N, H, d]", case.layout)]


def outputs_of(called, run, type):
    """How outputs among the arguments may have to be, if unwritten ones of this type are not."""
    if not called.places or run.kind not in ("wrong", "finding", "refused", "stopped"):
        return []
    wide = [{"out": "float32"}, {"out": "float32", "zeroed": True}] if type != "float32" else []
    if run.kind == "refused":
        return wide if "scalar type" in run.message else []
    return [{"zeroed": True}, *wide]


def look(called):
    """The run that is right, or else the one that says most."""
    first = best = None
    begun = time.monotonic()
    dead = set()  # (layout, type) that no sizes help
    text, forms = called.program.text, forms_of(called)
    for d, n, block in SHAPES:
        for type, layout, form in itertools.product(types_of(text), layouts_of(called), forms):
            if (layout, type) in dead or time.monotonic() - begun > SECONDS:
                continue
            start = replace(form, n=n, d=d, layout=layout, type=type, block=block)
            causal = (False,) if called.has("causal") else (False, True)
            unscaled = (False,) if called.has("scale") else (False, True)
            trials = [
                replace(start, causal=c, unscaled=u) for u, c in itertools.product(unscaled, causal)
            ]
            run = called.tried(trials)
            for way in outputs_of(called, run, type):
                again = called.tried([replace(t, **way) for t in trials])
                run = min(run, again, key=lambda run: run.rank)
                if run.ok:
                    break
            if "the source is device memory" in run.message:
                run = called.tried([replace(t, host=True) for t in trials])
            if run.settles and (run.ok or len(forms) == 1):
                return run
            if run.kind == "refused" and "scalar type" in run.message and not start.mask:
                dead.add((layout, type))
            if not best or run.rank < best.rank:
                best = run
        if best and best.settles:
            return best
        if best and best.kind != "refused":
            first, best = first or best, None
    return first or best


def problems(called, case, draw):
    """Those that decide: new inputs at the same sizes, other sizes, causal, grouped heads."""
    causal = (False, True) if called.has("causal") else (case.causal,)
    changes = [
        {},  # as before: a result that is kept would be wrong
        {"b": 2, "h": 3, "factor": 8},  # large scores: without a maximum exp overflows
        {"n": case.n + draw.randrange(1, 32)},
        {"n": 2 * case.n},
        {"n": draw.randrange(4, case.n), "b": draw.randrange(2, 4), "h": 1},
    ]
    if called.grouped and "H" in case.layout:
        changes += [{"h": 4, "group": 2}, {"h": 3, "group": 3, "b": 2}]
    for change, mask in itertools.product(changes, causal):
        yield replace(case, **change, causal=mask, seed=draw.randrange(1, 1 << 30))


def best_of(called, cases):
    """The run of the first case that is right, or nearly."""
    runs = []
    for case in cases:
        runs.append(called.run(case))
        if runs[-1].ok:
            break
    return min(runs, key=lambda run: run.rank)


def judged(called, case, seed):
    """The runs that decide."""
    runs = []
    for problem in problems(called, case, random.Random(seed)):
        if problem.group > 1 and not called.grouped:
            continue
        run = called.run(problem)
        if problem.group > 1 and not called.has("Hkv") and not run.settles:
            called.grouped = False  # the file speaks of grouped heads, and this function has none
            continue
        runs.append(run)
        if run.kind not in ("", "refused"):
            return runs
    for role in filter(called.may_lack, OPTIONAL):
        if cases := with_optional(case, role):
            runs.append(best_of(called, cases))
    if "AT_DISPATCH" in called.program.text:
        for type in ("float32", "float16", "bfloat16"):
            if type != case.type:
                runs.append(called.run(replace(case, type=type)))
    return runs


def some(case, keys):
    return {key: getattr(case, key) for key in keys.split()}


def judge_function(called, seed):
    """The verdict as JSON (docs/json.md)."""
    first = look(called)
    case = first.case
    found = {"function": called.function["name"], "roles": called.roles, "ok": False, "seed": seed}
    found["as"] = some(case, "layout type unscaled causal zeroed host one mask out")
    found["as"] |= {"causal": "argument"} if called.has("causal") else {}
    runs = judged(called, case, seed) if first.ok else [first]
    bad = next((r for r in runs if r.kind not in ("", "refused")), None)
    right = [r for r in runs if r.ok]
    found["ok"] = bool(right) and not bad
    found["refused"] = [
        {"problem": str(r.case), "message": r.message}
        for r in runs
        if r.kind == "refused" and r.case.type == case.type
    ]
    keys = "n d causal type group mask packed ragged"
    found["runs"] = [{"problem": str(r.case), "kind": r.kind} | some(r.case, keys) for r in runs]
    found["errors"] = {}
    for t in (t for run in right for t in run.tensors):
        now = found["errors"].setdefault(t["name"], {"error": 0, "allowed": 0})
        if t["error"] is not None and t["error"] >= now["error"]:
            now.update(error=t["error"], allowed=t["allowed"])
    if bad or not right:
        bad = bad or first
        found["kind"], found["message"], found["problem"] = bad.kind, bad.message, str(bad.case)
        found["findings"] = bad.answer.get("report", {}).get("findings", [])
    if right:
        last = max(right, key=lambda run: run.case.n)
        found["traffic"] = ladder.traffic(called, last)
        found["rung"] = ladder.rung(found["traffic"])
    return found
