"""Inline PTX that the simulator supports, as calls of its instructions.

One asm statement holds instructions that end with ';', perhaps in braces, with labels and branches
between them. An operand is %0, %1, ..., a number, or a register that the statement declares. Plain
instructions are functions of common/sim/any/ptx.h; the others are in ptx_table.py."""

import re

from flash_steps.ptx_table import FLOATS, INTEGERS, PTX, TYPES, PtxError, find, operand, put

TICKS = "::sim::any::ticks()"
REGISTERS = {"laneid": "::sim::any::lane()", "clock": f"(unsigned){TICKS}"}
REGISTERS |= {
    "clock64": TICKS,
    "globaltimer": TICKS,
    "nwarpid": "32u",
    "nsmid": "::sim::multiprocessors()",
}
REGISTERS |= {"warpid": "::sim::any::warp()", "smid": "::sim::any::sm()"}
for _x in "xyz":
    for _name in ("tid", "ntid", "ctaid", "nctaid"):
        _of = {"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}
        REGISTERS[f"{_name}.{_x}"] = f"{_of[_name]}.{_x}"
    for _name in ("cluster_ctaid", "cluster_nctaid"):
        REGISTERS[f"{_name}.{_x}"] = f"::sim::{_name}().{_x}"
    REGISTERS[f"clusterid.{_x}"] = f"blockIdx.{_x} / ::sim::cluster_nctaid().{_x}"
    REGISTERS[f"nclusterid.{_x}"] = f"gridDim.{_x} / ::sim::cluster_nctaid().{_x}"
for _name, _of in (("cluster_ctarank", "rank"), ("cluster_nctarank", "size")):
    REGISTERS[_name] = f"::sim::cluster_{_of}()"
_below = "((1u << ::sim::any::lane()) - 1)"
REGISTERS |= {"lanemask_eq": "(1u << ::sim::any::lane())", "lanemask_lt": _below}
REGISTERS |= {"lanemask_le": f"({_below} * 2 + 1)", "lanemask_ge": f"(~{_below})"}
REGISTERS |= {"lanemask_gt": f"(~({_below} * 2 + 1))"}


class Statement:
    """The operands of one asm statement, and the registers that it declares.

    `outputs` and `inputs`: [(constraint, expression)], or with a name first."""

    def __init__(self, outputs, inputs):
        self.operands = [operand[-2:] for operand in outputs + inputs]
        self.named = {name: x for name, _, x in (o for o in outputs + inputs if len(o) == 3)}
        self.declared = {"_": "_"}  # _ takes unused results

    def value(self, text):
        text = text.strip()
        if text in self.declared:
            return self.declared[text]
        operand = re.fullmatch(r"%(\d{1,4})", text)
        if operand and int(operand[1]) < len(self.operands):
            return self.operands[int(operand[1])][1]
        named = re.fullmatch(r"%\[(\w+)\]", text)
        if named and named[1] in self.named:
            return self.named[named[1]]
        if re.fullmatch(r"[-~]?(\d+|0[xX][0-9a-fA-F]+)[uU]?", text):
            return text
        number = re.fullmatch(r"0[fFdD]([0-9a-fA-F]+)", text)
        if number:
            bits, of = (32, "float") if len(number[1]) == 8 else (64, "double")
            return f"::std::bit_cast<{of}>(uint{bits}_t(0x{number[1]}))"
        if re.fullmatch(r"-?\d*\.\d+([eE][-+]?\d+)?|-?\d+\.", text):
            return text
        if text.lstrip("%") in REGISTERS and text.startswith("%"):
            return REGISTERS[text.lstrip("%")]
        further = re.fullmatch(r"(.*\S)\s*([-+])\s*(\w+|%\d+)", text)
        if further:
            base, sign, bytes_of = further.groups()
            return f"{PTX}::offset({self.value(base)}, {sign}(long)({self.value(bytes_of)}))"
        raise PtxError(f"the PTX operand '{text}'")

    def need_floats(self, line):
        """An operand of an f32 instruction must be a float in C++, or g++ would convert it."""
        for n in map(int, re.findall(r"%(\d{1,4})", line)):
            if n < len(self.operands) and "r" in self.operands[n][0]:
                raise PtxError(f"the PTX '{line}' with an operand that is no float")


def translate(template, outputs, inputs):
    """C++ that does the same as the instructions."""
    asm = Statement(outputs, inputs)
    statements, labels = [], []
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", template, flags=re.DOTALL)
    text = re.sub(r"^\s*\.(loc|pragma)\b[^;\n]*;?", "", text, flags=re.MULTILINE)
    for line in text.split(";"):
        line = " ".join(line.split())
        while line:
            label = re.match(r"([\w$%=]+) ?: ?", line)
            if line[0] in "{}":
                line = line[1:].strip()
            elif label:
                labels.append(name_of(label[1]))
                statements.append(f"{labels[-1]}:;")
                line = line[label.end() :]
            else:
                statements.append(statement(line, asm))
                break
    declared = [f"{of} {name} = {{}};" for name, of in asm.__dict__.get("registers", {}).items()]
    local = f"__label__ {', '.join(labels)}; " if labels else ""
    return f"do {{ {local}{' '.join(declared + statements)} }} while (0)"


def name_of(register):
    """A C++ name for a register or label, different from all names used in generated code."""
    return "fa_ptx_" + re.sub(r"\W", "_", register)


def statement(line, asm):
    of_type = re.fullmatch(r"\.reg ?\.(\w+) (.+)", line)
    if of_type and of_type[1] in TYPES:
        registers = asm.__dict__.setdefault("registers", {})
        for name in of_type[2].split(","):
            several = re.fullmatch(r"(.+)<(\d+)>", name.strip())
            names = [several[1] + str(i) for i in range(int(several[2]))] if several else [name]
            for one in names:
                asm.declared[one.strip()] = name_of(one.strip())
                registers[name_of(one.strip())] = TYPES[of_type[1]]
        return ""
    guard, line = re.fullmatch(r"(?:@(\S+) )?(.*)", line).groups()
    condition = ""
    if guard:
        condition = f"if ({'!' * guard.startswith('!')}({asm.value(guard.lstrip('!'))})) "
    jump = re.fullmatch(r"bra(\.uni)? ([\w$%=]+)", line)
    if jump:
        return f"{condition}goto {name_of(jump[2])};"
    return f"{condition}{{ {instruction(line, asm)} }}"


def operands_of(text):
    """ "{%0, %1}, [%2, {%3}], p|q, 16" -> ["{%0, %1}", "[%2, {%3}]", "p|q", "16"]"""
    return re.findall(r"\{[^}]*\}|\[(?:%\[\w+\]|[^\]])*\]|%\[\w+\]|[^,\s][^,]*", text)


def arguments(operands):
    """The same without brackets: [["%0", "%1"], ["%2", "%3"], ["p", "q"], ["16"]]"""
    lists = [re.sub(r"%\[(\w+)\]", r"%<\1>", part) for part in operands]
    lists = [[x.strip(" {}[]") for x in re.split(r"[,|]", part)] for part in lists]
    return [[re.sub(r"%<(\w+)>", r"%[\1]", x) for x in part] for part in lists]


def instruction(line, asm):
    name = re.match(r"(?:[\w.:]|%(?=\d))*", line)[0]
    rest = line[len(name) :].strip()
    if re.match(r"(fma|\w+\.approx)\S*\.f32 ", line):
        asm.need_floats(line)
    operands = operands_of(rest)
    args = [[asm.value(x) for x in group] for group in arguments(operands)]
    try:
        found = find(name)
        if found:
            match, make = found
            match["operands"] = operands
            if (match["group"] or "").startswith("%"):
                match["group"] = asm.value(match["group"])
            made = make(match, args)
        else:
            made = plain(name, args)
    except (IndexError, ValueError, KeyError):
        raise PtxError(f"the PTX '{line}'") from None
    if not made:
        raise PtxError(f"the PTX instruction {name}")
    return made


# --- plain instructions: registers in, a register out ---------------------------------------------

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARISONS |= {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# Without effect on results here: rounding to nearest, subnormals, precision.
PLAIN = {"rn", "ftz", "approx", "full", "noftz", "uni", "aligned", "sync"}
# Function: the types of its operands, with T for the instruction's; the possible types.
FUNCTIONS = {name: ("TT", INTEGERS + FLOATS) for name in ("add", "sub", "mul", "min", "max")}
FUNCTIONS |= {name: ("T", INTEGERS + FLOATS) for name in ("abs", "neg")}
FUNCTIONS |= {name: ("TT", INTEGERS + ["f32", "f64"]) for name in ("div", "rem")}
FUNCTIONS |= {"fma": ("TTT", FLOATS), "mad": ("TTT", INTEGERS + ["f32", "f64"])}
FUNCTIONS |= {
    name: ("T", FLOATS) for name in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
}
for _name in ("add", "sub", "mul", "fma"):
    FUNCTIONS[_name] = (FUNCTIONS[_name][0], FUNCTIONS[_name][1] + ["f32x2"])
FUNCTIONS |= {"copysign": ("TT", ["f32", "f64"])}
FUNCTIONS |= {name: ("Tu", INTEGERS) for name in ("shl", "shr")}
FUNCTIONS |= {"bfe": ("Tuu", INTEGERS), "bfi": ("TTuu", INTEGERS), "brev": ("T", INTEGERS)}
FUNCTIONS |= {"lop3": ("TTTu", ["b32"])}
OPERATORS = {"and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} ^ {1})"}
PREDICATES = OPERATORS | {"not": "(!{0})"}
OPERATORS |= {"not": "(~{0})", "popc": "(uint32_t)::std::popcount({0})"}
OPERATORS |= {"clz": "(uint32_t)::std::countl_zero({0})", "bfind": f"{PTX}::bfind({{0}})"}
OPERATORS |= {
    "sad": f"{PTX}::add({{2}}, {{0}} < {{1}} ? {PTX}::sub({{1}}, {{0}}) : {PTX}::sub({{0}}, {{1}}))"
}


def plain(name, args):
    """An instruction by its parts: its first name, modifiers, its type."""
    first, *parts = name.split(".")
    kind = parts[-1] if parts else ""
    if first == "cvt":
        return convert(parts, args)
    if first in ("cvta", "mov"):
        return (
            put(args[0][0], args[1][0]) if len(args[0]) == len(args[1]) == 1 else moves(args, kind)
        )
    if first in ("setp", "set"):
        return compare(parts, args, first == "set")
    if kind not in TYPES:
        return None
    of = TYPES[kind]
    (to, *_), *groups = args
    values = [group[0] for group in groups]
    if first in ("selp", "slct"):
        chosen = values[2] if first == "selp" else f"{operand(TYPES[kind], values[2])} >= 0"
        of = TYPES[parts[0]]
        return put(to, f"({chosen}) ? {operand(of, values[0])} : {operand(of, values[1])}")
    if kind == "pred" and first in PREDICATES:
        return f"{to} = {PREDICATES[first].format(*(f'(bool)({x})' for x in values))};"
    modifiers = set(parts[:-1]) - PLAIN
    mine = [operand(of, x) for x in values]
    if first in OPERATORS and kind in INTEGERS and not modifiers:
        of = of if first == "sad" else TYPES["u" + kind[1:]] if first != "bfind" else of
        return put(to, OPERATORS[first].format(*(operand(of, x) for x in values)))
    if first in ("add", "sub", "addc", "subc", "mad", "madc") and (
        "cc" in modifiers or first.endswith("c")
    ):
        takes, gives = str(first.endswith("c")).lower(), str("cc" in modifiers).lower()
        if first.startswith("mad"):
            product = f"{PTX}::{'mul_hi' if 'hi' in modifiers else 'mul'}({mine[0]}, {mine[1]})"
            mine = [product, mine[2]]
        what = "sub" if first.startswith("sub") else "add"
        return put(to, f"{PTX}::{what}_with<{of}>({takes}, {gives}, {', '.join(mine)})")
    if first in ("mul", "mad", "mul24", "mad24") and kind in INTEGERS:
        how = (modifiers & {"lo", "hi", "wide"}).pop()
        kinds = {"lo": "mul", "hi": "mul_hi", "wide": "mul_wide"}
        function = "mul24" if "24" in first else kinds[how]
        made = f"{PTX}::{function}({mine[0]}, {mine[1]})"
        if first.startswith("mad"):
            third = f"{PTX}::as<{PTX}::Wide<{of}>>({values[2]})" if how == "wide" else mine[2]
            made = f"{PTX}::add({made}, {third})"
        return put(to, made) if modifiers == {how} and (how == "lo" or "24" not in first) else None
    if first == "prmt" and kind == "b32" and not modifiers:
        return put(to, f"{PTX}::prmt({', '.join(mine)})")
    if first == "shf" and kind == "b32":
        clamp = "c" if "clamp" in modifiers else ""
        side = "l" if "l" in modifiers else "r"
        return put(to, f"__funnelshift_{side}{clamp}({', '.join(mine)})")
    if first == "dp4a":
        signed = "int32_t" if parts[0] == parts[1] == "s32" else "uint32_t"
        if parts[0] != parts[1]:
            return None
        return put(to, f"__dp4a({', '.join(operand(signed, x) for x in values)})")
    if first not in FUNCTIONS or kind not in FUNCTIONS[first][1]:
        return None
    signature = FUNCTIONS[first][0]
    function = "fma" if first == "mad" else first
    rounding = modifiers & {"rz", "rm", "rp"}
    operands = [operand(of if t == "T" else "uint32_t", x) for t, x in zip(signature, values)]
    possible = set() if kind == "f32x2" else rounding | {"sat", "relu"}
    if len(operands) != len(signature) or modifiers - possible:
        return None
    made = f"{PTX}::{function}({', '.join(operands)})"
    if rounding:
        modes = {"rz": "FE_TOWARDZERO", "rm": "FE_DOWNWARD", "rp": "FE_UPWARD"}
        copies = "".join(f"volatile {of} fa_{i} = {x}; " for i, x in enumerate(operands))
        inner = f"{PTX}::{function}<{of}>({', '.join(f'fa_{i}' for i in range(len(operands)))})"
        body = f"{copies}volatile {of} fa_r = {inner}; return {of}{{fa_r}};"
        made = f"::sim::rounded({modes[rounding.pop()]}, [&] {{ {body} }})"
    if "sat" in modifiers and kind == "s32":
        wide = ", ".join(f"int64_t{{{x}}}" for x in operands)
        made = f"{PTX}::clamp<int32_t>({PTX}::{function}({wide}))"
    elif "sat" in modifiers:
        made = f"{PTX}::saturate({made})"
    if "relu" in modifiers:
        made = f"{PTX}::relu({made})"
    return put(to, made)


def moves(args, kind):
    """mov of several registers to one, or the reverse: the first one is the lowest."""
    to, source = args
    if len(to) > 1 and len(source) == 1:
        bits = int(kind[1:]) // len(to)
        whole = f"const auto fa_all = {operand(TYPES['b' + kind[1:]], source[0])}; "
        return whole + " ".join(
            put(x, f"(uint{bits}_t)(fa_all >> {i * bits})") for i, x in enumerate(to)
        )
    bits = int(kind[1:]) // len(source)
    of = TYPES["b" + kind[1:]]
    parts = [f"({of}){operand(f'uint{bits}_t', x)} << {i * bits}" for i, x in enumerate(source)]
    return put(to[0], f"({of})({' | '.join(parts)})")


def compare(parts, args, is_set):
    """setp to one predicate or two; set to a register: 1.0, or all bits of an integer."""
    how, kind = parts[0], parts[-1]
    of = TYPES[kind]
    results, a, b, *also = args
    a, b = operand(of, a[0]), operand(of, b[0])
    if how in ("num", "nan"):
        is_nan = f"({a} != {a} || {b} != {b})"
        made = is_nan if how == "nan" else "!" + is_nan
    elif how in COMPARISONS:
        made = f"{a} {COMPARISONS[how]} {b}"
        if how == "ne" and kind in FLOATS:
            made = f"({a} < {b} || {a} > {b})"
    else:  # also true for a NaN
        made = f"({a} != {a} || {b} != {b} || {a} {COMPARISONS[how.removesuffix('u')]} {b})"
    made = f"const bool fa_is = {made}; "
    combined = [p for p in parts[1:-1] if p in OPERATORS]
    other = f"(bool)({also[0][0]})" if also else "true"
    join = f" {dict(zip(('and', 'or', 'xor'), '&|^'))[combined[0]]} {other}" if combined else ""
    if is_set:
        one = "1.0f" if parts[-2] == "f32" else "~0u"
        return made + put(results[0], f"(fa_is{join}) ? {one} : 0")
    made += f"{results[0]} = fa_is{join};" if results[0] != "_" else ""
    return made + (f" {results[1]} = !fa_is{join};" if len(results) > 1 else "")


def convert(parts, args):
    *modifiers, to, source = parts
    modifiers = set(modifiers) - {"ftz"}
    (out,), *values = args
    values = [x for (x,) in values]
    rounding = {m for m in modifiers if re.fullmatch(r"r[nzmp]i?", m)}
    mode = rounding.copy().pop() if rounding else "rn"
    if to == "tf32" and source == "f32" and modifiers <= {"rna", "satfinite"}:
        return put(out, f"{PTX}::tf32({operand('float', values[0])})")
    pack = re.fullmatch(r"(f16|bf16|e4m3|e5m2)x2", to)
    relu = f"{PTX}::relu" if "relu" in modifiers else ""
    if pack and source == "f32" and len(values) == 2 and mode == "rn":
        upper, lower = (f"{relu}({operand('float', x)})" for x in values)
        if pack[1].startswith("e"):
            e = pack[1][1:].replace("m", ", ")
            bits = [f"::sim::Fp8<{e}>({x}).__x" for x in (upper, lower)]
            return put(out, f"(uint16_t)({bits[0]} << 8 | {bits[1]})")
        h = TYPES[pack[1]]
        return put(out, f"{TYPES[to]}{{{h}({lower}), {h}({upper})}}")
    small = to in ("f16", "bf16")
    if pack or modifiers - rounding - {"sat", "relu"} or small and source != to and mode != "rn":
        return None
    a = operand(TYPES[source], values[0])
    if "sat" in modifiers and to in INTEGERS and source in INTEGERS:
        return put(out, f"{PTX}::clamp<{TYPES[to]}>({a})")
    whole = "true" if mode.endswith("i") else "false"
    made = f"{PTX}::cvt<{TYPES[to]}>('{mode[1]}', {whole}, {a})"
    if "sat" in modifiers and to in FLOATS:
        made = f"{PTX}::saturate({made})"
    return put(out, f"{relu}({made})")
