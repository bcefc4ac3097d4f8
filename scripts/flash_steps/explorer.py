"""Makes docs/explorer/index.html and the traces beside it, from what the simulator writes.

    maintain explorer            all; needs build/sim (or --build DIR)
    maintain explorer 04         the traces of some steps, by number or name, and the page
    maintain explorer --check    fails where something is out of date: words, script, source lines,
                                 or the trace of one run of each variant

The page works offline: NN.js holds the traces of a step, compressed; barriers.js the steps of a
program's mbarriers. Its source is in docs/explorer/src, its texts and replays in explorer_pages.py,
its measurements in explorer_runs.py.
Exit status: 0 done, 1 something is out of date, 2 bad use, 3 a program is not built.
"""

import base64
import concurrent.futures
import json
import os
import re
import tempfile
import zlib

from . import command, explorer_barriers
from .command import Failure
from .explorer_pages import IDEAS, RING, STEPS
from .explorer_ring import JOBS, ring_runs
from .explorer_runs import whole_series
from .files import ROOT, read_json, read_text, write_text
from .mpi import has_mpi
from .results import HERO
from .steps import chosen_of, program_of, report_of

FOLDER = os.path.join(ROOT, "docs", "explorer")
SOURCES = os.path.join(FOLDER, "src")
INDEX = os.path.join(FOLDER, "index.html")
DATA = re.compile(r'(<script [^>]*id="page">)(.*?)(</script>)', re.S)
KINDS = ["read", "write", "atomic"]
MOVED = 5  # of an event: bytes, requests, sectors or wavefronts, first touches


# --- a step's file --------------------------------------------------------------------------------


def packed_events(trace, hows):
    """By kernel: [[block, its start, [event, ...]], ...]; an event is a flat list of numbers. With
    tensor memory a block also has its events' waits, which the page draws."""
    kernels = [{} for _ in trace["flash_steps"]["kernels"]]
    with_waits = any(place["space"] == "tensor" for place in trace["flash_steps"]["places"])
    for e in trace["traceEvents"]:
        if e["ph"] != "X":
            continue
        a = e["args"]
        row = [a["place"], a["stack"], KINDS.index(a["kind"]), hows.index(a["how"]), e["dur"]]
        row += [a["bytes"], a["requests"], a.get("sectors", a.get("wavefronts"))]
        row += [*a.get("first_touch", (0, 0)), int("touched" in a)]
        row += [corner for rectangle in a.get("touched", a.get("around")) for corner in rectangle]
        fresh = [e["tid"], e["ts"], [], []][: 3 + with_waits]
        block = kernels[e["pid"]].setdefault(e["tid"], fresh)
        block[2].append(row)
        if with_waits:
            block[3].append(a["waits"])
    return [list(blocks.values()) for blocks in kernels]


