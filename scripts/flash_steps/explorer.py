"""Makes the pages of docs/explorer from traces that the simulator writes.

    maintain explorer                 all pages; needs build/sim (or --build DIR)
    maintain explorer 04 compare      some: steps by number or name, compare
    maintain explorer --keep-traces   after a change of words or looks: runs no program
    maintain explorer --check         fails where a page is out of date: its words, its script, its
                                      source lines, and what the programs' traces say today
    maintain explorer --check --quick runs of one size, and the one that a page opens with

A page is one file that works offline, with its traces in it, compressed. docs/explorer/src is its
text; explorer_pages.py has its words and its runs; what HBM moves at full size is of docs/results.
Exit status: 0 done, 1 a page is out of date, 2 bad use, 3 a program is not built.
"""

import base64
import concurrent.futures
import functools
import html
import json
import os
import re
import subprocess
import tempfile
import zlib

from . import command
from .command import BadInput, Failure, NotHere
from .explorer_pages import (
    COMPARED,
    COMPARED_FIRST,
    COMPARED_OPENING,
    LABELS,
    OWN_M,
    PAGES,
    PRESETS,
    TERMS,
)
from .explorer_ring import RING, RING_CAPTION, RING_NOTE, RING_TITLE, ring_runs
from .files import read_json, read_text, write_text
from .mpi import has_mpi
from .problems import own_tiles
from .results import PASSES, published
from .standing import runs_of as published_runs
from .standing import standing_of
from .steps import ROOT, chosen_of, program_of

FOLDER = os.path.join(ROOT, "docs", "explorer")
SHARED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page")
KINDS = ["read", "write", "atomic"]
MOVED = 5  # of an event: bytes, requests, sectors or wavefronts, first touches
QUICK = 128  # N of the runs that --quick looks at
FULL_N = 4096  # of the measured runs that stand beside the small ones


# --- a run ----------------------------------------------------------------------------------------


def trace_of(build, run):
    """(the trace, the report) of one run of a step's program."""
    program = program_of(build, run.step)
    with tempfile.TemporaryDirectory() as folder:
        trace, report = (os.path.join(folder, name) for name in ("trace.json", "report.json"))
        call = [program, *run.arguments, f"--trace={trace}", f"--json={report}"]
        try:
            done = subprocess.run(call, capture_output=True, text=True)
        except OSError as error:
            raise NotHere(
                f"{os.path.relpath(program)}: {error.strerror}; it is not built: "
                "cmake --preset sim && cmake --build --preset sim"
            ) from None
        if done.returncode:
            raise Failure(f"{' '.join(call[:-2])}: {(done.stderr or done.stdout).strip()}")
        return read_json(trace), read_json(report)


def counted_of(report):
    """{pass: {buffer: {read, write, atomic}}} as the program's report has them."""
    passes = {"forward": report, "backward": report["backward"], "prepare": report["prepare"]}
    return {
        name: {
            buffer: counts["counted"]
            for buffer, counts in part["traffic"]["requested"]["buffers"].items()
        }
        for name, part in passes.items()
        if part
    }


def packed_events(trace, hows):
    """By kernel: [[block, its start, [event, ...]], ...]; an event is a flat list of numbers."""
    kernels = [{} for _ in trace["flash_steps"]["kernels"]]
    for e in trace["traceEvents"]:
        if e["ph"] != "X":
            continue
        a = e["args"]
        rectangles = a.get("touched", a.get("around"))
        row = [a["place"], a["stack"], KINDS.index(a["kind"]), hows.index(a["how"]), e["dur"]]
        row += [a["bytes"], a["requests"], a.get("sectors", a.get("wavefronts"))]
        row += [*a.get("first_touch", (0, 0)), int("touched" in a)]
        row += [corner for rectangle in rectangles for corner in rectangle]
        kernels[e["pid"]].setdefault(e["tid"], [e["tid"], e["ts"], []])[2].append(row)
    return [list(blocks.values()) for blocks in kernels]


