"""Reads Itanium-mangled C++ names into a small tree; `demangle` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

# fmt: off
BUILTINS = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "n": "__int128", "o": "unsigned __int128", "f": "float", "d": "double", "e": "long double",
    "g": "__float128", "z": "...",
}
D_BUILTINS = {
    "Dn": "decltype(nullptr)", "Da": "auto", "Dc": "decltype(auto)", "Dh": "half",
    "Du": "char8_t", "Ds": "char16_t", "Di": "char32_t",
}
STD_NAMES = {
    "t": "std", "a": "std::allocator", "b": "std::basic_string", "s": "std::string",
    "i": "std::istream", "o": "std::ostream", "d": "std::iostream",
}
UNARY = {"ng": "-", "nt": "!", "co": "~", "ad": "&", "de": "*", "ps": "+"}
BINARY = {
    "pl": "+", "mi": "-", "ml": "*", "dv": "/", "rm": "%", "an": "&", "or": "|", "eo": "^",
    "aa": "&&", "oo": "||", "eq": "==", "ne": "!=", "lt": "<", "gt": ">", "le": "<=", "ge": ">=",
    "ls": "<<", "rs": ">>",
}
OPERATORS = {
    "cl": "()", "ix": "[]", "aS": "=", "pL": "+=", "mI": "-=", "pp": "++", "mm": "--",
    **UNARY, **BINARY,
}
LITERAL_SUFFIX = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll",
    "unsigned long long": "ull",
}
# fmt: on

MAX_DEPTH = 90


class NameNode(NamedTuple):
    """One part of a name: its kind, its own text and the parts it is made of."""

    kind: str
    text: str = ""
    kids: tuple[NameNode, ...] = ()


class UnsupportedManglingError(Exception):
    """The name is not mangled in a way this module reads."""


class MangledNameParser:
    """Reads one mangled name, left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.depth = 0
        self.seen: list[NameNode] = []

    def peek(self, size: int = 1) -> str:
        """Return the next characters, without taking them."""
        return self.text[self.pos : self.pos + size]

    def take(self, size: int = 1) -> str:
        """Take the next characters; running out means the name is truncated or not mangled."""
        taken = self.peek(size)
        if len(taken) < size:
            raise UnsupportedManglingError
        self.pos += size
        return taken

    def accept(self, text: str) -> bool:
        """Take `text` if it comes next."""
        if self.text.startswith(text, self.pos):
            self.pos += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        """Take `text` or give up."""
        if not self.accept(text):
            raise UnsupportedManglingError

    def remember(self, node: NameNode) -> NameNode:
        """Make `node` a candidate for later substitutions."""
        self.seen.append(node)
        return node

    def number(self) -> int:
        """A decimal number."""
        start = self.pos
        while self.peek().isdecimal() and self.pos - start < 9:
            self.pos += 1
        digits = self.text[start : self.pos]
        if not digits.isascii() or not digits:
            raise UnsupportedManglingError
        return int(digits)

    def sequence(self) -> int:
        """`_` is 0, `0_` is 1 and so on, as parameters and lambdas count."""
        if self.accept("_"):
            return 0
        number = self.number()
        self.expect("_")
        return number + 1

    def substitution_index(self) -> int:
        """As `sequence`, in base 36."""
        end = self.text.find("_", self.pos, self.pos + 7)
        digits = self.take(max(end - self.pos, 0))
        self.expect("_")
        if not all(c.isdecimal() or c.isupper() for c in digits) or not digits.isascii():
            raise UnsupportedManglingError
        return int(digits, 36) + 1 if digits else 0

    # Names

    def encoding(self) -> NameNode:
        """A function with its parameters, or a plain object."""
        self.enter()
        name = self.name()
        types: list[NameNode] = []
        while self.pos < len(self.text) and self.peek() not in "E.":
            types.append(self.type())
        self.depth -= 1
        if not types:
            return name
        if has_return_type(name):
            return NameNode("function", kids=(name, *types))
        return NameNode("function", kids=(name, NameNode("none"), *types))

    def enter(self) -> None:
        """Count one level of nesting, refusing hostile depths."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise UnsupportedManglingError

    def name(self) -> NameNode:
        """Any name: nested, local, or at global scope."""
        head = self.peek()
        if head == "N":
            return self.nested()
        if head == "Z":
            return self.local()
        if head == "S" and self.peek(2) != "St":
            return self.with_args(self.substitution())
        in_std = self.accept("St")
        node = self.unqualified()
        if in_std:
            node = NameNode("scoped", kids=(NameNode("name", "std"), node))
        return self.template(self.remember(node)) if self.peek() == "I" else node

    def with_args(self, node: NameNode) -> NameNode:
        """`node` with the template arguments that follow, if any do."""
        return self.template(node) if self.peek() == "I" else node

    def template(self, node: NameNode) -> NameNode:
        """`node` with the template arguments that follow."""
        return NameNode("template", kids=(node, *self.template_args()))

    def nested(self) -> NameNode:
        """`N … E`: names inside namespaces and classes."""
        self.expect("N")
        qualifiers = "".join(self.take() for _ in range(3) if self.peek() in ("r", "V", "K"))
        reference = self.take() if self.peek() in ("R", "O") else ""
        node: NameNode | None = None
        while not self.accept("E"):
            substituted = self.peek() == "S" and self.peek(2) != "St"
            node = self.component(node)
            plain_std = node == NameNode("name", "std")
            if self.peek() != "E" and not substituted and not plain_std:
                self.remember(node)
        if node is None:
            raise UnsupportedManglingError
        suffix = (" const" if "K" in qualifiers else "") + (
            {"R": " &", "O": " &&", "": ""}[reference]
        )
        return NameNode("qualified_name", suffix, (node,)) if suffix else node

    def component(self, before: NameNode | None) -> NameNode:
        """The next component of a nested name, joined to what came before."""
        head = self.peek()
        if head == "I" and before is not None:
            return self.template(before)
        if head == "S" and before is None:
            return self.substitution()
        if head == "T" and before is None:
            return self.template_param()
        if head == "D" and self.peek(2) in ("Dt", "DT") and before is None:
            return self.decltype()
        node = self.unqualified(before)
        return node if before is None else NameNode("scoped", kids=(before, node))

    def local(self) -> NameNode:
        """`Z function E entity`: what is declared inside a function, lambdas above all."""
        self.expect("Z")
        self.enter()
        owner = self.encoding()
        self.expect("E")
        if self.accept("s"):
            entity = NameNode("name", "string literal")
        else:
            if self.accept("d"):
                self.sequence()
            entity = self.name()
        self.discriminator()
        self.depth -= 1
        return NameNode("local", kids=(owner, entity))

    def discriminator(self) -> None:
        """Skip `_2`, which numbers equal names in one function."""
        if self.accept("__"):
            self.number()
            self.expect("_")
        elif self.peek() == "_" and self.peek(2)[1:].isdecimal():
            self.take(2)

    def unqualified(self, before: NameNode | None = None) -> NameNode:
        """One identifier, operator, constructor, lambda or unnamed type."""
        self.accept("L")
        head = self.peek()
        if head.isdecimal():
            node = self.source_name()
        elif self.accept("Ul"):
            params = self.until_end(self.type)
            node = NameNode("lambda", str(self.sequence() + 1), params)
        elif self.accept("Ut"):
            node = NameNode("name", f"{{unnamed type#{self.sequence() + 1}}}")
        elif head in ("C", "D") and before is not None and self.peek(2)[1:].isdecimal():
            self.take(2)
            node = NameNode("constructor", "~" if head == "D" else "", (before,))
        else:
            node = self.operator_name()
        while self.accept("B"):
            tag = self.source_name()
            node = NameNode("name", f"{node.text}[abi:{tag.text}]")
        return node

    def until_end(self, parse: Callable[[], NameNode]) -> tuple[NameNode, ...]:
        """Types, template arguments or other parts up to `E`."""
        parts: list[NameNode] = []
        while not self.accept("E"):
            parts.append(parse())
        return tuple(parts)

    def source_name(self) -> NameNode:
        """An identifier with its length in front."""
        text = self.take(self.number())
        anonymous = text.startswith("_GLOBAL_") and text[9:10] == "N"
        return NameNode("name", "(anonymous namespace)" if anonymous else text)

    def operator_name(self) -> NameNode:
        """An operator function, or a conversion."""
        code = self.take(2)
        if code == "cv":
            return NameNode("conversion", kids=(self.type(),))
        if code not in OPERATORS:
            raise UnsupportedManglingError
        return NameNode("name", "operator" + OPERATORS[code])

    def substitution(self) -> NameNode:
        """Something named before, or one of the short names of the standard library."""
        self.expect("S")
        head = self.peek()
        if head in STD_NAMES:
            self.take()
            return NameNode("name", STD_NAMES[head])
        index = self.substitution_index()
        if index >= len(self.seen):
            raise UnsupportedManglingError
        return self.seen[index]

    # Types

    def type(self) -> NameNode:
        """Any type. All but builtins and substitutions can be referred to later."""
        self.enter()
        try:
            head = self.peek()
            if head in BUILTINS:
                return NameNode("name", BUILTINS[self.take()])
            if head == "S" and self.peek(2) != "St":
                node = self.substitution()
                # Template arguments turn it into something new.
                return self.remember(self.template(node)) if self.peek() == "I" else node
            if head == "D" and (builtin := self.d_builtin()) is not None:
                return builtin
            return self.remember(self.compound_type())
        finally:
            self.depth -= 1

    def d_builtin(self) -> NameNode | None:
        """Builtins spelt with a `D`."""
        code = self.peek(2)
        if code in D_BUILTINS:
            self.take(2)
            return NameNode("name", D_BUILTINS[code])
        if not self.accept("DF"):
            return None
        width = self.number()
        if self.accept("b"):
            return NameNode("name", "std::bfloat16_t")
        self.expect("_")
        return NameNode("name", f"_Float{width}")

    def compound_type(self) -> NameNode:
        """A type made of others, or a class."""
        head = self.peek()
        if head in ("r", "V", "K"):
            return self.cv_type()
        if head in ("P", "R", "O"):
            self.take()
            return NameNode("pointer", {"P": "*", "R": "&", "O": "&&"}[head], (self.type(),))
        if self.accept("F"):  # result and parameters
            self.accept("Y")
            return NameNode("function_type", kids=self.until_end(self.type))
        if head == "A":
            return self.array_type()
        if head == "T" and self.peek(2)[1:] not in ("s", "u", "e"):
            param = self.template_param()  # perhaps one that is a template itself
            return self.template(self.remember(param)) if self.peek() == "I" else param
        if head == "D":
            return self.d_type()
        if self.accept("u"):
            return self.with_args(self.source_name())
        if head == "T":
            self.take(2)
        return self.name()

    def cv_type(self) -> NameNode:
        """`const` and `volatile`, which print after what they qualify."""
        codes = ""
        while self.peek() in ("r", "V", "K"):
            codes += self.take()
        suffix = (" const" if "K" in codes else "") + (" volatile" if "V" in codes else "")
        return NameNode("cv", suffix, (self.type(),))

    def array_type(self) -> NameNode:
        """`A size _ type`."""
        self.expect("A")
        if self.peek() == "_":
            size = NameNode("none")
        elif self.peek().isdecimal():
            size = NameNode("name", str(self.number()))
        else:
            size = self.expression()
        self.expect("_")
        return NameNode("array", kids=(self.type(), size))

    def d_type(self) -> NameNode:
        """Pack expansions, vectors and decltype."""
        if self.accept("Dp"):
            return NameNode("expansion", kids=(self.type(),))
        if self.accept("Dv"):
            size = self.number()
            self.expect("_")
            return NameNode("vector", str(size), (self.type(),))
        return self.decltype()

    def decltype(self) -> NameNode:
        """`decltype(expression)`."""
        if not (self.accept("Dt") or self.accept("DT")):
            raise UnsupportedManglingError
        inner = self.expression()
        self.expect("E")
        return NameNode("decltype", kids=(inner,))

    def template_param(self) -> NameNode:
        """`T_`, `T0_`: the parameter's place among the arguments."""
        self.expect("T")
        return NameNode("param", str(self.sequence()))

    # Template arguments

    def template_args(self) -> tuple[NameNode, ...]:
        """`I … E`."""
        self.expect("I")
        self.enter()
        args = self.until_end(self.template_arg)
        self.depth -= 1
        return args

    def template_arg(self) -> NameNode:
        """One argument: a type, a literal, an expression or a pack of them."""
        head = self.peek()
        if head == "L":
            return self.literal()
        if self.accept("X"):
            inner = self.expression()
            self.expect("E")
            return inner
        if self.accept("J"):
            return NameNode("pack", kids=self.until_end(self.template_arg))
        return self.type()

    def literal(self) -> NameNode:
        """`L type value E`, or the name of a function."""
        self.expect("L")
        if self.accept("_Z"):
            function = self.encoding()
            self.expect("E")
            return function
        kind = self.type()
        end = self.text.find("E", self.pos)
        if end < 0:
            raise UnsupportedManglingError
        value = self.take(end - self.pos)
        self.expect("E")
        return NameNode("literal", value.replace("n", "-", 1), (kind,))

    def expression(self) -> NameNode:
        """The few expressions that appear in kernels' template arguments."""
        self.enter()
        try:
            return self.any_expression()
        finally:
            self.depth -= 1

    def any_expression(self) -> NameNode:
        """See `expression`."""
        if self.peek() == "T":
            return self.template_param()
        if self.peek() == "L":
            return self.literal()
        if self.accept("sr"):  # T::value
            owner = self.type()
            return NameNode("scoped", kids=(owner, self.with_args(self.source_name())))
        if self.accept("sZ"):
            return NameNode("sizeof_pack", kids=(self.template_param(),))
        if self.accept("st"):
            return NameNode("sizeof", kids=(self.type(),))
        code = self.peek(2)
        if code in UNARY or code in BINARY:
            self.take(2)
            kids = tuple(self.expression() for _ in range(1 if code in UNARY else 2))
            return NameNode("operation", OPERATORS[code], kids)
        raise UnsupportedManglingError


def innermost(node: NameNode) -> NameNode:
    """Return the part of a function's name that decides whether it is a template."""
    while node.kind in ("qualified_name", "local"):
        node = node.kids[-1]
    return node


def has_return_type(name: NameNode) -> bool:
    """Return whether a return type follows: only templates have one, but not constructors."""
    last = innermost(name)
    if last.kind != "template":
        return False
    owner = last.kids[0]
    tail = owner.kids[-1] if owner.kind == "scoped" else owner
    return tail.kind not in ("constructor", "conversion")
