"""maintain models without a GPU: with stand-ins for PyTorch, libraries and other kernels."""

import sys
import types
import unittest
from unittest import mock

from basis import main
from flash_steps.problems import problem_text
from lab import models, rivals
from lab.measured import place_of
from lab.models import ModelsMeasurement, Shapes, shape
from lab.torch_attention import Contender

STEPS = {
    "10_warp_specialized": ["lazy", "scheduled"],
    "11_hopper_backward": ["columns", "direct"],
    "13_decode": ["early", "wgmma"],
}


def measurement(**words):
    options = types.SimpleNamespace(
        json=None, turns=2, budget=9, rounds=10, only=["decode", "short"], variants=None
    )
    options.__dict__.update(words)
    libraries = [
        mock.Mock(step=step, variants=[{"name": name, "dtype": "bf16"} for name in names])
        for step, names in STEPS.items()
    ]
    with mock.patch.object(ModelsMeasurement, "runs_on"):
        return ModelsMeasurement(
            options, mock.MagicMock(torch=mock.Mock(__version__="2")), libraries
        )


class Models(unittest.TestCase):
    def test_the_problems(self):
        found = [(way, problem_text(p), what) for what, way, p in models.problems()]
        self.assertEqual(len(found), len(set(found)))
        for _, way, p in models.problems():
            self.assertEqual(p["h"] % p["hkv"], 0)
            self.assertEqual(way == "decode", p["n"] == 1)
        shared = {(p["h"], p["hkv"]) for what, _, p in models.problems() if what == "decode"}
        self.assertEqual(shared, {(32, 8), (64, 8), (64, 4), (32, 1)})
        lengths = {p["n"] for _, _, p in models.problems()}
        self.assertLessEqual({1, 128, 256, 3000, 4097}, lengths)

    def test_each_job_takes_the_default_variant_of_its_step(self):
        these = measurement()
        jobs = these.jobs()
        short = [about for about in models.problems() if about[0] in ("decode", "short")]
        self.assertEqual(len(jobs), 2 * len(short))
        with mock.patch.object(Shapes, "rows", autospec=True, side_effect=lambda it: [it]):
            for job, (what, way, p) in zip(jobs, short):
                (one,) = job.rows()
                ((library, places),) = one.sides
                self.assertEqual((library.step, places), (models.STEPS[way], [1]))
                self.assertEqual((one.what, one.problem, job.steps), (what, p, (library.step,)))
                want = "backward" if way == "backward" else "forward"
                self.assertEqual(one.options.directions, [want])

    def test_decoding_has_other_rivals(self):
        torch = mock.Mock(backends=dict.fromkeys(("math", "cudnn", "flash4", "flashinfer")))
        names = {
            what: Shapes(what, None, torch, [], shape(1, 2, 1, 1, 128, 64), []).backends()
            for what in ("decode", "short")
        }
        self.assertEqual(names, {"decode": ["cudnn", "flashinfer"], "short": ["cudnn", "flash4"]})

    def test_sustained_runs_have_no_pause(self):
        runs = []
        contenders = [Contender(name, name, lambda n=name: runs.append(n)) for name in "ab"]
        torch = mock.Mock()
        torch.clock.warm_up.side_effect = lambda c: {"a": 50.0, "b": 500.0}[c.label]
        torch.torch.cuda.Event.return_value.elapsed_time.return_value = 120.0
        found = models.sustained(torch, contenders, rounds=2)
        self.assertEqual("".join(runs), "aaaabbaaaa")
        self.assertEqual([found[name]["ms"] for name in "ab"], [30.0, 120.0])

    def test_a_table_has_the_fastest_rival_and_the_least_of_all_repeats(self):
        ratios = [{"cudnn": 1.5, "flash3": 1.1}, {"cudnn": 1.0625, "flash3": 1.25}]
        p = shape(1, 16, 16, 1024, 128)
        row = {**p, "what": "single", "direction": "forward", "step": "10", "label": "10 scheduled"}
        row |= {"ms": 0.02, "flops_per_s": 4e14, "ratios": {"cudnn": 1.28, "flash3": 1.175}}
        row["repeats"] = [{"ratios": each} for each in ratios]
        rival = {**row, "step": None, "ratios": {}}
        columns, lines = models.table("single", models.rows_for("single", [row, rival]))
        self.assertEqual(lines, [row])
        found = {column.head[1]: column.cell(row) for column in columns}
        self.assertEqual((found["fastest rival"], found["least"]), ("1.175x", "1.062x"))
        self.assertEqual((found["cudnn"], "flash4" in found), ("1.28x", False))
        self.assertNotEqual(place_of(row), place_of({**row, "what": "sustained"}))


class Rivals(unittest.TestCase):
    def test_decoding_calls_the_function_with_a_cache(self):
        module = mock.Mock()
        with mock.patch.dict(sys.modules, flash_attn_interface=module):
            for p, name in (
                (shape(1, 4, 1, 1, 128, 64), "flash_attn_with_kvcache"),
                (shape(1, 4, 1, 64, 128, causal=True), "flash_attn_func"),
            ):
                run, *_ = rivals.flash3(None, p)
                run("Q", "K", "V")
                getattr(module, name).assert_called_once_with("Q", "K", "V", causal=p["causal"])

    def test_flashinfer_takes_one_query(self):
        with self.assertRaises(ValueError):
            rivals.flashinfer(None, shape(1, 4, 1, 2, 128, 64))


main()
