"""NVTX without a package, against tools in C that note which of their functions are called."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from gpusight.recording.inside import nvtx_direct
from gpusight.recording.inside.nvtx_backend import NvtxEvent
from gpusight.recording.inside.nvtx_direct import DirectBackend

_TOOL = r"""
#include <stdint.h>
#include <stdio.h>
#include <stddef.h>
#include <string.h>
typedef struct {
  uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color;
  int32_t payload_type, reserved; int64_t payload; int32_t message_type; const char *message;
} attributes;
typedef void (*function)(void);
typedef int (*get_table)(int, function ***, unsigned *);
typedef struct { size_t size; get_table get; } callbacks;
static char log_[4096];
const char *log_text(void) { return log_; }
static void note(const char *what, const char *domain, const attributes *a) {
  char line[256];
  if (a)
    snprintf(line, sizeof line, "%s %s %s %s category %u color %x payload %lld\n", what, domain,
             a->message_type == 3 ? "registered" : "plain", a->message, a->category, a->color,
             (long long)a->payload);
  else snprintf(line, sizeof line, "%s %s\n", what, domain);
  strncat(log_, line, sizeof log_ - strlen(log_) - 1);
}
#define NAME(d) ((d) ? (const char *)(d) : "(no domain)")
static void mark(void *d, attributes *a) { note("mark", NAME(d), a); }
static uint64_t start(void *d, attributes *a) { note("start", NAME(d), a); return 41; }
static void end(void *d, uint64_t id) { note(id == 41 ? "end 41" : "end ?", NAME(d), 0); }
static int push(void *d, attributes *a) { note("push", NAME(d), a); return 0; }
static int pop(void *d) { note("pop", NAME(d), 0); return 0; }
static void category(void *d, uint32_t n, const char *s) { (void)n; note(s, NAME(d), 0); }
static void *keep(const char *s) { char *k = __builtin_malloc(64); return strcpy(k, s); }
static void *string(void *d, const char *s) { (void)d; return keep(s); }
static void *domain(const char *s) { return keep(s); }
static void old_mark(attributes *a) { note("old mark", "-", a); }
static uint64_t old_start(attributes *a) { note("old start", "-", a); return 41; }
static void old_end(uint64_t id) { note(id == 41 ? "old end 41" : "old end ?", "-", 0); }
static int old_push(attributes *a) { note("old push", "-", a); return 0; }
static int old_pop(void) { note("old pop", "-", 0); return 0; }
int InitializeInjectionNvtx2(const void *(*export_)(uint32_t)) {
  const callbacks *c = export_(1);
  function **t; unsigned n;
  if (!c || !c->get(5, &t, &n) || n < 16) return 0;
  *t[1] = (function)mark; *t[2] = (function)start; *t[3] = (function)end; *t[4] = (function)push;
  *t[5] = (function)pop; *t[8] = (function)category; *t[10] = (function)string;
  *t[12] = (function)domain;
  if (!c->get(1, &t, &n)) return 0;
  *t[1] = (function)old_mark; *t[4] = (function)old_start; *t[7] = (function)old_end;
  *t[8] = (function)old_push; *t[11] = (function)old_pop;
  return 1;
}
#ifdef CUPTI
int cuptiGetVersion(uint32_t *v) { *v = 130000; return 0; }
#endif
"""


def listening(folder: Path, *flags: str) -> tuple[DirectBackend, ctypes.CDLL]:
    """Compile a tool and let it listen."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    source, built = folder / "tool.c", folder / "tool.so"
    source.write_text(_TOOL)
    command = [str(compiler), "-shared", "-fPIC", *flags, "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(built))
    library.log_text.restype = ctypes.c_char_p
    return DirectBackend.load(str(built)), library


def speak(backend: DirectBackend) -> None:
    """Use everything once, in the default domain and in another."""
    for domain in (None, "mine"):
        backend.push(NvtxEvent("range", domain, color=0xFF00FF00))
        backend.mark(NvtxEvent("here", domain, "kind", payload=7))
        backend.end(backend.start(NvtxEvent("task", domain)))
        backend.pop(domain)


def logged_calls(library: ctypes.CDLL) -> list[str]:
    text: bytes = library.log_text()
    return text.decode().splitlines()


IN_MINE = [
    "push mine registered range category 0 color ff00ff00 payload 0",
    "kind mine",
    "mark mine registered here category 1 color 0 payload 7",
    "start mine registered task category 0 color 0 payload 0",
    "end 41 mine",
    "pop mine",
]


def test_names_are_registered_for_tools_that_filter_by_them(tmp_path: Path) -> None:
    backend, library = listening(tmp_path)
    speak(backend)
    assert (
        logged_calls(library) == [line.replace("mine", "(no domain)") for line in IN_MINE] + IN_MINE
    )


def test_cupti_hears_the_default_domain_through_the_oldest_functions(tmp_path: Path) -> None:
    backend, library = listening(tmp_path, "-DCUPTI")
    speak(backend)
    assert logged_calls(library) == [
        "old push - plain range category 0 color ff00ff00 payload 0",
        "kind (no domain)",
        "old mark - plain here category 1 color 0 payload 7",
        "old start - plain task category 0 color 0 payload 0",
        "old end 41 -",
        "old pop -",
        *IN_MINE,
    ]


def test_a_range_that_the_garbage_collector_opens_meanwhile_does_not_wait_for_ever(
    tmp_path: Path,
) -> None:
    backend, library = listening(tmp_path)
    name_category = backend._name_category

    def interrupted(*what: Any) -> None:
        backend._name_category = name_category
        backend.mark(NvtxEvent("inner", "other", "second"))
        backend.mark(NvtxEvent("inner", None, "third"))
        name_category(*what)

    backend._name_category = interrupted
    speaking = threading.Thread(
        target=backend.mark, args=(NvtxEvent("outer", None, "first"),), daemon=True
    )
    speaking.start()
    speaking.join(10)
    assert not speaking.is_alive()
    marks = [line for line in logged_calls(library) if line.startswith("mark (no domain)")]
    assert [line.split(" color")[0].rpartition(" ")[2] for line in marks] == ["2", "1"]


def test_names_without_end_are_not_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvtx_direct, "_KEPT", 1)
    monkeypatch.setattr(nvtx_direct, "_MAX_REGISTERED", 2)
    backend, library = listening(tmp_path)
    for number in (0, 1, 2, 1):
        backend.mark(NvtxEvent(f"request {number}"))
    assert [
        line.split(" category")[0].removeprefix("mark (no domain) ")
        for line in logged_calls(library)
    ] == [
        "registered request 0",
        "registered request 1",
        "plain request 2",
        "registered request 1",
    ]
