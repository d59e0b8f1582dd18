"""Names without what they reveal: words of a fixed vocabulary stay, everything else is hashed."""

from __future__ import annotations

import hashlib
import re
from operator import attrgetter
from typing import NamedTuple

from gpusight.naming.demangle import demangle
from gpusight.naming.kernel_names import classify
from gpusight.sharing.known_words import kept_words

_LETTERS = "ghjkpxyz"
_HASH_LETTERS = 16
_KEY_BYTES = 64
_MAX_NAME_CHARS = 20_000
"""Longer names are hashed whole."""
_PIECE = re.compile(
    r"(?P<dotted>\d+(?:[.:-]\d+){2,})|(?P<run>[A-Za-z0-9]+)"
    r"|(?P<mark>[ -/:-@\[-`{-~]+)|(?P<odd>.+?)",
    re.DOTALL,
)
_ELEMENT = re.compile(
    r"(?P<number>\d+)|(?P<word>[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+)",
)
_TYPE = r"(?i:tf32|bf16|c?f(?:16|32|64)|[ius](?:8|16|32|64)|e4m3|e5m2|e2m1|\d{1,4}ul?(?![a-zA-Z]))"
_RUN = re.compile(rf"{_TYPE}|\d+|[A-Za-z]+?(?={_TYPE}|[^A-Za-z]|$)")
_IS_TYPE = re.compile(_TYPE)
_JOINS = re.compile(r"[-_ ./@\\]+")
"""What may stand between two unknown words that are hashed as one."""
_MAX_NUMBER_DIGITS = 6
_MAX_SUFFIX_DIGITS = 5
"""Digits that may follow an unknown word directly, as in `layer12`."""
_BY_CATEGORY = {
    "matmul": "gemm_kernel",
    "convolution": "conv",
    "attention": "flash_attn",
    "softmax": "softmax",
    "normalization": "layer_norm",
    "elementwise": "elementwise_kernel",
    "reduction": "reduce_kernel",
    "optimizer": "multi_tensor_apply",
    "embedding": "embedding",
    "copy": "batched_transpose",
    "random": "dropout",
    "sort": "radix_sort",
    "pooling": "pooling",
    "loss": "cross_entropy",
    "communication": "nccl",
    "generated": "triton_",
    "fft": "regular_fft",
    "stencil": "jacobi",
    "loop": "nvkernel_loop_F1L1_1",
    "custom": "kernel",
    "other": "cudnn::kernel",
}
"""A name that `classify` puts into the category, for kernels whose own words do not suffice."""
_BY_PRECISION = {
    ("matmul", "bf16"): "nvjet_tst",
    ("matmul", "fp16"): "nvjet_hsh",
    ("matmul", "tf32"): "nvjet_sss",
    ("matmul", "fp8"): "nvjet_qqq",
    ("matmul", "fp64"): "volta_dgemm",
    ("matmul", "fp32"): "volta_sgemm",
    ("matmul", "complex"): "volta_cgemm",
}
"""Likewise, for those whose letters are the precision."""
_KIND = attrgetter("category", "precision", "tensor_core")


class _Element(NamedTuple):
    text: str
    known: bool
    mark: bool = False


def hash_text(text: str, salt: bytes) -> str:
    """Hash all of a text."""
    digest = hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), key=salt[:_KEY_BYTES], digest_size=_HASH_LETTERS // 2
    ).digest()
    number = int.from_bytes(digest, "big")
    return "".join(_LETTERS[number >> 3 * i & 7] for i in range(_HASH_LETTERS))


def hash_range(name: str, salt: bytes) -> str:
    """Hash the name of a range, mark, domain or operator but for the vocabulary and counters."""
    if len(name) > _MAX_NAME_CHARS:
        return hash_text(name, salt)
    texts = []
    for text, known, _ in _join_elements(_elements(name)):
        hashed = text if known else hash_text(text, salt)
        # A capital letter keeps it apart from the word in front of it.
        texts.append(hashed.capitalize() if not known and text[0].isupper() else hashed)
    return "".join(texts)


def hash_kernel(name: str, salt: bytes) -> str:
    """Hash the name of a kernel so that its category, and if possible its precision, stay."""
    original = classify(name)
    by_words = hash_range(demangle(name), salt)
    hashed = hash_text(name, salt)
    base = _BY_CATEGORY[original.category]
    with_precision = _BY_PRECISION.get((original.category, original.precision), base)
    for candidate in (
        by_words,
        f"{with_precision}_{hashed}",
        f"{base}_{original.precision}_{hashed}",
    ):
        if _KIND(classify(candidate)) == _KIND(original):
            return candidate
    same_category = classify(by_words).category == original.category
    return by_words if same_category else f"{base}_{hashed}"


def _elements(name: str) -> list[_Element]:
    """Split a name into words, numbers and marks, and mark which of them may stay."""
    elements: list[_Element] = []
    for piece in _PIECE.finditer(name):
        text = piece.group()
        if piece.lastgroup == "run":
            elements += _run(text)
        else:
            elements.append(_Element(text, piece.lastgroup == "mark", piece.lastgroup == "mark"))
    return elements


def _run(text: str) -> list[_Element]:
    """Split letters and digits that nothing separates: `layer12`, `s1688gemm`, `CUDAFunctor`."""
    if text.lower() in kept_words():
        return [_Element(text, known=True)]
    texts = []
    for run in _RUN.findall(text):
        # A run that is a word itself is one; else split `CUDAFunctor` into its words.
        is_word = run.isdigit() or _IS_TYPE.fullmatch(run) or run.lower() in kept_words()
        texts += [run] if is_word else [part.group() for part in _ELEMENT.finditer(run)]
    letters = sum(len(part) == 1 and part.isalpha() and part != "x" for part in texts)
    known = [_is_known(part, letters) for part in texts]
    # A digit or letter next to something unknown is part of that, but for a counter at the end.
    for at in (*range(len(texts)), *reversed(range(len(texts)))):
        beside = (at > 0 and not known[at - 1]) or (at + 1 < len(texts) and not known[at + 1])
        counter = (
            at == len(texts) - 1 and texts[at].isdigit() and len(texts[at]) <= _MAX_SUFFIX_DIGITS
        )
        if beside and not counter and (texts[at].isdigit() or len(texts[at]) == 1):
            known[at] = False
    return [_Element(part, is_known) for part, is_known in zip(texts, known, strict=True)]


def _is_known(part: str, letters: int) -> bool:
    if part.isdigit():
        return len(part) <= _MAX_NUMBER_DIGITS
    if len(part) == 1:
        return part == "x" or letters <= 1
    return _IS_TYPE.fullmatch(part) is not None or part.lower() in kept_words()


def _join_elements(elements: list[_Element]) -> list[_Element]:
    """Join unknown elements that only simple marks separate."""
    joined: list[_Element] = []
    for element in elements:
        previous = joined[-1] if joined else None
        if not element.known and previous is not None and not previous.known:
            joined[-1] = _Element(previous.text + element.text, known=False)
        elif (
            not element.known
            and previous is not None
            and previous.mark
            and len(joined) > 1
            and not joined[-2].known
            and _JOINS.fullmatch(previous.text)
        ):
            joined[-2:] = [_Element(joined[-2].text + previous.text + element.text, known=False)]
        else:
            joined.append(element)
    return joined
