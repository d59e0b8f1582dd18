"""Reads Itanium-mangled C++ names into a small tree; `demangle` prints it."""

from __future__ import annotations

from typing import NamedTuple

from gpusight.model.demangle_tables import (
    BINARY,
    BUILTINS,
    D_BUILTINS,
    OPERATORS,
    STD_NAMES,
    UNARY,
)

MAX_DEPTH = 90


class Node(NamedTuple):
    """One piece of a name: its kind, its own text and the pieces it is made of."""

    kind: str
    text: str = ""
    kids: tuple[Node, ...] = ()


class NotUnderstoodError(Exception):
    """The name is not mangled in a way this module reads."""


class Parser:
    """Reads one mangled name, left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.depth = 0
        self.seen: list[Node] = []

    def peek(self, size: int = 1) -> str:
        """The next characters, without taking them."""
        return self.text[self.pos : self.pos + size]

    def take(self, size: int = 1) -> str:
        """The next characters; running out means the name is cut or not mangled."""
        found = self.peek(size)
        if len(found) < size:
            raise NotUnderstoodError
        self.pos += size
        return found

    def accept(self, text: str) -> bool:
        """Take `text` if it comes next."""
        if self.text.startswith(text, self.pos):
            self.pos += len(text)
            return True
        return False

    def expect(self, text: str) -> None:
        """Take `text` or give up."""
        if not self.accept(text):
            raise NotUnderstoodError

    def remember(self, node: Node) -> Node:
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
            raise NotUnderstoodError
        return int(digits)

    def sequence(self) -> int:
        """`_` is 0, `0_` is 1 and so on, as parameters and lambdas count."""
        if self.accept("_"):
            return 0
        found = self.number()
        self.expect("_")
        return found + 1

    def substitution_index(self) -> int:
        """As `sequence`, in base 36."""
        end = self.text.find("_", self.pos, self.pos + 7)
        digits = self.take(max(end - self.pos, 0))
        self.expect("_")
        if not all(c.isdecimal() or c.isupper() for c in digits) or not digits.isascii():
            raise NotUnderstoodError
        return int(digits, 36) + 1 if digits else 0

    # Names

    def encoding(self) -> Node:
        """A function with its parameters, or a plain object."""
        self.enter()
        name = self.name()
        types: list[Node] = []
        while self.pos < len(self.text) and self.peek() not in "E.":
            types.append(self.type())
        self.depth -= 1
        if not types:
            return name
        if has_return_type(name):
            return Node("function", kids=(name, types[0], *types[1:]))
        return Node("function", kids=(name, Node("none"), *types))

    def enter(self) -> None:
        """Count one level of nesting, refusing hostile depths."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotUnderstoodError

    def name(self) -> Node:
        """Any name: nested, local, or at global scope."""
        head = self.peek()
        if head == "N":
            return self.nested()
        if head == "Z":
            return self.local()
        if head == "S" and self.peek(2) != "St":
            return self.with_args(self.substitution())
        prefix = Node("name", "std") if self.accept("St") else None
        found = self.unqualified()
        if prefix is not None:
            found = Node("scoped", kids=(prefix, found))
        if self.peek() == "I":
            self.remember(found)
            found = self.with_args(found)
        return found

    def with_args(self, node: Node) -> Node:
        """`node` with the template arguments that follow, if any do."""
        return self.template(node) if self.peek() == "I" else node

    def template(self, node: Node) -> Node:
        """`node` with the template arguments that follow."""
        return Node("template", kids=(node, *self.template_args()))

    def nested(self) -> Node:
        """`N … E`: names inside namespaces and classes."""
        self.expect("N")
        qualifiers = "".join(self.take() for _ in range(3) if self.peek() in ("r", "V", "K"))
        reference = self.take() if self.peek() in ("R", "O") else ""
        node: Node | None = None
        while not self.accept("E"):
            substituted = self.peek() == "S" and self.peek(2) != "St"
            node = self.component(node)
            plain_std = node == Node("name", "std")
            if self.peek() != "E" and not substituted and not plain_std:
                self.remember(node)
        if node is None:
            raise NotUnderstoodError
        suffix = (" const" if "K" in qualifiers else "") + (
            {"R": " &", "O": " &&", "": ""}[reference]
        )
        return Node("qualified_name", suffix, (node,)) if suffix else node

    def component(self, before: Node | None) -> Node:
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
        found = self.unqualified(before)
        return found if before is None else Node("scoped", kids=(before, found))

    def local(self) -> Node:
        """`Z function E entity`: what is declared inside a function, lambdas above all."""
        self.expect("Z")
        self.enter()
        owner = self.encoding()
        self.expect("E")
        if self.accept("s"):
            entity = Node("name", "string literal")
        else:
            if self.accept("d"):
                self.sequence()
            entity = self.name()
        self.discriminator()
        self.depth -= 1
        return Node("local", kids=(owner, entity))

    def discriminator(self) -> None:
        """Skip `_2`, which tells apart namesakes in one function."""
        if self.accept("__"):
            self.number()
            self.expect("_")
        elif self.peek() == "_" and self.peek(2)[1:].isdecimal():
            self.take(2)

    def unqualified(self, before: Node | None = None) -> Node:
        """One identifier, operator, constructor, lambda or unnamed type."""
        self.accept("L")
        head = self.peek()
        if head.isdecimal():
            found = self.source_name()
        elif self.peek(2) == "Ul":
            found = self.lambda_name()
        elif self.peek(2) == "Ut":
            self.take(2)
            found = Node("name", f"{{unnamed type#{self.sequence() + 1}}}")
        elif head in ("C", "D") and before is not None and self.peek(2)[1:].isdecimal():
            self.take(2)
            found = Node("constructor", "~" if head == "D" else "", (before,))
        else:
            found = self.operator_name()
        while self.accept("B"):
            tag = self.source_name()
            found = Node("name", f"{found.text}[abi:{tag.text}]")
        return found

    def source_name(self) -> Node:
        """An identifier with its length in front."""
        text = self.take(self.number())
        anonymous = text.startswith("_GLOBAL_") and text[9:10] == "N"
        return Node("name", "(anonymous namespace)" if anonymous else text)

    def operator_name(self) -> Node:
        """An operator function, or a conversion."""
        code = self.take(2)
        if code == "cv":
            return Node("conversion", kids=(self.type(),))
        if code not in OPERATORS:
            raise NotUnderstoodError
        return Node("name", "operator" + OPERATORS[code])

    def lambda_name(self) -> Node:
        """A lambda, told apart by its parameters and its number."""
        self.expect("Ul")
        params: list[Node] = []
        while not self.accept("E"):
            params.append(self.type())
        return Node("lambda", str(self.sequence() + 1), tuple(params))

    def substitution(self) -> Node:
        """Something named before, or one of the short names of the standard library."""
        self.expect("S")
        head = self.peek()
        if head in STD_NAMES:
            self.take()
            return Node("name", STD_NAMES[head])
        index = self.substitution_index()
        if index >= len(self.seen):
            raise NotUnderstoodError
        return self.seen[index]

    # Types

    def type(self) -> Node:
        """Any type. All but builtins and substitutions can be referred to later."""
        self.enter()
        try:
            head = self.peek()
            if head in BUILTINS:
                return Node("name", BUILTINS[self.take()])
            if head == "S" and self.peek(2) != "St":
                return self.substituted_type()
            if head == "D" and (builtin := self.d_builtin()) is not None:
                return builtin
            return self.remember(self.compound_type())
        finally:
            self.depth -= 1

    def substituted_type(self) -> Node:
        """A substitution, which its template arguments turn into something new."""
        found = self.substitution()
        return self.remember(self.template(found)) if self.peek() == "I" else found

    def d_builtin(self) -> Node | None:
        """Builtins spelt with a `D`."""
        code = self.peek(2)
        if code in D_BUILTINS:
            self.take(2)
            return Node("name", D_BUILTINS[code])
        if not self.accept("DF"):
            return None
        width = self.number()
        return Node("name", "std::bfloat16_t" if self.accept("b") else self.float_name(width))

    def float_name(self, width: int) -> str:
        """`_Float16` and its like, after their width."""
        self.expect("_")
        return f"_Float{width}"

    def compound_type(self) -> Node:
        """A type made of others, or a class."""
        head = self.peek()
        if head in ("r", "V", "K"):
            return self.cv_type()
        if head in ("P", "R", "O"):
            self.take()
            return Node("pointer", {"P": "*", "R": "&", "O": "&&"}[head], (self.type(),))
        if head == "F":
            return self.function_type()
        if head == "A":
            return self.array_type()
        if head == "T" and self.peek(2)[1:] not in ("s", "u", "e"):
            return self.param_type()
        if head == "D":
            return self.d_type()
        if head == "u":
            self.take()
            return self.with_args(self.source_name())
        if head == "T":
            self.take(2)
        return self.name()

    def param_type(self) -> Node:
        """A template parameter, perhaps one that is a template itself."""
        found = self.template_param()
        if self.peek() != "I":
            return found
        self.remember(found)
        return self.template(found)

    def cv_type(self) -> Node:
        """`const` and `volatile`, which print after what they qualify."""
        codes = ""
        while self.peek() in ("r", "V", "K"):
            codes += self.take()
        suffix = (" const" if "K" in codes else "") + (" volatile" if "V" in codes else "")
        return Node("cv", suffix, (self.type(),))

    def function_type(self) -> Node:
        """`F result params E`."""
        self.expect("F")
        self.accept("Y")
        types: list[Node] = []
        while not self.accept("E"):
            types.append(self.type())
        return Node("function_type", kids=tuple(types))

    def array_type(self) -> Node:
        """`A size _ type`."""
        self.expect("A")
        if self.peek() == "_":
            size = Node("none")
        elif self.peek().isdecimal():
            size = Node("name", str(self.number()))
        else:
            size = self.expression()
        self.expect("_")
        return Node("array", kids=(self.type(), size))

    def d_type(self) -> Node:
        """Pack expansions, vectors and decltype."""
        if self.accept("Dp"):
            return Node("expansion", kids=(self.type(),))
        if self.accept("Dv"):
            size = self.number()
            self.expect("_")
            return Node("vector", str(size), (self.type(),))
        return self.decltype()

    def decltype(self) -> Node:
        """`decltype(expression)`."""
        if not (self.accept("Dt") or self.accept("DT")):
            raise NotUnderstoodError
        inner = self.expression()
        self.expect("E")
        return Node("decltype", kids=(inner,))

    def template_param(self) -> Node:
        """`T_`, `T0_`: the parameter's place among the arguments."""
        self.expect("T")
        return Node("param", str(self.sequence()))

    # Template arguments

    def template_args(self) -> tuple[Node, ...]:
        """`I … E`."""
        self.expect("I")
        self.enter()
        found: list[Node] = []
        while not self.accept("E"):
            found.append(self.template_arg())
        self.depth -= 1
        return tuple(found)

    def template_arg(self) -> Node:
        """One argument: a type, a literal, an expression or a pack of them."""
        head = self.peek()
        if head == "L":
            return self.literal()
        if head == "X":
            self.take()
            inner = self.expression()
            self.expect("E")
            return inner
        if head == "J":
            self.take()
            packed: list[Node] = []
            while not self.accept("E"):
                packed.append(self.template_arg())
            return Node("pack", kids=tuple(packed))
        return self.type()

    def literal(self) -> Node:
        """`L type value E`, or the name of a function."""
        self.expect("L")
        if self.accept("_Z"):
            found = self.encoding()
            self.expect("E")
            return found
        kind = self.type()
        end = self.text.find("E", self.pos)
        if end < 0:
            raise NotUnderstoodError
        value = self.take(end - self.pos)
        self.expect("E")
        return Node("literal", value.replace("n", "-", 1), (kind,))

    def expression(self) -> Node:
        """The few expressions that appear in kernels' template arguments."""
        self.enter()
        try:
            return self.any_expression()
        finally:
            self.depth -= 1

    def any_expression(self) -> Node:
        """See `expression`."""
        if self.peek() == "T":
            return self.template_param()
        if self.peek() == "L":
            return self.literal()
        code = self.peek(2)
        if code == "sr":
            return self.scope_resolution()
        if self.accept("sZ"):
            return Node("sizeof_pack", kids=(self.template_param(),))
        if self.accept("st"):
            return Node("sizeof", kids=(self.type(),))
        if code in UNARY or code in BINARY:
            self.take(2)
            count = 1 if code in UNARY else 2
            kids = tuple(self.expression() for _ in range(count))
            return Node("operation", OPERATORS[code], kids)
        raise NotUnderstoodError

    def scope_resolution(self) -> Node:
        """`T::value`."""
        self.expect("sr")
        owner = self.type()
        return Node("scoped", kids=(owner, self.with_args(self.source_name())))


def innermost(node: Node) -> Node:
    """The part of a function's name that decides whether it is a template."""
    while node.kind in ("qualified_name", "local"):
        node = node.kids[-1]
    return node


def has_return_type(name: Node) -> bool:
    """Only templates say what they return, and constructors and conversions never do."""
    last = innermost(name)
    if last.kind != "template":
        return False
    owner = last.kids[0]
    tail = owner.kids[-1] if owner.kind == "scoped" else owner
    return tail.kind not in ("constructor", "conversion")
