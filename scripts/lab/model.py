"""Trains and measures the GPT of flash_steps/gpt.py on a GPU: ./scripts/model."""

import dataclasses
import datetime
import glob
import os
import statistics
import time

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # avoids fragmentation

import torch
from flash_steps import command
from flash_steps.command import BadInput, NotHere
from flash_steps.commits import here
from flash_steps.files import ROOT, read_json, require_writable, write_rows
from flash_steps.gpt import GPT, attention_of, generate
from flash_steps.model_cost import SHAPES, longest
from flash_steps.torch_operator import _variant
from torch.nn import functional as F

from .model_tables import LABELS, ORDER


def corpus():
    places = ("README.md", "docs/**/*.md", "steps/**/*.md", "common/**/*.md")
    paths = [path for p in places for path in glob.glob(os.path.join(ROOT, p), recursive=True)]
    text = b"".join(open(path, "rb").read() for path in sorted(paths))
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().cuda()


class Stamp(torch.autograd.Function):
    """Passes its tensors through; records one event in the forward, and one in the backward."""

    @staticmethod
    def forward(ctx, events, *tensors):
        ctx.events = events
        events.append(mark())
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx, *gradients):
        ctx.events.append(mark())
        return None, *gradients


def mark():
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class Timed:
    """attend() of a model, with events around attention: start and end, forward and backward."""

    def __init__(self, name):
        self.attention, self.events = attention_of(name), []

    def __call__(self, layer, q, k, v):
        q, k, v = Stamp.apply(self.events, q, k, v)
        return Stamp.apply(self.events, self.attention(q, k, v))

    def ms(self):
        torch.cuda.synchronize()
        pairs = zip(self.events[::2], self.events[1::2])
        found = sum(begin.elapsed_time(end) for begin, end in pairs)
        self.events.clear()
        return found


def update(model, optimizer, attend, tokens):
    """One update on tokens [B, N + 1]: the loss, still on the GPU."""
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(tokens[:, :-1], attend)
    loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def new(shape, recompute=False, seed=1):
    torch.manual_seed(seed)
    with torch.device("cuda"):
        model = GPT(shape, recompute)
    return model, torch.optim.AdamW(model.parameters(), 1e-3, betas=(0.9, 0.95), fused=True)


def train(name, shape, batch, n, updates):
    """The model, and {"losses", "tokens_per_s", "attention" (share of the time), "peak_bytes"}."""
    text, (model, optimizer) = corpus(), new(shape)
    attend, places = Timed(name), torch.Generator().manual_seed(2)
    losses, spent, warm = [], 0.0, min(10, updates // 2)
    torch.cuda.reset_peak_memory_stats()
    for i in range(updates):
        at = torch.randint(len(text) - n - 1, (batch,), generator=places)
        tokens = torch.stack([text[x : x + n + 1] for x in at])
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (i + 1) / 20)
        if i == warm:
            attend.ms()
            begin = time.perf_counter()
        losses.append(update(model, optimizer, attend, tokens))
        if i % 50 == 49:
            spent += attend.ms() if i >= warm else 0
            print(f"{name}: update {i + 1}, loss {losses[-1].item():.4f}", flush=True)
    spent += attend.ms()
    seconds = time.perf_counter() - begin
    found = {"name": name, "losses": [round(x.item(), 4) for x in losses]}
    found["tokens_per_s"] = round(batch * n * (updates - warm) / seconds)
    found["attention"] = round(spent * 1e-3 / seconds, 4)
    found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return model, found


def one_update(name, shape, batch, n, updates):
    """{"ms", "attention_ms", "peak_bytes"} of an update, the median of several after a first."""
    model, optimizer = new(shape)
    tokens = torch.randint(shape.vocabulary, (batch, n + 1), device="cuda")
    attend, times = Timed(name), []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(updates + 1):
        begin = mark()
        update(model, optimizer, attend, tokens)
        end = mark()
        share = attend.ms()
        times.append((begin.elapsed_time(end), share))
    ms, share = sorted(times[1:])[updates // 2]
    return {"ms": ms, "attention_ms": share, "peak_bytes": torch.cuda.max_memory_allocated()}


def alone(name, shape, batch, n, runs=6):
    """Median ms of a layer's attention, forward and backward, with tensors laid out as there."""
    kind = dict(device="cuda", dtype=torch.bfloat16)
    attend = attention_of(name)
    q = torch.randn(batch, shape.heads, n, shape.d, **kind).requires_grad_()
    k = torch.randn(batch, shape.kv_heads, n, shape.d, **kind).requires_grad_()
    apart = torch.randn(batch, n, shape.heads + 2 * shape.kv_heads, shape.d, **kind)
    v = apart[:, :, -shape.kv_heads :].transpose(1, 2).requires_grad_()
    do = torch.randn(batch, n, shape.heads, shape.d, **kind).transpose(1, 2)

    def run():
        with torch.autocast("cuda", torch.bfloat16):
            o = attend(q, k, v)
        torch.autograd.grad(o, (q, k, v), do.to(o.dtype))

    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.5:  # until the GPU's clock is at its working rate
        run()
        torch.cuda.synchronize()
    torch.cuda._sleep(4_000_000 * runs)  # while the host queues all of them
    marks = [mark()]
    for _ in range(runs):
        run()
        marks.append(mark())
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in zip(marks, marks[1:]))


