"""Every figure that the programs print equals the one in figures.txt.

    test_figures.py [BUILD]            fails where a figure has changed, and names it
    test_figures.py --write [BUILD]    rewrites figures.txt, which accepts the changes

Other tests check relations, such as predicted = counted, at many sizes. This one checks values at a
few: each variant of each step for two small problems, further options for one, with all keys of
--json, the screen, --describe, --predict and --trace. It proves that a refactoring changes nothing;
for other changes the diff of figures.txt shows the effects.

Numbers and words are stored in figures.txt, groups of them as 24 bits of their CRC-32. Figures of
an error depend on the C library and the compiler: they must agree within a factor of 1.3, and are
left out of the screen. So are the numbers of source lines, which every comment moves."""

import collections
import json
import re
import sys
import zlib
from pathlib import Path

from copies import BUILD, ROOT, Folder, main, said, typed
from flash_steps import mpi
from flash_steps.files import read_json
from flash_steps.steps import described, numbered_steps, program_of, runs_on

HELD = ROOT / "tests" / "programs" / "figures.txt"
ACCEPT = "to accept that: python3 tests/programs/test_figures.py --write build/sim"
GPUS = ("T4", "A100-80GB", "L4", "H100", "B200")  # beside the H200
# The figures of an error, each with a meaningless difference: a few roundings.
ERRORS = {"max_abs_err": 5e-7, "bound": 5e-7, "used": 0.03, "baseline_err": 5e-7, "rmse": 2e-8}
FACTOR = 1.3
SHOWN = 10
ONE_WORKER = ("--workers", "1")  # with several, blocks draw tiles in any order
ABSENT = "-"  # for a key that a row does not have
PASSES = ("forward", "backward", "prepare")
COUNTS = ("requests", "sectors", "lines", "shared_wavefronts")

# --- the runs ------------------------------------------------------------------------------------


def gpus_for(needs):
    arch = {gpu["name"]: gpu["arch"] for gpu in read_json(ROOT / "common/data/gpus.json")["gpus"]}
    return [name for name in GPUS if runs_on(arch[name], needs)]


def masks_of(step):
    """--mask of its --help, with smaller numbers."""
    text = said([program_of(BUILD, step), "--help"]).stdout
    found = re.search(r"a mask of the step:((?:\s+\w+:\d+)+)", text)
    return [re.sub(r":\d+", ":48", mask) for mask in found[1].split()] if found else []


def runs_of_variant(variant, number, last, masks):
    """Causal with two batch entries, and shared key heads; then neither, on another GPU and with
    another d; no size is a multiple of a tile's. Then the other options."""
    takes, gpus = variant["supports"], gpus_for(variant["needs"])
    n, nk = (150, 201) if variant["needs"] in ("sm_90a", "sm_100a") else (70, 45)
    n, keys = (3, "--nk 300") if takes["n"] else (n, "")
    d = [f"--d {takes['d'][i]}" for i in (0, -1)]
    heads = "--b 2 --h 2" + (" --hkv 1" if takes["gqa"] else "")
    yield f"{heads} --n {n} {keys} {d[last]} --causal --details"
    gpu = f"--gpu {gpus[number % len(gpus)]}"
    window = "--window 40,9" if takes["window"] else ""
    other = f"--nk {nk if not last else 35}" if takes["cross"] else ""
    if last:  # small: an analysis and a trace are the most expensive
        more = "--input outliers --analyse --details --trace t.json"
        yield f"--h 1 --n {min(n, 43)} {other} {d[0]} {window} {gpu} {more}"
    elif not variant["ranks"]:
        yield f"--h 1 --n {n - 1} {other} {d[1]} {window} {gpu}"
    if takes["smem"]:
        yield f"--h 2 --n {n} {d[1]} --smem 40000 --estimate-heads 4"
    if takes["pages"]:
        page = 16 if 64 in takes["d"] else 64  # the least
        yield f"{heads} --n 2 {d[1]} --lengths 70,300 --page {page} --details"
    if takes["documents"]:
        scores = "--cap 5 --alibi --sinks" if takes["score_mod"] else ""
        yield f"--h 1 --lengths 90,5:40,55:70 {d[0]} --causal {scores} --details"
    for mask in masks[number % 2 :: 2] if takes["mask"] else ():
        yield f"--h 1 --n 150 {d[0]} --mask {mask}"


