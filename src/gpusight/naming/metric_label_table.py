"""Labels of a report's sections, of all versions, and the metric that each stands for."""

from __future__ import annotations

SECTION_NAMES: dict[str, tuple[str, ...]] = {
    "SpeedOfLight": ("GPU Speed Of Light Throughput", "GPU Speed Of Light"),
    "ComputeWorkloadAnalysis": ("Compute Workload Analysis",),
    "MemoryWorkloadAnalysis": ("Memory Workload Analysis",),
    "LaunchStats": ("Launch Statistics",),
    "Occupancy": ("Occupancy",),
    "SchedulerStats": ("Scheduler Statistics",),
    "WarpStateStats": ("Warp State Statistics",),
    "InstructionStats": ("Instruction Statistics",),
    "SourceCounters": ("Source Counters",),
    "WorkloadDistribution": ("GPU and Memory Workload Distribution",),
    "MemoryWorkloadAnalysis_Chart": ("Memory Workload Analysis Chart",),
    "MemoryWorkloadAnalysis_Tables": ("Memory Workload Analysis Tables",),
    "PmSampling": ("PM Sampling",),
    "PmSampling_WarpStates": ("PM Sampling: Warp States",),
    "Nvlink": ("NVLink",),
    "Nvlink_Tables": ("NVLink Tables",),
    "Nvlink_Topology": ("NVLink Topology",),
    "C2CLink": ("C2CLink",),
    "NumaAffinity": ("NUMA Affinity",),
    "SpeedOfLight_RooflineChart": ("GPU Speed Of Light Roofline Chart",),
    "SpeedOfLight_HierarchicalDoubleRooflineChart": (
        "GPU Speed Of Light Hierarchical Roofline Chart (Double Precision)",
    ),
    "SpeedOfLight_HierarchicalHalfRooflineChart": (
        "GPU Speed Of Light Hierarchical Roofline Chart (Half Precision)",
    ),
    "SpeedOfLight_HierarchicalSingleRooflineChart": (
        "GPU Speed Of Light Hierarchical Roofline Chart (Single Precision)",
    ),
    "SpeedOfLight_HierarchicalTensorRooflineChart": (
        "GPU Speed Of Light Hierarchical Roofline Chart (Tensor Core)",
    ),
    "LoadMetrics": ("Load Metrics",),
    "StoreMetrics": ("Store Metrics",),
    "SharedMemAnalysis": ("Shared Memory Analysis",),
}
"""Identifier of a section, as `--section` takes it, and the names it was ever shown under."""

