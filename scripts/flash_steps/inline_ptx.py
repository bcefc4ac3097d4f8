"""Inline PTX that the simulator knows, as calls of its instructions.

One asm statement holds one instruction, or several that end with ';', perhaps in braces. An operand
is %0, %1, ... or a number."""

import re

HERE = "::sim::Where::here()"
SHARED = "::sim::program::shared_pointer"

TICKS = "::sim::program::ticks()"
REGISTERS = {"laneid": "::sim::program::lane()", "clock": f"(unsigned){TICKS}"}
REGISTERS |= {"clock64": TICKS, "globaltimer": TICKS, "tid.x": "threadIdx.x"}
REGISTERS |= {"ctaid.x": "blockIdx.x", "ntid.x": "blockDim.x", "nctaid.x": "gridDim.x"}


class PtxError(Exception):
    """Says what the simulator does not have."""


def translate(template, outputs, inputs):
    """C++ that does what the instructions do.

    \\p outputs and inputs: [(constraint, expression)]."""
    operands = [text for _, text in outputs + inputs]

    def value(text):
        text = text.strip()
        if re.fullmatch(r"%\d+", text) and int(text[1:]) < len(operands):
            return operands[int(text[1:])]
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", text):
            return text
        if text.removeprefix("%%") in REGISTERS:
            return REGISTERS[text.removeprefix("%%")]
        raise PtxError(f"the PTX operand '{text}'")

    constraints = [constraint for constraint, _ in outputs + inputs]
    statements = []
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", template, flags=re.DOTALL).strip()
    if text.startswith("{") and text.rstrip("; \t\n").endswith("}"):
        text = text.rstrip("; \t\n")[1:-1]
    for line in re.split(r";", text):
        line = " ".join(line.split())
        if not line:
            continue
        if re.match(r"(fma|\w+\.approx)\S*\.f32 ", line):
            for n in map(int, re.findall(r"%(\d+)", line)):
                if n < len(constraints) and "f" not in constraints[n]:
                    raise PtxError(f"the PTX '{line}' with an operand that is no float")
        statements.append(instruction(line, value))
    return "{ " + " ".join(statements) + " }"


def arguments(text):
    """ "{%0, %1}, [%2], 16" -> [["%0", "%1"], ["%2"], ["16"]]"""
    parts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)
    return [[x.strip() for x in p.strip("{}[] ").split(",")] for p in parts]


def instruction(line, value):
    name, _, rest = line.partition(" ")
    for pattern, make in INSTRUCTIONS:
        match = re.fullmatch(pattern, name)
        if match:
            args = [[value(x) for x in group] for group in arguments(rest)]
            try:
                return make(match, args)
            except (IndexError, ValueError):
                raise PtxError(f"the PTX '{line}'") from None
    raise PtxError(f"the PTX instruction {name}")


def cp_async(match, args):
    to, source, size, *more = (group[0] for group in args)
    filled = more[0] if more else size
    return f"::sim::cp_async({SHARED}({to}), (const void*)({source}), {size}, {filled}, {HERE});"


def ldmatrix(match, args):
    count = int(match["count"])
    trans = "true" if match["trans"] else "false"
    out = "".join(f" {x} = fa_r[{i}];" for i, x in enumerate(args[0]))
    if len(args[0]) != count:
        raise ValueError
    call = f"::sim::ldmatrix(fa_r, {count}, {trans}, {SHARED}({args[1][0]}), {HERE});"
    return f"{{ uint32_t fa_r[4]; {call}{out} }}"


def mma(match, args):
    d, a, b, c = args
    if (len(d), len(a), len(b), len(c)) != (4, 4, 2, 4):
        raise ValueError
    out = "".join(f" {x} = fa_d[{i}];" for i, x in enumerate(d))
    return (
        f"{{ uint32_t fa_a[4] = {{{', '.join(a)}}}, fa_b[2] = {{{', '.join(b)}}}; "
        f"float fa_d[4] = {{{', '.join(c)}}}; "
        f"::sim::mma_m16n8k16(fa_d, fa_a, fa_b, {HERE});{out} }}"
    )


def barrier(match, args):
    if match[0] == "bar.sync" and args == [["0"]]:
        return f"::sim::sync_block({HERE});"
    waits = "false" if match[0] == "bar.arrive" else "true"
    return f"::sim::sync_named({args[0][0]}, {args[1][0]}, {waits}, {HERE});"


INSTRUCTIONS = [
    (r"cp\.async\.c[ag]\.shared\.global(\.L2::\d+B)?", cp_async),
    (r"cp\.async\.commit_group", lambda m, a: "::sim::cp_async_commit();"),
    (r"cp\.async\.wait_all", lambda m, a: "::sim::cp_async_wait_all();"),
    (r"cp\.async\.wait_group", lambda m, a: f"::sim::cp_async_wait({a[0][0]});"),
    (
        r"ldmatrix\.sync\.aligned\.(m8n8\.)?x(?P<count>[124])(?P<trans>\.trans)?(\.m8n8)?\.shared\.b16",
        ldmatrix,
    ),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32", mma),
    (r"bar\.sync|barrier\.sync(\.aligned)?|bar\.arrive", barrier),
    (r"membar\.(gl|sys)|fence\.acq_rel\.(gpu|sys)", lambda m, a: "::sim::fence();"),
    (r"mov\.[usbf](32|64)", lambda m, a: f"::sim::program::move({a[0][0]}, {a[1][0]});"),
    (r"fma\.rn\.f32", lambda m, a: f"{a[0][0]} = ::std::fma({a[1][0]}, {a[2][0]}, {a[3][0]});"),
    (r"ex2\.approx(\.ftz)?\.f32", lambda m, a: f"{a[0][0]} = ::std::exp2({a[1][0]});"),
    (r"lg2\.approx(\.ftz)?\.f32", lambda m, a: f"{a[0][0]} = ::std::log2({a[1][0]});"),
    (r"rcp\.approx(\.ftz)?\.f32", lambda m, a: f"{a[0][0]} = 1.0f / ({a[1][0]});"),
    (r"tanh\.approx\.f32", lambda m, a: f"{a[0][0]} = ::std::tanh({a[1][0]});"),
]