def runs_of_step(step, variants):
    """Runs of the variants, and a large prediction of the last; one run predicts nothing."""
    masks = masks_of(step)
    for number, variant in enumerate(variants):
        for words in runs_of_variant(variant, number, variant is variants[-1], masks):
            yield f"{step} --variant {variant['name']} {words}"
    takes = variants[-1]["supports"]
    d = 128 if 128 in takes["d"] else takes["d"][0]
    large = f"{'--n 2 --nk' if takes['n'] else '--n'} 5003 --d {d} --causal --predict --details"
    yield f"{step} --b 2 --h 8 {large}"
    if step == "01_naive":
        yield f"{step} --n 40 --input normal --seed 3 --no-predict"


def runs_of_ranks(step, variants):
    """Runs that several ranks share, through MPI."""
    for variant in [variant["name"] for variant in variants if variant["ranks"]][-1:]:
        small = "--h 2 --hkv 1 --n 151 --causal --details"
        yield f"mpirun -n 3 {step} --variant {variant} {small}"
        yield f"mpirun -n 4 {step} --variant {variant} --h 4 --n 520 --causal --predict --details"


# --- the recorded values of a run -----------------------------------------------------------------


def rounded(value):
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def canonical(value):
    return json.dumps(rounded(value), sort_keys=True, separators=(",", ":"))


def is_group(value):
    """Is it stored as a CRC-32?"""
    return isinstance(value, (dict, list)) and len(value) > 0 or len(canonical(value)) > 20


def token(value):
    """A value as one word."""
    text = canonical(value)
    if is_group(value):
        return f"{zlib.crc32(text.encode()) & 0xFFFFFF:06x}"
    return text.strip('"').removesuffix(".0").replace(" ", "_") or '""'


def spread(prefix, group):
    return {f"{prefix}{key}": value for key, value in group.items()}


def sums_of(rows, names, figures):
    """The sum of rows of the same name: the compiler chooses which line a statement is on."""
    sums = collections.Counter()
    for row in rows:
        for figure in figures:
            sums[(*(str(row[name]) for name in names), figure)] += row[figure]
    return {" ".join(key): value for key, value in sums.items()}


def without_lines(text):
    return re.sub(r"(\.\w+):\d+\b", r"\1", text)


def rows_of_pass(part, gpu):
    part = dict(part)
    traffic = part["traffic"]
    traffic["counts"] = {key: traffic.pop(key) for key in COUNTS}
    if part["estimate"] and part["estimate"]["gpu"] == gpu:
        part["estimate"]["gpu"] = "as modelled"
    for group in ("traffic", "estimate"):
        if part[group]:
            part.update(spread(f"{group}.", part.pop(group)))
    if part["sites"] is not None:
        rows = [{**site, "where": without_lines(site["where"])} for site in part["sites"]]
        part["sites"] = sums_of(
            rows, ("where", "what"), ("requests", "transfers", "ideal", "clocks")
        )
    if part["remarks"] is not None:
        part["remarks"] = [without_lines(remark) for remark in part["remarks"]]
    if part["host_ms"] is not None:
        part["host_ms"] = "some" if part["host_ms"] > 0 else part["host_ms"]
    return part


def rows_in(tensor, problem):
    p = problem
    return p["b"] * (p["hkv"] * p["nk"] if tensor in ("dK", "dV") else p["h"] * p["n"])


def rows_of_report(report, known):
    """{row: {key: value}}: the run, its passes, its tensors, without what repeats `known`."""
    number = report["variant_index"]
    variant = known["variants"][number]
    same = {"step": known["step"], "idea": known["idea"], "variant": variant["name"]}
    same.update(variant_index=number, variant_idea=variant["idea"], fp8=variant["fp8"])
    same["forward_of"] = variant["forward_of"]
    report = {
        key: "as described" if key in same and same[key] == value else value
        for key, value in report.items()
    }
    report["device"]["name"] = re.sub(r" \(.*\)", "", report["device"]["name"])
    rows = {}
    for tensor in report.pop("check"):
        name = tensor.pop("tensor")
        if tensor["rows_checked"] == rows_in(name, report["problem"]):
            tensor["rows_checked"] = "all"
        rows[name] = tensor
    keys = list(report)
    keys = keys[keys.index("traffic") : keys.index("parent") + 1]
    passes = {"forward": {key: report.pop(key) for key in keys}}
    passes.update({name: report.pop(name) for name in PASSES[1:]})
    rows["run"] = report
    for name, part in passes.items():
        if part:
            rows[name] = rows_of_pass(part, report["model_gpu"])
    return rows


