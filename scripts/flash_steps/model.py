"""A GPT with each step as its attention: ./scripts/model COMMAND; COMMAND --help says more.

    predict     time and memory of an update, by formulas; needs no GPU
    train       trains a small GPT on this project's pages: --step 10
    generate    the same, and then a text by step 13's KV cache
    measure     GPT-2 small at N = 512 to 32768, and where memory ends
    draw        docs/pictures/model.svg from docs/results

The others need PyTorch, the built libraries and a Hopper GPU (steps 01 to 06: any).

Exit status: 0 done, 1 something is wrong, 2 bad use, 3 no GPU, PyTorch or library.
"""

import glob
import os
import sys

from . import command
from .command import BadInput, NotHere
from .files import ROOT, write_text
from .gpu_table import find_model
from .model_cost import (
    LATENT,
    PARTS,
    SHAPES,
    attention_ms,
    estimated,
    longest,
    memory,
    rates,
    rest_ms,
    scores_bytes,
    with_attention,
)
from .text import Column, bytes_text, for_screen, percent_text, text_table, three_digits


def sizes(text):
    return [int(word) for word in text.replace(",", " ").split()]


def predict(words):
    parser = command.parser("Predicts an update of a GPT on a GPU, without one.")
    add = parser.add_argument
    add("--model", choices=[*SHAPES, *LATENT], default="gpt2")
    help_text = "or H100, with steps 08 and 10 alone; of a latent model only its memory counts"
    add("--gpu", type=str.upper, default="H200", help=help_text)
    add("--tokens", type=int, default=32768, help="in a batch: B * N; not of a latent model")
    add("--n", type=sizes, default=[512 << i for i in range(7)], metavar="1024,4096")
    options = parser.parse_args(words)
    if min([options.tokens, *options.n]) < 1:
        raise BadInput("sizes must be at least 1")
    uneven = next((n for n in options.n if options.tokens % n), None)
    if uneven:
        said = f"{options.tokens:,} tokens are no multiple of it: choose --tokens"
        raise BadInput(f"--n {uneven}: {said}")
    if options.gpu not in ("H200", "H100"):
        raise BadInput(f"--gpu {options.gpu}: choose H200 or H100")
    if options.model in LATENT:
        return predict_cache(options.model, find_model(options.gpu))
    gpu, known = find_model(options.gpu), rates(options.gpu)
    shape, room = SHAPES[options.model], gpu["memory_bytes"]

    def row(n):
        batch = options.tokens // n
        times = {name: attention_ms(shape, batch, n, name, known) for name in PARTS}
        return dict(n=n, batch=batch, rest=rest_ms(shape, batch, n, gpu), times=times)

    def whole(name, head):
        def text(r):
            ms = r["times"][name]
            return "-" if ms is None else three_digits(r["rest"] + ms, always=True)

        return Column((head, name), text)

    def peak(head, how):
        return Column(head, lambda r: bytes_text(memory(shape, r["batch"], r["n"], how)))

    def share(r):
        return percent_text(r["times"]["10"] / (r["times"]["10"] + r["rest"]))

    columns = [Column(("", "N"), lambda r: str(r["n"]))]
    columns += [Column(("the", "rest"), lambda r: three_digits(r["rest"], always=True))]
    columns += [whole(name, "with" if name == "01" else "") for name in PARTS]
    columns += [Column(("share", "in 10"), share), peak(("memory", "unfused"), "naive")]
    columns += [peak(("", "fused"), "kept"), peak(("", "recomputed"), "recomputed")]
    rows = [row(n) for n in options.n]
    n, batch, times = (rows[-1][key] for key in ("n", "batch", "times"))
    scores, lse = scores_bytes(shape, batch, n), 4 * batch * shape.heads * n
    before, after = times["08"], times["10"]
    update = with_attention(rows[-1]["rest"], before, after)
    ends = [f"{longest(shape, how, room):,} tokens" for how in ("naive", "kept", "recomputed")]
    print(
        f"{options.model} ({shape.layers} layers, {shape.heads} heads of {shape.d}) on "
        f"{gpu['name']},\npredicted for an update of {options.tokens:,} tokens, "
        f"B = {options.tokens:,} / N, in ms:\n\n{text_table(columns, rows)}\n"
    )
    said = (
        f"At N = {n} S and P of a layer are {bytes_text(scores)} in step 01; a fused step writes "
        f"{bytes_text(lse)} of LSE. There step 10's attention is {before / after:.2f}x as fast as "
        f"08's, and the update {update:.2f}x. The longest sequence in {bytes_text(room)}: "
        f"{ends[0]} unfused, {ends[1]} fused, {ends[2]} with the blocks recomputed."
    )
    print(for_screen(said + of_other_rates(options, shape, known)))
    return 0


