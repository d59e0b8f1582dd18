"""Loaded by every Python below `gpusight record`, before the program itself.

Small, and without what Python before 3.6 cannot read: any Python may come by here. What goes wrong
is printed as one line; the program runs all the same.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PROFILERS = ("ncu", "nsys", "nsight", "Qdstrm")
"""How the programs of the profilers around us begin; some have a Python of their own inside."""


def _load(spec: importlib.machinery.ModuleSpec) -> None:
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)


def _make_importable() -> None:
    """Load gpusight from where this file lies, unless the program's own Python has it.

    Only that package: the rest of the environment it is installed in stays out of the program.
    """
    found = importlib.util.find_spec("gpusight")
    origin = found.origin if found is not None else None
    if origin and (Path(origin).parent / "recording" / "inside" / "start_recording.py").exists():
        return
    root = _HERE.parents[2]
    spec = importlib.util.spec_from_file_location(
        "gpusight", str(root / "__init__.py"), submodule_search_locations=[str(root)]
    )
    assert spec is not None
    _load(spec)


def _is_profiler() -> bool:
    return os.path.realpath("/proc/self/exe").rpartition("/")[2].startswith(_PROFILERS)


def _sample_stacks_on_old_python() -> bool:
    """Sample the stacks of a Python before 3.10, which the rest of us needs, if that is all.

    Python before 3.8 is left alone: nsys records it all the same. Returns whether this is all that
    is to be done.
    """
    version = tuple(sys.version_info[:2])  # of the program, not ours
    if version >= (3, 10):
        return False
    import json

    plan = json.loads(os.environ["GPUSIGHT_RECORD"])
    if plan["recorder"] != "surrounded":
        return False
    if version >= (3, 8):
        path = _HERE.parent / "stack_sampler.py"
        spec = importlib.util.spec_from_file_location("gpusight_stack_sampler", str(path))
        assert spec is not None
        _load(spec)
        stacks = sys.modules["gpusight_stack_sampler"]
        session = os.environ[stacks.SESSION_VARIABLE]
        stacks.StackSampler(
            plan["output"], session, plan["stacks_hz"], plan["stacks_threads"], _log
        ).start()
    return True


def _log(text: str) -> None:
    sys.stderr.write("gpusight: " + text + "\n")


def _record() -> None:
    if not os.environ.get("GPUSIGHT_RECORD") or _is_profiler():
        return
    try:
        if _sample_stacks_on_old_python():
            return
        if sys.version_info < (3, 10):  # noqa: UP036 - the program's, not ours
            raise RuntimeError("its Python is older than 3.10")
        _make_importable()
        from gpusight.recording.inside.environment import current_plan
        from gpusight.recording.inside.start_recording import start

        plan = current_plan()
        assert plan is not None
        start(plan)
    except Exception as error:  # noqa: BLE001 - nothing of ours may break the program
        why = " ".join(str(error).split()) or type(error).__name__
        line = "gpusight: process " + str(os.getpid()) + " is not recorded: " + why
        sys.stderr.write(line + "\n")


def _run_hidden() -> None:
    """Run the sitecustomize that ours was put in front of, as if ours were not there."""
    rest = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        _load(spec)


_record()
_run_hidden()
