"""How results look in a terminal: 100 columns, colours only there."""

import os
import re
import sys
import textwrap
from pathlib import Path

from .exercises import ROOT

WIDTH = 100
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}


def in_terminal():
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def paint(colour, text):
    if not in_terminal() or "NO_COLOR" in os.environ:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"


def relative(path):
    path = Path(path).absolute()
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def link(path, line=None):
    """A path that many terminals open at a click."""
    text = relative(path) + (f":{line}" if line else "")
    if not in_terminal():
        return text
    return f"\033]8;;file://{Path(path).absolute()}\033\\{text}\033]8;;\033\\"


def prose(text, indent=2):
    """Wrapped paragraphs; lines that begin with a space stay as they are."""
    out = []
    for line in text.splitlines():
        if line.startswith(" ") or not line:
            out.append(" " * indent + line)
        else:
            out += textwrap.wrap(
                line,
                WIDTH - indent,
                initial_indent=" " * indent,
                subsequent_indent=" " * indent,
                break_on_hyphens=False,
            )
    return "\n".join(out)


def progress(done, total):
    width = 40
    full = round(width * done / total)
    return f"[{paint('green', '#' * full)}{'-' * (width - full)}] {done}/{total} done"


def stars(exercise):
    return "*" * exercise.difficulty


def title(exercise):
    text = f"{exercise.number}. {exercise.title}"
    return paint("bold", text) + paint(
        "dim",
        f"   {exercise.kind}, step {exercise.step}, {stars(exercise)}, ~{exercise.minutes} min",
    )


def place(message, path):
    """The first line of the student's file that a message names."""
    found = re.search(re.escape(Path(path).name) + r":(\d+)", message)
    return int(found[1]) if found else None


def source_line(path, number):
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"{number:5} | {lines[number - 1]}"
    except (OSError, IndexError):
        return ""


def places(message, path):
    """Every line of the student's file that a message names, once, as source."""
    numbers = []
    for found in re.finditer(re.escape(Path(path).name) + r":(\d+)", message):
        if int(found[1]) not in numbers:
            numbers.append(int(found[1]))
    return [line for line in (source_line(path, n) for n in numbers) if line]


def _bytes(n):
    return f"{n:,}".replace(",", " ")


def traffic(problem):
    """Yours / Spec per buffer, of one problem."""
    table = problem.get("traffic")
    if not table:
        return ""
    rows = []
    for name, row in table.items():
        for way in ("read", "write", "atomic"):
            yours, spec = row["yours"][way], row["spec"][way]
            if not yours and not spec:
                continue
            requests = row.get("requests", {}).get(way, 0)
            sectors = f"{row['sectors'][way] / requests:.1f}" if requests else ""
            rows.append(
                (
                    f"{name} {way}",
                    _bytes(yours),
                    _bytes(spec),
                    sectors,
                    "="
                    if yours == spec
                    else "fewer"
                    if yours < spec
                    else paint(
                        "red", f"{yours / spec:.1f}x too many" if spec else "none is needed"
                    ),
                )
            )
    t = problem["totals"]
    if t["wavefronts_ideal"]:
        same = t["wavefronts"] == t["wavefronts_ideal"]
        rows.append(
            (
                "bank wavefronts",
                _bytes(t["wavefronts"]),
                _bytes(t["wavefronts_ideal"]),
                "",
                "=" if same else f"{t['wavefronts'] / t['wavefronts_ideal']:.1f}x",
            )
        )
    head = f"  {'bytes':16}{'yours':>14}{'spec':>14}  {'':14}{'sectors/request':>16}"
    lines = [paint("dim", f"  {problem['problem']}"), paint("dim", head)]
    lines += [
        f"  {name:16}{yours:>14}{spec:>14}  {word:14}{sectors:>16}".rstrip()
        for name, yours, spec, sectors, word in rows
    ]
    return "\n".join(lines)


def verdict(exercise, path, v, untouched=False):
    """The result of one check. untouched: of the exercise as it was handed out."""
    times = paint(
        "dim", f"checked in {v.seconds:.1f} s (of which the compiler {v.compile_seconds:.1f})"
    )
    if v.ok:
        lines = [paint("green", f"done: {exercise.title}") + "   " + times, ""]
        problems = ", ".join(p["problem"] for p in v.problems)
        lines.append(prose(f"Right on {problems}; no finding."))
        tables = [traffic(p) for p in v.problems[-1:]]
        return "\n".join(lines + [""] + tables) if any(tables) else "\n".join(lines)
    if untouched:
        lines = [
            prose(
                f"Open {relative(path)} in your editor: its first lines say what to do. It "
                "is checked when you save it (or run this command again). As it stands, "
                "this is what is wrong:"
            ),
            "",
        ]
    else:
        lines = []
    lines += [
        paint("red", f"not yet: {v.kind}") + "   " + times,
        "",
        f"  {link(path, place(v.message, path))}",
        "",
    ]
    if v.kind == "does not compile":
        lines += ["  " + line for line in v.message.splitlines()]
    else:
        lines.append(prose(v.message))
        sources = places(v.message, path)
        if sources:
            lines += [""] + ["  " + s for s in sources]
        if v.problems:
            lines += ["", paint("dim", f"  on {v.problems[-1]['problem']}")]
    if v.advice:
        lines += ["", prose(v.advice)]
    if v.kind in ("traffic", "coalescing", "bank conflicts"):
        lines += ["", traffic(v.problems[-1])]
    return "\n".join(lines)


def after_success(exercise, desk):
    """The way on: a solution, a question, where it stands in the ladder."""
    chapter = ROOT / "steps" / exercise.step / "README.md"
    lines = [
        f"  one solution  {link(desk.solution_path(exercise))}",
        f"  its step      {link(ROOT / exercise.source)}, chapter {link(chapter)}",
        "",
        paint("bold", "  A question to take along"),
        prose(exercise.question),
    ]
    return "\n".join(lines)


def check_all(desk, check):
    """Checks every file there is, a line each. How many are not right."""
    wrong = 0
    for exercise in desk.exercises:
        if not desk.path(exercise).exists():
            continue
        v = check(exercise)
        if v.ok:
            desk.mark_done(exercise)
        wrong += not v.ok
        word = paint("green", "ok") if v.ok else paint("red", v.kind)
        if not v.ok and desk.is_untouched(exercise):
            word += "   (as it was handed out)"
        print(f"{exercise.label:22} {v.seconds:5.1f} s  {word}", flush=True)
    return wrong


def listing(desk):
    rows = []
    for e in desk.exercises:
        mark = (
            paint("green", "done")
            if desk.is_done(e)
            else ("here" if e.name == desk.state["current"] else "    ")
        )
        rows.append(
            f"{mark}  {e.number:2}  {e.name:14}{stars(e):5}{e.minutes:3} min  "
            f"{e.kind:13} {e.step:23} {e.title}"
        )
    return "\n".join(rows)
