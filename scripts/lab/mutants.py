"""Writes single faults into a copy of the source, and shows which test finds each.

    maintain mutants                        every group of tests/mutants.toml: its short tests, then
                                            `[all]` of what survives
    maintain mutants step10 races           these groups
    maintain mutants --file 4_scheduled     the faults of files with this in their names
    maintain mutants --check                does the list fit the source? Builds nothing

All faults are compiled into one tree, build/mutants, and a variable of the environment chooses one
at run time; without it the tests must pass. A row shows the verdict (short, all, time, crash,
survived, equivalent), whether the words name the fault's line or at least its file, the CPU
seconds, the fault, the test case and its words.
Exit status: 0 each is found or explained, 1 one is not, 2 bad use, 3 the copy was not built.
"""

import collections
import os
import resource
import shutil
import subprocess
import tempfile
import tomllib
import xml.etree.ElementTree as ET
import zlib
from dataclasses import dataclass

from flash_steps import command
from flash_steps.command import BadInput, Failure, NotHere
from flash_steps.files import read_text, write_text
from flash_steps.steps import ROOT

LIST = os.path.join(ROOT, "tests", "mutants.toml")
COPY = os.path.join(ROOT, "build", "mutants")
VARIABLE = "FA_MUTANT"
LIMIT = 400  # CPU seconds per test
SWITCH = f"""// Which fault is switched on: the number in the environment's {VARIABLE}.
#include <cstdlib>
bool fa_mutant(unsigned n);
bool fa_mutant(unsigned n) {{
  static const unsigned now = [] {{
    const char* s = std::getenv("{VARIABLE}");
    return s ? std::strtoul(s, nullptr, 10) : 0;
  }}();
  return n == now;
}}
"""
AT_THE_END = {"after", "equivalent"}  # keys of the table at a fault's end


@dataclass
class Fault:
    """`of`, in the quoted `line`, becomes `to`: an expression, or statements that end in ; or }."""

    group: str
    file: str
    case: str  # a test that finds it fast: Catch2's pattern, run first
    line: str  # a text that occurs once in the file, or first after `after`
    of: str
    to: str
    after: str = ""
    equivalent: str = ""  # why no test can find it
    copy: int = 0  # number among faults with the same `of` and `to`

    def __post_init__(self):
        # Adding to the list must not change the copy's other files.
        key = "\0".join((self.file, self.of, self.to, str(self.copy)))
        self.number = zlib.crc32(key.encode())

    def place(self, text):
        r"""Where `of` begins and ends. \raises BadInput where a quote is absent or not unique."""
        start = once(text, self.after, self.file, 0) + len(self.after) if self.after else 0
        start = once(text, self.line, self.file, start, first=bool(self.after))
        start += once(self.line, self.of, f"{self.file}: '{self.line}'", 0)
        return start, start + len(self.of)

    def line_number(self, text):
        return text.count("\n", 0, self.place(text)[0]) + 1

    def __str__(self):
        to = " ".join(self.to.split()) or "nothing"
        return f"{' '.join(self.of.split())}  ->  {to}"


def once(text, quote, where, start, first=False):
    found = text.find(quote, start)
    if found < 0:
        raise BadInput(f"tests/mutants.toml: {where} has no '{quote}': quote the code as it is now")
    if not first and text.find(quote, found + 1) >= 0:
        raise BadInput(
            f"tests/mutants.toml: {where} has '{quote}' more than once: quote more of the line, "
            "or give `after` a text that stands before it"
        )
    return found


def read_list(text):
    r"""({group: [test]}, [Fault]) of tests/mutants.toml. \raises BadInput"""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"tests/mutants.toml: {error}") from error
    tests, faults, copies = tables.pop("tests"), [], collections.Counter()
    for group, files in tables.items():
        if group not in tests:
            raise BadInput(f"tests/mutants.toml: [tests] does not say what tests {group}")
        for file in files:
            path, case = file["file"], file.get("case", "")
            without = [[q, q[: q.rindex(";") + 1], ""] for q in file.get("without", [])]
            for entry in without + file.get("faults", []):
                more = entry[-1] if isinstance(entry[-1], dict) else {}
                quotes = entry[:-1] if more else entry
                if len(quotes) not in (2, 3) or not set(more) <= AT_THE_END:
                    raise BadInput(f"tests/mutants.toml: {path}: {entry} is not quote, of, to")
                line, (of, to) = quotes[0], quotes[-2:]
                faults.append(
                    Fault(group, path, case, line, of, to, copy=copies[path, of, to], **more)
                )
                copies[path, of, to] += 1
    return tests, faults


