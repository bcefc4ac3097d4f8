"""The screen of a verdict on an attention function."""

import shutil
import textwrap

from . import ladder

WIDE = min(shutil.get_terminal_size((100, 24)).columns, 100)


def ran(runs):
    """The problems of these runs in short: "N = 64, 128; d = 64; causal and not; float32"."""
    each = {key: list(dict.fromkeys(r[key] for r in runs)) for key in ("n", "d", "causal", "type")}
    words = [
        f"{name} = {', '.join(map(str, sorted(each[key])))}"
        for name, key in (("N", "n"), ("d", "d"))
    ]
    words += {(False,): [], (True,): ["causal"]}.get(tuple(each["causal"]), ["causal and not"])
    words += ["also grouped heads"] if any(r["group"] > 1 for r in runs) else []
    for key, what in ("mask", "a mask"), ("packed", "documents"), ("ragged", "lengths"):
        words += [f"also with {what}"] if len({r[key] for r in runs}) > 1 else []
    return "; ".join([*words, ", ".join(each["type"])])


def screen(verdict, name):
    """At most a screen of a function's verdict."""
    rows = []
    how = verdict["as"]
    roles = ", ".join(r if isinstance(r, str) else str(r["value"]) for r in verdict["roles"])
    notes = [how["layout"], how["type"]]
    notes += ["always causal"] if how["causal"] is True else []
    notes += ["without the scale 1/sqrt(d)"] if how["unscaled"] else []
    notes += ["with tensors of the host"] if how["host"] else []
    notes += ["one query"] if how["one"] else []
    notes += [f"a mask of {how['mask']}"] if how["mask"] else []
    notes += ["its outputs must be zero before the call"] if how["zeroed"] else []
    notes += [f"its outputs in {how['out']}"] if how["out"] else []
    head = f"{name}: {verdict['function']}({roles}): {', '.join(notes)}"
    right = [r for r in verdict["runs"] if not r["kind"]]
    tried = ran(right)
    if verdict["ok"]:
        error = "{}: largest error {error:.1e}, allowed there {allowed:.1e}"
        errors = "; ".join(error.format(n, **e) for n, e in verdict["errors"].items())
        what = f"{len(right)} runs with new inputs (--seed {verdict['seed']})"
        rows.append(("right", f"{what}: {tried}. {errors}"))
        rows.append(("findings", "none: no race, no uninitialised read, no access out of bounds"))
    else:
        rows.append((verdict["kind"], f"{verdict['message']} ({verdict['problem']})"))
        for finding in verdict["findings"][1:4]:
            rows.append(("", finding["message"]))
        if right:
            rows.append(("right", f"before that: {tried}"))
    said = {r["message"]: r["problem"] for r in verdict["refused"]}
    for message, problem in list(said.items() if right else [])[:2]:
        rows.append(("refuses", f"{problem}, by its own check: {message}"))
    if "traffic" in verdict:
        rows += ladder.rows(verdict["traffic"], verdict["rung"])
    rows = [("", head), *((f"{word:<10}", text) for word, text in rows)]
    how = {"width": WIDE, "subsequent_indent": " " * 10}
    return "\n".join(textwrap.fill(text, initial_indent=begin, **how) for begin, text in rows)