# --- commands -------------------------------------------------------------------------------------


def options_of(words, doc, *more):
    parser = command.parser(doc)
    parser.add_argument("--step", default="10", help="or 'flash', 'cudnn': PyTorch's; 'unfused'")
    parser.add_argument("--json", metavar="FILE", help="adds to the results in it")
    for flag, value in more:
        parser.add_argument(flag, type=type(value), default=value, help=f"default: {value}")
    options = parser.parse_args(words)
    if not torch.cuda.is_available():
        raise NotHere("PyTorch finds no CUDA GPU")
    if options.json:
        require_writable("--json", options.json)
    return options


def keep(options, what, row):
    words = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items() if k != "losses"}
    print(what, *(f"{k} {v}" for k, v in words.items()), flush=True)
    if not options.json:
        return
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    tree = {"schema": 1, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
    tree |= {"run": now, "rows": []}
    if os.path.exists(options.json):
        tree = read_json(options.json)
    step = None if row["name"] in LABELS else _variant(row["name"])[0].step
    tree["rows"].append({"what": what, "step": step, "commit": step and here(), **row})
    write_rows(options.json, tree)


def train_command(words, tokens=0):
    options = options_of(
        words,
        "Trains a GPT of 17 million parameters on this project's pages; then writes --tokens more\n"
        "bytes after --prompt, by step 13 from a KV cache.",
        *(("--updates", 300), ("--batch", 16), ("--n", 512)),
        *(("--tokens", tokens), ("--prompt", "# The online softmax"), ("--temperature", 0.7)),
    )
    if min(options.batch, options.n, options.updates - 1) < 1 or not options.prompt:
        raise BadInput("sizes must be at least 1, updates at least 2")
    shape = SHAPES["small"]
    model, found = train(options.step, shape, options.batch, options.n, options.updates)
    keep(options, "training", found)
    if options.tokens > 0:
        prompt = torch.tensor([list(options.prompt.encode())], device="cuda")
        text = generate(model, prompt, options.tokens, options.step, options.temperature)[0]
        print(bytes(text.tolist()).decode(errors="replace"))
    return 0


def generate_command(words):
    return train_command(words, 400)


MOST = {"06": 8192, "01": 2048, "unfused": 1024}  # the largest N


def ends_of(name, shape, recompute, room):
    """The largest N of one sequence, in steps of 1%, starting at the predicted one."""
    how = "naive" if name == "unfused" else "recomputed" if recompute else "kept"
    predicted = longest(shape, how, room)

    def fits(share):
        tokens = torch.zeros(1, predicted * share // 100 + 1, dtype=torch.long, device="cuda")
        try:
            model, optimizer = new(shape, recompute)
            for size in (65, None):  # the optimizer's memory first
                update(model, optimizer, Timed(name), tokens[:, :size])
            torch.cuda.synchronize()
            return True
        except RuntimeError as error:  # from PyTorch or a library
            if "memory" not in str(error) and "allocate" not in str(error):
                raise
            return False
        finally:
            model = optimizer = tokens = None
            torch.cuda.empty_cache()

    share, up = 100, fits(100)
    while 70 < share < 130 and fits(share + (1 if up else -1)) == up:
        share += 1 if up else -1
    found = predicted * (share if up else share - 1) // 100
    return {"name": name, "how": how, "predicted": predicted, "found": found}


def measure_command(words):
    more = ("--model", "gpt2"), ("--tokens", 32768), ("--updates", 5)
    options = options_of(
        words, "Measures updates at N = 512 to 32768, and where memory ends.", *more
    )
    if options.model not in SHAPES:
        raise BadInput(f"--model {options.model}: {', '.join(SHAPES)}")
    wide = dataclasses.replace(SHAPES["llama-like"], vocabulary=256)
    # An update that fills the card with the inputs of recomputed blocks would take minutes.
    cases = ("unfused", False, 1e12), ("10", False, 1e12), ("10", True, 25e9)
    for name, recompute, most in cases:
        free = torch.cuda.mem_get_info()[0]
        room = int(min(free, most))
        taken = torch.empty(free - room, dtype=torch.uint8, device="cuda")
        keep(options, "ends", {**ends_of(name, wide, recompute, room), "room_bytes": room})
        del taken
    shape = dataclasses.replace(SHAPES[options.model], vocabulary=256)
    for n in [512 << i for i in range(7)]:
        for name in ORDER[::-1]:
            if n <= MOST.get(name, n):
                batch, once = max(1, options.tokens // n), name == "01"
                row = one_update(name, shape, batch, n, 1 if once else options.updates)
                row["alone_ms"] = shape.layers * alone(name, shape, batch, n, 1 if once else 6)
                keep(options, "updates", {"name": name, "n": n, "batch": batch, **row})
    return 0


COMMANDS = {"train": train_command, "generate": generate_command, "measure": measure_command}
