"""A step as the attention of a PyTorch model: flash_steps.attention(), and latent_decode().

PyTorch sees the operators flash_steps::forward, flash_steps::backward and
flash_steps::latent_decode: torch.compile does not trace into them, and they run on the current
stream. The step's library (step_library.py) reads and writes the tensors' memory directly.
"""

import functools
import math
import os
import threading

import torch

from .files import ROOT
from .step_library import TILE, Refused, StepLibrary
from .steps import find_libraries

# The variant whose backward continues a forward, if not the step's own. Steps 01 to 03 write no
# LSE: the backward of 05 standard recomputes P, one layer at a time.
BACKWARD = {"01": "05 standard", "02": "05 standard", "03": "05 standard", "04": "05"}
BACKWARD |= {"07": "08", "09": "11", "10": "11"}
LATENT, LATENT_D, LATENT_DV = "17", 576, 512  # the step, features of a key and of its value
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_lock = threading.RLock()  # a library serves one thread at a time; autograd has its own threads
_streams = {}  # by variant's last run: the next run uses the same workspace


def attention(q, k, v, causal=False, step=None, lengths=None, tiles=None):
    """softmax(q k^T / sqrt(d)) v by a step's kernels, with gradients: [B, H, N, d] like q.

    q: [B, H, N, d]; k, v: [B, Hkv, Nk, d] on GPU 0, with any strides; H is a multiple of Hkv.
    `causal`: the last query sees all keys, even where N != Nk (PyTorch's mask begins at the first
    key instead). `step`: its number, for its last variant, or "11 columns" for another; 10 by
    default. Steps 01 to 06 read fp32, the others bf16; under torch.autocast the inputs are
    converted. `lengths`, only for step 13: a list with the number of keys of each batch entry.
    `tiles`, only for "15 wgmma_lists" (their default) and "15 lists": a bool tensor
    [rows, keys], [H, rows, keys] or [B, H, rows, keys] of the tiles of 128 rows and 128 keys that
    are seen. A row that sees no key has an output of 0. Where heads that share keys have different
    tiles, K and V are repeated. The host makes new tables for tiles other than the last call's, and
    waits for tiles on the GPU. There is no dropout and no other mask or scale. A ValueError says
    what a step does not support.
    """
    if step is None:
        step = "10" if tiles is None else "15 wgmma_lists"
    step = str(step).zfill(2)
    dtype, grouped = _reads(step)
    if torch.is_autocast_enabled(q.device.type):
        q, k, v = (x.to(TYPES[dtype]) for x in (q, k, v))
    if not grouped and k.shape[1] != q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    # Here, so that autograd keeps these tensors and not those that they are views of.
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    return _forward(q, k, v, causal, step, lengths, tiles)[0]


def latent_decode(q, cache, lengths=None, pages=None):
    """Decodes with latent attention (MLA) by step 17's kernels: [B, H, N, 512], without gradients.

    q: [B, H, N, 576], after W_UK: the last of N <= 16 queries sees all keys, and the first of them
    N - 1 fewer. cache: [B, Nk, 576], or with `pages` a pool [P, page, 576], contiguous; a key's
    first 512 features are its value. pages: int32 [B, columns], where each batch entry's pages of
    64 keys or more, a power of two, are in the pool. `lengths`: a list with the keys of each batch
    entry; all by default. The scale is 1 / sqrt(576): multiply q by what a model has more. All are
    bf16 on GPU 0. A ValueError says what is not supported.
    """
    return _latent_decode(q.contiguous(), cache, lengths, pages)


# --- libraries ------------------------------------------------------------------------------------

INSTALLED = os.path.join(os.path.dirname(__file__), "lib")  # of a package


def _folder():
    return INSTALLED if os.path.isdir(INSTALLED) else os.path.join(ROOT, "build", "gpu")


@functools.cache
def _library(step):
    folder = _folder()
    known = find_libraries(folder)
    names = [name for name in known if name == step or name[:3] == step + "_"]
    if not names:
        there = f"no step '{step}' in {folder}, which has {', '.join(known) or 'none'}"
        build = "cmake --preset gpu && cmake --build --preset gpu"
        if folder == INSTALLED:
            steps = " ".join([*(name[:2] for name in known), step])
            build = f'STEPS="{steps}" pip install . in the checkout'
        raise ValueError(f"flash_steps: {there}: {build}")
    return StepLibrary(os.path.join(folder, "steps", f"lib{names[0]}.so"))


@functools.cache
def _variant(step):
    """The library of "10" or "11 columns", the variant's index and its description."""
    step, _, name = step.zfill(2).partition(" ")
    library = _library(step)
    places = {v["name"]: i for i, v in enumerate(library.variants) if not v["cache8"]}
    if name and name not in places:
        said = f"step {step} has no variant '{name}': {', '.join(places)}"
        raise ValueError(f"flash_steps.attention: {said}")
    place = places[name] if name else max(places.values())
    return library, place, library.variants[place]


