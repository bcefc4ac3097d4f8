"""The SVG of docs/pictures: a sheet of paper with text, boxes and plots. Positions are pixels."""

from dataclasses import dataclass

from .axes import element

WIDTH = 800
INK, QUIET, PAPER, EDGE = "#1b1f24", "#57606a", "#ffffff", "#d0d7de"
STYLE = (
    f"text {{ font: 12px Helvetica, Arial, sans-serif; fill: {INK} }} "
    f"text.small {{ font-size: 10px }} text.title {{ font-size: 17px }} "
    f".middle {{ text-anchor: middle }} .end {{ text-anchor: end }} "
    f".quiet {{ fill: {QUIET} }} .bold {{ font-weight: bold }} "
    f"rect {{ stroke: {PAPER} }} .edge {{ stroke: {EDGE} }} "
    f".frame {{ fill: none; stroke: {INK}; stroke-width: 2px }} "
    f".arrow {{ fill: none; stroke: {INK}; stroke-width: 2px }}"
)


class Picture:
    """SVG with a paper of its own, so that it reads the same on dark and on light pages."""

    def __init__(self, title, width=WIDTH, style=""):
        self.parts, self.width, self.bottom, self.style = [], width, 0, STYLE + style
        self.text(20, 32, title, "title bold")

    def add(self, part, bottom):
        self.parts.append(part)
        self.bottom = max(self.bottom, bottom)

    def text(self, x, y, words, look="", **more):
        """look: words of STYLE."""
        words = words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        self.add(element("text", words, x=f"{x:g}", y=f"{y:g}", class_=look or None, **more), y + 6)

    def box(self, x, y, width, height, fill, look="", inside=""):
        look = f' class="{look}"' if look else ""
        rect = f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}"'
        self.add(f"{rect}{look}" + (f">{inside}</rect>" if inside else "/>"), y + height)

    def frame(self, x, y, width, height):
        """Singles out what lies inside."""
        self.add(
            f'<rect x="{x + 1:g}" y="{y + 1:g}" width="{width - 2:g}" '
            f'height="{height - 2:g}" class="frame"/>',
            y + height,
        )

    def line(self, x1, x2, y):
        self.add(f'<path d="M {x1:g} {y:g} H {x2:g}" class="edge"/>', y)

    def arrow(self, x1, x2, y):
        self.add(
            f'<path d="M {x1:g} {y:g} H {x2:g} M {x2 - 7:g} {y - 5:g} L {x2:g} {y:g} '
            f'L {x2 - 7:g} {y + 5:g}" class="arrow"/>',
            y + 5,
        )

    def dot(self, x, y, color, fill=None, radius=5, opacity=1):
        """Hollow without a fill."""
        self.add(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" stroke="{color}" '
            f'fill="{fill or "none"}" opacity="{opacity:g}"/>',
            y + radius,
        )

    def curve(self, points, color, width=1, dash=None):
        """Straight from point to point."""
        at = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dash = f' stroke-dasharray="{dash}"' if dash else ""
        self.add(
            f'<polyline points="{at}" fill="none" stroke="{color}" stroke-width="{width:g}"'
            f"{dash}/>",
            max(y for _, y in points),
        )

    def svg(self, description=""):
        width, height = self.width, self.bottom + 16
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
                f'viewBox="0 0 {width} {height:g}">',
                *([element("desc", description)] if description else []),
                f"<style>{self.style}</style>",
                f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1:g}" rx="8" '
                f'fill="{PAPER}" class="edge"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


@dataclass
class Plot:
    """A part of a picture with an axis (axes.py) along its bottom and one along its left side."""

    picture: Picture
    left: float
    top: float
    width: float
    height: float
    x: object
    y: object

    def at(self, x, y):
        return (
            self.left + self.width * self.x.share(x),
            self.top + self.height * (1 - self.y.share(y)),
        )

    def grid(self, x_name="", y_name=""):
        """Lines and texts at the ticks, and what the axes mean."""
        right, bottom = self.left + self.width, self.top + self.height
        for tick in self.x.ticks:
            x, _ = self.at(tick, self.y.low)
            self.picture.curve([(x, self.top), (x, bottom)], EDGE)
            self.picture.text(x, bottom + 18, self.x.text(tick), "middle quiet")
        for tick in self.y.ticks:
            _, y = self.at(self.x.low, tick)
            self.picture.curve([(self.left, y), (right, y)], EDGE)
            self.picture.text(self.left - 8, y + 4, self.y.text(tick), "end quiet")
        self.picture.curve([(self.left, self.top), (self.left, bottom), (right, bottom)], INK)
        if x_name:
            self.picture.text(self.left + self.width / 2, bottom + 38, x_name, "middle")
        if y_name:
            self.picture.text(self.left - 48, self.top - 12, y_name)

    def curve(self, points, color, width=1, dash=None):
        self.picture.curve([self.at(*point) for point in points], color, width, dash)

    def dot(self, x, y, color, **looks):
        self.picture.dot(*self.at(x, y), color, **looks)