def rows_of_screen(text, known):
    """The screen's sections. Line breaks in the first ones depend on the machine's name. Of a table
    per source line only head and foot are recorded, of errors nothing."""
    for sentence in (known["idea"], *(variant["idea"] for variant in known["variants"])):
        flowing = r"\s+".join(map(re.escape, sentence.split()))
        text = re.sub(rf"(?<=: |  ){flowing}", "IDEA", text)
    text = re.sub(r"(?m)^host .*\n", "", text)
    text = re.sub(r"(?m)^  .*\.cuh:\d+.*\n|^  and \d+ more;.*\n", "", text)
    text = re.sub(r"(?m)\.cuh:\d+ takes \d+%", ".cuh takes", text)
    sections = text.rstrip().split("\n\n")
    for i, section in enumerate(sections):
        if re.search("^(device|ranks) ", section, re.M):
            section = re.sub(r"\(\w+, \d+ cores?\)", "", " ".join(section.split()))
            section = re.sub(r"\b(O|LSE|d[QKV]) [\d.]+(%|x)", r"\1", section)
        elif section.startswith("check "):
            section = re.sub(r" +(\d\.\d\de[-+]\d\d|\d+%|[\d.]+x)", "", section)
        sections[i] = section
    return {str(i + 1): section for i, section in enumerate(sections)}


def rows_of_trace(trace):
    """Without lines, and with the events of one place between the same waits added up."""
    about, events, union, tracks = trace["flash_steps"], [], set(), []
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            tracks.append([event["name"], event["pid"], event.get("tid"), event["args"]])
            continue
        args, where = event["args"], (event["pid"], event["tid"], event["args"]["place"])
        read, written = args.get("first_touch", (0, 0))
        moved = args.get("sectors", args.get("wavefronts", 0))
        key = " ".join(map(str, (*where, args["kind"], args["how"], args["waits"], event["cat"])))
        events.append({**args, "key": key, "moved": moved, "read": read, "written": written})
        events[-1]["dur"] = event["dur"]
        for rectangle in args.get("touched", args.get("around")):
            union.add((key, *rectangle))
    for line in about["requests"]:
        del line["stack"]
    figures = ("bytes", "requests", "moved", "read", "written", "dur")
    about["requests"] = sorted(set(map(canonical, about["requests"])))
    about["lines"] = sorted({line["path"] for line in about["lines"]})
    del about["stacks"]
    rest = {key: value for key, value in trace.items() if key not in ("flash_steps", "traceEvents")}
    sums = sums_of(events, ("key",), figures)
    return {**about, **rest, "tracks": tracks, "events": sums, "touched": sorted(union)}


def rows_of_description(known):
    rows = {"step": {key: value for key, value in known.items() if key != "variants"}}
    for variant in known["variants"]:
        rows[f"variant.{variant['name']}"] = {"all": variant}
    return rows


