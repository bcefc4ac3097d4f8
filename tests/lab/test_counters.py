"""maintain counters_vs_sim on JSON made by hand."""

import os
import tempfile
import unittest

from basis import gpu, maintain, sim, with_backward, with_prepare, write

LINES = {"load": 9000000, "store": 1000000, "atomic": 0}


def changed(run, group, value, of=lambda run: run):
    """The run with another figure of its traffic: a dict, or what is added to the stores."""
    traffic = of(run)["traffic"]
    if isinstance(value, int):
        traffic[group]["store"] += value
    else:
        traffic[group] = value
    return run


def backward(make, atomic):
    return with_backward(make(step="06_x", variant="backward"), atomic=atomic)


def prepared(make):
    return with_prepare(make(step="12_x", variant="e4m3"))


def waves(make, load):
    return changed(make(), "shared_wavefronts", {"load": load, "store": 0})


def hbm(read=32000000, **changes):
    """A GPU's run that read so much from HBM, where 31 MB were modelled."""
    run = gpu(**changes)
    run["traffic"]["hbm"]["measured"]["read"] = read
    return run


SMALL, LARGE = 1 << 20, 200 << 20  # workspaces; the sample's 34 MB are close to the L2's 52 MB
REFUSED = {"requests": None, "sectors": None, "note": "hardware counters refused"}
EQUAL = "all 4 figures are equal; the largest difference is 0"
# (counted, measured, exit status, what is said, what is not)
CASES = (
    (sim(), gpu(), 0, (EQUAL,), ()),
    (
        sim(),
        changed(gpu(), "sectors", 1),
        1,
        ("1 of 4 figures differ; the largest difference is 2.5e-05%: store sectors of 01 naive",),
        (),
    ),
    # An atomic that only one side saw.
    (sim(), changed(gpu(), "requests", {**sim()["traffic"]["requests"], "atomic": 7}), 1, (), ()),
    # Results from before lines were counted have none.
    (changed(sim(), "lines", LINES), gpu(), 0, (EQUAL,), ()),
    (
        changed(sim(), "lines", LINES),
        changed(gpu(), "lines", {**LINES, "load": 9000001}),
        1,
        ("1 of 6 figures differ", "load lines of 01 naive"),
        (),
    ),
    # Wavefronts need not be equal.
    (
        waves(sim, 1000),
        gpu(),
        0,
        (EQUAL, "load wavefronts 1,000 - not measured"),
        ("store wavefronts", "no promise: nvcc"),
    ),
    (
        waves(sim, 1000),
        waves(gpu, 980),
        0,
        (EQUAL, "load wavefronts 1,000 980 2% *", "* no promise: nvcc may join loads"),
        (),
    ),
    (waves(sim, 1000), waves(gpu, 1000), 0, ("load wavefronts 1,000 1,000 =",), ("promise: nvcc",)),
    (sim(), waves(gpu, 1000), 0, ("load wavefronts - 1,000 not measured",), ()),
    # Other passes, and atomics.
    (
        backward(sim, 7),
        backward(gpu, 7),
        0,
        ("6 of the figures are of backward passes, 2 of atomics all 10 figures are equal",),
        (),
    ),
    (
        backward(sim, 7),
        backward(gpu, 8),
        1,
        ("2 of 10 figures differ; the largest difference is 14.3%: atomic requests of 06 backward",)
        + ("06 backward bwd",),
        (),
    ),
    (
        prepared(sim),
        prepared(gpu),
        0,
        ("0 of atomics, 4 of prepare passes all 8 figures are equal",),
        (),
    ),
    (
        prepared(sim),
        changed(prepared(gpu), "sectors", 1, of=lambda run: run["prepare"]),
        1,
        ("1 of 8 figures differ", "store sectors of 12 e4m3 prep"),
        (),
    ),
    # Problems that are not the same.
    ([sim(smem=32768), sim(smem=65536)], gpu(smem=65536), 0, ("smem=65536", EQUAL), ("32768",)),
    ([sim(smem=32768), sim(smem=65536)], gpu(), 1, ("nothing to compare",), ()),
    (sim(n=512), gpu(), 1, ("nothing to compare",), ()),
    # Refused counters are no success.
    (
        sim(),
        {**gpu(), "traffic": {**gpu()["traffic"], **REFUSED}},
        1,
        ("note: hardware counters refused", "no figure was measured"),
        (),
    ),
    # HBM: a miss is wrong only where the model promises, and models what ran there.
    (
        sim(workspace_bytes=SMALL),
        hbm(33000000),
        0,
        ("HBM read 31,000,000 33,000,000 6.45%", "HBM: 2 of 2 figures within 10% or 0.3 MB"),
        ("no promise",),
    ),
    (
        sim(workspace_bytes=SMALL),
        hbm(35000000),
        1,
        (EQUAL, "HBM: 1 of 2 figures within 10% or 0.3 MB; the furthest: HBM read of 01 naive"),
        (),
    ),
    (sim(workspace_bytes=LARGE), hbm(35000000), 1, ("HBM: 1 of 2 figures",), ()),
    (
        sim(),
        hbm(35000000),
        0,
        ("35,000,000 12.9% *", "* no promise: the footprint is close", "HBM: 0 of 0 figures"),
        (),
    ),
    (
        sim(workspace_bytes=SMALL, estimate_heads=128),
        hbm(35000000),
        0,
        ("no HBM bytes to compare",),
        (),
    ),
    (
        sim(workspace_bytes=SMALL),
        hbm(35000000, name="NVIDIA A100-SXM4-80GB"),
        0,
        ("no HBM bytes to compare",),
        (),
    ),
)


class Counters(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folders = [os.path.join(folder.name, name) for name in ("gpu", "sim")]
        for path in self.folders:
            os.mkdir(path)

    def compare(self, counted, measured):
        for folder, data in zip(self.folders, (measured, counted)):
            write(os.path.join(folder, "run.json"), data)
        return maintain("counters_vs_sim", *self.folders)

    def test_what_must_be_equal(self):
        for i, (counted, measured, status, said, unsaid) in enumerate(CASES):
            with self.subTest(case=i, said=said):
                done = self.compare(counted, measured)
                self.assertEqual(done.returncode, status, done.stdout + done.stderr)
                words = " ".join(done.stdout.split())
                for sentence in said:
                    self.assertIn(sentence, words)
                for sentence in unsaid:
                    self.assertNotIn(sentence, words)

    def test_bad_input(self):
        write(os.path.join(self.folders[1], "run.json"), sim())
        with open(os.path.join(self.folders[0], "x.json"), "w", encoding="utf-8") as file:
            file.write("{")
        done = maintain("counters_vs_sim", *self.folders)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)


if __name__ == "__main__":
    unittest.main(argv=["test"])
