"""Checks of machines that are described in the test, and of this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpusight.errors import UsageError
from gpusight.recording.debug_settings import debug_settings
from gpusight.recording.doctor.checkup import checkup_page, examine
from gpusight.recording.doctor.gpu_checks import generation
from gpusight.recording.doctor.machine import (
    Ability,
    CheckState,
    Checkup,
    CommandResult,
    Machine,
    MachineCheck,
)
from gpusight.recording.request import Tool
from gpusight.recording.tools import BrokenTool
from gpusight.render.result_view import DoctorView
from tests.recording.doctor.machines import (
    CUPTI_13,
    H200_FILES,
    NCU_2025,
    NSYS_2025,
    PYTHON,
    ROOT,
    Described,
    driver,
    h200,
    json_result,
    packages,
    smi,
    status,
    tool,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

CLOSED = {"/proc/driver/nvidia/params": "RmProfilingAdminOnly: 1\n"}
IMPORTER = "/opt/nvidia/nsight-systems/2025.3.1/host-linux-x64/QdstrmImporter"


def checked(machine: Described, python: str | None = None) -> Checkup:
    return examine(machine, folder="/data", python=python)


def abilities(checkup: Checkup) -> dict[str, str]:
    return {verdict.tool.value: verdict.can.value for verdict in checkup.verdicts}


def check(checkup: Checkup, key: str) -> MachineCheck:
    return next(check for check in checkup.checks if check.key == key)


def test_a_machine_with_everything() -> None:
    checkup = checked(h200())
    assert abilities(checkup) == dict.fromkeys(("nsys", "ncu", "torch", "cupti"), "yes")
    assert all(check.state is CheckState.OK for check in checkup.checks)
    assert all(not v.why and not v.without for v in checkup.verdicts)
    assert checkup.record_uses is Tool.NSYS
    assert check(checkup, "gpu").found == "1 x NVIDIA H200 (compute capability 9.0)"
    assert check(checkup, "driver").found == "580.82.07, CUDA up to 13.0"
    assert checkup.verdict(Tool.NSYS).found == f"2025.3.1 ({NSYS_2025})"


def test_a_laptop_without_a_gpu() -> None:
    machine = Described(
        files={"/proc/sys/kernel/perf_event_paranoid": "4\n", "/proc/self/status": status()},
        programs={
            "/usr/bin/python3": CommandResult(0, ""),
            "probe_packages": packages(),
            "probe_driver": json_result(library=False),
        },
    )
    checkup = checked(machine)
    assert abilities(checkup) == dict.fromkeys(("nsys", "ncu", "torch", "cupti"), "no")
    assert checkup.record_uses is None
    assert check(checkup, "torch").commands == ("/usr/bin/python3 -m pip install torch",)
    assert check(checkup, "cpu-samples").commands == ("sudo sysctl kernel.perf_event_paranoid=2",)
    assert "counters" not in {c.key for c in checkup.checks}
    assert "cannot record here" in DoctorView(checkup).to_text()


def test_a_mac_reads_captures() -> None:
    programs = {**PYTHON, "probe_driver": json_result(library=False)}
    checkup = checked(Described(system="Darwin", kernel="24.1.0", programs=programs))
    assert abilities(checkup)["torch"] == "partly"
    assert checkup.record_uses is Tool.TORCH
    assert "read as anywhere" in check(checkup, "system").means
    assert check(checkup, "gpu").found == "macOS has no NVIDIA GPUs"
    assert not {"counters", "cpu-samples"} & {c.key for c in checkup.checks}


def test_windows_needs_an_administrator_for_nsys() -> None:
    verdict = checked(h200(system="Windows", kernel="10")).verdict(Tool.NSYS)
    assert verdict.can is Ability.PARTLY
    assert verdict.why == ("Windows: needs an administrator",)


@pytest.mark.parametrize(
    ("capabilities", "can"),
    [
        ("0000000000000000", "no"),
        (ROOT, "yes"),
        ("0000000000200000", "yes"),
        ("4000000000", "partly"),
    ],
)
def test_counters_for_administrators(capabilities: str, can: str) -> None:
    files = {**CLOSED, "/proc/self/status": status(capabilities)}
    checkup = checked(h200(files=files))
    assert abilities(checkup) == {"nsys": "yes", "ncu": can, "torch": "yes", "cupti": "yes"}


def test_counters_in_a_container_need_a_capability() -> None:
    files = {**CLOSED, "/.dockerenv": "", "/proc/self/status": status(seccomp=2)}
    checkup = checked(h200(files=files, shared=64_000_000))
    assert check(checkup, "counters").commands == ("docker run --gpus all --cap-add=SYS_ADMIN …",)
    assert check(checkup, "container").state is CheckState.OK
    assert check(checkup, "shared-memory").commands == ("docker run --shm-size=8g …",)
    assert "seccomp" in check(checkup, "cpu-samples").found
    assert checkup.verdict(Tool.NSYS).can is Ability.YES
    assert checkup.verdict(Tool.NSYS).without == (
        "GPU metrics (--gpu-metrics)",
        "CPU samples (--python-stacks)",
    )


def test_counters_in_other_containers() -> None:
    pod = h200(files=CLOSED, environment={"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert "SYS_ADMIN" in check(checked(pod), "counters").commands[0]
    own = h200(files=CLOSED, environment={"APPTAINER_CONTAINER": "x.sif"})
    assert "NVreg_Restrict" in check(checked(own), "counters").commands[0]


def test_counters_outside_a_container_are_a_setting_of_the_driver() -> None:
    (command,) = check(checked(h200(files=CLOSED)), "counters").commands
    assert "NVreg_RestrictProfilingToAdminUsers=0" in command


def test_counters_that_cannot_be_seen_are_unknown() -> None:
    machine = h200()
    machine.files = {k: v for k, v in H200_FILES.items() if not k.endswith("params")}
    checkup = checked(machine)
    assert check(checkup, "counters").state is CheckState.UNKNOWN
    assert checkup.verdict(Tool.NCU).can is Ability.YES


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({"/run/.containerenv": ""}, {}, "Podman"),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "x.sif"}, "Apptainer"),
        ({"/proc/1/cgroup": "0::/kubepods/besteffort/pod1"}, {}, "Kubernetes"),
    ],
)
def test_kinds_of_containers(files: dict[str, str], environment: dict[str, str], kind: str) -> None:
    machine = h200(files=files, environment=environment)
    assert f"looks like {kind}" in check(checked(machine), "container").found


def test_a_container_without_its_gpu() -> None:
    machine = Described(
        files={"/.dockerenv": "", "/proc/self/status": status()},
        programs={**PYTHON, "probe_driver": json_result(library=False)},
        installed={Tool.NSYS: [tool(Tool.NSYS, NSYS_2025, 2025, 3, 1)]},
    )
    checkup = checked(machine)
    assert check(checkup, "container").commands == ("docker run --gpus all …",)
    assert checkup.verdict(Tool.NSYS).can is Ability.PARTLY


WSL = "5.15.167.4-microsoft-standard-WSL2"


@pytest.mark.parametrize(("version", "ncu"), [("566.36", "partly"), ("512.15", "no")])
def test_wsl2(version: str, ncu: str) -> None:
    machine = h200(
        kernel=WSL,
        files={"/usr/lib/wsl/lib/libcuda.so.1": "", "/proc/driver/nvidia/params": ""},
        programs={
            "/usr/bin/nvidia-smi": smi("NVIDIA GeForce RTX 4090", "8.9", version),
            "probe_driver": driver("NVIDIA GeForce RTX 4090", (8, 9), 12070),
            "probe_cupti": json_result(library=None, unfit=CUPTI_13, works=False, why=""),
        },
    )
    checkup = checked(machine)
    assert abilities(checkup) == {"nsys": "partly", "ncu": ncu, "torch": "partly", "cupti": "no"}
    assert "Control Panel" in check(checkup, "counters").fix
    assert "needs a newer CUDA than the driver supports" in check(checkup, "cupti").found


def test_wsl_without_the_driver_of_windows_and_wsl1() -> None:
    assert "--shutdown" in check(checked(Described(kernel=WSL, programs=PYTHON)), "wsl").commands[0]
    first = Described(kernel="4.4.0-19041-Microsoft", programs=PYTHON)
    assert check(checked(first), "wsl").state is CheckState.MISSING


def test_without_nsys_record_uses_cupti_then_torch() -> None:
    checkup = checked(h200(installed={Tool.NSYS: []}))
    assert checkup.record_uses is Tool.CUPTI
    assert check(checkup, "nsys").commands == ("export GPUSIGHT_NSYS=/path/to/nsys",)
    lacking = {"probe_cupti": json_result(library=None, unfit=None, works=False, why="")}
    assert checked(h200(installed={Tool.NSYS: []}, programs=lacking)).record_uses is Tool.TORCH


def test_the_tool_that_is_used_is_the_one_that_counts() -> None:
    script = tool(Tool.NSYS, "/usr/local/cuda/bin/nsys", 2025, 3, 1)
    older = tool(Tool.NSYS, "/usr/bin/nsys", 2022, 4, 2)
    real = tool(Tool.NSYS, NSYS_2025, 2025, 3, 1)
    checkup = checked(h200(installed={Tool.NSYS: [script, real, older]}))
    assert checkup.verdict(Tool.NSYS).found.startswith("2025.3.1 (/usr/local/cuda/bin/nsys); also")
    assert check(checkup, "importer").found == "starts"


def test_a_tool_that_does_not_start_is_named() -> None:
    broken = BrokenTool(path=Path("/opt/old/nsys"), why="does not run: libfoo.so.1 is missing")
    both = h200(installed={Tool.NSYS: [tool(Tool.NSYS, NSYS_2025, 2025, 3, 1), broken]})
    assert "; also /opt/old/nsys does not run: libfoo" in check(checked(both), "nsys").found
    only = checked(h200(installed={Tool.NSYS: [broken]}))
    assert only.verdict(Tool.NSYS).why == ("nsys does not start",)


B200 = {"/usr/bin/nvidia-smi": smi("NVIDIA B200", "10.0"), "probe_driver": driver("B200", (10, 0))}


def test_an_old_ncu_does_not_measure_a_new_gpu() -> None:
    old = {Tool.NCU: [tool(Tool.NCU, NCU_2025, 2024, 3, 2)]}
    verdict = checked(h200(programs=B200, installed=old)).verdict(Tool.NCU)
    assert verdict.can is Ability.NO
    assert verdict.why == ("ncu 2024.3.2: Blackwell GPUs need ncu 2025.1 or newer",)
    assert checked(h200(programs=B200)).verdict(Tool.NCU).can is Ability.YES


def test_a_new_ncu_does_not_measure_an_old_gpu() -> None:
    v100 = {"/usr/bin/nvidia-smi": smi("Tesla V100", "7.0"), "probe_driver": driver("V100", (7, 0))}
    verdict = checked(h200(programs=v100)).verdict(Tool.NCU)
    assert verdict.why == ("ncu 2025.3.1: Volta GPUs need ncu 2025.2 or older",)


def test_an_nsys_whose_cupti_is_older_than_the_gpu() -> None:
    machine = h200(programs=B200)
    machine.files = {k: v for k, v in H200_FILES.items() if "libcupti" not in k}
    assert (
        checked(machine).verdict(Tool.NSYS).can is Ability.YES
    )  # nothing is known: nothing is said
    machine.files = {**machine.files, str(Path(NSYS_2025).parent / "libcupti.so.12.4"): ""}
    verdict = checked(machine).verdict(Tool.NSYS)
    assert verdict.can is Ability.PARTLY
    assert "CUPTI up to 12.4, and Blackwell GPUs need 12.8" in verdict.why[0]


def test_a_gpu_from_the_future_is_not_judged() -> None:
    assert generation((15, 0)) is None
    future = {"/usr/bin/nvidia-smi": smi("X900", "15.0"), "probe_driver": driver("X900", (15, 0))}
    assert abilities(checked(h200(programs=future)))["ncu"] == "yes"


def test_an_importer_that_lacks_a_library() -> None:
    said_so = f"{IMPORTER}: error while loading shared libraries: libdw.so.1: cannot open shared"
    checkup = checked(h200(programs={IMPORTER: CommandResult(127, "", said_so)}))
    assert check(checkup, "importer").commands == ("sudo apt-get install libdw1",)
    assert checkup.verdict(Tool.NSYS).can is Ability.PARTLY
    assert ".qdstrm" in checkup.verdict(Tool.NSYS).why[0]


def test_an_importer_that_is_not_beside_nsys_is_unknown() -> None:
    wrapper = {Tool.NSYS: [tool(Tool.NSYS, "/usr/local/cuda/bin/nsys", 2025, 3, 1)]}
    assert check(checked(h200(installed=wrapper)), "importer").state is CheckState.UNKNOWN


def test_without_nvidia_smi_the_driver_is_asked() -> None:
    machine = h200()
    machine.programs = {k: v for k, v in machine.programs.items() if "smi" not in k}
    checkup = checked(machine)
    assert abilities(checkup)["ncu"] == "yes"
    assert check(checkup, "driver").found == "580.82.07, CUDA up to 13.0"


def test_an_nvidia_smi_that_fails_is_quoted() -> None:
    failed = CommandResult(
        9, "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n"
    )
    broken = {"/usr/bin/nvidia-smi": failed, "probe_driver": json_result(library=False)}
    result = check(checked(h200(programs=broken)), "gpu").found
    assert result.startswith("nvidia-smi: NVIDIA-SMI has failed")


@pytest.mark.parametrize(
    ("environment", "failed", "command"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, 100, "unset CUDA_VISIBLE_DEVICES"),
        ({}, 803, "sudo reboot"),
        ({}, 802, "sudo systemctl start nvidia-fabricmanager"),
    ],
)
def test_gpus_that_cuda_does_not_show(
    environment: Mapping[str, str], failed: int, command: str
) -> None:
    hidden = {"probe_driver": json_result(library=True, version=13000, failed=failed, devices=[])}
    checkup = checked(h200(programs=hidden, environment=environment))
    assert check(checkup, "gpu").commands == (command,)
    assert abilities(checkup) == {"nsys": "partly", "ncu": "no", "torch": "partly", "cupti": "no"}


def test_mig_and_a_monitor() -> None:
    files = {"/proc/812/comm": "nv-hostengine\n", "/proc/1/comm": "systemd\n"}
    mig = CommandResult(
        0, "NVIDIA A100, 580.82.07, 8.0, Enabled\nNVIDIA A100, 580.82.07, 8.0, Disabled\n"
    )
    checkup = checked(h200(files=files, programs={"/usr/bin/nvidia-smi": mig}))
    assert check(checkup, "mig").found == "on for 1 of 2 GPUs"
    assert check(checkup, "dcgm").commands[0] == "dcgmi profile --pause"
    assert abilities(checkup)["ncu"] == "partly"
    assert abilities(checkup)["nsys"] == "yes"


def test_another_profiler_around_us() -> None:
    under = {"NSYS_PROFILING_SESSION_ID": "10613"}
    checkup = checked(h200(environment=under))
    assert set(abilities(checkup).values()) == {"no"}
    assert "10613" not in DoctorView(checkup).to_json()
    injected = checked(h200(environment={"CUDA_INJECTION64_PATH": "/secret/tool.so"}))
    assert check(injected, "injection").commands == ("unset CUDA_INJECTION64_PATH",)
    assert "/secret" not in DoctorView(injected).to_json()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (
            {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "TRACE"},
            ["CUDA_LAUNCH_BLOCKING=1", "NCCL_DEBUG=TRACE"],
        ),
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, ["PYTORCH_NO_CUDA_MEMORY_CACHING=1"]),
        ({"NVIDIA_TF32_OVERRIDE": "0"}, ["NVIDIA_TF32_OVERRIDE=0"]),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, ["TORCH_DISTRIBUTED_DEBUG=DETAIL"]),
        ({"TORCH_LOGS": "+dynamo"}, ["TORCH_LOGS=+dynamo"]),
        ({"XLA_FLAGS": "--xla_dump_to=/secret"}, ["XLA_FLAGS"]),
        # What changes nothing, or hardly anything.
        ({"CUDA_LAUNCH_BLOCKING": "0", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "recompiles"}, []),
        ({"TORCH_SHOW_CPP_STACKTRACES": "1", "TORCH_DISTRIBUTED_DEBUG": "INFO"}, []),
        ({"NVIDIA_TF32_OVERRIDE": "1", "CUDNN_LOGLEVEL_DBG": "1", "XLA_FLAGS": "--xla_x=1"}, []),
    ],
)
def test_debug_settings(variables: dict[str, str], expected: list[str]) -> None:
    assert list(debug_settings(variables)) == expected
    checkup = checked(h200(environment=variables))
    if not expected:
        assert "debug-variables" not in {check.key for check in checkup.checks}
        return
    settings = check(checkup, "debug-variables")
    assert settings.found == ", ".join(expected)
    names = [setting.partition("=")[0] for setting in expected]
    assert settings.commands == (f"unset {' '.join(names)}",)
    assert set(abilities(checkup).values()) == {"yes"}
    assert "/secret" not in DoctorView(checkup).to_json()


def test_torch_that_is_not_built_for_the_driver() -> None:
    blind = json_result(
        version="2.11.0+cu130", cuda="13.0", hip=None, available=False, activities=["CPU"]
    )
    late = json_result(library=None, unfit=CUPTI_13, works=False, why="")
    old = {"probe_torch": blind, "probe_driver": driver(cuda=12020), "probe_cupti": late}
    checkup = checked(h200(programs=old))
    assert "since the driver supports CUDA 12 only" in check(checkup, "torch").means
    assert abilities(checkup) == {"nsys": "yes", "ncu": "yes", "torch": "partly", "cupti": "no"}
    assert "'cupti-python==12.*'" in check(checkup, "cupti").commands[0]


def test_torch_without_cupti_and_torch_that_cannot_be_imported() -> None:
    plain = json_result(version="2.4", cuda="12.4", hip=None, available=True, activities=["CPU"])
    assert "no kernels" in checked(h200(programs={"probe_torch": plain})).verdict(Tool.TORCH).why[0]
    broken = CommandResult(
        1, "", "Traceback …\nImportError: libtorch.so: cannot open shared object file\n"
    )
    verdict = checked(h200(programs={"probe_torch": broken})).verdict(Tool.TORCH)
    assert verdict.can is Ability.NO
    assert "ImportError: libtorch.so" in verdict.why[0]
    slow = checked(h200(programs={"probe_torch": CommandResult(None, "")})).verdict(Tool.TORCH)
    assert "timed out" in slow.why[0]


def test_cupti_that_does_not_load() -> None:
    refused = json_result(library=CUPTI_13, unfit=None, works=False, why="it needs a newer driver")
    verdict = checked(h200(programs={"probe_cupti": refused})).verdict(Tool.CUPTI)
    assert verdict.why == (f"{CUPTI_13} does not work: it needs a newer driver",)
    mute = checked(h200(programs={"probe_cupti": CommandResult(1, "", "ImportError: no ctypes")}))
    assert "no ctypes" in mute.verdict(Tool.CUPTI).why[0]


def test_cupti_comes_with_whatever_the_program_s_python_finds() -> None:
    assert check(checked(h200()), "cupti").found == CUPTI_13
    none = json_result(library=None, unfit=None, works=False, why="")
    absent = checked(h200(programs={"probe_cupti": none}))
    assert absent.verdict(Tool.CUPTI).why == ("/usr/bin/python finds no libcupti",)
    assert "'cupti-python==13.*'" in check(absent, "cupti").commands[0]


def test_pythons_that_are_old_mute_or_absent() -> None:
    old = checked(h200(programs={"probe_packages": packages(3, 8, 10, torch="1.13")}))
    assert abilities(old)["torch"] == abilities(old)["cupti"] == "no"
    mute = checked(h200(programs={"probe_packages": CommandResult(1, "", "Illegal instruction")}))
    assert "Illegal instruction" in check(mute, "python").found
    with pytest.raises(UsageError, match="no Python at /nowhere"):
        checked(h200(), python="/nowhere/python")


def test_disks() -> None:
    full = checked(h200(free=1_000_000_000))
    assert check(full, "output-disk").found == "1.000 GB free in /data"
    assert abilities(full)["nsys"] == "yes"
    assert full.verdict(Tool.NSYS).without
    closed = checked(h200(read_only=frozenset({"/data"})))
    assert set(abilities(closed).values()) == {"no"}
    assert closed.record_uses is None


def test_the_lock_of_another_user() -> None:
    lock = "/scratch/nsight-compute-lock"
    machine = h200(
        files={lock: ""}, read_only=frozenset({lock}), environment={"TMPDIR": "/scratch"}
    )
    assert checked(machine).verdict(Tool.NCU).can is Ability.NO


def test_ranks() -> None:
    job = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8"}
    result = check(checked(h200(environment=job)), "rank").found
    assert result == "this is rank 3 of 8 (OMPI_COMM_WORLD_RANK)"


def test_homes_are_not_shown() -> None:
    home = "/home/somebody"
    nsys = f"{home}/nsight/target-linux-x64/nsys"
    machine = h200(
        environment={"HOME": home}, installed={Tool.NSYS: [tool(Tool.NSYS, nsys, 2025, 3, 1)]}
    )
    text = DoctorView(checked(machine)).to_json()
    assert "~/nsight/target-linux-x64/nsys" in text
    assert "somebody" not in text


def test_every_limit_says_what_it_means_or_what_to_do() -> None:
    machines = [
        h200(files=CLOSED),
        h200(installed={Tool.NSYS: [], Tool.NCU: []}),
        Described(kernel=WSL),
    ]
    for machine in machines:
        for result in checked(machine).checks:
            assert (
                result.state is CheckState.OK
                or result.means
                or result.fix
                or result.key == "driver"
            )


def test_text_fits_and_json_is_whole() -> None:
    checkup = checked(h200(files=CLOSED, installed={Tool.NSYS: []}))
    view = DoctorView(checkup)
    text = view.to_text()
    assert "ncu    no " in text
    assert "gpusight record would use cupti." in text
    commands = {command for c in checkup.checks for command in c.commands}
    assert all(len(line) <= 100 or line.strip() in commands for line in text.splitlines())
    document = json.loads(view.to_json())
    assert document["meta"]["record_uses"] == "cupti"
    sections = {row["section"] for row in document["rows"]}
    assert sections == {"tools", "checks"}
    assert view.facts["ncu"] == "no"
    assert "| counters | missing |" in view.to_markdown()
    assert "checks,0,check,gpu" in view.to_csv()
    assert "<table>" in view._repr_html_()
    assert checkup_page(checkup).title == view.title


def test_this_machine_answers() -> None:
    machine = Machine()
    assert machine.read("/no/such/file") is None
    assert machine.names("/no/such/folder") == ()
    assert machine.run(["/no/such/program"]) is None
    assert machine.free_bytes("/no/such/folder") is None
    slow = machine.run(["sleep", "5"], timeout_s=0.05)
    assert slow is not None
    assert slow.code is None