def switched(fault, inner):
    """`inner` is the original text, which may contain other faults."""
    now, to = f"fa_mutant({fault.number}u)", " ".join(fault.to.split())
    if fault.of.rstrip().endswith((";", "}")):
        return f"if ({now}) {{ {to} }} else {{ {inner} }}"
    return f"({now} ? ({to}) : ({inner}))"


def mutated(text, faults):
    """The text with all of a file's faults, each with its switch, on the same lines.
    \\raises BadInput where two overlap and neither contains the other"""
    places = sorted(((*f.place(text), f) for f in faults), key=lambda p: (p[0], -p[1]))
    at = 0

    def until(end):
        nonlocal at
        done, from_ = [], at
        while places and places[0][0] < end:
            start, stop, fault = places.pop(0)
            if stop > end:
                raise BadInput(f"tests/mutants.toml: {fault.file}: '{fault.of}' overlaps another")
            done.append(text[from_:start])
            at = start
            done.append(switched(fault, until(stop)))
            from_ = at
        done.append(text[from_:end])
        at = end
        return "".join(done)

    done, declared = until(len(text)), 0
    while done.startswith("#", declared):  # after the directives of the first lines
        declared = done.index("\n", declared) + 1
    return f"{done[:declared]}bool fa_mutant(unsigned n); {done[declared:]}"


def by_file(faults):
    files = {}
    for fault in faults:
        files.setdefault(fault.file, []).append(fault)
    return files


def write_if_changed(path, data):
    if os.path.exists(path):
        with open(path, "rb") as f:
            if f.read() == data:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def write_copy(faults):
    """Git's tracked sources with the faults; files that did not change keep their times."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "-co", "--exclude-standard"],
        capture_output=True,
        check=True,
    ).stdout
    names = [n for n in listed.decode().split("\0") if n and os.path.isfile(os.path.join(ROOT, n))]
    files = by_file(faults)
    for name in names:
        if name in files:
            data = mutated(read_text(os.path.join(ROOT, name)), files[name]).encode()
        else:
            with open(os.path.join(ROOT, name), "rb") as f:
                data = f.read()
        path = os.path.join(COPY, name)
        write_if_changed(path, data)
        shutil.copymode(os.path.join(ROOT, name), path)
    write_if_changed(os.path.join(COPY, "common", "harness", "mutant.cpp"), SWITCH.encode())


def build(targets):
    log = os.path.join(COPY, "build.log")
    with open(log, "w") as out:
        for call in (
            ["cmake", "--preset", "sim"],
            ["cmake", "--build", "build/sim", "--target", *targets, "--", "-k", "0"],
        ):
            if subprocess.run(call, cwd=COPY, stdout=out, stderr=subprocess.STDOUT).returncode:
                errors = [line for line in read_text(log).splitlines() if " error: " in line]
                raise NotHere("the copy was not built:\n" + "\n".join(errors or [log]))


@dataclass
class Verdict:
    how: str  # "short", "all", "time", "crash", "survived"
    case: str = ""
    words: str = ""
    seconds: float = 0  # of CPU


def first_failure(report):
    """(case, words) of Catch2's XML, which a crash may have truncated: then words may be ""."""
    parser, case, info = ET.XMLPullParser(["start", "end"]), "", []
    try:
        parser.feed(report)
        events = list(parser.read_events())
    except ET.ParseError:
        events = []
    for event, element in events:
        text = " ".join((element.text or "").split())
        if event == "start":
            if element.tag == "TestCase":
                case, info = element.get("name"), []
        elif element.tag == "Info":
            info.append(text)
        elif element.tag in ("Exception", "FatalErrorCondition", "Failure") and text:
            return case, text
        elif element.tag == "Expression" and element.get("success") == "false":
            said = [i.partition(" := ")[2] for i in info if i.startswith("t.message := ")]
            said = [i for i in said if i != '""']
            expanded = " ".join((element.findtext("Expanded") or "").split())
            return case, said[0] if said else expanded
    return case, ""


