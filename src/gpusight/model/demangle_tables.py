"""The codes of Itanium name mangling that kernel names use."""

from __future__ import annotations

BUILTINS = {
    "v": "void",
    "w": "wchar_t",
    "b": "bool",
    "c": "char",
    "a": "signed char",
    "h": "unsigned char",
    "s": "short",
    "t": "unsigned short",
    "i": "int",
    "j": "unsigned int",
    "l": "long",
    "m": "unsigned long",
    "x": "long long",
    "y": "unsigned long long",
    "n": "__int128",
    "o": "unsigned __int128",
    "f": "float",
    "d": "double",
    "e": "long double",
    "g": "__float128",
    "z": "...",
}
D_BUILTINS = {
    "Dn": "decltype(nullptr)",
    "Da": "auto",
    "Dc": "decltype(auto)",
    "Dh": "half",
    "Du": "char8_t",
    "Ds": "char16_t",
    "Di": "char32_t",
}
STD_NAMES = {
    "t": "std",
    "a": "std::allocator",
    "b": "std::basic_string",
    "s": "std::string",
    "i": "std::istream",
    "o": "std::ostream",
    "d": "std::iostream",
}
UNARY = {"ng": "-", "nt": "!", "co": "~", "ad": "&", "de": "*", "ps": "+"}
BINARY = {
    "pl": "+",
    "mi": "-",
    "ml": "*",
    "dv": "/",
    "rm": "%",
    "an": "&",
    "or": "|",
    "eo": "^",
    "aa": "&&",
    "oo": "||",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "ls": "<<",
    "rs": ">>",
}
OPERATORS = {"cl": "()", "ix": "[]", "aS": "=", "pL": "+=", "mI": "-=", "pp": "++", "mm": "--"} | {
    **UNARY,
    **BINARY,
}
LITERAL_SUFFIX = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul"} | {
    "long long": "ll",
    "unsigned long long": "ull",
}
