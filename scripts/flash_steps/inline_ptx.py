"""Inline PTX that the simulator supports, as calls of its instructions.

One asm statement holds instructions that end with ';', perhaps in braces, with labels and branches
between them. An operand is %0, %1, ..., a number, or a register that the statement declares. Plain
instructions are functions of common/sim/any/ptx.h; the others are in INSTRUCTIONS."""

import re

HERE = "::sim::Where::here()"
PTX = "::sim::ptx"
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
    _first = _x == "x"  # clusters are one-dimensional, along x
    _rank, _size = "::sim::cluster_rank()", "::sim::cluster_size()"
    REGISTERS[f"cluster_ctaid.{_x}"] = _rank if _first else "0u"
    REGISTERS[f"cluster_nctaid.{_x}"] = _size if _first else "1u"
    REGISTERS[f"clusterid.{_x}"] = f"blockIdx.{_x}" + (f" / {_size}" if _first else "")
    REGISTERS[f"nclusterid.{_x}"] = f"gridDim.{_x}" + (f" / {_size}" if _first else "")
REGISTERS |= {"cluster_ctarank": _rank, "cluster_nctarank": _size}
_below = "((1u << ::sim::any::lane()) - 1)"
REGISTERS |= {"lanemask_eq": "(1u << ::sim::any::lane())", "lanemask_lt": _below}
REGISTERS |= {"lanemask_le": f"({_below} * 2 + 1)", "lanemask_ge": f"(~{_below})"}
REGISTERS |= {"lanemask_gt": f"(~({_below} * 2 + 1))"}

TYPES = {f"{k}{n}": f"{'' if k == 's' else 'u'}int{n}_t" for k in "bus" for n in (8, 16, 32, 64)}
TYPES |= {"f32": "float", "f64": "double", "pred": "bool"}
TYPES |= {"f16": f"{PTX}::Half", "bf16": f"{PTX}::Bf16"}
TYPES |= {f"{h}x2": f"{PTX}::Pair<{TYPES[h]}>" for h in ("f16", "bf16")}
INTEGERS = [t for t in TYPES if re.fullmatch(r"[bus]\d+", t)]
FLOATS = ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"]


class PtxError(Exception):
    """Names what the simulator lacks."""


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


def arguments(text):
    """ "{%0, %1}, [%2, {%3}], p|q, 16" -> [["%0", "%1"], ["%2", "%3"], ["p", "q"], ["16"]]"""
    parts = re.findall(r"\{[^}]*\}|\[(?:%\[\w+\]|[^\]])*\]|%\[\w+\]|[^,\s][^,]*", text)
    lists = [re.sub(r"%\[(\w+)\]", r"%<\1>", part) for part in parts]
    lists = [[x.strip(" {}[]") for x in re.split(r"[,|]", part)] for part in lists]
    return [[re.sub(r"%<(\w+)>", r"%[\1]", x) for x in part] for part in lists]


def instruction(line, asm):
    name = re.match(r"(?:[\w.:]|%(?=\d))*", line)[0]
    rest = line[len(name) :].strip()
    if re.match(r"(fma|\w+\.approx)\S*\.f32 ", line):
        asm.need_floats(line)
    if name.startswith("tcgen05.mma") and re.match(r"\[[^]]*\], ?\[", rest):
        name += ".a_in_tensor_memory"
    args = [[asm.value(x) for x in group] for group in arguments(rest)]
    try:
        # CUTLASS has the space before the order, which ptxas accepts.
        order = r"\.global\.(\w+\.(?:cta|cluster|gpu|sys))\b"
        name = re.sub(rf"^(ld|st|atom|red){order}", r"\1.\2.global", name)
        for pattern, make in INSTRUCTIONS:
            match = re.fullmatch(pattern, name)
            if match:
                group = re.search(r"\.cta_group::([^.]+)", name)
                made = make(match, args + [[asm.value(group[1])]] if group else args)
                break
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


def put(to, value):
    return "" if to == "_" else f"::sim::any::move({to}, {value});"


