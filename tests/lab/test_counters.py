"""A GPU's counters beside the simulator's counts, on hand-made JSON."""

from basis import Folder, gpu, main, sim, with_backward, with_prepare, write
from flash_steps.results import load
from lab.counters_vs_sim import compare_counters, compare_hbm, pairs

LINES = {"load": 9000000, "store": 1000000, "atomic": 0}


def changed(run, group, value, of=lambda run: run):
    """The run with another figure of its traffic: a dict, or a number added to the stores."""
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


def hbm(read, **changes):
    """A GPU's run that read this much from HBM, where 31 MB were modelled."""
    run = gpu(**changes)
    run["traffic"]["hbm"]["measured"]["read"] = read
    return run


def modelled(read):
    """A simulator's run in which so much was modelled."""
    run = sim(workspace_bytes=SMALL)
    run["traffic"]["hbm"]["model"]["read"] = read
    return run


# Workspaces: the sample's 34 MB are close to the L2's 52 MB, where the model promises nothing.
SMALL, LARGE = 1 << 20, 200 << 20
REFUSED = {**gpu()["traffic"], "requests": None, "sectors": None}
REFUSED["note"] = "hardware counters refused"
EQUAL, NO_HBM = "all 4 figures are equal", "no HBM bytes to compare"
LARGEST, NOTHING = "the largest difference is", "nothing to compare"
ATOMIC = {**sim()["traffic"]["requests"], "atomic": 7}  # seen by one side only
TWO_TILES = [sim(smem=32768), sim(smem=65536)]
# (counted, measured, do they differ, words of the output ...)
CASES = (
    (sim(), gpu(), 0, EQUAL, NO_HBM),
    (sim(), changed(gpu(), "sectors", 1), 1, f"1 of 4 figures differ; {LARGEST} 2.5e-05%: store"),
    (sim(), changed(gpu(), "requests", ATOMIC), 1),
    # Results from before lines were counted have none.
    (changed(sim(), "lines", LINES), gpu(), 0, EQUAL),
    (
        *(changed(sim(), "lines", LINES), changed(gpu(), "lines", {**LINES, "load": 9000001})),
        *(1, "1 of 6 figures differ", "load lines of 01 naive"),
    ),
    # Other passes, and atomics.
    (backward(sim, 7), backward(gpu, 7), 0, "6 of the figures are of backward passes, 2 of"),
    (backward(sim, 7), backward(gpu, 8), 1, f"2 of 10 figures differ; {LARGEST} 14.3%: atomic re"),
    (prepared(sim), prepared(gpu), 0, "4 of prepare passes all 8 figures are equal"),
    (
        *(prepared(sim), changed(prepared(gpu), "sectors", 1, of=lambda run: run["prepare"])),
        *(1, "1 of 8 figures differ", "store sectors of 12 e4m3 prep"),
    ),
    # Different problems.
    (TWO_TILES, gpu(smem=65536), 0, "smem=65536", EQUAL),
    (TWO_TILES, gpu(), 1, NOTHING),
    (sim(n=512), gpu(), 1, NOTHING),
    # Refused counters do not count as success.
    (sim(), {**gpu(), "traffic": REFUSED}, 1, "note: hardware cou", "no figure was measured"),
    # HBM: a difference is wrong only where the model promises, and models what ran there.
    (sim(workspace_bytes=SMALL), hbm(33000000), 0, "HBM: 2 of 2 figures within 10% or 0.3 MB"),
    (
        *(sim(workspace_bytes=SMALL), hbm(35000000), 1),
        *("HBM: 1 of 2 figures", f"{LARGEST} 12.9%: HBM read of 01 naive"),
    ),
    (modelled(1000000), hbm(1290000), 0, "HBM: 2 of 2"),
    (modelled(1000000), hbm(1310000), 1, "HBM: 1 of 2"),
    (sim(workspace_bytes=LARGE), hbm(35000000), 1, "HBM: 1 of 2 figures"),
    (sim(), hbm(35000000), 0, NO_HBM),
    (sim(workspace_bytes=SMALL, estimate_heads=128), hbm(35000000), 0, NO_HBM),
    (sim(workspace_bytes=SMALL), hbm(35000000, name="NVIDIA A100-SXM4-80GB"), 0, NO_HBM),
)


class Counters(Folder):
    def runs(self, data):
        return load(write(self.folder / "run.json", data))

    def test_what_must_be_equal(self):
        for i, (counted, measured, status, *said) in enumerate(CASES):
            with self.subTest(case=i, said=said):
                rows = pairs(self.runs(measured), self.runs(counted))
                (text, equal), (hbm_text, near) = compare_counters(rows), compare_hbm(rows)
                words = " ".join(f"{text} {hbm_text}".split())
                self.assertEqual(equal and near, not status, words)
                for sentence in said:
                    self.assertIn(sentence, words)


main()
