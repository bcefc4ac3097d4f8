"""Whole files, text and JSON; and the folder of this tree."""

import json
import os
import re
import stat

from .command import BadInput

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def read_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def version():
    """Of this tree, or of the simulator that was installed from it (cuda_program.py)."""
    for path in ("CMakeLists.txt", "built/how_to_build.txt"):
        if found := re.search(r"project\(.* VERSION (\S+)", text_of(os.path.join(ROOT, path))):
            return found[1]
    return "unknown"


def text_of(path):
    """ "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def write_text(path, text, aside=None):
    """`aside`: a temporary file that becomes the one at `path`."""
    try:
        with open(aside or path, "w", encoding="utf-8") as file:
            file.write(text)
        if aside:
            os.replace(aside, path)
    except OSError as error:  # a full disk names no file
        raise OSError(error.errno, f"cannot be written: {error.strerror}", path) from None


def replace_text(path, text):
    """Complete or not at all; what is no regular file (/dev/stdout, a pipe) is written directly."""
    target = os.path.realpath(path)
    if os.path.exists(path) and not os.path.isfile(target):
        return write_text(path, text)
    part = f"{target}.{os.getpid()}.part"
    try:
        write_text(target, text, part)
    finally:
        if os.path.exists(part):
            os.remove(part)


def same_file(a, b):
    """Do both names refer to one file, which need not exist? /dev/null never counts."""
    if os.path.exists(a) and os.path.exists(b):
        return os.path.samefile(a, b) and not stat.S_ISCHR(os.stat(a).st_mode)
    return os.path.realpath(a) == os.path.realpath(b)


def require_writable(flag, path, *others):
    r"""\raises BadInput, before anything runs, where an option's file cannot be written, or is one
    of `others`, which are also read or written. The file stays unchanged."""
    for other in filter(None, others):
        if same_file(path, other):
            raise BadInput(f"{flag} {path} is {other}, which this call needs; give it another name")
    existed = os.path.exists(path)
    if existed and stat.S_ISFIFO(os.stat(path).st_mode):
        return  # its reader would take a second writer for the end
    try:
        open(path, "a", encoding="utf-8").close()
    except OSError as error:
        there = os.path.isdir(os.path.dirname(os.path.abspath(path)))
        why = error.strerror if there else "its folder does not exist"
        raise BadInput(f"{flag} {path} cannot be written: {why}") from None
    if not existed:
        os.remove(os.path.realpath(path))


def read_json(path):
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"{path} is not JSON: {error}") from None


def write_json(path, tree, **how):
    replace_text(path, json.dumps(tree, **how) + "\n")


def write_rows(path, tree, indent=1):
    """JSON with one line per row of lists, or objects, called "rows", "runs" or "kernels"."""
    texts = []

    def apart(rows):
        """A placeholder for the rows."""
        pairs = rows.items() if isinstance(rows, dict) else ((None, row) for row in rows)
        lines = [f"{json.dumps(key)}: " * (key is not None) + json.dumps(row) for key, row in pairs]
        blank = " " * indent
        text = ",\n".join(2 * blank + line for line in lines)
        begin, end = "{}" if isinstance(rows, dict) else "[]"
        texts.append(f"{begin}\n{text}\n{blank}{end}")
        return f"@{len(texts) - 1}@"

    def short(node):
        if not isinstance(node, dict):
            return node
        long = ("rows", "runs", "kernels")
        return {k: apart(v) if k in long and v else short(v) for k, v in node.items()}

    text = json.dumps(short(tree), indent=indent)
    replace_text(path, re.sub(r'"@(\d+)@"', lambda mark: texts[int(mark[1])], text) + "\n")
