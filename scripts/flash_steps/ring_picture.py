"""Draws what each rank of `maintain ring` computed and sent, from the lanes of one run."""

WIDTH, LEFT, RIGHT, LANE, TOP = 1000, 130, 20, 24, 62
COLOURS = {"forward": "#3b6fb6", "backward": "#2a9d6f", "messages": "#d98a29"}
LEGEND = (
    ("forward", "kernels of the forward"),
    ("backward", "of the backward"),
    ("messages", "messages to the next rank"),
)


def kind_of(span):
    return "messages" if span["lane"] == "messages" else span["name"].split(",")[0]


def step_of(total):
    """Milliseconds between two ticks: 1, 2 or 5 times a power of ten."""
    step = 0.01
    while total / step > 12:
        step *= 2.5 if f"{step:.0e}"[0] == "2" else 2
    return step


def draw(lanes, device):
    """SVG text. lanes: {"problem", "variant", "ranks": [[span, ...] of each rank]}."""
    ranks = lanes["ranks"]
    total = max(span["end_ms"] for spans in ranks for span in spans)
    scale = (WIDTH - LEFT - RIGHT) / total
    bottom = TOP + len(ranks) * (2 * LANE + 14)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 28}" '
        f'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{bottom + 28}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">One forward and backward of {lanes["variant"]} on '
        f"{len(ranks)} x {device}: {lanes['problem']}</text>",
    ]
    x = LEFT
    for kind, words in LEGEND:
        out.append(f'<rect x="{x}" y="32" width="14" height="12" fill="{COLOURS[kind]}"/>')
        out.append(f'<text x="{x + 20}" y="42">{words}</text>')
        x += 210
    step = step_of(total)
    for tick in range(int(total / step) + 1):
        x = LEFT + tick * step * scale
        out.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="#cccccc" '
            f'stroke-width="0.5"/>'
        )
        out.append(
            f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#555555">'
            f"{tick * step:g}{' ms' if tick == 0 else ''}</text>"
        )
    for rank, spans in enumerate(ranks):
        for i, lane in enumerate(("compute", "messages")):
            y = TOP + rank * (2 * LANE + 14) + i * LANE
            out.append(
                f'<text x="{LEFT - 8}" y="{y + LANE / 2 + 3:.0f}" text-anchor="end">'
                f"rank {rank}: {lane}</text>"
            )
            out.append(
                f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - RIGHT}" height="{LANE - 4}" '
                f'fill="#f3f3f3"/>'
            )
            for span in spans:
                if span["lane"] != lane:
                    continue
                width = max(1.0, (span["end_ms"] - span["begin_ms"]) * scale)
                out.append(
                    f'<rect x="{LEFT + span["begin_ms"] * scale:.1f}" y="{y}" width="{width:.1f}" '
                    f'height="{LANE - 4}" fill="{COLOURS[kind_of(span)]}" stroke="white" '
                    f'stroke-width="0.5"><title>{span["name"]}</title></rect>'
                )
    return "\n".join([*out, "</svg>"]) + "\n"