def content_of(build, shown, run):
    """The page's data of a run: the trace in compact form, and the report's counts."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        program = program_of(build, run.step)
        arguments = [*run.arguments, "--estimate-heads=0", f"--trace={path}"]
        report = report_of(program, *arguments)
        trace = read_json(path)
    about = trace["flash_steps"]
    hows = sorted({e["args"]["how"] for e in trace["traceEvents"] if e["ph"] == "X"})
    passes = {"forward": report, "backward": report["backward"], "prepare": report["prepare"]}
    return {
        **{key: about[key] for key in ("step", "variant", "problem", "kernels", "places")},
        **{key: about[key] for key in ("lines", "stacks", "requests")},
        "idea": report["variant_idea"],
        "run": {"n": run.n, "causal": run.causal, "smem": run.smem}
        | ({"mask": run.mask} if run.mask else {}),
        "registers": shown.registers_of(run.variant),
        "counted": {name: counted_of(part) for name, part in passes.items() if part},
        "hows": hows,
        "blocks": packed_events(trace, hows),
    }


def counted_of(part):
    buffers = part["traffic"]["requested"]["buffers"]
    return {name: counts["counted"] for name, counts in buffers.items()}


def pack(tree):
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return base64.b64encode(deflate.compress(text) + deflate.flush()).decode()


def unpack(text):
    return json.loads(zlib.decompress(base64.b64decode(text), -15))


def sources_of(contents):
    """{path: lines} of the sources of the events."""
    paths = sorted({line["path"] for content in contents for line in content["lines"]})
    files = {path: os.path.join(ROOT, path) for path in paths}
    return {
        path: read_text(file).splitlines() if os.path.exists(file) else []
        for path, file in files.items()
    }


def path_of(step):
    return os.path.join(FOLDER, f"{step[:2]}.js")


def file_text(shown, contents):
    """The text of NN.js; `contents`: {name of a run: its content}."""
    if shown is RING:
        tree = {"sources": {}, "runs": contents}
    else:
        runs = {name: pack(content) for name, content in contents.items()}
        tree = {"sources": pack(sources_of(contents.values())), "runs": runs}
    return f'flashSteps["{shown.step[:2]}"] = {json.dumps(tree, separators=(",", ":"))};\n'


def kept(shown):
    """{name of a run: its content} of the existing file."""
    if not os.path.exists(path_of(shown.step)):
        return {}
    tree = json.loads(read_text(path_of(shown.step)).partition(" = ")[2].rstrip(";\n"))
    packed = isinstance(tree["sources"], str)
    return {name: unpack(run) if packed else run for name, run in tree["runs"].items()}


def fresh(build, shown, runs=None):
    """The same for the current programs."""
    if shown is RING:
        return ring_runs(build)
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        runs = runs or shown.runs
        contents = pool.map(lambda run: content_of(build, shown, run), runs)
        return {run.name: content for run, content in zip(runs, contents)}


# --- the page -------------------------------------------------------------------------------------


def with_times(note, runs):
    """{06 registers} is replaced by its time."""
    ms = {run["id"]: run["ms"] for run in runs if run["pass"] == "forward" and not run["causal"]}
    return re.sub(r"\{(.*?)\}", lambda match: f"{ms[match[1]]:.3g} ms", note)


def page(build, contents):
    """index.html with its data. `contents`: {step: {name of a run: its content}}."""
    measured = whole_series(build)
    steps = {}
    for shown in (*STEPS, RING):
        held = contents[shown.step]
        result = shown.result or list(held.values())[-1]["variant"]
        steps[shown.step[:2]] = {
            "name": shown.name,
            "folder": shown.step,
            "caption": shown.caption,
            "result": result,
            "short": HERO.get(f"{shown.step[:2]} {result}", ("", ""))[1],
            "before": shown.before,
            "ideas": {content["variant"]: content["idea"] for content in held.values()},
            "size": shown.size,
            "runs": [
                {"id": name, "variant": content["variant"], **content["run"]}
                for name, content in held.items()
            ],
        }
    ideas = [{**idea, "note": with_times(idea["note"], measured["runs"])} for idea in IDEAS]
    tree = {"ideas": ideas, "steps": steps, "series": [measured]}
    return DATA.sub(lambda data: data[1] + json_inside(tree) + data[3], read_text(INDEX))


def json_inside(tree):
    return json.dumps(tree, ensure_ascii=False).replace("<", "\\u003c")


# --- all ------------------------------------------------------------------------------------------


def summary(content):
    """The bytes of a run: the order and lines of its events also depend on the compiler."""
    if "blocks" not in content:
        return content
    sums = {}
    for k, blocks in enumerate(content["blocks"]):
        for _, _, rows, *_ in blocks:
            for place, _, kind, how, _, *moved in rows:
                key = k, content["places"][place]["name"], kind, content["hows"][how]
                before = sums.get(key, [0] * MOVED)
                sums[key] = [a + b for a, b in zip(before, moved[:MOVED])]
    kernels = [[k["pass"], k["grid"], k["block"]] for k in content["kernels"]]
    words = [content[key] for key in ("problem", "idea", "registers", "counted")]
    return words, kernels, sums


def stale(build, shown):
    """A sentence, or nothing if the step's file is up to date."""
    path, held = os.path.relpath(path_of(shown.step)), kept(shown)
    if shown is RING:
        can = has_mpi(program_of(build, RING.step))
        same = not can or fresh(build, shown) == held
        return None if held and same else f"{path} is not what the program predicts"
    if list(held) != [run.name for run in shown.runs]:
        return f"{path} lacks runs, or has others"
    sources = sources_of(held.values())
    for content in held.values():
        for line in content["lines"]:
            if sources[line["path"]][line["number"] - 1 : line["number"]] != [line["text"]]:
                return f"{path}: {line['path']}:{line['number']} was another line"
    if file_text(shown, held) != read_text(path_of(shown.step)):
        return f"{path} shows source lines that have changed"
    runs = {run.variant: run for run in reversed(shown.runs)}
    for name, content in fresh(build, shown, list(runs.values())).items():
        if summary(held[name]) != summary(content):
            return f"{path}: {name} is not what the program's trace says"
    return None


def main():
    parser = command.parser(__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "sim"), metavar="DIR")
    args = parser.parse_args()
    known = {shown.step: shown for shown in (*STEPS, RING)}
    chosen = [known[name] for name in chosen_of(list(known), " ".join(args.steps), "there are")]
    if args.check:
        found = [stale(args.build, shown) for shown in chosen]
        if not any(found) and page(args.build, {s: kept(known[s]) for s in known}) != read_text(
            INDEX
        ):
            found.append(f"{os.path.relpath(INDEX)} is not what its sources say")
        barriers = os.path.relpath(explorer_barriers.PATH)
        if not args.steps and explorer_barriers.file_text() != read_text(explorer_barriers.PATH):
            found.append(f"{barriers} is not what {explorer_barriers.PROGRAM} does")
        if sentences := list(filter(None, found)):
            raise Failure(f"{'; '.join(sentences)}: ./scripts/maintain explorer makes them again")
        return 0
    for shown in chosen:
        write_text(path_of(shown.step), file_text(shown, fresh(args.build, shown)))
        print(f"{os.path.relpath(path_of(shown.step))}: {os.path.getsize(path_of(shown.step)):,} B")
    if not args.steps:
        write_text(explorer_barriers.PATH, explorer_barriers.file_text())
    write_text(INDEX, page(args.build, {s: kept(known[s]) for s in known}))
    print(f"{os.path.relpath(INDEX)}: {os.path.getsize(INDEX):,} B")
    return 0
