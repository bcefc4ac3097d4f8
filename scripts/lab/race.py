"""Draws docs/pictures/race.svg, README's moving picture: ./scripts/sim finds a race.

    maintain race               runs the program of docs/own_kernel.md twice, and draws it
    maintain race --out FILE    writes FILE instead

The source, the lines of the terminal, the two threads and their element are those of the runs: with
the program as it is, and with a barrier after the line of the finding. A round takes 16 seconds;
where the reader wants no motion, the picture is its last moment.
Exit status: 0 done, 1 a run found something else, 2 bad use.
"""

import html
import os
import re
import subprocess
import tempfile

from flash_steps import command
from flash_steps.command import Failure
from flash_steps.files import ROOT, read_text, replace_text
from flash_steps.picture import element

PICTURE = os.path.join(ROOT, "docs", "pictures", "race.svg")
PAGE = os.path.join(ROOT, "docs", "own_kernel.md")
FINDING = re.compile(
    r"thread \((?P<one>\d+),.*?: (?P<does>\w+) of (?P<array>\w+), byte (?P<byte>\d+) at "
    r"\S+:(?P<line>\d+) and an? (?P<other_does>\w+) by thread \((?P<other>\d+),.*? at "
    r"\S+:(?P<other_line>\d+) have no barrier"
)
BARRIER = "__syncthreads();"
WIDTH, SOURCE, LINE, ROUND = 830, 570, 17, 16  # pixels; seconds
ELEMENTS = 5  # of the array, drawn
STYLE = """
  text { fill: #1f2328; font: 12px ui-monospace, Menlo, Consolas, monospace; white-space: pre }
  .dim, .number { fill: #59636e }
  .words { font-family: system-ui, sans-serif; font-size: 13px }
  .title { font-family: system-ui, sans-serif; font-size: 15px; font-weight: 700 }
  .panel { fill: #f6f8fa; stroke: #d1d9e0 }
  .screen { fill: #161b22 }
  .out { fill: #e6edf3 }
  .out.bad { fill: #ff9450 }
  .out.good { fill: #56d364 }
  .cell { fill: none; stroke: #59636e }
  .line, .cell.bad { fill: #c2410c; fill-opacity: .2 }
  .fix { fill: #1a7f37; fill-opacity: .2 }
  .way { fill: none; stroke: #c2410c; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc }
    .dim, .number { fill: #9198a1 }
    .panel { fill: #161b22; stroke: #3d444d }
    .cell { stroke: #9198a1 }
    .way { stroke: #ff9450 }
  }
"""


def program():
    """(name, text) of the page's program."""
    return re.search(
        r"<!-- program: (\S+) -->\n```cpp\n(.*?)```", read_text(PAGE), re.DOTALL
    ).groups()


def output_of(name, text):
    """What ./scripts/sim says of a program, until its report, and of that the verdict."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
        call = [os.path.join(ROOT, "scripts", "sim"), "--analyse", name]
        done = subprocess.run(
            call, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    first, _, report = done.stdout.strip().partition("\n\n")
    verdict = [line for line in report.splitlines() if re.match(r"(no|\d+) findings?\b", line)]
    if len(verdict) != 1:
        raise Failure(f"./scripts/sim --analyse {name} said:\n{done.stdout}")
    return [f"$ ./scripts/sim --analyse {name}", *first.splitlines(), *verdict]


class Film:
    """Parts of the picture, and when each appears."""

    def __init__(self):
        self.parts, self.rules, self.now = [], [], 0.0

    def wait(self, seconds):
        self.now += seconds

    def appear(self, part, **named):
        """Adds a part that is there from now on."""
        return self.animated(part, "opacity: 0", "opacity: 1", **named)

    def animated(self, part, before, after, **named):
        name = f"a{len(self.rules)}"
        begin, end = (f"{100 * self.now / ROUND + later:.1f}%" for later in (0, 2))
        self.rules.append(
            f"  .{name} {{ animation: {name} {ROUND}s infinite }}\n"
            f"  @keyframes {name} {{ 0%, {begin} {{ {before} }} {end}, 100% {{ {after} }} }}"
        )
        self.parts.append(element("g", part, class_=name, **named))

    def still(self, part):
        self.parts.append(part)


def words(x, y, text, look=None):
    return element("text", html.escape(text, quote=False), x=x, y=y, class_=look)


def box(x, y, width, height, look, **more):
    return element("rect", x=x, y=y, width=width, height=height, class_=look, **more)


def kernel_of(text):
    """(the number of its first line, its lines)"""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("__global__"))
    last = lines.index("}", first)
    return first + 1, lines[first : last + 1]


def found_in(lines):
    found = FINDING.search(" ".join(line.strip() for line in lines))
    if not found:
        raise Failure("no race of two threads:\n" + "\n".join(lines))
    return found


def barrier_after(line):
    return line[: len(line) - len(line.lstrip())] + BARRIER


def draw_threads(film, found, top):
    """The array's first elements, and who does what with one of them."""
    left, width, cell = SOURCE + 40, 40, int(found["byte"]) // 4
    film.appear(words(left, top + 66, f"{found['array']}, in shared memory", "words"))
    cells = [
        box(left + width * i, top + 96, width, 26, "cell bad" if i == cell else "cell")
        + words(left + width * i + 10, top + 113, f"[{i}]")
        for i in range(max(ELEMENTS, cell + 1))
    ]
    film.appear("".join(cells))
    middle = left + width * cell + width // 2
    for who, does, line, y in (
        ("one", "does", "line", 148),
        ("other", "other_does", "other_line", 168),
    ):
        film.wait(0.7)
        text = f"thread {found[who]}: {found[does]}, line {found[line]}"
        film.appear(words(left, top + y, text, "words"))
    film.appear(element("path", class_="way", d=f"M{middle} {top + 134}v-8m-4 4l4 -4l4 4"))
    film.wait(0.7)
    film.appear(words(left, top + 194, "No barrier orders them.", "words"))