def content_of(build, run, registers):
    """What a page holds of a run: the trace, in less room."""
    trace, report = trace_of(build, run)
    about = trace["flash_steps"]
    hows = sorted({e["args"]["how"] for e in trace["traceEvents"] if e["ph"] == "X"})
    return {
        "step": about["step"],
        "variant": about["variant"],
        "problem": about["problem"],
        "registers": registers,
        "kernels": about["kernels"],
        "places": about["places"],
        "lines": about["lines"],
        "stacks": about["stacks"],
        "requests": about["requests"],
        "counted": counted_of(report),
        "hows": hows,
        "blocks": packed_events(trace, hows),
    }


# --- what a GPU measured at full size -------------------------------------------------------------


@functools.cache
def measured_runs():
    """{(step, variant, d, causal): a program's published run on a GPU}, of the steps' own M."""
    found = {}
    for run in published_runs(published(os.path.join(ROOT, "docs", "results"))):
        p = run.data["problem"]
        if run.direction != "forward" or run.kind != "gpu" or not own_tiles(p):
            continue
        if p["n"] == p["nk"] == FULL_N and p["h"] == p["hkv"] and standing_of(run) is None:
            found[run.data["step"], run.variant, p["d"], p["causal"]] = run
    return found


def full_size(run):
    """{n, heads, device, read, write}: what HBM moved, measured, in all passes; None: unknown."""
    measured = measured_runs().get((run.step, run.variant, run.d, run.causal))
    if not measured or run.smem not in (0, OWN_M):
        return None
    passes = [measured.data, *(measured.data.get(name) for name in PASSES if name != "forward")]
    hbm = [part["traffic"]["hbm"]["measured"] for part in passes if part]
    if not all(hbm):
        return None
    p = measured.data["problem"]
    return {
        "n": p["n"],
        "heads": p["b"] * p["h"],
        "device": measured.get("device.name"),
        **{kind: sum(moved[kind] for moved in hbm) for kind in ("read", "write")},
    }


# --- a page ---------------------------------------------------------------------------------------


def pack(tree):
    """Deflated, in base64."""
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(deflate.compress(text) + deflate.flush()).decode()


def unpack(text):
    return json.loads(zlib.decompress(base64.b64decode(text), -15))


def blob(name, tree):
    return f'<script type="text/plain" id="{name}">{pack(tree)}</script>'


def source(name):
    """Of docs/explorer/src, or what the report has, too."""
    folder = SHARED if name.startswith("theme.") else os.path.join(FOLDER, "src")
    return read_text(os.path.join(folder, name))


def names_of_pages():
    return ["index", "compare", *(page.step for page in PAGES), RING]


def links(current):
    pages = [("index", "Explorer"), ("compare", "Compare")]
    pages += [(name, name[:2]) for name in names_of_pages()[2:]]
    return " ".join(
        f'<a href="{name}.html"{" aria-current=page" if name == current else ""}'
        f' title="{html.escape(title_of(name))}">{words}</a>'
        for name, words in pages
    )


def title_of(name):
    if name == "compare":
        return "Two runs side by side"
    titles = {page.step: page.title for page in PAGES} | {RING: RING_TITLE}
    return titles.get(name, "Explorer: where the bytes go")


def linked(target, words):
    return f'<a href="{html.escape(target)}">{html.escape(words)}</a>'


def more_links(name):
    """To a page's chapters, the glossary, and the pages before and after it."""
    chapters = [name] if name in names_of_pages()[2:] else []
    if name == "compare":
        chapters = sorted({step for step, _ in LABELS})
    parts = [linked(f"../../steps/{step}/README.md", f"Chapter {step[:2]}") for step in chapters]
    parts.append(linked("../glossary.md", "Glossary"))
    order = names_of_pages()
    at = order.index(name)
    if at:
        parts.append("Previous: " + linked(order[at - 1] + ".html", title_of(order[at - 1])))
    if at + 1 < len(order):
        parts.append("Next: " + linked(order[at + 1] + ".html", title_of(order[at + 1])))
    return " <span>·</span> ".join(f"<span>{part}</span>" for part in parts)


def words_on(name, contents):
    """What a page shows, as TERMS names it."""
    words = {place["name"] for c in contents for place in c["places"]}
    words |= {f"@{how}" for c in contents for how in c["hows"]}
    words |= {"@shared"} if any(map(shared_in, contents)) else set()
    if "m" in words or any("m and l" in c["registers"] for c in contents):
        words.add("@m, l")
    square = all(c["problem"]["n"] == c["problem"]["nk"] for c in contents)
    words.add("@square" if square else "@decode")
    if name == "compare":
        return {w for w in words if not w.startswith("@") or w in ("@m, l", "@square")}
    tiles = [tile_rows(content) for content in contents]
    words |= {"@Br"} if any(rows for tile in tiles for rows in tile.values()) else set()
    return words | {"@step"} | ({"@M"} if name == "04_fused" else set())