@torch.compiler.assume_constant_result
def _reads(step):
    variant = _variant(step)[2]
    return variant["dtype"], variant["supports"]["gqa"]


# --- runs -----------------------------------------------------------------------------------------


def _ready(x):
    """A tensor for the libraries: contiguous, aligned to 16 bytes."""
    x = x.contiguous()
    return x.clone() if x.data_ptr() % 16 else x


def _require(step, q, k, v):
    dtype = _variant(step)[2]["dtype"]
    for name, x in (("q", q), ("k", k), ("v", v)):
        said = None
        if x.dim() != 4:
            said = f"has {x.dim()} dimensions: [B, H, N, d] are needed"
        elif x.dtype != TYPES[dtype]:
            said = f"is {str(x.dtype)[6:]}, the step reads {dtype}: convert it, or use autocast"
        elif x.device != q.device or x.device.index not in (0, None):
            said = f"is on {x.device}: all must be on GPU 0"
        elif x.device.type != ("cuda" if _variant(step)[0].kind == "gpu" else "cpu"):
            said = f"is on {x.device}: the steps run on a CUDA GPU"
        if said:
            raise ValueError(f"flash_steps.attention, step {step}: {name} {said}")
    b, h, _, d = q.shape
    if k.shape != v.shape or k.shape[0] != b or k.shape[3] != d or h % max(1, k.shape[1]):
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ValueError(f"flash_steps.attention, step {step}: q, k, v do not fit: {shapes}")


