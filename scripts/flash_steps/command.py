"""What all commands share: how they start, their sentences, their exit status.

A command is a module with main() in flash_steps or lab, called by ./scripts/maintain or a script.
"""

import argparse
import errno
import importlib
import os
import shutil
import signal
import sys
import textwrap


class Failure(Exception):
    """One sentence for the user, printed after the command's name; exit status 1."""

    status = 1


class BadInput(Failure):
    """The call or a file is wrong; exit status 2."""

    status = 2


class NotHere(Failure):
    """No device, no memory, no tool or no program; exit status 3."""

    status = 3


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # no room


def require_folder():
    r"""\raises BadInput where the working directory was deleted."""
    try:
        os.getcwd()
    except OSError:
        raise BadInput("the working directory was deleted: cd to another one") from None


def no_room(said):
    """A compiler's line about a full disk; or None."""
    return next((x.strip() for x in said.splitlines() if os.strerror(errno.ENOSPC) in x), None)


def fitted(doc):
    """A module's text with paragraphs as wide as the terminal; lists stay unchanged."""
    width = min(shutil.get_terminal_size().columns - 2, 98)
    return "\n\n".join(
        part if part.startswith(" ") or "\n " in part else textwrap.fill(part, width)
        for part in (doc or "").strip("\n").split("\n\n")
    )


def parser(doc):
    return argparse.ArgumentParser(
        description=fitted(doc), formatter_class=argparse.RawDescriptionHelpFormatter
    )


def require_values(words):
    r"""\raises BadInput where an option's value is empty: --json '', --json="""
    before = ""
    for word in words:
        empty = not word or (word.startswith("--") and word.find("=") == len(word) - 1)
        if empty:
            flag = word[:-1] or before
            said = f"{flag}: its value is empty" if flag[:1] == "-" else "an argument is empty"
            raise BadInput(said)
        before = word


def run(module, name, *more):
    """Runs main(*more) of a module; `name` is what the user typed. Returns the exit status."""
    sys.argv[0] = name
    try:
        require_folder()
        require_values(sys.argv[1:])
        status = importlib.import_module(module).main(*more)
        sys.stdout.flush()
        return status
    except Failure as failure:
        print(f"{name}: {failure}", file=sys.stderr)
        return failure.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of a pipe, such as head, has stopped reading
        drop_output()
        return 0
    except OSError as error:
        if not error.filename and error.errno not in FULL:
            raise
        print(f"{name}: {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
        drop_output()
        return NotHere.status if error.errno in FULL else BadInput.status


def drop_output():
    """Discards buffered output, which would fail again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