def operand(of, x):
    return f"{PTX}::as<{of}>({x})"


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
    if len(operands) != len(signature) or modifiers - rounding - {"sat", "relu"}:
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
    of = f"uint{kind[1:]}_t"
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


# --- memory --------------------------------------------------------------------------------------

SPACE = r"(\.(?P<space>global|shared(::cta|::cluster)?|local|const|param))?"
CACHE = r"(\.(ca|cg|cs|cv|lu|nc|wb|wt)|\.L[12]::\w+|\.level::\w+)*"
SEM = r"(\.(?P<sem>weak|volatile|relaxed|acquire|release|acq_rel|mmio))?(\.(cta|cluster|gpu|sys))?"
VECTORS = {8: ("uchar{}", 4), 16: ("ushort{}", 4), 32: ("uint{}", 4), 64: ("ulonglong{}", 2)}


def pointer(match, of, address):
    space = "shared" if (match["space"] or "").startswith("shared") else "global"
    return f"{PTX}::{space}_pointer<{of}>({address})"


def load_or_store(match, args):
    """One access, or several, of a vector of up to 16 bytes."""
    loads = match["what"] != "st"
    registers, (address, *_) = args[:2] if loads else (args[1], args[0])
    count, kind = int(match["count"] or 1), match["type"]
    if len(registers) != count:
        raise ValueError
    of, fence = TYPES[kind], "::sim::fence(); " if match["sem"] == "release" else ""
    bits = int(re.sub(r"\D", "", kind.replace("x2", "")) or 0) * (2 if "x2" in kind else 1)
    if count == 1:
        to = pointer(match, of, address)
        if match["sem"] in ("acquire", "relaxed", "release") and bits >= 32:
            word = f"uint{bits}_t"
            op, value = ("or_", f"{word}{{0}}") if loads else ("exch", operand(word, registers[0]))
            to = pointer(match, word, address)
            call = f"{PTX}::atom(::sim::AtomicOp::{op}, {to}, {value})"
            return put(registers[0], call) if loads else f"{fence}{call};"
        if not loads:
            return f"{fence}*{to} = {operand(of, registers[0])};"
        wide = f"uint{bits}_t" if bits < 32 else of
        value = f"*{to}" if bits >= 32 else f"({'int32_t' if kind[0] == 's' else wide})*{to}"
        return put(registers[0], value)
    name, most = VECTORS[bits]
    width = min(count, most)
    vector = name.format(width)
    code = f"{fence}auto* const fa_at = {pointer(match, vector, address)};"
    for i in range(0, count, width):
        part, into = registers[i : i + width], f"fa_at[{i // width}]"
        if loads:
            code += f" const {vector} fa_{i} = {into};"
            sign = f"(int{bits}_t)" if kind[0] == "s" else ""
            code += "".join(f" {put(r, f'{sign}fa_{i}.{x}')}" for x, r in zip("xyzw", part))
        else:
            values = ", ".join(operand(f"uint{bits}_t", r) for r in part)
            code += f" {into} = make_{vector}({values});"
    return code


def atomic(match, args):
    op, kind = match["op"], match["type"]
    result = None if match["what"] == "red" else args.pop(0)[0]
    (address,), *values = args
    of = TYPES[kind]
    if kind in ("b32", "b64", "s64") and op not in ("min", "max"):
        of = f"uint{kind[1:]}_t"
    values = [operand(of, v[0]) for v in values]
    if op == "cas":
        values = values[::-1]
    name = op + "_" if op in ("and", "or", "xor") else op
    operands = ", ".join([f"::sim::AtomicOp::{name}", pointer(match, of, address), *values])
    call = f"{PTX}::atom<{of}>({operands})"
    fence = "::sim::fence(); " if match["sem"] in ("release", "acq_rel") else ""
    return fence + (put(result, call) if result else call + ";")


def shared(address):
    return f"{PTX}::shared_pointer<void>({address})"