def _tiles_of(q, k, tiles):
    """The tiles on the host, where StepLibrary reads them; None without tiles."""
    if tiles is None:
        return None
    (b, h, n, _), nk = q.shape, k.shape[2]
    last = (-(-n // TILE), -(-nk // TILE))
    shapes = one, of_h, of_all = last, (h, *last), (b, h, *last)
    if tiles.dtype != torch.bool or tuple(tiles.shape) not in shapes:
        given = f"torch.bool of shape {one}, {of_h} or {of_all}, not {tiles.dtype} of"
        raise ValueError(f"flash_steps.attention: tiles must be {given} {tuple(tiles.shape)}")
    return tiles.cpu().contiguous()


def _differ(tiles, group):
    """Do heads that share keys have different tiles? A step has one list for all of them."""
    if tiles is None or tiles.dim() == 2 or group == 1:
        return False
    heads = tiles.unflatten(-3, (-1, group))
    return not (heads == heads[..., :1, :, :]).all().item()


def _require_latent(q, cache, pages):
    said, d = None, LATENT_D
    if q.dim() != 4 or q.shape[3] != d:
        said = f"q {tuple(q.shape)}: [B, H, N, {d}] is needed"
    elif cache.dim() != 3 or cache.shape[2] != d or not cache.is_contiguous():
        said = f"cache {tuple(cache.shape)}: [B, Nk, {d}] or [pages, page, {d}], contiguous"
    elif pages is None and cache.shape[0] != q.shape[0]:
        said = f"cache {tuple(cache.shape)}: {q.shape[0]} batch entries are needed, or pages"
    elif pages is not None and (
        pages.dim() != 2 or pages.shape[0] != q.shape[0] or pages.dtype != torch.int32
    ):
        said = f"pages {tuple(pages.shape)}: int32 [{q.shape[0]}, columns] is needed"
    elif q.dtype != torch.bfloat16 or cache.dtype != torch.bfloat16:
        said = f"q is {str(q.dtype)[6:]} and cache {str(cache.dtype)[6:]}, the step reads bf16"
    elif cache.data_ptr() % 16:
        said = "cache begins at an address that is not a multiple of 16"
    else:
        kind = "cuda" if _variant(LATENT)[0].kind == "gpu" else "cpu"
        for x in (q, cache, *([] if pages is None else [pages])):
            if x.device.type != kind or x.device.index not in (0, None):
                said = f"a tensor is on {x.device}: all must be on GPU 0"
    if said:
        raise ValueError(f"flash_steps.latent_decode: {said}")


def _run(direction, step, causal, lengths=None, cache=None, tiles=None, **tensors):
    """`cache`: sizes that a latent cache has and its tensor's shape does not tell."""
    library, place, _ = _variant(step)
    q, k = tensors["Q"], tensors["K"]
    (b, h, n, d), hkv, nk = q.shape, k.shape[1], k.shape[2]
    sizes = dict(b=b, h=h, hkv=hkv, n=n, nk=nk, d=d, causal=causal, lengths=lengths)
    sizes |= cache or {}
    if tiles is not None:
        sizes["tiles"] = math.prod(tiles.shape[:-2]), tiles.data_ptr()
    stream = torch.cuda.current_stream(q.device) if q.is_cuda else None
    before = _streams.setdefault((library, place), stream)
    if before != stream and not torch.cuda.is_current_stream_capturing():  # into a CUDA graph
        stream.wait_stream(before)
        _streams[library, place] = stream
    addresses = {name: x.data_ptr() for name, x in tensors.items()}
    run = library.runner(direction, place, sizes, addresses, stream and stream.cuda_stream)
    try:
        try:
            run()
        except Refused as error:
            if error.status != 3:
                raise
            torch.cuda.empty_cache()  # the workspace is outside PyTorch's cache
            run()
    except Refused as error:
        kind = ValueError if error.status == 2 else RuntimeError
        if "the device cannot allocate" in str(error):
            kind = torch.OutOfMemoryError
        raise kind(f"flash_steps, step {step}: {error}") from None


# --- operators ------------------------------------------------------------------------------------


def _operator(name, more, returned):
    """Not by custom_op(), whose checks cost the host as much as the rest of a call."""
    types = ", ".join(["Tensor"] * returned)
    schema = f"(Tensor q, Tensor k, Tensor v, {more}) -> ({types})"
    torch.library.define(f"flash_steps::{name}", schema, tags=(torch.Tag.pt2_compliant_tag,))
    return getattr(torch.ops.flash_steps, name).default


_forward = _operator("forward", "bool causal, str step, int[]? lengths, Tensor? tiles", 2)
_backward = _operator(
    "backward", "Tensor o, Tensor lse, Tensor do, Tensor? tiles, bool causal, str step", 3
)


@torch.library.impl("flash_steps::forward", "default")
def _(q, k, v, causal, step, lengths, tiles):
    _require(step, q, k, v)
    tiles, group = _tiles_of(q, k, tiles), q.shape[1] // k.shape[1]
    if _differ(tiles, group):
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    q, k, v = map(_ready, (q, k, v))
    o, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    if not _variant(step)[2]["writes_lse"]:
        lse.zero_()
    with _lock:
        if _variant(step)[2]["prepare"]:
            _run("prepare", step, causal, Q=q, K=k, V=v)
        _run("forward", step, causal, lengths, tiles=tiles, Q=q, K=k, V=v, O=o, LSE=lse)
    return o, lse


@torch.library.register_fake("flash_steps::forward")
def _(q, k, v, causal, step, lengths, tiles):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.impl("flash_steps::backward", "default")
def _(q, k, v, o, lse, do, tiles, causal, step):
    step = step if _variant(step)[2]["backward"] else BACKWARD.get(step[:2], step)
    if not _variant(step)[2]["backward"]:
        raise ValueError(f"flash_steps.attention: step {step} has no backward")
    tiles, (hkv, group) = _tiles_of(q, k, tiles), (k.shape[1], q.shape[1] // k.shape[1])
    if _differ(tiles, group):
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    q, k, v, do = map(_ready, (q, k, v, do))
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    with _lock:
        if not _variant(step)[2]["writes_lse"]:  # it keeps P
            o = torch.empty_like(o)
            _run("forward", step, causal, Q=q, K=k, V=v, O=o)
        tensors = dict(Q=q, K=k, V=v, O=o, LSE=lse, dO=do, dQ=dq, dK=dk, dV=dv)
        _run("backward", step, causal, tiles=tiles, **tensors)
    if k.shape[1] != hkv:
        dk, dv = (x.unflatten(1, (hkv, group)).float().sum(2).to(x.dtype) for x in (dk, dv))
    return dq, dk, dv


@torch.library.register_fake("flash_steps::backward")
def _(q, k, v, o, lse, do, tiles, causal, step):
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


torch.library.define(
    "flash_steps::latent_decode",
    "(Tensor q, Tensor cache, int[]? lengths, Tensor? pages) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_latent_decode = torch.ops.flash_steps.latent_decode.default


@torch.library.impl("flash_steps::latent_decode", "default")
def _(q, cache, lengths, pages):
    _require_latent(q, cache, pages)
    q, (b, h, n, _) = _ready(q), q.shape
    o, lse = q.new_empty((b, h, n, LATENT_DV)), q.new_empty((b, h, n), dtype=torch.float32)
    page = 0 if pages is None else cache.shape[1]
    sizes = {"hkv": 1, "nk": cache.shape[1] if pages is None else pages.shape[1] * page}
    table = {} if pages is None else {"table": pages.contiguous()}
    with _lock:
        more = dict(lengths=lengths, cache={**sizes, "page": page})
        _run("forward", LATENT, True, Q=q, K=cache, O=o, LSE=lse, **table, **more)
    return o


@torch.library.register_fake("flash_steps::latent_decode")
def _(q, cache, lengths, pages):
    return q.new_empty((*q.shape[:3], LATENT_DV))


def _keep(ctx, inputs, output):
    ctx.causal, ctx.step, _, tiles = inputs[3:]
    ctx.save_for_backward(*inputs[:3], *output, tiles)


def _gradients(ctx, do, _):
    *tensors, tiles = ctx.saved_tensors
    return *_backward(*tensors, do, tiles, ctx.causal, ctx.step), *[None] * 4


torch.library.register_autograd("flash_steps::forward", _gradients, setup_context=_keep)
