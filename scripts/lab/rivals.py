"""Attention of other packages, where this Python has them: FlashAttention-3 (flash_attn_interface)
and -4 (flash_attn.cute), and for decoding FlashInfer. With windows and packs: masks.py.

Each function of (torch, problem) returns a function of Q, K, V that returns O; its tensors from
[B, H, N, d], and back."""

import importlib


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