class Programs:
    def __init__(self, folder):
        self.folder = Path(folder)
        self.found = {}  # command: {row: {key: value}}
        self.failed = []
        self.has_mpi = mpi.has_mpi(program_of(BUILD, "14_ring"))
        runs = []
        for step in numbered_steps():
            known = described(program_of(BUILD, step))
            self.found[f"{step} --describe"] = rows_of_description(known)
            for command in runs_of_step(step, known["variants"]):
                runs.append((known, " ".join(command.split())))
        self.run_all(runs)
        for known in {known["step"]: known for known, _ in runs}.values() if self.has_mpi else ():
            step = known["step"]
            for command in runs_of_ranks(step, known["variants"]):
                line = command.replace(step, program_of(BUILD, step)).split()
                self.keep(known, command, *mpi.report([*line, *ONE_WORKER]))
        for words in (
            "--n 512,32768",
            "--gpu H100 --model llama-like --n 1024",
            "--model small --tokens 128 --n 128",
        ):
            words = f"predict {words}"
            text = typed("model", *words.split()).stdout
            self.found[f"./scripts/model {words}"] = {"screen": {"1": text}}

    def together(self, lines):
        """The statuses of the runs of all_steps, up to the first failure."""
        text = "".join("\t".join(map(str, line)) + "\n" for line in lines)
        return [*map(int, said([program_of(BUILD, "all_steps")], input=text).stdout.split())]

    def steps_together(self):
        steps = numbered_steps()
        while 0 in (statuses := self.together(("/dev/null", step, "--version") for step in steps)):
            if all(status == 0 for status in statuses):
                return steps
            del steps[len(statuses) - 1]
        return []

    def run_all(self, runs):
        """In one process where possible, since it reads the source lines once."""
        lines, steps = [], self.steps_together()
        for i, (_, command) in enumerate(runs):
            words = command.replace("t.json", f"{self.folder}/{i}.trace").split()
            words += [*ONE_WORKER, "--json", f"{self.folder}/{i}.json"]
            lines.append([self.folder / f"{i}.txt", *words])
        statuses = self.together(line for line in lines if line[1] in steps)
        for (known, command), (txt, step, *words) in zip(runs, lines):
            if step not in steps:
                done = said([program_of(BUILD, step), *words])
                txt.write_text(done.stdout + done.stderr)
                status = done.returncode
            elif statuses:
                status = statuses.pop(0)
            else:
                continue  # an earlier one failed
            report = read_json(words[-1]) if status == 0 else None
            self.keep(known, command, status, txt.read_text(), report)
            if txt.with_suffix(".trace").exists():
                trace = rows_of_trace(read_json(txt.with_suffix(".trace")))
                self.found[command]["trace"] = trace

    def keep(self, known, command, status, shown, report):
        if status != 0:
            self.failed.append(f"{command}\n    ended with status {status}: {shown[-400:]}")
            return
        rows = {**rows_of_report(report, known), "screen": rows_of_screen(shown, known)}
        self.found[command] = rows


# --- figures.txt ---------------------------------------------------------------------------------


def kind_of(row):
    """The kind of a row: "tensor" where it is none of the others but a checked tensor's name."""
    kind = "pass" if row in PASSES else row.partition(".")[0]
    return kind if kind in ("pass", "run", "screen", "trace", "step", "variant") else "tensor"


def short(error):
    """.0071, 5.2e-7"""
    return f"{error:.2g}".removeprefix("0").replace("e-0", "e-") or "0"


def tokens_of(found):
    """{command: {row: {key: word}}}"""

    def word(row, key, value):
        error = kind_of(row) == "tensor" and key in ERRORS and value is not None
        return short(value) if error else token(value)

    return {
        command: {
            row: {key: word(row, key, value) for key, value in keys.items()}
            for row, keys in rows.items()
        }
        for command, rows in found.items()
    }


def layout_of(runs):
    """{kind: (usual words, columns)}: a row has a key with an unusual word, at its usual column."""
    rows = collections.defaultdict(list)
    for run in runs.values():
        for row, keys in run.items():
            rows[kind_of(row)].append(keys)
    layout = {}
    for kind, those in rows.items():
        usual, columns = {}, []
        for key in dict.fromkeys(key for keys in those for key in keys):
            words = [keys[key] for keys in those if key in keys]
            (word, times), *_ = collections.Counter(words).most_common(1)
            if times >= 0.5 * len(those) and not (kind == "tensor" and key in ERRORS):
                usual[key] = word
            elif len(words) >= 0.5 * len(those):
                columns.append(key)
        layout[kind] = usual, columns
    return layout


def written(runs):
    text = "# What the programs print: test_figures.py says what is held of it, and writes this.\n"
    layout = layout_of(runs)
    for kind, (usual, columns) in layout.items():
        words = " ".join(f"{key}={word}" for key, word in usual.items())
        text += f"usual {kind} {words}".rstrip() + f"\ncolumns {kind} {' '.join(columns)}\n"
    for command, rows in runs.items():
        lines = []
        for row, keys in rows.items():
            kind = kind_of(row)
            usual, columns = layout[kind]
            words = [keys.get(key, ABSENT) for key in columns]
            for key in {**usual, **keys}:
                if key not in columns and keys.get(key, ABSENT) != usual.get(key):
                    words.append(f"{key}={keys.get(key, ABSENT)}")
            lines.append(" ".join([row, *words]))
        text += f"{command} => {' | '.join(lines)}\n"
    return text


