"""A GPT in plain PyTorch whose attention is chosen by name: a step, or one of PyTorch's own."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from .torch_operator import attention

BACKENDS = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


def unfused(q, k, v):
    """Textbook attention: S and P are tensors, and autograd keeps P."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    s = (q * q.shape[3] ** -0.5) @ k.transpose(2, 3)
    hidden = torch.ones(s.shape[2:], dtype=torch.bool, device=q.device).triu(1)
    return s.masked_fill(hidden, float("-inf")).softmax(-1).to(v.dtype) @ v


def attention_of(name):
    """A function of q, k, v: "10", "unfused", or a backend of scaled_dot_product_attention."""
    if name == "unfused":
        return unfused
    if name not in BACKENDS:
        return lambda q, k, v: attention(q, k, v, causal=True, step=name)
    backend = getattr(SDPBackend, BACKENDS[name])

    def sdpa(q, k, v):
        with sdpa_kernel([backend]):
            groups = q.shape[1] != k.shape[1]
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=groups)

    return sdpa


def rotated(x, cos, sin):
    """RoPE of x [B, heads, N, d]; cos, sin [N, d/2]."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        width = shape.width
        self.shape = shape
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, width + 2 * shape.kv_heads * shape.d, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x, cos, sin, attend):
        shape = self.shape
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (-1, shape.d)).transpose(1, 2)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)  # [B, heads, N, d]
        o = attend(rotated(q, cos, sin), rotated(k, cos, sin), v)
        x = x + self.out(o.to(v.dtype).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, shape, recompute=False):
        super().__init__()
        self.shape, self.recompute = shape, recompute
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, attend, start=0):
        """Logits [B, N, vocabulary]. attend(layer, q, k, v); tokens [B, N] begin at `start`."""
        half = self.shape.d // 2
        kind = dict(device=tokens.device, dtype=torch.float32)
        speed = 10000 ** (-torch.arange(half, **kind) / half)
        angle = torch.arange(start, start + tokens.shape[1], **kind)[:, None] * speed
        cos, sin = (f(angle).to(torch.bfloat16) for f in (torch.cos, torch.sin))
        x = self.embed(tokens)
        for i, block in enumerate(self.blocks):

            def of_layer(q, k, v, i=i):
                return attend(i, q, k, v)

            if self.recompute:
                x = checkpoint(block, x, cos, sin, of_layer, use_reentrant=False)
            else:
                x = block(x, cos, sin, of_layer)
        return self.head(self.norm(x))


@torch.no_grad()
def generate(model, prompt, count, step="10", temperature=0.0):
    """[B, N + count] tokens: the prompt [B, N] by `step`, the rest by step 13 from a KV cache."""
    shape, (batch, n) = model.shape, prompt.shape
    most = n + count
    size = shape.layers, batch, shape.kv_heads, most, shape.d
    keys, values = torch.zeros(2, *size, device=prompt.device, dtype=torch.bfloat16)
    tokens, new = prompt, prompt
    for _ in range(count):
        start = tokens.shape[1] - new.shape[1]
        length = tokens.shape[1]

        def attend(layer, q, k, v):
            keys[layer, :, :, start:length], values[layer, :, :, start:length] = k, v
            if start == 0:
                return attention_of(step)(q, k, v)
            lengths = [length] * batch
            return attention(q, keys[layer], values[layer], True, "13", lengths=lengths)

        with torch.autocast("cuda", torch.bfloat16):
            logits = model(new, attend, start)[:, -1].float()
        if temperature:
            new = torch.multinomial(torch.softmax(logits / temperature, -1), 1)
        else:
            new = logits.argmax(-1, keepdim=True)
        tokens = torch.cat((tokens, new), 1)
    return tokens
