"""The SVG of docs/pictures: paper with text, boxes and lines. Positions are in pixels."""

import html

WIDTH = 800
# The theme: a colour for light paper and one for dark. Okabe and Ito's colour-blind-safe palette.
THEME = {
    "paper": ("#ffffff", "#161b22"),
    "ink": ("#1b1f24", "#e6edf3"),
    "quiet": ("#57606a", "#9aa5b1"),
    "edge": ("#d0d7de", "#3d444d"),
    "lane": ("#f0f2f4", "#21262d"),
    "blue": ("#0072b2", "#4aa3df"),
    "orange": ("#e69f00", "#e69f00"),
    "green": ("#009e73", "#1fbf92"),
    "purple": ("#cc79a7", "#d98fb8"),
}
INK, EDGE, LANE = (f"var(--{name})" for name in ("ink", "edge", "lane"))
STRONG = [f"var(--{name})" for name in ("blue", "orange", "green", "purple")]  # of bars
LOOKS = (
    "text{font:12px Helvetica,Arial,sans-serif;fill:var(--ink)}text.small{font-size:10px}"
    "text.title{font-size:17px}.middle{text-anchor:middle}.end{text-anchor:end}"
    "text.quiet{fill:var(--quiet)}.bold{font-weight:bold}rect,.cell{stroke:var(--paper)}"
    ".edge{stroke:var(--edge)}.frame,.arrow{fill:none;stroke:var(--ink);stroke-width:2px}"
)


def style_of(used):
    needed = [name for name in THEME if f"var(--{name})" in used + LOOKS]
    light, dark = (";".join(f"--{name}:{THEME[name][i]}" for name in needed) for i in (0, 1))
    return f"svg{{{light}}}@media(prefers-color-scheme:dark){{svg{{{dark}}}}}{LOOKS}"


def attributes(**named):
    """' data-tip="2.2 GB"': escaped; an underscore becomes a hyphen; None is omitted."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in named.items()
        if value is not None
    )


def element(name, content="", **named):
    """Its content is not escaped."""
    return f"<{name}{attributes(**named)}>{content}</{name}>"


class Picture:
    """SVG with its own background, light or dark like its reader's system."""

    def __init__(self, title, width=WIDTH):
        self.parts, self.width, self.bottom = [], width, 0
        self.text(20, 32, title, "title bold")

    def add(self, part, bottom):
        self.parts.append(part)
        self.bottom = max(self.bottom, bottom)

    def text(self, x, y, words, look="", **more):
        more = {"x": f"{x:g}", "y": f"{y:g}", "class_": look or None, **more}
        self.add(element("text", html.escape(words, quote=False), **more), y + 6)

    def box(self, x, y, width, height, fill, inside=""):
        rect = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"'
        self.add(rect + (f">{inside}</rect>" if inside else "/>"), y + height)

    def curve(self, points, color):
        """A straight line from point to point."""
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        line = f'<polyline points="{at}" fill="none" stroke="{color}" stroke-width="1"'
        self.add(f"{line}/>", max(y for _, y in points))

    def svg(self, description=""):
        width, height = self.width, self.bottom + 16
        size = f'width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}"'
        paper = f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1:g}" rx="8" '
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
        lines += [element("desc", description)] if description else []
        lines += [f"<style>{style_of(''.join(self.parts))}</style>"]
        lines += [paper + 'fill="var(--paper)" class="edge"/>', *self.parts, "</svg>", ""]
        return "\n".join(lines)