def read(text):
    """The input of written()."""
    layout, runs = {}, {}
    for line in text.splitlines()[1:]:
        what, kind, *words = line.split()
        command, _, rows_of_run = line.partition(" => ")
        if what in ("usual", "columns"):
            layout.setdefault(kind, {})[what] = words
        else:
            rows = runs[command] = {}
            for part in rows_of_run.split(" | "):
                row, *words = part.split()
                kind = layout[kind_of(row)]
                columns = kind["columns"]
                keys = dict(word.split("=", 1) for word in kind["usual"])
                keys.update(zip(columns, words))
                keys.update(word.split("=", 1) for word in words[len(columns) :])
                rows[row] = {key: word for key, word in keys.items() if word != ABSENT}
    return runs


def same(row, key, held, now):
    if held == now or kind_of(row) != "tensor" or key not in ERRORS:
        return held == now
    try:
        a, b = float(held), float(now)
    except ValueError:  # null, or absent
        return False
    return abs(a - b) <= ERRORS[key] or max(a, b) <= FACTOR * min(a, b)


def differences(held, now):
    """(command, row, key, recorded word, word now), with ABSENT for a missing one."""
    for command in dict.fromkeys([*held, *now]):
        if command not in held or command not in now:
            words = ("not held", "a run") if command in now else ("held", "no run any more")
            yield command, "", "", *words
            continue
        before, after = held[command], now[command]
        for row in dict.fromkeys([*before, *after]):
            keys = before.get(row, {}), after.get(row, {})
            for key in dict.fromkeys([*keys[0], *keys[1]]):
                words = [each.get(key, ABSENT) for each in keys]
                if not same(row, key, *words):
                    yield command, row, key, *words


def message(moved, found):
    """At most ten of them, and the values of changed CRC-32s."""
    lines = [f"{len(moved)} figures of runs {' '.join(ONE_WORKER)} moved; {ACCEPT}"]
    last = None
    for command, row, key, held, now in moved[:SHOWN]:
        lines += [f"  {command}"] if command != last else []
        last = command
        lines.append(f"    {row} {key}: was {held}, is {now}")
        value = found.get(command, {}).get(row, {}).get(key)
        if value is not None and is_group(value):
            shown = value if isinstance(value, str) else canonical(value)
            lines.append("      " + " ".join(shown.split())[:300])
    return "\n".join(lines)


class Figures(Folder):
    def test_no_figure_moved(self):
        programs = Programs(self.folder)
        if programs.failed:
            self.fail("these runs failed:\n" + "\n".join(programs.failed[:SHOWN]))
        now = tokens_of(programs.found)
        held = read(HELD.read_text()) if HELD.exists() else {}
        if not programs.has_mpi:
            print("NOT RUN: what several ranks print: no mpirun here, or a program without MPI")
            now.update({command: held[command] for command in held if "mpirun" in command})
        if "--write" in sys.argv:
            HELD.write_text(written(now))
            held = read(HELD.read_text())
        if moved := list(differences(held, now)):
            self.fail(message(moved, programs.found))

    def test_what_moved_is_named(self):
        held, now = read(HELD.read_text()), read(HELD.read_text())
        self.assertEqual(written(held), HELD.read_text())
        run, left_out, *_ = [command for command in held if "--causal --details" in command]
        error = float(held[run]["O"]["rmse"])
        now[run]["O"].update(rmse=str(1.2 * error), max_abs_err="null")
        now[run]["forward"].update(flops="7")
        now[run]["screen"].pop("1")
        now["a new run"] = now.pop(left_out)
        moved = list(differences(held, now))
        self.assertEqual(
            [(command, row, key) for command, row, key, *_ in moved],
            [
                (run, "O", "max_abs_err"),
                (run, "forward", "flops"),
                (run, "screen", "1"),
                (left_out, "", ""),
                ("a new run", "", ""),
            ],
        )
        now[run]["O"]["rmse"] = str(1.4 * error + 2 * ERRORS["rmse"])
        self.assertIn((run, "O", "rmse"), [each[:3] for each in differences(held, now)])
        said = message(moved * 3, {run: {"screen": {"1": "the new words"}}})
        for words in ("15 figures", f"\n  {run}\n", "flops: was", "is 7", "--write"):
            self.assertIn(words, said)
        self.assertEqual(said.count(": was"), SHOWN)


if __name__ == "__main__":
    main()
