"""What names mean: C++ demangling, kernel families and precisions, metrics of Nsight Compute."""

from __future__ import annotations


def demangle_if_mangled(name: str) -> str:
    """Demangle a name; nearly all are already, and the demangler is slow to import."""
    if not name.startswith("_Z"):
        return name
    from gpusight.naming.demangle import demangle

    return demangle(name)
