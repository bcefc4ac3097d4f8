"""Parts of the SVG figures of report.html. Positions are per cent of the plot's box, so that a
figure follows the width of its page while its text keeps its size."""

import html
import math
import re
from dataclasses import dataclass


def tidy(text):
    """ "10 GB" of "10.0 GB": for ticks, which are round figures."""
    return re.sub(r"\.0+(?!\d)", "", text)


@dataclass
class LogAxis:
    """Logarithmic, from `low` to `high`; `ticks` are the values that get a line and a text."""

    low: float
    high: float
    ticks: list
    text: object  # value -> text of a tick

    @classmethod
    def of_decades(cls, values, text):
        """From the power of ten below all values to the one above them; None without a value."""
        values = [value for value in values if value]
        if not values:
            return None
        first = math.floor(math.log10(min(values)))
        last = max(math.ceil(math.log10(max(values))), first + 1)
        ticks = [10.0**power for power in range(first, last + 1)]
        return cls(ticks[0], ticks[-1], ticks, lambda value: tidy(text(value)))

    def share(self, value):
        """0 at `low`, 1 at `high`; below `low` (0 bytes) it stays 0."""
        if value <= self.low:
            return 0.0
        return math.log(value / self.low) / math.log(self.high / self.low)

    def x(self, value):
        return f"{100 * self.share(value):.2f}%"

    def y(self, value):
        return f"{100 - 100 * self.share(value):.2f}%"

    def x_line(self, value):
        return element("line", x1=self.x(value), x2=self.x(value), y1=0, y2="100%", class_="grid")


class LinearAxis(LogAxis):
    def share(self, value):
        return (value - self.low) / (self.high - self.low)


def attributes(**named):
    """' data-tip="2.2 GB"': escaped; an underscore becomes a hyphen; None is left out."""
    return "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for name, value in named.items()
        if value is not None
    )


def element(name, content="", **named):
    """Its content is not escaped."""
    return f"<{name}{attributes(**named)}>{content}</{name}>"


def mark(name, tip, content="", **named):
    """A part of a figure that says its numbers: to page/report.js, which shows them when it is
    hovered or focused, and to a screen reader."""
    return element(name, content, role="img", aria_label=tip, **named)


def text(words, **named):
    return element("text", html.escape(words), **named)


def figure(title, caption, body, name, **named):
    """A figure with a title, a sentence or more, and links to save it as SVG and PNG (by
    page/report.js). `caption` and `body` are HTML; `name` is that of the saved file."""
    return element(
        "figure",
        element("h3", html.escape(title)) + element("figcaption", caption) + body,
        data_name=name,
        **named,
    )


def legend(entries):
    """[(class of its swatch, its text)]"""
    swatch = '<svg class="swatch {}" aria-hidden="true"><rect width="100%" height="100%"/></svg>'
    return element(
        "p",
        " ".join(
            element("span", swatch.format(css) + html.escape(words), class_="key")
            for css, words in entries
        ),
        class_="legend",
    )


def plot(x, y, marks, x_label, y_label, title):
    """A box with grid lines at the ticks of both axes; `marks` go on top."""
    grid = "".join(
        x.x_line(tick)
        + text(x.text(tick), x=x.x(tick), y="100%", dy=18, text_anchor="middle", class_="tick x")
        for tick in x.ticks
    ) + "".join(
        element("line", x1=0, x2="100%", y1=y.y(tick), y2=y.y(tick), class_="grid")
        + text(y.text(tick), x=0, dx=-8, y=y.y(tick), dy=4, text_anchor="end", class_="tick y")
        for tick in y.ticks
    )
    names = text(x_label, x="50%", y="100%", dy=38, text_anchor="middle", class_="name") + text(
        y_label, x=0, y=-12, dx=-56, class_="name"
    )
    return element("svg", grid + names + marks, class_="plot", role="group", aria_label=title)
