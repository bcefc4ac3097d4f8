"""Host functions in device code, which nvcc refuses and g++ accepts.

Finds calls by name: of the C library, of the C++ library's containers and streams, and of functions
that the text defines without __device__. Members and overloads are not told apart.
"""

from collections import namedtuple

C_LIBRARY = """
rand srand random srandom drand48 rand_r time getenv system exit abort atexit puts putchar getchar
fprintf sprintf snprintf fputs fputc scanf sscanf fscanf fopen fclose fread fwrite fflush sleep
usleep gettimeofday clock_gettime qsort atoi atof strtol strtod
""".split()
STD = """
cout cerr clog cin endl vector string to_string map set unordered_map unordered_set list deque queue
sort stable_sort shared_ptr unique_ptr make_shared make_unique thread mutex ofstream ifstream
stringstream ostringstream
""".split()
STREAMS = {"cout", "cerr", "clog", "cin"}
DEVICE = {"__global__", "__device__", "constexpr", "consteval"}
NOT_NAMES = {"__attribute__", "alignas", "decltype", "noexcept", "requires", "explicit", "operator"}
NOT_NAMES |= {"__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__declspec", "if", "while"}
NOT_NAMES |= {"for", "switch", "return", "sizeof", "throw", "static_assert"}
AHEAD = set("return else do case throw and or not".split())  # before a call, not a declaration
OPENS = {"(": ")", "[": "]", "{": "}"}


def partner(words, i):
    """The partner of the bracket that opens at i; the end where it is never closed."""
    depth, pair = 0, (words[i].text, OPENS[words[i].text])
    for k in range(i, len(words)):
        if words[k].kind == "other" and words[k].text in pair:
            depth += 1 if words[k].text == pair[0] else -1
            if depth == 0:
                return k
    return len(words) - 1


def declarator(words, begin, end):
    """The name before the parameters; None where this is not a function."""
    i = begin
    while i < end:
        text = words[i].text
        if text == "(":
            name = words[i - 1]
            if i > begin and name.kind == "name" and name.text not in NOT_NAMES:
                return name.text
            i = partner(words, i)
        elif text == "=":
            return None
        i += 1
    return None


# `ahead`: the words of its declaration; `body`: its begin and end, or None; `parameters`: the same;
# `scope`: of the namespaces and classes around it.
Function = namedtuple("Function", "name ahead body parameters scope")


def functions(words):
    """Each as a Function."""
    begin = i = 0
    scope = []

    def found(name, body):
        at = next(k for k in range(begin, i) if words[k].text == name and words[k + 1].text == "(")
        ahead = {w.text for w in words[begin:i]}
        return Function(name, ahead, body, (at + 2, partner(words, at + 1)), "::".join(scope))

    while i < len(words):
        text = words[i].text if words[i].kind == "other" else ""
        if text == "(":
            i = partner(words, i)
        elif text == "{":
            ahead = {w.text for w in words[begin:i]}
            name = declarator(words, begin, i)
            end = partner(words, i)
            if name:
                yield found(name, (i + 1, end))
                i = end
            elif not ahead & {"namespace", "class", "struct", "union", "extern"}:
                i = end  # an initialiser, an enum
            else:
                last = words[i - 1]
                scope.append(last.text if last.kind == "name" and last.text != "namespace" else "")
            begin = i + 1
        elif text in (";", "}"):
            name = declarator(words, begin, i)
            if name:
                yield found(name, None)
            if text == "}" and scope:
                scope.pop()
            begin = i + 1
        i += 1


def host_calls(words, found):
    """[(name, line)] of host functions called in device code; `found`: functions(words)."""
    device = {f.name for f in found if f.ahead & DEVICE}
    host = {f.name for f in found if f.body} - device
    calls = []
    for _, ahead, body, _, _ in found:
        if not body or "__host__" in ahead or not ahead & {"__global__", "__device__"}:
            continue
        part = words[body[0] : body[1]]
        for i, word in enumerate(part):
            if word.kind != "name" or word.text in device:
                continue
            before = part[i - 1].text if i else ""
            after = part[i + 1].text if i + 1 < len(part) else ""
            scope = part[i - 2].text if before == "::" and i > 1 else ""
            declares = i > 0 and part[i - 1].kind == "name" and before not in AHEAD
            called = after == "(" and before not in (".", "->") and not declares
            if scope == "std":
                wrong = word.text in STD or called and word.text in C_LIBRARY
            elif before == "::" and scope and part[i - 2].kind == "name":
                wrong = False
            else:
                wrong = called and (word.text in C_LIBRARY or word.text in host)
                wrong |= word.text in STREAMS and after == "<"  # the first half of <<
            if wrong:
                calls.append((f"std::{word.text}" if scope == "std" else word.text, word.line))
    return list(dict.fromkeys(calls))
