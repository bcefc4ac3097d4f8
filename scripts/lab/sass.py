"""The loops of machine code printed by nvdisasm -c: what a warp executes per iteration."""

import collections
import re
import subprocess

LINE = re.compile(r"^(?:(\.L_x_\d+):|\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;)", re.MULTILINE)
BRANCH = re.compile(r"^(@\S+\s+)?BRA\S*\s+(.*?)`\((\.L_x_\d+)\)")
# The pipes as ncu names them; an operation on two numbers at once counts twice.
PIPES = {
    "fma": r"FFMA|FMUL|FADD|IMAD|HFMA|HMUL|HADD",
    "alu": r"FMNMX|FSEL|FSETP|F2FP|LOP3|PLOP3|IADD|VIADD|VIMNMX|IMNMX|ISETP|SEL|SHF|LEA|PRMT|MOV\b",
    "special": r"MUFU|F2I|I2F|POPC|FLO",
}
PACKED = re.compile(r"F(FMA|MUL|ADD)2")


class Kernel:
    def __init__(self, text):
        self.code, self.at = [], {}  # instructions; {label: the index of the next one}
        for label, instruction in LINE.findall(text):
            if label:
                self.at[label] = len(self.code)
            else:
                self.code.append(instruction)

    def branch(self, i):
        """(target, may the next one follow?); (None, True) for other instructions."""
        found = BRANCH.match(self.code[i])
        if not found:
            return None, not re.match(r"EXIT|RET", self.code[i])
        predicate, operand, label = found.groups()
        return self.at.get(label), bool(predicate or operand.strip())

    def loops(self):
        """[(first, last)] of the innermost loops, except loops that only wait."""
        found = []
        for i in range(len(self.code)):
            to, _ = self.branch(i)
            back = to is not None and to < i and not self.has_exit(to, i)
            if back and i - to > 20 and not any(a >= to for a, _ in found):
                found.append((to, i))
        return found

    def has_exit(self, first, last):  # a waiting loop is placed after the kernel's end
        return any(line.startswith("EXIT") for line in self.code[first:last])

    def shortest(self, first, last):
        """The instructions of the shortest path from `first` to `last`: it omits what can be
        skipped, such as a mask or a rescale, and each wait ends at once."""
        ways = {first: []}
        for i in range(first, last):
            if i not in ways:
                continue
            way = [*ways[i], self.code[i]]
            to, goes_on = self.branch(i)
            nexts = [i + 1] * goes_on + [to] * (to is not None and i < to <= last)
            for j in nexts:
                if j not in ways or len(way) < len(ways[j]):
                    ways[j] = way
        return [*ways[last], self.code[last]]


def kernels(text):
    """{name, as "step16_pair::flash_fwd_kernel<64, step16_pair::Polynomial>": Kernel}"""
    parts = re.split(r"(?m)^\s*\.section\s+\.text\.", text)[1:]
    mangled = "\n".join(part.split(",", 1)[0] for part in parts)
    done = subprocess.run(["c++filt"], input=mangled, capture_output=True, text=True, check=True)
    names = [name.removeprefix("void ").split("(")[0] for name in done.stdout.splitlines()]
    return dict(zip(names, map(Kernel, parts)))


def operation(instruction):
    return re.sub(r"^@\S+\s+", "", instruction)


def mix_of(instructions):
    """{"all", "fma", "alu", "special": the number of these instructions}"""
    found = {"all": len(instructions), **dict.fromkeys(PIPES, 0)}
    for instruction in map(operation, instructions):
        for pipe, pattern in PIPES.items():
            if re.match(pattern, instruction):
                found[pipe] += 2 if PACKED.match(instruction) else 1
    return found


def trip_of(kernel, d, softmax_warps):
    """The same for all warps of a block of step 16 and one tile of 128 keys."""
    total = collections.Counter()
    copies = False
    for first, last in kernel.loops():
        body, way = kernel.code[first : last + 1], kernel.shortest(first, last)

        def has(name):
            return sum(operation(line).startswith(name) for line in body)

        if has("MUFU"):
            times, counted = softmax_warps, way
        elif has("LDTM") and has("STTM"):  # the correction
            times, counted = 4, way
        elif has("UTCHMMA"):  # one warp, for each tile of 128 rows d / 16 + 128 / 16 products
            times, counted = softmax_warps // 4 * (d // 16 + 8) / has("UTCHMMA"), body
        elif has("UTMALDG") and not copies:  # one warp, one copy of K and one of V
            times, counted, copies = 2 / has("UTMALDG"), body, True
        else:
            continue
        for key, n in mix_of(counted).items():
            total[key] += times * n
    return total
