"""The terminal output: as wide as the terminal, up to 100 columns; colours only there."""

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

from flash_steps.files import text_of
from flash_steps.text import aligned, time_text

from .exercises import ROOT, student_text

# Shown instead of the lines of a bug to find, where a verdict names none.
NO_LINE = "No line is known: only races, accesses out of bounds and unwritten words have one."
NO_LINE_OF_A_RESULT = "No line is known: no access is a fault, only the result is wrong."
RESULTS = ("wrong result", "unwritten", "not a number")
_COLOURS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34"}


def width():
    return min(100, max(40, shutil.get_terminal_size((80, 24)).columns))


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
    """A path that many terminals open on a click."""
    text = relative(path) + (f":{line}" if line else "")
    if not in_terminal():
        return text
    return f"\033]8;;file://{Path(path).absolute()}\033\\{text}\033]8;;\033\\"


def visible(text):
    """Without colours and links."""
    return re.sub(r"\033\[[\d;]*m|\033\]8;;.*?\033\\", "", text)


def page(parts, short, keys=()):
    """The printed text. If it is higher than the screen, the short verdict follows."""
    text = "\n\n".join([*parts, *keys])
    columns, rows = shutil.get_terminal_size((80, 24))
    height = sum(max(1, -(-len(visible(line)) // columns)) for line in text.split("\n"))
    if in_terminal() and height > rows - 2:
        text = "\n\n".join([*parts, short, *keys])
    return text


def prose(text, indent=2):
    """Wrapped paragraphs; lines that begin with a space stay as they are."""
    out, blanks = [], " " * indent
    how = {"initial_indent": blanks, "subsequent_indent": blanks}
    how |= {"break_on_hyphens": False, "break_long_words": False}
    for line in text.splitlines():
        whole = line.startswith(" ") or not line
        out += [blanks + line] if whole else textwrap.wrap(line, width(), **how)
    return "\n".join(out)


def progress(desk):
    bar, total = 40, len(desk.exercises)
    done = sum(map(desk.is_done, desk.exercises))
    full = round(bar * done / total)
    return f"[{paint('green', '#' * full)}{'-' * (bar - full)}] {done}/{total} done"


def stars(exercise):
    return "*" * exercise.difficulty


def beside(first, second):
    line = f"{first}   {second}"
    return line if len(visible(line)) <= width() else f"{first}\n{second}"


def title(exercise):
    about = f"{exercise.kind}, step {exercise.step}, {stars(exercise)}, ~{exercise.minutes} min"
    return beside(paint("bold", f"{exercise.number}. {exercise.title}"), paint("dim", about))


def place(message, path):
    """The first line of the student's file that a message names."""
    found = re.search(re.escape(Path(path).name) + r":(\d+)", message)
    return int(found[1]) if found else None


def snippet(lines):
    """Wraps lines "  76 | code", the compiler's too; carets break like the code above them."""
    out, cuts = [], []
    for line in lines:
        head, bar, code = line.partition("| ")
        if not bar:
            out.append("  " + line)
            continue
        room = width() - len(head) - len(bar) - 2
        carets = not head.strip() and set(code) <= set(" ~^")
        if not carets:
            cuts, at = [0], 0
            while len(code) - at > room:
                space = code.rfind(" ", at + 1, at + room)
                at = space + 1 if space > at else at + room
                cuts.append(at)
        for number, (begin, end) in enumerate(zip(cuts, [*cuts[1:], max(len(code), cuts[-1])])):
            part = code[begin:end].rstrip()
            if part.strip() or not (carets or number):
                out.append(f"  {head if number == 0 else ' ' * len(head)}{bar}{part}")
    return out


def places(message, path):
    """Every line of the student's file that a message names, once, as source."""
    lines = text_of(path).split("\n")
    numbers = [int(n) for n in re.findall(re.escape(Path(path).name) + r":(\d+)", message)]
    return [f"{n:5} | {lines[n - 1]}" for n in dict.fromkeys(numbers) if 0 < n <= len(lines)]


def without_places(message):
    """The fault and its element, without the lines."""
    place = r"[^\s()]+\.(?:cuh|cu|h):\d+"
    place += rf"(?: \(called at {place}\))?"
    return re.sub(rf"(?:, most of them)?(?: at| of)? (?:{place}|\({place}\))", "", message)


def hides(exercise, verdict):
    """Does a verdict name lines that the student should find?"""
    return (
        exercise.kind == "find the bug"
        and verdict.kind != "does not compile"
        and without_places(verdict.message) != verdict.message
    )


def times(yours, spec):
    return f"{yours / spec:,.{0 if yours >= 100 * spec else 1}f}x"


def table(rows, left=(0,)):
    """Cells in columns, those in `left` left-aligned; the first row is the head."""
    head, *lines = ("  " + line for line in aligned(rows, left))
    return "\n".join([paint("dim", head), *lines])


def traffic(problem):
    buffers = problem.get("traffic")
    if not buffers:
        return ""
    rows = [("bytes", "yours", "spec", "", "sectors/request")]
    for name, row in buffers.items():
        for way in ("read", "write", "atomic"):
            yours, spec = row["yours"][way], row["spec"][way]
            if not yours and not spec:
                continue
            requests = row.get("requests", {}).get(way, 0)
            sectors = f"{row['sectors'][way] / requests:.1f}" if requests else ""
            word = "=" if yours == spec else "fewer"
            if yours > spec:
                word = f"{times(yours, spec)} too many" if spec else "none is needed"
            rows.append((f"{name} {way}", f"{yours:,}", f"{spec:,}", word, sectors))
    yours, ideal = (problem["totals"][key] for key in ("wavefronts", "wavefronts_ideal"))
    if ideal:
        word = "=" if yours == ideal else times(yours, ideal)
        rows.append(("bank wavefronts", f"{yours:,}", f"{ideal:,}", word, ""))
    bad = r"\S+ too many|none is needed"
    shown = re.sub(bad, lambda found: paint("red", found[0]), table(rows, left=(0, 3)))
    return paint("dim", f"  {problem['problem']}") + "\n" + shown


def predictions(problems):
    if "measured" in problems[0]:
        return "\n".join(prose(f"{p['problem']}: {p['measured']}") for p in problems)
    if "bytes" in problems[0]:
        rows = [("bytes", "yours", "requested")]
        rows += [(p["problem"], *(f"{x:,.0f}" for x in p["bytes"].values())) for p in problems]
        return table(rows)
    rows = [("time", "yours", "estimated", "", "limited by")]
    for problem in problems:
        p = problem["prediction"]
        yours, ms = p["ms"], p["estimated_ms"]
        off = f"{100 * (yours / ms - 1):+.0f}%"
        rows.append((problem["problem"], time_text(yours), time_text(ms), off, p["limit"]))
    return table(rows, left=(0, 4))


def head_of(exercise, path, v, where=True):
    """(the name of a verdict, the line that it names)"""
    if hides(exercise, v) and not where:
        return v.kind, None
    if v.kind == "empty":
        kind = "the hole is empty" if len(v.holes) == 1 else "the holes are empty"
        return kind, place(v.message, path)
    return v.kind, place(v.finding, path) or line_of_filled(exercise, path, v)


def line_of_filled(exercise, path, v):
    """Where the only filled hole begins, when the other holes are empty; else None."""
    if v.holes.count("filled") != 1 or "empty" not in v.holes:
        return None
    holes = exercise.holes(student_text(path))
    return next((hole.line for hole in holes if not hole.empty), None)


def short_verdict(exercise, path, v, where):
    """One line, for the end of a page that is longer than the screen."""
    if v.ok:
        return paint("green", f"done: {exercise.title}")
    word, line = head_of(exercise, path, v, where)
    return paint("red", f"not yet: {word}") + f"   {link(path, line)}"


def verdict(exercise, path, v, untouched=False, where=True, how="--where"):
    """The result of one check. `untouched`: unchanged; `where`: show a bug's lines, else `how`."""
    took = paint("dim", f"checked in {v.seconds:.1f} s (compiler {v.compile_seconds:.1f} s)")
    if v.ok:
        return beside(paint("green", f"done: {exercise.title}"), took) + "\n\n" + right(exercise, v)
    parts = []
    if untouched:
        wrong = " As it stands, this is what is wrong:" if v.kind != "empty" else ""
        todo = f"Open {relative(path)} in your editor: its first lines say what to do. It is "
        parts.append(prose(f"{todo}checked when you save it (or run this command again).{wrong}"))
    word, line = head_of(exercise, path, v, where)
    if v.kind == "empty":
        todo = v.message.replace(Path(path).name, relative(path))
        return "\n\n".join([*parts, paint("red", prose(f"not yet: {word}; {todo}", indent=0))])
    parts += [beside(paint("red", f"not yet: {word}"), took), f"  {link(path, line)}"]
    hidden = hides(exercise, v) and not where
    if v.kind == "does not compile":
        first, *code = v.message.splitlines() or [""]
        parts.append("\n".join([prose(first), *snippet(code)]))
    else:
        parts.append(prose(without_places(v.message) if hidden else v.message))
        sources = places(v.finding, path) if not hidden else []
        if sources:
            parts.append("\n".join(snippet(sources)))
        elif exercise.kind == "find the bug" and where:
            parts.append(prose(NO_LINE_OF_A_RESULT if v.kind in RESULTS else NO_LINE))
        if v.problems:
            parts.append(paint("dim", prose(f"on {v.problems[-1]['problem']}")))
    parts += [prose(v.advice)] if v.advice else []
    parts += [prose(f"Where would you look? {how} shows the lines.")] if hidden else []
    if v.kind in ("traffic", "coalescing", "bank conflicts") and v.problems:
        parts.append(traffic(v.problems[-1]))
    return "\n\n".join(parts)


def right(exercise, v):
    if exercise.predicts:
        return predictions(v.problems)
    problems = ", ".join(p["problem"] for p in v.problems)
    last = traffic(v.problems[-1]) if v.problems else ""
    return prose(f"Right on {problems}; no finding.") + (f"\n\n{last}" if last else "")


def hint(desk, exercise):
    number, text = desk.next_hint(exercise)
    return paint("bold", f"  hint {number} of {len(exercise.hints)}") + "\n" + prose(text)


def after_success(exercise, desk):
    """The next steps: a solution, a question, the place in the ladder."""
    chapter = ROOT / "steps" / exercise.step / "README.md"
    question = paint("bold", "  A question to think about")
    return (
        f"  one solution  {link(desk.solution_path(exercise))}\n"
        f"  its step      {link(ROOT / exercise.source)}\n"
        f"  its chapter   {link(chapter)}\n\n{question}\n{prose(exercise.question)}"
    )


def check_all(desk, check):
    """Checks every existing file, one line each. Returns how many are not right."""
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
            word += "   (unchanged)"
        print(f"{exercise.label:22} {v.seconds:5.1f} s  {word}", flush=True)
    return wrong


def listing(desk):
    names = max(len(e.name) for e in desk.exercises)
    kinds = max(len(e.kind) for e in desk.exercises)
    rows, step = [], None
    for e in desk.exercises:
        if e.step != step:
            step = e.step
            rows += ["", step] if rows else [step]
        mark = "    "
        if desk.is_done(e):
            mark = paint("green", "done")
        elif e.name == desk.state["current"]:
            mark = "here"
        rows.append(
            f"{mark}  {e.number:2}  {e.name:{names}}  {stars(e):3}  {e.minutes:2} min  "
            f"{e.kind:{kinds}}  {e.title}"
        )
    return "\n".join(rows)
