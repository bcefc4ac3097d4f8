"""Draws what each rank of `maintain ring` computed and sent, from the lanes of one run."""

from flash_steps.picture import EDGE, LANE, STRONG, Picture, element

WIDTH, LEFT, RIGHT, HEIGHT, TOP = 1000, 130, 20, 24, 98
KINDS = {  # of spans: colour and words
    "forward": (STRONG[0], "kernels of the forward"),
    "backward": (STRONG[2], "of the backward"),
    "messages": (STRONG[1], "messages to the next rank"),
}


def step_of(total):
    """Milliseconds between ticks: 1, 2 or 5 times a power of ten."""
    step = 0.01
    while total / step > 12:
        step *= 2.5 if f"{step:.0e}"[0] == "2" else 2
    return step


def draw(lanes, device):
    """SVG text. lanes: {"problem", "variant", "ranks": [[span, ...] of each rank]}."""
    ranks = lanes["ranks"]
    total = max(span["end_ms"] for spans in ranks for span in spans)
    scale, step = (WIDTH - LEFT - RIGHT) / total, step_of(total)
    bottom = TOP + len(ranks) * (2 * HEIGHT + 14)
    what = f"One forward and backward of {lanes['variant']} on {len(ranks)} x {device}"
    picture = Picture(what, WIDTH)
    picture.text(20, 52, lanes["problem"])
    for i, (color, words) in enumerate(KINDS.values()):
        picture.box(LEFT + 210 * i, 66, 14, 12, color)
        picture.text(LEFT + 210 * i + 20, 76, words)
    for tick in range(int(total / step) + 1):
        x = LEFT + tick * step * scale
        picture.curve([(x, TOP - 6), (x, bottom)], EDGE)
        words = f"{tick * step:g}{' ms' if tick == 0 else ''}"
        picture.text(x, bottom + 16, words, "middle quiet")
    for rank, spans in enumerate(ranks):
        for i, lane in enumerate(("compute", "messages")):
            y = TOP + rank * (2 * HEIGHT + 14) + i * HEIGHT
            picture.text(LEFT - 8, y + HEIGHT / 2 + 3, f"rank {rank}: {lane}", "end")
            picture.box(LEFT, y, WIDTH - LEFT - RIGHT, HEIGHT - 4, LANE)
            for span in (span for span in spans if span["lane"] == lane):
                kind = lane if lane == "messages" else span["name"].split(",")[0]
                width = max(1.0, (span["end_ms"] - span["begin_ms"]) * scale)
                x = round(LEFT + span["begin_ms"] * scale, 1)
                name = element("title", span["name"])
                picture.box(x, y, round(width, 1), HEIGHT - 4, KINDS[kind][0], inside=name)
    return picture.svg()
