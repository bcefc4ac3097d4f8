"""Translates CUDA C++ to C++ for the simulator.

The input is preprocessed, so macros are gone and each line knows its file. Only what g++ does not
understand is rewritten, token by token:

    kernel<<<grid, block>>>(x)      a call of sim::any::launch; also << < and >> >
    extern __shared__ float s[];    the block's dynamic shared memory
    __shared__ __device__ __constant__ __global__ ...   attributes
    asm("cp.async ..." : ...)       a call of the simulator; for unknown PTX a refusal at run time
    cudaMalloc(&x, n)               the same, and the buffer is named x
    __cluster_dims__(2)             a call at the kernel's start; also __launch_bounds__(128)
    (void*)kernel                   the same, and the kernel's type is recorded
"""

import platform
import re

from flash_steps.host_calls import functions, host_calls
from flash_steps.inline_ptx import PtxError, translate

SHARED = "constinit thread_local __attribute__((aligned(128)))"
DYNAMIC = '__asm__("_ZN3sim12dynamic_smemE")'
# g++ refuses constants and variables in one section: unique names, cut off for the assembler.
SECTION = '__attribute__((section("{},\\"aw\\",@progbits{}{}")))'
COMMENT = "#" if platform.machine() in ("x86_64", "i686", "AMD64") else "//"
NAMED = {f"cudaMalloc{kind}" for kind in ("", "Managed", "Async", "Pitch", "Host")}
NAMED |= {"cudaHostAlloc"}
TENSORS = {f"{new}{like}" for new in ("empty", "zeros", "full") for like in ("", "_like")}
FIRST = {"__cluster_dims__": "need_cluster", "__sim_launch_bounds__": "need_bounds"}
LAUNCHES = {"cudaLaunchKernel": "false", "cudaLaunchCooperativeKernel": "true"}
WORDS = {
    "__global__": "__attribute__((flatten))",
    "__host__": "",
    "__grid_constant__": "",
    "__noinline__": "__attribute__((noinline))",
}
ATTRIBUTES = ("__attribute__", "alignas", "decltype", "__declspec")  # followed by brackets
STATEMENTS = ("return", "else", "do", "case", "throw")  # then an expression, not a declaration
ARITHMETIC = """char short int long unsigned signed float double size_t uint
int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t""".split()
CASTS = {"(", "static_cast", *ARITHMETIC}
CAST_END = " ->*"
TYPES, NO_VARIABLES = ("class", "struct", "union", "enum"), ("template", "using", "namespace")
# A cast or an operator before the name of a buffer.
CAST = re.compile(
    r"^(\(\s*[\w:]+[\s\w:]*\*+\s*\)|reinterpret_cast\s*<[^>]*>|static_cast\s*<[^>]*>|&|\*)\s*"
)
VOID_POINTER = re.compile(r"\(\s*(const\s+)?void\s*(const\s*)?\*\s*(const\s*)?\)")
QUALIFYING = ("__global__", "__shared__", "__device__", "__managed__", "__constant__")
TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<marker>(?<![^\n])\#[^\n]*)
    |(?P<raw>(?:u8|[uUL])?R"(?P<mark>[^ ()\\\t\n]{0,16})\(.*?\)(?P=mark)")
    |(?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
    |(?P<char>(?:u8|[uUL])?'(?:[^'\\\n]|\\.)+')
    |(?P<name>[A-Za-z_$][\w$]*)
    |(?P<number>\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*)
    |(?P<launch><<\s*<)
    |(?P<other>::|->|.)""",
    re.VERBOSE | re.DOTALL,
)
PAIRS = {"(": ")", "[": "]", "{": "}"}


class TranslationError(Exception):
    """`line`: the place, as "file.cu:12"."""

    def __init__(self, what, line):
        super().__init__(f"{what} ({line})")


class Token:
    __slots__ = ("kind", "text", "file", "number", "device")

    def __init__(self, kind, text, file, number):
        self.device = False  # in the body of a function for the device
        self.kind, self.text, self.file, self.number = kind, text, file, number

    @property
    def line(self):
        return f"{self.file.rsplit('/', 1)[-1]}:{self.number}"


def literal(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def spoken(token):
    """The value of a C++ string literal."""
    if token.kind == "raw":
        return token.text[token.text.index("(") + 1 : token.text.rindex(")")]
    text = token.text[token.text.index('"') + 1 : -1]
    try:
        escape = r"(?s)\\(?:x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)"
        return re.sub(escape, lambda m: m[0].encode("latin-1").decode("unicode_escape"), text)
    except UnicodeError:
        raise TranslationError("a text with an escape that C++ does not have", token.line) from None


# Found in a header that supports nvcc: then it is translated like the user's text. Of Thrust, which
# is large, only the qualifiers of functions go, if there are no others.
QUALIFIERS = re.compile(r"\b__(?:host|device|global|shared|constant)__\b")
OF_FUNCTIONS = re.compile(r"\b__(?:host|device)__\b")
OTHERS = re.compile(r"\b__(?:global|shared|constant)__\b|\basm\b|<<<")


def is_thrusts(text):
    return "namespace thrust" in text and not OTHERS.search(text)


MARKER = re.compile(r'^# \d+ "([^"\n]*)"([ \d]*)$', re.MULTILINE)


def regions(text):
    """(is it the user's or the simulator's?, text) of each run of lines, by the line markers. 3
    marks a system header, and also the user's text from a macro of one."""
    users = {m[1] for m in MARKER.finditer(text) if "3" not in m[2].split()}
    own, start = True, 0
    for marker in MARKER.finditer(text):
        now = marker[1] in users
        if now != own:
            yield own, text[start : marker.start()]
            own, start = now, marker.start()
    yield own, text[start:]


