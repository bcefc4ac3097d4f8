"""The findings of ./scripts/sim in SARIF 2.1.0, for code scanning and editors."""

import os
from pathlib import Path
from urllib.parse import quote

from .files import version

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
SOURCE = "%SRCROOT%"
# By the rules of the report (docs/json.md): name and meaning.
RULES = {
    "race": "Two threads, or a thread and a copy or product in flight, access the same bytes "
    "without an order between them, and one of them writes.",
    "uninitialised-read": "A kernel, or the host after a copy, reads unwritten memory.",
    "out-of-bounds": "An access, or a copy, outside of a buffer or an array, or after its end.",
    "misaligned-access": "An address that is not a multiple of what the access needs.",
    "deadlock": "Threads wait for each other, or at different barriers.",
    "endless-loop": "A kernel computed without a barrier until the watchdog stopped it.",
    "invalid-use": "A launch, an instruction or a call that CUDA does not allow.",
}


def root_of(path):
    """The repository that holds a file, or the folder of this call."""
    folder = Path(path).resolve().parent
    return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), Path.cwd())


def location(root, file, line):
    path = Path(os.path.abspath(file))
    inside = path.is_relative_to(root)
    artifact = {"uri": quote(path.relative_to(root).as_posix()) if inside else path.as_uri()}
    if inside:
        artifact["uriBaseId"] = SOURCE
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line}}}


def result(root, source, finding):
    places = [location(root, p["file"], p["line"]) for p in finding["places"]]
    places = places or [location(root, source, 1)]  # a reader may need one
    same = finding["message"].endswith("each stores the same value")
    row = {
        "ruleId": finding["rule"],
        "ruleIndex": list(RULES).index(finding["rule"]),
        "level": "warning" if same else "error",
        "message": {"text": finding["message"]},
        "locations": places[:1],
    }
    if places[1:]:
        others = [{"id": i, **place} for i, place in enumerate(places[1:], 1)]
        row["relatedLocations"] = [{**x, "message": {"text": "the other place"}} for x in others]
    return row


def document(report, source, status):
    """\\p report: the JSON of a run. \\p source: the program's first file."""
    root = root_of(source)
    rules = [{"id": name, "shortDescription": {"text": text}} for name, text in RULES.items()]
    run = {
        "tool": {"driver": {"name": "flash-steps sim", "version": version(), "rules": rules}},
        "automationDetails": {"id": f"flash-steps-sim/{report['program']}/"},
        "columnKind": "utf16CodeUnits",
        "invocations": [{"executionSuccessful": report["complete"], "exitCode": status}],
        "results": [result(root, source, finding) for finding in report["findings"]],
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
