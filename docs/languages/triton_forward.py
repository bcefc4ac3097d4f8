"""Step 07's forward in Triton: what a block computes, with the threads left to the compiler."""

import torch
import triton
import triton.language as tl


@triton.jit
def flash_fwd_kernel(
    Q, K, V, O,  # [BH, N, d]
    N, scale_log2,
    causal: tl.constexpr, d: tl.constexpr, Br: tl.constexpr, Bc: tl.constexpr,
):  # fmt: skip
    i = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * N * d
    rows, x = i * Br + tl.arange(0, Br), tl.arange(0, d)
    at = head + rows[:, None] * d + x
    q = tl.load(Q + at, mask=rows[:, None] < N, other=0.0)
    m = tl.full([Br], float("-inf"), tl.float32)
    l = tl.zeros([Br], tl.float32)
    o = tl.zeros([Br, d], tl.float32)
    for j in range(0, min(N, (i + 1) * Br) if causal else N, Bc):
        keys = j + tl.arange(0, Bc)
        inside = keys[:, None] < N
        k = tl.load(K + head + keys[:, None] * d + x, mask=inside, other=0.0)
        v = tl.load(V + head + keys[:, None] * d + x, mask=inside, other=0.0)
        s = tl.dot(q, k.T) * scale_log2
        seen = keys < N
        if causal:
            seen = seen & (keys <= rows[:, None])
        s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m - m_new)
        l = l * alpha + tl.sum(p, 1)
        o = tl.dot(p.to(v.dtype), v, o * alpha[:, None])
        m = m_new
    tl.store(O + at, (o / l[:, None]).to(O.dtype.element_ty), mask=rows[:, None] < N)


def forward(q, k, v, causal):  # each [B, H, N, d], contiguous
    B, H, N, d = q.shape
    O = torch.empty_like(q)
    Br, Bc = 128, 64
    flash_fwd_kernel[(triton.cdiv(N, Br), B * H)](
        q, k, v, O, N, d**-0.5 * 1.4426950408889634, causal, d, Br, Bc, num_warps=8, num_stages=2
    )
    return O
