"""Kernel names made readable: Itanium C++ demangling, then function, arguments and parameters.

Captures carry mangled names where the tool did not demangle them (HIP traces, ncu, cuDNN's long
CUTLASS instances). The parser builds a small tree and prints it afterwards, since a substitution
may name a template parameter whose meaning depends on where it is printed. What is not understood
leaves the name as it was: a wrong name is worse than a mangled one.

Tools spell one kernel differently (`(int)4` or `4`, `<unnamed>` or `(anonymous namespace)`,
`char *` or `char*`); the parts of a name read the same for all of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpusight.naming.demangle_parser import (
    LITERAL_SUFFIX,
    MAX_DEPTH,
    MangledNameParser,
    NameNode,
    UnsupportedManglingError,
    innermost,
)

MAX_INPUT = 20_000
# Substitutions let a short name print exponentially long: what is printed, inner parts again each
# time that they are part of something, follows the length of the name.
MIN_PRINTED, PRINTED_PER_CHARACTER = 2_000, 200


class TemplateScope(NamedTuple):
    """What template parameters mean at the place being printed."""

    args: tuple[NameNode, ...]
    outer: TemplateScope | None
    pack_index: int = -1


class DemanglePrinter:
    """Prints a tree the way `c++filt` does."""

    def __init__(self, name: str) -> None:
        self.depth = 0
        self.printed = 0
        self.max_printed = MIN_PRINTED + PRINTED_PER_CHARACTER * len(name)

    def show(self, node: NameNode, scope: TemplateScope | None) -> str:
        """Return the text of `node`."""
        return "".join(self.sides(node, scope))

    def sides(self, node: NameNode, scope: TemplateScope | None) -> tuple[str, str]:
        """Return the text on both sides of a declarator: functions and arrays wrap around it."""
        self.depth += 1
        self.printed += 1
        if self.depth > 4 * MAX_DEPTH or self.printed > self.max_printed:
            raise UnsupportedManglingError
        text = getattr(self, "_on_" + node.kind)(node, scope)
        self.depth -= 1
        sides = (text, "") if isinstance(text, str) else text
        self.printed += len(sides[0]) + len(sides[1])
        return sides

    def join(self, nodes: tuple[NameNode, ...], scope: TemplateScope | None) -> str:
        """Join the texts of nodes by commas; empty packs leave no trace."""
        shown = (self.show(node, scope) for node in nodes)
        return ", ".join(text for text in shown if text)

    def params(self, nodes: tuple[NameNode, ...], scope: TemplateScope | None) -> str:
        """Return a parameter list; a lone `void` means none."""
        text = self.join(nodes, scope)
        return "()" if text == "void" else f"({text})"

    def _on_none(self, _node: NameNode, _scope: TemplateScope | None) -> str:
        return ""

    def _on_name(self, node: NameNode, _scope: TemplateScope | None) -> str:
        return node.text

    def _on_scoped(self, node: NameNode, scope: TemplateScope | None) -> str:
        return "::".join(self.show(kid, scope) for kid in node.kids)

    def _on_qualified_name(self, node: NameNode, scope: TemplateScope | None) -> str:
        return self.show(node.kids[0], scope)

    def _on_template(self, node: NameNode, scope: TemplateScope | None) -> str:
        inside = self.join(node.kids[1:], scope)
        gap = " " if inside.endswith(">") else ""
        return f"{self.show(node.kids[0], scope)}<{inside}{gap}>"

    def _on_constructor(self, node: NameNode, scope: TemplateScope | None) -> str:
        owner = node.kids[0]
        while owner.kind in ("template", "scoped"):
            owner = owner.kids[0 if owner.kind == "template" else -1]
        return node.text + self.show(owner, scope)

    def _on_conversion(self, node: NameNode, scope: TemplateScope | None) -> str:
        return "operator " + self.show(node.kids[0], scope)

    def _on_lambda(self, node: NameNode, scope: TemplateScope | None) -> str:
        # Parameters declared `auto` are template parameters of the lambda, which has no arguments.
        generic = TemplateScope((), scope, pack_index=-2)
        return f"{{lambda{self.params(node.kids, generic)}#{node.text}}}"

    def _on_function(self, node: NameNode, scope: TemplateScope | None) -> str:
        name, result, *params = node.kids
        inner = function_scope(name, scope)
        suffix = name.text if name.kind == "qualified_name" else ""
        if name.kind == "local" and name.kids[1].kind == "qualified_name":
            suffix = name.kids[1].text
        text = self.show(name, scope) + self.params(tuple(params), inner) + suffix
        if result.kind == "none":
            return text
        left, right = self.sides(result, inner)
        return f"{left} {text}{right}"

    def _on_local(self, node: NameNode, scope: TemplateScope | None) -> str:
        owner, entity = node.kids
        inner = scope
        if owner.kind == "function":
            inner = function_scope(owner.kids[0], scope)
            # The enclosing function is named by its parameters alone, as c++filt does.
            owner = owner._replace(kids=(owner.kids[0], NameNode("none"), *owner.kids[2:]))
        return f"{self.show(owner, scope)}::{self.show(entity, inner)}"

    def _on_pointer(self, node: NameNode, scope: TemplateScope | None) -> tuple[str, str]:
        target = node.kids[0]
        left, right = self.sides(target, scope)
        if right and not left.endswith("*"):
            return f"{left.rstrip()} ({node.text}", f"){right}"
        if left.endswith("&") and node.text.startswith("&"):
            # References to references collapse, an lvalue one winning.
            both_rvalue = left.endswith("&&") and node.text == "&&"
            return left.rstrip("&") + ("&&" if both_rvalue else "&"), right
        return left + node.text, right

    def _on_cv(self, node: NameNode, scope: TemplateScope | None) -> tuple[str, str]:
        left, right = self.sides(node.kids[0], scope)
        return left if left.endswith(node.text) else left + node.text, right

    def _on_function_type(self, node: NameNode, scope: TemplateScope | None) -> tuple[str, str]:
        result, *params = node.kids
        return self.show(result, scope) + " ", self.params(tuple(params), scope)

    def _on_array(self, node: NameNode, scope: TemplateScope | None) -> tuple[str, str]:
        left, right = self.sides(node.kids[0], scope)
        return left, f" [{self.show(node.kids[1], scope)}]{right}"

    def _on_vector(self, node: NameNode, scope: TemplateScope | None) -> str:
        return f"{self.show(node.kids[0], scope)} __vector({node.text})"

    def _on_decltype(self, node: NameNode, scope: TemplateScope | None) -> str:
        return f"decltype ({self.show(node.kids[0], scope)})"

    def _on_pack(self, node: NameNode, scope: TemplateScope | None) -> str:
        return self.join(node.kids, scope)

    def _on_expansion(self, node: NameNode, scope: TemplateScope | None) -> str:
        size = pack_size(node.kids[0], scope)
        if size is None or scope is None:
            return self.show(node.kids[0], scope) + "..."
        shown = (self.show(node.kids[0], scope._replace(pack_index=i)) for i in range(size))
        return ", ".join(shown)

    def _on_param(self, node: NameNode, scope: TemplateScope | None) -> tuple[str, str]:
        index = int(node.text)
        if scope is not None and scope.pack_index == -2:
            return f"auto:{index + 1}", ""
        if scope is None or index >= len(scope.args):
            raise UnsupportedManglingError
        argument = scope.args[index]
        if argument.kind == "pack" and 0 <= scope.pack_index < len(argument.kids):
            argument = argument.kids[scope.pack_index]
        return self.sides(argument, scope.outer)

    def _on_literal(self, node: NameNode, scope: TemplateScope | None) -> str:
        kind = self.show(node.kids[0], scope)
        if kind == "bool" and node.text in ("0", "1"):
            return "true" if node.text == "1" else "false"
        if kind in LITERAL_SUFFIX:
            return node.text + LITERAL_SUFFIX[kind]
        floating = kind in ("float", "double", "long double")
        return f"({kind})[{node.text}]" if floating else f"({kind}){node.text}"

    def _on_operation(self, node: NameNode, scope: TemplateScope | None) -> str:
        if node.text == "&" and len(node.kids) == 1 and node.kids[0].kind == "function":
            return "&" + self.show(node.kids[0].kids[0], scope)
        shown = [f"({self.show(kid, scope)})" for kid in node.kids]
        if len(shown) == 1:
            return node.text + shown[0]
        text = f"{shown[0]}{node.text}{shown[1]}"
        # A bare `>` would close the template argument list.
        return f"({text})" if node.text == ">" else text

    def _on_sizeof(self, node: NameNode, scope: TemplateScope | None) -> str:
        return f"sizeof ({self.show(node.kids[0], scope)})"

    def _on_sizeof_pack(self, node: NameNode, scope: TemplateScope | None) -> str:
        size = pack_size(node.kids[0], scope)
        if size is None:
            raise UnsupportedManglingError
        return str(size)


def function_scope(name: NameNode, outer: TemplateScope | None) -> TemplateScope | None:
    """Return what template parameters mean in the parameters of the function `name`."""
    last = innermost(name)
    return TemplateScope(last.kids[1:], outer) if last.kind == "template" else outer


def pack_size(node: NameNode, scope: TemplateScope | None) -> int | None:
    """Return how many elements the packs inside `node` have; None if none is a pack."""
    if node.kind == "param" and scope is not None:
        index = int(node.text)
        argument = scope.args[index] if index < len(scope.args) else None
        return len(argument.kids) if argument is not None and argument.kind == "pack" else None
    sizes = (pack_size(kid, scope) for kid in node.kids)
    return next((size for size in sizes if size is not None), None)


def demangle(name: str) -> str:
    """Demangle an Itanium C++ name; anything not understood comes back unchanged."""
    if not name.startswith("_Z") or len(name) > MAX_INPUT:
        return name
    parser = MangledNameParser(name.removesuffix(".kd"))
    parser.pos = 2
    try:
        tree = parser.encoding()
        if parser.pos != len(parser.text) and parser.peek() != ".":
            return name
        return DemanglePrinter(name).show(tree, None)
    except (UnsupportedManglingError, RecursionError, ValueError):
        return name


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
    """The parts of a kernel's name. `subject` and `words` are lower case, for the patterns."""

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
    """Return one spelling for all tools, truncated to a length that is safe to search."""
    text = name[:MAX_TEXT]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    text = ANONYMOUS.sub("", CLONE.sub("", text.strip()))
    return LITERAL_CAST.sub("", text).strip()


