"""The trace of every program: no byte is lost, and Perfetto can open it."""

import json

from copies import BUILD, ROOT, Folder, for_all, main, said
from flash_steps.steps import numbered_steps, program_of, report_of

KINDS = ("read", "write", "atomic")
OPERATIONS = dict(zip(KINDS, ("load", "store", "atomic")))


def run(step, *arguments):
    return said([f"{BUILD}/steps/{step}", *arguments])


def passes_of(report):
    parts = {"forward": report, "backward": report["backward"], "prepare": report["prepare"]}
    return {name: part["traffic"] for name, part in parts.items() if part}


class Trace(Folder):
    def trace(self, step, *arguments):
        trace = self.folder / "trace.json"
        report = report_of(program_of(BUILD, step), *arguments, "--trace", trace)
        return json.loads(trace.read_text()), report

    @for_all
    def test_no_byte_is_lost(self):
        """Sums over the events equal the report's counts, for each pass and buffer of each step."""
        for step in numbered_steps()[:13]:
            small = ("--b", 2, "--h", 2, "--n", 100)
            if step == "13_decode":
                small = ("--b", 2, "--h", 4, "--hkv", 2, "--n", 3, "--nk", 700)
            for causal in ((), ("--causal",)):
                with self.subTest(step=step, causal=causal):
                    self.compare(*self.trace(step, *small, *causal))

    def compare(self, trace, report):
        about = trace["flash_steps"]
        sums, touches = {}, {}
        for e in (e for e in trace["traceEvents"] if e["ph"] == "X"):
            a, place = e["args"], about["places"][e["args"]["place"]]
            if place["space"] == "shared":
                continue
            name = about["kernels"][e["pid"]]["pass"]
            row = sums.setdefault((name, place["name"]), {})
            for what in ("bytes", "requests", "sectors"):
                by_kind = row.setdefault(what, dict.fromkeys(KINDS, 0))
                if what != "sectors" or a["how"] != "TMA":
                    by_kind[a["kind"]] += a[what]
            for kind, moved in zip(KINDS, a["first_touch"]):
                touches[name, kind] = touches.get((name, kind), 0) + moved
        for name, traffic in passes_of(report).items():
            for buffer, counts in traffic["requested"]["buffers"].items():
                row = sums.pop((name, buffer))
                self.assertEqual(row["bytes"], counts["counted"], (name, buffer))
                for what in ("requests", "sectors"):
                    counted = counts.get(what) or dict.fromkeys(OPERATIONS.values(), 0)
                    want = {kind: counted[OPERATIONS[kind]] for kind in KINDS}
                    self.assertEqual(row[what], want, (name, buffer, what))
                self.assertEqual(row["bytes"], about["totals"][name][buffer]["bytes"])
            model = traffic["hbm"]["model"]
            self.assertEqual({kind: touches[name, kind] for kind in ("read", "write")}, model)
        self.assertEqual(sums, {})

    def test_what_perfetto_needs(self):
        trace, _ = self.trace("04_fused", "--h", 2, "--n", 64)
        tracks, ends = {}, {}
        for e in trace["traceEvents"]:
            if e["ph"] == "M":
                tracks[e["name"], e["pid"], e.get("tid")] = e["args"]["name"]
                continue
            self.assertEqual(e["ph"], "X")
            track = e["pid"], e["tid"]
            self.assertIn(("thread_name", *track), tracks)
            self.assertGreaterEqual(e["ts"], ends.get(track, 0))  # in order, without overlaps
            self.assertGreater(e["dur"], 0)
            ends[track] = e["ts"] + e["dur"]
        self.assertIn("flash_fwd_kernel", tracks["process_name", 0, None])
        self.assertEqual(tracks["thread_name", 0, 1], "block (0,1,0)")

    def test_lines_are_those_of_the_kernel_in_each_pass(self):
        trace, _ = self.trace("05_recompute_backward", "--h", 1, "--n", 40)
        about = trace["flash_steps"]
        used = {(e["pid"], e["args"]["stack"]) for e in trace["traceEvents"] if e["ph"] == "X"}
        used |= {(request["kernel"], request["stack"]) for request in about["requests"]}
        self.assertGreater(len(used), 40)
        for kernel, stack in used:
            paths = [about["lines"][line]["path"] for line in about["stacks"][stack]]
            step = about["kernels"][kernel]["name"].removeprefix("step")[:2]
            self.assertTrue(any(f"steps/{step}_" in path for path in paths), (step, paths))

    def test_a_trace_is_the_same_each_time_and_names_no_folder(self):
        first = self.trace("06_work_partitioning", "--h", 1, "--n", 100)[0]
        self.assertEqual(first, self.trace("06_work_partitioning", "--h", 1, "--n", 100)[0])
        self.assertNotIn(str(ROOT), json.dumps(first))
        paths = {line["path"] for line in first["flash_steps"]["lines"]}
        self.assertIn("steps/06_work_partitioning/2_registers.cuh", paths)


if __name__ == "__main__":
    main()