def cp_async(match, args):
    to, source, size, *more = (group[0] for group in args)
    filled = more[0] if more and not match["hint"] else size
    from_ = f"{PTX}::global_pointer<const void>({source})"
    return f"::sim::cp_async({shared(to)}, {from_}, {size}, {filled}, {HERE});"


def matrices(match, args):
    """ldmatrix and stmatrix."""
    loads = match["what"] == "ld"
    registers, (address,) = args if loads else args[::-1]
    count, trans = int(match["count"]), "true" if match["trans"] else "false"
    if len(registers) != count:
        raise ValueError
    if loads:
        out = "".join(" " + put(x, f"fa_r[{i}]") for i, x in enumerate(registers))
        call = f"::sim::ldmatrix(fa_r, {count}, {trans}, {shared(address)}, {HERE});"
        return f"uint32_t fa_r[4]; {call}{out}"
    values = ", ".join(operand("uint32_t", x) for x in registers)
    call = f"::sim::stmatrix(fa_r, {shared(address)}, {HERE}, {count}, {trans});"
    return f"const uint32_t fa_r[] = {{{values}}}; {call}"


# --- barriers, warps -----------------------------------------------------------------------------


def barrier(match, args):
    if len(args) == 1 and not match["arrive"]:
        if args == [["0"]]:
            return f"::sim::sync_block({HERE});"
        threads = "blockDim.x * blockDim.y * blockDim.z"
    else:
        threads = args[1][0]
    waits = "false" if match["arrive"] else "true"
    return f"::sim::sync_named({args[0][0]}, {threads}, {waits}, {HERE});"


def bar_at(address):
    return f"{PTX}::shared_pointer<uint64_t>({address})"


def arrive(match, args):
    (state,), (bar,), *more = args
    bytes_of = more.pop(0)[0] if match["expect"] else 0
    count = more[0][0] if more else 1
    cluster, relaxed = (str(match[x] == x).lower() for x in ("cluster", "relaxed"))
    call = f"::sim::arrive({bar_at(bar)}, {cluster}, {relaxed}, {bytes_of}, {count}, {HERE})"
    return put(state, call) or call + ";"


def mbarrier_wait(match, args):
    (done,), (bar,), (parity,), *_ = args
    if not match["parity"]:  # a state returned by an arrival
        parity = f"(int)((uint64_t)({parity}) >> 63)"
    relaxed = "{true}" if match["relaxed"] else "{}"
    call = f"::sim::mbarrier_try_wait({bar_at(bar)}, {parity}, {HERE}, {relaxed})"
    return f"const bool fa_done = {call}; " + put(done, "fa_done")


def proxy_fence(match, args):
    memories = {"global": ["device"], None: ["shared", "device"]}.get(match["of"], ["shared"])
    return " ".join(f"::sim::proxy_fence(::sim::ProxyFence::{memory});" for memory in memories)


def elect(match, args):
    (leader, elected), (mask,) = args
    return (
        f"const uint32_t fa_lanes = ::sim::ballot({mask}, true, {HERE}); "
        f"const int fa_leader = ::std::countr_zero(fa_lanes); "
        f"{elected} = ::sim::any::lane() == fa_leader; {put(leader, 'fa_leader')}"
    )


def shuffle(match, args):
    to, (value,), (lane,), (bounds,), (mask,) = args
    kind = {"bfly": "xor_"}.get(match["kind"], match["kind"])
    code = "bool fa_valid; const uint32_t fa_to = " + (
        f"{PTX}::shfl(::sim::Shuffle::{kind}, fa_valid, {operand('uint32_t', value)}, {lane}, "
        f"{bounds}, {mask}, {HERE}); {put(to[0], 'fa_to')}"
    )
    return code + (f" {to[1]} = fa_valid;" if len(to) > 1 else "")


def reduce(match, args):
    (to,), (value,), (mask,) = args
    return put(to, f"__reduce_{match['op']}_sync({mask}, {operand(TYPES[match['type']], value)})")