def shared_in(content):
    used = {row[0] for blocks in content["blocks"] for _, _, rows in blocks for row in rows}
    return any(content["places"][place]["space"] == "shared" for place in used)


def fold(name, contents):
    """The words of a page, each in a sentence."""
    there = words_on(name, contents)
    rows = "".join(
        f"<div><dt>{html.escape(term)}</dt><dd>{html.escape(meaning)}</dd></div>"
        for term, meaning, needs in TERMS
        if not needs or there.intersection(needs)
    )
    return (
        '<details class="fold"><summary><b aria-hidden="true">?</b> Words on this page</summary>'
        f"<dl>{rows}</dl></details>"
    )


def left_out(page):
    """A sentence on the variants of a step without a run on its page."""
    parts = [f"{variant} (same bytes as {same})" for variant, same in page.left_out.items()]
    return f"Not on this page: {' and '.join(parts)}." if parts else ""


def filled(name, kind, caption, tree, blobs, contents=(), note="", own="explorer"):
    style = source("explorer.css") + (source(f"{own}.css") if own != "explorer" else "")
    parts = {
        "KIND": kind,
        "TITLE": html.escape(title_of(name)),
        "CAPTION": html.escape(caption),
        "LINKS": links(name),
        "MORE": more_links(name),
        "FOLD": fold(name, contents) if contents else "",
        "NOTE": f'<p class="note">{html.escape(note)}</p>' if note else "",
        "PAGE": json.dumps(tree, ensure_ascii=False).replace("<", "\\u003c"),
        "STYLE": source("theme.css") + style.rstrip(),
        "SCRIPT": source("theme.js") + "\n" + source(f"{own}.js").rstrip(),
        "BLOBS": "\n".join(blobs),
    }
    return re.sub(r"@(\w+)@", lambda m: parts[m[1]], source("page.html"))


def tile_rows(content):
    """{"br", "bc"}: rows of the tiles of Q and K in shared memory; None where no tile has whole
    rows of its own."""
    d = content["problem"]["d"]
    found = {}
    for key, name in (("br", "Q"), ("bc", "K")):
        rows = {
            place["layout"]["rows"]
            for place in content["places"]
            if place["space"] == "shared"
            and place["name"] == name
            and d <= place["layout"]["columns"] <= 4 * d
        }
        found[key] = rows.pop() if len(rows) == 1 else None
    return found if all(found.values()) else {"br": None, "bc": None}


def entry(run, content):
    """What the page's controls know of a run."""
    counted = content["counted"].values()
    return {
        "id": run.name,
        **{key: getattr(run, key) for key in ("step", "variant", "n", "d", "causal", "smem")},
        **tile_rows(content),
        "bytes": sum(sum(kinds.values()) for part in counted for kinds in part.values()),
        "full": full_size(run),
    }


def sources_of(contents):
    """{path: lines} of what the events' lines are from."""
    paths = sorted({line["path"] for content in contents for line in content["lines"]})
    files = {path: os.path.join(ROOT, path) for path in paths}
    return {
        path: read_text(file).splitlines() if os.path.exists(file) else []
        for path, file in files.items()
    }


def moved_line(contents):
    """A line of the traces that is not where it was, or nothing: "steps/04_fused/tile.cuh:48"."""
    sources = sources_of(contents)
    for content in contents:
        for line in content["lines"]:
            path, number = line["path"], line["number"]
            if sources[path][number - 1 : number] != [line["text"]]:
                return f"{path}:{number}"
    return None


def step_page(page, contents):
    runs = [entry(run, contents[run]) for run in page.runs]
    tree = {"kind": "step", "runs": runs, "first": page.first.name}
    if page.first.group:
        tree["size"] = "Nk"
    blobs = [blob("sources", sources_of(contents[run] for run in page.runs))]
    blobs += [blob(run.name, contents[run]) for run in page.runs]
    held = [contents[run] for run in page.runs]
    return filled(page.step, "step", page.caption, tree, blobs, held, left_out(page))


