"""The drawings at the beginning of chapters: one idea each. `maintain plots` writes them."""

from .picture import CELLS, INK, LANE, Picture

BLUE, ORANGE, GREEN, PURPLE = CELLS[:4]
TILE = 46


def strip(picture, x, y, size, count, chosen=(), down=False, fill=BLUE):
    """A row or a column of tiles; the chosen ones are filled."""
    width, height = size
    for i in range(count):
        left, top = (x, y + i * height) if down else (x + i * width, y)
        picture.box(left, top, width, height, fill if i in chosen else LANE, "edge")


def naive():
    picture = Picture("Three kernels, and N × N elements between them", 760)
    picture.box(20, 50, 720, 70, LANE, "edge")
    picture.box(20, 170, 720, 150, LANE, "edge")
    picture.text(32, 70, "chip", "bold")
    picture.text(32, 190, "HBM", "bold")
    for x, name in ((190, "scores"), (390, "softmax"), (590, "output")):
        picture.box(x - 50, 66, 100, 38, GREEN, "edge")
        picture.text(x, 89, f"{name}_kernel", "middle")
    for x, name in ((84, "Q"), (110, "K"), (560, "V"), (680, "O")):
        picture.box(x, 200, 18, 84, BLUE, "edge")
        picture.text(x + 9, 246, name, "middle bold")
    for x, name, often in ((244, "S", "3"), (444, "P", "d")):
        picture.box(x, 200, 84, 84, ORANGE, "edge")
        picture.text(x + 42, 246, name, "middle bold")
        picture.text(x + 42, 304, f"N × N: read {often} times", "middle small")
    for x in (106, 569, 689):
        picture.text(x, 304, "N × d", "middle small")
    for start, end in (
        ((112, 196), (160, 108)),
        ((220, 108), (272, 196)),
        ((300, 196), (360, 108)),
        ((420, 108), (472, 196)),
        ((500, 196), (560, 108)),
        ((569, 196), (590, 108)),
        ((620, 108), (684, 196)),
    ):
        picture.arrow(*start, *end)
    return picture


def online():
    picture = Picture("One pass over a row of S, a slice of keys at a time", 760)
    for i, (words, fill) in enumerate((("done", BLUE), ("now", ORANGE), ("", LANE), ("", LANE))):
        picture.box(84 + 160 * i, 56, 160, 40, fill, "edge")
        picture.text(164 + 160 * i, 81, words, "middle bold")
    picture.text(74, 81, "S, a row", "end")
    picture.text(164, 118, "m, l, O stand for these keys", "middle")
    picture.text(324, 118, "32 scores s", "middle")
    picture.arrow(164, 128, 164, 160)
    picture.arrow(324, 128, 324, 160)
    picture.box(84, 166, 320, 138, LANE, "edge")
    lines = (
        ("m′ = max(m, largest s)", "the maximum so far"),
        ("p = exp(s − m′)", "the slice, relative to m′"),
        ("alpha = exp(m − m′)", "moves what is done to m′"),
        ("l′ = alpha · l + sum of p", ""),
        ("O′ = alpha · O + p V", ""),
    )
    for i, (formula, words) in enumerate(lines):
        picture.text(100, 190 + 24 * i, formula, "bold")
        picture.text(420, 190 + 24 * i, words, "quiet")
    picture.arrow(244, 308, 244, 334)
    picture.text(244, 352, "m′, l′, O′ stand for both; at the end of the row: O / l", "middle")
    return picture


def fused():
    picture = Picture("A tile of S lives on chip; O travels", 760)
    left, top = 130, 126
    picture.text(left - 10, 80, "K_j, V_j", "end bold")
    strip(picture, left, 58, (TILE, 36), 4, {1})
    picture.text(73, top - 10, "Q_i", "middle bold")
    strip(picture, 50, top, (TILE, TILE), 4, {2}, down=True)
    for i in range(4):
        strip(picture, left, top + i * TILE, (TILE, TILE), 4, {1} if i == 2 else (), fill=GREEN)
    picture.text(left + 1.5 * TILE, top + 2.5 * TILE + 4, "S, P", "middle bold")
    picture.text(367, top - 10, "O_i, m_i, l_i", "middle bold")
    strip(picture, 344, top, (TILE, TILE), 4, {2}, down=True, fill=ORANGE)
    picture.arrow(392, top + 2.4 * TILE, 440, top + 2.4 * TILE)
    picture.arrow(440, top + 2.7 * TILE, 392, top + 2.7 * TILE)
    picture.text(448, top + 2.5 * TILE + 4, "HBM, once per tile of keys")
    picture.text(448, 80, "outer loop over j: K_j and V_j are loaded once")
    picture.text(448, top + 14, "inner loop over i: read Q_i, O_i, m_i, l_i;")
    picture.text(448, top + 32, "the tile of S and P exists in registers and")
    picture.text(448, top + 50, "shared memory only; write O_i, m_i, l_i back")
    return picture