def vote(match, args):
    (to,), (predicate,), (mask,) = args
    negated = predicate.startswith("!")
    ballot = f"::sim::ballot({mask}, {predicate}, {HERE})"
    against = f"::sim::ballot({mask}, !({predicate}), {HERE})"
    made = {"ballot": ballot, "any": f"{ballot} != 0", "all": f"{against} == 0"}[match["kind"]]
    return put(to, made) if not negated else None


# --- TMA -----------------------------------------------------------------------------------------


def box(match, tensor_map, at):
    """The declaration of fa_at, and the arguments that name a box of a tensor."""
    if len(at) != int(match["rank"]):
        raise ValueError
    declared = f"const int fa_at[] = {{{', '.join(f'(int)({x})' for x in at)}}};"
    return declared, f"(const ::sim::TensorMap*)({tensor_map}), fa_at, {len(at)}"


def tma_load(match, args):
    group = args.pop()[0] if match["group"] else None
    (to,), (tensor_map, *at), (bar,), *more = args
    blocks = f"(uint16_t)({more.pop(0)[0]})" if match["multicast"] else "0"
    if len(more) != bool(match["hint"]):
        raise ValueError
    declared, named = box(match, tensor_map, at)
    call = f"::sim::any::tma_load({group}, " if group else "::sim::tma_load("
    return f"{declared} {call}{shared(to)}, {named}, {bar_at(bar)}, {blocks}, {HERE});"


def tma_store(match, args):
    (tensor_map, *at), (source,), *_ = args
    declared, named = box(match, tensor_map, at)
    return f"{declared} ::sim::tma_store({named}, {shared(source)}, {HERE});"


def bulk(match, args):
    to, source, size, *more = (group[0] for group in args)
    if match["to"] == "global":
        to = f"{PTX}::global_pointer<void>({to})"
        return f"::sim::bulk_store({to}, {shared(source)}, {size}, {HERE});"
    source = f"{PTX}::global_pointer<const void>({source})"
    return f"::sim::bulk_load({shared(to)}, {source}, {size}, {bar_at(more[0])}, {HERE});"


# --- tensor cores --------------------------------------------------------------------------------

NUMBERS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s32", "f32", "f64")


def mma(match, args):
    d, a, b, c = args
    m, n, k = (int(match[x]) for x in "mnk")
    if not all(match[x] in NUMBERS for x in ("d", "a", "b", "c")) or match["c"] != match["d"]:
        return None
    bits = {"f16": 16, "bf16": 16, "f64": 64}
    words = [bits.get(match["d"], 32), 8, 8, bits.get(match["d"], 32)]
    words[1] = words[2] = bits.get(match["a"], 32 if match["a"] == "tf32" else 8)
    sizes = [m * n, m * k, k * n, m * n]
    if m not in (8, 16) or n != 8:
        raise ValueError
    for group, size, word in zip(args, sizes, words):
        if len(group) != size // 32 * word // max(32, word if word == 64 else 32):
            raise ValueError
    of = "double" if match["d"] == "f64" else "uint32_t"
    arrays = "".join(
        f"const {of} fa_{name}[] = {{{', '.join(operand(of, x) for x in group)}}}; "
        for name, group in (("a", a), ("b", b), ("c", c))
    )
    types = ", ".join(f"::sim::Number::{match[x]}" for x in ("a", "b", "c"))
    saturate = "true" if match["satfinite"] or match["saturates"] else "false"
    product = f"{{{m}, {n}, {k}, {types}, fa_a, fa_b, fa_c, fa_d, {saturate}}}"
    out = " ".join(put(x, f"fa_d[{i}]") for i, x in enumerate(d))
    return f"{arrays}{of} fa_d[{len(d)}]; ::sim::multiply({product}, {HERE}); {out}"