def run_test(test, arguments, number):
    """One run, of LIMIT CPU seconds; (Verdict or None where it passed, CPU seconds)."""
    path = os.path.join(COPY, "build", "sim", "tests", test)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.NamedTemporaryFile("r", suffix=".xml") as report:
        done = subprocess.run(
            [path, *arguments, "--abort", "-r", "xml", "-o", report.name],
            cwd=COPY,
            env=os.environ | {VARIABLE: str(number)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 1)),
        )
        text = report.read()
        found = first_failure(text)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    if done.returncode == 0 or (done.returncode > 0 and "<TestCase" not in text):  # it has no [all]
        return None, seconds
    case, words = found[0], found[1] or " ".join(done.stderr.split())[-300:]
    how = "time" if seconds >= LIMIT else "crash" if done.returncode < 0 else ""
    return Verdict(how, case, words), seconds


def require_sound(group, tests):
    """Checks, once per build, that they pass without a fault."""
    for test in tests:
        stamp = os.path.join(COPY, f"{test}.passed")
        binary = os.path.join(COPY, "build", "sim", "tests", test)
        if os.path.exists(stamp) and os.path.getmtime(stamp) > os.path.getmtime(binary):
            continue
        verdict, _ = run_test(test, [], 0)
        if verdict:
            raise Failure(f"{group}: without a fault {verdict.case} fails: {verdict.words}")
        write_text(stamp, "")


def judge(fault, tests):
    """The first test that finds it."""
    total = 0.0
    if fault.equivalent:
        return Verdict("survived")
    runs = [("case", tests[0], [fault.case])] if fault.case else []
    runs += [("short", test, []) for test in tests] + [("all", test, ["[all]"]) for test in tests]
    for how, test, arguments in runs:
        verdict, seconds = run_test(test, arguments, fault.number)
        total += seconds
        if verdict:
            verdict.how = f"{'all' if how == 'all' else 'short'} {verdict.how}".strip()
            verdict.seconds = total
            return verdict
    return Verdict("survived", seconds=total)


def names(fault, words, line):
    """ "line", "file" or "-": how precisely a finding's words name the fault's place."""
    base = os.path.basename(fault.file)
    if f"{base}:{line}" in words:
        return "line"
    return "file" if base + ":" in words else "-"


def report(fault, verdict):
    line = fault.line_number(read_text(os.path.join(ROOT, fault.file)))
    how = "equivalent" if verdict.how == "survived" and fault.equivalent else verdict.how
    said = fault.equivalent if how == "equivalent" else f"{verdict.case}: {verdict.words}"[:400]
    print(
        f"{how:<12} {names(fault, verdict.words, line):<4} {verdict.seconds:6.1f} s  "
        f"{fault.file}:{line}  {fault}\n{'':27}{said if how != 'survived' else ''}",
        flush=True,
    )
    return how


def chosen(faults, tests, options):
    for group in options.group:
        if group not in tests:
            raise BadInput(f"no group '{group}': the groups are {', '.join(tests)}")
    some = [f for f in faults if f.group in options.group or not options.group]
    return [f for f in some if options.file in f.file]


def main():
    parser = command.parser(__doc__)
    parser.add_argument("group", nargs="*")
    parser.add_argument(
        "--check", action="store_true", help="only compare the list with the source"
    )
    parser.add_argument("--file", default="", help="those of files with this in their names")
    options = parser.parse_args()
    tests, faults = read_list(read_text(LIST))
    for file, of_file in by_file(faults).items():
        mutated(read_text(os.path.join(ROOT, file)), of_file)
    some = chosen(faults, tests, options)
    if options.check:
        print(f"{len(faults)} faults, {sum(bool(f.equivalent) for f in faults)} of them explained")
        return 0
    if not some:
        raise BadInput("no fault is chosen")
    groups = list(dict.fromkeys(f.group for f in some))
    write_copy(faults)
    build([test for group in groups for test in tests[group]])
    left = 0
    for group in groups:
        require_sound(group, tests[group])
        found = [report(f, judge(f, tests[group])) for f in some if f.group == group]
        counts = {how: found.count(how) for how in dict.fromkeys(found)}
        print(f"{group}: " + ", ".join(f"{n} {how}" for how, n in counts.items()), flush=True)
        left += counts.get("survived", 0)
    return 1 if left else 0