ROOFLINE_SECTIONS = (
    "SpeedOfLight_RooflineChart",
    "SpeedOfLight_HierarchicalDoubleRooflineChart",
    "SpeedOfLight_HierarchicalHalfRooflineChart",
    "SpeedOfLight_HierarchicalSingleRooflineChart",
)
ROOFLINE = {
    "DRAM Bandwidth": "dram__bytes.sum.per_second",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "L1 Cache Bandwidth (Global/Local)": (
        "derived__l1tex__lsu_writeback_bytes_mem_lg.sum.per_second"
    ),
    "L1/TEX Cache Frequency": "l1tex__cycles_elapsed.avg.per_second",
    "L1/TEX active local/global writeback cycles per second": (
        "l1tex__lsu_writeback_active_mem_lg.sum.per_second"
    ),
    "L1/TEX active writeback cycles per second": "l1tex__lsu_writeback_active.sum.per_second",
    "L1/TEX peak local/global writeback cycles": (
        "l1tex__lsu_writeback_active_mem_lg.sum.peak_sustained"
    ),
    "L1/TEX peak writeback cycles": "l1tex__lsu_writeback_active.sum.peak_sustained",
    "L2 Cache Bandwidth": "derived__lts__lts2xbar_bytes.sum.per_second",
    "L2 Cache Frequency": "lts__cycles_elapsed.avg.per_second",
    "L2 active writeback cycles per second": "lts__lts2xbar_cycles_active.sum.per_second",
    "L2 peak writeback cycles": "lts__lts2xbar_cycles_active.sum.peak_sustained",
    "SM Frequency": "sm__cycles_elapsed.avg.per_second",
    "Theoretical DRAM Bytes Accessible": "dram__bytes.sum.peak_sustained",
    "Theoretical L1/TEX Cache Bytes Accessible": (
        "derived__l1tex__lsu_writeback_bytes_mem_lg.sum.peak_sustained"
    ),
    "Theoretical L2 Cache Bytes Accessible": "derived__lts__lts2xbar_bytes.sum.peak_sustained",
}
LABELS: dict[str, dict[str, str]] = {
    "SpeedOfLight": {
        "Compute (SM) Throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "L1/TEX Cache Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "L2 Cache Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Frequency": "dram__cycles_elapsed.avg.per_second",
        "Memory Throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory [%]": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SM Active Cycles": "sm__cycles_active.avg",
        "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
        "SM [%]": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL DRAM": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL FB": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L1/TEX Cache": "l1tex__throughput.avg.pct_of_peak_sustained_active",
        "SOL L2": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL L2 Cache": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL Memory": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL SM": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "SOL TEX": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "ComputeWorkloadAnalysis": {
        "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
        "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
        "Issue Slots Busy": "sm__inst_issued.avg.pct_of_peak_sustained_active",
        "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
        "Max. Issued Slots Busy": "sm__inst_issued.max.pct_of_peak_sustained_active",
        "SM Busy": "sm__instruction_throughput.avg.pct_of_peak_sustained_active",
    },
    "MemoryWorkloadAnalysis": {
        "Instructions Executed": "inst_executed",
        "L1 Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
        "L2 Compression Input Sectors": "lts__gcomp_input_sectors.sum",
        "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
        "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
        "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
        "L2 Persisting Size": "launch__persisting_l2_cache_size",
        "Local Memory Spilling Request Overhead": "derived__local_spilling_requests_pct",
        "Local Memory Spilling Requests": "derived__local_spilling_requests",
        "Max Bandwidth": "gpu__compute_memory_request_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Busy": "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
        "Mem Pipes Busy": "sm__memory_throughput.avg.pct_of_peak_sustained_elapsed",
        "Memory Throughput": "dram__bytes.sum.per_second",
    },
    "LaunchStats": {
        "# SMs": "launch__sm_count",
        "# TPCs": "launch__tpc_count",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Block Size": "launch__block_size",
        "Cluster Scheduling Policy": "launch__cluster_scheduling_policy",
        "Cluster Size": "launch__cluster_size",
        "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
        "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
        "Enabled TPC IDs": "launch__tpc_enabled",
        "Function Cache Configuration": "launch__func_cache_config",
        "Grid Size": "launch__grid_size",
        "Preferred Cluster Size": "launch__preferred_cluster_size",
        "Registers Per Thread": "launch__registers_per_thread",
        "Shared Memory Configuration Size": "launch__shared_mem_config_size",
        "Stack Size": "launch__stack_size",
        "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Threads": "launch__thread_count",
        "Uses Green Context": "launch__uses_green_context",
        "Waves Per SM": "launch__waves_per_multiprocessor",
    },
    "Occupancy": {
        "# Warps Per Block Barriers Size": "launch__occupancy_per_barrier_count",
        "# Warps Per Block Size": "launch__occupancy_per_block_size",
        "# Warps Per Register Count": "launch__occupancy_per_register_count",
        "# Warps Per Shared Mem Size": "launch__occupancy_per_shared_mem_size",
        "% Occupancy Per Block Barriers Size": "derived__pct_occupancy_per_barrier_count",
        "% Occupancy Per Block Size": "derived__pct_occupancy_per_block_size",
        "% Occupancy Per Register Count": "derived__pct_occupancy_per_register_count",
        "% Occupancy Per Shared Mem Size": "derived__pct_occupancy_per_shared_mem_size",
        "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
        "Achieved Occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
        "Active Clusters": "launch__occupancy_per_cluster_size",
        "Block Barrier Count": "launch__barrier_count",
        "Block Limit Barriers": "launch__occupancy_limit_barriers",
        "Block Limit Registers": "launch__occupancy_limit_registers",
        "Block Limit SM": "launch__occupancy_limit_blocks",
        "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
        "Block Limit Warps": "launch__occupancy_limit_warps",
        "Block Size": "launch__block_size",
        "Cluster Occupancy": "launch__occupancy_cluster_pct",
        "Cluster Size": "launch__cluster_size",
        "GPU Maximum Warps Per Scheduler": "smsp__warps_active.avg.peak_sustained",
        "Max Active Clusters": "launch__cluster_max_active",
        "Max Cluster Size": "launch__cluster_max_potential_size",
        "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
        "Registers Per Thread": "launch__registers_per_thread",
        "Shared Memory Per Block": "launch__shared_mem_per_block",
        "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
        "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
        "Theoretical Warps Per Scheduler": "smsp__maximum_warps_avg_per_active_cycle",
        "Warp Occupancy": "launch__occupancy_per_block_size",
        "Warp Occupancy Per Block Size": "launch__occupancy_per_block_size",
        "Warp Occupancy Per Register Count": "launch__occupancy_per_register_count",
        "Warp Occupancy Per Shared Mem Size": "launch__occupancy_per_shared_mem_size",
    },
    "SchedulerStats": {
        "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
        "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
        "GPU Maximum Warps Per Scheduler": "smsp__warps_active.avg.peak_sustained",
        "Instructions Per Active Issue Slot": "smsp__inst_issued_per_issue_active.ratio",
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "No Eligible": "smsp__issue_inst0.avg.pct_of_peak_sustained_active",
        "One or More Eligible": "smsp__issue_active.avg.pct_of_peak_sustained_active",
        "Theoretical Active Warps Per Scheduler": "smsp__warps_active.avg.peak_sustained",
        "Theoretical Warps Per Scheduler": "smsp__maximum_warps_avg_per_active_cycle",
    },
    "WarpStateStats": {
        "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
        "Avg. Not Predicated Off Threads Per Warp": (
            "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio"
        ),
        "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
        "Warp Cycles Per Executed Instruction": (
            "smsp__average_warps_active_per_inst_executed.ratio"
        ),
        "Warp Cycles Per Issue Active": "smsp__average_warps_active_per_issue_active.ratio",
        "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    },
    "InstructionStats": {
        "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
        "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Executed Instructions By Basic SASS Opcode": "sass__inst_executed_per_opcode",
        "Executed Instructions by SASS Opcode Category": "sass__inst_executed_per_opcode_category",
        "Executed Warp-Level Instructions By Basic SASS Opcode": "sass__inst_executed_per_opcode",
        "Instructions Executed": "inst_executed",
        "Issued Instructions": "smsp__inst_issued.sum",
    },
    "SourceCounters": {
        "# Samples": "smsp__pcsamp_sample_count",
        "Access Operation": "memory_access_type",
        "Access Size": "memory_access_size_type",
        "Address Space": "memory_type",
        "Avg Thread Executed": "derived__avg_thread_executed",
        "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
        "Avg. Predicated-On Threads Executed": "derived__avg_thread_executed_true",
        "Avg. Predicated-On Threads Unexecuted": "derived__avg_thread_unexecuted_true",
        "Avg. Threads Executed": "derived__avg_thread_executed",
        "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
        "Branch Instructions": "smsp__inst_executed_op_branch.sum",
        "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
        "Derivative Avg. Predicated-On Threads Executed": (
            "derived__derivative_avg_thread_executed_true"
        ),
        "Divergent Branches": "smsp__branch_targets_threads_divergent",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "Executed Instructions": "smsp__inst_executed.sum",
        "Instructions Executed": "inst_executed",
        "L1 Active Cycles": "l1tex__cycles_active.sum",
        "L1 Conflicts Shared N-Way": "derived__memory_l1_conflicts_shared_nway",
        "L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
        "L1 Sectors Global": "memory_l1_sectors_global",
        "L1 Sectors Shared": "memory_l1_sectors_shared",
        "L1 Sectors Shared Excessive": "derived__memory_l1_sectors_shared_excessive",
        "L1 Sectors Shared Ideal": "memory_l1_sectors_shared_ideal",
        "L1 Tag Requests Global": "memory_l1_tag_requests_global",
        "L1 Wavefronts Shared": "memory_l1_wavefronts_shared",
        "L1 Wavefronts Shared Excessive": "derived__memory_l1_wavefronts_shared_excessive",
        "L1 Wavefronts Shared Ideal": "memory_l1_wavefronts_shared_ideal",
        "L2 Active Cycles": "lts__cycles_active.sum",
        "L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
        "L2 Explicit Evict Policies": "smsp__sass_inst_executed_memdesc_explicit_evict_type",
        "L2 Explicit Hit Policy Evict First": (
            "smsp__sass_inst_executed_memdesc_explicit_hitprop_evict_first"
        ),
        "L2 Explicit Hit Policy Evict Last": (
            "smsp__sass_inst_executed_memdesc_explicit_hitprop_evict_last"
        ),
        "L2 Explicit Hit Policy Evict Normal": (
            "smsp__sass_inst_executed_memdesc_explicit_hitprop_evict_normal"
        ),
        "L2 Explicit Hit Policy Evict Normal Demote": (
            "smsp__sass_inst_executed_memdesc_explicit_hitprop_evict_normal_demote"
        ),
        "L2 Explicit Miss Policy Evict First": (
            "smsp__sass_inst_executed_memdesc_explicit_missprop_evict_first"
        ),
        "L2 Explicit Miss Policy Evict Normal": (
            "smsp__sass_inst_executed_memdesc_explicit_missprop_evict_normal"
        ),
        "L2 Sectors Global": "memory_l2_sectors_global",
        "L2 Sectors Global Excessive": "derived__memory_l2_sectors_global_excessive",
        "L2 Sectors Global Ideal": "memory_l2_sectors_global_ideal",
        "L2 Sectors Local": "memory_l2_sectors_local",
        "L2 Theoretical Sectors Global": "memory_l2_theoretical_sectors_global",
        "L2 Theoretical Sectors Global Excessive": (
            "derived__memory_l2_theoretical_sectors_global_excessive"
        ),
        "L2 Theoretical Sectors Global Ideal": "memory_l2_theoretical_sectors_global_ideal",
        "L2 Theoretical Sectors Local": "memory_l2_theoretical_sectors_local",
        "Predicated-On Thread Instructions Executed": "thread_inst_executed_true",
        "Thread Instructions Executed": "thread_inst_executed",
    },
    "WorkloadDistribution": {
        "Average DRAM Active Cycles": "dram__cycles_active.avg",
        "Average L1 Active Cycles": "l1tex__cycles_active.avg",
        "Average L2 Active Cycles": "lts__cycles_active.avg",
        "Average MC Channel Active Cycles": "mcc__cycles_active.avg",
        "Average SM Active Cycles": "sm__cycles_active.avg",
        "Average SMSP Active Cycles": "smsp__cycles_active.avg",
        "Total DRAM Elapsed Cycles": "dram__cycles_elapsed.sum",
        "Total L1 Elapsed Cycles": "l1tex__cycles_elapsed.sum",
        "Total L2 Elapsed Cycles": "lts__cycles_elapsed.sum",
        "Total MC Channel Elapsed Cycles": "mcc__cycles_elapsed.sum",
        "Total SM Elapsed Cycles": "sm__cycles_elapsed.sum",
        "Total SMSP Elapsed Cycles": "smsp__cycles_elapsed.sum",
    },
    "MemoryWorkloadAnalysis_Chart": {
        "DRAM Bandwidth": "dram__bytes.sum.per_second",
        "L2 Cache Sector Throughput For TEX": (
            "lts__t_sectors_srcunit_tex.avg.pct_of_peak_sustained_elapsed"
        ),
        "L2 Cache Sectors": "lts__t_sectors.sum",
        "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
        "Missed L2 Cache Sectors For TEX": "lts__t_sectors_srcunit_tex_lookup_miss.sum",
        "Missed L2 Cache Sectors For TEX Accessing Peer Memory": (
            "lts__t_sectors_srcunit_tex_aperture_peer_lookup_miss.sum"
        ),
        "Missed L2 Cache Sectors For TEX Accessing System Memory": (
            "lts__t_sectors_srcunit_tex_aperture_sysmem_lookup_miss.sum"
        ),
        "PCIe read bandwidth": "pcie__read_bytes.sum.per_second",
        "PCIe write bandwidth": "pcie__write_bytes.sum.per_second",
    },
    "MemoryWorkloadAnalysis_Tables": {
        "Average Bytes Per Sector For Global Loads": (
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio"
        ),
        "Average Bytes Per Sector For Global Stores": (
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio"
        ),
        "Average Bytes Per Sector For Local Loads": (
            "smsp__sass_average_data_bytes_per_sector_mem_local_op_ld.ratio"
        ),
        "Average Bytes Per Sector For Local Stores": (
            "smsp__sass_average_data_bytes_per_sector_mem_local_op_st.ratio"
        ),
        "DRAM Throughput": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "L1TEX Hit Rate For Global Loads": "l1tex__t_sector_pipe_lsu_mem_global_op_ld_hit_rate.pct",
        "L1TEX Hit Rate For Global Stores": (
            "l1tex__t_sector_pipe_lsu_mem_global_op_st_hit_rate.pct"
        ),
        "L1TEX Hit Rate For Local Loads": "l1tex__t_sector_pipe_lsu_mem_local_op_ld_hit_rate.pct",
        "L1TEX Hit Rate For Local Stores": "l1tex__t_sector_pipe_lsu_mem_local_op_st_hit_rate.pct",
        "L1TEX Throughput": "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
        "L2 Hit Rate For Loads": "lts__t_sector_op_read_hit_rate.pct",
        "L2 Hit Rate For Stores": "lts__t_sector_op_write_hit_rate.pct",
        "L2 Throughput": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
        "Maximum Bytes Per Sector For Global Loads": (
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.max_rate"
        ),
        "Maximum Bytes Per Sector For Global Stores": (
            "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.max_rate"
        ),
        "Maximum Bytes Per Sector For Local Loads": (
            "smsp__sass_average_data_bytes_per_sector_mem_local_op_ld.max_rate"
        ),
        "Maximum Bytes Per Sector For Local Stores": (
            "smsp__sass_average_data_bytes_per_sector_mem_local_op_st.max_rate"
        ),
        "Memory Instructions Executed (128 Bit)": "smsp__sass_inst_executed_op_memory_128b.sum",
        "Memory Instructions Executed (16 Bit)": "smsp__sass_inst_executed_op_memory_16b.sum",
        "Memory Instructions Executed (32 Bit)": "smsp__sass_inst_executed_op_memory_32b.sum",
        "Memory Instructions Executed (64 Bit)": "smsp__sass_inst_executed_op_memory_64b.sum",
        "Memory Instructions Executed (8 Bit)": "smsp__sass_inst_executed_op_memory_8b.sum",
    },
    "PmSampling": {
        "# Pass Groups": "profiler__pmsampler_pass_groups",
        "Dropped Samples": "profiler__pmsampler_dropped_samples",
        "Duration": "gpu__time_duration.sum",
        "Elapsed Cycles": "gpc__cycles_elapsed.max",
        "Maximum Buffer Size": "profiler__pmsampler_buffer_size_bytes",
        "Maximum Sampling Interval": "profiler__pmsampler_interval_cycles",
    },
    "Nvlink": {
        "Logical Links": "nvlink__count_logical",
        "Physical Links": "nvlink__count_physical",
        "Received Bandwidth": "nvlrx__bytes.sum.per_second",
        "Received Bytes": "nvlrx__bytes.sum",
        "Received Overhead Bytes": "nvlrx__bytes_data_protocol.sum",
        "Received Peak Utilization": "nvlrx__bytes.sum.pct_of_peak_sustained_elapsed",
        "Received User Bytes": "nvlrx__bytes_data_user.sum",
        "Transmitted Bandwidth": "nvltx__bytes.sum.per_second",
        "Transmitted Bytes": "nvltx__bytes.sum",
        "Transmitted Overhead Bytes": "nvltx__bytes_data_protocol.sum",
        "Transmitted Peak Utilization": "nvltx__bytes.sum.pct_of_peak_sustained_elapsed",
        "Transmitted User Bytes": "nvltx__bytes_data_user.sum",
    },
    "C2CLink": {
        "Received Bandwidth": "ctc__rx_bytes_data_user.sum.per_second",
        "Received Peak Utilization": "ctc__rx_bytes_data_user.sum.pct_of_peak_sustained_elapsed",
        "Received User Bytes": "ctc__rx_bytes_data_user.sum",
        "Transmitted Bandwidth": "ctc__tx_bytes_data_user.sum.per_second",
        "Transmitted Peak Utilization": "ctc__tx_bytes_data_user.sum.pct_of_peak_sustained_elapsed",
        "Transmitted User Bytes": "ctc__tx_bytes_data_user.sum",
    },
    "NumaAffinity": {
        "CPU Affinity": "numa__cpu_affinity",
        "Device Names": "numa__dev_display_name_all",
        "NUMA ID by CPU Affinity": "numa__id_cpu",
        "NUMA ID by Memory Affinity": "numa__id_memory",
    },
    "LoadMetrics": {
        "GLoad Throughput": "l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second",
        "Load Efficiency": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
        "Requested requests For GLoad": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
        "sector/req": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    },
    "StoreMetrics": {
        "GStore Throughput": "l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second",
        "Requested requests For GStore": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
        "Store Efficiency": "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
        "sector/req": "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio",
    },
    "SharedMemAnalysis": {
        "# of warp inst exec:LoadDataShared(LDS)": "smsp__inst_executed_op_shared_ld.sum",
        "# of warp inst exec:StoreToShared(STS)": "smsp__inst_executed_op_shared_st.sum",
        "Data Bank Conflict from LDS": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
        "Data Bank Conflict from STS": (
            "smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
        ),
    },
    **dict.fromkeys(ROOFLINE_SECTIONS, ROOFLINE),
}
"""Section and label to metric; sections that most people look at first, first."""