def tokens_of(text, place):
    """Tokens with their lines; `place`, [file, line], continues from region to region."""
    tokens = []
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "mark":
            kind = "raw"
        piece = match.group()
        if kind == "marker":
            parts = re.match(r'# (\d+) "([^"]*)"', piece)
            if parts:
                place[0], place[1] = parts[2], int(parts[1]) - 1
        tokens.append(Token(kind, piece, place[0], place[1]))
        place[1] += piece.count("\n")
    return tokens


FORCED = "inline __attribute__((always_inline))"  # from __forceinline__
FORCED_FUNCTION = re.compile(re.escape(FORCED) + r"([\w\s&*:]*?\b(\w+)\s*\([^(){};]*\)\s*)([;{])")


def without_forced_recursion(text):
    """A function that is declared before its definition may be one of two that call each other:
    g++ refuses to inline these, nvcc ignores __forceinline__ there."""
    found = {m[2] for m in FORCED_FUNCTION.finditer(text) if m[3] == ";"}
    if not found:
        return text

    def plain(match):
        return f"inline{match[1]}{match[3]}" if match[2] in found else match[0]

    return FORCED_FUNCTION.sub(plain, text)


# T::f<3>(x), where T is a parameter of a template: nvcc needs no `template` before f.
DEPENDENT = re.compile(r"::(?=\w+<[^;(){}<>]*>\()")
PARAMETER = re.compile(r"(?:typename|class) (\w+)(?=[,>=\s])")
SCOPE = re.compile(r"(?<![\w:])(?<!typename )((?!std$)[A-Za-z]\w*)$")  # none of a library


def with_template(text):
    found, parts, end = None, [], 0
    for match in DEPENDENT.finditer(text):
        scope = SCOPE.search(text, max(0, match.start() - 80), match.start())
        if scope and found is None:
            found = set(PARAMETER.findall(text))
        if scope and scope[1] in found:
            parts += [text[end : match.end()], "template "]
            end = match.end()
    return "".join(parts) + text[end:]


def takes_tensors(words, f):
    """Is it a function of the host with a torch::Tensor among its parameters?"""
    device = f.ahead & {"__global__", "__device__"}
    return not device and any(w.text == "Tensor" for w in words[slice(*f.parameters)])


def tensor_function(words, f):
    """Its name, whether it is defined here and no template, its parameters' names ("": none)."""
    names, depth, last, given = [], 0, "", False
    for word in [*words[slice(*f.parameters)], None]:
        text = word.text if word else ","
        depth += (text in "(<[{") - (text in ")>]}") if len(text) == 1 else 0
        if text == "," and depth == 0:
            names.append(last)
            last, given = "", False
        elif text == "=" and depth == 0:
            given = True
        elif word and word.kind == "name" and depth == 0 and not given:
            last = text
    scope = "::".join(part for part in f.scope.split("::") if part)
    whole = bool(f.body) and "template" not in f.ahead
    return {"name": f.name, "scope": scope, "defined": whole, "parameters": names}


