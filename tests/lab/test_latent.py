"""maintain latent without a GPU: with stand-ins for PyTorch, the library and the other kernels."""

import json
import os
import sys
import types
import unittest
from unittest import mock

from basis import ROOT, main
from flash_steps import rungs
from flash_steps.command import Failure
from flash_steps.files import read_text
from flash_steps.step_library import _problem
from lab import latent, measured
from lab.latent import LatentMeasurement, problem, row_of
from lab.torch_attention import Contender

MS = {"17 splits": 2.0, "17 resident": 0.9, "17 pairs": 1.0}
MS |= {"flashmla": 1.5, "flash3": 0.9, "read": 0.5}


def output(error=0.0, finite=True):
    """O, whose difference from the reference is `error`."""
    out = mock.MagicMock()
    difference = out.__getitem__.return_value.double.return_value.__sub__.return_value
    difference.abs.return_value.max.return_value.item.return_value = error
    out.finite = finite
    return out


class Latent(unittest.TestCase):
    def setUp(self):
        torch = mock.MagicMock(__version__="2")
        torch.isfinite = lambda out: mock.Mock(**{"all.return_value.item.return_value": out.finite})
        torch.full.return_value = output()
        torch.full.return_value.transpose.return_value = output()
        clock = mock.Mock()
        clock.take_turns = lambda contenders, *_: {
            c.label: {"ms": MS[c.label], "runs": 20, "late": 0} for c in contenders
        }
        self.torch = mock.Mock(torch=torch, device="Pretended H200", clock=clock)
        self.torch.matmul_rate.return_value = 7e14
        self.torch.stream.return_value = 7
        self.library = mock.Mock(variants=[{"name": name} for name in latent.VARIANTS])
        options = types.SimpleNamespace(json=None, turns=1, budget=9)
        with mock.patch.object(LatentMeasurement, "runs_on"):
            self.measurement = LatentMeasurement(options, self.torch, self.library)
        self.enterContext(mock.patch.object(LatentMeasurement, "truth", return_value=[(0, 1, 0.1)]))

    def rows(self, p, **modules):
        absent = dict.fromkeys(("flash_mla", "flash_attn_interface", "flashinfer.mla"))
        with mock.patch.dict(sys.modules, absent | modules):
            return self.measurement.rows(p)

    def test_the_problems_are_the_32_of_the_comparison(self):
        found = {(p["b"], p["nk"], p["h"], p["n"]) for p in latent.PROBLEMS}
        self.assertEqual((len(latent.PROBLEMS), len(found)), (32, 32))
        self.assertEqual({p["nk"] % latent.PAGE for p in latent.PROBLEMS}, {0})
        self.assertEqual(len(self.measurement.jobs()), 32)

    def test_each_variant_is_one_of_the_step(self):
        text = read_text(os.path.join(ROOT, "steps", "17_latent", "step.cuh"))
        for name in latent.VARIANTS:
            self.assertIn(f'.name = "{name}"', text)

    def test_the_ladder_shows_its_times(self):
        (section,) = (section for section in rungs.SECTIONS if section.name == "latent")
        rows = [{**row, "device": rungs.DEVICE} for row in self.rows(problem(32, 4096, 64))]
        with mock.patch.object(rungs, "measured_rows", return_value=rows):
            found = rungs.times_of(section)
        self.assertEqual(
            {variant: ms for (_, variant), (ms, _) in found.items()},
            {"splits": 2.0, "resident": 0.9, "pairs": 1.0},
        )

    def test_a_problem(self):
        right = types.SimpleNamespace(
            get_mla_metadata=lambda: (None, None),
            flash_mla_with_kvcache=lambda *_, **__: [output()],
        )
        wrong = mock.Mock(**{"flash_attn_with_kvcache.return_value": output(0.2)})
        p = problem(32, 4096, 16)
        rows = self.rows(p, flash_mla=right, flash_attn_interface=wrong)
        names = ["splits", "resident", "pairs", "flashmla", "read"]
        self.assertEqual([row["variant"] for row in rows], names)
        _, _, pairs, rival, read = rows
        self.assertEqual(pairs["ratios"], {"flashmla": 1.5, "read": 0.5})
        self.assertEqual((pairs["step"], rival["step"], read["ratios"]), ("17_latent", None, {}))
        self.assertAlmostEqual(pairs["bytes_per_s"], 32 * 4096 * 1152 / 1e-3)
        self.assertAlmostEqual(pairs["flops_per_s"], 32 * 4096 * 16 * 2176 / 1e-3)
        self.assertEqual(len({measured.place_of(row) for row in rows}), 5)
        notes = " ".join(self.measurement.result["notes"])
        self.assertIn("flash3, B=32", notes)
        self.assertIn("O of entry 0 is wrong: error 2.00e-01, 1.00e-01 is allowed", notes)
        self.assertIn("flashinfer: ", notes)
        json.dumps(rows)
        for place, call in enumerate(self.library.runner.call_args_list):
            direction, at, sizes, addresses, stream = call.args
            self.assertEqual((direction, at, stream), ("forward", place, 7))
            self.assertEqual(set(addresses), {"Q", "K", "O", "LSE", "table"})
            passed = _problem(sizes)  # as the library reads it
            self.assertEqual((passed.page, passed.hkv, passed.nk, passed.d), (64, 1, 4096, 576))

    def test_a_wrong_result_of_the_step_is_no_time(self):
        for out, words in ((output(0.2), "is wrong"), (output(0.0, False), "not a number")):
            self.torch.torch.full.return_value.transpose.return_value = out
            with self.assertRaisesRegex(Failure, f"17 splits, B=1 .*{words}"):
                self.rows(problem(1, 4096, 16))

    def test_table(self):
        rows = []
        for h, slower in ((16, 1), (128, 2)):
            p = problem(1, 4096, h)
            found = {name: {"ms": ms * slower, "late": 0} for name, ms in MS.items()}
            found["flash3"]["ms"] = 0.9  # of both
            for label in MS:
                ours = label.startswith("17 ")
                name = label.removeprefix("17 ")
                contender = Contender(name, label, None, step="17_latent" if ours else None)
                rows.append(row_of(p, contender, found))
        columns, lines = latent.table("latent", latent.rows_for("latent", rows))
        cells = [[c.cell(line) for c in columns] for line in lines]
        heads = [c.head[1] for c in columns]
        first = dict(zip(heads, cells[0]))
        self.assertEqual((first["heads"], first["against the best"]), ("16", "0.900x"))
        self.assertEqual((first["of a read"], first["TFLOP/s"]), ("50%", "0.143"))
        result = {"device": "H", "torch": "2", "run": "2026-11-30T", "rounds": 20, "rows": rows}
        self.assertEqual(
            latent.card(result)["against the best"], "geometric mean 0.636x, least 0.450x"
        )


if __name__ == "__main__":
    main()
