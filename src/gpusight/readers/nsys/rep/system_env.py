"""Properties of the machine: TARGET_INFO_SYSTEM_ENV.

The file numbers the properties; their names are known from nsys's exports.
"""

from __future__ import annotations

from gpusight.readers.nsys.rep.wire import Message, child, children, integer, text

_ENVIRONMENT = 610
"""The environment of the profiler: often holds secrets and serves no analysis, so left out."""
_MESSAGES = frozenset({891, 894, 895, 897, 905, 910, 912, 924})
"""Properties that are messages; the export prints them as JSON, here their value is NULL."""


def system_env(system: Message) -> list[dict[str, int | str | None]]:
    """Give the rows of TARGET_INFO_SYSTEM_ENV."""
    rows: list[dict[str, int | str | None]] = []
    for machine in children(system, 1):
        owner = {"globalVid": integer(machine, 3), "devStateName": text(machine, 1)}
        for prop in children(child(machine, 2), 1):
            number = integer(prop, 1) or 0
            if number == _ENVIRONMENT:
                continue
            name = _NAMES.get(number, f"Property{number}")
            value = None if number in _MESSAGES else text(prop, 2) or ""
            rows.append({**owner, "name": name, "nameEnum": number, "value": value})
    return rows


_NAMES = {
    1: "CpuCores",
    2: "CpuSpeedMhz",
    3: "CpuArchitecture",
    5: "SupportedABIs",
    7: "Supported64BitABIs",
    11: "CNTFRQMHz",
    13: "CpuDescription",
    14: "CpuInfo",
    101: "CpuEmcSpeedMhz",
    153: "SupportsXmcClients",
    170: "TargetInstallDir",
    173: "InjectionFilesStoragePath",
    203: "HasDiscreteGpu",
    205: "NvDriverVersion",
    506: "IsX86BasedDevice",
    600: "HardwarePlatform",
    601: "SoftwarePlatform",
    605: "OsDescription",
    610: "DeviceEnvironment",
    611: "CudaDriverVersion",
    616: "CudaSupportStatus",
    618: "SoftwareReleaseVersion",
    619: "Hostname",
    701: "IsDevicePropsUpdated",
    702: "IsDeviceCapsUpdated",
    703: "IsPersistentDevice",
    705: "IsRootEnabled",
    721: "SystemUID",
    722: "NamespacePID",
    800: "HasThreadStateEvents",
    801: "HasCpuCycles",
    802: "HasL1CacheDataReadMisses",
    803: "HasL1CacheDataWriteMisses",
    804: "HasL1CacheInstructionMisses",
    805: "HasL2CacheDataReadMisses",
    806: "HasL2CacheDataWriteMisses",
    807: "HasL2CacheInstructionMisses",
    809: "HasNvtxEvents",
    811: "HasPowerRateEvents",
    812: "HasCudaEvents",
    813: "HasGraphicsEvents",
    814: "HasCpuOfflineEvents",
    815: "HasOSRuntimeEvents",
    816: "HasCuDNNEvents",
    817: "HasCuBLASEvents",
    819: "HasOpenACCEvents",
    820: "HasNvMediaEvents",
    821: "HasCudaBacktraceEvents",
    822: "HasVideoEvents",
    838: "SupportsDX11",
    839: "SupportsDX12",
    840: "SupportsGpuCtxsw",
    841: "SupportsTraceAllTasks",
    842: "SupportsPmuCounters",
    843: "SupportsIncludeChildren",
    844: "SupportsCpuFrequency",
    845: "SupportsVulkan",
    846: "SupportsMPI",
    847: "SupportsSamplingOptions",
    848: "SupportsCpuCtxsw",
    849: "SupportsGpuMetrics",
    850: "HasMutualL2CacheEvents",
    851: "HasBacktraces",
    852: "HasBacktracingAlgorithms",
    854: "SupportsUMPageFaults",
    861: "SupportsSampling",
    862: "SupportsLinuxPerf",
    863: "dptiSupportsHES",
    880: "ModuleVersion",
    882: "KernelVersion",
    890: "DaemonNDAEnabled",
    891: "EventLibSourcesInfo",
    892: "SupportsArchTimer",
    893: "SupportsForceArchTimer",
    894: "SupportedFTraceEvents",
    895: "QnxKernelTraceInfo",
    896: "IsGameRecordingModeOn",
    897: "GpuInfo",
    899: "HasOpenMPEvents",
    900: "SupportsSli",
    901: "SupportsLBR",
    902: "GpuMetricsConfig",
    903: "SupportsOpenSHMEM",
    904: "ExportLevel",
    905: "GpuMetricsSupportedGpus",
    906: "SupportsUCX",
    907: "SupportsIsr",
    908: "SupportsSocMetrics",
    910: "NicInfo",
    911: "OfedDriverVersion",
    912: "LinuxPerfInfo",
    913: "SupportsPythonBacktraceSampling",
    914: "SupportsNicMetrics",
    917: "SupportsVulkanSC",
    918: "SupportsOpenXR",
    919: "LinuxParanoidLevel",
    920: "SupportsSyscallTrace",
    921: "SocInfo",
    923: "ArmCores",
    924: "PluginsInfo",
    925: "SupportsNCCL",
}