def predict_cache(name, gpu):
    """Decoding: a token's bytes with a latent cache, and where memory ends, beside other caches."""
    shape, room = LATENT[name], gpu["memory_bytes"]
    caches = shape.caches()
    columns = [
        Column(("a token and", "layer keep"), lambda r: r[0], left=True),
        Column(("", "bytes"), lambda r: f"{r[1]:,}"),
        Column(("", "all layers"), lambda r: bytes_text(shape.layers * r[1])),
        Column(("memory ends", "after tokens"), lambda r: f"{shape.tokens(r[1], room):,}"),
        Column(("", "as many as latent"), lambda r: f"{caches['latent'] / r[1]:.2f}x"),
    ]
    print(
        f"{name} ({shape.layers} layers, {shape.heads} heads) on {gpu['name']},\n"
        f"predicted for decoding, {bytes_text(room)} less {bytes_text(2 * shape.parameters)} of "
        f"parameters in bf16:\n\n{text_table(columns, list(caches.items()))}\n"
    )
    flop = 2 * shape.heads * (2 * shape.latent + shape.rope)
    said = (
        f"Attention to a token is {flop:,} FLOP per layer, {flop / caches['latent']:.1f} per byte; "
        f"above {gpu['bf16_flops'] / gpu['hbm_bytes_per_s']:.0f} this GPU's tensor cores limit it, "
        "not its memory. Activations and workspaces are not counted."
    )
    print(for_screen(said))
    return 0


def of_other_rates(options, shape, known):
    """Sentences about rates that are not for this GPU, or not for this N."""
    said, without = "", {}
    if options.gpu != "H200":
        said += " Step 10's backward, which is 11's, has the rate measured on an H200."
    for name in PARTS:
        there = estimated(shape, name, known)
        missing = ", ".join(str(n) for n in options.n if there and n not in there)
        if missing:
            without.setdefault(missing, []).append(name)
    if without:
        which = "; ".join(f"{' and '.join(v)} at N = {k}" for k, v in without.items())
        said += f" The rate of attention is that of the nearest N with an estimate: {which}."
    return said


def draw(words):
    from lab import model_tables

    command.parser("Draws docs/pictures/model.svg.").parse_args(words)
    found = sorted(glob.glob(os.path.join(ROOT, "docs", "results", "model_*.json")))
    if not found:
        raise BadInput(
            "no docs/results/model_*.json: ./scripts/model measure --json FILE writes one"
        )
    write_text(os.path.join(ROOT, "docs", "pictures", "model.svg"), model_tables.picture(found[-1]))
    return 0


def on_a_gpu(name, words):
    try:
        from lab import model
    except ImportError as error:
        if error.name != "torch":
            raise
        words = "this Python has no PyTorch (2.5 or newer): pip install torch, or name one"
        raise NotHere(f"{words} that has it") from None
    return model.COMMANDS[name](words)


def main():
    words = sys.argv[1:]
    known = [line.split()[0] for line in __doc__.splitlines() if line.startswith("    ")]
    if not words or words[0] in ("-h", "--help"):
        print(command.fitted(__doc__))
        return 0
    if words[0] not in known:
        raise BadInput(f"no command '{words[0]}': the commands are {', '.join(known)}")
    sys.argv[0] = f"model {words[0]}"
    here = {"predict": predict, "draw": draw}.get(words[0])
    return here(words[1:]) if here else on_a_gpu(words[0], words[1:])
