"""maintain masked without a GPU: with stand-ins for PyTorch, libraries and other kernels."""

import ctypes
import sys
import types
import unittest
from unittest import mock

from basis import main
from flash_steps.command import Failure
from flash_steps.problems import flops_of, problem_text
from lab import masked, masks, peers, rivals
from lab.masked import Masked, MaskedMeasurement
from lab.torch_attention import Contender

NAMES = ["window", "packed", "lists", "scores", "wgmma_scores", "wgmma_lists", "wgmma"]


def measurement(**words):
    options = types.SimpleNamespace(json=None, turns=2, budget=9, rounds=10, only=["tiles"])
    words = {"d": [128, 64], "directions": ["forward", "backward"], "iters": 2, **words}
    options.__dict__.update(words)
    library = mock.Mock(step="15_masks", variants=[{"name": n, "dtype": "bf16"} for n in NAMES])
    torch = mock.MagicMock(torch=mock.Mock(__version__="2"))
    torch.matmul_rate.return_value = 8e14
    with mock.patch.object(MaskedMeasurement, "runs_on"):
        return MaskedMeasurement(options, torch, library)


class Series(unittest.TestCase):
    def test_the_problems(self):
        found = list(masked.problems())
        texts = [problem_text(p) for _, p in found]
        self.assertEqual(len(texts), len(set(texts)))
        self.assertEqual({(what, p["d"]) for what, p in found}, {
            *(("window", d) for d in (64, 128)), *(("packed", d) for d in (64, 128)), ("tiles", 128)
        })  # fmt: skip
        self.assertEqual({p["n"] for _, p in found}, {16384})
        tiled = [p for what, p in found if what == "tiles"]
        self.assertEqual([p["tiles"]["kept"] for p in tiled], [13216, 33024, 66048])
        self.assertEqual(flops_of(tiled[0], "backward"), 2.5 * 4 * 128**3 * 13216)

    def test_tiles_are_causal_and_differ_between_heads(self):
        problem = masks.tiles(0.25, 3, 1024)  # 8 x 8 tiles, 9 of the 36 that are causal
        kept = masks.bytes_of(problem)
        heads = [kept[at : at + 64] for at in (0, 64, 128)]
        self.assertEqual([sum(head) for head in heads], [9, 9, 9])
        self.assertEqual(len(set(heads)), 3)
        for head in heads:
            self.assertTrue(all(head[9 * i] for i in range(8)))
            self.assertFalse(any(head[8 * i + j] for i in range(8) for j in range(i + 1, 8)))
        self.assertEqual(masks.drawn.__wrapped__(3, 8, 9), kept)

    def test_each_job_takes_the_variants_of_its_masks_and_gives_the_library_the_tiles(self):
        these = measurement(only=["window", "tiles"])
        jobs = these.jobs()
        some = [(what, p) for what, p in masked.problems() if what != "packed"]
        self.assertEqual(len(jobs), 2 * len(some))
        with (
            mock.patch.object(Masked, "rows", autospec=True, side_effect=lambda it: [it]),
            mock.patch.object(masks, "counted", lambda _, p: {**p, "scores": 5}),
        ):
            for job, (what, p) in zip(jobs, some):
                (one,) = job.rows()
                ((_, places),) = one.sides
                self.assertEqual([NAMES[i] for i in places], masked.VARIANTS[what])
                if what == "window":
                    self.assertEqual((one.sizes["window"], one.problem["scores"]), (p["window"], 5))
                    self.assertEqual(one.backends(), list(masks.BACKENDS))
                    continue
                heads, address = one.sizes["tiles"]
                self.assertEqual(heads, 16)
                self.assertEqual(ctypes.string_at(address, 16 * 128**2), masks.bytes_of(p))
                self.assertEqual(one.backends(), ["flex", "flash4", "cudnn", "flashinfer"])
        some = measurement(only=["window"], d=[64]).jobs()
        self.assertEqual(
            [job.text[:2] + job.text.partition("d=")[2][:2] for job in some],
            [f"{turn}:64" for turn in (1, 2) for _ in masked.WINDOWS],
        )

    def test_what_a_rival_refuses_or_gets_wrong_is_a_note(self):
        these, notes = measurement(), []
        _, p = next(each for each in masked.problems() if each[0] == "tiles")
        errors = {"flex": TypeError("no such kernel"), "cudnn": Failure("cudnn: O is wrong")}
        errors["flashinfer"] = AssertionError()

        def backend(name, *_):
            if name in errors:
                raise errors[name]
            return Contender(name, name, None)

        these.torch.backend.side_effect = backend
        these.torch.clock.take_turns.side_effect = lambda contenders, *_: {
            c.label: {"ms": ms, "runs": 9, "late": 0} for c, ms in zip(contenders, (2.0, 3.0))
        }
        one = Masked(these.options, these.torch, (these.library, [5]), p, notes)
        one.tensors, ours = {}, Contender("wgmma_lists", "15 wgmma_lists", None, step="15_masks")
        with mock.patch.object(one, "add_variant", lambda *about: about[-1].append(ours)):
            rows = one.direction("forward")
        self.assertEqual([row["ratios"] for row in rows], [{"flash4": 1.5}, {}])
        self.assertEqual(
            [note.partition(", ")[0] + note.rpartition(":")[2] for note in notes],
            ["flex no such kernel", "cudnn O is wrong", "flashinfer AssertionError"],
        )

    def test_a_table_has_a_column_for_d_where_it_differs(self):
        p = {**masks.tiles(0.5, 16, 16384), "step": "15_masks", "variant": "wgmma_lists"}
        rows = [
            {**p, "d": d, "direction": way, "flops_per_s": d * 5e12, "ratios": {"flash4": 1.25}}
            for d in (64, 128)
            for way in ("forward", "backward")
        ]
        columns, lines = peers.masked(rows)
        self.assertEqual([column.head[1] for column in columns][:3], ["mask", "d", "variant"])
        self.assertEqual([columns[1].cell(line) for line in lines], ["64", "128"])
        self.assertEqual([columns[-1].cell(line) for line in lines], ["1.25x / 1.25x"] * 2)
        self.assertEqual(len(peers.masked(rows[:2])[0]), len(columns) - 1)