COMPARE_CAPTION = (
    "One head of the same attention, computed in two ways. Press Play: both runs go from their "
    "first byte to their last. The longer bar at the end has requested more bytes."
)


def compare_page(contents):
    words = {key: dict(zip(("label", "idea"), LABELS[key])) for key in LABELS}
    runs = [
        {**entry(run, contents[run]), **words[run.step, run.variant], "br": None, "bc": None}
        for run in COMPARED
    ]
    presets = [
        {
            "name": preset["name"],
            **{
                side: {"step": step, "variant": variant}
                for side, (step, variant) in zip("ab", preset["sides"])
            },
            **{key: preset[key] for key in ("why", "grows", "hbm")},
        }
        for preset in PRESETS
    ]
    tree = {"kind": "compare", "runs": runs, "presets": presets, "first": COMPARED_FIRST.name}
    blobs = [blob(run.name, contents[run]) for run in COMPARED]
    held = [contents[run] for run in COMPARED]
    return filled("compare", "compare", COMPARE_CAPTION, tree, blobs, held)


def ring_page(runs):
    return filled(RING, "ring", RING_CAPTION, {"runs": runs}, [], (), RING_NOTE, own="ring")


def kept_ring():
    """The runs that the page of step 14 holds."""
    text = read_text(path_of(RING)) if os.path.exists(path_of(RING)) else ""
    tree = re.search(r'<script type="application/json" id="page">(.*?)</script>', text)
    return json.loads(tree[1])["runs"] if tree else []


def stale_ring(build, jobs):
    """As stale()."""
    path, kept = os.path.relpath(path_of(RING)), kept_ring()
    if not kept or ring_page(kept) != read_text(path_of(RING)):
        return f"{path} is not what docs/explorer/src and explorer_ring.py say"
    if has_mpi(program_of(build, RING)) and ring_runs(build, jobs) != kept:
        return f"{path} is not what the program predicts"
    return None


def index_page():
    items = [
        (
            "compare",
            "Two runs side by side",
            "Start here: why the order of FlashAttention-1's loops moves more bytes than that of "
            "FlashAttention-2's, and why both move fewer than the naive step.",
        )
    ]
    items += [(page.step, page.title, page.caption) for page in PAGES]
    items.append((RING, RING_TITLE, RING_CAPTION))
    rows = "".join(
        f'<li class="card"><a href="{name}.html">{html.escape(title)}</a>'
        f"<p>{html.escape(words)}</p></li>"
        for name, title, words in items
    )
    caption = (
        "Each page replays what the simulator recorded of a step's kernels on one head: which tile "
        "is where, which source line moves it, and how many bytes have moved so far."
    )
    text = filled("index", "index", caption, {}, [])
    script = source("theme.js") + "onTheme(() => {});\n"  # a list has nothing to replay
    body = f"<main><ul>{rows}</ul></main>\n<script>\n{script}</script>\n</body>"
    return text[: text.index("<main>")] + body + text[text.index("\n</html>") :]


# --- all pages ------------------------------------------------------------------------------------


def runs_of(name):
    if name == "compare":
        return COMPARED
    return next((page.runs for page in PAGES if page.step == name), [])


def opening_of(name):
    """What a page shows before its reader touches anything."""
    if name == "compare":
        return COMPARED_OPENING
    return [page.first for page in PAGES if page.step == name]


def registers_of(run):
    page = next(page for page in PAGES if page.step == run.step)
    return page.registers.get(run.variant, "")


def make(name, contents):
    if name == RING:
        return ring_page(contents)
    if name == "index":
        return index_page()
    if name == "compare":
        return compare_page(contents)
    return step_page(next(page for page in PAGES if page.step == name), contents)


def contents_of(build, runs, jobs, known):
    """{run: its content}; `known` keeps what several pages hold."""
    missing = [run for run in dict.fromkeys(runs) if run not in known]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda run: content_of(build, run, registers_of(run)), missing)
        known.update(zip(missing, found))
    return {run: known[run] for run in runs}


