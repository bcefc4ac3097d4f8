"""The axes of plots, and elements of SVG."""

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
