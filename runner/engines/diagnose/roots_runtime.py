"""Root causes that show while a server starts or serves: ports, memory, kernels, the network, the machine. `roots.py` has those of arguments, packages and models."""

from runner.engines.diagnose.rules import Rule, rule

RUNTIME: tuple[Rule, ...] = (
    rule(
        "port_in_use",
        r"error while attempting to bind on address|EADDRINUSE|[Aa]ddress (?:already )?in use|(?i:\bport\b[^.]{0,40} (?:is|was) (?:already |currently )?(?:in use\b(?!, trying)|used by|occupied|taken|not available|unavailable|busy))|at \d+ is not available in \d+ seconds|Could not bind port|only one usage of each socket address",
        0.95,
        1,
    ),
    rule("gpu_memory_unbalanced", r"memory capacity is unbalanced", 0.97, 1),
    rule(
        "custom_allreduce_graph_capture",
        r"custom_all_reduce\.cuh?:\d+|(?:custom_all_reduce|register_graph_buffers)\S*.*(?:invalid argument|[Ff]ailed|[Ee]rror)|cudaIpc(?:Open|Get)MemHandle",
        0.93,
        1,
    ),
    rule(
        "custom_allreduce_graph_capture",
        r"(?:RuntimeError|CUDART error|CUDA error|Exception): .*",
        0.9,
        1,
        frames=r"register_graph_buffers|get_graph_buffer_ipc_meta|custom_all_reduce\S*, line \d+, in (?:capture|register|_register)",
    ),
    rule(
        "kv_pool_too_small",
        r"Not enough memory\. Please try|[Nn]ot enough (?:GPU )?memory for .*cache|profiled value -\d+|larger than the profiled value 0\b|max_total_num_tokens=-?0?\b(?:-\d+)|Not enough (?:GPU )?memory for (?:the )?KV|max_running_requests? (?:is zero|must be)|KV cache pool size must|No available memory for the cache",
        0.94,
        1,
    ),
    rule(
        "kv_pool_too_small",
        r"(?:Prefill|Decode) out of memory\. Try to lower|Failed to retract any request|No space left for only one request|alloc_req_slots runs out of memory|token_to_kv_pool.*(?:too small|full)",
        0.9,
        1,
    ),
    rule(
        "nan_outputs",
        r"NaN in the logits|probability tensor contains either|NaN happened|Detected NaN|logits? (?:contain|has|have)\w* (?:nan|NaN|inf)|nan detected in|contains NaN",
        0.94,
        2,
    ),
    rule(
        "cuda_illegal_memory_access",
        r"illegal memory access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|Warp Illegal Address|misaligned address|CUDA_EXCEPTION_\d+",
        0.93,
        3,
    ),
    rule(
        "cuda_illegal_memory_access",
        r"device-side assert triggered|unspecified launch failure|illegal instruction was encountered|CUDA_ERROR_LAUNCH_FAILED",
        0.45,
        4,
        cause="a kernel hit a device-side assert or fault",
    ),
    rule(
        "invalid_device_ordinal", r"invalid device ordinal|Invalid device id|Invalid device argument|device ordinal out of range", 0.95, 1
    ),
    rule(
        "invalid_device_ordinal",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|No CUDA device available|(?:Not enough|insufficient) GPUs?\b",
        0.75,
        3,
        cause="fewer GPUs are visible than the server needs, or none",
    ),
    rule(
        "os_oom_killer",
        r"Out of memory: Killed process|oom-kill:|OOMKilled|oom_reaper|Memory cgroup out of memory|OOM killer (?:killed|terminated)",
        0.96,
        1,
    ),
    rule(
        "os_oom_killer",
        r"std::bad_alloc|OSError: \[Errno 12\] Cannot allocate memory|^MemoryError\b|DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory",
        0.8,
        3,
    ),
    rule(
        "rejected_argument_combination",
        r"Not enough host memory",
        0.7,
        3,
        cause="the host has less free memory than the cache that was asked for",
        remedy="a smaller --hicache-size or --hicache-ratio (it counts for each rank)",
    ),
    rule(
        "scheduler_died",
        r"uncorrectable ECC error|GPU (?:has )?fallen off the bus|GPU is lost|cudaErrorECCUncorrectable",
        0.7,
        3,
        cause="the GPU itself failed",
        remedy="look at dmesg for Xid lines and at nvidia-smi; reset or replace the GPU before measuring on it",
    ),
    rule(
        "kernel_version_mismatch",
        r"Error 802: system not yet initialized|Error 803: system has unsupported display driver",
        0.6,
        3,
        cause="the driver is not ready: on NVSwitch machines the fabric manager is not running or has another version",
        remedy="start nvidia-fabricmanager in the driver's version",
    ),
    rule(
        "nccl_error",
        r"Unable to find address for: |gloo/transport/\S+\] ifa != nullptr",
        0.7,
        3,
        cause="a network interface that was named for the process group does not exist",
        remedy="set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to an interface of this machine",
    ),
    rule(
        "model_import_failed",
        r"No space left on device(?!: '?/dev/shm)",
        0.6,
        6,
        frames=r"huggingface_hub|modelscope|file_download|snapshot_download",
        cause="the disk was full while the model was downloaded",
        remedy="free disk space, or point HF_HOME at a larger disk",
    ),
    rule(
        "bus_error",
        r"Bus error|\bSIGBUS\b|exit(?:ed with)? code:? -7\b|terminated with -7\b|signal 7\b|No space left on device: '?/dev/shm",
        0.93,
        1,
    ),
    rule(
        "nccl_error",
        r"NCCL WARN .*(?:[Ff]ail|[Ee]rror|[Cc]losed|[Tt]imed? ?out|unhandled|unable|[Cc]annot|reset|refused|abort)|ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclInvalidUsage|ncclInvalidArgument",
        0.88,
        7,
    ),
    rule(
        "nccl_error",
        r"nvshmem (?:setup connections|initialization) failed|NVSHMEM API called before NVSHMEM initialization",
        0.7,
        7,
        cause="NVSHMEM, the transport of the expert-parallel all-to-all, could not connect its ranks",
        remedy="NVSHMEM_DEBUG=INFO; check the network devices that it picked, or another --moe-a2a-backend",
    ),
    rule(
        "nccl_error",
        r"NCCL error(?: in)?: |NCCL Error \d|Error while creating shared memory segment|(?:RuntimeError|DistBackendError): NCCL(?! communicator was aborted)|unhandled (?:cuda|system) error",
        0.88,
        7,
    ),
)

OUT_OF_MEMORY = rule(
    "cuda_oom",
    r"CUDA out of memory|CUDA error: out of memory|torch\.(?:cuda\.)?OutOfMemoryError|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory",
    0.92,
    2,
)
PROXY: tuple[Rule, ...] = (
    rule(
        "warmup_blocked_by_proxy",
        r"ProxyError|Squid|squid|Proxy[- ]Authenticat|Tunnel connection failed|HTTP proxy|via proxy|407 Proxy",
        0.92,
        1,
    ),
    rule("warmup_blocked_by_proxy", r"res=<Response \[(?:403|407|50[234])\]>.*<(?:!DOCTYPE|html|HTML|head|HEAD)", 0.9, 1),
    rule("warmup_blocked_by_proxy", r"res=<Response \[(?:403|407|50[234])\]>", 0.6, 2),
)