def draw(name, text, before, after):
    """SVG. `before` and `after`: the lines of the terminal, of both runs."""
    found = found_in(before)
    first, lines = kernel_of(text)
    at, top = int(found["line"]) - first, 34
    bottom = top + LINE * (len(lines) + 1) + 22
    height = LINE * (len(before) + len(after)) + 18
    film = Film()

    def source(i, line):
        """Line i of the kernel, below it that of the barrier."""
        y = top + 10 + LINE * (i + (i > at))
        return words(10, y, f"{first + i:2}", "number") + words(40, y, line)

    def run(shown, begin, look):
        for i, line in enumerate(shown):
            loud = f"out {look}" if line.startswith(("  ", "finding", "1 f", "no f")) else "out"
            film.appear(words(12, bottom + 20 + LINE * (begin + i), line, loud))
            film.wait(0.25 if i else 1)

    film.still(words(0, 18, "The sum is right, and yet there is a race", "title"))
    film.still(box(0.5, top - 6, SOURCE, bottom - top - 8, "panel", rx=6))
    film.still("".join(source(i, line) for i, line in enumerate(lines[: at + 1])))
    film.still(box(0.5, bottom, WIDTH - 1, height, "screen", rx=6))
    film.wait(1)
    run(before, 0, "bad")
    film.appear(box(4, top + LINE * at - 3, SOURCE - 8, LINE, "line"))
    draw_threads(film, found, top)
    film.wait(2)
    below = "".join(source(at + 1 + i, line) for i, line in enumerate(lines[at + 1 :]))
    film.animated(below, f"transform: translateY(-{LINE}px)", "transform: none")
    film.wait(0.4)
    y = top + LINE * (at + 1)
    added = words(24, y + 10, "+") + words(40, y + 10, barrier_after(lines[at]))
    film.appear(box(4, y - 3, SOURCE - 8, LINE, "fix") + added)
    film.wait(1)
    run(after, len(before), "good")
    title = f"./scripts/sim --analyse {name} finds a race, and none once a barrier is added"
    still = "  @media (prefers-reduced-motion: reduce) { * { animation: none !important } }"
    style = element("style", "\n".join([STYLE.rstrip("\n"), *film.rules, still, ""]))
    named = {"xmlns": "http://www.w3.org/2000/svg", "xml:space": "preserve", "role": "img"}
    named["viewBox"] = f"0 0 {WIDTH} {bottom + height + 1}"
    parts = ["", element("title", title), style, *film.parts, ""]
    return element("svg", "\n".join(parts), **named) + "\n"


def picture():
    name, text = program()
    before, lines = output_of(name, text), text.splitlines()
    at = int(found_in(before)["line"])
    fixed = [*lines[:at], barrier_after(lines[at - 1]), *lines[at:], ""]
    after = output_of(name, "\n".join(fixed))
    if not after[-1].startswith("no finding") or not set(after[1:-1]) < set(before):
        raise Failure(f"with a barrier {name} has a finding or prints something else:\n{after}")
    return draw(name, text, before, after)


def main():
    parser = command.parser(__doc__)
    parser.add_argument("--out", default=PICTURE, metavar="FILE")
    args = parser.parse_args()
    replace_text(args.out, picture())
    return 0
