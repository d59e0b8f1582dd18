"""Takes a kernel's name apart: function, template arguments, parameters, words.

Tools spell one kernel differently (`(int)4` or `4`, `<unnamed>` or `(anonymous namespace)`,
`char *` or `char*`); what leaves here reads the same for all of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusight.naming.demangle import demangle

# Long enough for every instance seen, short enough that matching stays in microseconds.
MAX_TEXT = 6_000
MAX_NESTING = 200

ANONYMOUS = re.compile(r"\(anonymous namespace\)::|<unnamed>::|^(?:void )?unnamed>::")
LITERAL_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|char|short|long long|long)\)(?=-?\d)")
CLONE = re.compile(r" \[clone [^\]]{0,40}\]|\.kd$")
WORD = re.compile(r"[A-Z]{1,60}(?=[A-Z][a-z])|[A-Z]?[a-z]{1,60}|[A-Z]{1,60}|\d{1,12}")
IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,100}")
MANGLED_LENGTH = re.compile(r"\d{1,3}")
CLOSERS = {">": "<", ")": "(", "]": "[", "}": "{"}

# Functions that only launch what their template arguments say.
LAUNCHERS = re.compile(
    r"::kentry|parallel_launch|_kernel_agent|static_kernel|trampoline_kernel|forall\w{0,20}kernel"
)
# Composable Kernel starts everything through one function: kentry<1, ck_tile::GemmKernel<…>>.
CK_ENTRY = "kentry"
CK_LAUNCHED = re.compile(r"(\w{3,80})<")
GENERIC_NAMES = ("kernel", "kernel2", "device_kernel")
GENERIC_ARGS = re.compile(r"cutlass|cute::|gemm|mma|flash|conv")


class KernelNameParts(NamedTuple):
    """A kernel's name in pieces. `subject` and `words` are lower case, for the patterns."""

    text: str
    head: str
    base: str
    args: str
    params: str
    subject: str
    words: str


def take_apart(name: str) -> KernelNameParts:
    """Split a demangled or plain kernel name."""
    text = clean(name)
    if text.startswith("_Z"):
        text = readable_identifiers(text)
    head, args, params = split(text)
    base = head.rsplit("::", 1)[-1]
    launcher = LAUNCHERS.search(head.lower()) or (
        base.lower() in GENERIC_NAMES and GENERIC_ARGS.search(args.lower())
    )
    subject = f"{head}<{args}>" if launcher and args else head
    if base == CK_ENTRY and (launched := CK_LAUNCHED.search(args)) is not None:
        base, args = launched.group(1), args[launched.end() :].removesuffix(">")
    words = WORD.findall(base)
    return KernelNameParts(
        text, head, base, args, params, subject.lower(), f" {' '.join(words).lower()} "
    )


def clean(name: str) -> str:
    """One spelling for all tools, cut to a length that is safe to search."""
    text = name[:MAX_TEXT]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    text = ANONYMOUS.sub("", CLONE.sub("", text.strip()))
    return LITERAL_CAST.sub("", text).strip()


def readable_identifiers(mangled: str) -> str:
    """The identifiers of a name that could not be demangled: enough to recognise its family."""
    function: list[str] = []
    arguments: list[str] = []
    found, at = function, 2
    while (number := MANGLED_LENGTH.search(mangled, at)) is not None:
        end = number.end() + int(number.group())
        word = mangled[number.end() : end]
        at = end if IDENTIFIER.fullmatch(word) else number.end()
        if at == end and not word.startswith("_GLOBAL_"):
            found.append(word)
            found = arguments if mangled[end : end + 1] in ("I", "E") else found
    text = "::".join(function) or mangled
    return f"{text}<{', '.join(arguments)}>" if arguments else text


def split(text: str) -> tuple[str, str, str]:
    """Function name, template arguments and parameters, from one walk over the text."""
    open_brackets: list[str] = []
    start, args_from, args_to, end = 0, -1, -1, len(text)
    for at, char in enumerate(text):
        if len(open_brackets) > MAX_NESTING:
            break
        if char in "<([{":
            if not open_brackets and char == "(" and at > start:
                end = at
                break
            if not open_brackets and char == "<":
                args_from = at
            open_brackets.append(char)
        elif char in CLOSERS:
            close(open_brackets, char)
            if not open_brackets and char == ">":
                args_to = at
        elif char == " " and not open_brackets:
            start, args_from, args_to = at + 1, -1, -1
    head = text[start : args_from if args_from >= 0 else end]
    inside_to = args_to if args_to > args_from else end
    args = text[args_from + 1 : inside_to] if args_from >= 0 else ""
    return head.split("[", 1)[0].strip() or text, args.strip(), text[end:]


def close(open_brackets: list[str], char: str) -> None:
    """Close a bracket; `>` between parentheses is a comparison and closes nothing."""
    opener = CLOSERS[char]
    if opener not in open_brackets or (char == ">" and open_brackets[-1] != opener):
        return
    while open_brackets.pop() != opener:
        pass


def parts_of(raw: str) -> tuple[str, KernelNameParts]:
    """The demangled name and its pieces."""
    demangled = demangle(raw)
    return demangled, take_apart(demangled)