def wgmma(match, args):
    d, a, (b,), (accumulate,), (scale_a,), (scale_b,), *trans = args
    factor = {"bf16": "bf16", "f16": "f16", "e4m3": "e4m3"}.get(match["a"])
    n = int(match["n"])
    half = factor == match["d"] == "f16"
    if not factor or match["a"] != match["b"] or not half and match["d"] != "f32":
        return None
    if len(d) != n // (4 if half else 2):
        raise ValueError
    if int(match["k"]) != (32 if factor == "e4m3" else 16):
        raise ValueError
    registers = len(a) == 4
    a_of = f"const uint32_t fa_a[] = {{{', '.join(operand('uint32_t', x) for x in a)}}}; "
    fields = f".factor = ::sim::Factor::{factor}, .n = {n}, "
    fields += (
        ".a_registers = fa_a, " if registers else f".a = ::sim::wgmma_operand({a[0]}, {HERE}), "
    )
    fields += f".b = ::sim::wgmma_operand({b}, {HERE}), "
    majors = [x for (x,) in trans]
    if not registers and majors:
        fields += f".a_mn_major = (bool)({majors.pop(0)}), "
    if majors:
        fields += f".b_mn_major = (bool)({majors[0]}), "
    fields += f".accumulate = (bool)({accumulate}), .half_sums = {str(half).lower()}"
    need = f"::sim::any::need_plus_one({scale_a}, {scale_b}, {HERE}); "
    return f"{need}{a_of if registers else ''}{PTX}::wgmma({HERE}, {{{fields}}}, {', '.join(d)});"


def tensor_alloc(match, args):
    (address,), (columns,), (group,) = args
    to = f"{PTX}::shared_pointer<uint32_t>({address})"
    return f"::sim::tcgen05_alloc({to}, {columns}, {HERE}, ::sim::CtaGroup{{{group}}});"


def tensor_mma(match, args):
    (d,), (a,), (b,), (descriptor,), *disabled, (accumulate,), (group,) = args
    if len(disabled) > 1 or disabled and len(disabled[0]) not in (4, 8):
        raise ValueError
    lanes = ", ".join([HERE, *disabled[0]]) if disabled else ""
    lanes = f"::sim::any::need_all_lanes({lanes}); " if lanes else ""
    in_tensor_memory = "true" if match["a"] else "false"
    b = f"::sim::tcgen05_operand({b}, {HERE})"
    a = f"(uint32_t)({a})" if match["a"] else f"::sim::tcgen05_operand({a}, {HERE})"
    return (
        f"{lanes}::sim::tcgen05_mma({{(uint32_t)({d}), {a}, {in_tensor_memory}, {b}, "
        f"(uint32_t)({descriptor}), {accumulate}, ::sim::CtaGroup{{{group}}}, "
        f"::sim::TensorKind::{match['kind']}}}, {HERE});"
    )


def tensor_commit(match, args):
    blocks = f"(uint16_t)({args[1][0]})" if match["multicast"] else "::sim::kThisBlock"
    group = f"::sim::CtaGroup{{{args[-1][0]}}}"
    return f"::sim::tcgen05_commit({bar_at(args[0][0])}, {HERE}, {group}, {blocks});"


def tensor_move(match, args):
    registers, (address,) = args if match["what"] == "ld" else args[::-1]
    if len(registers) != int(match["columns"]):
        raise ValueError
    call = f"::sim::any::tcgen05_{match['what']}"
    return f"{call}({HERE}, {address}, {', '.join(registers)});"


def call(text):
    """A call of the simulator. {0}, {1}: the operands; {bar}: the first one as an mbarrier; {here}:
    the line; {yes}: does the instruction have what the pattern names `yes`?"""

    def make(match, args):
        firsts = [a[0] for a in args]
        yes = str(bool(match.groupdict().get("yes"))).lower()
        bar = bar_at(firsts[0]) if firsts else ""
        return "::sim::" + text.format(*firsts, bar=bar, here=HERE, yes=yes) + ";"

    return make


def result(text):
    """A value for the first operand, in the same format."""
    return lambda match, args: put(args[0][0], text.format(*(a[0] for a in args), here=HERE))


def nothing(match, args):
    return ";"


