"""What papers and the usual explanations claim of attention, and what this repository finds.

    claims                         lists the claims and their verdicts
    claims run                     checks all: runs what needs no GPU, reads the rest
    claims run ID ...              some claims, with reason, source and commands
    claims run --gpu [ID ...]      on a GPU: runs what needs one, too
    claims table [--check]         fills docs/claims.md where all fit, or only compares

The claims are in docs/claims.toml; --claims FILE takes others, but never to fill the page.
Verdicts of what needs a GPU are about the one that docs/results names.
Exit status: 0 done, 1 a finding does not fit its verdict or the page is out of date, 2 bad use,
3 no GPU or no program.
"""

import os
import re
import sys
import textwrap

from flash_steps import command
from flash_steps.command import BadInput
from flash_steps.files import ROOT, read_text, write_text
from flash_steps.standing import standing_text

from .claims_file import (
    DEVICE,
    DIFFERS,
    MAINTAINED_DEVICE,
    Finding,
    Runner,
    finding_of,
    load_claims,
)

CLAIMS = os.path.join(ROOT, "docs", "claims.toml")
PAGE = os.path.join(ROOT, "docs", "claims.md")
BLOCK = re.compile(r"(<!-- claims -->\n).*?(<!-- /claims -->)", re.DOTALL)


def by_group(claims):
    groups = {}
    for claim in claims:
        groups.setdefault(claim.group, []).append(claim)
    return groups.items()


def verdict_of(claim):
    return f"needs a GPU; {claim.verdict}" if claim.needs_gpu else claim.verdict


def reason_of(finding):
    """With nothing found the figures have no values yet."""
    known = finding.claim.verdict == DIFFERS and finding.because
    return f": {known}" if known else ""


def device_of(runs):
    """ "simulator", the GPU's name, or the file that was read."""
    names = []
    for tree in runs.values():
        first = tree.get("runs") or [tree]
        device = first[0].get("device", "data sheets")
        name = device.get("name") if isinstance(device, dict) else device
        names.append("simulator" if name.startswith("simulator") else name)
    return ", ".join(dict.fromkeys(names))


def is_judged(finding):
    """Whether its verdict is about the device on which it was found."""
    devices = {DEVICE, MAINTAINED_DEVICE}.intersection(finding.device.split(", "))
    return not finding.claim.needs_gpu or bool(devices)


def wrapped(text, first="", rest=None, width=80):
    return textwrap.fill(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_on_hyphens=False,
        break_long_words=False,
    )


def capital(text):
    return text[0].upper() + text[1:]


# --- on the screen --------------------------------------------------------------------------------


def listing(claims):
    lines = []
    for group, members in by_group(claims):
        lines += ["", group]
        for claim in members:
            lines += [f"  {claim.id:<22}{verdict_of(claim)}", wrapped(claim.says, "    ")]
    return "\n".join(lines[1:])


def screen_of(finding, full):
    claim = finding.claim
    verdict = verdict_of(claim) + (reason_of(finding) if full else "")
    if finding.fits is False:
        verdict = f"DOES NOT FIT: the verdict is '{claim.verdict}'"
        verdict += "" if is_judged(finding) else f" on an {DEVICE}"
    lines = [
        claim.id,
        wrapped(claim.says, "  "),
        wrapped(f"found, {finding.device}: {finding.text}", "  "),
        wrapped(verdict, "  "),
    ]
    if full or finding.fits is False:
        lines += [wrapped(f"source: {claim.source}", "  ")]
        lines += [f"  $ {line}" for line in dict.fromkeys(claim.run.values())]
    return "\n".join(lines)


# --- on the page ----------------------------------------------------------------------------------


def item(finding):
    claim = finding.claim
    says = f"- **{claim.id}.** {claim.says} ({claim.source})"
    found = f"Found, {finding.device}: {finding.text}. **{capital(verdict_of(claim))}**"
    lines = [
        wrapped(says, "", "  ", 120),
        wrapped(found + reason_of(finding) + ".", "  - ", "    ", 120),
    ]
    lines += [f"  - `{line}`" for line in commands_of(claim)]
    return "\n".join(lines)


def commands_of(claim):
    """What a reader pastes: one loop where the commands differ in one word; where there are many,
    the command that runs them."""
    commands = list(dict.fromkeys(claim.run.values()))
    words = [line.split(" ") for line in commands]
    if len(commands) > 1 and len({len(line) for line in words}) == 1:
        differ = [i for i, column in enumerate(zip(*words)) if len(set(column)) > 1]
        if len(differ) == 1:
            i = differ[0]
            start = os.path.commonprefix([line[i] for line in words]).rpartition("/")
            start = start[0] + start[1]
            each = " ".join(line[i].removeprefix(start) for line in words)
            body = " ".join([*words[0][:i], start + "$x", *words[0][i + 1 :]])
            return [f"for x in {each}; do {body}; done"]
    gpu = "--gpu " if claim.needs_gpu else ""
    return commands if len(commands) <= 2 else [f"./scripts/claims run {gpu}{claim.id}"]