def readable_identifiers(mangled: str) -> str:
    """Return the identifiers of a name that could not be demangled, to recognize its family."""
    function: list[str] = []
    arguments: list[str] = []
    identifiers, at = function, 2
    while (number := MANGLED_LENGTH.search(mangled, at)) is not None:
        end = number.end() + int(number.group())
        word = mangled[number.end() : end]
        at = end if IDENTIFIER.fullmatch(word) else number.end()
        if at == end and not word.startswith("_GLOBAL_"):
            identifiers.append(word)
            identifiers = arguments if mangled[end : end + 1] in ("I", "E") else identifiers
    text = "::".join(function) or mangled
    return f"{text}<{', '.join(arguments)}>" if arguments else text


def split(text: str) -> tuple[str, str, str]:
    """Return function name, template arguments and parameters, from one walk over the text."""
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
    """Return the demangled name and its parts."""
    demangled = demangle(raw)
    return demangled, take_apart(demangled)


_MAX_NESTED_PARENTHESES = 40
_INSTANCE = re.compile(r"\s?\(instance (\d+)\)")
_BRACED = re.compile(r"[\[{]lambda[^\[\]{}]*?#?(\d{0,9})[\]}]")
_PARENTHESES = re.compile(r"\([^()]*\)")
_UNNAMED = re.compile(r"(?:<?unnamed>|_GLOBAL__N_\w*)(?=::)")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|struct|class|enum)\b")
_RETURNS = re.compile(r"\bvoid (?=[\w:])")
_TYPED = re.compile(r"(?<=[<,])[\w: ]*=(?=-?\d)")
"""`<int=32>`, as profilers wrote it until 2019."""
_LITERAL = re.compile(r"(?<![\w.])(-?\d+)(?:ull|ul|ll|u|l)\b", re.IGNORECASE)
_EMPTY_SCOPE = re.compile(r"(?<![\w>#])::|(?<=::)::")
_SPACE = re.compile(r"\s+(?!\w)|(?<!\w)\s+")


def normal_name(name: str) -> str:
    """Return the spelling that names of one kernel share; two kernels' names stay different."""
    text = CLONE.sub("", demangle(name.strip())[:MAX_INPUT])
    text = _without_parameters(_INSTANCE.sub(r"#\1", text))
    text = _UNNAMED.sub("", text)
    text = _RETURNS.sub("", _QUALIFIERS.sub("", text))
    text = re.sub(r"\btrue\b", "1", re.sub(r"\bfalse\b", "0", text))
    text = _SPACE.sub("", _LITERAL.sub(r"\1", _TYPED.sub("", text)))
    return _EMPTY_SCOPE.sub("", text) or name.strip()


def _without_parameters(text: str) -> str:
    """Drop everything in parentheses: parameters, casts, the unnamed namespace.

    A lambda keeps its number, and `operator()` its name.
    """
    text = text.replace("operator ()", "operator()").replace("operator()", "operator_call")
    for _ in range(_MAX_NESTED_PARENTHESES):
        text, changed = _PARENTHESES.subn("", text)
        if not changed:
            break
    return _BRACED.sub(r"lambda#\1", text)