def order_of_visits(picture, left, names, number):
    """4 x 4 tiles of S, and when each is visited."""
    top = 112
    for c in range(4):
        picture.text(left + (c + 0.5) * TILE, top - 8, f"K_{c}", "middle quiet")
    for r in range(4):
        picture.text(left - 8, top + (r + 0.5) * TILE + 4, f"Q_{r}", "end quiet")
        strip(picture, left, top + r * TILE, (TILE, TILE), 4, range(4), fill=names[r])
        row = [(left + (c + 0.5) * TILE, str(number(r, c))) for c in range(4)]
        picture.texts(top + (r + 0.5) * TILE + 4, row, "middle bold")


def swapped():
    picture = Picture("The loops change places: O stays where it is summed", 760)
    picture.text(58, 66, "step 04: one block, j outside, i inside", "bold")
    picture.text(428, 66, "step 06: block i, j inside", "bold")
    order_of_visits(picture, 58, [BLUE] * 4, lambda r, c: 4 * c + r + 1)
    order_of_visits(picture, 428, CELLS[:4], lambda r, c: c + 1)
    for i, words in enumerate(("O, m, l come", "from HBM and", "go back at", "each visit")):
        picture.text(254, 160 + 18 * i, words)
    for i in range(4):
        picture.text(624, 139 + TILE * i, f"block {i}: O_{i}, m, l", "")
    picture.text(58, 320, "16 visits: O is read and written 4 times")
    picture.text(428, 320, "in registers to the end of the row; O is written once")
    return picture


def aligned_sum():
    """1,000 or 16,000 and 0.875 * 0.8125 as binary digits, and which of them wgmma adds."""
    picture = Picture("A sum of e4m3 products keeps 13 digits after the leading one", 760)
    size, left, highest = 24, 176, 13

    def digits(y, number, name, lowest):
        picture.text(left - 12, y + 17, name, "end bold")
        for power in range(highest, -8, -1):
            digit = int(number / 2**power) % 2
            if number < 2**power and power > 0:
                continue
            fill = LANE if power < lowest else BLUE
            x = left + size * (highest - power)
            picture.box(x, y, size, size, fill, "edge")
            look = "middle quiet" if power < lowest else "middle bold"
            picture.text(x + size / 2, y + 17, str(digit), look)

    for y, total, lowest, words in (
        (84, 1000, -4, "u = 2^-4: p adds 11 u = 0.6875, and its last digits are cut off"),
        (204, 16000, 0, "u = 1: all of p is cut off, and the sum stays at 16,000"),
    ):
        digits(y, total, f"C = {total:,}", lowest)
        digits(y + 36, 0.875 * 0.8125, "p = 0.7109375", lowest)
        picture.text(left, y + 84, words)
        edge = left + size * (highest - lowest + 1)
        picture.box(edge - 1, y - 6, 2, 72, INK)
    for power in (13, 9, 0, -4, -7):
        x = left + size * (highest - power + 0.5)
        picture.text(x, 70, f"2^{power}", "middle quiet small")
    return picture


def decode():
    picture = Picture("One query, 65,536 keys: splits, tiles, and two merges", 760)
    for i, words in enumerate(("split 0", "split 1", "…", "split 15")):
        picture.box(40 + 170 * i, 56, 170, 34, BLUE if i == 0 else LANE, "edge")
        picture.text(125 + 170 * i, 78, words, "middle bold")
    picture.text(40, 110, "a block each: 4,096 keys of K and V", "quiet")
    picture.arrow(125, 118, 125, 144)
    for i in range(10):
        picture.box(40 + 40 * i, 150, 40, 34, CELLS[i % 4], "edge")
    picture.texts(172, [(60 + 40 * i, f"w{i % 4}") for i in range(10)], "middle bold")
    picture.text(452, 164, "tiles of 16 keys; four warps take turns,")
    picture.text(452, 182, "each with all rows of Q and its own O, m, l")
    for i in range(4):
        picture.arrow(60 + 40 * i, 188, 100 + 14 * i, 218)
    picture.text(222, 210, "merge_warps, in shared memory")
    for i, words in enumerate(("part 0: O, LSE", "part 1", "…", "part 15")):
        picture.box(40 + 170 * i, 222, 170, 34, LANE if i else GREEN, "edge")
        picture.text(125 + 170 * i, 244, words, "middle bold")
        picture.arrow(125 + 170 * i, 260, 320 + 40 * i, 306)
    picture.text(40, 300, "in device memory, fp32", "quiet")
    picture.box(270, 310, 220, 34, ORANGE, "edge")
    picture.text(380, 332, "O, LSE", "middle bold")
    picture.text(502, 332, "SplitParts::merge, by the last block")
    return picture


def drawings():
    """{name of a file: its SVG}"""
    pictures = {
        "01_naive": naive(),
        "03_online_softmax": online(),
        "04_fused": fused(),
        "06_work_partitioning": swapped(),
        "12_fp8": aligned_sum(),
        "13_decode": decode(),
    }
    return {f"{name}.svg": picture.svg() for name, picture in pictures.items()}