class Translator:
    """`simulator`: the folder of the simulator's headers, whose calls stay unchanged. `arithmetic`:
    casts and shifts of device code compute as on a GPU (any/arithmetic.h). Finds the user's
    `files`, `host_calls`, alignments of shared arrays beyond 1024 (`wide`), whether the text
    `has_own_new`, and the host's `tensor_functions`."""

    def __init__(self, simulator, arithmetic=False):
        self.place = ["", 1]
        self.sections = 0
        self.kernels = set()
        self.references = {}  # by kernel: which parameters are references
        self.simulator = simulator
        self.arithmetic = arithmetic
        self.files, self.host_calls, self.has_own_new = set(), [], False
        self.tensor_functions, self.wide = [], []

    def translate(self, text):
        # _Pragma() in an indented line: g++ cannot read its own output
        text = re.sub(r"^[ \t]+(?=#pragma\b)", "", text, flags=re.MULTILINE)
        # By CUTLASS; nvcc's host compiler sees no kernel's body.
        text = re.sub(r"^#pragma GCC diagnostic error .*", "", text, flags=re.MULTILINE)
        text = with_template(without_forced_recursion(text))
        parts, words = [], []
        for own, part in regions(text):
            if own or QUALIFIERS.search(part) and not is_thrusts(part):
                parts.append(tokens_of(part, self.place))
                words += [t for t in parts[-1] if t.kind not in ("space", "marker")] if own else []
            else:
                parts.append(OF_FUNCTIONS.sub("", part))
                marker = None
                for marker in re.finditer(r'^# (\d+) "([^"]*)"', part, re.MULTILINE):
                    pass
                if marker:
                    rest = part[marker.end() :].count("\n")
                    self.place = [marker[2], int(marker[1]) - 1 + rest]
        self.look_through([w for w in words if not w.file.startswith(self.simulator)])
        for i, part in enumerate(parts):
            if not isinstance(part, str):
                self.tokens = part
                parts[i] = self.region()
        return "".join(parts)

    def look_through(self, words):
        """The user's text before rewriting."""
        found = list(functions(words))
        self.files = {word.file for word in words}
        self.host_calls = host_calls(words, found)
        self.has_own_new = any(f.name in ("new", "delete") for f in found)
        self.tensor_functions = [
            tensor_function(words, f) for f in found if takes_tensors(words, f)
        ]
        for _, ahead, body, _, _ in found:
            if body and ahead & {"__global__", "__device__"}:
                for word in words[body[0] : body[1]]:
                    word.device = True

    # --- navigation ---

    def next(self, i):
        """The next token that is not white space or a comment."""
        i += 1
        while i < len(self.tokens) and self.tokens[i].kind in ("space", "marker"):
            i += 1
        return i

    def before(self, i):
        i -= 1
        while i >= 0 and self.tokens[i].kind in ("space", "marker"):
            i -= 1
        return i

    def text_at(self, i):
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def kind_at(self, i):
        return self.tokens[i].kind if 0 <= i < len(self.tokens) else ""

    def partner(self, i):
        """The partner of the bracket that opens at i."""
        opens, depth = self.text_at(i), 0
        if opens not in PAIRS:
            raise TranslationError("a bracket is missing", self.tokens[self.before(i)].line)
        closes = PAIRS[opens]
        for k in range(i, len(self.tokens)):
            if self.tokens[k].kind == "other":
                depth += (self.tokens[k].text == opens) - (self.tokens[k].text == closes)
                if depth == 0:
                    return k
        raise TranslationError(f"'{opens}' is never closed", self.tokens[i].line)

    def partner_back(self, i):
        """The partner of the bracket that closes at i; skips other brackets."""
        opening = {closes: opens for opens, closes in PAIRS.items()}
        waiting, k = [], i  # for these to open
        while k >= 0:
            text = self.text_at(k) if self.tokens[k].kind == "other" else ""
            angle = not waiting or waiting[-1] == "<"
            if angle and text == "<" == self.text_at(k - 1):  # a shift among template arguments
                k -= 1
            elif waiting and text == waiting[-1]:
                waiting.pop()
                if not waiting:
                    return k
            elif text in opening:
                waiting.append(opening[text])
            elif angle and text == ">":
                waiting.append("<")
            k -= 1
        raise TranslationError(f"'{self.text_at(i)}' was never opened", self.tokens[i].line)

    def plain(self, begin, end):
        text = "".join(
            " " if t.kind == "space" else t.text
            for t in self.tokens[begin:end]
            if t.kind != "marker"
        )
        return re.sub(r"\s+", " ", text).strip()

    def split(self, begin, end, at=","):
        """[(begin, end)] of the parts between commas outside of brackets."""
        parts, start, i = [], begin, begin
        while i < end:
            token = self.tokens[i]
            if token.kind == "other" and token.text in PAIRS:
                i = self.partner(i)
            elif token.kind == "other" and token.text == at:
                parts.append((start, i))
                start = i + 1
            i += 1
        return parts + [(start, end)] if start < end or parts else []

    def blank(self, begin, end):
        """Removes tokens but keeps newlines, so that line numbers stay valid."""
        for token in self.tokens[begin:end]:
            if token.kind != "marker":
                token.kind, token.text = "space", "\n" * token.text.count("\n")

    # --- rewriting ---

    def region(self):
        for i, token in enumerate(self.tokens):
            if token.kind == "launch":
                if self.text_at(self.before(i)) != "operator":  # operator<< <T>
                    self.launch(i)
            elif token.device and self.arithmetic and token.text in CASTS:
                self.cast(i)
            elif token.device and self.arithmetic and token.text in ("<", ">"):
                self.shift(i)
            elif token.kind != "name":
                continue
            elif token.text in QUALIFYING:
                word = token.text
                if word == "__global__":
                    self.word(i)
                    self.note_kernel(i)
                elif word == "__shared__":
                    self.shared(i)
                else:
                    self.device(i)
                self.attributes_first(i)
            elif token.text in WORDS:
                self.word(i)
            elif token.text in FIRST:
                self.first_call(i)
            elif token.file.startswith(self.simulator):
                continue
            elif token.text in NAMED:
                self.allocation(i)
            elif token.text in TENSORS:
                self.tensor(i)
            elif token.text in LAUNCHES:
                self.launch_call(i)
            elif token.text == "cudaLaunchKernelEx":
                self.launch_extended(i)
            elif token.text == "cudaLaunchKernelExC":
                self.member_call(i, "Launching()")
            elif token.text in self.kernels:
                self.kernel_address(i)
            elif token.text in ("asm", "__asm__", "__asm"):
                self.assembly(i)
        return "".join(t.text for t in self.tokens)

    def word(self, i):
        # __attribute__((__noinline__)) in a library's header is g++'s attribute
        if self.tokens[i].text == "__noinline__" and self.text_at(self.before(i)) in ("(", ","):
            return
        self.tokens[i].text = WORDS[self.tokens[i].text]

    def kernel_begin(self, i):
        k = self.before(i)
        if self.text_at(k) == ">":
            k = self.before(self.partner_back(k))
        while True:
            if self.text_at(k) in (")", "]"):  # also of table[i].kernel
                k = self.partner_back(k)
                called = self.before(k)
                if self.text_at(called) == ">":  # pick<float>()
                    called = self.before(self.partner_back(called))
                if self.text_at(k) == "(" and not self.names(called):
                    return k
                k = called
                continue
            if self.kind_at(k) != "name" and self.text_at(k) != "::":
                raise TranslationError(
                    "a launch of something that has no name", self.tokens[i].line
                )
            previous = self.before(k)
            if self.text_at(previous) == "template":  # Launcher::template kernel<T><<<
                previous = self.before(previous)
            if self.text_at(k) == "::" and self.text_at(previous) == ">":
                k = self.before(self.partner_back(previous))
                continue
            if self.text_at(previous) in ("::", ".", "->") or (
                self.text_at(k) == "::"
                and self.kind_at(previous) == "name"
                and self.tokens[previous].text not in STATEMENTS
            ):
                k = previous
                if self.text_at(k) in (".", "->"):
                    k = self.before(k)
                continue
            return k

    def names(self, k):
        """Do brackets after the token at k belong to a call?"""
        is_name = self.kind_at(k) == "name" and self.text_at(k) not in STATEMENTS
        return is_name or self.text_at(k) == "]"

    def name_begin(self, k):
        """The start of a::b<int>::template c, whose last word is at k."""
        while True:
            previous = self.before(k)
            if self.text_at(previous) == "template":
                previous = self.before(previous)
            if self.text_at(previous) != "::":
                return k
            k, previous = previous, self.before(previous)
            if self.text_at(previous) == ">":
                k = self.before(self.partner_back(previous))
            elif self.kind_at(previous) == "name" and self.text_at(previous) not in STATEMENTS:
                k = previous
            else:
                return k

    def configuration_end(self, i):
        """The first and the last token of the launch's >>>, or >> >, outside brackets. Template
        arguments may also end with >>>(, so the last one of the statement counts."""
        found, k = None, self.next(i)
        while k < len(self.tokens):
            token = self.tokens[k]
            if token.kind == "launch" or token.kind == "other" and token.text in (";", *")]}"):
                break
            if token.kind == "other" and token.text in PAIRS:
                k = self.partner(k)
            elif token.text == self.text_at(k + 1) == ">":
                last = self.next(k + 1)
                if self.text_at(last) == ">" and self.text_at(self.next(last)) == "(":
                    found, k = (k, last), last
            k = self.next(k)
        if not found:
            raise TranslationError("a launch without >>>( after its <<<", self.tokens[i].line)
        return found

    def launch(self, i):
        begin = self.kernel_begin(i)
        end, last = self.configuration_end(i)
        opens = self.next(last)
        closes = self.partner(opens)
        arguments = [self.next(first - 1) for first, _ in self.split(opens + 1, closes)]
        if any(self.text_at(first) == "{" for first in arguments):
            raise TranslationError("a launch with an argument in braces", self.tokens[i].line)
        simple = self.before(i)
        if self.text_at(simple) == ">":
            simple = self.before(self.partner_back(simple))
        parts = self.split(opens + 1, closes)
        known = all(self.text_at(k) != "<" for k in range(opens, closes))  # f<1, 2>(x): one part
        for number in self.references.get(self.text_at(simple), ()):
            if number < len(parts) and known:
                first, past = self.next(parts[number][0] - 1), self.before(parts[number][1])
                self.tokens[first].text = f"::sim::any::reference({self.tokens[first].text}"
                self.tokens[past].text += ")"
        name = self.plain(begin, i)
        # table[i], work.kernel, pick(), or a template's name: the host finds the kernel once.
        word = self.before(i)
        by_name = self.text_at(word) not in (")", "]") and (
            word == begin or self.text_at(self.before(word)) not in (".", "->")
        )
        label = re.sub(r"\s*([<>,:()*&])\s*", r"\1", name).replace("::template ", "::")
        self.blank(begin, i)
        self.tokens[i].kind = "other"
        self.tokens[i].text = f" ::sim::any::launch({literal(label)}, ::sim::any::Shape("
        # Not watched: the host may read a global pointer to a kernel.
        unwatched = "__attribute__((no_sanitize_thread))"
        captured, called = ("=", name) if by_name else (f"fa_kernel = {name}", "fa_kernel")
        head = f"[{captured}](auto fa_leave, auto&... fa_a) {unwatched}"
        call = f"{called}(::sim::any::passed(fa_a)...), fa_leave();"
        self.tokens[end].text = f"), false, {head} {{ {call} }}"
        self.blank(end + 1, last + 1)
        empty = self.next(opens) == closes
        self.tokens[opens].text = "" if empty else ","

    def in_function(self, i):
        """Is the token at i in a function's body, not in a namespace's braces?"""
        depth = 0
        for k in range(i - 1, -1, -1):
            if self.tokens[k].kind != "other":
                continue
            depth += (self.tokens[k].text == "}") - (self.tokens[k].text == "{")
            if depth < 0:  # of namespace a::b {, inline namespace {, extern "C" {
                k = self.before(k)
                while self.kind_at(k) in ("name", "string") or self.text_at(k) == "::":
                    if self.text_at(k) in ("namespace", "extern"):
                        return False
                    k = self.before(k)
                return True
        return False

    def shared(self, i):
        """A shared array. An extern one is the block's dynamic shared memory: at file scope by its
        linker name; in a function by a reference, because g++ drops that name in templates."""
        begin = self.before(i) if self.text_at(self.before(i)) == "extern" else i
        self.tokens[i].text = SHARED
        k = self.next(i)
        is_extern, bracket, words = begin < i, None, []
        while self.text_at(k) not in (";", "=", "{", ")", "__shared__", ""):
            if self.text_at(k) in ("__attribute__", "alignas"):
                end = self.partner(self.next(k))
                bytes_of = re.search(r"(?:aligned|alignas)\W*(\d+)", self.plain(k, end))
                if bytes_of and int(bytes_of[1]) > 1024:
                    self.wide.append((bytes_of[1], self.tokens[k].line))
                k = self.next(end)
                continue
            if self.text_at(k) == "extern":
                is_extern = True
            elif self.text_at(k) == "[" and bracket is None:
                bracket = k
            elif bracket is None:
                words.append(self.text_at(k))
            k = self.next(self.partner(k) if self.text_at(k) in ("(", "[") else k)
        if not is_extern or self.text_at(k) != ";":
            return
        if not self.in_function(begin):
            self.tokens[k].text = f" {DYNAMIC};"
            return
        if len(words) < 2:
            return  # g++ reports what is missing
        *kind, name = words
        kind, bounds = " ".join(kind), "" if bracket is None else self.plain(bracket, k)
        self.blank(begin, k)
        value = f"reinterpret_cast<{kind} (&){bounds}>(::sim::dynamic_smem)"
        self.tokens[begin].text = f"{kind} (&{name}){bounds} = {value}"

    def device(self, i):
        """Gives a variable its section; removes the word of a function."""
        word = self.tokens[i].text
        if word == "__constant__":
            self.tokens[i].text = self.section("fa_constant", i)
            self.drop_others(i)
            return
        self.tokens[i].text = ""
        k = self.next(i)
        angle = 0
        while True:
            text = self.text_at(k)
            if text in ("", ")", "}") or text == "operator":
                return
            if text in ATTRIBUTES:
                k = self.next(self.partner(self.next(k)))
                continue
            if text == "__constant__":
                return
            angle += (text == "<") - (text == ">")
            if angle <= 0 and text == "(":
                return  # a function
            defines = text in TYPES and self.text_at(self.next(self.next(k))) in ("{", ":", ";")
            if angle <= 0 and (text in NO_VARIABLES or defines):
                return
            if angle <= 0 and text in (";", "=", "[", "{", ","):
                break
            k = self.next(k)
        managed = word == "__managed__" or "__managed__" in self.declaration(i)
        self.tokens[i].text = self.section("fa_managed" if managed else "fa_device", i)
        self.drop_others(i)

    def drop_others(self, i):
        """A variable has one section: removes the second word of `__managed__ __device__ int n`."""
        k = self.next(i)
        while self.text_at(k) not in (";", "=", "[", "{", ",", ")", ""):
            if self.text_at(k) in ("__device__", "__managed__"):
                self.blank(k, k + 1)
            k = self.next(self.partner(k) if self.text_at(k) == "(" else k)

    def attributes_first(self, i):
        """alignas(16) and [[...]] after the word at i: for g++ they must begin the declaration."""
        k = self.next(i)
        while self.text_at(k) not in (*";={}()<,", "struct", "union", *QUALIFYING, ""):
            begin, opens = k, self.next(k)
            if self.text_at(k) == "[" == self.text_at(k + 1):
                opens = k
            if opens == k or self.text_at(k) in ("alignas", "__attribute__", "decltype"):
                k = self.partner(opens)
                if opens == begin or self.text_at(begin) == "alignas":
                    moved = self.plain(begin, k + 1)
                    self.blank(begin, k + 1)
                    first = i
                    while self.kind_at(self.before(first)) == "name":
                        first = self.before(first)
                    self.tokens[first].text = f"{moved} {self.tokens[first].text}"
            k = self.next(k)

    def declaration(self, i):
        """The words and stars around the one at i, up to the initialiser or the bounds."""
        words, k = [], self.before(i)
        while self.kind_at(k) == "name":
            words.insert(0, self.text_at(k))
            k = self.before(k)
        k, angle = self.next(i), 0
        while self.text_at(k) not in (";", "=", "[", "{", ",", ")", "") or angle > 0:
            if not self.text_at(k):
                break
            angle += (self.text_at(k) == "<") - (self.text_at(k) == ">")
            words += [self.text_at(k)] if angle <= 0 else []
            k = self.next(self.partner(k) if self.text_at(k) in PAIRS else k)
        return words

    def section(self, name, i):
        """The section of the variable declared at i; constants have another one."""
        words = self.declaration(i)
        last = "".join(words).count("*") and len(words) - words[::-1].index("*")
        if "constexpr" in words or "const" in words[last:]:
            name += "_fixed"
        self.sections += 1
        return SECTION.format(name, COMMENT, self.sections)

    def tensor(self, i):
        """O = torch::zeros(...): the buffer is named O."""
        scope = self.before(i)
        space = self.before(scope)
        equal = self.before(space)
        name = self.before(equal)
        if self.text_at(space) in ("torch", "at") and self.text_at(equal) == "=":
            if self.text_at(scope) == "::" and self.kind_at(name) == "name":
                call = f'::sim::torch::Name{{"{self.text_at(name)}"}} % '
                self.tokens[space].text = call + self.tokens[space].text

    def allocation(self, i):
        opens = self.next(i)
        parts = self.split(opens + 1, self.partner(opens)) if self.text_at(opens) == "(" else []
        if len(parts) < 2:
            return
        name, longer = self.plain(*parts[0]), ""
        while name != longer:
            longer, name = name, CAST.sub("", name)
            if name.startswith("(") and name.endswith(")"):
                name = name[1:-1].strip()
        self.member_call(i, f"Naming({literal(name)})")

    def member_call(self, i, of):
        """Turns a call of the runtime, not a declaration, into one of a member that knows more."""
        before = self.before(i)
        declares = self.kind_at(before) == "name" and self.text_at(before) not in STATEMENTS
        if self.text_at(self.next(i)) != "(" or self.text_at(before) in (".", "->") or declares:
            return
        if self.text_at(before) == "::":
            self.tokens[before].text = ""
        self.tokens[i].text = f"::sim::any::{of}.{self.tokens[i].text}"

    def launch_call(self, i):
        """cudaLaunchKernel((void*)kernel, ...): with the kernel's type."""
        opens = self.next(i)
        if self.text_at(opens) != "(":
            return
        parts = self.split(opens + 1, self.partner(opens))
        if len(parts) < 4:
            return
        begin, end = parts[0]
        first = self.next(begin - 1)
        if self.text_at(first) == "(":
            closes = self.partner(first)
            if VOID_POINTER.fullmatch(self.plain(first, closes + 1)):
                self.blank(first, closes + 1)
        elif self.text_at(first) in ("reinterpret_cast", "static_cast"):
            brackets = [k for k in range(first, end) if self.text_at(k) == "("]
            self.blank(first, brackets[0] if brackets else first)
        name = self.plain(begin, end).strip("&() ")
        together = LAUNCHES[self.tokens[i].text]
        self.tokens[i].text = "::sim::any::launch_kernel"
        self.tokens[opens].text = f"({literal(name)}, {together}, "

    def launch_extended(self, i):
        opens = self.next(i)
        parts = self.split(opens + 1, self.partner(opens)) if self.text_at(opens) == "(" else []
        if len(parts) > 1:
            self.tokens[i].text = "::sim::any::launch_extended"
            self.tokens[opens].text = f"({literal(self.plain(*parts[1]))}, ::sim::Where::here(), "

    def note_kernel(self, i):
        """Records the name before the parameters, and marks the end of the kernel's text."""
        k, noted = self.next(i), False
        while self.text_at(k) not in ("{", ";", ""):
            name = self.before(k)
            if self.text_at(k) == "(" and self.tokens[name].kind == "name" and not noted:
                if not self.text_at(name).startswith("__") and self.text_at(name) != "alignas":
                    self.kernels.add(self.text_at(name))
                    noted = True
                    found = self.reference_parameters(k)
                    # Of two kernels with one name, the one that a launch means is unknown.
                    if self.references.setdefault(self.text_at(name), found) != found:
                        self.references[self.text_at(name)] = ()
            k = self.next(self.partner(k) if self.text_at(k) in ("(", "[") else k)
        if self.text_at(k) == "{" and noted:
            closes = self.partner(k)
            at = self.tokens[closes]
            self.tokens.insert(
                closes, Token("space", " ::sim::reached_end(); ", at.file, at.number)
            )

    def reference_parameters(self, opens):
        """The numbers of the parameters `T& x` and `T (&x)[8]`."""
        closes, found, number, angle = self.partner(opens), [], 0, 0
        k = self.next(opens)
        while k < closes:
            text = self.text_at(k)
            angle += (text == "<") - (text == ">")
            if text == "," and angle <= 0:
                number += 1
            elif text == "&" and angle <= 0 and number not in found:
                found.append(number)
            elif text in PAIRS and not (text == "(" and self.text_at(self.next(k)) == "&"):
                k = self.partner(k)
            k = self.next(k)
        return tuple(found)

    def kernel_address(self, i):
        """The kernel in (void*)kernel, (void*)&ns::kernel<2>, reinterpret_cast<void*>(&kernel)."""
        first = self.name_begin(i)
        begin = last = self.before(first)
        if self.text_at(last) == "&":
            begin = self.before(last)
        word = self.before(begin)
        if self.text_at(begin) == ")":
            cast = self.plain(self.partner_back(begin), begin + 1)
        elif self.text_at(begin) == "=":  # auto* p = &kernel: as p it may be cast
            self.kernels.add(self.text_at(word))
            return
        elif self.text_at(begin) == "(" and self.text_at(word) == ">":
            cast = f"({self.plain(self.partner_back(word) + 1, word)})"
        else:
            return
        if not VOID_POINTER.fullmatch(cast):
            return
        if last != begin:
            self.tokens[last].text = ""
        end, depth = self.next(i), 0
        while self.text_at(end) == "<" or depth:
            depth += (self.text_at(end) == "<") - (self.text_at(end) == ">")
            end = self.next(self.partner(end) if self.text_at(end) in PAIRS else end)
        self.tokens[first].text = f"::sim::any::kernel_address({self.tokens[first].text}"
        self.tokens[self.before(end)].text += ")"

    def first_call(self, i):
        function = FIRST[self.tokens[i].text]
        closes = self.partner(self.next(i))
        sizes = self.plain(self.next(i), closes + 1)
        self.blank(i, closes + 1)
        k = self.next(closes)
        while self.text_at(k) not in ("{", ";", ""):
            k = self.next(self.partner(k) if self.text_at(k) in ("(", "[") else k)
        if self.text_at(k) == "{":
            call, at = f" ::sim::any::{function}{sizes};", self.tokens[k]
            self.tokens.insert(k + 1, Token("space", call, at.file, at.number))

    def cast(self, i):
        """(int)x, static_cast<int>(x) and int(x)."""
        text, before = self.text_at(i), self.before(i)
        if text in ARITHMETIC:
            opens = self.next(i)
            ahead = self.text_at(before)
            starts = ahead in (*"=(,+-*/%?:[&|^!~{>", "return") or ahead.endswith(("<<", ">>"))
            if starts and self.text_at(opens) == "(" and self.text_at(self.next(opens)) != ")":
                after = self.text_at(self.next(self.partner(opens)))
                pointer = self.text_at(self.next(opens)) in ("&", "*") and after == "["
                if after == "(" or pointer:
                    return  # int (*f)(int), int (&x)[8]
                self.tokens[i].text = f"::sim::any::to<{text}>"
            return
        opens = self.next(i) if text == "static_cast" else i
        k, words = self.next(opens), []
        while self.text_at(k) in ARITHMETIC or self.text_at(k) == "const":
            words.append(self.text_at(k))
            k = self.next(k)
        if not words or self.text_at(k) != (">" if text == "static_cast" else ")"):
            return
        if text == "static_cast":
            self.tokens[i].text = "::sim::any::to"
            return
        after, ahead = self.next(k), self.text_at(before)
        operand = self.kind_at(after) in ("name", "number", "char")
        operand = operand or self.text_at(after) in ("(", "-", "+", "~", "!", "*", "&", "::")
        if not operand or self.text_at(after) in ("const", "noexcept", "override", "requires"):
            return
        if self.kind_at(before) == "name" and ahead not in STATEMENTS:
            return
        binary = self.ends_operand(self.before(before)) or ahead == self.text_at(before - 1) == "&"
        if ahead in ("-", "+", "*", "&", "!", "~") and not binary:
            return  # a sign before the cast binds more tightly than ->*
        if ahead in ("]", ")"):
            return
        name = " ".join(words)
        for token in self.tokens[i + 1 : k]:
            token.kind, token.text = "space", "\n" * token.text.count("\n")
        self.tokens[i].kind, self.tokens[i].text = "space", f"::sim::any::To<{name}>()"
        self.tokens[k].kind, self.tokens[k].text = "other", CAST_END

    def ends_operand(self, k):
        return (
            self.kind_at(k) in ("name", "number", "char")
            and self.text_at(k) not in STATEMENTS
            or self.text_at(k) in (")", "]")
        )

    def shift(self, i):
        """a << b and a >> b, but not by a literal. `A<B<int>> c` begins with a <."""
        arrow = self.text_at(i)
        if self.text_at(i + 1) != arrow or self.text_at(i - 1) == arrow:
            return
        right = self.next(i + 1)
        by_number = self.kind_at(right) == "number" and self.text_at(self.next(right)) != "."
        if (
            self.text_at(i + 2) in ("=", arrow)
            or by_number
            or self.text_at(right) in tuple("{};,)]")  # the end of template arguments
            or not self.ends_operand(self.before(i))
        ):
            return
        k, closed = self.before(i), 0  # of a<b>(c) >> d the first two are brackets
        while arrow == ">" and k >= 0 and self.text_at(k) not in (";", "{", "}"):
            text = self.text_at(k)
            if text == "<" and self.text_at(k - 1) != "<" and self.text_at(k + 1) != "<":
                closed -= 1
            closed += text == ">"
            if closed < 0:
                return
            k -= 1
        self.tokens[i + 1].text = f"{arrow} ::sim::any::shift {arrow}{arrow}"

    def assembly(self, i):
        opens = self.next(i)
        while self.text_at(opens) in ("volatile", "__volatile__", "goto", "inline"):
            opens = self.next(opens)
        if self.text_at(opens) != "(":
            return
        closes = self.partner(opens)
        if self.text_at(self.next(closes)) != ";":  # of a declaration: its linker name
            return
        if self.plain(opens + 1, closes).startswith('"_ZN3sim'):
            return
        # `::` is two colons here: an empty list of operands
        pieces, start = [], opens + 1
        k = opens + 1
        while k <= closes:
            text = self.text_at(k)
            if k == closes or self.tokens[k].kind == "other" and text in (":", "::"):
                pieces.append((start, k))
                if text == "::":
                    pieces.append((k, k))
                start = k + 1
            elif self.tokens[k].kind == "other" and text in PAIRS:
                k = self.partner(k)
            k += 1
        if k > closes + 1:
            raise TranslationError("brackets that cross", self.tokens[i].line)
        template = "".join(
            spoken(t)
            for t in self.tokens[pieces[0][0] : pieces[0][1]]
            if t.kind in ("string", "raw")
        )
        if not template.strip():  # a compiler fence; its operands belong to another machine
            self.blank(opens + 1, closes)
            self.tokens[opens].text = '("" ::: "memory"'
            return
        outputs, inputs = (
            [x for part in self.split(*piece) for x in self.operands(*part)]
            for piece in (pieces[1:3] + [(0, 0)] * 2)[:2]
        )
        try:
            code = translate(template, outputs, inputs)
        except PtxError as error:
            code = f"::sim::any::unsupported({literal(str(error))})"
        self.blank(i + 1, closes + 1)
        self.tokens[i].text = code

    def operands(self, begin, end):
        """ "=r"(x) -> ("=r", "x"); [name] "=r"(x) -> ("name", "=r", "x"). Several where commas are
        missing, as nvcc takes it."""
        while self.plain(begin, end):
            strings = [k for k in range(begin, end) if self.tokens[k].kind == "string"]
            if not strings:
                raise TranslationError("an operand without a constraint", self.tokens[begin].line)
            opens, name = self.next(strings[0]), self.plain(begin, strings[0]).strip("[] ")
            constraint = spoken(self.tokens[strings[0]])
            while self.kind_at(opens) == "string":  # "=" "r"
                constraint += spoken(self.tokens[opens])
                opens = self.next(opens)
            closes = self.partner(opens)
            of = (constraint, self.plain(opens + 1, closes))
            yield (name, *of) if name else of
            begin = closes + 1
