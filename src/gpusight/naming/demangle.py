"""Itanium C++ names demangled.

Captures carry mangled names where the tool did not demangle them (HIP traces, ncu, cuDNN's long
CUTLASS instances). The parser builds a small tree and prints it afterwards, since a substitution
may name a template parameter whose meaning depends on where it is printed. What is not understood
leaves the name as it was: a wrong name is worse than a mangled one.
"""

from __future__ import annotations

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