def summary(claims):
    """A row per group: how many claims, and with what verdict."""
    lines = ["| | claims | reproduced | differ | need a GPU |", "|:--|--:|--:|--:|--:|"]
    for group, members in [*by_group(claims), ("all", claims)]:
        differ = sum(claim.verdict == DIFFERS for claim in members)
        gpu = sum(claim.needs_gpu for claim in members)
        lines.append(f"| {group} | {len(members)} | {len(members) - differ} | {differ} | {gpu} |")
    return "\n".join(lines)


def kept_item(before, claim):
    """What the page says of a claim that cannot be run here."""
    found = re.search(rf"^- \*\*{claim.id}\.\*\*.*\n(?:  .*\n?)*", before, re.MULTILINE)
    return found[0].rstrip("\n") if found else None


def page_block(findings, standings, before=""):
    by_claim = {finding.claim.id: finding for finding in findings}
    claims = [finding.claim for finding in findings]

    def entry(claim):
        mpi = any(cmd.startswith("mpirun ") for cmd in claim.run.values())
        kept = kept_item(before, claim) if mpi and by_claim[claim.id].device == "here" else None
        return kept or item(by_claim[claim.id])

    parts = [summary(claims)]
    for group, members in by_group(claims):
        parts += [f"## {group}", "\n".join(entry(claim) for claim in members)]
    return "\n\n".join(parts) + standing_text(standings) + "\n"


def table(findings, standings, check):
    """Writes or compares the page; whether it was up to date."""
    before = read_text(PAGE)
    if not BLOCK.search(before):
        raise BadInput("docs/claims.md has no lines <!-- claims --> and <!-- /claims -->")
    block = page_block(findings, standings, before)
    after = BLOCK.sub(lambda match: match[1] + "\n" + block + "\n" + match[2], before)
    if after != before:
        print("docs/claims.md: " + ("out of date: ./scripts/claims table" if check else "filled"))
        if not check:
            write_text(PAGE, after)
    return after == before


# --------------------------------------------------------------------------------------------------


def find_all(claims, runner):
    """The findings, in order."""
    runner.prepare(claims)
    for claim in claims:
        reason = runner.why_not(claim)
        if reason:
            yield Finding(claim, "here", f"nothing, because {reason}", None)
        else:
            runs = runner.runs(claim)
            yield finding_of(claim, runs, device_of(runs))


def chosen(claims, ids):
    known = {claim.id: claim for claim in claims}
    for name in ids:
        if name not in known:
            raise BadInput(f"no claim '{name}': ./scripts/claims lists them")
    return [known[name] for name in dict.fromkeys(ids)] or claims


def parse():
    parser = command.parser(__doc__)
    parser.add_argument("what", nargs="?", choices=("list", "run", "table"), default="list")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("--gpu", action="store_true", help="run also what needs a GPU")
    parser.add_argument("--check", action="store_true", help="with table: change nothing")
    parser.add_argument("--claims", default=CLAIMS, metavar="FILE.toml")
    parser.add_argument(
        "--build",
        default=os.path.join(ROOT, "build", "sim"),
        metavar="DIR",
        help="of the simulator",
    )
    options = parser.parse_intermixed_args()
    if options.ids and options.what != "run":
        parser.error(f"'{options.what}' takes no ID")
    if options.check and options.what != "table":
        parser.error("--check belongs to table")
    if options.gpu and options.what != "run":
        parser.error("--gpu belongs to run")
    others = os.path.abspath(options.claims) != CLAIMS
    if options.what == "table" and others and not options.check:
        parser.error("docs/claims.md is of docs/claims.toml: other claims need --check")
    return options


def main():
    options = parse()
    claims = chosen(load_claims(options.claims), options.ids)
    if options.what == "list":
        print(listing(claims))
        return 0
    runner = Runner(os.path.abspath(options.build), options.gpu)
    findings, wrong = [], []
    for finding in find_all(claims, runner):
        findings.append(finding)
        if finding.fits is False and is_judged(finding):
            wrong.append(finding)
        if options.what == "run":
            print(screen_of(finding, bool(options.ids)), flush=True)
    if options.what == "run":
        fit = sum(finding.fits is True for finding in findings)
        print(f"\n{fit} of {len(findings)} findings fit their verdicts")
        missing = any(finding.fits is None for finding in findings)
        return 1 if wrong else 3 if missing else 0
    if wrong:  # a page says only what fits
        print("\n".join(screen_of(finding, True) for finding in wrong), file=sys.stderr)
        if not options.check:
            print("docs/claims.md: not written", file=sys.stderr)
        return 1
    up_to_date = table(findings, runner.standings, options.check)
    return 1 if options.check and not up_to_date else 0