def summary(content):
    """What a run moves: its events' order and lines are the compiler's, too."""
    sums = {}
    for k, blocks in enumerate(content["blocks"]):
        for _, _, rows in blocks:
            for place, _, kind, how, _, *moved in rows:
                key = k, content["places"][place]["name"], kind, content["hows"][how]
                before = sums.get(key, [0] * MOVED)
                sums[key] = [a + b for a, b in zip(before, moved[:MOVED])]
    kernels = [[k["pass"], k["grid"], k["block"]] for k in content["kernels"]]
    return content["problem"], content["registers"], content["counted"], kernels, sums


def path_of(name):
    return os.path.join(FOLDER, name + ".html")


def blobs_in(text):
    """{id: what is packed} of a page."""
    found = re.findall(r'<script type="text/plain" id="([^"]+)">([^<]*)</script>', text)
    return {name: unpack(packed) for name, packed in found}


def kept_contents(name):
    """{run: its content} of the page that is there."""
    held = blobs_in(read_text(path_of(name))) if os.path.exists(path_of(name)) else {}
    found = {run: held[run.name] for run in runs_of(name) if run.name in held}
    return {run: {**content, "registers": registers_of(run)} for run, content in found.items()}


def without_blobs(text):
    return re.sub(r'<script type="text/plain".*?</script>\n?', "", text)


def stale(name, build, jobs, quick, known):
    """A sentence, or nothing where the page is up to date."""
    if name == RING:
        return stale_ring(build, jobs)
    path = os.path.relpath(path_of(name))
    if not os.path.exists(path_of(name)):
        return f"{path} is missing"
    text = read_text(path_of(name))
    held = blobs_in(text)
    runs = runs_of(name)
    missing = [run.name for run in runs if run.name not in held]
    if missing:
        return f"{path} lacks {missing[0]}"
    kept = [held[run.name] for run in runs]
    if moved := moved_line(kept):
        return f"{path} has traces of other sources: {moved} was another line"
    if without_blobs(make(name, {run: held[run.name] for run in runs})) != without_blobs(text):
        return f"{path} is not what docs/explorer/src, explorer_pages.py and docs/results say"
    if "sources" in held and held["sources"] != sources_of(kept):
        return f"{path} shows source lines that have changed"
    opening = opening_of(name)
    looked = [run for run in runs if not quick or run.n == QUICK or run in opening]
    for run, content in contents_of(build, looked, jobs, known).items():
        if summary(held[run.name]) != summary(content):
            return f"{path}: {run.name} is not what the program's trace says"
    return None


def main():
    parser = command.parser(__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="a step, compare or index")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--keep-traces", action="store_true", help="those that the pages hold")
    parser.add_argument("--quick", action="store_true", help="with --check: fewer runs")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "sim"), metavar="DIR")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    if args.quick and not args.check:
        raise BadInput("--quick is for --check: a page has all its runs")
    if args.check and args.keep_traces:
        raise BadInput("--check compares with fresh traces, --keep-traces makes none: give one")
    if args.jobs < 1:
        raise BadInput(f"--jobs {args.jobs}: must be at least 1")
    known = [*names_of_pages()[2:], "compare", "index"]
    names = chosen_of(known, " ".join(args.pages), "the pages are")
    known = {}
    if args.check:
        found = [stale(name, args.build, args.jobs, args.quick, known) for name in names]
        if sentences := list(filter(None, found)):
            raise Failure(f"{'; '.join(sentences)}: ./scripts/maintain explorer makes them anew")
        return 0
    for name in names:
        if name == RING:
            runs = args.keep_traces and kept_ring() or ring_runs(args.build, args.jobs)
            write_text(path_of(RING), ring_page(runs))
            print(
                f"{os.path.relpath(path_of(name))}: {os.path.getsize(path_of(name)) / 1e3:.0f} kB"
            )
            continue
        if args.keep_traces:
            known |= kept_contents(name)
        contents = contents_of(args.build, runs_of(name), args.jobs, known)
        if moved := moved_line(list(contents.values())):
            raise Failure(
                f"{name}: the kept traces are of other sources ({moved} was another line): "
                "./scripts/maintain explorer without --keep-traces makes new ones"
            )
        write_text(path_of(name), make(name, contents))
        print(f"{os.path.relpath(path_of(name))}: {os.path.getsize(path_of(name)) / 1e3:.0f} kB")
    return 0
