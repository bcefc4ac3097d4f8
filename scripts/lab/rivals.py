"""Attention of other packages, where this Python has them: FlashAttention-3 (flash_attn_interface)
and -4 (flash_attn.cute), and for decoding FlashInfer; TILED with tiles that each head sees. With
windows and packs: masks.py.

Each function of (torch, problem) returns a function of Q, K, V that returns O; its tensors from
[B, H, N, d], and back."""

import importlib

from flash_steps.step_library import TILE

from . import masks


def swap(x):
    """[B, H, N, d] as [B, N, H, d], and back."""
    return x.transpose(1, 2).contiguous()


def flash3(torch, problem):
    module, causal = importlib.import_module("flash_attn_interface"), problem["causal"]
    decodes = problem["n"] < problem["nk"]
    call = module.flash_attn_with_kvcache if decodes else module.flash_attn_func
    return lambda q, k, v: call(q, k, v, causal=causal), swap, swap


def flash4(torch, problem):
    module, causal = importlib.import_module("flash_attn.cute"), problem["causal"]
    return lambda q, k, v: module.flash_attn_func(q, k, v, causal=causal), swap, swap


def flashinfer(torch, problem):
    if problem["n"] != 1:
        raise ValueError("measured for one query only")
    module = importlib.import_module("flashinfer")
    work = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    wrapper = module.BatchDecodeWithPagedKVCacheWrapper(work, "HND", use_tensor_cores=True)
    b, nk, page = problem["b"], problem["nk"], 64
    columns = nk // page
    counts = torch.arange(b + 1, dtype=torch.int32, device="cuda") * columns
    pages = torch.arange(b * columns, dtype=torch.int32, device="cuda")
    last = torch.full((b,), page, dtype=torch.int32, device="cuda")
    sizes = problem["h"], problem["hkv"], problem["d"]
    wrapper.plan(counts, pages, last, *sizes, page, q_data_type=torch.bfloat16)

    def lay(x):  # K and V [B, Hkv, Nk, d] as pages [B*columns, Hkv, page, d]
        if x.shape[2] == 1:
            return x[:, :, 0]
        return x.unflatten(2, (columns, page)).transpose(1, 2).flatten(0, 1).contiguous()

    return lambda q, k, v: wrapper.run(q, (k, v)), lay, lambda x: x[:, :, None]


BACKENDS = {"flash3": flash3, "flash4": flash4, "flashinfer": flashinfer}


# --- tiles that each head sees -------------------------------------------------------------------


def listed(torch, kept):
    """Of bool [..., rows, keys]: how many tiles each row has, and their places, first."""
    kept = kept.int().contiguous()  # the others keep its strides
    places = torch.argsort(kept, dim=-1, descending=True, stable=True)
    return kept.sum(-1, dtype=torch.int32), places.int()


def flex_tiles(torch, problem):
    module = importlib.import_module("torch.nn.attention.flex_attention")
    full = listed(torch, masks.tensor_of(torch, problem)[None])
    cut, sizes = map(torch.zeros_like, full), (problem["n"], problem["nk"])
    tiles = module.BlockMask.from_kv_blocks(*cut, *full, BLOCK_SIZE=TILE, seq_lengths=sizes)
    return masks.flex_of(torch, tiles)


def flash4_tiles(torch, problem):
    call = importlib.import_module("flash_attn.cute").flash_attn_func
    kind = importlib.import_module("flash_attn.cute.block_sparsity").BlockSparseTensorsTorch

    def lists(kept):
        full = listed(torch, kept)
        return kind(*map(torch.zeros_like, full), *full, block_size=(TILE, TILE))

    kept = masks.tensor_of(torch, problem)[None]
    words = {"block_sparse_tensors": lists(kept)}
    words["block_sparse_tensors_bwd"] = lists(kept.transpose(2, 3))  # of keys: tiles of rows
    return lambda q, k, v: call(q, k, v, **words), swap, swap


def cudnn_tiles(torch, problem):
    """nvidia-cudnn-frontend. Its backward makes the lists of rows each time."""
    module = importlib.import_module("cudnn.block_sparse_attention")
    counts, places = listed(torch, masks.tensor_of(torch, problem)[None])
    words = {"q2k_block_nums": counts, "sparse_block_size": TILE}

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            found = module.block_sparse_attention_forward(q, k, v, places, **words)
            ctx.save_for_backward(q, k, v, found["o_tensor"], found["lse_tensor"])
            return found["o_tensor"]

        @staticmethod
        def backward(ctx, do):
            saved = ctx.saved_tensors
            found = module.block_sparse_attention_backward(do, *saved, places, **words)
            return found["dq_tensor"], found["dk_tensor"], found["dv_tensor"]

    return Attention.apply, lambda x: x, lambda x: x


def flashinfer_tiles(torch, problem):
    """Its wrapper has one mask for all heads, so the heads are one sequence, block-diagonal."""
    module = importlib.import_module("flashinfer")
    kept, (h, n, d) = masks.tensor_of(torch, problem), (problem[key] for key in "hnd")
    if problem["b"] != 1 or problem["hkv"] != h:
        raise ValueError("measured for one sequence whose heads share nothing")
    work = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
    wrapper = module.BlockSparseAttentionWrapper(work)
    starts = torch.zeros(h * kept.shape[1] + 1, dtype=torch.int32, device="cuda")
    starts[1:] = kept.sum(-1).flatten().cumsum(0)
    head, _, place = kept.nonzero(as_tuple=True)
    places, kind = (head * kept.shape[2] + place).int(), torch.bfloat16
    sizes = h * n, h * problem["nk"], TILE, TILE, 1, 1, d
    wrapper.plan(starts, places, *sizes, q_data_type=kind, o_data_type=kind)

    def run(q, k, v):
        if torch.is_grad_enabled():
            raise ValueError("it has no backward")
        return wrapper.run(q, k, v)

    return run, lambda x: x.reshape(-1, 1, d), lambda x: x.view(1, h, -1, d)


TILED = {
    "flex": flex_tiles,
    "flash4": flash4_tiles,
    "cudnn": cudnn_tiles,
    "flashinfer": flashinfer_tiles,
}
