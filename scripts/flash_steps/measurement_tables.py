"""Tables, and figures for sentences, of what `maintain decode` or `maintain ring` measured.

What both share. A module, decode_tables.py or ring_tables.py, says the rest:

    NAME        of the command, the files, the tables and the figures
    TABLES      {what: Table}; the first one is the default
    FILTERS     {key: value} that a figure's rows pass where its marker does not say another
    WORDS       {word: default} of a figure's marker: show, and one that FIGURES read
    FIGURES     {show: (value of (row, that word, all rows), its text)}
    OF_THE_RUN  {show: text of (result)}
    facts()     sentences of (result)
"""

import glob
import os
import textwrap
from dataclasses import dataclass

from .command import BadInput
from .files import read_json
from .standing import standing
from .text import markdown_table, range_text, text_table


@dataclass
class Table:
    title: str
    make: object  # rows -> (columns, what they show)
    of: str  # the `what` of its rows
    printed: object = lambda row: True  # whether the run prints a row of it

    def rows(self, result):
        return [row for row in result["rows"] if row["what"] == self.of]


def load(name, folder):
    """The results in <name>_*.json of a folder; each row says its `standing`."""
    found = [read_json(path) for path in sorted(glob.glob(os.path.join(folder, f"{name}_*.json")))]
    for result in found:
        for row in result["rows"]:
            row["standing"] = row["step"] and standing(row["step"], row.get("commit"))
    return found


def not_measured(module):
    return f"Not measured yet: run `./scripts/maintain {module.NAME}`."


def left_out_text(lines):
    """No sentence, or one."""
    return [f"Left out, there was no time: {', '.join(lines)}."] if lines else []


def text_of(module, result):
    """All tables, and what else is to be said of a run, as it ends."""
    parts = []
    for table in module.TABLES.values():
        if rows := list(filter(table.printed, table.rows(result))):
            parts.append(f"{table.title}\n\n{text_table(*table.make(rows))}\n")
    said = [*module.facts(result), *dict.fromkeys(result["notes"])]
    said += [f"FAILED: {line}" for line in dict.fromkeys(result["failures"])]
    said += left_out_text(result["left_out"])
    return "\n".join(parts + [textwrap.fill(line, 100) for line in said])


def table_of(module, what):
    if what not in module.TABLES:
        raise BadInput(
            f"table '{module.NAME}': what={what}: choose from {', '.join(module.TABLES)}"
        )
    return module.TABLES[what]


def markdown_of(table, result, rows):
    """What was left out of a turn, but has its row, is not missing here."""

    def has_row(line):
        return any(row["variant"] in line and row["problem"] in line for row in table.rows(result))

    missing = [x for x in result["left_out"] if x.startswith(table.of + ":") and not has_row(x)]
    return "\n\n".join([markdown_table(*table.make(rows)), *left_out_text(missing)])


def figure_of(module, result, passing, show, word):
    """The text of one figure: of the run, or of the rows that pass."""
    if show in module.OF_THE_RUN:
        return module.OF_THE_RUN[show](result)
    if show not in module.FIGURES:
        known = ", ".join((*module.FIGURES, *module.OF_THE_RUN))
        raise BadInput(f"figure '{module.NAME}': show={show}: choose from {known}")
    if not passing:
        raise BadInput(f"figure '{module.NAME}': no row passes its filters")
    value, text = module.FIGURES[show]
    return range_text([value(row, word, result["rows"]) for row in passing], text)