class Tiled(unittest.TestCase):
    """What is asked of the packages; their tensors are stand-ins."""

    def setUp(self):
        self.torch = mock.MagicMock()
        lists = mock.patch.object(rivals, "listed", lambda _, kept: (f"n{kept}", f"at{kept}"))
        kept = mock.MagicMock(name="kept")
        kept.__getitem__ = lambda *_: kept
        kept.__str__ = lambda _: ""
        kept.transpose.return_value = "T"
        self.kept = kept
        self.enterContext(lists)
        self.enterContext(mock.patch.object(masks, "tensor_of", lambda *_: kept))
        self.torch.zeros_like = lambda x: f"no {x}"

    def modules(self, *names):
        found = {name: mock.MagicMock() for name in names}
        self.enterContext(mock.patch.dict(sys.modules, found))
        return found[names[-1]]

    def test_flex(self):
        module = self.modules("torch", "torch.nn.attention.flex_attention")
        run, *_ = rivals.flex_tiles(self.torch, {"n": 3, "nk": 4})
        make = module.BlockMask.from_kv_blocks
        words = {"BLOCK_SIZE": 128, "seq_lengths": (3, 4)}
        make.assert_called_once_with("no n", "no at", "n", "at", **words)
        run("q", "k", "v")
        attention = self.torch.compile.return_value
        attention.assert_called_once_with("q", "k", "v", block_mask=make.return_value)
        # Else it is the attention that stores all scores, from the fifth mask on.
        self.assertTrue(self.torch.compile.call_args.kwargs["fullgraph"])
        most = 2 * len(list(masked.problems()))  # of compiled graphs
        self.assertGreater(self.torch._dynamo.config.cache_size_limit, most)

    def test_flash4_has_the_lists_of_both_directions(self):
        names = ("flash_attn", "flash_attn.cute", "flash_attn.cute.block_sparsity")
        kind = self.modules(*names).BlockSparseTensorsTorch
        kind.side_effect = lambda *lists, block_size: (*lists, block_size)
        run, *_ = rivals.flash4_tiles(self.torch, {})
        run("q", "k", "v")
        sys.modules["flash_attn.cute"].flash_attn_func.assert_called_once_with(
            *"qkv",
            block_sparse_tensors=("no n", "no at", "n", "at", (128, 128)),
            block_sparse_tensors_bwd=("no nT", "no atT", "nT", "atT", (128, 128)),
        )

    def test_cudnn_gets_its_own_output_back(self):
        module = self.modules("cudnn", "cudnn.block_sparse_attention")
        words = {"q2k_block_nums": "n", "sparse_block_size": 128}

        class Function:  # apply() is the class itself
            apply = classmethod(lambda cls: cls)

        self.torch.autograd.Function = Function
        (run, *_), ctx = rivals.cudnn_tiles(self.torch, {}), mock.Mock()
        attention = run()
        module.block_sparse_attention_forward.return_value = {"o_tensor": "o", "lse_tensor": "lse"}
        self.assertEqual(attention.forward(ctx, "q", "k", "v"), "o")
        module.block_sparse_attention_forward.assert_called_once_with(*"qkv", "at", **words)
        ctx.saved_tensors = ctx.save_for_backward.call_args.args
        back = {"dq_tensor": 1, "dk_tensor": 2, "dv_tensor": 3}
        module.block_sparse_attention_backward.return_value = back
        self.assertEqual(attention.backward(ctx, "do"), (1, 2, 3))
        call = module.block_sparse_attention_backward
        call.assert_called_once_with("do", *"qkv", "o", "lse", "at", **words)

    def test_flashinfer_has_no_backward(self):
        module = self.modules("flashinfer")
        self.kept.nonzero.return_value = mock.MagicMock(), 0, mock.MagicMock()
        self.kept.shape = (16, 128, 128)
        p = dict(b=1, h=16, hkv=16, n=16384, nk=16384, d=128)
        run, *_ = rivals.flashinfer_tiles(self.torch, p)
        wrapper = module.BlockSparseAttentionWrapper.return_value
        self.assertEqual(wrapper.plan.call_args.args[2:], (1 << 18, 1 << 18, 128, 128, 1, 1, 128))
        with self.assertRaisesRegex(ValueError, "no backward"):
            run("q", "k", "v")
        self.torch.is_grad_enabled.return_value = False
        self.assertEqual(run("q", "k", "v"), wrapper.run.return_value)
        with self.assertRaises(ValueError):
            rivals.flashinfer_tiles(self.torch, {**p, "hkv": 8})


main()