GROUP = r"(?P<group>\.cta_group::([12]|%\d+))"
IN_SHARED = r"(\.shared(::cta|::cluster)?)?\.b64"
ORDER = r"(\.(release|acquire|(?P<relaxed>relaxed)))?(\.(cta|(?P<cluster>cluster)))?"
TENSOR = r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d"
ALIGNED = r"\.sync\.aligned"
HINT = r"(?P<hint>\.L2::cache_hint)?"
MULTICAST = r"(?P<multicast>\.multicast::cluster)?"
TYPE = r"\.(?P<type>\w+)"
INSTRUCTIONS = [
    (rf"(?P<what>ld|ldu|st){SEM}{SPACE}{CACHE}(\.v(?P<count>[248]))?{TYPE}", load_or_store),
    (
        rf"(?P<what>atom|red){SEM}{SPACE}\.(?P<op>add|min|max|exch|and|or|xor|inc|dec|cas)"
        rf"(\.noftz)?(\.L2::cache_hint)?{TYPE}",
        atomic,
    ),
    (r"(prefetchu?|discard|applypriority|createpolicy|cp\.async\.bulk\.prefetch)\b.*", nothing),
    (r"griddepcontrol\.wait", call("griddep_wait()")),
    (r"(fence\.proxy\.tensormap|griddepcontrol|nanosleep|pmevent)\b.*", nothing),
    (r"mapa(\.shared::cluster)?\.u32", result(f"{PTX}::mapa({{1}}, {{2}})")),
    (r"mapa\.u64", result(f"::sim::map_shared_rank({PTX}::global_pointer<void>({{1}}), {{2}})")),
    (
        r"cvta\.to\.shared\.u(32|64)",
        result(f"__cvta_generic_to_shared({PTX}::global_pointer<void>({{1}}))"),
    ),
    (r"cvta\.shared\.u(32|64)", result(f"{PTX}::shared_pointer<void>({{1}})")),
    # mbarriers
    (rf"mbarrier\.init{IN_SHARED}", call("mbarrier_init({bar}, {1}, {here})")),
    (rf"mbarrier\.inval{IN_SHARED}", call("mbarrier_inval({bar}, {here})")),
    (rf"mbarrier\.arrive(?P<expect>\.expect_tx)?{ORDER}{IN_SHARED}", arrive),
    (rf"mbarrier\.expect_tx{ORDER}{IN_SHARED}", call("mbarrier_expect({bar}, {1}, {here})")),
    (rf"mbarrier\.(try_wait|test_wait)(?P<parity>\.parity)?{ORDER}{IN_SHARED}", mbarrier_wait),
    (
        rf"cp\.async\.mbarrier\.arrive\.noinc{IN_SHARED}",  # its copies complete at once
        call("cp_async_wait_all(); ::sim::mbarrier_arrive({bar}, 0, {here})"),
    ),
    (r"fence\.mbarrier_init\.release\.cluster", call("mbarrier_init_fence()")),
    (r"fence\.proxy\.async(\.(?P<of>shared::cta|shared::cluster|global))?", proxy_fence),
    # TMA
    (
        rf"{TENSOR}\.shared::c(ta|luster)\.global(\.tile)?\.mbarrier::complete_tx::bytes"
        rf"({GROUP})?{MULTICAST}{HINT}",
        tma_load,
    ),
    (rf"{TENSOR}\.global\.shared::cta(\.tile)?\.bulk_group{HINT}", tma_store),
    (
        r"cp\.async\.bulk\.(?P<to>shared::c(ta|luster))\.global\.mbarrier::complete_tx::bytes"
        rf"{HINT}",
        bulk,
    ),
    (rf"cp\.async\.bulk\.(?P<to>global)\.shared::cta\.bulk_group{HINT}", bulk),
    (r"cp\.async\.bulk\.commit_group", call("bulk_commit()")),
    (r"cp\.async\.bulk\.wait_group(?P<yes>\.read)?", call("bulk_wait({0}, {yes})")),
    # blocks and warps
    (r"barrier\.cluster\.arrive(\.(release|relaxed))?(\.aligned)?", call("cluster_arrive({here})")),
    (r"barrier\.cluster\.wait(\.acquire)?(\.aligned)?", call("cluster_wait({here})")),
    (r"bar(rier)?(\.cta)?\.(sync|(?P<arrive>arrive))(\.aligned)?", barrier),
    (r"bar\.warp\.sync", call("sync_warp({0}, {here})")),
    (r"(membar|fence\.(acq_rel|sc))\.(gl|gpu|sys)", call("fence()")),
    (r"(membar|fence\.(acq_rel|sc))\.(cta|cluster)", nothing),
    (r"elect\.sync", elect),
    (r"shfl\.sync\.(?P<kind>up|down|bfly|idx)\.b32", shuffle),
    (r"vote\.sync\.(?P<kind>any|all|ballot)\.(pred|b32)", vote),
    (r"activemask\.b32", result("::sim::converged_lanes({here})")),
    (r"match\.any\.sync\.b32", result("__match_any_sync({2}, (uint32_t)({1}))")),
    (r"redux\.sync\.(?P<op>add|min|max|and|or|xor)\.(?P<type>[usb]32)", reduce),
    (r"trap|brkpt", call("program::trap({here})")),
    (r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32", call("setmaxnreg({0}, {here})")),
    # tensor cores
    (
        rf"(?P<what>ld|st)matrix{ALIGNED}(\.m8n8)?\.x(?P<count>[124])(?P<trans>\.trans)?(\.m8n8)?"
        r"\.shared(::cta)?\.b16",
        matrices,
    ),
    (
        rf"mma{ALIGNED}\.m(?P<m>\d+)n(?P<n>\d+)k(?P<k>\d+)\.row\.col(?P<satfinite>\.satfinite)?"
        r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)\.(?P<c>\w+)(?P<saturates>\.satfinite)?(\.rn)?",
        mma,
    ),
    (rf"wgmma\.fence{ALIGNED}", call("wgmma_fence()")),
    (rf"wgmma\.commit_group{ALIGNED}", call("wgmma_commit()")),
    (rf"wgmma\.wait_group{ALIGNED}", call("wgmma_wait({0}, {here})")),
    (
        rf"wgmma\.mma_async{ALIGNED}\.m64n(?P<n>\d+)k(?P<k>\d+)"
        r"\.(?P<d>\w+)\.(?P<a>\w+)\.(?P<b>\w+)",
        wgmma,
    ),
    (rf"tcgen05\.alloc{GROUP}{ALIGNED}(\.shared::cta)?\.b32", tensor_alloc),
    (
        rf"tcgen05\.dealloc{GROUP}{ALIGNED}\.b32",
        call("tcgen05_dealloc({0}, {1}, {here}, ::sim::CtaGroup{{{2}}})"),
    ),
    (
        rf"tcgen05\.relinquish_alloc_permit{GROUP}{ALIGNED}",
        call("tcgen05_relinquish_alloc_permit({here}, ::sim::CtaGroup{{{0}}})"),
    ),
    (
        rf"tcgen05\.mma{GROUP}\.kind::(?P<kind>f16|tf32)(?P<a>\.a_in_tensor_memory)?",
        tensor_mma,
    ),
    (
        rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one(\.shared(::cta|::cluster)?)?{MULTICAST}"
        r"\.b64",
        tensor_commit,
    ),
    (rf"tcgen05\.(?P<what>ld|st){ALIGNED}\.32x32b\.x(?P<columns>\d+)\.b32", tensor_move),
    (rf"tcgen05\.wait::((?P<yes>ld)|st){ALIGNED}", call("tcgen05_wait({yes}, {here})")),
    (r"tcgen05\.fence::((?P<yes>before)|after)_thread_sync", call("tcgen05_fence({yes})")),
    (rf"cp\.async\.c[ag]\.shared(::cta)?\.global{HINT}(\.L2::\d+B)?", cp_async),
    (r"cp\.async\.commit_group", call("cp_async_commit()")),
    (r"cp\.async\.wait_all", call("cp_async_wait_all()")),
    (r"cp\.async\.wait_group", call("cp_async_wait({0})")),
]
